"""Tars inside a tar: which rows are their members, and which tars get a folder for them.

A member named like a tar is opened: the members of `a.tar` are rows `a.tar.d/…`, right after the row
of `a.tar` and the row of their folder. Invariants:
- names of an opened tar cannot climb out of its folder, and its links lead to its own members;
- a member that has the name of a folder, or lies below it, wins: then the tar is only a file;
- of several members with one name only the last is opened, because only that one is shown;
- a path is longer than in its own tar by at most the length of a header.
"""

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from aisfs.core.index.links import Links, resolve_links
from aisfs.core.index.paths import MAX_COMPONENT, MAX_DEPTH, MAX_PATH, HiddenName
from aisfs.core.namespace.keys import SHARD_DIRECTORY_SUFFIX, is_plain_tar

MAX_NESTING = 8
"""How deep tars may be nested; a deeper tar is a file. Each level reads the bytes once more, and
more than two levels were never seen."""
MAX_FOLDER = 512
"""Most bytes of an opened tar's folder. It is in the name of each member, and a member takes 512 bytes
of the shard, so a small shard cannot fill memory with long names."""
_SHOWN_NAME = 200


@dataclass(slots=True)
class _Inner:
    """An opened tar."""

    row: int
    folder: bytes
    """The path of its folder."""
    stop: int = 0
    """The row after its last one."""

    @property
    def rows(self) -> range:
        """The folder and everything in the tar, including nested tars."""
        return range(self.row + 1, self.stop)


@dataclass(frozen=True, slots=True)
class Lost:
    """Tars that get no folder."""

    tars: list[int]
    """Their rows, which are kept."""
    rows: set[int]
    """The rows of their folders and members, which are dropped."""
    why: Counter[str]
    """How many members were dropped for each reason."""


class NestedTars:
    """The tars inside one shard, in the order they were opened."""

    def __init__(self) -> None:
        self._all: list[_Inner] = []
        self._open: list[_Inner] = []
        """The tars whose members are being added, each inside the previous one."""
        self.prefix = b""
        """The prefix of the names of the next members."""

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def rows(self) -> list[int]:
        """The rows of the tars themselves."""
        return [tar.row for tar in self._all]

    @property
    def where(self) -> str:
        """The prefix of a warning that names the current tar."""
        if not self._open:
            return ""
        path = self._open[-1].folder.removesuffix(SHARD_DIRECTORY_SUFFIX)
        return f"in {path[:_SHOWN_NAME].decode(errors='backslashreplace')!r}: "

    @staticmethod
    def is_about(warning: str) -> bool:
        """Return whether a warning concerns a tar in the shard, and not the shard itself."""
        return warning.startswith(("in '", 'in "'))

    @staticmethod
    def opens(path: bytes) -> bool:
        """Return whether a file is opened as a tar if its content is one."""
        name = path[path.rfind(b"/") + 1 :]
        return (
            is_plain_tar(name)
            and len(name) + len(SHARD_DIRECTORY_SUFFIX) <= MAX_COMPONENT
            and len(path) + len(SHARD_DIRECTORY_SUFFIX) <= MAX_FOLDER
            and path.count(b"/") < MAX_DEPTH // 2  # leaves as much depth for its members
        )

    def begin(self, row: int, path: bytes) -> bytes:
        """Treat the next rows as members of the tar in `row`; return the path of their folder."""
        tar = _Inner(row, path + SHARD_DIRECTORY_SUFFIX)
        self._all.append(tar)
        self._open.append(tar)
        self.prefix = tar.folder + b"/"
        return tar.folder

    def end(self, stop: int) -> None:
        """End the tar begun last; row `stop` is the first after it."""
        self._open.pop().stop = stop
        self.prefix = self._open[-1].folder + b"/" if self._open else b""

    def place(self, path: bytes) -> bytes:
        """Return where a member of the current tar goes in the shard.

        Raises:
            HiddenName: too deep or too long.
        """
        if not self.prefix:
            return path
        placed = self.prefix + path
        if placed.count(b"/") >= MAX_DEPTH:
            raise HiddenName("too deep")
        if len(placed) > MAX_PATH:
            raise HiddenName("name too long")
        return placed

    # when all rows are there -------------------------------------------------------------------

    def settle(self, names: list[bytes]) -> Lost:
        """Return the tars that get no folder. Call this once, before `resolve_links`."""
        lost = Lost([], set(), Counter())
        clashing = self._clashing(names)
        self._lose([tar for tar in self._all if tar.folder in clashing], "clash", lost)
        last = dict.fromkeys((names[tar.row] for tar in self._all), -1)
        for row, name in enumerate(names):
            if name in last and row not in lost.rows:
                last[name] = row
        hidden = [tar for tar in self._all if last[names[tar.row]] != tar.row]
        self._lose(hidden, "duplicate", lost)
        return lost

    def _clashing(self, names: list[bytes]) -> set[bytes]:
        """Return the folders whose names the enclosing tars use for something else."""
        folders = {tar.folder for tar in self._all}
        found = set()
        suffix = SHARD_DIRECTORY_SUFFIX
        for name, owner in zip(names, self._owners(len(names)), strict=True):
            at = len(self._all[owner - 1].folder) + 1 if owner else 0
            while (at := name.find(suffix, at)) >= 0:
                at += len(suffix)
                if name[:at] in folders and name[at : at + 1] in (b"/", b""):
                    found.add(name[:at])
        return found

    def _lose(self, tars: list[_Inner], why: str, lost: Lost) -> None:
        folders = {tar.row + 1 for tar in self._all}
        for tar in tars:
            members = len(set(tar.rows) - lost.rows - folders)
            if members:
                lost.why[why] += members
            lost.tars.append(tar.row)
            lost.rows.update(tar.rows)

    def resolve_links(self, names: list[bytes], kinds: bytes, links: Mapping[int, bytes]) -> Links:
        """Resolve the links as `links` does, those of each tar among its own members."""
        if not self._all:
            return resolve_links(names, kinds, links)
        owners = self._owners(len(names))
        by_owner: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
        for row, target in links.items():
            by_owner[owners[row]][row] = target
        found = Links({}, {}, set())
        for owner, own in by_owner.items():
            tar = self._all[owner - 1] if owner else None
            cut = len(tar.folder) + 1 if tar is not None else 0
            within = tar.rows if tar is not None else range(len(names))
            rows = [row for row in within if owners[row] == owner]
            local = resolve_links(
                [names[row][cut:] for row in rows],
                bytes(kinds[row] for row in rows),
                {bisect_left(rows, row): target for row, target in own.items()},
            )
            found.contents.update((rows[at], rows[to]) for at, to in local.contents.items())
            found.targets.update((rows[at], said) for at, said in local.targets.items())
            found.refused.update(rows[at] for at in local.refused)
        return found

    def _owners(self, rows: int) -> "array[int]":
        """Return for each row the tar that contains it, counted from 1; 0 for the shard."""
        owners = array("I", bytes(4 * rows))
        for number, tar in enumerate(self._all, start=1):
            owners[tar.row + 1 : tar.stop] = array("I", [number]) * len(tar.rows)
        return owners
