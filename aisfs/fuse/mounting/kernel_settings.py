"""Kernel settings of a mount that its options cannot reach.

The kernel reads 128 KiB ahead and lets 12 requests wait in the background; with 20 ms to the
cluster that is 11 MiB/s for one reader, and hundreds with the values here. They are files of sysfs
and fusectl, which root may write, so what cannot be set is told to the user instead.
"""

import logging
import re
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

READ_AHEAD_KB = 4096
"""Per open file. Large enough to keep several requests of 1 MiB under way; our own read-ahead, which
knows objects and shards, does the rest."""
MAX_BACKGROUND = 64
"""Requests the kernel sends without waiting for answers; mountpoint-s3 and hf-mount use as many."""
BACKGROUND_LEAST = 8
BACKGROUND_SHARE = 2 << 20
"""One more request for so many bytes of the limit on memory: each that is read ahead waits for 1 MiB, which counts
beyond that limit."""

FILE_SYSTEM = "fuse.aisfs"
"""The type that mounts of ours have."""
MOUNTS = Path("/proc/self/mountinfo")
BDI = Path("/sys/class/bdi")
_OWNER = re.compile(r"\buser_id=(\d+),group_id=(\d+)")
CONNECTIONS = Path("/sys/fs/fuse/connections")


def mounted_filesystems() -> list[tuple[Path, str]]:
    """List (mountpoint, type of file system) of all mounts, the last ones on top."""
    return [(Path(mount.place), mount.kind) for mount in _mounts()]


class MountedSource(NamedTuple):
    """A mount, and what is mounted."""

    place: Path
    kind: str
    """Type of file system."""
    source: str
    writable: bool


def mounted_sources() -> list[MountedSource]:
    """List all mounts, the last ones on top."""
    return [MountedSource(Path(m.place), m.kind, m.source, m.writable) for m in _mounts()]


def mount_ids(mountpoint: Path) -> frozenset[int]:
    """Return the ids of the mounts there, as /proc/PID/fdinfo has them."""
    return frozenset(mount.id for mount in _mounts() if mount.place == str(mountpoint))


def device_minor(mountpoint: Path) -> int | None:
    """Find the device number of the mount without touching it; None when it is not mounted."""
    minors = device_minors(mountpoint)
    return minors[-1] if minors else None


def device_minors(mountpoint: Path) -> list[int]:
    """Return the device numbers of all mounts there, the last one on top."""
    return [mount.minor for mount in _mounts() if mount.place == str(mountpoint)]


def mount_owner(path: Path) -> tuple[int, int] | None:
    """Return user and group of the FUSE mount that a path is in, without touching it."""
    owners = {mount.place: mount.owner for mount in _mounts()}
    return next((owners[str(p)] for p in (path, *path.parents) if str(p) in owners), None)


def background_within(memory: int) -> int:
    """Return how many requests the kernel may send without waiting, for a daemon of so much memory."""
    return min(max(memory // BACKGROUND_SHARE, BACKGROUND_LEAST), MAX_BACKGROUND)


def tune(mountpoint: Path, *, background: int | None = None) -> None:
    """Raise read-ahead, and background requests if given, of a mount as far as this process may."""
    minor = device_minor(mountpoint)
    if minor is None:
        return
    settings = {BDI / f"0:{minor}" / "read_ahead_kb": READ_AHEAD_KB}
    if background is not None:
        settings[CONNECTIONS / str(minor) / "max_background"] = background
    for file, value in settings.items():
        try:
            file.write_text(str(value))
        except OSError as error:
            log.info(
                "cannot raise %s (%s); as root: echo %d > %s",
                file.name,
                error.strerror,
                value,
                file,
            )


class _Mount(NamedTuple):
    """A line of mountinfo."""

    id: int
    minor: int
    """Of the device number."""
    place: str
    kind: str
    owner: tuple[int, int] | None
    """User and group, of a FUSE mount."""
    source: str
    writable: bool


def _mounts() -> list[_Mount]:
    found = []
    for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
        mount, _, filesystem = line.partition(" - ")
        fields = mount.split(" ")
        minor = int(fields[2].partition(":")[2])
        kind, source, options = filesystem.split(" ", 2)
        ids = _OWNER.search(options)
        owner = (int(ids[1]), int(ids[2])) if ids is not None else None
        writable = "rw" in fields[5].split(",") and "rw" in options.split(",")
        place, source = _unescape(fields[4]), _unescape(source)
        found.append(_Mount(int(fields[0]), minor, place, kind, owner, source, writable))
    return found


def _unescape(field: str) -> str:
    """Undo the octal escapes of mountinfo: blanks, backslashes, and `#`, which namespaces begin with."""
    raw = field.encode(errors="surrogateescape")
    for character in (b" ", b"\t", b"\n", b"#", b"\\"):
        raw = raw.replace(b"\\%03o" % character[0], character)
    return raw.decode(errors="surrogateescape")
