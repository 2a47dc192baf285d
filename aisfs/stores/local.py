"""A directory of this machine as a bucket: `aisfs mount ./shards` needs no cluster.

A key is a path below the root, spelled in the one way that the system does not shorten. Only what a bucket could hold
shows up: regular files, and directories. Sockets, pipes and devices are hidden and counted, and so are symbolic links
that are not followed: following one could loop, or reveal what nobody meant to offer.

- **Links** (`Links`, one rule for mounts, `aisfs ls` and `aisfs pack`): one that leads to a file below the directory is
  followed. One that leads out of it is followed if the user made it and owns the file (the caches of Hugging Face and
  DVC consist of such links), if the user typed its name, or with `--follow-links`. Only with that option is a link to a
  directory followed, unless that directory is one of those above it, which would have no end.
- **Versions** are modification time and inode number; size completes them. Where the time is a chosen one, another
  content may come to have both: a tag is kept beside the custom metadata, as part of the version.
- **Mode and time** of the custom metadata are given to the file itself, so other programs that use the directory see
  what `chmod` and `utime` did in a mount.
- **Changes** are made as objects are changed: whole or not at all, and on the disk when reported. A file is written
  under a name that no listing shows and then renamed. Directories come and go with the files below them, as in a
  bucket; one that was empty before stays. Every change is made through a descriptor of its directory, which was opened
  without following any link below the root, so a directory that is replaced by a link meanwhile cannot lead it elsewhere.

Must not know: trio beyond threads, AIStore.
"""

import contextlib
import errno
import logging
import os
import random
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio
from msgspec import structs

from aisfs.core.names.listing import check_new_key
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    AlreadyExists,
    BucketNotFound,
    InvalidName,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotFound,
    OutOfSpace,
    ProtocolError,
    ReadOnly,
    Stale,
    Unavailable,
    Unsupported,
)
from aisfs.model import Bucket, Keys, ObjectInfo, Page, Provider
from aisfs.openat2 import open_beneath
from aisfs.stores.port import (
    Arrived,
    Content,
    FileContent,
    PlainStore,
    Progress,
    Sink,
    Upload,
)
from aisfs.stores.posix_metadata import (
    LINK,
    decode_tagged,
    encode_custom,
    mode_of,
    mtime_of,
    stamp_of,
)
from aisfs.system.locks import Rank, ranked_lock


@contextmanager
def os_errors(subject: str) -> Iterator[None]:
    """Turn the system's errors into ours. No sink is called in the block."""
    try:
        yield
    except OSError as error:
        raise error_of(subject, error) from error


@contextmanager
def writing_errors(subject: str) -> Iterator[None]:
    """Likewise, where a missing directory would be made, and another kind of file is in the way."""
    try:
        yield
    except (NotADirectoryError, FileExistsError) as error:
        raise NotADirectory(f"{subject}: a part of the path is an object") from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotADirectory(f"{subject}: a part of the path is a symbolic link") from error
        raise error_of(subject, error) from error


def error_of(subject: str, error: OSError) -> AisfsError:
    """Return the system's error as one of ours."""
    kind: type[AisfsError] = Unavailable
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
        kind = NotFound
    elif error.errno in (errno.EACCES, errno.EPERM):
        kind = AccessDenied
    elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        kind = OutOfSpace
    elif error.errno == errno.EROFS:
        kind = ReadOnly
    elif error.errno in (errno.EISDIR, errno.ENOTEMPTY):
        kind = IsADirectory
    elif error.errno == errno.EIO:
        kind = ProtocolError  # a broken disk: trying again would only wait
    elif error.errno == errno.ENAMETOOLONG:
        kind = NameTooLong
    return kind(f"{subject}: {error.strerror}")


T = TypeVar("T")

UNFINISHED = b".aisfs-upload-"
"""Names that begin so are files being written, or left behind by a process that was killed."""

CUSTOM_ATTRIBUTE = "user.aisfs.custom"

