"""What to upload, its checksum, and sending it: shared by uploads in one request and in parts.

Must not know: HTTP, requests, errnos.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from aisfs.ais.client_port import Session
from aisfs.ais.protocol.requests import BucketFacts, Request
from aisfs.connections.connection_set import ConnectionSet
from aisfs.connections.reply import Reply
from aisfs.core.checksums import DEFAULT_TYPE, is_known
from aisfs.model import NO_CUSTOM, Bucket
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

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}"


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
