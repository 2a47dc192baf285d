"""The directory tree of a shard: the entries of each folder.

Invariants:
- a name occurs once in a directory. Of members with one name the last wins, as when the tar is
  extracted; the others are counted;
- every member's parents exist, even if the tar has no entries for them;
- if a name is both a member and a directory, the directory keeps it and the member becomes
  `name~file`, so that nothing below is lost;
- an opened tar and its folder are named like shards; the one that is not listed is found by name;
- positions are stable and follow the tar: reading a directory in order reads the shard in order.

There is no dict from names to rows, which would need more memory than the index. A directory is a
slice of `entries`; looking up a name bisects the slice, through a permutation if the names are not
already in order.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from operator import lt
from types import MappingProxyType
from typing import NamedTuple

from aisfs.core.index.columns import KIND_BITS, column_at
from aisfs.core.index.member_index import MemberIndex, MemberKind
from aisfs.core.views.samples import EXCLUDED
from aisfs.core.views.tree_builder import DIRECTORY, NO_ROW, MemberTree, path_of
from aisfs.settings import Shards


class Child(NamedTuple):
    """One entry of a directory."""

    name: bytes
    row: int | None
    """The member; for directories the row of its own entry, if the tar has one."""
    directory: int | None
    """The directory's number; None for other entries."""


_PLAIN = bytes(flags for flags in range(256) if not flags & KIND_BITS)
BISECTED = 8
"""Directories with at least so many entries are bisected; a sample has fewer."""


class Directory:
    """One directory of a shard."""

    __slots__ = ("_start", "_stop", "_view", "number")

    def __init__(self, view: "MembersView", number: int, start: int, stop: int) -> None:
        self._view = view
        self.number = number
        self._start = start
        self._stop = stop

    def __repr__(self) -> str:
        return f"<Directory {self.path!r} of {len(self)}>"

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def path(self) -> bytes:
        """The path inside the shard; empty for the root."""
        return self._view.path(self.number)

    @property
    def parent(self) -> int:
        """The number of the parent directory; the root is its own parent."""
        return self._view.parents[self.number]

    @property
    def row(self) -> int | None:
        """The row of this directory's own entry, if the tar has one."""
        return self._view.directory_row(self.number)

    @property
    def rows(self) -> Sequence[int]:
        """The members in this directory that are not directories, in the order of the tar."""
        codes = self._view.entries[self._start : self._stop]
        return codes if isinstance(codes, range) else [c for c in codes if not c & DIRECTORY]

    @property
    def mtime_ns(self) -> int | None:
        """The mtime in the tar; None if the tar has no entry for the directory."""
        return None if self.row is None else self._view.index.mtime_ns(self.row)

    def child(self, position: int) -> Child:
        """Return the entry at a position.

        Raises:
            IndexError: there is no such entry.
        """
        if not 0 <= position < len(self):
            raise IndexError(f"directory {self.path!r} has no entry {position}")
        return self._view.entry(self._start + position)

    def children(self, start: int = 0) -> Iterator[Child]:
        """Return the entries from a position on."""
        return map(self._view.entry, range(self._start + start, self._stop))

    def __iter__(self) -> Iterator[Child]:
        return self.children()

    def plain_files(self, start: int, most: int) -> tuple[Sequence[int], list[bytes]]:
        """Return rows and names of at most `most` entries from a position on, up to the first that
        is not a plain file.

        This takes a twentieth of the time of `children`.
        """
        first, view = self._start + start, self._view
        columns = view.index.columns
        names, ends, flags = columns.names, columns.ends, columns.flags
        contents, renamed = columns.contents, view.renamed
        codes = view.entries[first : min(first + most, self._stop)]
        usual = not (renamed or contents) and codes and max(codes) < DIRECTORY
        if usual and not bytes(column_at(flags, codes)).translate(None, _PLAIN):
            return codes, columns.last_names(codes)
        rows: list[int] = []
        found: list[bytes] = []
        for code in codes:
            if code & DIRECTORY or flags[code] & KIND_BITS or code in renamed or code in contents:
                break
            name = names[ends[code - 1] if code else 0 : ends[code]]
            rows.append(code)
            found.append(bytes(name[name.rfind(b"/") + 1 :]))
        return rows, found

    @property
    def searchable(self) -> bool:
        """Whether `find` is fast: the first search in an unordered directory sorts it."""
        return self.number in self._view.orders

    def find(self, name: bytes) -> Child | None:
        """Return the entry with a name, listed or not."""
        code = self._view.aside.get((self.number, name))
        return self._listed(name) or (None if code is None else self._view.child_of(code, name))

    def _listed(self, name: bytes) -> Child | None:
        view = self._view
        if len(self) < BISECTED:
            return next((child for child in self if child.name == name), None)
        order = self._order()
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            at = self._start + (middle if order is None else order[middle])
            found = view.entry_name(at)
            if found == name:
                return view.entry(at)
            if found < name:
                low = middle + 1
            else:
                high = middle
        return None

    def _order(self) -> "array[int] | None":
        """Return the positions of the entries by name; None when they are in order."""
        orders = self._view.orders
        if self.number not in orders:
            names = [self._view.entry_name(at) for at in range(self._start, self._stop)]
            ordered = all(map(lt, names, islice(names, 1, None)))
            by_name = () if ordered else sorted(range(len(names)), key=names.__getitem__)
            orders[self.number] = None if ordered else array("I", by_name)
        return orders[self.number]


