"""The columns of a member index, and how their rows are read, linked and selected."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, compress
from operator import itemgetter

from aisfs.core.index.links import HARDLINK

KIND_BITS = 0b11
"""Mask of the flags: the `MemberKind` of a row."""
OPENED = 1 << 5
"""A flag: a tar whose members are rows too, or their folder, which is the next row."""
_DICT_COST = 150  # bytes of one entry of a dict of small values, measured


class MemberColumns:
    """The columns of all rows, and dicts for values that few rows have."""

    __slots__ = ("contents", "ends", "flags", "leads", "mtimes", "names", "offsets", "sizes",
                 "stored_stops", "targets")  # fmt: skip

    def __init__(self) -> None:
        self.names: bytes | bytearray = bytearray()
        self.ends = array("I")
        """Where each row's name ends in `names`."""
        self.offsets = array("Q")
        """Where the data starts."""
        self.leads = array("H")
        """Header blocks before the data."""
        self.sizes = array("Q")
        self.mtimes = array("q")
        self.flags: bytes | bytearray = bytearray()
        self.targets: dict[int, bytes] = {}
        """The target of each symlink."""
        self.contents: dict[int, int] = {}
        """For each hardlink the row whose content it shares."""
        self.stored_stops: dict[int, int] = {}
        """For each sparse row, where its stored form ends."""

    @property
    def nbytes(self) -> int:
        """The memory this takes, roughly."""
        arrays = (self.ends, self.offsets, self.leads, self.sizes, self.mtimes)
        rare = len(self.targets) + len(self.contents) + len(self.stored_stops)
        rare_bytes = rare * _DICT_COST + sum(map(len, self.targets.values()))
        plain = len(self.names) + len(self.flags)
        return plain + sum(a.itemsize * len(a) for a in arrays) + rare_bytes

    def name(self, row: int) -> bytes:
        """Return one name."""
        ends = self.ends
        return bytes(self.names[ends[row - 1] if row else 0 : ends[row]])

    def append(
        self, name: bytes, offset: int, lead: int, size: int, mtime_ns: int, flags: int
    ) -> None:
        """Add a row that is neither a link nor sparse."""
        self.names += name
        self.ends.append(len(self.names))
        self.offsets.append(offset)
        self.leads.append(lead)
        self.sizes.append(size)
        self.mtimes.append(mtime_ns)
        self.flags.append(flags)  # type: ignore[union-attr]

    def last_names(self, rows: Sequence[int]) -> list[bytes]:
        """Return the last components of some names, much faster than one by one."""
        names = self.names
        stops = column_at(self.ends, rows)
        if isinstance(rows, range):  # adjacent names begin where the previous one ends
            starts = [self.ends[rows.start - 1] if rows.start else 0, *stops[:-1]]
        else:
            starts = [self.ends[row - 1] if row else 0 for row in rows]
        found = [bytes(names[start:stop]) for start, stop in zip(starts, stops, strict=True)]
        return [name.rpartition(b"/")[2] for name in found] if b"/" in b"".join(found) else found

    def all_names(self) -> list[bytes]:
        """Return all names, much faster than one by one."""
        blob = bytes(self.names)
        ends = self.ends
        return [blob[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]

    def share_content(self, row: int, content: int) -> None:
        """Copy a row's columns to a hardlink, so that reading the link needs no second lookup."""
        for column in (self.offsets, self.leads, self.sizes, self.mtimes):
            column[row] = column[content]
        kept = self.flags[content] & ~(KIND_BITS | OPENED)
        self.flags[row] = kept | HARDLINK  # type: ignore[index]
        self.contents[row] = content
        if content in self.stored_stops:
            self.stored_stops[row] = self.stored_stops[content]

    def reordered(self, order: Sequence[int]) -> "MemberColumns":
        """Return the rows, none of them a link or sparse, in another order."""
        new, names = MemberColumns(), self.all_names()
        new.names = b"".join([names[row] for row in order])
        new.ends = array("I", accumulate(len(names[row]) for row in order))
        for column in ("offsets", "leads", "sizes", "mtimes"):
            old: array[int] = getattr(self, column)
            setattr(new, column, array(old.typecode, map(old.__getitem__, order)))
        new.flags = bytes(map(self.flags.__getitem__, order))
        return new

    def packed(self, keep: Sequence[bool] | None) -> "MemberColumns":
        """Return the rows to keep (None: all) in columns without spare capacity."""
        new = MemberColumns()
        for column in ("offsets", "leads", "sizes", "mtimes"):
            old: array[int] = getattr(self, column)
            setattr(
                new, column, old[:] if keep is None else array(old.typecode, compress(old, keep))
            )
        if keep is None:
            new.names, new.ends, new.flags = bytes(self.names), self.ends[:], bytes(self.flags)
            moved: Mapping[int, int] | range = range(len(self.ends))
        else:
            names = list(compress(self.all_names(), keep))
            new.names, new.ends = b"".join(names), array("I", accumulate(map(len, names)))
            new.flags = bytes(compress(self.flags, keep))
            moved = {old: now for now, old in enumerate(compress(range(len(keep)), keep))}
        new.targets = {moved[row]: said for row, said in self.targets.items()}
        new.contents = {moved[row]: moved[content] for row, content in self.contents.items()}
        new.stored_stops = {
            moved[row]: stop for row, stop in self.stored_stops.items() if row in moved
        }
        return new


class Names:
    """Names in the columns of many shards."""

    def __init__(self, columns: Iterable[MemberColumns]) -> None:
        columns = list(columns)
        self._names = [bytes(column.names) for column in columns]
        self._ends = [column.ends for column in columns]

    def at(self, members: Iterable[int]) -> list[bytes]:
        """Return names by the position of a shard, above 32 bits for the row in it."""
        names, ends = self._names, self._ends
        places = [(member >> 32, member & 0xFFFFFFFF) for member in members]
        return [
            names[shard][ends[shard][row - 1] if row else 0 : ends[shard][row]]
            for shard, row in places
        ]


def column_at(column: Sequence[int], rows: Sequence[int]) -> Sequence[int]:
    """Return the values of a column in some rows."""
    if isinstance(rows, range):
        return column[rows.start : rows.stop]
    if len(rows) == 1:
        return [column[rows[0]]]
    return itemgetter(*rows)(column)  # type: ignore[no-any-return]
