"""Mode and mtime of a file, stored as custom metadata of its object, and the form in which stores keep such metadata.

A symbolic link is an object whose content is the link's target, and whose mode says that it is a link.

The form is one short text, with a stamp that says for which content it was written. AIStore keeps custom
metadata when an object is overwritten, and merges it when an object is copied over another. So all of
ours is one pair, and counts only while its stamp is the content's.
"""

import base64
import json
import re
import stat
from collections.abc import Mapping

from aisfs.model import NO_CUSTOM, ObjectInfo

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


_MOST = 1024
"""Bytes before they are encoded; AIStore takes 2 KiB for all that an object has."""
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def stamp_of(info: ObjectInfo) -> str:
    """Name the content of an object; empty when nothing tells it from another of its size."""
    value = info.checksum.partition(":")[2]
    if value:
        return f"{info.size}-{value}"
    return f"{info.size}-v{info.version}" if info.version else ""


def encode_custom(custom: Mapping[str, str], stamp: str, tag: str = "") -> str:
    """Make a text of letters, digits, `-` and `_` only.

    Args:
        custom: The metadata.
        stamp: Of the content.
        tag: What tells the content from others with this stamp, if anything does.

    Raises:
        ValueError: a name is not one, or all of it is too long.
    """
    for name in custom:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name of custom metadata")
    # ASCII only: lone surrogates are escaped, and come back.
    raw = json.dumps([stamp, dict(custom)], separators=(",", ":"), sort_keys=True).encode()
    if len(raw) > _MOST:
        raise ValueError(f"{len(raw)} bytes of custom metadata; {_MOST} at most")
    if tag:
        raw = json.dumps([stamp, dict(custom), tag], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_custom(text: str, info: ObjectInfo) -> Mapping[str, str]:
    """Read the text again; empty when it was written for another content than `info`."""
    return decode_tagged(text, info)[0]


def decode_tagged(text: str, info: ObjectInfo) -> tuple[Mapping[str, str], str]:
    """Read the text again, and its tag; both empty when it was written for another content than `info`."""
    try:
        stamp, custom, *tag = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        if stamp and stamp == stamp_of(info):
            return {str(name): str(value) for name, value in custom.items()}, "".join(tag)
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass  # not ours, whoever wrote it
    return NO_CUSTOM, ""
