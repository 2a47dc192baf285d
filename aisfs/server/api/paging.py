"""A model of the pages of AIStore's listings, with the names they lose.

A target walks each disk separately and meets the contents of a directory `X` where the bare `X` sorts,
before `X y` and `X.tar`. It merges these walks by bare name, ends a page after a number of names and
sorts the page. The proxy sorts and cuts the pages of all targets; the last name is the token. The next
page has the names that are greater as strings: after `X/`, or any name below it, all names between `X`
and `X/` that were not on the page are skipped.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from aisfs.server.storage import keys


def as_met(name: bytes) -> tuple[bytes, bytes]:
    """Sort names of one directory as a walk meets them; names of directories end with a slash."""
    return _bare(name), name


def _bare(name: bytes) -> bytes:
    return name.removesuffix(b"/")


walk = partial(keys.walk, order=as_met)
"""What a walk of one disk meets; see `keys.walk`."""


def cut_page(
    walks: Iterable[Iterator[bytes]],
    token: bytes,
    start_after: bytes,
    size: int,
    corrupted: frozenset[bytes] = frozenset(),
) -> list[bytes]:
    """Return the names that one target has for a page.

    Args:
        walks: one for each disk.
        token: the token of the previous page.
        start_after: objects up to here are left out, directories are not.
        size: how many names fit.
        corrupted: objects at which a listing ends as if there were no more.
    """
    found: set[bytes] = set()
    for key in heapq.merge(*walks, key=_bare):
        if key in corrupted:
            break
        if key > token and (key > start_after or key.endswith(b"/")):
            found.add(key)
            if len(found) == size:
                break
    return sorted(found)


def join_pages(pages: Iterable[Sequence[bytes]], size: int) -> tuple[list[bytes], bytes]:
    """Merge the pages of all targets as a proxy does; return the names and a token."""
    found = sorted({key for page in pages for key in page})[:size]
    return found, found[-1] if len(found) == size else b""
