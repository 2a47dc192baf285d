"""Keys of a bucket in order, page by page, without sorting a directory twice.

A directory is scanned and sorted once and kept. It is used again as long as its modification time
does not change, and for a few more seconds by listings in progress (which are no snapshots in
AIStore either). Subdirectories carry their slash, so sorting the names of each directory sorts the
whole keys.
"""

import os
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from aisfs.server.storage.bucket import Bucket

NamesIn = Callable[[bytes], Sequence[bytes]]
"""Returns the sorted names in a directory, which is given with its slash."""

NAMES_KEPT = 3_000_000
"""NamesIn kept over all directories: a listing of a million objects and some change, about 0.2 GB."""
SETTLED_NS = 50_000_000
"""File times advance in steps of up to 10 ms: a scan this soon after a change may have missed more."""
CONTINUED_SECONDS = 5.0
"""How stale a directory may be for the next page of a listing."""


def bytewise(name: bytes) -> Any:  # noqa: ANN401 - any sort key
    """Sort names of one directory by their bytes."""
    return name


@dataclass(slots=True)
class _Scan:
    mtime_ns: int
    settled: bool
    made: float
    names: list[bytes]


class Directories:
    """Sorted names of directories; the least recently used are dropped first."""

    def __init__(self, order: Callable[[bytes], Any] = bytewise) -> None:
        """`order` is the sort key of names."""
        self._order = order
        self._kept: OrderedDict[tuple[str, bytes], _Scan] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    def names(self, bucket: Bucket, inside: bytes, continued: bool) -> list[bytes]:
        """Return the sorted names in the directory `inside` of a bucket; none when it is not there."""
        names = self._names_in_folder(bucket, inside, continued)
        beside = bucket.beside.names(inside)
        return sorted({*names, *beside}, key=self._order) if beside else names

    def _names_in_folder(self, bucket: Bucket, inside: bytes, continued: bool) -> list[bytes]:
        try:
            descriptor = bucket.open_folder(inside)
        except OSError:
            return []
        try:
            return self._names(bucket, inside, descriptor, continued)
        finally:
            os.close(descriptor)

    def _names(
        self, bucket: Bucket, inside: bytes, descriptor: int, continued: bool
    ) -> list[bytes]:
        place = (bucket.name, inside)
        mtime_ns = os.fstat(descriptor).st_mtime_ns
        with self._lock:
            scan = self._kept.get(place)
            if scan is not None:
                self._kept.move_to_end(place)
        if scan is not None:
            unchanged = scan.settled and scan.mtime_ns == mtime_ns
            if unchanged or (continued and time.monotonic() - scan.made < CONTINUED_SECONDS):
                return scan.names
        names = _scan(bucket, inside, descriptor)
        names.sort(key=self._order)
        self._keep(place, _Scan(mtime_ns, time.time_ns() - mtime_ns > SETTLED_NS, 0.0, names))
        return names

    def _keep(self, place: tuple[str, bytes], scan: _Scan) -> None:
        scan.made = time.monotonic()
        with self._lock:
            old = self._kept.pop(place, None)
            self._count += len(scan.names) - (len(old.names) if old else 0)
            self._kept[place] = scan
            while self._count > NAMES_KEPT and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._count -= len(dropped.names)


def _scan(bucket: Bucket, inside: bytes, descriptor: int) -> list[bytes]:
    names = []
    with os.scandir(descriptor) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            # Links to files count as files; links to directories could form loops.
            if entry.is_dir(follow_symlinks=False):
                names.append(name + b"/")
            elif not entry.is_symlink():
                names += [name] if entry.is_file() else []
            elif bucket.is_file(inside + name):
                names.append(name)
    return names


def keys_below(
    directories: Directories, bucket: Bucket, prefix: bytes, after: bytes = b"", *, continued: bool
) -> Iterator[bytes]:
    """Return all keys that start with `prefix` and follow `after`, in order."""
    if not {b"", b".", b".."}.isdisjoint(prefix.split(b"/")[:-1]):
        return iter(())  # no key has such a component, though a path may
    names = partial(directories.names, bucket, continued=continued)
    return walk(names, prefix, after, recursive=True)


def walk(
    names: NamesIn,
    prefix: bytes,
    after: bytes,
    recursive: bool,
    order: Callable[[bytes], Any] = bytewise,
) -> Iterator[bytes]:
    """Return the keys that have a prefix and are greater than `after`, in the `order` of `names`.

    Without recursion, directories are returned instead of their contents. A prefix that lacks only
    the slash of a directory stands for its contents, and for its neighbours that start alike.
    """
    inside, slash, base = prefix.rpartition(b"/")
    return _walk(names, inside + slash, base, after, recursive, order)


def _walk(
    names: NamesIn,
    inside: bytes,
    base: bytes,
    after: bytes,
    recursive: bool,
    order: Callable[[bytes], Any],
) -> Iterator[bytes]:
    rest = after[len(inside) :] if after.startswith(inside) else b""
    if not rest and after > inside:
        return
    for name in _from(names(inside), base, rest.partition(b"/")[0], order):
        key = inside + name
        if name.endswith(b"/") and (recursive or (base and name == base + b"/")):
            yield from _walk(names, key, b"", after, recursive, order)
        elif key > after:
            yield key


def _from(
    ordered: Sequence[bytes], base: bytes, first: bytes, order: Callable[[bytes], Any]
) -> Iterator[bytes]:
    """Yield the names that start with `base`, without most of those before `first`."""
    start = bisect_left(ordered, order(base), key=order)
    if first > base:
        start = bisect_left(ordered, order(first), key=order)
        for length in range(len(base), len(first)):
            # The contents of a directory that `first` begins with may still be greater.
            directory = first[:length] + b"/"
            at = bisect_left(ordered, order(directory), key=order, hi=start)
            if at < start and ordered[at] == directory:
                yield directory
    for at in range(start, len(ordered)):
        if not ordered[at].startswith(base):
            return
        yield ordered[at]
