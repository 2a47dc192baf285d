"""Where each member of a shard lies, as columns, so that millions of members fit in memory.

A row is one member that can be shown, in the order of the tar. Invariants:
- names are paths as `columns` defines them: no row can climb out of the shard;
- a name may repeat (a view lets the last one win); everything else about a row is final;
- a hardlink has the columns of its content, so that reading it needs no second lookup;
- a symlink leads to something inside the shard, and following directories never forms a cycle;
- the members of an opened tar in the tar follow its row, so data can lie in data.
Members that are no rows are counted in `skipped`; problems of the tar are in `warnings`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

from aisfs.core.index.columns import HARDLINK, KIND_BITS, OPENED, SYMLINK, MemberColumns
from aisfs.core.index.zip_columns import Packing, Stored, expected_length
from aisfs.core.names.listing import Form
from aisfs.errors import ShardDamaged
from aisfs.model import ByteRange

MAX_LEAD = 0xFFFF
"""Most header blocks before the data of one member: what the column can hold (32 MiB)."""
MAX_ROWS = 2**23
"""Most rows of one shard; inode numbers have room for twice as many, as a batch may exceed it."""

EXECUTABLE = 1 << 2
SPARSE = 1 << 3
TRUNCATED = 1 << 4

_BLOCK = 512
_IS_OPENED_TAR = bytes(flags & (OPENED | KIND_BITS) == OPENED for flags in range(256))
_FIXED_COST = 1024


class MemberKind(IntEnum):
    """The kind of a row; the values are the low bits of the flags column."""

    FILE = 0
    DIRECTORY = 1
    SYMLINK = SYMLINK
    HARDLINK = HARDLINK


_PLAIN = bytes(f for f in range(256) if not f & (KIND_BITS | SPARSE | TRUNCATED | OPENED))
_IS_KIND = {kind: bytes(flags & KIND_BITS == kind for flags in range(256)) for kind in MemberKind}


class MemberIndex:
    """The rows of one shard. Immutable."""

    __slots__ = (
        "columns", "form", "object_size", "packing", "skipped", "warnings", "without_attributes",
    )  # fmt: skip

    def __init__(
        self,
        columns: MemberColumns,
        object_size: int,
        warnings: tuple[str, ...],
        skipped: Mapping[str, int],
        *,
        form: Form = Form.TAR,
        packing: Packing | None = None,
        without_attributes: bool = False,
    ) -> None:
        self.columns = columns
        """The columns themselves, which must not be changed."""
        self.object_size = object_size
        """Length of what the offsets refer to: the object, or its decompressed content."""
        self.form = form
        self.packing = packing
        """How the members of a zip are stored; None for tars."""
        self.warnings = warnings
        """What is wrong with the shard and where; rows before that place are good."""
        self.skipped = skipped
        """Members that are not shown: reason and how many."""
        self.without_attributes = without_attributes
        """Whether times and modes are not the members' own, as in AIStore's index."""

    def __repr__(self) -> str:
        return (
            f"<MemberIndex of {len(self)} members, {len(self.warnings)} warnings,"
            f" {sum(self.skipped.values())} skipped>"
        )

    def __len__(self) -> int:
        return len(self.columns.ends)

    def name(self, row: int) -> bytes:
        """Return the member's path inside the shard; empty for the root itself."""
        return self.columns.name(row)

    def names(self) -> list[bytes]:
        """Return all names, much faster than one by one."""
        return self.columns.all_names()

    def kind(self, row: int) -> MemberKind:
        """Return the kind of a row."""
        return MemberKind(self.columns.flags[row] & KIND_BITS)

    def rows_of(self, kind: MemberKind) -> Iterator[int]:
        """Yield the rows of one kind."""
        marks, row = self.columns.flags.translate(_IS_KIND[kind]), -1
        while (row := marks.find(1, row + 1)) >= 0:
            yield row

    def size(self, row: int) -> int:
        """Return the size users see: the logical size of sparse rows, the target's of symlinks."""
        return self.columns.sizes[row]

    def mtime_ns(self, row: int) -> int:
        """Return the modification time in nanoseconds since the epoch; it may be negative."""
        return self.columns.mtimes[row]

    def executable(self, row: int) -> bool:
        """Return whether any execute bit is stored."""
        return bool(self.columns.flags[row] & EXECUTABLE)

    def mode(self, row: int) -> int:
        """Return the permission bits shown: readable by all, never writable, never setuid."""
        flags = self.columns.flags[row]
        if flags & KIND_BITS in (MemberKind.DIRECTORY, MemberKind.SYMLINK) or flags & EXECUTABLE:
            return 0o555
        return 0o444

    def truncated(self, row: int) -> bool:
        """Return whether the object ends before the member does."""
        return bool(self.columns.flags[row] & TRUNCATED)

    def sparse(self, row: int) -> bool:
        """Return whether the content is stored without its holes, to be read with `core.archive.tar`."""
        return bool(self.columns.flags[row] & SPARSE)

    def opened(self, row: int) -> bool:
        """Return whether the row is a tar whose members are rows too, or the folder of these members."""
        return bool(self.columns.flags[row] & OPENED)

    def opened_tars(self, before: int | None = None) -> Iterator[int]:
        """Yield the tars whose members are rows too, in reverse."""
        marks = self.columns.flags[:before].translate(_IS_OPENED_TAR)
        row = len(marks)
        while (row := marks.rfind(1, 0, row)) >= 0:
            yield row

    def plain(self, row: int) -> bool:
        """Return whether the row is a complete regular file whose bytes are stored as they are."""
        return not self.columns.flags[row] & (KIND_BITS | SPARSE | TRUNCATED | OPENED)

    def all_plain(self, start: int, stop: int) -> bool:
        """Return whether `plain` holds for all rows of a range."""
        return not self.columns.flags[start:stop].translate(None, _PLAIN)

    def sizes_within(self, start: int, stop: int, most: int) -> bool:
        """Return whether all rows of a range have contents of 1 to `most` bytes."""
        sizes = self.columns.sizes[start:stop]
        return min(sizes) > 0 and max(sizes) <= most

    def content_row(self, row: int) -> int:
        """Return the row that has the content, another one for hardlinks; it determines the inode."""
        return self.columns.contents.get(row, row)

    def link_target(self, row: int) -> bytes:
        """Return the target of a symlink; empty for other rows."""
        return self.columns.targets.get(row, b"")

    def data_range(self, row: int) -> ByteRange:
        """Return where the data is stored, for truncated rows as if they were complete.

        In a zip, which does not tell exactly: the range to fetch in order to have it.
        """
        columns = self.columns
        start = columns.offsets[row]
        if columns.flags[row] & KIND_BITS in (MemberKind.DIRECTORY, MemberKind.SYMLINK):
            return ByteRange(start, start)
        if self.packing is not None:
            length = expected_length(len(self.name(row)), self.packing.stored[row])
            return ByteRange(start, min(start + length, self.object_size))
        stop = columns.stored_stops.get(row)
        return ByteRange(start, start + columns.sizes[row] if stop is None else stop)

    def places(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Return (start, size) of plain rows of a tar, faster than one by one."""
        offsets, sizes = self.columns.offsets, self.columns.sizes
        return [(offsets[row], sizes[row]) for row in rows]

    def stored(self, row: int) -> Stored:
        """Return how a member of a zip is stored."""
        packing = self.packing
        assert packing is not None, "only members of a zip are packed"
        return Stored(
            self.columns.offsets[row],
            packing.methods[row],
            packing.stored[row],
            self.columns.sizes[row],
            packing.crcs[row],
        )

    def span(self, row: int) -> ByteRange:
        """Return where the member is stored from its first header to the end of its data."""
        stored = self.data_range(row)
        return ByteRange(stored.start - self.columns.leads[row] * _BLOCK, stored.stop)

    def read_range(self, row: int, offset: int, length: int) -> ByteRange:
        """Return the bytes of the object for a read of a member that is not sparse.

        A read past the member's end is shortened, as for files.

        Raises:
            ShardDamaged: when the object ends before the bytes do.
        """
        data = self.data_range(row)
        start = min(data.start + offset, data.stop)
        stop = min(start + length, data.stop)
        if start < stop and stop > (end := self.end_of(row)):
            raise ShardDamaged(
                f"member {os.fsdecode(self.name(row))!r} has data up to byte {data.stop},"
                f" but its tar ends at byte {end}"
            )
        return ByteRange(start, stop)

    def end_of(self, row: int) -> int:
        """Return where the tar that contains the row ends."""
        if not self.truncated(row):
            return self.object_size
        start = self.columns.offsets[row]
        for tar in self.opened_tars(self.content_row(row)):
            data = self.data_range(tar)
            if data.start < start <= data.stop:
                return min(data.stop, self.object_size)
        return self.object_size

    def reordered(self, order: Sequence[int]) -> "MemberIndex":
        """Return the index, which has no links, with its rows in another order."""
        columns = self.columns.reordered(order)
        packing = self.packing.reordered(order) if self.packing is not None else None
        return MemberIndex(
            columns,
            self.object_size,
            self.warnings,
            self.skipped,
            form=self.form,
            packing=packing,
            without_attributes=self.without_attributes,
        )

    def stripped(self) -> "MemberIndex":
        """Return the same index, marked as one `without_attributes`."""
        return MemberIndex(
            self.columns,
            self.object_size,
            self.warnings,
            self.skipped,
            form=self.form,
            packing=self.packing,
            without_attributes=True,
        )

    @property
    def flat(self) -> bool:
        """Whether all names are in the shard's root; then no row is a directory either."""
        if b"/" in self.columns.names:
            return False
        return next(self.rows_of(MemberKind.DIRECTORY), None) is None

    @property
    def nbytes(self) -> int:
        """The approximate memory use, by which a cache of indexes weighs it."""
        packed = self.packing.nbytes if self.packing is not None else 0
        return _FIXED_COST + self.columns.nbytes + sum(map(len, self.warnings)) + packed
