"""Which links of a shard are shown: only those that stay inside it and lead somewhere.

Datasets are walked with `followlinks=True` (torchvision, timm, fastai), so a link to a parent makes the
walk endless, and a link to `/etc/passwd` puts a file of the host into the training data. Hence:
- a hardlink is its target: the last earlier member of that name, never itself;
- a symlink is relative and leads, perhaps through others, to a member or directory of the same shard;
- symlinks to directories never form a cycle, not even through the directories' own children.
All other links are refused. The limits below bound the work for hostile shards.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aisfs.core.index.paths import HiddenName, normalise

DIRECTORY = 1
SYMLINK = 2
HARDLINK = 3

_MAX_HOPS = 40  # as many symlinks as Linux follows in one path
_MAX_STEPS = 4096  # components walked for one link: 40 targets of 100 components
_MAX_TARGET = 4095  # PATH_MAX without its NUL: readlink() cannot return more
_MAX_DIRECTORY_LINKS = 128  # the search for cycles can cost the cube of their number
_MAX_ALL_STEPS = 1_000_000  # components walked for all links in one round: half a second
_MAX_ROUNDS = 8  # of dropping links that hang on dropped ones


class Links(NamedTuple):
    """The result for all link rows."""

    contents: dict[int, int]
    """Hardlink row to the row of its content, never itself a hardlink."""
    targets: dict[int, bytes]
    """Symlink rows, and hardlinks to symlinks, to their targets."""
    refused: set[int]


def resolve_links(names: list[bytes], kinds: bytes, links: Mapping[int, bytes]) -> Links:
    """Return which link rows are shown, and what they lead to.

    Args:
        names: the paths of all rows.
        kinds: their kinds.
        links: link rows and their targets as stored.
    """
    found = Links({}, {}, set())
    latest: dict[bytes, int] = {}
    for row, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        if kind == HARDLINK and not _take_hardlink(row, name, kinds, links[row], latest, found):
            found.refused.add(row)
            continue
        if kind == SYMLINK:
            found.targets[row] = links[row]
        latest[name] = row
    if found.targets:
        _Symlinks(names, kinds, found, latest).refuse_bad()
    return found


def _take_hardlink(
    row: int, name: bytes, kinds: bytes, said: bytes, latest: dict[bytes, int], found: Links
) -> bool:
    try:
        target = normalise(said)
    except HiddenName:
        return False
    content = latest.get(target)
    if content is None or target == name or kinds[content] == DIRECTORY:
        return False
    if content in found.targets:  # a second name of a symlink is a symlink with the same target
        found.targets[row] = found.targets[content]
    else:
        found.contents[row] = found.contents.get(content, content)
    return True


class _End(NamedTuple):
    path: bytes
    is_directory: bool


class _Directories:
    """All directories, by parent and component, so that long paths cost no more than short ones."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._known: set[bytes] = {b""}

    def add(self, path: bytes) -> None:
        if path in self._known:
            return
        self._known.add(path)
        number = 0
        for part in path.split(b"/"):
            number = self._numbers.setdefault((number, part), len(self._numbers) + 1)

    def walk(self, path: bytes) -> "_Place | None":
        place = _Place(self._numbers)
        parts = path.split(b"/") if path else []
        return place if all(map(place.down, parts)) else None


class _Place:
    """The current place of a walk through the directories."""

    def __init__(self, numbers: Mapping[tuple[int, bytes], int]) -> None:
        self._numbers = numbers
        self._stack = [0]
        self._parts: list[bytes] = []

    def down(self, part: bytes) -> bool:
        number = self._numbers.get((self._stack[-1], part))
        if number is None:
            return False
        self._stack.append(number)
        self._parts.append(part)
        return True

    def up(self) -> bool:
        if not self._parts:
            return False
        self._stack.pop()
        self._parts.pop()
        return True

    def path(self, *more: bytes) -> bytes:
        return b"/".join([*self._parts, *more])


