"""How the members of a zip are stored: columns beside those of the member index.

A member of a tar is a plain range of its shard. A member of a zip begins with a local header, whose
length is only known from that header, and may be compressed. The index has the start of that header as
`offset`; these columns have the rest that reading needs.
"""

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from aisfs.core.index.integer_codec import array_of, little_endian

LOCAL_HEADER = 30
"""Bytes of the fixed part of the local header."""
_SLACK = 96
"""Bytes allowed for the extra field of that header; usual writers need 28 or 36."""
_LOCAL = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"


class Stored(NamedTuple):
    """How one member is stored."""

    start: int
    """Where its local header starts."""
    method: int
    stored: int
    """Bytes of its data in the object."""
    size: int
    crc: int
    """CRC-32 of the content."""


class Packing:
    """The columns, with one value for each row of the index."""

    __slots__ = ("crcs", "methods", "stored")

    def __init__(self, methods: bytes, stored: "array[int]", crcs: "array[int]") -> None:
        """Keep the columns, which are bytes, unsigned 64-bit and unsigned 32-bit numbers."""
        self.methods = methods
        self.stored = stored
        self.crcs = crcs

    def __len__(self) -> int:
        return len(self.methods)

    @property
    def nbytes(self) -> int:
        """The memory this takes, roughly."""
        return 13 * len(self.methods)

    def reordered(self, order: Sequence[int]) -> "Packing":
        """Return the same rows in another order."""
        return Packing(
            bytes(map(self.methods.__getitem__, order)),
            array("Q", map(self.stored.__getitem__, order)),
            array("I", map(self.crcs.__getitem__, order)),
        )

    def to_bytes(self) -> tuple[bytes, bytes, bytes]:
        """Return the columns in a form that is the same on every machine."""
        return self.methods, little_endian(self.stored), little_endian(self.crcs)

    @classmethod
    def from_bytes(cls, methods: bytes, stored: bytes, crcs: bytes) -> "Packing":
        """Return the columns that `to_bytes` returned.

        Raises:
            ValueError: the columns are not of one length.
        """
        if (len(stored), len(crcs)) != (8 * len(methods), 4 * len(methods)):
            raise ValueError("the columns of a zip are not of one length")
        return cls(methods, array_of("Q", stored), array_of("I", crcs))


def expected_length(name_length: int, stored: int) -> int:
    """Return how many bytes from the local header on most likely contain the whole member."""
    return LOCAL_HEADER + name_length + _SLACK + stored


def data_offset(head: bytes) -> int | None:
    """Return how far after the start of its local header a member's data starts.

    Args:
        head: The first `LOCAL_HEADER` bytes of that header.

    Returns:
        None if this is not a local header.
    """
    if len(head) < LOCAL_HEADER:
        return None
    magic, name_length, extra_length = _LOCAL.unpack_from(head)
    return LOCAL_HEADER + name_length + extra_length if magic == _LOCAL_MAGIC else None
