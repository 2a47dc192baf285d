"""The bucket that a job writes to: found in a request, and made like the one it reads from."""

from aisfs.server.failures import Failure, unsupported
from aisfs.server.messages import Request
from aisfs.server.storage.bucket import Bucket
from aisfs.server.storage.objects import Storage, check_bucket_name


def named_in(request: Request) -> str:
    """Return the name in `bck_to`, which AIStore writes as `ais/@#/name/`.

    Raises:
        Failure: 400 when there is none, 501 when it is a bucket of another backend or namespace.
    """
    given = request.query.get("bck_to", "")
    if not given:
        raise Failure(400, 'missing "bck_to" query parameter')
    *place, name = given.strip("/").split("/")
    if place[:1] not in ([], ["ais"]) or place[1:] not in ([], ["@#"]):
        raise unsupported(f"{given}: another backend or namespace")
    return check_bucket_name(name)


def make_like(storage: Storage, source: Bucket, name: str) -> Bucket:
    """Make a bucket with the properties of another one.

    Raises:
        Failure: 409 when it exists.
    """
    properties = source.records.properties()
    properties.pop("created", None)
    storage.create(name, properties)
    return storage.bucket(name)
