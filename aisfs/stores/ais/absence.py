"""Whether an object that was not found is missing, and whether one that was found is the newest: the one place
that decides it.

While a rebalance moves objects between targets, AIStore says of objects that are there that they are not
(protocol notes 0.2, T11): HEAD asks the target that an object is to move to; GET asks the others too, but
not in the first seconds after a target joined. So what is not found is missing only if the cluster is
known to move nothing, or if GET does not find it either and a listing that is asked for then is complete.

A target that comes back from maintenance owns its names at once, and has the copies of when it left. Until the
rebalance has sent it the newer ones, it serves the old, and what is written over them is lost: the copy that
arrives has the higher version. So while the cluster may move something, a listing of all copies has to show none
that is newer than the owner's.

What is still being written while a target comes or goes is lost as well: it ends at the target that had the name
when it began, after the objects there were sent on. So a change counts as done only if the map is still the same.

Must not know: trio, errnos.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from aisfs.errors import (
    AccessDenied,
    AisfsError,
    BucketNotFound,
    NotFound,
    ProtocolError,
    Unavailable,
    Unproven,
)
from aisfs.http.connections import ConnectionSet
from aisfs.http.exchange import Reply
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.stores.ais import replies, requests
from aisfs.stores.ais.replies import failure
from aisfs.stores.ais.transport import Transport


class FoundByGet(Unavailable):
    """An object is there, though the request that was sent did not find it."""

    reply: Reply
    """That to a GET of the first byte."""


READ_AGE, WRITE_AGE = 2.0, 0.1
"""Seconds for which a map is believed, before an object is read or written: one request serves many objects."""


def check_newest(
    transport: Transport,
    connections: ConnectionSet,
    bucket: Bucket,
    key: str,
    *,
    writes: bool,
    age: float | None = None,
) -> None:
    """Return if the target that owns a name has its newest copy. In the thread of a request.

    What cannot be told does not keep an object from being read, since without a rebalance there is but one copy.

    Args:
        transport: Asks.
        connections: The connections to use.
        bucket: The bucket.
        key: The name, which need not be there.
        writes: Whether the object is about to be changed; then a copy that may be there counts as well.
        age: Seconds for which a map is believed, if not those of a read or a write.

    Raises:
        Unproven: there is a newer one, which is being moved, or there may be.
        AisfsError: what else prevents to tell.
    """
    subject, readiness = f"{bucket}/{key}", transport.readiness
    age = age if age is not None else WRITE_AGE if writes else READ_AGE
    if not bucket.is_local or readiness.is_mute(str(bucket)):
        return
    calm = _moves_nothing(transport, connections, bucket, subject, age)
    if calm or not (readiness.version or writes):
        return
    copies = _copies(transport, connections, bucket, key, writes=writes)
    if copies is None:
        return
    owned, elsewhere, complete = copies
    # What the owner lacks altogether, a GET finds at the others.
    newer = elsewhere > owned and (writes or owned > 0)
    if complete:
        try:
            transport.settle(connections, subject, listed=str(bucket))
        except Unproven:
            if writes or newer:
                raise
        return
    readiness.moving(str(bucket))
    if newer:
        raise Unproven(f"{subject}: the cluster is moving a newer version of it between targets")


def _copies(
    transport: Transport, connections: ConnectionSet, bucket: Bucket, key: str, *, writes: bool
) -> tuple[int, int, bool] | None:
    """Return what `parse_copies` does, of which all is known only in a calm cluster; None if nothing tells."""
    readiness = transport.readiness
    try:
        reply = transport.fetch(connections, requests.list_copies(bucket, key))
        owned, elsewhere, complete = replies.parse_copies(reply, bucket, key)
        return owned, elsewhere, complete and _is_calm(transport, connections, bucket)
    except AccessDenied:  # a token for objects alone
        readiness.muted(str(bucket))
        return None
    except AisfsError as error:
        if not writes or (isinstance(error, ProtocolError) and not readiness.version):
            return None  # the request itself says it better, or this is no AIStore
        raise


class Change:
    """A change under way; see `changing`."""

    def __init__(self) -> None:
        self.age = WRITE_AGE
        """Seconds for which the map is believed at its end."""

    def wrote(self, written: ObjectInfo | None, over: ObjectInfo | None, *, is_new: bool) -> None:
        """Take what the reply to a PUT says, which may prove that the newest copy was replaced.

        Args:
            written: What was written; None if the reply says nothing.
            over: What it was to replace; None if that is not known.
            is_new: Whether nothing was to be there.

        Raises:
            Unproven: it was an older copy.
        """
        if is_new:
            return
        version = written.version if written else ""
        if not (over and over.version.isdecimal() and version.isdecimal()):
            self.age = 0.0
        elif int(version) <= int(over.version):
            raise Unproven(f"{over.key}: written over an older copy, as targets joined or left")


@contextmanager
def changing(
    transport: Transport, connections: ConnectionSet, *objects: tuple[Bucket, str]
) -> Iterator[Change]:
    """Surround a change of objects: they are the newest, and while it lasts no targets join or leave.

    Raises:
        Unproven: the change was not made, or may be lost.
        AisfsError: what else prevents to tell.
    """
    readiness, before = transport.readiness, -1
    while before != readiness.version:
        before = readiness.version
        for bucket, key in objects:
            check_newest(transport, connections, bucket, key, writes=True)
    change = Change()
    yield change
    if before and any(bucket.is_local for bucket, _ in objects):
        subject = "{}/{}".format(*objects[-1])
        transport.keeps_map(connections, subject, age=change.age)
        if readiness.version != before:
            raise Unproven(f"{subject}: targets joined or left the cluster meanwhile")


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
    if bucket.is_local and _moves_nothing(transport, connections, bucket, subject):
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
    _, _, complete = replies.parse_keys(transport.fetch(connections, names), bucket, parent)
    if not complete or not _is_calm(transport, connections, bucket):
        raise Unproven(f"{subject}: not found, but the cluster is moving objects")
    if bucket.is_local:
        transport.settle(connections, subject)
        transport.readiness.calmed(str(bucket))


def check_listed(
    transport: Transport,
    connections: ConnectionSet,
    bucket: Bucket,
    subject: str,
    *,
    complete: bool,
) -> None:
    """Return if what a listing lacks is missing. In the thread of a request.

    Raises:
        Unproven: it may be there.
    """
    if not complete or not _is_calm(transport, connections, bucket):
        transport.readiness.moving(str(bucket))
        raise Unproven(
            f"{subject}: the cluster's listing is not complete (flags 1): "
            "a rebalance is under way, or was interrupted"
        )
    if bucket.is_local:
        transport.settle(connections, subject, listed=str(bucket))


def _is_calm(transport: Transport, connections: ConnectionSet, bucket: Bucket) -> bool:
    """Return whether no target that has objects of a bucket is sending any.

    A listing has the flags of those targets only that have something in it: an empty one is never flagged. From the
    start of the bucket, with what is misplaced, each has something that could send something.
    """
    if not bucket.is_local or transport.readiness.moves_nothing(str(bucket)):
        return True
    first = requests.list_copies(bucket, "")
    return replies.parse_copies(transport.fetch(connections, first), bucket, "")[2]


def _moves_nothing(
    transport: Transport,
    connections: ConnectionSet,
    bucket: Bucket,
    subject: str,
    age: float = 0.0,
) -> bool:
    """Return whether nothing of a bucket is known to move, by a map that is at most `age` seconds old."""
    if not transport.keeps_map(connections, subject, age=age):
        return False
    return transport.readiness.moves_nothing(str(bucket))
