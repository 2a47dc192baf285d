"""Keys of a bucket in bytewise order, page by page, without sorting a directory twice.

A directory is scanned and sorted once and kept; it is used again while its modification time
stands still, and for a few seconds longer by listings that are already on their way (they are no
snapshots in AIStore either). Sub-directories carry their slash, so sorting the names of each
directory sorts the whole keys.
"""

import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aisfs.server.storage.bucket import Bucket

NAMES_KEPT = 3_000_000
"""Names kept over all directories: a listing of a million objects and some change, about 0.2 GB."""
SETTLED_NS = 50_000_000
"""File times advance in steps of up to 10 ms: a scan this soon after a change may have missed more."""
CONTINUED_SECONDS = 5.0
"""How stale a directory may be for the next page of a listing."""


@dataclass(slots=True)
class _Scan:
    mtime_ns: int
    settled: bool
    made: float
    names: list[bytes]


class Directories:
    """Sorted names of directories, most recently used first to stay."""

    def __init__(self, order: Callable[[bytes], Any] | None = None) -> None:
        """`order` is the key to sort names by, where it is not the names themselves."""
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


def walk(
    directories: Directories, bucket: Bucket, prefix: bytes, after: bytes, continued: bool
) -> Iterator[bytes]:
    """Give all keys that start with `prefix` and follow `after`, in order."""
    yield from _walk(directories, bucket, b"", prefix, after, continued)


def _walk(
    directories: Directories,
    bucket: Bucket,
    inside: bytes,
    prefix: bytes,
    after: bytes,
    continued: bool,
) -> Iterator[bytes]:
    names = directories.names(bucket, inside, continued)
    first = max(_component(prefix, inside), _component(after, inside))
    for at in range(bisect_left(names, first), len(names)):
        name = names[at]
        key = inside + name
        if name.endswith(b"/"):
            if key.startswith(prefix) or prefix.startswith(key):
                yield from _walk(directories, bucket, key, prefix, after, continued)
            elif key > prefix:
                return
        elif not key.startswith(prefix):
            if key > prefix:
                return
        elif key > after:
            yield key


def _component(key: bytes, inside: bytes) -> bytes:
    """Give the name below `inside` at which keys from `key` on begin."""
    if not key.startswith(inside):
        return b""
    head, slash, _ = key[len(inside) :].partition(b"/")
    return head + slash


def children(
    directories: Directories, bucket: Bucket, prefix: bytes, after: bytes, continued: bool
) -> Iterator[bytes]:
    """Give one level: keys of objects, and of directories with their slash.

    A prefix that is a directory but lacks the slash stands for the contents of that directory
    together with its neighbours that start alike, as in AIStore.
    """
    inside, _, base = prefix.rpartition(b"/")
    inside += b"/" if inside or prefix.startswith(b"/") else b""
    names = directories.names(bucket, inside, continued)
    start = bisect_left(names, base)
    if after.startswith(inside):
        rest = after[len(inside) :]
        same = base and rest.startswith(base + b"/")
        start = max(start, bisect_left(names, base + b"/") if same else bisect_right(names, rest))
    elif after > inside:
        return
    for at in range(start, len(names)):
        name = names[at]
        if not name.startswith(base):
            return
        if base and name == base + b"/":
            yield from children(directories, bucket, inside + name, after, continued)
        elif inside + name > after:
            yield inside + name