_PIECE = 1 << 20
_MOST_TRIES = 1000
"""Directories are removed when they are empty; one may go away just after it was made, again and
again where others write and remove files in it. A process that does nothing but make and remove them
takes 9 of 10 away in time; then a hundred tries are not enough for one file of a thousand."""
_PAUSE = 1e-3
"""Most seconds before another try, drawn at random, so that two who hinder each other stop: all tries
take half a second."""
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What opening a directory gives that was removed or replaced meanwhile."""


def publish(
    root: bytes,
    key: bytes,
    write: Callable[[int], None],
    check: Callable[[], None] = lambda: None,
) -> os.stat_result:
    """Put a new file in place of whatever file is there.

    Args:
        root: The directory that stays, however empty it gets.
        key: Path of the file, relative to `root`.
        write: Writes the content to a descriptor; what it raises comes out.
        check: Raises if what is there must stay. Called last of all, since the disk may take its time.
    """
    folder, name = os.path.split(key)
    fresh = UNFINISHED + uuid.uuid4().hex.encode()
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW

    def create(parent: int) -> tuple[int, int]:
        held = os.dup(parent)
        try:
            return held, os.open(fresh, flags, 0o666, dir_fd=held)
        except BaseException:
            os.close(held)
            raise

    parent, descriptor = _in_folder(root, folder, create)
    try:
        try:
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(name, dir_fd=parent).st_mode
                os.fchmod(descriptor, stat.S_IMODE(mode))
            write(descriptor)
            os.fsync(descriptor)
            check()
            os.rename(fresh, name, src_dir_fd=parent, dst_dir_fd=parent)
            result = os.fstat(descriptor)
        except BaseException:
            os.unlink(fresh, dir_fd=parent)
            prune(root, folder)
            raise
        _sync(parent)
    finally:
        os.close(descriptor)
        os.close(parent)
    return result


def write_content(descriptor: int, content: Content, progress: Progress | None = None) -> None:
    """Write a content to the beginning of a file."""
    buffer = memoryview(bytearray(min(_PIECE, content.size)))
    done = 0
    while done < content.size:
        piece = buffer[: content.size - done]
        content.read_into(done, piece)
        written = 0
        while written < len(piece):
            written += os.pwrite(descriptor, piece[written:], done + written)
        done += written
        if progress:
            progress(done)


def move(root: bytes, key: bytes, new_key: bytes) -> None:
    """Rename a file over whatever file is there."""
    (folder, name), (new_folder, new_name) = os.path.split(key), os.path.split(new_key)

    def rename(parent: int) -> bool:
        try:
            os.rename(name, new_name, src_dir_fd=old_parent, dst_dir_fd=parent)
        except FileNotFoundError:
            if _has(old_parent, name):
                raise  # it is the new directory that is gone
            return False
        _sync(parent)
        return True

    try:
        with opened(root, folder) as old_parent:
            if not _in_folder(root, new_folder, rename):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)
    except BaseException:
        prune(root, new_folder)
        raise
    prune(root, folder)


def remove(root: bytes, key: bytes) -> None:
    """Remove a file, and the directories that held nothing else."""
    folder, name = os.path.split(key)
    with opened(root, folder) as parent:
        os.unlink(name, dir_fd=parent)
    prune(root, folder)


def prune(root: bytes, folder: bytes) -> None:
    """Remove a directory when it is empty, and then the one above it, below `root`."""
    while folder:
        above, name = os.path.split(folder)
        try:
            with opened(root, above) as parent:
                os.rmdir(name, dir_fd=parent)
        except OSError:
            break
        folder = above
    try:
        with opened(root, folder) as parent:
            _sync(parent)
    except OSError as error:
        if error.errno not in _GONE:
            raise


def _in_folder(root: bytes, folder: bytes, act: Callable[[int], T]) -> T:
    """Call `act` with a directory, which is made if need be, until it did not go away meanwhile."""
    left = _MOST_TRIES
    while True:
        try:
            with opened(root, folder) as parent:
                return act(parent)
        except (FileNotFoundError, NotADirectoryError) as error:
            left -= 1
            blocked = isinstance(error, NotADirectoryError) and _is_blocked(root, folder)
            if blocked or not left or not folder:
                raise
        if left < _MOST_TRIES - 1:
            time.sleep(random.uniform(0, _PAUSE))  # noqa: TID251 - in a worker thread
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            _make(root, folder)


def _is_blocked(root: bytes, folder: bytes) -> bool:
    """Return whether something that is no directory has the name of this one, or of one above it."""
    above = b""
    for name in folder.split(b"/"):
        try:
            with opened(root, above) as parent:
                mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        except OSError:
            return False
        if not stat.S_ISDIR(mode):
            return True
        above = os.path.join(above, name)
    return False


def _has(folder: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _make(root: bytes, folder: bytes) -> None:
    """Make a directory, and those above it, where there are none."""
    made = b""
    for name in folder.split(b"/"):
        with opened(root, made) as parent, contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
        made = os.path.join(made, name)


@contextlib.contextmanager
def opened(root: bytes, folder: bytes) -> Iterator[int]:
    """Lend a descriptor of a directory, to which no symbolic link leads from `root` on."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    top = os.open(root, flags)
    try:
        found = open_beneath(top, folder or b".", flags, links=False)
    finally:
        os.close(top)
    try:
        yield found
    finally:
        os.close(found)


