"""Whether an object that was not found is missing: the one place that decides it.

While a rebalance moves objects between targets, AIStore says of objects that are there that they are not
(protocol notes 0.2, T11): HEAD asks the target that an object is to move to; GET asks the others too, but
not in the first seconds after a target joined. So what is not found is missing only if the cluster is
known to move nothing, or if GET does not find it either and a listing that is asked for then is complete.

Must not know: trio, errnos.
"""

from aisfs.ais.protocol import listings, requests
from aisfs.ais.protocol.errors import failure
from aisfs.ais.transport.client import Transport
from aisfs.connections.connection_set import ConnectionSet
from aisfs.connections.reply import Reply
from aisfs.errors import BucketNotFound, NotFound, Unavailable, Unproven
from aisfs.model import Bucket, Provider


class FoundByGet(Unavailable):
    """An object is there, though the request that was sent did not find it."""

    reply: Reply
    """That to a GET of the first byte."""


def check_absent(
    transport: Transport, connections: ConnectionSet, bucket: Bucket, key: str
) -> None:
    """Return if an object that was not found is missing. In the thread of a request.

    Raises:
        FoundByGet: it is there.
        Unavailable: it may be there.
        AisfsError: what else prevents to tell.
    """
    subject = f"{bucket}/{key}"
    if bucket.provider is not Provider.AIS:  # the cloud was asked
        return
    if bucket.is_local and transport.moves_nothing(connections, subject):
        return
    byte = requests.get_range(bucket, key, 0, 1, latest=bucket.is_attached)
    reply = transport.ask(connections, byte)
    if reply.status in (200, 206, 416):
        found = FoundByGet(f"{subject}: the cluster is moving it from target to target")
        found.reply = reply
        raise found
    error = failure(byte, reply)
    if not isinstance(error, NotFound) or isinstance(error, BucketNotFound):
        raise error
    parent, slash, _ = key.rpartition("/")
    names = requests.first_keys(bucket, parent + slash, "", 1)
    _, _, complete = listings.parse_keys(transport.fetch(connections, names), bucket, parent)
    if not complete:
        raise Unproven(f"{subject}: not found, but the cluster is moving objects")
    if bucket.is_local:
        transport.settle(connections, subject)
        transport.readiness.calmed()
