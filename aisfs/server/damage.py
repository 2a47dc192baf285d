"""Damage that a trap did to an object, stored with its record until the object is replaced.

The file stays intact; the replies withhold what a real AIStore would have lost.
"""

import errno
import os
from collections.abc import Iterator

import msgspec

from aisfs.server.failures import Failure, Headers

_PIECE = 1 << 20


class LostPart(msgspec.Struct, frozen=True):
    """A part of an upload whose file is gone, and its place in the object."""

    start: int
    size: int
    name: str


class Damage(msgspec.Struct, frozen=True, omit_defaults=True):
    """All damage of one object."""

    lost: tuple[LostPart, ...] = ()
    length: int = 0
    """The length of the file if it is not the object's size, else 0."""
    noticed: bool = False
    """Whether the lengths were compared, which makes the object unreadable."""
    unchecked: bool = False
    """Grown in place, without a checksum: bad data to a bucket that validates reads."""

    def readable(self, start: int, size: int, headers: Headers) -> int:
        """Return how many bytes of a range can be read.

        Raises:
            Failure: 404 when the first one is lost, with the headers of the range.
        """
        for part in self.lost:
            if part.start <= start < part.start + part.size:
                told = [h for h in headers if h[0] in ("Accept-Ranges", "Content-Range")]
                text = f"[fs-path] {part.name}: chunk does not exist"
                raise Failure(404, text, "PathError", headers=told)
        return min([size, *(p.start - start for p in self.lost if p.start > start)])


def break_off(fd: int, start: int, size: int) -> Iterator[bytes]:
    """Yield the first bytes of a longer reply, close `fd` and drop the connection."""
    with os.fdopen(fd, "rb") as file:
        file.seek(start)
        while size and (piece := file.read(min(size, _PIECE))):
            size -= len(piece)
            yield piece
    raise ConnectionResetError(errno.ECONNRESET, "the rest is lost")
