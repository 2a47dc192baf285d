"""Mode and mtime of a file, stored as custom metadata of its object.

A symbolic link is an object whose content is the link's target, and whose mode says that it is a link.
"""

import stat
from collections.abc import Mapping

from aisfs.model import ObjectInfo

MODE = "aisfs-mode"
"""Permission bits, octal; 120777 for a symbolic link, as stat(2) has it."""
MTIME = "aisfs-mtime"
"""Nanoseconds since the epoch, decimal; negative before it."""
LINK = stat.S_IFLNK | 0o777
"""The mode of a symbolic link: it has no permissions of its own."""
LINK_MAX = 4095
"""Bytes of the longest target that Linux takes."""


def with_posix_metadata(
    custom: Mapping[str, str], *, mtime_ns: int, mode: int | None
) -> dict[str, str]:
    """Return custom metadata with mode and time added or replaced."""
    others = {name: value for name, value in custom.items() if name not in (MODE, MTIME)}
    return {**others, MTIME: str(mtime_ns), **({} if mode is None else {MODE: f"{mode:o}"})}


def mtime_of(info: ObjectInfo) -> int:
    """Return the modification time to show for an object, in nanoseconds."""
    text = info.custom.get(MTIME, "")
    value = _number(text.removeprefix("-"), 10)  # of files from before 1970
    if value is None:
        return info.mtime_ns
    return -value if text.startswith("-") else value


def mode_of(info: ObjectInfo) -> int | None:
    """Return the permission bits stored with an object, or `LINK`; None when there are none."""
    value = _number(info.custom.get(MODE, ""), 8)
    if value is None:
        return None
    return LINK if stat.S_ISLNK(value) and 0 < info.size <= LINK_MAX else value & 0o777


def is_link(info: ObjectInfo) -> bool:
    """Return whether an object is a symbolic link."""
    return mode_of(info) == LINK


def with_type(mode: int) -> int:
    """Return the mode for `stat`: that of a regular file, if it is no link."""
    return mode if mode == LINK else stat.S_IFREG | mode


def _number(text: str, base: int) -> int | None:
    """Return the number in a text that other clients can write; None if it is not a valid one."""
    try:
        value = int(text, base) if text.isdecimal() and len(text) < 20 else None
    except ValueError:
        return None
    return value if value is None or value < 2**63 else None
