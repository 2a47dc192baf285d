"""Small files of the cache: member indexes, so that a shard is scanned once and not once per mount; listings
of large directories, so that a remount need not list what was listed just now; inode numbers, for file handles.

    <directory>/v1/indexes/<hh>/<sha256 of the identity>.aisx     as `core.index.published` writes it, with labels
    <directory>/v1/listings/<sha256 of the cluster>/<sha256 of the rest of the identity>.aisl
    <directory>/v1/numbers/<hh>/<sha256 of the source>.aisn       inode numbers that file handles may have
    <directory>/v1/{indexes,listings,numbers}/lock                        how many bytes the files take

An index says of which version of a shard it is, a listing has its complete identity; that is compared on load, and
files check themselves. What this machine has kept is not checked again for what no scan finds. Invariants:
- files of a kind never take more than the limit, counted in blocks of the disk, temporary files included;
  daemons that share a directory share the count, under a lock that only writers take;
- the count is never too low: it is raised before a file is written, and lowered after one is removed;
- a file appears complete, by rename; a damaged one is a miss, and is removed; only its owner can read it;
- a failing disk is no error: without the cache a shard is scanned again, a directory listed again.

An index belongs to one version of one object. A listing is used by its age alone, which counts from its
first request, by the clock of the wall: AIStore cannot say with one request whether a listing still holds,
since buckets have no version, and a summary counts objects without noticing one that was overwritten. What
one request could list is not kept: asking again costs no more than asking whether it holds.
"""

import errno
import logging
import os
import stat
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from aisfs.cache.directory import NO_FILE, lock_file, remove
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import (
    SCAN_RULES,
    LabelColumn,
    PublishedIndex,
    ScanRules,
    decode_published,
    encode_published,
)
from aisfs.core.index.zip_columns import LEVEL
from aisfs.core.names.listing import Listed, Listing, Refusal, child_key
from aisfs.errors import ConfigError, IndexRefused
from aisfs.model import NO_CUSTOM, Bucket, ObjectInfo
from aisfs.system import locks
from aisfs.system.logs import DISK, request_log
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)

_LAYOUT = "v1"
_TEMPORARY = ".tmp"
_LOCK = "lock"
_BLOCK = 4096  # what the usual file systems give to the smallest file
_SUM = struct.Struct("=I")  # a checksum before what is kept
_KEPT_EIGHTHS = 7  # after an eviction: the next one is a while off
_LOCK_SECONDS = 2.0  # a put takes milliseconds, but a stopped daemon keeps the lock
_TOUCH_SECONDS = 3600  # how exactly the age of entries is known; saves a write per read


_ANY = ScanRules()


class _Entry(NamedTuple):
    used: float
    """When it was last written or read, to an hour."""
    weight: int
    path: Path


