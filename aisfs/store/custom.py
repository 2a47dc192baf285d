"""Custom metadata as one short text, with a stamp that says for which content it was written.

AIStore keeps custom metadata when an object is overwritten, and merges it when an object is copied
over another. So all of ours is one pair, and counts only while its stamp is the content's.
"""

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from aisfs.model import NO_CUSTOM, ObjectInfo

_MOST = 1024
"""Characters of the text; AIStore takes 2 KiB for all that an object has."""
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def stamp_of(info: ObjectInfo) -> str:
    """Name the content of an object; empty when nothing tells it from another of its size."""
    value = info.checksum.partition(":")[2]
    if value:
        return f"{info.size}-{value}"
    return f"{info.size}-v{quote(info.version, safe='')}" if info.version else ""


def encode_custom(custom: Mapping[str, str], stamp: str) -> str:
    """Make a text of letters, digits and `-_.~%:;` only.

    Raises:
        ValueError: a name is not one, or all of it is too long.
    """
    for name in custom:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name of custom metadata")
    pairs = [f"{name}:{_quote(value)}" for name, value in sorted(custom.items())]
    text = ";".join([stamp, *pairs])
    if len(text) > _MOST:
        raise ValueError(f"custom metadata of {len(text)} characters; {_MOST} at most")
    return text


def decode_custom(text: str, info: ObjectInfo) -> Mapping[str, str]:
    """Read the text again; empty when it was written for another content than `info`."""
    stamp, *pairs = text.split(";")
    if not text or stamp != stamp_of(info):
        return NO_CUSTOM
    found = dict(pair.split(":", 1) for pair in pairs if ":" in pair)
    return {name: unquote(value, errors="surrogateescape") for name, value in found.items()}


def _quote(value: str) -> str:
    return quote(value.encode("utf-8", "surrogateescape"), safe="")
