"""Which programs keep a mount busy, read from /proc without touching the mount: its daemon may hang."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from aisfs.fuse.mounting.kernel_settings import device_minor, mount_ids, mounted_filesystems

PROCESSES = Path("/proc")
MOST_NAMED = 5
"""Programs that one line names."""
_MOUNT_ID = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)


def what_keeps_busy(mountpoint: Path) -> str:
    """Return who uses a mount, for the end of a message; what may not be seen is not named."""
    inner = [place for place, _ in mounted_filesystems() if mountpoint in place.parents]
    if inner:
        return f"{inner[-1]} is mounted below it; unmount that first"
    users = list(_users(mountpoint))
    if not users:
        hint = "; root sees all programs" if os.geteuid() else ""
        return f"no program that uses it can be seen{hint}"
    more = f" and {len(users) - MOST_NAMED} more" if len(users) > MOST_NAMED else ""
    return f"in use by {', '.join(users[:MOST_NAMED])}{more}"


def _users(mountpoint: Path) -> Iterator[str]:
    ids, minor = mount_ids(mountpoint), device_minor(mountpoint)
    mapped = f" 00:{minor or 0:02x} "
    own = os.getpid()
    for entry in sorted(PROCESSES.iterdir(), key=lambda entry: (len(entry.name), entry.name)):
        if not entry.name.isdigit() or int(entry.name) == own:
            continue
        with suppress(OSError):  # it has ended, or belongs to another user
            if _uses(entry, mountpoint, ids, mapped):
                command = (entry / "comm").read_text(errors="replace").strip()
                yield f"process {entry.name} ({command})"


def _uses(process: Path, mountpoint: Path, ids: frozenset[int], mapped: str) -> bool:
    for link in ("cwd", "root"):
        with suppress(OSError):
            if Path(os.readlink(process / link)).is_relative_to(mountpoint):
                return True
    for info in (process / "fdinfo").iterdir():
        with suppress(OSError):  # closed meanwhile
            found = _MOUNT_ID.search(info.read_text())
            if found and int(found[1]) in ids:
                return True
    return mapped in (process / "maps").read_text(errors="replace")