@any_thread
class _SmallFiles:
    """The files of one kind, each in a folder below one directory. Methods wait for the disk."""

    def __init__(self, root: Path, suffix: str, limit: int, *, only_own: bool = False) -> None:
        """Keep files that end in `suffix`, of `limit` bytes together; read those of this user only, if `only_own`."""
        self.root = root
        self.limit = limit
        self._suffix = suffix
        self._only_own = only_own

    def path(self, folder: str, name: str) -> Path:
        """Return where a file is, or would be."""
        return self.root / folder / (name + self._suffix)

    def load(self, path: Path) -> bytes:
        """Read a file.

        Raises:
            OSError: it cannot be read.
            ValueError: what is there was not written by `store`.
        """
        # Whatever is at this path, opening it must not block and reading it must end.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
            facts = os.fstat(file.fileno())
            is_own = facts.st_uid == os.geteuid() or not self._only_own
            if not stat.S_ISREG(facts.st_mode) or not is_own:
                raise ValueError("it is no file, or another user's")
            if _weight(facts.st_size) > self.limit:
                raise ValueError(f"it has {facts.st_size} bytes")
            data = file.read(facts.st_size)
            request_log.note(DISK)
            now = time.time()
            if not 0 <= now - facts.st_mtime < _TOUCH_SECONDS:
                with suppress(OSError):  # a cache that is not writable can still be read
                    os.utime(file.fileno(), (now, now))
        return data

    def store(self, path: Path, data: bytes, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Write a file, unless it is too large, or not wanted any more once the others can be written.

        Raises:
            OSError: it cannot be written.
        """
        weight = _weight(len(data))
        if weight > self.limit:
            return
        locks.make_directory(self.root)
        with self._locked() as lock:
            if not is_wanted():
                return
            path.parent.mkdir(mode=0o700, exist_ok=True)
            total = _read_total(lock)
            if total is None or total + weight > self.limit:
                total = self._make_room(weight)
            _write_total(lock, total + weight)
            replaced = self._weight_of(path)
            temporary = path.with_suffix(_TEMPORARY)
            try:
                remove(temporary)
                with open(temporary, "xb", opener=locks.opener) as file:
                    file.write(data)
                temporary.replace(path)
            except OSError:
                temporary.unlink(missing_ok=True)
                _write_total(lock, total)
                raise
            _write_total(lock, total + weight - replaced)

    def empty(self, folder: str) -> None:
        """Remove the files of a folder, as far as the disk lets it; without the lock, if another daemon keeps it."""
        with suppress(OSError), ExitStack() as stack:
            with suppress(TimeoutError):
                stack.enter_context(self._locked())
            for path in (self.root / folder).iterdir():
                remove(path)

    def clear(self) -> None:
        """Remove all files, whatever the limit.

        Raises:
            ConfigError: something could not be removed; the message names the directory.
        """
        if not self.root.exists():
            return
        try:
            with self._locked() as lock:
                for entry in list(self._entries()):
                    remove(entry.path)
                for folder in self._folders():
                    with suppress(OSError):  # there are other files in it
                        folder.rmdir()
                _write_total(lock, 0)
        except OSError as error:
            raise ConfigError(f"the files in {self.root} cannot be cleared: {error}") from None

    def _weight_of(self, path: Path) -> int:
        try:
            return _weight(path.stat().st_size)
        except FileNotFoundError:
            return 0

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Keep other threads and daemons from writing."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(self.root / _LOCK, flags, 0o600)
        try:
            if not lock_file(lock, _LOCK_SECONDS):
                raise TimeoutError(errno.ETIMEDOUT, "another daemon keeps it locked")
            yield lock
        finally:
            os.close(lock)

    def _make_room(self, weight: int) -> int:
        """Evict the least recently used until `weight` fits; return what the rest takes."""
        entries = sorted(self._entries())
        total = sum(entry.weight for entry in entries)
        if total + weight <= self.limit:
            return total
        for entry in entries:
            if total + weight <= self.limit * _KEPT_EIGHTHS // 8:
                break
            remove(entry.path)
            total -= entry.weight
        return total

    def _entries(self) -> Iterator[_Entry]:
        """Yield all entries, and remove temporary files: their writers were killed."""
        for folder in self._folders():
            for path in folder.iterdir():
                if path.suffix == _TEMPORARY:
                    remove(path)
                elif path.suffix == self._suffix:
                    with suppress(FileNotFoundError):
                        facts = path.lstat()
                        yield _Entry(facts.st_mtime, _weight(facts.st_size), path)

    def _folders(self) -> list[Path]:
        return [path for path in self.root.iterdir() if path.is_dir()]


def _weight(size: int) -> int:
    """Return the space a file of that size takes on the disk."""
    return -(-size // _BLOCK) * _BLOCK


def _read_total(lock: int) -> int | None:
    """Return the count in the lock file; None if there is none."""
    text = os.pread(lock, 32, 0)
    return int(text) if text.isdigit() else None


def _write_total(lock: int, total: int) -> None:
    os.pwrite(lock, b"%020d" % total, 0)


@any_thread
class IndexCache:
    """Indexes of shards in their published form, by object version. Methods wait for the disk."""

    def __init__(
        self, directory: Path, limit_bytes: int, *, scan: ScanRules = _ANY, scope: str = ""
    ) -> None:
        """Keep indexes below a directory.

        Args:
            directory: of the cache; created with the first entry.
            limit_bytes: the most that indexes may take; 0 keeps none.
            scan: how the members are found.
            scope: what else distinguishes indexes: the cluster, options of the mount.
        """
        self._files = _SmallFiles(directory / _LAYOUT / "indexes", ".aisx", limit_bytes)
        self._scan = scan
        self._scope = scope
        self._complained = False

    def __repr__(self) -> str:
        return f"<IndexCache of {self._files.limit} bytes in {self._files.root}>"

    def get(
        self,
        bucket: Bucket,
        info: ObjectInfo,
        rules: Container[str] | None = None,
        *,
        without_attributes: bool = False,
    ) -> PublishedIndex | None:
        """Return the index of exactly this version of the object, or None.

        Args:
            bucket: Has the object.
            info: The version.
            rules: By which labels are wanted; None for all.
            without_attributes: Of the two that may be kept, the one without them is meant.
        """
        if not self._worth_keeping(info):
            return None
        path = self._path(bucket, info, without_attributes)
        try:
            data = self._files.load(path)
            found = decode_published(data, info, self._scan, trusted=True, rules=rules)
            return replace(found, index=found.index.stripped()) if without_attributes else found
        except FileNotFoundError:
            return None
        except (OSError, ValueError, IndexRefused) as error:
            if isinstance(error, OSError) and error.errno not in NO_FILE:
                self._complain(error)
                return None
            log.info("%s/%s: the index kept in %s is damaged: %s", bucket, info.key, path, error)
        with suppress(OSError):
            remove(path)
        return None

    def put(
        self,
        bucket: Bucket,
        info: ObjectInfo,
        index: MemberIndex,
        labels: Mapping[str, LabelColumn] = MappingProxyType({}),
        encoded: bytes | None = None,
    ) -> None:
        """Keep the index of this version, and labels by rules beside those that are kept of it, if possible.

        Args:
            bucket: Has the object.
            info: The version.
            index: Its members.
            labels: Columns of labels by the names of their rules.
            encoded: The members as `core.index.codec` writes them, if that is known.
        """
        if not self._worth_keeping(info):
            return
        known = self.get(bucket, info, without_attributes=index.without_attributes)
        if known is not None and len(known.index) == len(index):
            labels = {**known.labels, **labels}
        try:
            data = encode_published(info, index, labels, self._scan, level=LEVEL, encoded=encoded)
        except ValueError as error:
            log.info("%s/%s: the index is not kept: %s", bucket, info.key, error)
            return
        try:
            self._files.store(self._path(bucket, info, index.without_attributes), data)
        except OSError as error:
            self._complain(error)
        else:
            self._complained = False

    def has(self, bucket: Bucket, info: ObjectInfo) -> bool:
        """Return whether an index of this version of the object is kept, without reading it."""
        return self._worth_keeping(info) and self._path(bucket, info, False).is_file()

    def clear(self) -> None:
        """Remove all indexes, whatever their scope; see `_SmallFiles.clear`."""
        self._files.clear()

    def _worth_keeping(self, info: ObjectInfo) -> bool:
        # The size alone does not show that an object has changed.
        return self._files.limit > 0 and bool(info.version or info.checksum)

    def _path(self, bucket: Bucket, info: ObjectInfo, without_attributes: bool) -> Path:
        """Return where an entry is, which is named by all that it depends on."""
        of_bucket = (bucket.provider.value, bucket.namespace, bucket.name)
        texts = (self._scope, *of_bucket, info.key, info.version, info.checksum)
        raw = [text.encode(errors="surrogatepass") for text in texts]
        facts = (SCAN_RULES, *astuple(self._scan), without_attributes, *raw, info.size)
        digest = sha256(msgspec.msgpack.encode(facts)).hexdigest()
        return self._files.path(digest[:2], digest)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            log.warning("the indexes in %s cannot be used for now: %s", self._files.root, error)


FORMAT = 1
"""To be raised when files are written differently, or when a listing shows other names than before."""
INFLATED_MAX = 1 << 30
"""Most bytes of one listing in memory, so that a damaged file cannot fill it: some ten million names."""

_MAGIC = b"AISFSL" + bytes([FORMAT])
_CHECK = struct.Struct("<I")

_Object = tuple[bytes, int, str, str, int, dict[str, str] | None]
"""Name, size, version, checksum, mtime, custom metadata."""


class _File(msgspec.Struct, array_like=True, frozen=True):
    """What a file has."""

    identity: list[str]
    made: float
    """When the listing was asked for, seconds since the epoch."""
    names: list[bytes]
    """In the order of the listing."""
    objects: list[_Object]
    """The other names are directories."""
    refused: dict[str, int]


@any_thread
class ListingCache:
    """Listings of one cluster. Methods wait for the disk, and raise nothing."""

    def __init__(
        self,
        directory: Path,
        limit_bytes: int,
        *,
        cluster: str = "",
        scope: str = "",
        max_age: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keep listings below a directory.

        Args:
            directory: Of the cache; created with the first entry.
            limit_bytes: The most that listings may take.
            cluster: Where the buckets are.
            scope: What else distinguishes listings: what the lister asks for, and what it shows.
            max_age: Seconds after which a listing is not used any more.
            clock: Returns the seconds since the epoch.
        """
        root = directory / _LAYOUT / "listings"
        self._files = _SmallFiles(root, ".aisl", limit_bytes, only_own=True)
        self._folder = sha256(cluster.encode(errors="surrogatepass")).hexdigest()
        self._cluster = cluster
        self._scope = scope
        self.max_age = max_age
        self._clock = clock
        self._forgotten = float("-inf")
        """When all were forgotten: what was listed before is not kept any more."""

    def get(self, bucket: Bucket, prefix: str) -> tuple[Listing, float] | None:
        """Return the listing of a directory and its age in seconds, unless that is too high."""
        identity = self._identity(bucket, prefix)
        path = self._path(identity)
        try:
            found = _decode(self._files.load(path))
            age = self._clock() - found.made
            if found.identity == identity and 0 <= age < self.max_age:
                return _listing(prefix, found), age
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.info("%s/%s: the listing in %s cannot be used: %s", bucket, prefix, path, error)
        with suppress(OSError):
            remove(path)
        return None

    def put(self, bucket: Bucket, prefix: str, listing: Listing, age: float) -> None:
        """Keep a complete listing that was asked for so many seconds ago, if possible."""
        identity = self._identity(bucket, prefix)
        if age >= self.max_age:
            return
        try:
            made = self._clock() - age
            data = _encode(identity, made, prefix, listing)
            path = self._path(identity)
            self._files.store(path, data, lambda: made > self._forgotten)
        except (OSError, ValueError) as error:
            log.info("the listing of %s/%s is not kept: %s", bucket, prefix, error)

    def forget(self) -> None:
        """Remove all listings of this cluster: something is going to change there, or has."""
        self._forgotten = self._clock()
        self._files.empty(self._folder)  # with the lock: not between the check of a put and its end

    def clear(self) -> None:
        """Remove all listings, of all clusters; see `_SmallFiles.clear`."""
        self._files.clear()

    def _identity(self, bucket: Bucket, prefix: str) -> list[str]:
        of_bucket = (bucket.provider.value, bucket.namespace, bucket.name)
        texts = (self._cluster, self._scope, *of_bucket, prefix)
        # Keys may have bytes that are no text.
        return [os.fsencode(text).decode(errors="backslashreplace") for text in texts]

    def _path(self, identity: list[str]) -> Path:
        name = sha256(msgspec.msgpack.encode(identity)).hexdigest()
        return self._files.path(self._folder, name)


@any_thread
class NumberCache:
    """What the inode numbers of earlier mounts of one source stood for, as `filesystem.takeover` notes it.

    For file handles, which a client of NFS keeps for longer than a mount lasts. Methods wait for the disk, and raise
    nothing.
    """

    def __init__(self, directory: Path, limit_bytes: int, *, scope: str = "") -> None:
        """Keep them below a directory, `limit_bytes` of all sources together; `scope` says which source this is."""
        self._files = _SmallFiles(
            directory / _LAYOUT / "numbers", ".aisn", limit_bytes, only_own=True
        )
        self.most = limit_bytes // 2
        """Bytes that `put` takes."""
        name = sha256(scope.encode(errors="surrogatepass")).hexdigest()
        self._path = self._files.path(name[:2], name)

    def get(self) -> bytes:
        """Return what was kept; nothing if it is damaged."""
        try:
            data = self._files.load(self._path)
            if len(data) >= _SUM.size and _SUM.unpack_from(data)[0] == zlib.crc32(
                data[_SUM.size :]
            ):
                return data[_SUM.size :]
            log.info("inode numbers of earlier mounts in %s are damaged", self._path)
        except FileNotFoundError:
            return b""
        except (OSError, ValueError) as error:
            log.info("inode numbers of earlier mounts cannot be read: %s", error)
        with suppress(OSError):
            remove(self._path)
        return b""

    def put(self, data: bytes) -> None:
        """Keep this instead, if possible."""
        try:
            self._files.store(self._path, _SUM.pack(zlib.crc32(data)) + data)
        except (OSError, ValueError) as error:
            log.info("inode numbers are not kept: %s", error)

    def clear(self) -> None:
        """Remove those of all sources; see `_SmallFiles.clear`."""
        self._files.clear()


def _encode(identity: list[str], made: float, prefix: str, listing: Listing) -> bytes:
    names: list[bytes] = []
    objects: list[_Object] = []
    for _, name, info in listing.after(0):
        names.append(name)
        if info is None:
            continue
        if info.key != child_key(prefix, name):
            raise ValueError(f"{info.key!r} has another name")
        custom = dict(info.custom) or None
        objects.append((name, info.size, info.version, info.checksum, info.mtime_ns, custom))
    refused = {reason.value: count for reason, count in listing.refused.items()}
    raw = msgspec.msgpack.encode(_File(identity, made, names, objects, refused))
    if len(raw) > INFLATED_MAX:
        raise ValueError(f"{len(raw)} bytes are too many")
    rest = zlib.compress(raw, 1)
    return _MAGIC + _CHECK.pack(zlib.crc32(rest)) + rest


def _decode(data: bytes) -> _File:
    """Return what `_encode` encoded.

    Raises:
        ValueError: these bytes are something else.
    """
    start = len(_MAGIC) + _CHECK.size
    rest = data[start:]
    if data[:start] != _MAGIC + _CHECK.pack(zlib.crc32(rest)):
        raise ValueError("its checksum is wrong, or it has another format")
    try:
        raw = zlib.decompressobj().decompress(rest, INFLATED_MAX)
        return msgspec.msgpack.decode(raw, type=_File)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"it makes no sense: {error}") from None


def _listing(prefix: str, found: _File) -> Listing:
    entries: dict[bytes, Listed] = dict.fromkeys(found.names)
    for name, size, version, checksum, mtime_ns, custom in found.objects:
        key = child_key(prefix, name)
        entries[name] = ObjectInfo(key, size, version, checksum, mtime_ns, custom or NO_CUSTOM)
    refused = Counter({Refusal(reason): count for reason, count in found.refused.items()})
    return Listing(entries, refused)
