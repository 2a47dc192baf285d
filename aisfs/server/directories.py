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
from collections.abc import Iterator
from dataclasses import dataclass

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

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, _Scan] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    def names(self, path: bytes, continued: bool) -> list[bytes]:
        """Give the sorted names in a directory; none when it is not there."""
        try:
            mtime_ns = os.stat(path).st_mtime_ns
        except OSError:
            return []
        with self._lock:
            scan = self._kept.get(path)
            if scan is not None:
                self._kept.move_to_end(path)
        if scan is not None:
            unchanged = scan.settled and scan.mtime_ns == mtime_ns
            if unchanged or (continued and time.monotonic() - scan.made < CONTINUED_SECONDS):
                return scan.names
        names = _scan(path)
        self._keep(path, _Scan(mtime_ns, time.time_ns() - mtime_ns > SETTLED_NS, 0.0, names))
        return names

    def _keep(self, path: bytes, scan: _Scan) -> None:
        scan.made = time.monotonic()
        with self._lock:
            old = self._kept.pop(path, None)
            self._count += len(scan.names) - (len(old.names) if old else 0)
            self._kept[path] = scan
            while self._count > NAMES_KEPT and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._count -= len(dropped.names)


def _scan(path: bytes) -> list[bytes]:
    names = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                # Links to files count as files; links to directories could form loops.
                if entry.is_dir(follow_symlinks=False):
                    names.append(entry.name + b"/")
                elif entry.is_file():
                    names.append(entry.name)
    except OSError:
        return []
    names.sort()
    return names


def walk(
    directories: Directories, folder: bytes, prefix: bytes, after: bytes, continued: bool
) -> Iterator[bytes]:
    """Give all keys that start with `prefix` and follow `after`, in order."""
    yield from _walk(directories, folder, b"", prefix, after, continued)


def _walk(
    directories: Directories,
    folder: bytes,
    inside: bytes,
    prefix: bytes,
    after: bytes,
    continued: bool,
) -> Iterator[bytes]:
    names = directories.names(folder + b"/" + inside, continued)
    first = max(_component(prefix, inside), _component(after, inside))
    for at in range(bisect_left(names, first), len(names)):
        name = names[at]
        key = inside + name
        if name.endswith(b"/"):
            if key.startswith(prefix) or prefix.startswith(key):
                yield from _walk(directories, folder, key, prefix, after, continued)
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
    directories: Directories, folder: bytes, prefix: bytes, after: bytes, continued: bool
) -> Iterator[bytes]:
    """Give one level: keys of objects, and of directories with their slash.

    A prefix that is a directory but lacks the slash stands for the contents of that directory
    together with its neighbours that start alike, as in AIStore.
    """
    inside, _, base = prefix.rpartition(b"/")
    inside += b"/" if inside or prefix.startswith(b"/") else b""
    names = directories.names(folder + b"/" + inside, continued)
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
            yield from children(directories, folder, inside + name, after, continued)
        elif inside + name > after:
            yield inside + name
