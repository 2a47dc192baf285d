"""The cache directory: its files and their format, what they take on the disk, and which processes use it.

    <cache-dir>/lock        held while a process opens the cache
    <cache-dir>/v1/         this layout, mode 0700; the indexes have a folder of their own in it
        ledger.db*          what is valid, what it takes, what is being written (see ledger)
        data/<id in hex>    one file per segment, named by its row in the ledger
        owners/<token>      one file per process, which keeps it locked

A process is alive while its owner file is locked. Process ids would not do: containers that share
the directory do not see each other's.

An entry is one version of one object. It is kept in segments of `SEGMENT` bytes, one sparse file
each, so that eviction, which is always `unlink`, has a grain:

    0       header page: magic, checksum of what follows, number of the segment, identity, zeros
    4096    the bytes of the segment, at the offset they have in it; the file has its full length
            from the start, what is not there yet is a hole

Which bytes are there, and their checksums, is in the ledger. The identity holds everything in which
two contents could differ, so a file whose header names an entry belongs to it.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import msgspec
import xxhash

from aisfs.errors import ConfigError
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.system import locks

SEGMENT = 16 * 1024 * 1024
"""Bytes of an object in one file. Small enough that a cache of 64 MiB holds a few and that swapping
one is no loss; large enough that 10 GiB are 640 files and one read in a hundred crosses a border."""
PAGE = 4096
"""Grain of the disk: file system blocks and pages of memory."""
HEADER = PAGE
STEP = 256 * 1024
"""Bytes under one checksum: at most so much more than it wants is verified at each end of a first read."""

CONTENT_MAX = 1 << 40
"""Bytes of content whose size is known only at its end."""

_MAGIC = b"aisfs\x00\x00\x01"
_HEAD = struct.Struct("<8sQII")
_IDENTITY_MAX = HEADER - _HEAD.size
_DIGEST = 16


class Damaged(Exception):
    """A file of the cache is not what it should be; never leaves the cache."""


@dataclass(frozen=True, slots=True)
class EntryId:
    """The identity of one version of one object."""

    digest: bytes
    """Hash of the identity; all that is compared."""
    identity: bytes = field(compare=False, repr=False)
    size: int = field(compare=False)
    checksum: str = field(compare=False)
    """`<type>:<hex>` or empty."""
    name: str = field(compare=False)
    """For messages."""

    def key(self, number: int) -> bytes:
        """Return the key of the segment `number`."""
        return self.digest + number.to_bytes(4, "big")

    def numbers(self, wanted: ByteRange) -> range:
        """Return the numbers of the segments that `wanted` lies in."""
        return range(wanted.start // SEGMENT, -(-wanted.stop // SEGMENT))

    def parts(self, wanted: ByteRange) -> Iterator[tuple[bytes, ByteRange]]:
        """Split a range at the borders of segments; yield the key of each with its part."""
        for number in self.numbers(wanted):
            start = number * SEGMENT
            part = ByteRange(max(wanted.start, start), min(wanted.stop, start + SEGMENT))
            yield self.key(number), part

    def segment_length(self, key: bytes) -> int:
        """Return how many bytes of the object belong to the segment `key`."""
        return min(SEGMENT, self.size - segment_start(key))


def entry_id(bucket: Bucket, info: ObjectInfo) -> EntryId | None:
    """Return the identity of the version `info`; None if nothing distinguishes it from others."""
    if not info.version and not info.checksum:
        return None
    key = info.key.encode("utf-8", "surrogateescape")
    parts = (bucket.provider.value, bucket.namespace, bucket.name, key)
    identity = msgspec.msgpack.encode((*parts, info.version, info.checksum, info.size))
    if len(identity) > _IDENTITY_MAX:
        return None
    name = f"{bucket}/{info.key}"
    digest = blake2b(identity, digest_size=_DIGEST).digest()
    return EntryId(digest, identity, info.size, info.checksum, name)


def content_id(bucket: Bucket, info: ObjectInfo, what: str, size: int) -> EntryId | None:
    """Return the identity of content that is made of the version `info`; None as for `entry_id`.

    Args:
        bucket: The object's.
        info: The object.
        what: Names this content among others that are made of the object.
        size: Of the content as far as it is known: the identity does not depend on it.
    """
    made_of = entry_id(bucket, info)
    if made_of is None:
        return None
    # The object's own identity has seven parts, so no object can have this one.
    identity = msgspec.msgpack.encode((what, made_of.digest, CONTENT_MAX))
    digest = blake2b(identity, digest_size=_DIGEST).digest()
    return EntryId(digest, identity, size, "", f"{made_of.name} ({what})")


def segment_start(key: bytes) -> int:
    """Return the offset in the object of the first byte of the segment `key`."""
    return int.from_bytes(key[_DIGEST:], "big") * SEGMENT


def header(entry: EntryId, number: int) -> bytes:
    """Return the first page of a segment's file."""
    rest = struct.pack("<II", number, len(entry.identity)) + entry.identity
    rest += bytes(HEADER - 16 - len(rest))
    return _MAGIC + xxhash.xxh3_64_intdigest(rest).to_bytes(8, "little") + rest


