"""One bucket: the folder with its objects, the record of each, its keys in order, and its properties.

A directory is scanned and sorted once and kept. It is used again as long as its modification time
does not change, and for a few more seconds by listings in progress (which are no snapshots in
AIStore either). Subdirectories carry their slash, so sorting the names of each directory sorts the
whole keys.

An object can have the name of a directory, as in AIStore if the two are on different disks. One directory
cannot contain both, so the files of such objects lie elsewhere, with their percent-encoded keys as names.

Properties are AIStore's defaults, and the changes a user made, which are stored with the records.
"""

import json
import os
import shutil
import stat
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from msgspec import structs

from aisfs.openat2 import open_beneath
from aisfs.server import failures
from aisfs.server.failures import Failure
from aisfs.server.storage.records import HASHERS, Record, Records


def parents(key: bytes) -> list[bytes]:
    """Return the directories above a key, or the one that it names with a slash too; top first."""
    return [key[:at] for at in range(1, len(key)) if key[at : at + 1] == b"/"]


class Beside:
    """The objects of one bucket that have the name of a directory."""

    def __init__(self, folder: bytes) -> None:
        """Their files are in `folder`."""
        self.folder = folder
        self._lock = threading.Lock()
        self._keys = set[bytes]()
        with suppress(FileNotFoundError):
            self._keys.update(unquote_to_bytes(name) for name in os.listdir(folder))

    def __contains__(self, key: bytes) -> bool:
        """Return whether this object is one of them."""
        return key in self._keys

    def names(self, inside: bytes) -> set[bytes]:
        """Return the names of those that are directly in a directory, given with its slash."""
        return {key[len(inside) :] for key in self.below(inside) if b"/" not in key[len(inside) :]}

    def below(self, directory: bytes) -> list[bytes]:
        """Return those that are somewhere below a directory, given with its slash."""
        return [key for key in tuple(self._keys) if key.startswith(directory)]

    def name(self, key: bytes) -> bytes:
        """Return the name of the file of an object."""
        return quote(key, safe="").encode()

    def add(self, key: bytes, path: bytes | None = None) -> None:
        """Add an object, and move its file at `path` here, if there is one."""
        with self._lock:
            os.makedirs(self.folder, exist_ok=True)
            if path is not None:
                with suppress(FileNotFoundError, IsADirectoryError):  # just removed, or moved
                    os.rename(path, self.folder + b"/" + self.name(key))
            self._keys.add(key)

    def forget(self, key: bytes) -> None:
        """Remove an object whose file is gone."""
        self._keys.discard(key)

    def clear(self) -> None:
        """Remove all of them."""
        with self._lock:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._keys.clear()


def check_key(key: bytes) -> None:
    """Check that AIStore accepts a name, and that a file can have it.

    Raises:
        Failure: 400.
    """
    parts = key.split(b"/")
    # AIStore stores empty components but never lists them; as files they cannot exist.
    home = parts[0] == b"~" and len(parts) > 1
    if b"" in parts or b"." in parts or b".." in parts or home or b"\0" in key:
        raise failures.bad_name(failures.text_of(key))
    if max(map(len, parts)) > 255:
        raise Failure(400, "file name too long", "errInvalidPath")


@dataclass(frozen=True, slots=True)
class Found:
    """The current state of one object on disk, with its record."""

    size: int
    mtime_ns: int
    atime_ns: int
    record: Record

    @property
    def identity(self) -> tuple[int, int]:
        """Links a record to a file."""
        return self.size, self.mtime_ns

    def check(self, status: int = 500) -> None:
        """Check that the object's metadata is not known to be inconsistent.

        Raises:
            Failure: with this status.
        """
        damage = self.record.damage
        if damage and damage.noticed:
            text = f"errsize ({self.size} != {damage.length})"
            raise Failure(status, text, "ErrLmetaCorrupted")


