"""The members of many shards in common directories.

Invariants:
- a name occurs once in a directory. Of members of one shard with one name the last wins. Of two
  shards the first keeps the name; the other file gets `~<shard>` before its extension, as do all
  parts of its sample, so that equal stems are never parts of different samples;
- directories come first, sorted; files follow in the order of the shards and, in each, of the tar,
  so that reading a directory in order reads the shards in order;
- once built nothing changes: `find` and `child` never block and may be called by any thread.

Names are computed from those in the member indexes, which the view holds, so each file takes 12
bytes beside its index.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, compress, count, groupby, pairwise
from typing import NamedTuple

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.namespace.keys import NAME_MAX
from aisfs.core.views.tree_builder import MAX_DIRECTORIES

CLASH = "clash"
DUPLICATE = "duplicate"
TOO_MANY = "too many directories"
JOINT = b"~"
_FILE = b"~file"

Namer = Callable[[MemberIndex, int], bytes]
"""Returns the file name of a row of an index."""


class Placed(NamedTuple):
    """The files of one shard."""

    name: bytes
    """Of the shard."""
    members: MemberIndex
    rows: "array[int]"
    homes: list[bytes]
    """The directory of each row; empty for the root."""


class MergedChild(NamedTuple):
    """One entry of a directory."""

    name: bytes
    shard: int
    """The position of the shard, for files."""
    row: int
    """Of the shard's index, for files."""
    directory: int | None
    """The directory's number; None for files."""