def _sync(folder: int) -> None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(b".", flags, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_attribute(file: int | bytes) -> str:
    """Read the text of the custom metadata; empty when there is none, or nowhere to keep it."""
    try:
        return os.getxattr(file, CUSTOM_ATTRIBUTE).decode("ascii", "replace")
    except OSError:
        return ""


def write_attribute(file: int | bytes, subject: str, text: str) -> None:
    """Write it.

    Raises:
        Unsupported: the file system keeps none.
    """
    try:
        os.setxattr(file, CUSTOM_ATTRIBUTE, text.encode())
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EPERM, errno.E2BIG, errno.ENOSPC):
            reason = f"no extended attributes here: {error.strerror}"
            raise Unsupported(f"{subject}: {reason}") from error
        raise error_of(subject, error) from error


log = logging.getLogger(__name__)


def described(key: str, result: os.stat_result, file: int | bytes) -> ObjectInfo:
    """Describe a file as an object, custom metadata and all."""
    info = _untagged(key, result)
    text = read_attribute(file)
    if not text:
        return info
    custom, tag = decode_tagged(text, info)
    return structs.replace(
        info, custom=custom, version=f"{info.version}-{tag}" if tag else info.version
    )


def begin(descriptor: int, subject: str, custom: Mapping[str, str]) -> None:
    """Give a new file its custom metadata, as far as the file system keeps it."""
    try:
        _apply(descriptor, subject, custom)
        _keep(descriptor, subject, custom, _new_tag())
    except Unsupported as error:
        log.debug("%s", error)
        with suppress(OSError):  # without a tag, only the time tells this content from others
            os.utime(descriptor)


def change(descriptor: int, subject: str, custom: Mapping[str, str]) -> None:
    """Replace the custom metadata of a file.

    Raises:
        Unsupported: the file system keeps none, or the file belongs to somebody else. Nothing was changed.
    """
    before, old = os.fstat(descriptor), read_attribute(descriptor)
    _, tag = decode_tagged(old, _untagged("", before))
    _keep(descriptor, subject, custom, tag)  # fails before anything else has changed
    try:
        _apply(descriptor, subject, custom)
    except BaseException:
        write_attribute(descriptor, subject, old)
        raise
    if os.fstat(descriptor).st_mtime_ns != before.st_mtime_ns:
        _keep(descriptor, subject, custom, tag or _new_tag())


def _untagged(key: str, result: os.stat_result) -> ObjectInfo:
    version = f"{result.st_mtime_ns}-{result.st_ino}"
    return ObjectInfo(key, result.st_size, version, mtime_ns=result.st_mtime_ns)


def _new_tag() -> str:
    return uuid.uuid4().hex[:8]


def _keep(descriptor: int, subject: str, custom: Mapping[str, str], tag: str) -> None:
    """Keep custom metadata with a file for as long as it has the size and the time that it has now."""
    stamp = stamp_of(_untagged("", os.fstat(descriptor)))
    write_attribute(descriptor, subject, encode_custom(custom, stamp, tag))