class Bucket:
    """One bucket: its folder and its records.

    Names come from clients, and the directory may contain any symbolic links. So that nothing leads
    out of the served directory, a path is either opened by `open` or checked by `check_place` first.
    """

    def __init__(
        self, root: int, name: str, folder: bytes, records: Records, beside: Beside
    ) -> None:
        """Describe the bucket `name`, whose `folder` lies in the directory open as `root`.

        `beside` has the objects that cannot be in that folder, since directories have their names.
        """
        self.name = name
        self.folder = folder
        self.records = records
        self.beside = beside
        self._root = root

    def path_of(self, key: bytes) -> bytes:
        """Return the path of a key that was listed, found or checked."""
        if key in self.beside:
            return self.beside.folder + b"/" + self.beside.name(key)
        return self.folder + b"/" + key

    def open(self, key: bytes, flags: int = os.O_RDONLY | os.O_NONBLOCK) -> int:
        """Return a descriptor of the file of a key; never waits for the writer of a fifo.

        Raises:
            OSError: there is none below the served directory, or it cannot be opened.
            Failure: 400; no object can have this name.
        """
        check_key(key)
        if key in self.beside:
            return os.open(self.path_of(key), flags | os.O_NOFOLLOW | os.O_CLOEXEC)
        return open_beneath(self._root, os.fsencode(self.name) + b"/" + key, flags)

    def open_folder(self, key: bytes) -> int:
        """Return a descriptor of the directory of a key, or of the bucket itself for an empty one.

        Raises:
            OSError: there is none below the served directory.
        """
        path = os.fsencode(self.name) + b"/" + key
        return open_beneath(self._root, path, os.O_RDONLY | os.O_DIRECTORY)

    def has_folder(self, key: bytes) -> bool:
        """Return whether there is a directory of this key below the served one."""
        try:
            os.close(self.open_folder(key))
        except OSError:
            return False
        return True

    def below(self, key: bytes) -> Iterator[bytes]:
        """Yield the keys of all files below the directory of a key."""
        yield from self.beside.below(key + b"/")
        if self.has_folder(key):
            for folder, _, names in os.walk(self.folder + b"/" + key):
                for name in names:
                    yield folder[len(self.folder) + 1 :] + b"/" + name

    def check_place(self, key: bytes) -> None:
        """Check that a file of this key would lie below the served directory.

        Raises:
            Failure: 400.
        """
        check_key(key)
        folder = os.fsencode(self.name) + b"/" + os.path.dirname(key)
        try:
            os.close(open_beneath(self._root, folder, os.O_PATH))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            text = f"{failures.text_of(key)}: a link on the way leads out of the served directory"
            raise Failure(400, text, "errInvalidPath") from error

    def find(self, key: bytes, status: os.stat_result | None = None) -> Found | None:
        """Return an object; None when there is no regular file at its key."""
        if status is None:
            try:
                descriptor = self.open(key, os.O_PATH)
            except OSError:
                return None
            try:
                status = os.fstat(descriptor)
            finally:
                os.close(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        record = self.records.find(key, status.st_size, status.st_mtime_ns)
        return self.found(status, record)

    def load(self, key: bytes, found: Found) -> None:
        """Check that an object can be read; from then on its inconsistent length counts as noticed."""
        found.check()
        if found.record.damage and found.record.damage.length:
            damage = structs.replace(found.record.damage, noticed=True)
            record = replace(found.record, damage=damage)
            self.records.store(key, found.size, found.mtime_ns, record)

    def corrupted(self) -> frozenset[bytes]:
        """Return the keys of the objects whose metadata is known to be inconsistent."""
        found = ((key, self.find(key)) for key in self.records.damaged())
        damages = ((key, f.record.damage) for key, f in found if f)
        return frozenset(key for key, damage in damages if damage and damage.noticed)

    @staticmethod
    def found(status: os.stat_result, record: Record | None) -> Found:
        """Return a file with its record; without a record, the file's mtime is the version."""
        if record is None:
            # A file that was not PUT: its mtime detects changes as well as a counter does, and is
            # a decimal number that a later PUT can increment.
            record = Record(version=str(status.st_mtime_ns))
        atime = max(status.st_atime_ns, status.st_mtime_ns)
        return Found(status.st_size, status.st_mtime_ns, atime, record)

    def is_file(self, key: bytes) -> bool:
        """Return whether a regular file below the served directory has this key."""
        with suppress(Failure):
            return self.find(key) is not None
        return False


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


_DEFAULTS: dict[str, Any] = {
    "backend_bck": {"name": "", "provider": "", "namespace": {"uuid": "", "name": ""}},
    "write_policy": {"data": "immediate", "md": "immediate"},
    "provider": "ais",
    "Renamed": "",
    "checksum": {
        "type": "xxhash2",
        "validate_cold_get": False,
        "validate_warm_get": False,
        "validate_obj_move": False,
        "enable_read_range": False,
    },
    "extra": {"aws": {}, "gcp": {}, "oci": {}},
    "rate_limit": {
        "backend": {"interval": "1m", "max_tokens": 1000, "enabled": False, "num_retries": 3},
        "frontend": {"interval": "1m", "max_tokens": 1000, "enabled": False, "burst_size": 375},
    },
    "ec": {
        "compression": "never",
        "bundle_multiplier": 2,
        "burst_buffer": 512,
        "objsize_limit": 262144,
        "data_slices": 2,
        "parity_slices": 2,
        "enabled": False,
        "disk_only": False,
    },
    "chunks": {"objsize_limit": "0B", "max_monolithic_size": "1TiB", "chunk_size": "1GiB"},
    "mirror": {"copies": 2, "burst_buffer": 512, "enabled": False},
    "lru": {
        "dont_evict_time": "2h0m",
        "capacity_upd_time": "10m",
        "batch_size": 32768,
        "enabled": False,
    },
    "access": "18446744073709551615",
    "features": "0",
    "bid": "0",
    "versioning": {"enabled": True, "validate_warm_get": False, "synchronize": False},
}


def check_properties(changes: object) -> dict[str, Any]:
    """Check a set of properties to change, and return it.

    Raises:
        Failure: 400 when it is not a set of properties, or names an unknown checksum.
    """
    if changes is None:
        return {}
    if not isinstance(changes, dict):
        raise Failure(400, "bucket properties: expecting a JSON object")
    for name, value in changes.items():
        default = _DEFAULTS.get(name)
        if isinstance(default, dict) and not isinstance(value, dict):
            raise Failure(400, f'bucket properties: invalid value of "{name}"')
    kind = changes.get("checksum", {}).get("type")
    if kind is not None and kind not in HASHERS:
        known = " ".join(sorted(HASHERS.keys() - {"none"})) + " none"
        raise Failure(400, f'invalid checksum type "{kind}" (expecting [{known}])')
    return changes


def merge_properties(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a set of properties with changes applied, section by section."""
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = {**old, **value} if isinstance(old, dict) else value
    return merged


def properties_header(bucket: Bucket) -> str:
    """Return all properties of a bucket as the header line of a HEAD reply."""
    changed = bucket.records.properties()
    changed.setdefault("created", str(os.stat(bucket.folder).st_ctime_ns))
    return json.dumps(merge_properties(_DEFAULTS, changed), separators=(",", ":"))


def setting(bucket: Bucket, section: str, name: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return one property of a bucket."""
    return {**_DEFAULTS[section], **bucket.records.properties().get(section, {})}[name]


def checksum_type(bucket: Bucket) -> str:
    """Return the checksum type of new objects."""
    return str(setting(bucket, "checksum", "type"))
