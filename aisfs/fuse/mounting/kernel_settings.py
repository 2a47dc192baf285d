"""Kernel settings of a mount that its options cannot reach.

The kernel reads 128 KiB ahead and lets 12 requests wait in the background; with 20 ms to the
cluster that is 11 MiB/s for one reader, and hundreds with the values here. They are files of sysfs
and fusectl, which root may write, so what cannot be set is told to the user instead.
"""

import logging
from pathlib import Path

log = logging.getLogger(__name__)

READ_AHEAD_KB = 4096
"""Per open file. Large enough to keep several requests of 1 MiB under way; our own read-ahead, which
knows objects and shards, does the rest."""
MAX_BACKGROUND = 64
"""Requests the kernel sends without waiting for answers; mountpoint-s3 and hf-mount use as many."""

FILE_SYSTEM = "fuse.aisfs"
"""The type that mounts of ours have."""
MOUNTS = Path("/proc/self/mountinfo")
BDI = Path("/sys/class/bdi")
CONNECTIONS = Path("/sys/fs/fuse/connections")


def mounted_filesystems() -> list[tuple[Path, str]]:
    """List (mountpoint, type of file system) of all mounts, the last ones on top."""
    return [(Path(mountpoint), kind) for mountpoint, _, kind in _mounts()]


def device_minor(mountpoint: Path) -> int | None:
    """Find the device number of the mount without touching it; None when it is not mounted."""
    minors = [minor for name, minor, _ in _mounts() if name == str(mountpoint)]
    return minors[-1] if minors else None


def tune(mountpoint: Path, *, background: bool = True) -> None:
    """Raise read-ahead, and background requests, of a mount as far as this process may."""
    minor = device_minor(mountpoint)
    if minor is None:
        return
    settings = {BDI / f"0:{minor}" / "read_ahead_kb": READ_AHEAD_KB}
    if background:
        settings[CONNECTIONS / str(minor) / "max_background"] = MAX_BACKGROUND
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


def _mounts() -> list[tuple[str, int, str]]:
    """Read mountpoint, minor device number and type of every mount."""
    found = []
    for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
        mount, _, filesystem = line.partition(" - ")
        fields = mount.split(" ")
        minor = int(fields[2].partition(":")[2])
        found.append((_unescape(fields[4]), minor, filesystem.split(" ", 1)[0]))
    return found


def _unescape(field: str) -> str:
    """Undo the octal escapes of blanks and backslashes in mountinfo."""
    raw = field.encode(errors="surrogateescape")
    for character in (b" ", b"\t", b"\n", b"\\"):
        raw = raw.replace(b"\\%03o" % character[0], character)
    return raw.decode(errors="surrogateescape")
