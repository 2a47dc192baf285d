"""How much memory may be filled with pages that were pushed.

Pushed pages are clean and the kernel may drop them, but they are charged to this daemon's control
group and push other pages out. So the room is a share of what the machine, and each group above
this process, has to spare; pages that can be dropped count as spare. Read at most once a second.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

FLOOR = 64 << 20
"""Bytes that stay free for others: below that nothing is pushed."""
SHARE = 4
"""A quarter of the rest at most: what is pushed shall still be there when its reader comes."""
SECONDS = 1.0
_NO_LIMIT = 1 << 60
"""What version 1 shows for "no limit" is a little below 2^63."""


@dataclass(frozen=True, slots=True)
class _Group:
    """The files of one control group."""

    limit: Path
    usage: Path
    statistics: Path
    droppable: str
    """The line of `statistics` with the page cache that can be dropped."""

    def available(self) -> int:
        """Return what may still be used; may be negative.

        Raises:
            OSError, ValueError: the group is gone or looks otherwise.
        """
        said = self.limit.read_text().strip()
        limit = _NO_LIMIT if said == "max" else int(said)
        if limit >= _NO_LIMIT:
            return _NO_LIMIT
        droppable = _value(self.statistics, self.droppable)
        return limit - int(self.usage.read_text()) + droppable


class PageCacheBudget:
    """Looks at the memory of the machine and of the control groups of this process."""

    def __init__(
        self, root: Path = Path("/"), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Look below `root`, where /proc and /sys are."""
        self._memory = root / "proc/meminfo"
        self._groups = list(_groups(root))
        self._clock = clock
        self._read_at = -SECONDS
        self._room = 0
        self._told = False

    def room(self) -> int:
        """Return the bytes of page cache that may be pushed and not yet be read; 0 when short."""
        now = self._clock()
        if now - self._read_at >= SECONDS:
            self._read_at = now
            self._room = max(self._available() - FLOOR, 0) // SHARE
        return self._room

    def _available(self) -> int:
        """Return the least of what the machine and the groups have."""
        try:
            found = _value(self._memory, "MemAvailable:") * 1024
        except (OSError, ValueError) as error:
            if not self._told:
                log.warning("nothing is pushed into the page cache: %s: %s", self._memory, error)
            self._told = True
            return 0
        for group in list(self._groups):
            try:
                found = min(found, group.available())
            except (OSError, ValueError) as error:
                log.info("memory limit of %s is not known: %s", group.limit.parent, error)
                self._groups.remove(group)
        return found


def _groups(root: Path) -> Iterator[_Group]:
    """Find the groups that this process is in, with all those above them, of both versions."""
    try:
        own = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:  # a kernel without control groups
        return
    paths = {}
    for line in own:
        _, controllers, place = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), place))
    for line in mounts:
        fields, _, filesystem = line.partition(" - ")
        kind, *_, options = filesystem.split(" ")
        controller = {"cgroup": "memory", "cgroup2": ""}.get(kind)
        if controller is None or controller not in (*options.split(","), ""):
            continue
        path = paths.get(controller)
        if path is not None:
            top, mountpoint = fields.split()[3:5]
            base = root / mountpoint.lstrip("/")
            yield from _upwards(base, Path("/", path), Path(top), kind)


def _upwards(base: Path, path: Path, top: Path, kind: str) -> Iterator[_Group]:
    """Return the group at `path` and those above it, as far as they are mounted at `base`."""
    below = path.relative_to(top) if path.is_relative_to(top) else Path()
    place = base / below
    while True:
        if kind == "cgroup2":
            group = _Group(place / "memory.max", place / "memory.current", place / "memory.stat",
                           "inactive_file")  # fmt: skip
        else:
            group = _Group(place / "memory.limit_in_bytes", place / "memory.usage_in_bytes",
                           place / "memory.stat", "total_inactive_file")  # fmt: skip
        if group.limit.exists():  # the top of version 2 has no limit
            yield group
        if place == base:
            return
        place = place.parent


def _value(file: Path, name: str) -> int:
    """Return the number behind a name in a file of lines.

    Raises:
        OSError, ValueError: it is not there.
    """
    for line in file.read_text().splitlines():
        words = line.split()
        if words and words[0] == name:
            return int(words[1])
    raise ValueError(f"{file} has no {name}")