def object_size(page: bytes, key: bytes) -> int:
    """Verify the first page of the file of the segment `key` and read the size of its object.

    Raises:
        Damaged: it is not the header of that segment.
    """
    if len(page) != HEADER:
        raise Damaged("shorter than its header")
    magic, checksum, number, length = _HEAD.unpack_from(page)
    if magic != _MAGIC or checksum != xxhash.xxh3_64_intdigest(page[16:]):
        raise Damaged("its header is broken")
    identity = page[_HEAD.size : _HEAD.size + length]
    digest = blake2b(identity, digest_size=_DIGEST).digest()
    if digest + number.to_bytes(4, "big") != key:
        raise Damaged("it belongs to another object")
    size: int = msgspec.msgpack.decode(identity)[-1]
    return size


LAYOUT = "v1"
_SEGMENT_NAME = re.compile(r"[0-9a-f]{8,}")
_TOKEN_BYTES = 8
_TOKEN = re.compile(rf"[0-9a-f]{{{2 * _TOKEN_BYTES}}}")
NO_FILE = (errno.EISDIR, errno.ELOOP, errno.ENXIO)
"""Errors of opening a directory, a symbolic link or a socket."""
_OPENING_SECONDS = 10.0
"""Opening takes a second at most, with some thousand files of dead processes to look at."""
_RETRY_SECONDS = 0.01
_DISCARDED = "discarded."
_LOST = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
_WAIT_BEFORE, _WRITE = 0x01, 0x02
"""SYNC_FILE_RANGE_WAIT_BEFORE and SYNC_FILE_RANGE_WRITE of Linux."""
_BEHIND_ALL_FILES = 1 << 62
_PUNCH_HOLE = 0x02 | 0x01
"""FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE of Linux."""
_libc = ctypes.CDLL(None, use_errno=True)