class MergedView:
    """The tree of all shards. Directories have numbers; the root is 0."""

    def __init__(self, shards: Sequence[Placed], name_of: Namer) -> None:
        """Merge the files of `shards`."""
        self._indexes = [shard.members for shard in shards]
        self._name_of = name_of
        self.skipped: Counter[str] = Counter()
        """How many members are not shown, by reason."""
        homes = self._collect(shards)
        self._renamed: dict[tuple[int, int], bytes] = {}
        """The names of the few files that were renamed, by shard and row."""
        self._group(homes)
        self._settle([shard.name for shard in shards])

    def __repr__(self) -> str:
        return f"<MergedView of {len(self._rows)} files in {len(self)} directories>"

    def __len__(self) -> int:
        """Return the number of directories."""
        return len(self._names)

    @property
    def files(self) -> int:
        """How many files there are."""
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """The approximate memory use beside the indexes."""
        columns = (self._shards, self._rows, self._order, self._starts, self._parents, self._below)
        names = sum(map(len, self._names)) + 41 * len(self._names)
        return sum(c.itemsize * len(c) for c in columns) + names + 250 * len(self._renamed)

    def count(self, number: int) -> int:
        """Return how many entries a directory has."""
        subdirectories = self._below[number + 1] - self._below[number]
        return subdirectories + self._starts[number + 1] - self._starts[number]

    def child(self, number: int, position: int) -> MergedChild:
        """Return the entry of a directory at a position below its count."""
        first = self._below[number]
        subdirectories = self._below[number + 1] - first
        if position < subdirectories:
            return self._directory(first + position)
        return self._file(self._starts[number] + position - subdirectories)

    def children(self, number: int) -> Iterator[MergedChild]:
        """Yield the entries of a directory."""
        return (self.child(number, position) for position in range(self.count(number)))

    def find(self, number: int, name: bytes) -> MergedChild | None:
        """Return the entry with a name."""
        first, last = self._below[number], self._below[number + 1]
        at = bisect_left(self._names, name, first, last)
        if at < last and self._names[at] == name:
            return self._directory(at)
        start, stop = self._starts[number], self._starts[number + 1]
        at = bisect_left(self._order, name, start, stop, key=lambda i: self._file_name(start + i))
        if at == stop:
            return None
        found = self._file(start + self._order[at])
        return found if found.name == name else None

    def resolve(self, path: bytes) -> int | None:
        """Return the number of the directory at a path, which is empty for the root; None if none."""
        number: int | None = 0
        for part in path.split(b"/") if path else ():
            assert number is not None
            child = self.find(number, part)
            number = child.directory if child is not None else None
            if number is None:
                return None
        return number

    def touching(self, shard: int) -> Iterator[bytes]:
        """Yield names in the root that lead to files of a shard, perhaps besides other names."""
        yield from self._names[self._below[0] : self._below[1]]
        for at in range(self._starts[0], self._starts[1]):
            if self._shards[at] == shard:
                yield self._file_name(at)

    def _directory(self, number: int) -> MergedChild:
        return MergedChild(self._names[number], 0, 0, number)

    def _file(self, at: int) -> MergedChild:
        return MergedChild(self._file_name(at), self._shards[at], self._rows[at], None)

    def _file_name(self, at: int) -> bytes:
        shard, row = self._shards[at], self._rows[at]
        if self._renamed and (shard, row) in self._renamed:
            return self._renamed[shard, row]
        return self._name_of(self._indexes[shard], row)

    # Building ------------------------------------------------------------------------------------

    def _collect(self, shards: Sequence[Placed]) -> "array[int]":
        """Collect all files and number the directories; return each file's directory."""
        numbers: dict[bytes, int] = {b"": 0}
        homes, self._shards, self._rows = array("I"), array("I"), array("I")
        for at, shard in enumerate(shards):
            for row, home in zip(shard.rows, shard.homes, strict=True):
                number = numbers.setdefault(home, len(numbers))
                if number >= MAX_DIRECTORIES:
                    del numbers[home]
                    self.skipped[TOO_MANY] += 1
                    continue
                homes.append(number)
                self._shards.append(at)
                self._rows.append(row)
        final = self._number_directories(numbers)
        return array("I", map(final.__getitem__, homes))

    def _number_directories(self, found: Mapping[bytes, int]) -> "array[int]":
        """Number directories level by level in order, so that subdirectories are adjacent."""
        parts = {tuple(path.split(b"/")) if path else () for path in found}
        every = {path[:depth] for path in parts for depth in range(len(path) + 1)}
        order = sorted(every, key=lambda path: (len(path), path))
        numbers = {path: number for number, path in enumerate(order)}
        self._names = [path[-1] if path else b"" for path in order]
        self._parents = array("I", (numbers[path[:-1]] for path in order))
        children = Counter(self._parents[1:])
        self._below = _sums(map(children.__getitem__, range(len(order))), initial=1)
        final = array("I", bytes(4 * len(found)))
        for path, number in found.items():
            final[number] = numbers[tuple(path.split(b"/")) if path else ()]
        return final

    def _group(self, homes: "array[int]") -> None:
        """Make the files of each directory adjacent, in their order."""
        counts = Counter(homes)
        self._starts = _sums(map(counts.__getitem__, range(len(self._names))))
        following = self._starts[:]
        shards, rows = self._shards[:], self._rows[:]
        # A counting sort: a sorted list of positions would dominate the memory use of building.
        for shard, row, home in zip(self._shards, self._rows, homes, strict=True):
            at = following[home]
            shards[at], rows[at] = shard, row
            following[home] = at + 1
        self._shards, self._rows = shards, rows

    def _settle(self, shard_names: list[bytes]) -> None:
        """Make the name of each file unique or drop the file, and sort."""
        self._order = array("I")
        dropped: set[int] = set()
        for number in range(len(self._names)):
            start, stop = self._starts[number], self._starts[number + 1]
            names = [self._file_name(at) for at in range(start, stop)]
            taken = set(self._names[self._below[number] : self._below[number + 1]])
            order = sorted(range(len(names)), key=names.__getitem__)
            gone = self._part(names, order, start, taken, shard_names)
            if gone is not None:
                dropped |= {start + at for at in gone}
                order = sorted(set(range(len(names))) - gone, key=names.__getitem__)
                places = {at: place for place, at in enumerate(sorted(order))}
                order = [places[at] for at in order]
            self._order.extend(order)
        if dropped:
            self._drop(dropped)

    def _part(
        self,
        names: list[bytes],
        order: list[int],
        start: int,
        directories: set[bytes],
        shard_names: list[bytes],
    ) -> set[int] | None:
        """Change `names` that clash; return which files to drop, None if there was no clash."""
        alone = all(names[one] != names[next_] for one, next_ in pairwise(order))
        if alone and directories.isdisjoint(names):
            return None
        gone: set[int] = set()
        present = directories.union(names)
        taken = {_split(name)[0] for name in present}
        for stem, group in groupby(order, key=lambda at: _split(names[at])[0]):
            used: set[bytes] = set()
            for shard, files in groupby(sorted(group), key=lambda at: self._shards[start + at]):
                own = list(files)
                last = {names[at]: at for at in own}
                double = set(own) - set(last.values())
                gone |= double
                self.skipped[DUPLICATE] += len(double)
                if used.isdisjoint(last):
                    used |= last.keys()
                    new = {name: name + _FILE for name in last if name in directories}
                    taken |= {_split(name)[0] for name in new.values()}
                else:
                    fresh = _fresh(stem + JOINT + shard_names[shard], taken)
                    taken.add(fresh)
                    new = {name: fresh + _split(name)[1] for name in last}
                for name, other in new.items():
                    at = last[name]
                    if len(other) > NAME_MAX or other in present:
                        gone.add(at)
                        self.skipped[CLASH] += 1
                    else:
                        present.add(other)
                        names[at] = other
                        self._renamed[shard, self._rows[start + at]] = other
        return gone

    def _drop(self, dropped: set[int]) -> None:
        keep = [at not in dropped for at in range(len(self._rows))]
        self._shards = array("I", compress(self._shards, keep))
        self._rows = array("I", compress(self._rows, keep))
        kept = _sums(keep)
        self._starts = array("I", map(kept.__getitem__, self._starts))


def _sums(counts: Iterable[int], initial: int = 0) -> "array[int]":
    return array("I", accumulate(counts, initial=initial))


def _split(name: bytes) -> tuple[bytes, bytes]:
    """Return a name split at its first dot, where its sample's key ends."""
    dot = name.find(b".", 1)
    return (name, b"") if dot < 0 else (name[:dot], name[dot:])


def _fresh(stem: bytes, taken: set[bytes]) -> bytes:
    """Return `stem`, with a number if it is taken."""
    return next(
        new
        for number in count(1)
        if (new := stem + (JOINT + b"%d" % number if number > 1 else b"")) not in taken
    )
