"""A directory of this machine as a bucket: `aisfs mount ./shards` needs no cluster.

A key is a path below the root. Only what a bucket could hold shows up: regular files, and
directories. Symbolic links are followed as `Links` says; any other link is hidden and counted, since following
it could loop or reveal what nobody meant to offer. So are sockets, pipes and devices.

Versions are told apart by modification time and inode number; size completes them.

Must not know: trio beyond threads, AIStore.
"""

import errno
import logging
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from aisfs.errors import (
    AlreadyExists,
    InvalidName,
    NotFound,
    Stale,
    Unsupported,
)
from aisfs.model import NO_CUSTOM, Bucket, Keys, ObjectInfo, Page, Provider
from aisfs.store.content import FileContent
from aisfs.store.custom import encode_custom
from aisfs.store.local import metadata, writes
from aisfs.store.local.errors import error_of, os_errors, writing_errors
from aisfs.store.local.links import Links
from aisfs.store.local.paths import KeyPaths, raw_key
from aisfs.store.plain import PlainStore, check_condition
from aisfs.store.port import Announce, Arrived, Content, Progress, Sink, UploadAhead
from aisfs.system.locks import Rank, ranked_lock

T = TypeVar("T")

log = logging.getLogger(__name__)

_PIECE = 1 << 20
"""Bytes given to a sink at once; as the HTTP client does."""
_MOST_THREADS = 16
"""Threads at once; a disk gains nothing from more, and the pool is shared with nobody."""


