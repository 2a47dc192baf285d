"""Objects as obstore describes them.

A version is the ETag: all three clouds give it in listings, too, and all take it in `If-Match`. It has no
quotes, since Azure's listings leave them out.
"""

import re
from typing import Any

from msgspec import structs

from aisfs.errors import Stale, Unavailable
from aisfs.model import ObjectInfo

_WEAK = "W/"
REFUSED = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")
"""What obstore refuses in a key, or takes for another key."""


def described(meta: Any) -> ObjectInfo:  # noqa: ANN401 - a dictionary of obstore
    """Return what a listing or a HEAD told of an object."""
    # HEAD tells the second, so a listing must not tell more.
    mtime = int(meta["last_modified"].timestamp()) * 1_000_000_000
    return ObjectInfo(meta["path"], meta["size"], version_of(meta["e_tag"]), mtime_ns=mtime)


def version_of(etag: str | None) -> str:
    """Return the version that an ETag means; empty for none."""
    return (etag or "").strip('"')


def condition(info: ObjectInfo) -> dict[str, str]:
    """Return what makes a GET fail if the object is another version by now."""
    if not info.version or info.version.startswith(_WEAK):
        return {}
    return {"if_match": f'"{info.version}"'}


def check_version(subject: str, expected: ObjectInfo, meta: Any) -> None:  # noqa: ANN401
    """Compare what a GET says of an object with the version that was asked for.

    Raises:
        Stale: it is another one.
    """
    found = structs.replace(described(meta), key=expected.key)
    if expected.version and not found.version:
        raise Unavailable(f"{subject}: the answer does not say which version it has")
    if not expected.same_content(found):
        raise Stale(f"{subject}: the object changed")
