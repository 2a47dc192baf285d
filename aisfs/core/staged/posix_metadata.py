"""Mode and mtime of a file, stored as custom metadata of its object."""

from collections.abc import Mapping

from aisfs.model import ObjectInfo

MODE = "aisfs-mode"
"""Permission bits, octal."""
MTIME = "aisfs-mtime"
"""Nanoseconds since the epoch, decimal; negative before it."""


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
    """Return the permission bits stored with an object; None when there are none."""
    value = _number(info.custom.get(MODE, ""), 8)
    return None if value is None else value & 0o777


def _number(text: str, base: int) -> int | None:
    """Return the number in a text that other clients can write; None if it is not a valid one."""
    try:
        value = int(text, base) if text.isdecimal() and len(text) < 20 else None
    except ValueError:
        return None
    return value if value is None or value < 2**63 else None