def _apply(descriptor: int, subject: str, custom: Mapping[str, str]) -> None:
    """Give a file the mode and the time that `custom` has, if any.

    Raises:
        Unsupported: the file belongs to somebody else, or its file system keeps neither.
    """
    old = os.fstat(descriptor)
    wanted = ObjectInfo("", 0, mtime_ns=old.st_mtime_ns, custom=custom)
    mode, mtime_ns = mode_of(wanted), mtime_of(wanted)
    if mode == LINK:  # others, to which it is a plain file, are not to change it
        mode = None
    try:
        if mode is not None and mode != old.st_mode & 0o777:
            os.fchmod(descriptor, old.st_mode & 0o7000 | mode)
        if mtime_ns != old.st_mtime_ns:
            os.utime(descriptor, ns=(old.st_atime_ns, mtime_ns))
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        raise Unsupported(f"{subject}: mode or time: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Links:
    """The rule for one directory."""

    root: bytes
    """An absolute path without links."""
    follow: bool = False
    """Whether all links are followed."""
    named: frozenset[bytes] = field(default=frozenset())
    """Paths that the user typed."""

    def is_within(self, path: bytes) -> bool:
        """Return whether a path without links lies below the root."""
        return path.startswith(self.root.rstrip(b"/") + b"/")

    def target(self, path: bytes) -> tuple[bytes, os.stat_result] | None:
        """Return the file that a link leads to, as a path without links; None if it is not followed.

        Raises:
            OSError: it leads nowhere.
        """
        real = os.path.realpath(path)
        if not self._may_leave(path) and not self.is_within(real):
            link = os.lstat(path)
            # A directory above it may be a link by now: then this is none.
            if not stat.S_ISLNK(link.st_mode) or link.st_uid != os.geteuid():
                return None
            status = os.stat(real)
            return (real, status) if self._is_own(status) else None
        status = os.stat(real)
        return (real, status) if stat.S_ISREG(status.st_mode) else None

    def open(self, path: bytes, flags: int) -> int | None:
        """Return a descriptor of the file that a link leads to; None if it is not followed.

        What it leads to is opened without links, should it be swapped now.

        Raises:
            OSError: it leads nowhere.
        """
        found = self.target(path)
        if found is None:
            return None
        real, _ = found
        within = self.is_within(real)
        top = os.open(self.root if within else b"/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            start = self.root if within else b"/"
            descriptor = open_beneath(top, os.path.relpath(real, start), flags, links=False)
        finally:
            os.close(top)
        if within or self._may_leave(path) or self._is_own(os.fstat(descriptor)):
            return descriptor
        os.close(descriptor)
        return None

    def enters(self, path: bytes) -> bool:
        """Return whether a directory is shown that may be, or lie below, a link."""
        real = os.path.realpath(path)
        if real == path:
            return True
        if not self.follow or not os.path.isdir(real):
            return False
        above, seen = path, {real}
        while above != self.root:
            above = os.path.dirname(above)
            passed = os.path.realpath(above)
            if passed in seen:
                return False
            seen.add(passed)
        return True

    def _may_leave(self, path: bytes) -> bool:
        return self.follow or path in self.named

    @staticmethod
    def _is_own(status: os.stat_result) -> bool:
        return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


class KeyPaths:
    """Paths of the files of one bucket."""

    def __init__(self, links: Links, bucket: Bucket) -> None:
        """Find files of `bucket` below the root of `links`."""
        self.links = links
        self.root = links.root
        self._bucket = bucket

    def path(self, bucket: Bucket, key: str) -> bytes:
        """Spell the path of a key, whether there is a file or not.

        Raises:
            InvalidName: no file can have this key.
            NotFound: none has it here, though the path may lead to one.
        """
        raw = raw_key(bucket, key)
        parts = raw.split(b"/")
        if b"\0" in raw or not raw or not {b".", b".."}.isdisjoint(parts):
            raise InvalidName(f"{bucket}: {key!r} is not a name of an object")
        if any(part.startswith(UNFINISHED) for part in parts):
            raise InvalidName(f"{bucket}: {key!r}: aisfs itself uses such names")
        if b"" in parts:
            # The system would read `a//b` as `a/b`, a second name for the same file.
            raise NotFound(f"{bucket}/{key}: no such object")
        return os.path.join(self.root, raw)

    def check_new(self, bucket: Bucket, key: str) -> None:
        """Make sure that a file of this key can be written; whatever hides there is not replaced."""
        check_new_key(bucket, key)
        path, subject = self.path(bucket, key), f"{bucket}/{key}"
        folder, name = os.path.split(raw_key(bucket, key))
        with writing_errors(subject):
            self.check_bucket(bucket)
            try:
                with opened(self.root, folder) as parent:
                    mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            except (FileNotFoundError, NotADirectoryError):
                # Nothing is there to be replaced. Whether something is in the way, writing finds
                # out: a directory that is being removed may also look like none.
                return
        if stat.S_ISLNK(mode):
            with suppress(OSError):  # it leads nowhere, or is no link any more
                found = self.links.target(path)
                mode = found[1].st_mode if found is not None else mode
                mode = stat.S_IFDIR if found is None and self.links.enters(path) else mode
        if stat.S_ISDIR(mode):
            raise IsADirectory(f"{subject}: is a directory")
        if not stat.S_ISREG(mode):
            raise Unsupported(f"{subject}: something that is no file has this name")

    def folder(self, bucket: Bucket, prefix: str) -> bytes | None:
        """Find the directory that a prefix means; None when there is none to be shown."""
        if not prefix:
            return self.root
        try:
            path = self.path(bucket, prefix[:-1]) if prefix != "/" else None
            # A directory that may not be entered is an error, not an empty one.
            if path and self.links.enters(path) and stat.S_ISDIR(os.stat(path).st_mode):
                return path
        except (NotFound, FileNotFoundError, NotADirectoryError):
            pass
        return None

    @contextmanager
    def open(self, bucket: Bucket, key: str) -> Iterator[int]:
        """Lend a descriptor of the file of a key, to read from.

        Raises:
            NotFound: there is none, or it is no regular file below the root.
        """
        subject = f"{bucket}/{key}"
        path = self.path(bucket, key)
        with os_errors(subject):
            self.check_bucket(bucket)
            descriptor = self._open(raw_key(bucket, key), path)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NotFound(f"{subject}: not a file")
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, raw: bytes, path: bytes) -> int:
        # A pipe in its place must not make the call wait for a writer.
        flags = os.O_RDONLY | os.O_NONBLOCK
        root = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                return open_beneath(root, raw, flags, links=False)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
            # As no listing leads through a link to a directory, nor does a name; the last step may be one.
            missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            try:
                entered = self.links.enters(os.path.dirname(path))
                descriptor = self.links.open(path, flags) if entered else None
            except OSError as error:  # EINVAL, when a link is no link any more
                raise missing from error
            if descriptor is None:
                raise missing
            return descriptor
        finally:
            os.close(root)

    def check_bucket(self, bucket: Bucket) -> None:
        """Make sure that the root, if it is what is meant, is still there."""
        if bucket != self._bucket or not os.path.isdir(self.root):
            raise BucketNotFound(f"{bucket}: no such directory")


def raw_key(bucket: Bucket, key: str) -> bytes:
    """Return a key as the bytes that names of files are."""
    try:
        return os.fsencode(key)
    except UnicodeEncodeError:
        raise InvalidName(f"{bucket}: {key!r} is not a name any store could hold") from None


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

    async def upload(self, upload: Upload) -> ObjectInfo:
        """Write one file whole, or not at all."""
        bucket, key = upload.bucket, upload.key
        encode_custom(upload.custom, "")

        write = partial(write_content, content=upload.content, progress=upload.progress)

        def check() -> None:
            if upload.is_conditional:
                upload.check(self._there(bucket, key))

        return await self._run(partial(self._publish, bucket, key, write, upload.custom, check))

    async def remove(self, bucket: Bucket, key: str) -> None:
        """Delete one file."""

        def work() -> None:
            with self._paths.open(bucket, key), os_errors(f"{bucket}/{key}"):
                remove(self._paths.root, raw_key(bucket, key))

        await self._run(work)

    async def copy(self, bucket: Bucket, key: str, to_bucket: Bucket, new_key: str) -> ObjectInfo:
        """Copy a file."""
        if (bucket, key) == (to_bucket, new_key):
            raise ValueError(f"{bucket}/{key}: copied onto itself")

        def work() -> ObjectInfo:
            with self._paths.open(bucket, key) as descriptor:
                info = _described(key, descriptor)
                content = FileContent(descriptor, info.size, f"{bucket}/{key}")
                write = partial(write_content, content=content)
                return self._publish(to_bucket, new_key, write, info.custom)

        return await self._run(work)

    async def rename(
        self, bucket: Bucket, key: str, new_key: str, *, expected: ObjectInfo | None = None
    ) -> ObjectInfo:
        """Rename a file."""
        if key == new_key:
            raise ValueError(f"{bucket}/{key}: renamed to itself")

        def work() -> ObjectInfo:
            with self._paths.open(bucket, key) as descriptor:
                if expected is not None:
                    _check_version(descriptor, bucket, expected)
                self._paths.check_new(bucket, new_key)
                with writing_errors(f"{bucket}/{new_key}"):
                    move(self._paths.root, raw_key(bucket, key), raw_key(bucket, new_key))
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
                _check_version(descriptor, bucket, expected)
                change(descriptor, subject, custom)
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
        self,
        bucket: Bucket,
        key: str,
        write: Callable[[int], None],
        custom: Mapping[str, str],
        check: Callable[[], None] = lambda: None,
    ) -> ObjectInfo:
        self._paths.check_new(bucket, key)
        subject = f"{bucket}/{key}"
        info = ObjectInfo(key, 0)

        def write_all(descriptor: int) -> None:
            nonlocal info
            write(descriptor)
            if custom:
                begin(descriptor, subject, custom)
            info = _described(key, descriptor)

        with writing_errors(subject):
            publish(self._paths.root, raw_key(bucket, key), write_all, check)
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
                    if not entry.name.startswith(UNFINISHED)
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
                return described(key, result, entry.path)
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
    return described(key, os.fstat(descriptor), descriptor)


def _check_version(descriptor: int, bucket: Bucket, expected: ObjectInfo) -> None:
    if not expected.same_content(_described(expected.key, descriptor)):
        raise Stale(f"{bucket}/{expected.key}: the file changed")
