"""A directory of this machine as a bucket: `aisfs mount ./shards` needs no cluster.

A key is a path below the root. Only what a bucket could hold shows up: regular files, and
directories. Symbolic links are followed when they lead to a file below the root; any other link, to
a directory or out of the root, is hidden and counted, since following it could loop or reveal what
nobody meant to offer. So are sockets, pipes and devices.

Versions are told apart by modification time and inode number; size completes them.

Must not know: trio beyond threads, AIStore.
"""

import errno
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from aisfs.errors import (
    AccessDenied,
    AisfsError,
    BucketNotFound,
    InvalidName,
    NameTooLong,
    NotFound,
    ProtocolError,
    Stale,
    Unavailable,
)
from aisfs.model import Bucket, ObjectInfo, Page, Provider
from aisfs.store.port import Sink

T = TypeVar("T")

log = logging.getLogger(__name__)

_PIECE = 1 << 20
"""Bytes given to a sink at once; as the HTTP client does."""
_MOST_THREADS = 16
"""Threads at once; a disk gains nothing from more, and the pool is shared with nobody."""


class LocalStore:
    """One bucket, named after the directory it is."""

    def __init__(self, root: Path) -> None:
        """Take the directory as it is now; should it move, it is gone."""
        self._root = os.fsencode(os.path.realpath(root))
        self.bucket = Bucket(os.fsdecode(os.path.basename(self._root)) or "root")
        self._limiter = trio.CapacityLimiter(_MOST_THREADS)
        self._lock = threading.Lock()
        self._hidden: set[bytes] = set()

    @property
    def hidden(self) -> int:
        """How many entries were met that cannot be shown."""
        return len(self._hidden)

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """List the one bucket."""
        await trio.lowlevel.checkpoint()
        return [self.bucket] if provider in (None, Provider.AIS) else []

    async def list_page(
        self, bucket: Bucket, prefix: str, *, token: str = "", page_size: int = 0
    ) -> Page:
        """List one page of the directory `prefix`; all of it unless `page_size` says otherwise.

        Each page scans the directory anew, which is why a store left to choose makes one page.
        """
        if prefix and not prefix.endswith("/"):
            raise InvalidName(f"{bucket}/{prefix}: a directory prefix ends in '/'")
        return await self._run(partial(self._list, bucket, prefix, token, page_size))

    async def head(self, bucket: Bucket, key: str) -> ObjectInfo:
        """Describe the file as it is now."""

        def work() -> ObjectInfo:
            with self._open(bucket, key) as descriptor:
                return _info(key, os.fstat(descriptor))

        return await self._run(work)

    async def read_range(
        self, bucket: Bucket, expected: ObjectInfo, start: int, buffer: memoryview
    ) -> None:
        """Fill `buffer` with the bytes from `start` on of exactly the version `expected`."""
        if not 0 <= start < start + len(buffer) <= expected.size:
            raise ValueError(f"{len(buffer)} bytes from {start} on of {expected.size}")

        def work() -> None:
            with self._open(bucket, expected.key) as descriptor:
                _check_version(descriptor, bucket, expected)
                done = 0
                while done < len(buffer):
                    with _os_errors(f"{bucket}/{expected.key}"):
                        got = os.preadv(descriptor, [buffer[done:]], start + done)
                    if not got:
                        break
                    done += got
                _check_version(descriptor, bucket, expected)

        await self._run(work)

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """Send the whole file, version `expected`, to `sink`."""

        def work() -> None:
            with self._open(bucket, expected.key) as descriptor:
                _check_version(descriptor, bucket, expected)
                buffer = memoryview(bytearray(min(_PIECE, expected.size or 1)))
                done = 0
                while done < expected.size:
                    with _os_errors(f"{bucket}/{expected.key}"):
                        got = os.preadv(descriptor, [buffer[: expected.size - done]], done)
                    if not got:
                        break
                    sink(buffer[:got])
                    done += got
                _check_version(descriptor, bucket, expected)

        await self._run(work)

    async def aclose(self) -> None:
        """Do nothing; files are open only during calls."""

    async def _run(self, work: Callable[[], T]) -> T:
        # Not abandoned when cancelled: a disk answers by itself, and the buffer is the caller's.
        return await trio.to_thread.run_sync(work, limiter=self._limiter)

    # In worker threads ------------------------------------------------------------------------

    def _list(self, bucket: Bucket, prefix: str, token: str, page_size: int) -> Page:
        with _os_errors(f"{bucket}/{prefix}"):
            self._check_bucket(bucket)
            folder = self._folder(bucket, prefix)
            if folder is None:
                return Page([], [], "")
            with os.scandir(folder) as entries:
                # A directory is named as in a bucket, with its slash, and sorted by that.
                found = {
                    entry.name + b"/" if entry.is_dir(follow_symlinks=False) else entry.name: entry
                    for entry in entries
                }
        start, last = _raw(bucket, prefix), _raw(bucket, token)
        page = Page([], [], "")
        shown = b""
        for name in sorted(name for name in found if start + name > last):
            if page_size and len(page.objects) + len(page.directories) == page_size:
                return Page(page.objects, page.directories, os.fsdecode(shown))
            key = os.fsdecode(start + name)
            if name.endswith(b"/"):
                page.directories.append(key)
            elif info := self._entry_info(found[name], key):
                page.objects.append(info)
            else:
                continue
            shown = start + name
        return page

    def _folder(self, bucket: Bucket, prefix: str) -> bytes | None:
        """Find the directory that a prefix means; None when there is none to be shown."""
        if not prefix:
            return self._root
        try:
            path = self._path(bucket, prefix[:-1]) if prefix != "/" else None
            # A directory that may not be entered is an error, not an empty one.
            if path and os.path.realpath(path) == path and stat.S_ISDIR(os.stat(path).st_mode):
                return path
        except (NotFound, FileNotFoundError, NotADirectoryError):
            pass
        return None

    def _entry_info(self, entry: "os.DirEntry[bytes]", key: str) -> ObjectInfo | None:
        """Describe a file; None when it is none, or vanished since the scan."""
        try:
            # What a link out of the root leads to is not even looked at.
            if not entry.is_symlink() or self._is_within(os.path.realpath(entry.path)):
                result = entry.stat()
                if stat.S_ISREG(result.st_mode):
                    return _info(key, result)
        except FileNotFoundError:
            if not entry.is_symlink():
                return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise _error_of(f"{self.bucket}/{key}", error) from error
        with self._lock:
            known = entry.path in self._hidden
            self._hidden.add(entry.path)
        if not known:
            log.info("%s/%s: not shown: no file, or a link out of the directory", self.bucket, key)
        return None

    @contextmanager
    def _open(self, bucket: Bucket, key: str) -> Iterator[int]:
        subject = f"{bucket}/{key}"
        path = self._path(bucket, key)
        with _os_errors(subject):
            self._check_bucket(bucket)
            # The way there must be free of links, as no listing leads through one; the last step
            # may be one. What it leads to is opened as no link itself, should it be swapped now.
            folder, real = os.path.dirname(path), os.path.realpath(path)
            if os.path.realpath(folder) != folder or not self._is_within(real):
                raise NotFound(f"{subject}: no such object")
            # A pipe in its place must not make the call wait for a writer.
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(real, flags)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NotFound(f"{subject}: not a file")
            yield descriptor
        finally:
            os.close(descriptor)

    def _path(self, bucket: Bucket, key: str) -> bytes:
        raw = _raw(bucket, key)
        parts = raw.split(b"/")
        if b"\0" in raw or not raw or not {b".", b".."}.isdisjoint(parts):
            raise InvalidName(f"{bucket}: {key!r} is not a name of an object")
        if b"" in parts:
            # The system would read `a//b` as `a/b`, a second name for the same file.
            raise NotFound(f"{bucket}/{key}: no such object")
        return os.path.join(self._root, raw)

    def _is_within(self, path: bytes) -> bool:
        return path.startswith(self._root.rstrip(b"/") + b"/")

    def _check_bucket(self, bucket: Bucket) -> None:
        if bucket != self.bucket or not os.path.isdir(self._root):
            raise BucketNotFound(f"{bucket}: no such directory")


