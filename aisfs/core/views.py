"""The directory tree of a shard: which names each folder of members has.

Invariants:
- a name occurs once in a directory. Of members with one name the last wins, as when the tar is
  unpacked; the others are counted;
- every member's parents exist, whether the tar mentions them or not;
- where a name is both a member and a directory, the directory keeps it and the member becomes
  `name~file`, so that nothing below is lost;
- positions are stable and follow the tar: reading a directory in order reads the shard in order.

There is no dict from names to rows, which would cost more than the whole index. A directory is a
slice of `_entries`; looking a name up bisects the slice by name, through a permutation that exists
only for directories whose names are not in order anyway.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, compress, islice
from operator import lt
from types import MappingProxyType
from typing import NamedTuple

from aisfs.core.member_index import MemberIndex, MemberKind
from aisfs.core.member_names import MAX_COMPONENT, MAX_PATH

_DIRECTORY = 1 << 31
"""Marks an entry that is a directory's number, not a row. More rows than this do not fit a tar."""
_NO_ROW = 0xFFFFFFFF
_SUFFIX = b"~file"
MAX_DIRECTORIES = 2**20
"""Directories of one shard before members of further ones are left out: each takes some 300 bytes,
and a hostile tar names 128 new ones in a single member. ImageNet has a thousand."""


class Child(NamedTuple):
    """One entry of a directory."""

    name: bytes
    row: int | None
    """The member; for directories the one that describes it, if the tar has one."""
    directory: int | None
    """The directory's number, None for everything else."""


