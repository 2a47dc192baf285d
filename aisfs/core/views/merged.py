"""One tree of the members of many shards, and the names of the shards' folders.

Invariants:
- a name occurs once in a directory. Of members of one shard with one name the last wins. Of two
  shards the first keeps the name; the other file gets `~<shard>` before its extension, as do all
  parts of its sample, so that equal stems are never parts of different samples;
- directories come first, sorted; files follow in the order of the shards and, in each, of the tar,
  so that reading a directory in order reads the shards in order;
- once built nothing changes: `find` and `child` never block and may be called by any thread.

Names are computed from those in the member indexes, which the view holds, so each file takes 8
bytes beside its index, and 4 more where names are not in order. The folder of a shard has its file name without the suffix,
made unique.
"""

import os
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, compress, count, groupby, islice, repeat
from operator import call, contains, lt
from typing import NamedTuple

from aisfs.core.index.columns import Names
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.zip_columns import turns
from aisfs.core.names.listing import NAME_MAX, shard_stem
from aisfs.core.views.tree import MAX_DIRECTORIES

CLASH = "clash"
DUPLICATE = "duplicate"
TOO_MANY = "too many directories"
JOINT = b"~"
_FILE = b"~file"
_ROW_BITS = 32
_ROW = (1 << _ROW_BITS) - 1

Namer = Callable[[bytes], bytes]
"""Returns the name in its directory of a member with this name: the same if it has one dot and no slash."""


class Placed(NamedTuple):
    """The files of one shard."""

    name: bytes
    """Of the shard."""
    members: MemberIndex
    rows: Sequence[int]
    homes: Sequence[bytes]
    """The directories of these rows; empty for the root."""
    places: "array[int]"
    """The directory of each row, as a position in `homes`."""
    ascending: bool = False
    """Whether the names are known to ascend from row to row."""


def numbered(homes: Iterable[bytes]) -> tuple[list[bytes], "array[int]"]:
    """Return each directory once, and the place of each row's directory among them."""
    places: dict[bytes, int] = {}
    of_rows = array("I", (places.setdefault(home, len(places)) for home in homes))
    return list(places), of_rows


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
        self._renamed: dict[int, bytes] = {}
        """The names of the few files that were renamed."""
        self._orders: dict[int, array[int]] = {}
        """The files by name, as positions, of directories in which they are not in order."""
        numbers = self._number_directories(shards)
        self._files, self._starts = self._group(shards, numbers)
        self._settle(shards)

    def __repr__(self) -> str:
        return f"<MergedView of {self.files} files in {len(self)} directories>"

    def __len__(self) -> int:
        """Return the number of directories."""
        return len(self._names)

    @property
    def files(self) -> int:
        """How many files there are."""
        return len(self._files)

    @property
    def nbytes(self) -> int:
        """The approximate memory use beside the indexes."""
        columns = (self._files, self._starts, self._below, *self._orders.values())
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
        order = self._orders.get(number) or range(stop - start)
        at = bisect_left(order, name, key=lambda i: self._file_name(start + i))
        if at == len(order):
            return None
        found = self._file(start + order[at])
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

    def touching(self, shard: int | None) -> Iterator[bytes]:
        """Yield names in the root that lead to files of a shard, or of any shard if it is None.

        There may be other names among them.
        """
        yield from self._names[self._below[0] : self._below[1]]
        for at in range(self._starts[0], self._starts[1]):
            if shard is None or self._files[at] >> _ROW_BITS == shard:
                yield self._file_name(at)

    def ready(self, path: bytes) -> bool:
        """Return whether the directory at a path is laid out: all are; see `SampleFolders`."""
        return True

    def prepare(self, path: bytes) -> None:
        """Do nothing; see `ready`."""

    def skipped_in(self, path: bytes) -> Mapping[str, int]:
        """Return what a directory does not show that `skipped` does not count: nothing."""
        return {}

    def _directory(self, number: int) -> MergedChild:
        return MergedChild(self._names[number], 0, 0, number)

    def _file(self, at: int) -> MergedChild:
        file = self._files[at]
        return MergedChild(self._file_name(at), file >> _ROW_BITS, file & _ROW, None)

    def _file_name(self, at: int) -> bytes:
        file = self._files[at]
        if self._renamed and file in self._renamed:
            return self._renamed[file]
        return self._name_of(self._indexes[file >> _ROW_BITS].name(file & _ROW))

    # Building ------------------------------------------------------------------------------------

    def _number_directories(self, shards: Sequence[Placed]) -> dict[bytes, int]:
        """Number directories level by level in order, so that subdirectories are adjacent."""
        found = {b""}
        for shard in shards:
            room = MAX_DIRECTORIES - len(found)
            if room >= len(shard.homes):
                found.update(shard.homes)
            else:
                found.update(islice((home for home in shard.homes if home not in found), room))
        parts = {path: tuple(path.split(b"/")) if path else () for path in found}
        every = {path[:depth] for path in parts.values() for depth in range(len(path) + 1)}
        order = sorted(every, key=lambda path: (len(path), path))
        numbers = {path: number for number, path in enumerate(order)}
        self._names = [path[-1] if path else b"" for path in order]
        children = Counter(numbers[path[:-1]] for path in order[1:])
        self._below = _sums(map(children.__getitem__, range(len(order))), initial=1)
        return {path: numbers[own] for path, own in parts.items()}

    def _group(
        self, shards: Sequence[Placed], numbers: Mapping[bytes, int]
    ) -> tuple["array[int]", "array[int]"]:
        """Return the files of all directories, those of each adjacent, and where each begins.

        A file is the position of its shard and the row in it, as one number. Nothing is done for
        each file in Python: of each turn, one call into C gives all files to their directories.
        """
        directories = [array("Q") for _ in self._names]
        adders = {home: directories[number].append for home, number in numbers.items()}
        for at, shard in enumerate(shards):
            left_out = array("Q")
            add = list(map(adders.get, shard.homes, repeat(left_out.append)))
            mark = (at << _ROW_BITS).__or__
            for rows, places in zip(turns(shard.rows), turns(shard.places), strict=True):
                deque(map(call, map(add.__getitem__, places), map(mark, rows)), maxlen=0)
            self.skipped[TOO_MANY] += len(left_out)
        starts = _sums(map(len, directories))
        files = array("Q")
        for number, directory in enumerate(directories):
            files += directory
            directories[number] = array("Q")  # not to have all files twice
        return files, starts

    def _settle(self, shards: Sequence[Placed]) -> None:
        """Make the name of each file unique or drop the file, and sort."""
        dropped: set[int] = set()
        ordered = self._in_order(shards)
        every = Names(index.columns for index in self._indexes)
        for number in range(len(self._names)):
            start, stop = self._starts[number], self._starts[number + 1]
            taken = set(self._names[self._below[number] : self._below[number + 1]])
            if start == stop or (ordered and not taken):
                continue
            members = every.at(self._files[start:stop])
            names = members if _are_short(members) else list(map(self._name_of, members))
            if all(map(lt, names, islice(names, 1, None))) and taken.isdisjoint(names):
                continue
            order = sorted(range(len(names)), key=names.__getitem__)
            gone = self._part(names, order, start, taken, [shard.name for shard in shards])
            if gone is not None:
                dropped |= {start + at for at in gone}
                order = sorted(set(range(len(names))) - gone, key=names.__getitem__)
                places = {at: place for place, at in enumerate(sorted(order))}
                order = [places[at] for at in order]
            self._orders[number] = array("I", order)
        if dropped:
            self._drop(dropped)

    def _in_order(self, shards: Sequence[Placed]) -> bool:
        """Return whether all names are known to ascend, in the order of shards and rows."""
        before = b""
        for shard in shards:
            if len(shard.rows):
                first, last = (self._name_of(shard.members.name(shard.rows[at])) for at in (0, -1))
                if not (shard.ascending and before < first):
                    return False
                before = last
        return True

    def _part(
        self,
        names: list[bytes],
        order: list[int],
        start: int,
        directories: set[bytes],
        shard_names: list[bytes],
    ) -> set[int] | None:
        """Change `names` that clash; return which files to drop, None if there was no clash."""
        if len(set(names)) == len(names) and directories.isdisjoint(names):
            return None
        gone: set[int] = set()
        present = directories.union(names)
        taken = {_split(name)[0] for name in present}
        for stem, group in groupby(order, key=lambda at: _split(names[at])[0]):
            used: set[bytes] = set()
            by_shard = groupby(sorted(group), key=lambda at: self._files[start + at] >> _ROW_BITS)
            for shard, files in by_shard:
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
                        self._renamed[self._files[start + at]] = other
        return gone

    def _drop(self, dropped: set[int]) -> None:
        keep = [at not in dropped for at in range(len(self._files))]
        self._files = array("Q", compress(self._files, keep))
        kept = _sums(keep)
        self._starts = array("I", map(kept.__getitem__, self._starts))