class _Symlinks:
    """Follows symlinks through the names that are shown."""

    def __init__(
        self, names: list[bytes], kinds: bytes, found: Links, latest: dict[bytes, int]
    ) -> None:
        self._names = names
        self._found = found
        self._latest = latest
        self._solid = [
            name if kind == DIRECTORY else _folder(name)
            for row, (name, kind) in enumerate(zip(names, kinds, strict=True))
            if row not in found.targets and row not in found.refused
        ]
        self._directories = _Directories()
        self._steps_left = 0

    def refuse_bad(self) -> None:
        """Refuse links until every remaining symlink leads somewhere and none is part of a cycle."""
        for _ in range(_MAX_ROUNDS):
            self._refuse_dangling()
            circles = self._going_round()
            if not circles:
                return
            self._refuse(circles)  # others may have led through these
        self._refuse(list(self._found.targets))

    def _refuse_dangling(self) -> None:
        targets = self._found.targets
        for _ in range(_MAX_ROUNDS):
            self._steps_left = _MAX_ALL_STEPS
            # A directory may exist only because a link lies in it.
            self._directories = _Directories()
            for path in self._solid:
                self._directories.add(path)
            for row in targets:
                self._directories.add(_folder(self._names[row]))
            bad = [row for row in targets if self._follow(row) is None]
            if not bad:
                break
            self._refuse(bad)
        else:
            self._refuse(list(targets))

    def _refuse(self, rows: Iterable[int]) -> None:
        for row in rows:
            del self._found.targets[row]
            self._found.refused.add(row)

    def _follow(self, row: int) -> "_End | None":
        """Return where a symlink leads; None when it is refused."""
        here = self._directories.walk(_folder(self._names[row]))
        said = self._found.targets[row]
        if here is None or not _sane(said):
            return None
        hops = 1
        left = _reversed_parts(said)
        for _ in range(min(_MAX_STEPS, self._steps_left)):
            self._steps_left -= 1
            if not left:
                return _End(here.path(), is_directory=True)
            part = left.pop()
            if part == b"..":
                if not here.up():
                    return None
                continue
            if part == b"." or here.down(part):
                continue
            path = here.path(part)
            found = self._latest.get(path)
            if found is None or found in self._found.refused:
                return None
            onward = self._found.targets.get(found)
            if onward is None:
                return None if left else _End(path, is_directory=False)
            hops += 1
            if hops > _MAX_HOPS or not _sane(onward):
                return None
            left += _reversed_parts(onward)
        return None

    def _going_round(self) -> list[int]:
        """Return the links to directories that would close a cycle with the accepted ones."""
        accepted: list[tuple[bytes, bytes]] = []
        bad: list[int] = []
        self._steps_left = _MAX_ALL_STEPS
        for row in self._found.targets:
            end = self._follow(row)
            if end is None or not end.is_directory:
                continue
            home = _folder(self._names[row])
            if len(accepted) >= _MAX_DIRECTORY_LINKS or _reaches(end.path, home, accepted):
                bad.append(row)
            else:
                accepted.append((home, end.path))
        return bad


def _reversed_parts(target: bytes) -> list[bytes]:
    """Return the components in reverse; a first `.` requires a directory."""
    parts = target.split(b"/")
    meant = [part for part in reversed(parts) if part not in (b"", b".")]
    return [b".", *meant] if parts[-1] in (b"", b".") else meant


def _sane(target: bytes) -> bool:
    return 0 < len(target) <= _MAX_TARGET and b"\0" not in target and not target.startswith(b"/")


def _folder(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def _reaches(start: bytes, goal: bytes, edges: list[tuple[bytes, bytes]]) -> bool:
    """Return whether a walk down from `start`, through links too, reaches `goal`."""
    seen: set[bytes] = set()
    todo = [start]
    while todo:
        place = todo.pop()
        if place in seen:
            continue
        seen.add(place)
        if _inside(goal, place):
            return True
        todo += [end for home, end in edges if _inside(home, place)]
    return False


def _inside(path: bytes, directory: bytes) -> bool:
    return not directory or path == directory or path.startswith(directory + b"/")