class MembersView:
    """The tree of one index. Directories have numbers; the root is 0."""

    def __init__(
        self,
        index: MemberIndex,
        paths: Sequence[bytes | None] | None = None,
        exclusions: Mapping[str, int] = MappingProxyType({}),
        shards: Shards = Shards.FILE,
    ) -> None:
        """Lay the members out.

        Args:
            index: The members.
            paths: The path of each member, with its name unchanged; None for one that is not
                shown. By default all members have the paths of the tar.
            exclusions: How many members `paths` does not show, by reason.
            shards: How opened tars in the shard are shown.
        """
        self.index = index
        tree = MemberTree(index, paths, shards)
        self.entries: Sequence[int] = tree.entries
        self._starts = tree.starts
        self._names = tree.names
        self.parents = tree.parents
        self._rows = tree.rows
        self.renamed = tree.renamed
        self.aside = tree.aside
        """Entries that are found by name but not listed, by directory and name."""
        self._ascending = tree.ascending
        self.orders: dict[int, array[int] | None] = {0: None} if tree.ascending else {}
        """For each directory that was searched the order of its entries by name; None: as listed."""
        skipped = Counter(index.skipped)
        skipped.update(tree.skipped)
        skipped.update(exclusions)
        self.skipped: Mapping[str, int] = MappingProxyType(dict(skipped))
        """How many members of the tar are not shown, by reason."""

    def __repr__(self) -> str:
        return f"<MembersView of {len(self.entries)} entries in {len(self)} directories>"

    def __len__(self) -> int:
        """Return the number of directories."""
        return len(self._names)

    def directory(self, number: int) -> Directory:
        """Return a directory by its number.

        Raises:
            IndexError: there is none.
        """
        if not 0 <= number < len(self._names):
            raise IndexError(f"no directory {number}")
        return Directory(self, number, self._starts[number], self._starts[number + 1])

    def resolve(self, path: bytes) -> Child | None:
        """Return the entry at a path inside the shard; the root has an empty name."""
        child: Child | None = Child(b"", self.directory_row(0), 0)
        for part in path.split(b"/") if path else ():
            if child is None or child.directory is None:
                return None
            child = self.directory(child.directory).find(part)
        return child

    def path(self, number: int) -> bytes:
        """Return the path of a directory."""
        return path_of(number, self._names, self.parents)

    def directory_row(self, number: int) -> int | None:
        """Return the row of a directory's own entry, if there is one."""
        row = self._rows[number]
        return None if row == NO_ROW else row

    def in_opened_tar(self, number: int) -> bool:
        """Return whether a directory is the folder of an opened tar, or lies in one."""
        while number:
            row = self.directory_row(number)
            if row is not None and self.index.opened(row):
                return True
            number = self.parents[number]
        return False

    def entry(self, at: int) -> Child:
        """Return an entry by its position in `entries`."""
        return self.child_of(self.entries[at], self.entry_name(at))

    def child_of(self, code: int, name: bytes) -> Child:
        """Return the entry that has a code and a name."""
        if code & DIRECTORY:
            number = code ^ DIRECTORY
            return Child(name, self.directory_row(number), number)
        return Child(name, code, None)

    def entry_name(self, at: int) -> bytes:
        """Return the name of an entry by its position in `entries`."""
        code = self.entries[at]
        if code & DIRECTORY:
            return self._names[code ^ DIRECTORY]
        if code in self.renamed:
            return self.renamed[code]
        name = self.index.name(code)
        return name[name.rfind(b"/") + 1 :]

    @property
    def nbytes(self) -> int:
        """The approximate memory use beside the index, as if all directories were ordered by name."""
        entries = 0 if isinstance(self.entries, range) else 4 * len(self.entries)
        orders = 0 if self._ascending else 4 * len(self.entries)
        names = sum(map(len, self._names)) + 41 * len(self._names)  # a bytes object and its slot
        rare = 200 * (len(self.renamed) + len(self.aside))
        return 1024 + entries + orders + names + 12 * len(self._names) + rare


def members_only(index: MemberIndex, wanted: Callable[[bytes], bool] | None = None) -> MembersView:
    """Return a view that shows opened tars by their members alone, like shards of a dataset.

    Args:
        index: The members.
        wanted: Returns whether a member of this name is shown; None if all are.
    """
    opened = set(index.opened_tars())
    if not opened and wanted is None:
        return MembersView(index)
    paths = [None if row in opened else name for row, name in enumerate(index.names())]
    excluded = 0
    if wanted is not None:
        directories = set(index.rows_of(MemberKind.DIRECTORY))
        for row, name in enumerate(paths):
            if name is not None and not wanted(name):
                # A directory that is not named itself is there for what is in it.
                paths[row], excluded = None, excluded + (row not in directories)
    exclusions = {EXCLUDED: excluded} if excluded else {}
    return MembersView(index, paths, exclusions, shards=Shards.BOTH)


def without_folders(index: MemberIndex) -> MembersView:
    """Return a view without members, for shards whose members are shown elsewhere."""
    return MembersView(index, ())
