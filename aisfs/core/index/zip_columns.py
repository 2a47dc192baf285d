"""How the members of a zip are stored: columns beside those of the member index.

A member of a tar is a plain range of its shard. One of a zip begins with a header of its own, whose
length only that header tells, and may be deflated. The index has for `offset` where that header
starts, and here is what else reading needs.
"""

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple

STORED = 0
DEFLATED = 8

LOCAL_HEADER = 30
"""Bytes of the fixed part of the header before the data."""
_SLACK = 96
"""Bytes for the extra field of that header: those of usual writers take 28 or 36."""
_LOCAL = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"


class Stored(NamedTuple):
    """How one member is stored."""

    start: int
    """Where its own header starts."""
    method: int
    stored: int
    """Bytes of its data in the object."""
    size: int
    crc: int
    """CRC-32 of the content."""


class Packing:
    """The columns; one value for each row of the index."""

    __slots__ = ("crcs", "methods", "stored")

    def __init__(self, methods: bytes, stored: "array[int]", crcs: "array[int]") -> None:
        """Take over the columns: bytes, unsigned 64 bit, unsigned 32 bit."""
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
        """Give the columns in a form that does not depend on the machine."""
        return self.methods, _little(self.stored), _little(self.crcs)

    @classmethod
    def from_bytes(cls, methods: bytes, stored: bytes, crcs: bytes) -> "Packing":
        """Take back what `to_bytes` gave.

        Raises:
            ValueError: the columns are not of one length.
        """
        if (len(stored), len(crcs)) != (8 * len(methods), 4 * len(methods)):
            raise ValueError("the columns of a zip are not of one length")
        return cls(methods, _array("Q", stored), _array("I", crcs))


def _array(typecode: str, data: bytes) -> "array[int]":
    values = array(typecode, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _little(values: "array[int]") -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def expected_length(name_length: int, stored: int) -> int:
    """Say how many bytes from its own header on most likely hold all of a member."""
    return LOCAL_HEADER + name_length + _SLACK + stored


def data_offset(head: bytes) -> int | None:
    """Say how far behind the start of its own header a member's data starts.

    Args:
        head: The first `LOCAL_HEADER` bytes of that header.

    Returns:
        None if this is no such header.
    """
    if len(head) < LOCAL_HEADER:
        return None
    magic, name_length, extra_length = _LOCAL.unpack_from(head)
    return LOCAL_HEADER + name_length + extra_length if magic == _LOCAL_MAGIC else None