BISECTED = 8
"""Entries from which on a directory gets a permutation by name; a sample has fewer."""


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
        """The number of the directory this lies in; the root's is itself."""
        return self._view.parent(self.number)

    @property
    def row(self) -> int | None:
        """The member that describes this directory, if the tar has one."""
        return self._view.directory_row(self.number)

    @property
    def rows(self) -> Sequence[int]:
        """The members in this directory that are not directories, in the order of the tar."""
        return self._view.rows(self._start, self._stop)

    @property
    def mtime_ns(self) -> int | None:
        """When the tar says it changed; None when it only implies the directory."""
        return None if self.row is None else self._view.index.mtime_ns(self.row)

    def child(self, position: int) -> Child:
        """Return the entry at a position.

        Raises:
            IndexError: when there are not that many.
        """
        if not 0 <= position < len(self):
            raise IndexError(f"directory {self.path!r} has no entry {position}")
        return self._view.entry(self._start + position)

    def children(self, start: int = 0) -> Iterator[Child]:
        """Yield the entries from a position on."""
        return map(self._view.entry, range(self._start + start, self._stop))

    def __iter__(self) -> Iterator[Child]:
        return self.children()

    def plain_files(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield (row, name) of the entries from a position on, the row -1 for all but plain files.

        For listings: a tenth of the time of `children`.
        """
        view = self._view
        return view.plain_files(range(self._start + start, self._stop))

    @property
    def searchable(self) -> bool:
        """Whether `find` is quick: the first one in a directory not in order has to sort it."""
        return self._view.ordered(self.number)

    def find(self, name: bytes) -> Child | None:
        """Return the entry of that name."""
        view = self._view
        if len(self) < BISECTED:
            return next((child for child in self if child.name == name), None)
        order = view.order(self.number, self._start, self._stop)
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


class MembersView:
    """The tree of one index. Directories have numbers, the root's is 0."""

    def __init__(
        self,
        index: MemberIndex,
        paths: Sequence[bytes | None] | None = None,
        left_out: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Lay the members out.

        Args:
            index: The members.
            paths: Where each member goes, its name unchanged; None for one that is not shown.
                Without this all members go where the tar has them.
            left_out: Why those are not shown that are not: reason and how many.
        """
        self.index = index
        tree = _Tree(index, paths)
        self._entries: Sequence[int] = tree.entries
        self._starts = tree.starts
        self._names = tree.names
        self._parents = tree.parents
        self._rows = tree.rows
        self._renamed = tree.renamed
        self._ascending = tree.ascending
        self._orders: dict[int, array[int] | None] = {0: None} if tree.ascending else {}
        skipped = Counter(index.skipped)
        skipped.update(tree.skipped)
        skipped.update(left_out)
        self.skipped: Mapping[str, int] = MappingProxyType(dict(skipped))
        """Members not shown, those the index left out included: reason and how many."""

    def __repr__(self) -> str:
        return f"<MembersView of {len(self._entries)} entries in {len(self)} directories>"

    def __len__(self) -> int:
        """Return how many directories there are; their numbers are all below."""
        return len(self._names)

    def directory(self, number: int) -> Directory:
        """Return a directory by its number.

        Raises:
            IndexError: when there is none.
        """
        if not 0 <= number < len(self._names):
            raise IndexError(f"no directory {number}")
        return Directory(self, number, self._starts[number], self._starts[number + 1])

    def resolve(self, path: bytes) -> Child | None:
        """Return what lies at a path inside the shard; the root has an empty name."""
        child: Child | None = Child(b"", self.directory_row(0), 0)
        for part in path.split(b"/") if path else ():
            if child is None or child.directory is None:
                return None
            child = self.directory(child.directory).find(part)
        return child

    def path(self, number: int) -> bytes:
        """Return the path of a directory."""
        return _path_of(number, self._names, self._parents)

    def parent(self, number: int) -> int:
        """Return the number of the directory that a directory lies in."""
        return self._parents[number]

    def directory_row(self, number: int) -> int | None:
        """Return the member that describes a directory, if there is one."""
        row = self._rows[number]
        return None if row == _NO_ROW else row

    def entry(self, at: int) -> Child:
        """Return an entry by its place in the whole view."""
        code = self._entries[at]
        if code & _DIRECTORY:
            number = code ^ _DIRECTORY
            return Child(self._names[number], self.directory_row(number), number)
        return Child(self.entry_name(at), code, None)

    def plain_files(self, places: range) -> Iterator[tuple[int, bytes]]:
        """Yield (row, name) of entries of one directory, the row -1 for all but plain files."""
        columns = self.index.columns
        names, ends, flags = columns.names, columns.ends, columns.flags
        contents, renamed, entries = columns.contents, self._renamed, self._entries
        for at in places:
            code = entries[at]
            if code & _DIRECTORY or flags[code] & 3 or code in renamed or code in contents:
                yield -1, b""
            else:
                start, stop = ends[code - 1] if code else 0, ends[code]
                slash = names.rfind(b"/", start, stop)
                yield code, bytes(names[slash + 1 if slash >= 0 else start : stop])

    def rows(self, start: int, stop: int) -> Sequence[int]:
        """Return the members among entries given by their places in the whole view."""
        entries = self._entries[start:stop]
        if isinstance(entries, range):
            return entries
        return [code for code in entries if not code & _DIRECTORY]

    def entry_name(self, at: int) -> bytes:
        """Return the name of an entry by its place in the whole view."""
        code = self._entries[at]
        if code & _DIRECTORY:
            return self._names[code ^ _DIRECTORY]
        if code in self._renamed:
            return self._renamed[code]
        name = self.index.name(code)
        return name[name.rfind(b"/") + 1 :]

    def ordered(self, number: int) -> bool:
        """Say whether the order of a directory's entries by name is known already."""
        return self._ascending or number in self._orders

    def order(self, number: int, start: int, stop: int) -> "array[int] | None":
        """Return the positions of a directory's entries by name; None when they are in order."""
        if number not in self._orders:
            names = [self.entry_name(at) for at in range(start, stop)]
            self._orders[number] = (
                None
                if all(map(lt, names, islice(names, 1, None)))
                else array("I", sorted(range(len(names)), key=names.__getitem__))
            )
        return self._orders[number]

    @property
    def nbytes(self) -> int:
        """The memory this takes beside the index, roughly; name orders counted as if all existed."""
        entries = 0 if isinstance(self._entries, range) else 4 * len(self._entries)
        orders = 0 if self._ascending else 4 * len(self._entries)
        names = sum(map(len, self._names)) + 41 * len(self._names)  # a bytes object and its slot
        return 1024 + entries + orders + names + 12 * len(self._names) + 200 * len(self._renamed)


def without_folders(index: MemberIndex) -> MembersView:
    """Give a view that shows no member: for shards whose members are shown elsewhere."""
    return MembersView(index, [None] * len(index))


class _Tree:
    """The work of building a view; only its columns are kept."""

    def __init__(self, index: MemberIndex, paths: Sequence[bytes | None] | None) -> None:
        self.skipped: Counter[str] = Counter()
        self.renamed: dict[int, bytes] = {}
        self.ascending = False
        """Whether there is but one directory and its names are in order."""
        self.names: list[bytes] = [b""]
        self.parents = array("I", [0])
        self.rows = array("I", [_NO_ROW])
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._folders: dict[bytes, int] = {b"": 0}
        self._codes = array("I")
        self._homes = array("I")
        self._names: Sequence[bytes | None] = index.names() if paths is None else paths
        flat = paths is None and index.flat
        rows = list(range(len(index))) if flat else self._place(index)
        hidden = self._settle(rows)
        if flat and not hidden:
            self.entries: Sequence[int] = range(len(rows))  # nothing needs to be stored
            self.starts = array("I", [0, len(rows)])
            return
        if flat:
            self._codes = array("I", rows)
            self._homes = array("I", [0]) * len(rows)
        self._group(hidden)

    def _place(self, index: MemberIndex) -> list[int]:
        """Give every member its directory, making directories as they come up; returns members."""
        names = self._names
        directories = set(index.rows_of(MemberKind.DIRECTORY))
        folders, codes, homes = self._folders, self._codes, self._homes
        rows: list[int] = []
        for row, name in enumerate(names):
            if name is None:
                continue
            if len(self.names) > MAX_DIRECTORIES:
                self.skipped["too many directories"] += 1
                continue
            if row in directories:
                self.rows[self._folder(name)] = row
                continue
            cut = name.rfind(b"/")
            folder = name[:cut] if cut > 0 else b""
            home = folders.get(folder)
            if home is None:
                home = self._folder(folder)
            rows.append(row)
            codes.append(row)
            homes.append(home)
        return rows

    def _folder(self, path: bytes) -> int:
        """Return the number of a directory, after making it and its parents."""
        known = self._folders.get(path)
        if known is not None:
            return known
        number = 0
        for part in path.split(b"/"):
            parent = number
            number = self._numbers.get((parent, part), 0)
            if not number:
                number = self._numbers[parent, part] = len(self.names)
                self.names.append(part)
                self.parents.append(parent)
                self.rows.append(_NO_ROW)
                self._codes.append(number | _DIRECTORY)
                self._homes.append(parent)
        self._folders[path] = number
        return number

    def _settle(self, rows: list[int]) -> set[int]:
        """Return the members that give way to others or to directories; count or rename them."""
        some = [self._names[row] for row in rows] if len(rows) < len(self._names) else self._names
        own = [name for name in some if name is not None]
        # In most flat shards the names ascend, which settles it without a table of all of them.
        if len(self.names) == 1 and all(map(lt, own, islice(own, 1, None))):
            self.ascending = True
            return set()
        last = dict(zip(own, rows, strict=True))
        hidden: set[int] = set()
        if len(last) < len(rows):
            hidden = {row for name, row in zip(own, rows, strict=True) if last[name] != row}
            self.skipped["duplicate"] += len(hidden)
        for number in range(1, len(self.names)):
            path = _path_of(number, self.names, self.parents)
            row = last.get(path, -1)
            if row < 0:
                continue
            name = self.names[number] + _SUFFIX
            taken = path + _SUFFIX in last or (self.parents[number], name) in self._numbers
            if taken or len(name) > MAX_COMPONENT or len(path) + len(_SUFFIX) > MAX_PATH:
                hidden.add(row)
                self.skipped["clash"] += 1
            else:
                self.renamed[row] = name
        return hidden

    def _group(self, hidden: set[int]) -> None:
        """Put the entries of each directory side by side, in the order they came up."""
        codes, homes = self._codes, self._homes
        if hidden:
            shown = [code not in hidden for code in codes]
            codes = array("I", compress(codes, shown))
            homes = array("I", compress(homes, shown))
        order = sorted(range(len(codes)), key=homes.__getitem__)  # stable
        self.entries = array("I", map(codes.__getitem__, order))
        counts = Counter(homes)
        sizes = map(counts.__getitem__, range(len(self.names)))
        self.starts = array("I", accumulate(sizes, initial=0))


def _path_of(number: int, names: Sequence[bytes], parents: Sequence[int]) -> bytes:
    """Return the path of a directory, given the columns of a view."""
    parts = []
    while number:
        parts.append(names[number])
        number = parents[number]
    return b"/".join(reversed(parts))
