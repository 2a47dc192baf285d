"""Keys of S3 which obstore refuses, listed with boto3; and markers of directories, removed with it.

Of a key with `//`, with `.` or `..` as a component, or with a control character, obstore makes an error of
the whole listing. boto3 lists any key, but ten times slower, and in threads that only a timeout ends.
"""

import importlib.util
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import trio

from aisfs.config import ClusterSettings, clouds
from aisfs.errors import ProtocolError, Unavailable, Unsupported
from aisfs.model import Bucket, ObjectInfo, Page
from aisfs.redaction import shown
from aisfs.store.cloud.errors import error_of_status
from aisfs.store.cloud.objects import REFUSED, version_of

log = logging.getLogger(__name__)

TOKEN = "boto3 "
"""How the tokens of these listings begin."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def are_listed() -> bool:
    """Return whether boto3 is installed."""
    return importlib.util.find_spec("boto3") is not None


class OddKeys:
    """Lists what obstore does not."""

    def __init__(self, settings: ClusterSettings, count: Callable[[str, int], None]) -> None:
        self._settings = settings
        self._count = count
        self._client: Any = None
        self._told: set[Bucket] = set()

    async def page(self, bucket: Bucket, prefix: str, token: str) -> Page:
        """Return a page of a directory; what cannot be asked for by obstore is in `Page.unusable`."""
        ours = token.startswith(TOKEN)  # and not one of a listing that obstore turned out to refuse
        more = {"ContinuationToken": token.removeprefix(TOKEN)} if ours else {}
        found = await self._ask(bucket, Prefix=prefix, Delimiter="/", **more)
        objects = [_described(row) for row in found.get("Contents", ())]
        directories = [row["Prefix"] for row in found.get("CommonPrefixes", ())]
        names = [*(info.key for info in objects), *directories]
        below = [name for name in names if name != prefix]  # which is the directory's marker
        odd = [name for name in below if REFUSED.search(name[len(prefix) :].removesuffix("/"))]
        if odd and bucket not in self._told:
            self._told.add(bucket)
            log.warning(
                "%s: keys such as %r cannot be files here and are left out", bucket, shown(odd[0])
            )
        unusable = [name for name in odd if _CONTROL.search(name)]
        left_out = set(unusable)
        token = found.get("NextContinuationToken", "")
        return Page(
            [info for info in objects if info.key not in left_out],
            [name for name in directories if name not in left_out],
            f"{TOKEN}{token}" if token else "",
            unusable,
        )

    async def first(
        self, bucket: Bucket, prefix: str, most: int, after: str
    ) -> list[tuple[str, datetime]]:
        """Return the first keys below a directory that come behind `after`, and when they changed."""
        first: list[tuple[str, datetime]] = []
        more: dict[str, object] = {"StartAfter": after}
        while True:
            found = await self._ask(bucket, Prefix=prefix, MaxKeys=most - len(first), **more)
            first += [(row["Key"], row["LastModified"]) for row in found.get("Contents", ())]
            token = found.get("NextContinuationToken", "")
            if not token or len(first) >= most:
                return first
            more = {"ContinuationToken": token}

    async def remove_marker(self, bucket: Bucket, key: str) -> None:
        """Remove the marker of a directory, an object whose key ends in a slash.

        Raises:
            Unsupported: it has content, so it is more than that.
            Stale: somebody has just written it.
        """
        self._count("head", 1)
        found = await self._call(bucket, key, "head_object", Key=key)
        if found["ContentLength"]:
            raise Unsupported(f"{bucket}/{key}: an object of {found['ContentLength']} bytes")
        self._count("delete", 1)
        await self._call(bucket, key, "delete_object", Key=key, IfMatch=found["ETag"])

    async def _ask(self, bucket: Bucket, **words: object) -> dict[str, Any]:
        self._count("list", 1)
        found = await self._call(bucket, str(words["Prefix"]), "list_objects_v2", **words)
        if found.get("Name") != bucket.name or found.get("IsTruncated") is None:
            raise Unavailable(f"{bucket}: the answer is no listing of it")
        return found

    async def _call(self, bucket: Bucket, key: str, name: str, **words: object) -> dict[str, Any]:
        def call() -> dict[str, Any]:
            with _errors(f"{bucket}/{key}"):
                if self._client is None:
                    self._client = _make_client(self._settings)
                if self._settings.requester_pays:
                    words["RequestPayer"] = "requester"
                found: dict[str, Any] = getattr(self._client, name)(Bucket=bucket.name, **words)
            return found

        return await trio.to_thread.run_sync(call, abandon_on_cancel=True)


def _make_client(settings: ClusterSettings) -> Any:  # noqa: ANN401 - boto3 has no types
    import boto3
    import botocore
    from botocore.config import Config

    endpoint = clouds.endpoint_of("s3") or None
    config = Config(
        connect_timeout=settings.connect_timeout or None,
        read_timeout=settings.read_timeout or settings.io_timeout,
        retries={"total_max_attempts": 1},
        max_pool_connections=settings.max_connections,
        s3={"addressing_style": "path"} if endpoint else None,
        signature_version=botocore.UNSIGNED if settings.anonymous else None,
    )
    return boto3.Session(region_name=clouds.aws_region() or None).client(
        "s3",
        endpoint_url=endpoint,
        config=config,
        verify=False
        if settings.skip_verify_crt
        else settings.client_ca and str(settings.client_ca),
    )


@contextmanager
def _errors(subject: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        told = error.response
        code = str(told.get("Error", {}).get("Code", ""))
        raise error_of_status(subject, told["ResponseMetadata"]["HTTPStatusCode"], code) from error
    except (BotoCoreError, OSError) as error:
        raise Unavailable(f"{subject}: {shown(str(error))}") from None
    except ValueError as error:
        raise ProtocolError(f"{subject}: {shown(str(error))}") from None


def _described(row: Any) -> ObjectInfo:  # noqa: ANN401
    mtime = int(row["LastModified"].timestamp()) * 1_000_000_000
    return ObjectInfo(row["Key"], row["Size"], version_of(row.get("ETag")), mtime_ns=mtime)