class LocalStore(PlainStore):
    """One bucket, named after the directory it is."""

    def __init__(
        self, root: Path, *, follow_links: bool = False, named: Iterable[Path | str] = ()
    ) -> None:
        """Take the directory as it is now; should it move, it is gone.

        Args:
            root: The directory.
            follow_links: Whether all symbolic links in it are followed.
            named: Paths of files in it that the user typed.
        """
        path = os.path.realpath(root)
        self.bucket = Bucket(os.path.basename(path) or "root", path=path)
        typed = frozenset(os.fsencode(os.path.join(path, name)) for name in named)
        self._links = Links(os.fsencode(path), follow_links, typed)
        self._paths = KeyPaths(self._links, self.bucket)
        self._told = False
        self._limiter = trio.CapacityLimiter(_MOST_THREADS)
        self._lock = ranked_lock(Rank.HIDDEN_FILES)
        self._hidden: set[bytes] = set()

    @property
    def hidden(self) -> int:
        """How many entries were met that cannot be shown."""
        return len(self._hidden)

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """List the one bucket."""
        await trio.lowlevel.checkpoint()
        return [self.bucket] if provider in (None, Provider.AIS) else []

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        """List the directory `prefix`, all of it on one page."""
        if prefix and not prefix.endswith("/"):
            raise InvalidName(f"{bucket}/{prefix}: a directory prefix ends in '/'")
        return await self._run(partial(self._list, bucket, prefix))

    async def first_keys(
        self, bucket: Bucket, prefix: str, most: int, *, sure: bool = False
    ) -> Keys:
        """Return `most` keys at most of files below the directory `prefix`."""

        def work() -> Keys:
            found: list[str] = []
            folders = [prefix]
            while folders and len(found) <= most:
                page = self._list(bucket, folders.pop())
                found += [info.key for info in page.objects]
                folders += page.directories
            return Keys(found[:most], len(found) <= most and not folders)

        return await self._run(work)

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """Describe the file as it is now."""

        def work() -> ObjectInfo:
            with self._paths.open(bucket, key) as descriptor:
                return _described(key, descriptor)

        return await self._run(work)

    async def read_range(
        self,
        bucket: Bucket,
        expected: ObjectInfo,
        start: int,
        buffer: memoryview,
        arrived: Arrived | None = None,
    ) -> None:
        """Fill `buffer` with the bytes from `start` on of exactly the version `expected`."""
        if not 0 <= start < start + len(buffer) <= expected.size:
            raise ValueError(f"{len(buffer)} bytes from {start} on of {expected.size}")

        def work() -> None:
            with self._paths.open(bucket, expected.key) as descriptor:
                _check_version(descriptor, bucket, expected)
                done = 0
                while done < len(buffer):
                    with os_errors(f"{bucket}/{expected.key}"):
                        got = os.preadv(descriptor, [buffer[done:]], start + done)
                    if not got:
                        break
                    done += got
                _check_version(descriptor, bucket, expected)

        await self._run(work)

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """Send the whole file, version `expected`, to `sink`."""

        def work() -> None:
            with self._paths.open(bucket, expected.key) as descriptor:
                _check_version(descriptor, bucket, expected)
                buffer = memoryview(bytearray(min(_PIECE, expected.size or 1)))
                done = 0
                while done < expected.size:
                    with os_errors(f"{bucket}/{expected.key}"):
                        got = os.preadv(descriptor, [buffer[: expected.size - done]], done)
                    if not got:
                        break
                    sink(buffer[:got])
                    done += got
                _check_version(descriptor, bucket, expected)

        await self._run(work)

    async def create_bucket(self, bucket: Bucket) -> None:
        """Make no bucket: the directory is the only one."""
        await trio.lowlevel.checkpoint()
        if bucket == self.bucket:
            raise AlreadyExists(f"{bucket}: the directory exists")
        raise Unsupported(f"{bucket}: a local directory is one bucket and has no others")

    async def upload(
        self,
        bucket: Bucket,
        key: str,
        content: Content,
        *,
        custom: Mapping[str, str] = NO_CUSTOM,
        progress: Progress | None = None,
        ahead: UploadAhead | None = None,
        announce: Announce | None = None,
        only_new: str = "",
        replaces: ObjectInfo | None = None,
    ) -> ObjectInfo:
        """Write one file whole, or not at all."""
        encode_custom(custom, "")

        def write(descriptor: int) -> None:
            writes.write_content(descriptor, content, progress)
            if only_new or replaces is not None:
                check_condition(f"{bucket}/{key}", only_new, replaces, self._there(bucket, key))

        return await self._run(partial(self._publish, bucket, key, write, custom))

    async def remove(self, bucket: Bucket, key: str) -> None:
        """Delete one file."""

        def work() -> None:
            with self._paths.open(bucket, key), os_errors(f"{bucket}/{key}"):
                writes.remove(self._paths.root, raw_key(bucket, key))

        await self._run(work)

    async def copy(self, bucket: Bucket, key: str, to_bucket: Bucket, new_key: str) -> ObjectInfo:
        """Copy a file."""
        if (bucket, key) == (to_bucket, new_key):
            raise ValueError(f"{bucket}/{key}: copied onto itself")

        def work() -> ObjectInfo:
            with self._paths.open(bucket, key) as descriptor:
                info = _described(key, descriptor)
                content = FileContent(descriptor, info.size, f"{bucket}/{key}")
                write = partial(writes.write_content, content=content)
                return self._publish(to_bucket, new_key, write, info.custom)

        return await self._run(work)

    async def rename(self, bucket: Bucket, key: str, new_key: str) -> ObjectInfo:
        """Rename a file."""
        if key == new_key:
            raise ValueError(f"{bucket}/{key}: renamed to itself")

        def work() -> ObjectInfo:
            with self._paths.open(bucket, key) as descriptor:
                self._paths.check_new(bucket, new_key)
                with writing_errors(f"{bucket}/{new_key}"):
                    writes.move(self._paths.root, raw_key(bucket, key), raw_key(bucket, new_key))
                return _described(new_key, descriptor)

        return await self._run(work)

    async def set_custom(
        self, bucket: Bucket, expected: ObjectInfo, custom: Mapping[str, str]
    ) -> ObjectInfo:
        """Replace the custom metadata of the content `expected`, where the disk keeps any."""
        encode_custom(custom, "")

        def work() -> ObjectInfo:
            subject = f"{bucket}/{expected.key}"
            with self._paths.open(bucket, expected.key) as descriptor, os_errors(subject):
                if expected.same_content(_described(expected.key, descriptor)):
                    metadata.change(descriptor, subject, custom)
                return _described(expected.key, descriptor)

        return await self._run(work)

    async def aclose(self) -> None:
        """Do nothing; files are open only during calls."""

    async def _run(self, work: Callable[[], T]) -> T:
        # Not abandoned when cancelled: a disk answers by itself, and the buffer is the caller's.
        return await trio.to_thread.run_sync(work, limiter=self._limiter)

    def _there(self, bucket: Bucket, key: str) -> ObjectInfo | None:
        with suppress(NotFound), self._paths.open(bucket, key) as descriptor:
            return _described(key, descriptor)
        return None

    # In worker threads ------------------------------------------------------------------------

    def _publish(
        self, bucket: Bucket, key: str, write: Callable[[int], None], custom: Mapping[str, str]
    ) -> ObjectInfo:
        self._paths.check_new(bucket, key)
        subject = f"{bucket}/{key}"
        info = ObjectInfo(key, 0)

        def write_all(descriptor: int) -> None:
            nonlocal info
            write(descriptor)
            if custom:
                metadata.begin(descriptor, subject, custom)
            info = _described(key, descriptor)

        with writing_errors(subject):
            writes.publish(self._paths.root, raw_key(bucket, key), write_all)
        return info

    def _list(self, bucket: Bucket, prefix: str) -> Page:
        with os_errors(f"{bucket}/{prefix}"):
            self._paths.check_bucket(bucket)
            folder = self._paths.folder(bucket, prefix)
            if folder is None:
                return Page([], [], "")
            with os.scandir(folder) as entries:
                # A directory is named as in a bucket, with its slash, and sorted by that.
                found = {
                    entry.name + b"/" if self._is_directory(entry) else entry.name: entry
                    for entry in entries
                    if not entry.name.startswith(writes.UNFINISHED)
                }
        start = raw_key(bucket, prefix)
        objects, directories, left_out = list[ObjectInfo](), list[str](), 0
        for name in sorted(found):
            key = os.fsdecode(start + name)
            if name.endswith(b"/"):
                directories.append(key)
            elif info := self._entry_info(found[name], key):
                objects.append(info)
            elif found[name].path in self._hidden:
                left_out += 1
        return Page(objects, directories, "", left_out=left_out)

    def _is_directory(self, entry: "os.DirEntry[bytes]") -> bool:
        if not self._links.follow:
            return entry.is_dir(follow_symlinks=False)
        return entry.is_dir() and self._links.enters(entry.path)

    def _entry_info(self, entry: "os.DirEntry[bytes]", key: str) -> ObjectInfo | None:
        """Describe a file; None when it is none, or vanished since the scan."""
        try:
            # What a link that is not followed leads to is not even looked at.
            linked = self._links.target(entry.path) if entry.is_symlink() else None
            result = linked[1] if linked is not None else entry.stat(follow_symlinks=False)
            if stat.S_ISREG(result.st_mode):
                return metadata.described(key, result, entry.path)
        except FileNotFoundError:
            if not entry.is_symlink():
                return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise error_of(f"{self.bucket}/{key}", error) from error
        with self._lock:
            known = entry.path in self._hidden
            self._hidden.add(entry.path)
            first, self._told = (
                entry.is_symlink() and not self._told,
                self._told or entry.is_symlink(),
            )
        if first:
            log.warning(
                "%s/%s: a symbolic link that is not followed; others are counted, --follow-links follows all",
                self.bucket,
                key,
            )
        elif not known:
            log.info("%s/%s: not shown: no file, or a link that is not followed", self.bucket, key)
        return None


def _described(key: str, descriptor: int) -> ObjectInfo:
    return metadata.described(key, os.fstat(descriptor), descriptor)


def _check_version(descriptor: int, bucket: Bucket, expected: ObjectInfo) -> None:
    if not expected.same_content(_described(expected.key, descriptor)):
        raise Stale(f"{bucket}/{expected.key}: the file changed")