def _sums(counts: Iterable[int], initial: int = 0) -> "array[int]":
    return array("I", accumulate(counts, initial=initial))


def _are_short(names: Sequence[bytes]) -> bool:
    """Return whether no `Namer` changes these names, as far as a look at all of them at once shows."""
    blob = b"\0".join(names)
    dots = blob.count(b".") == len(names) and all(map(contains, names, repeat(b".")))
    return dots and b"/" not in blob


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


NAME_JOINT = "~"
"""Separates a name from what makes it unique; rare in the names of shards."""


def folder_names(shards: Sequence[tuple[str, str]]) -> list[bytes]:
    """Return a unique name for each (bucket, key).

    `train/000.tar` is `000`. If that is not unique, as many parent directories as needed come first:
    `train~000`; finally the bucket, and a number.
    """
    paths = [(bucket, *shard_stem(key).split("/")) for bucket, key in shards]
    names = [path[-1] for path in paths]
    for depth in range(2, 2 + max(map(len, paths), default=0)):
        twice = {name for name, count in Counter(names).items() if count > 1}
        if not twice:
            break
        names = [
            NAME_JOINT.join(path[-depth:]) if name in twice else name
            for name, path in zip(names, paths, strict=True)
        ]
    return _numbered([os.fsencode(name) for name in names])


def folder_names_of_columns(sources: Sequence[Sequence[tuple[str, str]]]) -> list[bytes]:
    """Return unique names for all shards of joined sources; the first is named as if it were alone."""
    names = folder_names([shard for shards in sources for shard in shards])
    return _numbered([*folder_names(sources[0]), *names[len(sources[0]) :]])


def _numbered(names: list[bytes]) -> list[bytes]:
    """Make names that are still equal or too long unique by a number."""
    taken: set[bytes] = set()
    result = []
    for name in names:
        candidate, number = name[-NAME_MAX:], 1
        while candidate in taken:
            number += 1
            end = f"{NAME_JOINT}{number}".encode()
            candidate = name[-NAME_MAX + len(end) :] + end
        taken.add(candidate)
        result.append(candidate)
    return result
