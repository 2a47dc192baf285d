"""What to upload, its checksum, and sending it: shared by uploads in one request and in parts.

Must not know: HTTP, requests, errnos.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from aisfs.ais.absence import WRITE_AGE, check_newest
from aisfs.ais.client_port import Session
from aisfs.ais.protocol.requests import BucketFacts, Request
from aisfs.core.checksums import DEFAULT_TYPE, is_known
from aisfs.errors import AisfsError, AlreadyExists, BucketNotFound, NotFound, Stale
from aisfs.http.connections import ConnectionSet
from aisfs.http.exchange import Reply
from aisfs.model import NO_CUSTOM, Bucket, ObjectInfo
from aisfs.store.content import checksum_of, pieces_of
from aisfs.store.port import Announce, Content, Progress


@dataclass(frozen=True, slots=True)
class Upload:
    """What is to be written."""

    bucket: Bucket
    key: str
    content: Content
    custom: Mapping[str, str] = field(default_factory=lambda: NO_CUSTOM)
    progress: Progress = lambda done: None
    announce: Announce = lambda name: None
    only_new: str = ""
    replaces: ObjectInfo | None = None
    earlier: ObjectInfo | None = None
    """What an earlier upload on such a condition sent, whose reply may have been lost."""

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}"


async def check_condition(session: Session, upload: Upload) -> None:
    """Make sure that an upload may replace what is there now. AIStore has no conditional writes.

    What an earlier try has sent, whose reply was lost, may be replaced.

    Raises:
        AlreadyExists, Stale: it may not.
        Unproven: what is there may be an older copy.
    """
    if not upload.only_new and upload.replaces is None:
        return
    conflict: AisfsError = AlreadyExists(f"{upload}: another client has made it meanwhile")
    # Now, since between the HEAD and the PUT another client's change is overwritten: that is to be short.
    await _check_newest(session, upload, age=WRITE_AGE)
    try:
        now = await session.head(upload.bucket, upload.key, latest=True)
    except BucketNotFound:
        raise
    except NotFound as error:
        if upload.replaces is None:
            return
        raise Stale(f"{upload}: another client has removed it meanwhile") from error
    if upload.replaces is not None:
        if now.same_content(upload.replaces):
            return
        conflict = Stale(f"{upload}: another client has changed it meanwhile")
    if not await _is_own(session, upload, now):
        await _check_newest(session, upload, age=0.0)  # else an older copy would count as a change
        raise conflict


async def _check_newest(session: Session, upload: Upload, *, age: float) -> None:
    def check(connections: ConnectionSet) -> None:
        check_newest(
            session.transport, connections, upload.bucket, upload.key, writes=True, age=age
        )

    await session.run(str(upload), check, upload.bucket)


async def _is_own(session: Session, upload: Upload, now: ObjectInfo) -> bool:
    """Return whether an object is what an upload, or one before it, has sent."""
    sent, kind = upload.earlier, now.checksum.partition(":")[0]
    if not is_known(kind):
        return False
    if sent is not None and (sent.size, sent.checksum) == (now.size, now.checksum):
        return True

    def sum_up(connections: ConnectionSet) -> str:
        return checksum_as(kind, upload.content, connections)

    same_size = now.size == upload.content.size
    return same_size and await session.run(str(upload), sum_up) == now.checksum


def send_content(
    session: Session,
    connections: ConnectionSet,
    request: Request,
    content: Content,
    progress: Progress,
) -> Reply:
    """Send a request with a content, and receive its reply."""
    pieces: Iterator[memoryview] = pieces_of(content, progress)
    return session.transport.upload(connections, request, content.size, pieces)


def checksum_for(facts: BucketFacts, content: Content, connections: ConnectionSet) -> str:
    """Compute what the bucket wants to know; empty when it keeps none."""
    if not facts.keeps_checksums:
        return ""
    kind = facts.checksum_type
    return checksum_as(kind if is_known(kind) else DEFAULT_TYPE, content, connections)


def checksum_as(kind: str, content: Content, connections: ConnectionSet) -> str:
    """Compute the checksum of a content; what comes out is of no use once its connections were aborted."""
    return checksum_of(content, kind, lambda: not connections.sockets.is_aborted)