class CacheDirectory:
    """The places below one cache directory."""

    def __init__(self, directory: Path) -> None:
        """Compute the paths; nothing is touched before `create`."""
        self.directory = directory
        self.root = directory / LAYOUT
        self.ledger = self.root / "ledger.db"
        self._data = self.root / "data"
        # Files are opened relative to this descriptor. If another process discards the cache and
        # starts a new one, ours stay apart from its files.
        self._files = -1
        self._owners = self.root / "owners"
        self._database = [Path(f"{self.ledger}{suffix}") for suffix in ("", "-wal", "-shm")]
        folders = (directory, self.root, self._data, self._owners, directory / "lock")
        self._measured = [str(path) for path in (*folders, *self._database)]

    def create(self) -> None:
        """Create what is missing; only while `opening`.

        Raises:
            ConfigError: the directory cannot be used; the message names it.
        """
        try:
            self.root.mkdir(exist_ok=True, mode=0o700)
            owner = self.root.stat().st_uid
            if self.root.is_symlink() or owner != os.geteuid():
                raise ConfigError(f"cache directory {self.directory}: {LAYOUT} is not ours")
            if stat.S_IMODE(self.root.stat().st_mode) != 0o700:
                self.root.chmod(0o700)
            self._data.mkdir(exist_ok=True, mode=0o700)
            self._owners.mkdir(exist_ok=True, mode=0o700)
            if not os.access(self._data, os.R_OK | os.W_OK | os.X_OK):
                raise ConfigError(f"cache directory {self.directory} is not writable")
            self.close()
            self._files = os.open(self._data, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise self._unusable(error) from error

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Keep other processes from opening this cache.

        Raises:
            ConfigError: the directory cannot be used; the message names it.
        """
        try:
            locks.make_directory(self.directory)
            descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._unusable(error) from None
        try:
            if not lock_file(descriptor, _OPENING_SECONDS):
                raise ConfigError(
                    f"cache directory {self.directory} is being opened by another process, "
                    f"for {_OPENING_SECONDS:.0f} s now: `fuser {self.directory / 'lock'}` "
                    "shows which; end it, or use another --cache-dir"
                )
            yield
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close what `create` has opened."""
        if self._files >= 0:
            os.close(self._files)
            self._files = -1

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(f"cache directory {self.directory} cannot be used: {error.strerror}")

    def discard(self) -> None:
        """Begin with an empty cache. Processes that still use the old one notice in `sync`."""
        discarded = self.root / f"{_DISCARDED}{secrets.token_hex(4)}"
        discarded.mkdir(mode=0o700)
        for path in (*reversed(self._database), self._data, self._owners):
            with contextlib.suppress(FileNotFoundError):
                path.rename(discarded / path.name)
        self.sweep_discarded()
        self.create()

    def sweep_discarded(self) -> None:
        """Delete what a process that was killed had discarded."""
        for path in self.root.glob(f"{_DISCARDED}*"):
            shutil.rmtree(path, ignore_errors=True)

    def overhead(self) -> int:
        """Return the bytes on disk of everything but the files of segments."""
        total = 0
        for path in self._measured:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(path).st_blocks * 512
        return total

    # Segments ----------------------------------------------------------------------------------

    def taken(self) -> int:
        """Return the bytes on disk of the files of segments; 0 if there is no cache."""
        total = 0
        with contextlib.suppress(OSError), os.scandir(self._data) as files:
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    total += file.stat(follow_symlinks=False).st_blocks * 512
        return total

    def in_use(self) -> bool:
        """Return whether any process uses this cache."""
        try:
            return any(map(self.alive, filter(_TOKEN.fullmatch, os.listdir(self._owners))))
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the ledger and all segments, which needs no room on the disk; only while `opening`.

        Processes that use them notice in `sync`.

        Raises:
            ConfigError: something cannot be removed; the message names the directory.
        """
        try:
            for path in reversed(self._database):
                remove(path)
            with contextlib.suppress(FileNotFoundError):
                for name in filter(_SEGMENT_NAME.fullmatch, os.listdir(self._data)):
                    remove(self._data / name)
                with contextlib.suppress(OSError):  # there are other files in it
                    self._data.rmdir()
        except OSError as error:
            raise self._unusable(error) from None

    def path(self, segment: int) -> Path:
        """Return the path of the file of a segment, for messages."""
        return self._data / _name(segment)

    def open_segment(self, segment: int, *, new: bool = False) -> int:
        """Open the file of a segment to read and write it.

        Raises:
            FileNotFoundError: there is none.
            Damaged: it is something else than a file.
            OSError: the disk fails.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        if new:
            self.unlink(segment)  # left by a process that was killed before its row was committed
            flags |= os.O_CREAT | os.O_EXCL
        try:
            descriptor = os.open(_name(segment), flags, 0o600, dir_fd=self._files)
        except OSError as error:
            if error.errno in NO_FILE:
                raise Damaged("it is no file") from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Damaged("it is no file")
        return descriptor

    def segments(self) -> set[int]:
        """Return the segments that have a file. Files of other names are left alone."""
        names = filter(_SEGMENT_NAME.fullmatch, os.listdir(self._files))
        return {int(name, 16) for name in names}

    def taken_by(self, segment: int) -> int:
        """Return the bytes on disk of the file of a segment; 0 if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return (
                os.stat(_name(segment), dir_fd=self._files, follow_symlinks=False).st_blocks * 512
            )
        return 0

    def unlink(self, segment: int) -> None:
        """Remove the file of a segment, if it is still there."""
        remove(_name(segment), dir_fd=self._files)

    # Owners ------------------------------------------------------------------------------------

    def enter(self) -> tuple[str, int]:
        """Become an owner; return its token and the descriptor that keeps it alive."""
        token = secrets.token_hex(_TOKEN_BYTES)
        descriptor = os.open(self._owners / token, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        lock_file(descriptor)
        return token, descriptor

    def leave(self, token: str, descriptor: int | None = None) -> None:
        """Remove the file of an owner that is dead or, given its descriptor, of this process.

        On a failing disk the file stays. It is not locked, so the next process that opens the cache
        finds that its owner is dead.
        """
        with contextlib.suppress(OSError):
            os.unlink(self._owners / token)
        if descriptor is not None:
            os.close(descriptor)

    def alive(self, token: str) -> bool:
        """Return whether the process of that owner still runs."""
        try:
            descriptor = os.open(self._owners / token, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return not lock_file(descriptor)
        finally:
            os.close(descriptor)

    def sweep_owners(self, known: set[str]) -> None:
        """Remove the files of dead owners that the ledger does not know; only while `opening`."""
        for token in set(filter(_TOKEN.fullmatch, os.listdir(self._owners))) - known:
            if not self.alive(token):
                self.leave(token)


def lock_file(descriptor: int, seconds: float = 0.0) -> bool:
    """Lock an open file, waiting for so long; return whether it is locked now."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            threading.Event().wait(_RETRY_SECONDS)
        else:
            return True


def remove(path: str | Path, *, dir_fd: int | None = None) -> None:
    """Remove a file of the cache, or a directory in its place, if it is there.

    Raises:
        OSError: it cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        try:
            os.unlink(path, dir_fd=dir_fd)
        except IsADirectoryError:
            shutil.rmtree(path, dir_fd=dir_fd)


def _name(segment: int) -> str:
    return f"{segment:08x}"


def punch(descriptor: int, start: int, stop: int) -> None:
    """Free the disk blocks of `[start, stop)` of a file, which then reads as zeros there.

    Raises:
        OSError: the file system cannot do that.
    """
    offset, length = ctypes.c_int64(start), ctypes.c_int64(stop - start)
    if _libc.fallocate64(descriptor, _PUNCH_HOLE, offset, length):
        raise OSError(ctypes.get_errno(), "punching a hole into a file of the cache")


def start_writing(descriptor: int) -> None:
    """Make the kernel write all of a file to the disk, which settles how many blocks it takes."""
    _libc.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _WRITE)


def lost_writes(descriptor: int) -> OSError | None:
    """Return the error of a write to the disk that failed after it was acknowledged.

    The kernel reports it once for each open file. This never blocks: there is nothing to wait for
    beyond the end of the file.
    """
    offset, length = ctypes.c_int64(_BEHIND_ALL_FILES), ctypes.c_int64(1)
    if _libc.sync_file_range(descriptor, offset, length, _WAIT_BEFORE):
        number = ctypes.get_errno()
        if number in _LOST:
            return OSError(number, os.strerror(number))
    return None


def boot_id() -> str:
    """Return the id of this run of the kernel; empty if it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
