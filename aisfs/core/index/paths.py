"""From a name stored in a tar to a path inside the shard.

A path is relative and has no empty, `.` or `..` component and no NUL; it has at most 128 components of
at most 255 bytes, and at most 4096 bytes. A name that climbs above the shard's root has no path: clamping
it to the root could give two different files one name.
"""

import re
from hashlib import sha256

MAX_COMPONENT = 255
MAX_PATH = 4096
MAX_DEPTH = 128
"""Most components of a path. Each can need a directory, and 4096 bytes could name 2048 of them."""

_KEPT = 200
_HASH_DIGITS = 8
_UNTIDY = re.compile(rb"(?:\A|/)\.{0,2}(?:/|\Z)|\x00")
"""What `normalise` changes or refuses: empty, `.` and `..` components, and NUL."""


class HiddenName(Exception):
    """The name has no path; the text is the reason it is counted under."""


def all_tidy(names: list[bytes]) -> bool:
    """Return whether `normalise` would return every one of these names, none with a NUL, unchanged.

    Searching the joined names takes a fraction of the time of checking them one by one. False may
    be wrong (for a name such as `.hidden`), True never is.
    """
    blob = b"\0%b\0" % b"\0".join(names)
    if b"/" in blob:
        blob = blob.replace(b"/", b"\0")
    if b"\0\0" in blob or b"\0." in blob:
        return False
    return max(map(len, names), default=0) <= MAX_DEPTH


def normalise(name: bytes) -> bytes:
    """Return the path inside the shard; empty for the root itself.

    Raises:
        HiddenName: there is none.
    """
    if len(name) <= MAX_DEPTH and not _UNTIDY.search(name):  # too short to break any limit
        return name
    if b"\0" in name:
        raise HiddenName("bad name")
    parts: list[bytes] = []
    for part in name.split(b"/"):
        if part == b"..":
            if not parts:
                raise HiddenName("climbs")
            parts.pop()
        elif part and part != b".":
            parts.append(part)
    if len(parts) > MAX_DEPTH:
        raise HiddenName("too deep")
    path = b"/".join(map(_shortened, parts))
    if len(path) > MAX_PATH:
        raise HiddenName("name too long")
    return path


def _shortened(component: bytes) -> bytes:
    """Return a component of at most 255 bytes, with its extension and a hash that keeps it unique."""
    if len(component) <= MAX_COMPONENT:
        return component
    digest = sha256(component).hexdigest()[:_HASH_DIGITS].encode()
    room = MAX_COMPONENT - _KEPT - len(digest) - 1
    # The extension of a sample starts at the first dot; if that is too long, use the last one.
    for dot in (component.find(b"."), component.rfind(b".")):
        if dot > 0 and len(component) - dot <= room:
            return component[:_KEPT] + b"~" + digest + component[dot:]
    return component[:_KEPT] + b"~" + digest
