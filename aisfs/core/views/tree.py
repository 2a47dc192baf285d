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

`MemberTree` assigns every member a directory and a unique name. Where all samples of a shard have the same
components in the same order, as most have, they are known at once (`uniform`): the general rules take ten
times as long.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, compress, islice
from operator import lt
from types import MappingProxyType
from typing import NamedTuple

from aisfs.core.index.columns import (
    KIND_BITS,
    MAX_COMPONENT,
    MAX_PATH,
    OPENED,
    column_at,
    regular_names,
)
from aisfs.core.index.member_index import MemberIndex, MemberKind
from aisfs.core.index.zip_columns import TURN, turns
from aisfs.core.names.listing import SHARD_BYTES_SUFFIX, SHARD_DIRECTORY_SUFFIX
from aisfs.core.views.samples import EXCLUDED
from aisfs.settings import Shards

DIRECTORY = 1 << 31
"""Marks an entry that is a directory's number, not a row. No shard has so many rows."""
NO_ROW = 0xFFFFFFFF
_SUFFIX = b"~file"
MAX_DIRECTORIES = 2**20
"""Most directories of one shard; members of further ones are left out. Each takes some 300 bytes, and
a hostile tar can name 128 new ones in a single member. ImageNet has a thousand."""


class MemberTree:
    """The columns of a view."""

    def __init__(
        self, index: MemberIndex, paths: Sequence[bytes | None] | None, shards: Shards
    ) -> None:
        self.skipped: Counter[str] = Counter()
        self.renamed: dict[int, bytes] = {}
        self.ascending = False
        """Whether there is only one directory, with its names in order."""
        self.names: list[bytes] = [b""]
        self.parents = array("I", [0])
        self.rows = array("I", [NO_ROW])
        self.aside: dict[tuple[int, bytes], int] = {}
        """Entries that are found by name but not listed, by directory and name."""
        self._opened: list[int] = []
        """Folders of opened tars."""
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._folders: dict[bytes, int] = {b"": 0}
        self._codes = array("I")
        self._homes = array("I")
        self._names: Sequence[bytes | None] = index.names() if paths is None else paths
        flat = paths is None and index.flat
        rows = list(range(len(index))) if flat else self._place(index)
        hidden = self._settle(rows)
        if self._opened and shards is not Shards.BOTH:
            hidden |= self._set_aside(shards, hidden)
        if flat and not hidden:
            self.entries: Sequence[int] = range(len(rows))  # no columns are needed
            self.starts = array("I", [0, len(rows)])
            return
        if flat:
            self._codes = array("I", rows)
            self._homes = array("I", [0]) * len(rows)
        self._group(hidden)

    def _place(self, index: MemberIndex) -> list[int]:
        """Return every member its directory, making directories as they come up; return members."""
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
                number = self._folder(name)
                self.rows[number] = row
                if index.opened(row):
                    self._opened.append(number)
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
        """Return the number of a directory, creating it and its parents if needed."""
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
                self.rows.append(NO_ROW)
                self._codes.append(number | DIRECTORY)
                self._homes.append(parent)
        self._folders[path] = number
        return number

    def _settle(self, rows: list[int]) -> set[int]:
        """Rename members that clash with directories; return those that are hidden."""
        some = [self._names[row] for row in rows] if len(rows) < len(self._names) else self._names
        own = [name for name in some if name is not None]
        # In most flat shards the names ascend, so no table of names is needed.
        if len(self.names) == 1 and _ascend(own):
            self.ascending = True
            return set()
        last: dict[bytes, int] = {}
        for some, its_rows in zip(turns(own), turns(rows), strict=True):
            last.update(zip(some, its_rows, strict=True))
        hidden: set[int] = set()
        if len(last) < len(rows):
            hidden = {row for name, row in zip(own, rows, strict=True) if last[name] != row}
            self.skipped["duplicate"] += len(hidden)
        for number in range(1, len(self.names)):
            path = path_of(number, self.names, self.parents)
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

    def _set_aside(self, shards: Shards, hidden: set[int]) -> set[int]:
        """Name opened tars like shards; return the entries that are not listed."""
        unlisted = set()
        for number in self._opened:
            tar, parent, folder = self.rows[number] - 1, self.parents[number], self.names[number]
            name = folder.removesuffix(SHARD_DIRECTORY_SUFFIX)
            # A directory of the enclosing tar keeps its name, as a member would.
            if shards is Shards.DIR and tar not in hidden and tar not in self.renamed:
                self.names[number] = name
                name += SHARD_BYTES_SUFFIX
                code = tar
            else:
                name, code = folder, number | DIRECTORY
            self.aside[parent, name] = code
            unlisted.add(code)
        return unlisted

    def _group(self, hidden: set[int]) -> None:
        """Make the entries of each directory adjacent, in their order."""
        codes, homes = self._codes, self._homes
        if hidden:
            shown = [code not in hidden for code in codes]
            codes = array("I", compress(codes, shown))
            homes = array("I", compress(homes, shown))
        counts = Counter[int]()
        for some in turns(homes):
            counts.update(some)
        sizes = map(counts.__getitem__, range(len(self.names)))
        self.starts = array("I", accumulate(sizes, initial=0))
        places = self.starts.tolist()
        entries = array("I", bytes(codes.itemsize * len(codes)))
        for code, home in zip(codes, homes, strict=True):
            entries[places[home]] = code
            places[home] += 1
        self.entries = entries


