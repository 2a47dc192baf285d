"""Where each member of a shard lies: columns, because a million shards' members must fit in memory.

A row is one member that can be shown, in the order of the tar. Invariants:
- names are paths as `member_names` defines them: no row can climb out of the shard;
- a name may repeat (a view decides that the last one wins), nothing else about a row is undecided;
- a hardlink has the columns of its content, so that reading it needs no second look;
- a symlink leads to something inside the shard, and following directories never goes round.
- the members of a tar in the tar that is opened (`inner_tars`) follow it, so data can lie in data.
What is not a row is counted in `skipped`, what is wrong with the tar is told in `warnings`.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType

from aisfs.core.archive.formats import Form
from aisfs.core.index.columns import KIND_BITS, OPENED, MemberColumns
from aisfs.core.index.links import HARDLINK, SYMLINK
from aisfs.core.index.zip_columns import Packing, Stored, expected_length
from aisfs.errors import ShardDamaged
from aisfs.model import ByteRange

MAX_LEAD = 0xFFFF
"""Most header blocks one member may have before its data: what the column holds (32 MiB)."""
MAX_ROWS = 2**23
"""Most rows of one shard; inode numbers have room for twice as many, a bulk may go beyond."""

EXECUTABLE = 1 << 2
SPARSE = 1 << 3
TRUNCATED = 1 << 4

_BLOCK = 512
_IS_OPENED_TAR = bytes(flags & (OPENED | KIND_BITS) == OPENED for flags in range(256))
_FIXED_COST = 1024


class MemberKind(IntEnum):
    """What a row is; the values are the low bits of the flags column."""

    FILE = 0
    DIRECTORY = 1
    SYMLINK = SYMLINK
    HARDLINK = HARDLINK


class MemberIndex:
    """The rows of one shard. Immutable."""

    __slots__ = ("_columns", "form", "object_size", "packing", "skipped", "warnings")

    def __init__(
        self,
        columns: MemberColumns,
        object_size: int,
        warnings: tuple[str, ...],
        skipped: Mapping[str, int],
        *,
        form: Form = Form.TAR,
        packing: Packing | None = None,
    ) -> None:
        self._columns = columns
        self.object_size = object_size
        """Bytes of what the offsets refer to: the object, or what it is when decompressed."""
        self.form = form
        self.packing = packing
        """Of a zip: how its members are stored."""
        self.warnings = warnings
        """What is wrong with the shard and where; the rows before it are good."""
        self.skipped = skipped
        """Members that are not shown: reason and how many."""

    def __repr__(self) -> str:
        return (
            f"<MemberIndex of {len(self)} members, {len(self.warnings)} warnings,"
            f" {sum(self.skipped.values())} skipped>"
        )

    def __len__(self) -> int:
        return len(self._columns.ends)

    @classmethod
    def from_columns(
        cls,
        *,
        names: bytes,
        ends: "array[int]",
        offsets: "array[int]",
        leads: "array[int]",
        sizes: "array[int]",
        mtimes: "array[int]",
        flags: bytes,
        targets: dict[int, bytes],
        contents: dict[int, int],
        stored_stops: dict[int, int],
        object_size: int,
        warnings: tuple[str, ...],
        skipped: Mapping[str, int],
        form: Form = Form.TAR,
        packing: Packing | None = None,
    ) -> "MemberIndex":
        """Return the index that had these columns: the way back from `columns`."""
        columns = MemberColumns()
        columns.names, columns.ends, columns.offsets, columns.leads = names, ends, offsets, leads
        columns.sizes, columns.mtimes, columns.flags = sizes, mtimes, flags
        columns.targets, columns.contents = targets, contents
        columns.stored_stops = stored_stops
        counts = MappingProxyType(dict(skipped))
        return cls(columns, object_size, warnings, counts, form=form, packing=packing)

    @property
    def columns(self) -> MemberColumns:
        """The columns themselves, for `core.index_codec` to store; nobody may change them."""
        return self._columns

    def name(self, row: int) -> bytes:
        """Return the member's path inside the shard; empty for the root itself."""
        return self._columns.name(row)

    def names(self) -> list[bytes]:
        """Return all names: much quicker than asking one by one."""
        return self._columns.all_names()

    def kind(self, row: int) -> MemberKind:
        """Say what the row is."""
        return MemberKind(self._columns.flags[row] & KIND_BITS)

    def rows_of(self, kind: MemberKind) -> Iterator[int]:
        """Yield the rows of one kind."""
        return (row for row, flags in enumerate(self._columns.flags) if flags & KIND_BITS == kind)

    def size(self, row: int) -> int:
        """Return the size users see: logical for sparse rows, of the text for symlinks."""
        return self._columns.sizes[row]

    def mtime_ns(self, row: int) -> int:
        """Return the modification time in nanoseconds since the epoch; it may be negative."""
        return self._columns.mtimes[row]

    def executable(self, row: int) -> bool:
        """Say whether any execute bit is stored."""
        return bool(self._columns.flags[row] & EXECUTABLE)

    def mode(self, row: int) -> int:
        """Return the permission bits shown: readable by all, never writable, never setuid."""
        flags = self._columns.flags[row]
        if flags & KIND_BITS in (MemberKind.DIRECTORY, MemberKind.SYMLINK) or flags & EXECUTABLE:
            return 0o555
        return 0o444

    def truncated(self, row: int) -> bool:
        """Say whether the object ends before the member does."""
        return bool(self._columns.flags[row] & TRUNCATED)

    def sparse(self, row: int) -> bool:
        """Say whether the content is stored with its holes left out: `core.sparse` reads it."""
        return bool(self._columns.flags[row] & SPARSE)

    def opened(self, row: int) -> bool:
        """Say whether the row is a tar whose members are rows too, or the folder of these."""
        return bool(self._columns.flags[row] & OPENED)

    def opened_tars(self, before: int | None = None) -> Iterator[int]:
        """Yield the tars whose members are rows too, the last one first."""
        marks = self._columns.flags[:before].translate(_IS_OPENED_TAR)
        row = len(marks)
        while (row := marks.rfind(1, 0, row)) >= 0:
            yield row

    def plain(self, row: int) -> bool:
        """Say whether the row is a file of its own, all there, its bytes stored and for it alone."""
        return not self._columns.flags[row] & (KIND_BITS | SPARSE | TRUNCATED | OPENED)

    def content_row(self, row: int) -> int:
        """Return the row whose content this is: another one for hardlinks. Same row, same inode."""
        return self._columns.contents.get(row, row)

    def link_target(self, row: int) -> bytes:
        """Return what a symlink says; empty for other rows."""
        return self._columns.targets.get(row, b"")

    def data_range(self, row: int) -> ByteRange:
        """Return where the data is stored, for truncated rows as if it all was there.

        In a zip, which does not say it so exactly: what to fetch in order to have it.
        """
        columns = self._columns
        start = columns.offsets[row]
        if columns.flags[row] & KIND_BITS in (MemberKind.DIRECTORY, MemberKind.SYMLINK):
            return ByteRange(start, start)
        if self.packing is not None:
            length = expected_length(len(self.name(row)), self.packing.stored[row])
            return ByteRange(start, min(start + length, self.object_size))
        stop = columns.stored_stops.get(row)
        return ByteRange(start, start + columns.sizes[row] if stop is None else stop)

    def places(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Return (start, size) of plain rows of a tar: quicker than asking one by one."""
        offsets, sizes = self._columns.offsets, self._columns.sizes
        return [(offsets[row], sizes[row]) for row in rows]

    def stored(self, row: int) -> Stored:
        """Say how a member of a zip is stored."""
        packing = self.packing
        assert packing is not None, "only members of a zip are packed"
        return Stored(
            self._columns.offsets[row],
            packing.methods[row],
            packing.stored[row],
            self._columns.sizes[row],
            packing.crcs[row],
        )

    def span(self, row: int) -> ByteRange:
        """Return where the member is stored from its first header to the end of its data."""
        stored = self.data_range(row)
        return ByteRange(stored.start - self._columns.leads[row] * _BLOCK, stored.stop)

    def read_range(self, row: int, offset: int, length: int) -> ByteRange:
        """Return which bytes of the object answer a read of a plain (not sparse) member.

        A read past the member's end is shortened, as files do.

        Raises:
            ShardDamaged: when the object ends before the bytes do.
        """
        data = self.data_range(row)
        start = min(data.start + offset, data.stop)
        stop = min(start + length, data.stop)
        if start < stop and stop > (end := self.end_of(row)):
            raise ShardDamaged(
                f"member {self.name(row)!r} has data up to byte {data.stop},"
                f" but its tar ends at byte {end}"
            )
        return ByteRange(start, stop)

    def end_of(self, row: int) -> int:
        """Return where the tar ends that the row is a member of."""
        if not self.truncated(row):
            return self.object_size
        start = self._columns.offsets[row]
        for tar in self.opened_tars(self.content_row(row)):
            data = self.data_range(tar)
            if data.start < start <= data.stop:
                return min(data.stop, self.object_size)
        return self.object_size

    def reordered(self, order: Sequence[int]) -> "MemberIndex":
        """Return an index with the rows of this one, which has no links, in another order."""
        columns = self._columns.reordered(order)
        packing = self.packing.reordered(order) if self.packing is not None else None
        return MemberIndex(
            columns, self.object_size, self.warnings, self.skipped, form=self.form, packing=packing
        )

    @property
    def flat(self) -> bool:
        """Whether all names are in the shard's root; then no row is a directory either."""
        if b"/" in self._columns.names:
            return False
        return next(self.rows_of(MemberKind.DIRECTORY), None) is None

    @property
    def nbytes(self) -> int:
        """The memory this takes, roughly: what a cache of indexes weighs it by."""
        packed = self.packing.nbytes if self.packing is not None else 0
        return _FIXED_COST + self._columns.nbytes + sum(map(len, self.warnings)) + packed
