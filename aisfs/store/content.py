"""Bytes to be written, as `aisfs.store.port.Content`: in memory, in a file, or a part of either."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aisfs.core.checksums import hasher_of
from aisfs.errors import ContentUnreadable
from aisfs.store.port import Content, Progress

PIECE = 512 << 10
"""Bytes handled at once: within a send timeout also over a slow link."""


class BytesContent:
    """Bytes in memory."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.view = memoryview(data)

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.view)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """See `Content`."""
        buffer[:] = self.view[start : start + len(buffer)]


@dataclass(frozen=True, slots=True)
class FileContent:
    """The first `size` bytes of an open file, wherever its position is."""

    descriptor: int
    """Stays the caller's to close, after the call that was given the content."""
    size: int
    name: str = "the file"
    """What messages call it."""

    def read_into(self, start: int, buffer: memoryview) -> None:
        """See `Content`."""
        done = 0
        while done < len(buffer):
            try:
                got = os.preadv(self.descriptor, [buffer[done:]], start + done)
            except OSError as error:
                raise ContentUnreadable(f"{self.name}: {error.strerror}") from error
            if not got:
                raise ContentUnreadable(
                    f"{self.name}: ends after {start + done} of {self.size} bytes"
                )
            done += got


@dataclass(frozen=True, slots=True)
class PartOfContent:
    """The bytes `[start, start + size)` of another content."""

    whole: Content
    start: int
    size: int

    def read_into(self, start: int, buffer: memoryview) -> None:
        """See `Content`."""
        self.whole.read_into(self.start + start, buffer)


def in_memory(content: Content) -> Content:
    """Read a small content, which would be read twice otherwise: for its checksum, and to be sent."""
    buffer = memoryview(bytearray(content.size))
    content.read_into(0, buffer)
    return BytesContent(buffer)


def pieces_of(content: Content, progress: Progress | None = None) -> Iterator[memoryview]:
    """Yield all bytes, in order; each piece is valid until the next one is asked for.

    Args:
        content: What to read.
        progress: Told when the next piece is asked for.
    """
    if isinstance(content, BytesContent) and content.size <= PIECE:
        if content.size:
            yield content.view
            if progress:
                progress(content.size)
        return
    buffer = memoryview(bytearray(min(PIECE, content.size)))
    for start in range(0, content.size, PIECE):
        piece = buffer[: content.size - start]
        content.read_into(start, piece)
        yield piece
        if progress:
            progress(start + len(piece))


def checksum_of(content: Content, kind: str, go_on: Callable[[], bool] = lambda: True) -> str:
    """Compute the checksum of a content, as `<type>:<hex>`.

    Args:
        content: Read from its beginning to its end.
        kind: A known type.
        go_on: Asked before each piece; the result is of no use once it returned False.
    """
    hasher = hasher_of(kind)
    for piece in pieces_of(content):
        if not go_on():
            break
        hasher.update(piece)
    return f"{kind}:{hasher.hexdigest()}"
