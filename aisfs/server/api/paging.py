"""A model of the pages that AIStore's listings come in, with the names they lose.

A target walks every disk by itself and meets what is below a directory `X` where the bare `X` stands,
before `X y` and `X.tar`. It merges these walks by bare name, ends a page after so many names, sorts the
page, and the proxy sorts and cuts those of all targets and gives the last name as token. The next page has what is greater than that, compared as a
string: after `X/`, or any name below it, all names between `X` and `X/` are skipped that were not on
the page.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

Names = Callable[[bytes], Sequence[bytes]]
"""Gives the names in a directory, itself named with its slash, in the order of `as_met`."""


def as_met(name: bytes) -> tuple[bytes, bytes]:
    """Sort names of one directory as a walk meets them; those of directories end with a slash."""
    return _bare(name), name


def _bare(name: bytes) -> bytes:
    return name.removesuffix(b"/")


def walk(names: Names, prefix: bytes, after: bytes, recursive: bool) -> Iterator[bytes]:
    """Give the names with a prefix that are greater than `after`, as a walk meets them.

    Without recursion directories are given instead of what is in them; a prefix that is a directory
    but for its slash stands for what is in it, beside its neighbours that start alike.
    """
    inside, slash, base = prefix.rpartition(b"/")
    return _walk(names, inside + slash, base, after, recursive)


def _walk(
    names: Names, inside: bytes, base: bytes, after: bytes, recursive: bool
) -> Iterator[bytes]:
    rest = after[len(inside) :] if after.startswith(inside) else b""
    if not rest and after > inside:
        return
    for name in _from(names(inside), base, rest.partition(b"/")[0]):
        key = inside + name
        if name.endswith(b"/") and (recursive or (base and name == base + b"/")):
            yield from _walk(names, key, b"", after, recursive)
        elif key > after:
            yield key


def _from(ordered: Sequence[bytes], base: bytes, first: bytes) -> Iterator[bytes]:
    """Give the names that start with `base`, without most of those before `first`."""
    start = bisect_left(ordered, as_met(base), key=as_met)
    if first > base:
        for length in range(len(base), len(first)):
            # What is in a directory that `first` begins with may be greater all the same.
            directory = first[:length] + b"/"
            at = bisect_left(ordered, as_met(directory), key=as_met)
            if at < len(ordered) and ordered[at] == directory:
                yield directory
        start = bisect_left(ordered, as_met(first), key=as_met)
    for at in range(start, len(ordered)):
        if not ordered[at].startswith(base):
            return
        yield ordered[at]


def cut_page(
    walks: Iterable[Iterator[bytes]],
    token: bytes,
    start_after: bytes,
    size: int,
    corrupted: frozenset[bytes] = frozenset(),
) -> list[bytes]:
    """Give the names that one target has for a page.

    Args:
        walks: one for each disk.
        token: the one before.
        start_after: objects up to here are left out; directories are not.
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
    """Give what a proxy makes of the pages of its targets: names sorted and cut again, and a token."""
    found = sorted({key for page in pages for key in page})[:size]
    return found, found[-1] if len(found) == size else b""
