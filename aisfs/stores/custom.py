"""Custom metadata as one short text, with a stamp that says for which content it was written.

AIStore keeps custom metadata when an object is overwritten, and merges it when an object is copied
over another. So all of ours is one pair, and counts only while its stamp is the content's.
"""

import base64
import json
import re
from collections.abc import Mapping

from aisfs.model import NO_CUSTOM, ObjectInfo

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