def _ascend(names: Sequence[bytes]) -> bool:
    """Return whether the names are in order and none is there twice."""
    return all(
        all(map(lt, names[start : start + TURN], names[start + 1 : start + TURN + 1]))
        for start in range(0, len(names), TURN)
    )


def path_of(number: int, names: Sequence[bytes], parents: Sequence[int]) -> bytes:
    """Return the path of a directory, given the columns of a view."""
    parts = []
    while number:
        parts.append(names[number])
        number = parents[number]
    return b"/".join(reversed(parts))


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


_SPECIAL_FLAGS = bytes(flags for flags in range(256) if flags & (KIND_BITS | OPENED))
_NEED_CARE = (b"__", b"\n")
"""Names with these may be metadata, or are split in another way."""
COMPONENTS_MAX = 64
"""Most components of a sample that are looked for."""


class UniformSamples(NamedTuple):
    """The samples of a shard; member `at` of sample `n` is row `n * len(extensions) + at`."""

    keys: list[bytes]
    """Different ones, by webdataset's rule."""
    extensions: list[bytes]
    """In lower case, all different; the same of every sample."""
    ascending: bool
    """Whether the names of one component ascend."""

    def rows_of(self, at: int) -> range:
        """Return the rows of one component."""
        step = len(self.extensions)
        return range(at, len(self.keys) * step, step)


def uniform_samples(index: MemberIndex) -> UniformSamples | None:
    """Return the samples by webdataset's rule; None if they are not all alike, or any row is special."""
    columns = index.columns
    if not len(index) or len(columns.flags.translate(None, _SPECIAL_FLAGS)) < len(index):
        return None
    if any(care in columns.names for care in _NEED_CARE):
        return None
    regular = regular_names(columns)
    if regular is not None:
        return _samples(regular.keys(), [suffix[1:] for suffix in regular.suffixes], alike=True)
    names = index.names()
    if b"/" in columns.names:
        parts = [(place + slash, *base.partition(b".")) for place, slash, base in
                 [name.rpartition(b"/") for name in names]]  # fmt: skip
        if not all(base for _, base, _, _ in parts):  # it begins with a dot
            return None
        keys = [place + base for place, base, _, _ in parts]
        extensions = [extension for _, _, _, extension in parts]
    else:
        split = [name.partition(b".") for name in names]
        keys = [key for key, _, _ in split]
        extensions = [extension for _, _, extension in split]
        if not all(keys):
            return None
    first = keys[0]
    step = next((at for at, key in enumerate(keys[: COMPONENTS_MAX + 1]) if key != first), 0)
    step = step or len(keys)
    one = extensions[:step]
    if len(keys) % step or extensions != one * (len(keys) // step):
        return None
    firsts = keys[::step]
    if any(keys[at::step] != firsts for at in range(1, step)):
        return None
    return _samples(firsts, one, alike=False)


def _samples(
    keys: list[bytes], extensions: Sequence[bytes], *, alike: bool
) -> UniformSamples | None:
    """Return samples with these keys and extensions, unless some cannot be told apart.

    Args:
        keys: Of all samples.
        extensions: Of each sample.
        alike: Whether the keys have one length and no slash, so that names are in order as keys are.
    """
    lowered = [extension.lower() for extension in extensions]
    ascending = all(map(lt, keys, islice(keys, 1, None)))
    if len(set(lowered)) < len(lowered) or not (ascending or len(set(keys)) == len(keys)):
        return None
    return UniformSamples(keys, lowered, alike and ascending)
