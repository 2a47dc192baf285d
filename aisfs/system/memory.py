"""How much memory there is for this process: that of the machine, and of its control groups.

A process is in a control group, which lies in others, and the least limit on the way up is the one
that kills. Both versions of control groups are looked at; version 1 also says what limits lie above
what a container sees.

`map_large_blocks` makes the C library return freed memory to the system. Columns of indexes and buffers take
hundreds of kilobytes; one thread allocates them, another frees them. glibc maps large blocks one by one, but
raises the threshold to the largest block ever freed; from then on they lie in its arenas, one per thread,
between small blocks that pin the pages.
"""

import ctypes
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

_NO_LIMIT = 1 << 60
"""What version 1 shows for "no limit" is a little below 2^63."""
_ABOVE = "hierarchical_memory_limit"


class Room(NamedTuple):
    """Bytes of memory."""

    size: int
    group: Path | None
    """The control group that says so; None if it is the machine."""


@dataclass(frozen=True, slots=True)
class _Group:
    """The files of one control group."""

    limits: tuple[Path, ...]
    """Where there is only one of several, the others count as none."""
    usage: Path
    statistics: Path
    droppable: str
    """The line of `statistics` with the page cache that can be dropped."""

    @property
    def place(self) -> Path:
        return self.statistics.parent

    def limit(self) -> int:
        """Return how much may be used.

        Raises:
            OSError, ValueError: the group is gone or looks otherwise.
        """
        found = [_number(file) for file in self.limits if file.exists()]
        if self.droppable.startswith("total_"):
            found += _values(self.statistics, _ABOVE)
        return min(found)  # none at all is a ValueError

    def available(self) -> int:
        """Return what may still be used; may be negative.

        Raises:
            OSError, ValueError: the group is gone or looks otherwise.
        """
        limit = self.limit()
        if limit >= _NO_LIMIT:
            return _NO_LIMIT
        return limit - _number(self.usage) + _value(self.statistics, self.droppable)

    def killed(self) -> int:
        """Return how many processes of the group the kernel has killed for lack of memory.

        Raises:
            OSError, ValueError: the group is gone or looks otherwise.
        """
        events = self.place / "memory.events"
        return _value(events if events.exists() else self.place / "memory.oom_control", "oom_kill")


class MachineMemory:
    """Looks at the memory of the machine and of the control groups of this process."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Look below `root`, where /proc and /sys are."""
        self.file = root / "proc/meminfo"
        self._groups = list(_groups(root))

    def limit(self) -> Room | None:
        """Return the most that this process can ever have; None if nothing says it."""
        found = [Room(size * 1024, None) for size in self._machine("MemTotal:")]
        found += [Room(size, place) for size, place in self._ask(_Group.limit) if size < _NO_LIMIT]
        return min(found, default=None, key=lambda room: room.size)

    def available(self) -> int | None:
        """Return what may still be taken, page cache that can be dropped included; may be negative.

        None if the machine does not say it.
        """
        found = [size * 1024 for size in self._machine("MemAvailable:")]
        found += [size for size, _ in self._ask(_Group.available)] if found else []
        return min(found, default=None)

    def killed(self) -> int:
        """Return how many processes of these groups the kernel has killed for lack of memory."""
        found = [0]
        for group in self._groups:
            with suppress(OSError, ValueError):  # an old kernel does not count them
                found.append(group.killed())
        return max(found)

    def _machine(self, name: str) -> list[int]:
        try:
            return _values(self.file, name)
        except (OSError, ValueError):
            return []

    def _ask(self, what: Callable[[_Group], int]) -> Iterator[tuple[int, Path]]:
        for group in list(self._groups):
            try:
                yield what(group), group.place
            except (OSError, ValueError) as error:
                log.info("memory limit of %s is not known: %s", group.place, error)
                self._groups.remove(group)


def _groups(root: Path) -> Iterator[_Group]:
    """Find the groups that this process is in, with all those above them, of both versions."""
    try:
        own = (root / "proc/self/cgroup").read_text(errors="surrogateescape").splitlines()
        mounts = (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
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
            top, mountpoint = map(_unescaped, fields.split()[3:5])
            base = root / mountpoint.lstrip("/")
            yield from _upwards(base, Path("/", path), Path(top), kind)


def _upwards(base: Path, path: Path, top: Path, kind: str) -> Iterator[_Group]:
    """Return the group at `path` and those above it, as far as they are mounted at `base`."""
    # A process outside of its namespace of groups has "/../x"; what is mounted may be the whole tree
    # or only the group of the container.
    inside = path.is_relative_to(top) and ".." not in path.parts
    place = base / path.relative_to(top) if inside else base
    while True:
        if kind == "cgroup2":
            group = _Group((place / "memory.max", place / "memory.high"), place / "memory.current",
                           place / "memory.stat", "inactive_file")  # fmt: skip
        else:
            group = _Group((place / "memory.limit_in_bytes",), place / "memory.usage_in_bytes",
                           place / "memory.stat", "total_inactive_file")  # fmt: skip
        if group.limits[0].exists():  # the top of version 2 has no limit
            yield group
        if place == base:
            return
        place = place.parent


def _unescaped(field: str) -> str:
    """Undo the octal escapes of mountinfo; systemd's names of groups have backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _number(file: Path) -> int:
    said = file.read_text().strip()
    return _NO_LIMIT if said == "max" else int(said)


def _values(file: Path, name: str) -> list[int]:
    """Return the numbers behind a name in a file of lines."""
    lines = map(str.split, file.read_text().splitlines())
    return [int(words[1]) for words in lines if words and words[0] == name]


def _value(file: Path, name: str) -> int:
    found = _values(file, name)
    if not found:
        raise ValueError(f"{file} has no {name}")
    return found[0]


_M_MMAP_THRESHOLD = -3
_MAPPED_FROM = 128 << 10
"""Bytes: glibc's initial threshold, and a column of 16,384 members."""


def map_large_blocks() -> None:
    """Make large blocks return to the system whenever they are freed."""
    with suppress(AttributeError):  # musl does so anyway
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM)


def give_memory_back() -> None:
    """Return free pages between small blocks to the system. Takes milliseconds, without the GIL."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