def _raw(bucket: Bucket, key: str) -> bytes:
    try:
        return os.fsencode(key)
    except UnicodeEncodeError:
        raise InvalidName(f"{bucket}: {key!r} is not a name any store could hold") from None


def _info(key: str, result: os.stat_result) -> ObjectInfo:
    version = f"{result.st_mtime_ns}-{result.st_ino}"
    return ObjectInfo(key, result.st_size, version, mtime_ns=result.st_mtime_ns)


def _check_version(descriptor: int, bucket: Bucket, expected: ObjectInfo) -> None:
    if not expected.same_content(_info(expected.key, os.fstat(descriptor))):
        raise Stale(f"{bucket}/{expected.key}: the file changed")


@contextmanager
def _os_errors(subject: str) -> Iterator[None]:
    """Turn the system's errors into ours. No sink is called in the block."""
    try:
        yield
    except OSError as error:
        raise _error_of(subject, error) from error


def _error_of(subject: str, error: OSError) -> AisfsError:
    kind: type[AisfsError] = Unavailable
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
        kind = NotFound
    elif error.errno in (errno.EACCES, errno.EPERM):
        kind = AccessDenied
    elif error.errno == errno.EIO:
        kind = ProtocolError  # a broken disk: trying again would only wait
    elif error.errno == errno.ENAMETOOLONG:
        kind = NameTooLong
    return kind(f"{subject}: {error.strerror}")
