"""Builds the columns of a view: assigns every member a directory and a unique name.

This ensures the invariants of `directory_tree` about names.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, compress
from operator import lt

from aisfs.core.index.integer_codec import TURN, turns
from aisfs.core.index.member_index import MemberIndex, MemberKind
from aisfs.core.index.paths import MAX_COMPONENT, MAX_PATH
from aisfs.core.namespace.keys import SHARD_BYTES_SUFFIX, SHARD_DIRECTORY_SUFFIX
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
