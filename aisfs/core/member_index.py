"""Where each member of a shard lies: columns, because a million shards' members must fit in memory.

A row is one member that can be shown, in the order of the tar. Invariants:
- names are paths as `member_names` defines them: no row can climb out of the shard;
- a name may repeat (a view decides that the last one wins), nothing else about a row is undecided;
- a hardlink has the columns of its content, so that reading it needs no second look;
- a symlink leads to something inside the shard, and following directories never goes round.
What is not a row is counted in `skipped`, what is wrong with the tar is told in `warnings`.

`MemberIndexBuilder` takes rows from a scanner in bulk; its `build` resolves the links.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate
from types import MappingProxyType

from aisfs.core.forms import Form
from aisfs.core.member_columns import KIND_BITS, MemberColumns
from aisfs.core.member_links import HARDLINK, SYMLINK, resolve_links
from aisfs.core.member_names import HiddenName, all_tidy, normalise
from aisfs.core.zip_packing import Packing, Stored, expected_length
from aisfs.errors import ShardDamaged
from aisfs.model import ByteRange

MAX_LEAD = 0xFFFF
"""Most header blocks one member may have before its data: what the column holds (32 MiB)."""
MAX_NAMES = 2**32 - 2**24
"""Most bytes of names in one shard: what the column of their ends holds, less one bulk of rows."""
MAX_ROWS = 2**23
"""Most rows of one shard; inode numbers have room for twice as many, a bulk may go beyond."""

EXECUTABLE = 1 << 2
SPARSE = 1 << 3
TRUNCATED = 1 << 4

_MAX_WARNINGS = 20  # hostile input must not fill memory or terminals
_BLOCK = 512
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

    def plain(self, row: int) -> bool:
        """Say whether the row is a file of its own, all there, stored as it is read."""
        return not self._columns.flags[row] & (KIND_BITS | SPARSE | TRUNCATED)

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
        if start < stop and stop > self.object_size:
            raise ShardDamaged(
                f"member {self.name(row)!r} has data up to byte {data.stop},"
                f" but the shard ends at byte {self.object_size}"
            )
        return ByteRange(start, stop)

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


class MemberIndexBuilder:
    """Collects rows in the order of the tar, then builds the index once."""

    def __init__(self, object_size: int) -> None:
        self._object_size = object_size
        self._columns = MemberColumns()
        self._links: dict[int, bytes] = {}
        """Link rows with the target as stored."""
        self._skipped: dict[str, int] = {}
        self._warnings: list[str] = []

    def __len__(self) -> int:
        return len(self._columns.ends)

    @property
    def full(self) -> bool:
        """Whether no more rows can be taken."""
        return len(self._columns.names) > MAX_NAMES or len(self._columns.ends) > MAX_ROWS

    def warn(self, message: str) -> None:
        """Note what is wrong with the shard."""
        if len(self._warnings) < _MAX_WARNINGS:
            self._warnings.append(message)

    def skip(self, reason: str) -> None:
        """Count a member that is not shown."""
        self._skipped[reason] = self._skipped.get(reason, 0) + 1

    def extend(
        self,
        names: list[bytes],
        offsets: Sequence[int],
        leads: Sequence[int],
        sizes: Sequence[int],
        mtimes: Sequence[int],
        flags: bytes | bytearray,
    ) -> None:
        """Add regular files as a scanner found them; parallel columns of one length."""
        if not all_tidy(names):
            # `tar cf x.tar .` gives every name this start.
            plain = [name[2:] if name.startswith(b"./") else name for name in names]
            if not all_tidy(plain):
                for row in zip(names, offsets, leads, sizes, mtimes, flags, strict=True):
                    self.add(*row)
                return
            names = plain
        columns = self._columns
        start = len(columns.names)
        columns.names += b"".join(names)
        ends = accumulate(map(len, names), initial=start)
        next(ends)
        columns.ends.extend(ends)
        columns.offsets.extend(offsets)
        columns.leads.extend(leads)
        columns.sizes.extend(sizes)
        columns.mtimes.extend(mtimes)
        columns.flags += flags

    def add(
        self,
        name: bytes,
        offset: int,
        lead: int,
        size: int,
        mtime_ns: int,
        flags: int,
        *,
        target: bytes | None = None,
        stored_stop: int | None = None,
    ) -> None:
        """Add one member of any kind, or count why it is not shown.

        Args:
            name: as stored.
            offset: where the data starts.
            lead: header blocks before it.
            size: as users see it.
            mtime_ns: nanoseconds since the epoch.
            flags: kind and the flags of this module.
            target: of a link, as stored.
            stored_stop: of a sparse member, where its stored form ends.
        """
        kind = flags & KIND_BITS
        # Old tars and old writers know a directory only by its final slash.
        if kind == MemberKind.FILE and size == 0 and name.endswith(b"/"):
            kind = MemberKind.DIRECTORY
            flags |= kind
        try:
            path = normalise(name)
        except HiddenName as reason:
            return self.skip(str(reason))
        if not path and kind != MemberKind.DIRECTORY:
            return self.skip("bad name")
        columns = self._columns
        row = len(columns.ends)
        if target is not None:
            self._links[row] = target
        if stored_stop is not None:
            columns.stored_stops[row] = stored_stop
        columns.names += path
        columns.ends.append(len(columns.names))
        columns.offsets.append(offset)
        columns.leads.append(lead)
        columns.sizes.append(size)
        columns.mtimes.append(mtime_ns)
        columns.flags.append(flags)  # type: ignore[union-attr]
        return None

    def contents_of(self, suffix: bytes, first: int, size_max: int) -> Iterator[tuple[int, int]]:
        """Yield offset and size of the files from row `first` on whose names end in `suffix`.

        Case does not matter. Left out are those that are empty, larger than `size_max`, cut off or
        sparse.
        """
        columns = self._columns
        start = columns.ends[first - 1] if first else 0
        for row in range(first, len(columns.ends)):
            stop = columns.ends[row]
            if (
                columns.names[start:stop].lower().endswith(suffix)
                and not columns.flags[row] & (KIND_BITS | SPARSE | TRUNCATED)
                and 0 < columns.sizes[row] <= size_max
            ):
                yield columns.offsets[row], columns.sizes[row]
            start = stop

    def cut(self, size: int) -> tuple[bytes, int] | None:
        """Say that the object ends at `size`, which it was not known to do.

        Returns:
            The name of the member that was cut off and where its data would end, if one was.
        """
        self._object_size = size
        columns = self._columns
        last = len(columns.ends) - 1
        if last < 0:
            return None
        stop = columns.stored_stops.get(last, columns.offsets[last] + columns.sizes[last])
        if stop <= size or columns.flags[last] & KIND_BITS != MemberKind.FILE:
            return None
        columns.flags[last] |= TRUNCATED  # type: ignore[index]
        return columns.name(last), stop

    def build(self, *, form: Form = Form.TAR, packing: Packing | None = None) -> MemberIndex:
        """Resolve the links and return the index. The builder is spent.

        Args:
            form: what the rows were found in.
            packing: of a zip, for exactly these rows; it has no links.
        """
        keep = self._resolve_links() if self._links else None
        return MemberIndex(
            self._columns.packed(keep),
            self._object_size,
            tuple(self._warnings),
            MappingProxyType(dict(self._skipped)),
            form=form,
            packing=packing,
        )

    def _resolve_links(self) -> list[bool] | None:
        """Settle every link row; returns which rows to keep, None for all."""
        columns = self._columns
        kinds = bytes(flags & KIND_BITS for flags in columns.flags)
        links = resolve_links(columns.all_names(), kinds, self._links)
        for row, content in links.contents.items():
            columns.share_content(row, content)
        for row, target in links.targets.items():
            columns.targets[row] = target
            columns.sizes[row] = len(target)
            columns.flags[row] = columns.flags[row] & ~KIND_BITS | SYMLINK  # type: ignore[index]
        if not links.refused:
            return None
        for _ in links.refused:
            self.skip("bad link")
        return [row not in links.refused for row in range(len(kinds))]
