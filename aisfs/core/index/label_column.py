"""The labels of a shard's members as a column, stored beside its index."""

import struct
import zlib
from array import array
from bisect import bisect_left
from dataclasses import dataclass

import msgspec

from aisfs.core.index.codec import MAX_INFLATED, DamagedIndex
from aisfs.core.index.integer_codec import array_of, little_endian
from aisfs.core.index.member_index import MemberIndex

CONTENT_MAX = 1 << 20
"""Most bytes of a member that is read for a label; a caption or its JSON has a thousand."""
_MAGIC = b"AISL\1"
_CHECK = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class LabelColumn:
    """The labels of some members of one shard."""

    rows: "array[int]"
    """Ascending."""
    ids: "array[int]"
    """The label of each row, as a position in `table`."""
    table: list[bytes]
    """Each label once."""

    def by_row(self) -> dict[int, bytes]:
        """Return the label of each row."""
        return {row: self.table[i] for row, i in zip(self.rows, self.ids, strict=True)}

    def find(self, row: int) -> bytes | None:
        """Return the label of a row; None if it has none."""
        at = bisect_left(self.rows, row)
        there = at < len(self.rows) and self.rows[at] == row
        return self.table[self.ids[at]] if there else None

    def encode(self) -> bytes:
        """Return the column as bytes.

        Raises:
            ValueError: it is too large to be stored.
        """
        parts = [*map(little_endian, (self.rows, self.ids)), self.table]
        raw = msgspec.msgpack.encode(parts)
        if len(raw) > MAX_INFLATED:
            raise ValueError(f"{len(raw)} bytes of labels are too many")
        rest = zlib.compress(raw, 1)
        return _MAGIC + _CHECK.pack(zlib.crc32(rest)) + rest

    @classmethod
    def decode(cls, data: bytes | memoryview, index: MemberIndex) -> "LabelColumn":
        """Return the column that `encode` encoded.

        Raises:
            DamagedIndex: these bytes are not the labels of `index`.
        """
        start = len(_MAGIC) + _CHECK.size
        head, rest = bytes(data[:start]), data[start:]
        if len(head) < start or head != _MAGIC + _CHECK.pack(zlib.crc32(rest)):
            raise DamagedIndex("the checksum of the labels does not hold")
        try:
            raw = zlib.decompressobj().decompress(rest, MAX_INFLATED)
            rows, ids, table = msgspec.msgpack.decode(raw, type=tuple[bytes, bytes, list[bytes]])
            column = cls(array_of("I", rows), array_of("I", ids), table)
        except (zlib.error, msgspec.MsgspecError, ValueError) as error:
            raise DamagedIndex(f"the labels make no sense: {error}") from None
        fits = len(column.rows) == len(column.ids)
        if not fits or max(column.rows, default=-1) >= len(index):
            raise DamagedIndex("the labels belong to another shard")
        if max(column.ids, default=-1) >= len(table):
            raise DamagedIndex("the labels are not all there")
        return column
