"""Buckets as folders, objects as plain files: the layout on disk and how it changes.

    DIR/<bucket>/<key>             the objects; files may also be added and removed directly
    DIR/.aisfs-server/records/     one database per bucket: versions, checksums, custom metadata
    DIR/.aisfs-server/beside/      objects that have the name of a directory, see `aisfs.server.storage.bucket`
    DIR/.aisfs-server/tmp/         work files; every object is complete before it gets its name

Locking: changing a key needs `locks.writing((bucket, key))`; reading the bytes of a key together
with its record needs `locks.reading`.

A GET holds its object for reading until the last byte is sent, and every change to the object waits
for that. Readers pass a waiting writer (as in AIStore), so a writer can starve. There is no
deadlock, because one request takes at most two locks, always in key order.
"""

import fcntl
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from aisfs.errors import ConfigError
from aisfs.openat2 import open_beneath
from aisfs.server import failures
from aisfs.server.failures import Failure
from aisfs.server.storage.bucket import Beside, Bucket, Found, parents
from aisfs.server.storage.records import Hasher, Record, Records
from aisfs.server.storage.traps import Copy, Kindness, Plan


@dataclass(slots=True)
class _Holders:
    readers: int = 0
    writing: bool = False
    waiting: int = 0


class ObjectLocks:
    """All locks of a server; an entry exists only while a request holds or wants it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: dict[Hashable, _Holders] = {}

    @contextmanager
    def writing(self, *names: Hashable) -> Iterator[None]:
        """Hold all these objects exclusively; in one order everywhere, so that two never cross."""
        with ExitStack() as held:
            for name in sorted(set(names), key=repr):
                held.enter_context(self._holding(name, exclusive=True))
            yield

    @contextmanager
    def trying_to_write(self, name: Hashable) -> Iterator[bool]:
        """Hold one object exclusively if nobody holds it now; yield whether that is so."""
        with self._changed:
            is_free = name not in self._held
            if is_free:
                self._held[name] = _Holders(writing=True)
        try:
            yield is_free
        finally:
            if is_free:
                self._release(name, exclusive=True)

    @contextmanager
    def reading(self, name: Hashable) -> Iterator[None]:
        """Hold one object for reading."""
        with self._holding(name, exclusive=False):
            yield

    def state(self, name: Hashable) -> str:
        """Return `free`, `read` or `write`."""
        with self._changed:
            held = self._held.get(name, _Holders())
            return "write" if held.writing else "read" if held.readers else "free"

    @contextmanager
    def _holding(self, name: Hashable, *, exclusive: bool) -> Iterator[None]:
        with self._changed:
            held = self._held.setdefault(name, _Holders())
            held.waiting += 1
            try:
                while held.writing or (exclusive and held.readers):
                    self._changed.wait()
            finally:
                held.waiting -= 1
            held.writing = exclusive
            held.readers += not exclusive
        try:
            yield
        finally:
            self._release(name, exclusive=exclusive)

    def _release(self, name: Hashable, *, exclusive: bool) -> None:
        with self._changed:
            held = self._held[name]
            held.writing = False  # a reader never holds an object that is being written
            held.readers -= not exclusive
            if held.waiting:
                self._changed.notify_all()
            elif not held.readers:
                del self._held[name]


STATE_DIRECTORY = ".aisfs-server"
SYSTEM_BUCKETS = frozenset({".sys-shardidx"})
"""Never listed, and only there once they are needed."""
BUCKET_NAME = re.compile(r"(?!\.)(?!.*\.\.)[A-Za-z0-9_.\-]{1,64}")
_ANY_TIME = nullcontext()
TAKEOVER_SECONDS = 3.0
"""How long a new server waits for the worker of a killed one, which exits within a second."""


class Storage:
    """The directory behind a server."""

    def __init__(self, root: Path, traps: Kindness) -> None:
        self.traps = traps
        if not root.is_dir():
            raise ConfigError(f"{root} is not a directory that can be served")
        self.root = root
        self._root = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.state = root / STATE_DIRECTORY
        self.locks = ObjectLocks()
        self._buckets: dict[str, Bucket] = {}
        self._guard = threading.Lock()
        try:
            self.work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot keep metadata below {root}: {error.strerror}") from error
        for left_over in self.work.iterdir():
            _remove(left_over)

    @property
    def work(self) -> Path:
        """Where unfinished files live."""
        return self.state / "tmp"

    # Buckets

    def bucket(self, name: str) -> Bucket:
        """Return a bucket.

        Raises:
            Failure: 404 when there is no such folder.
        """
        named = BUCKET_NAME.fullmatch(name) or name in SYSTEM_BUCKETS
        if not named or not self._is_folder(name):
            raise failures.no_bucket(name)
        if (bucket := self._buckets.get(name)) is not None:
            return bucket
        with self._guard:
            return self._buckets.setdefault(name, self._make(name))

    def names(self) -> list[str]:
        """Return the names of the buckets: folders below the root that are valid bucket names."""
        found = sorted(filter(BUCKET_NAME.fullmatch, os.listdir(self.root)))
        return [name for name in found if self._is_folder(name)]

    def _is_folder(self, name: str) -> bool:
        try:
            os.close(open_beneath(self._root, os.fsencode(name), os.O_PATH | os.O_DIRECTORY))
        except OSError:
            return False
        return True

    def create(self, name: str, properties: dict[str, Any]) -> None:
        """Make an empty bucket; 409 when it exists."""
        check_bucket_name(name)
        with self._guard:
            try:
                (self.root / name).mkdir()
            except FileExistsError as error:
                message = f'bucket "ais://{name}" already exists'
                raise Failure(409, message, "ErrBucketAlreadyExists") from error
            bucket = self._make(name)
            bucket.records.delete()
            bucket.beside.clear()
            self.traps.drop_bucket(name)
            bucket.records.set_properties({"created": str(time.time_ns()), **properties})
            self._buckets[name] = bucket

    def system_bucket(self, name: str) -> Bucket:
        """Return a system bucket, which is made if need be."""
        (self.root / name).mkdir(exist_ok=True)
        return self.bucket(name)

    def destroy(self, name: str) -> None:
        """Remove a bucket and everything in it."""
        bucket = self.bucket(name)
        aside = self.work_path()
        with self._guard:
            folder = self.root / name
            if folder.is_symlink():
                folder.unlink()
            else:
                folder.rename(aside)
            self._buckets.pop(name, None)
            bucket.records.delete()
            bucket.beside.clear()
            self.traps.drop_bucket(name)
        _remove(aside)

    def _make(self, name: str) -> Bucket:
        records = Records(self.state / "records" / f"{name}.sqlite")
        beside = Beside(os.fsencode(self.state / "beside" / name))
        return Bucket(self._root, name, os.fsencode(self.root / name), records, beside)

    def close(self) -> None:
        """Close every database."""
        for bucket in self._buckets.values():
            bucket.records.close()
        os.close(self._root)

    # Objects

    def work_path(self, name: str = "") -> Path:
        """Return a new path for a work file, or the path of a named one."""
        return self.work / (name or uuid.uuid4().hex)

    @contextmanager
    def work_file(self) -> Iterator[Path]:
        """Yield a path for a work file, which is removed at the end if it was not renamed."""
        path = self.work_path()
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def commit(
        self, bucket: Bucket, key: bytes, work: Path, record: Record, old: Found | None
    ) -> Found:
        """Rename a finished work file to its key, which the caller holds for writing.

        `old` is the object that the caller found there under the same lock.
        """
        now = time.time_ns()
        if old is not None:
            now = max(now, old.mtime_ns + 1)  # records are distinguished by mtime
        os.utime(work, ns=(now, now))
        self._keep_replaced(bucket, key, old)
        found = self._publish(bucket, key, work, record, old)
        self.traps.moving.placed(bucket.name, key)
        return found

    def _publish(
        self, bucket: Bucket, key: bytes, work: Path, record: Record, old: Found | None
    ) -> Found:
        status = os.stat(work)
        keep = old.identity if old else None
        bucket.records.store(key, status.st_size, status.st_mtime_ns, record, keep)
        self._rename(bucket, key, work)
        return Bucket.found(status, record)

    def _rename(self, bucket: Bucket, key: bytes, work: Path) -> None:
        bucket.check_place(key)
        for _ in range(100):
            try:
                self._make_way(bucket, key)
                os.rename(work, bucket.path_of(key))
                return
            except (FileNotFoundError, NotADirectoryError):
                self._make_parents(bucket, bucket.path_of(key))
            except IsADirectoryError:
                pass  # just made
            except OSError as error:
                raise Failure(400, f"{failures.text_of(key)}: {error.strerror}") from error
        raise Failure(500, f"{failures.text_of(key)}: its directory keeps vanishing")

    def _make_way(self, bucket: Bucket, key: bytes) -> None:
        """Refuse a name that is taken on its disk; move aside what has it on another disk."""
        path = bucket.folder + b"/" + key
        is_folder = os.path.isdir(path) and not _drop_empty(path)
        disk = self.traps.disk_of(bucket.name, key)
        if self.traps.has_directory(bucket, key, disk):
            raise failures.virtual_directory()
        if not self.traps.holds_both:
            return
        for parent in parents(key):
            place = bucket.folder + b"/" + parent
            is_file = os.path.isfile(place) and not os.path.islink(place)
            if not is_file and parent not in bucket.beside:
                continue
            if self.traps.disk_of(bucket.name, parent) == disk:
                raise _object_in_path()
            if is_file:
                bucket.beside.add(parent, place)
        if is_folder:
            bucket.beside.add(key)

    @staticmethod
    def _make_parents(bucket: Bucket, path: bytes) -> None:
        if not os.path.isdir(bucket.folder):
            raise failures.no_bucket(bucket.name)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except FileNotFoundError:
            return  # an empty parent was just removed: the caller tries again
        except (FileExistsError, NotADirectoryError) as error:
            above = parents(path[len(bucket.folder) + 1 :])
            if any(os.path.isfile(bucket.folder + b"/" + parent) for parent in above):
                raise _object_in_path() from error
            return  # a parent was removed between two looks at it: likewise
        except OSError as error:
            raise Failure(400, f"cannot make the directory: {error.strerror}") from error

    def delete(self, bucket: Bucket, key: bytes) -> bool:
        """Remove an object and the directories it leaves empty; False when there is none."""
        bucket.check_place(key)
        path = bucket.path_of(key)
        with self.locks.writing((bucket.name, key)):
            if found := bucket.find(key):
                found.check(400)
            self._keep_replaced(bucket, key, found)
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self.traps.drop_directory(bucket.name, key)
                return False
            bucket.beside.forget(key)
            bucket.records.forget(key)
            self.traps.keep_directory(bucket.name, key)
            self._show_misplaced(bucket, key)
        self._prune(bucket, key)
        return True

    @staticmethod
    def _prune(bucket: Bucket, key: bytes) -> None:
        parent = os.path.dirname(bucket.folder + b"/" + key)
        while len(parent) > len(bucket.folder):
            try:
                os.rmdir(parent)
            except OSError:
                return
            parent = os.path.dirname(parent)

    def rename(self, bucket: Bucket, key: bytes, new_key: bytes) -> None:
        """Move an object within its bucket, replacing any object at the new key."""
        with self.locks.writing((bucket.name, key), (bucket.name, new_key)):
            source = find(bucket, key)
            old = bucket.find(new_key)
            keep = old.identity if old else None
            self._keep_replaced(bucket, key, source)
            self._keep_replaced(bucket, new_key, old)
            bucket.records.store(new_key, source.size, source.mtime_ns, source.record, keep)
            self._make_way(bucket, new_key)  # which may put this very object aside
            self._rename(bucket, new_key, Path(os.fsdecode(bucket.path_of(key))))
            self.traps.moving.placed(bucket.name, new_key)
            bucket.beside.forget(key)
            bucket.records.forget(key)
            self.traps.keep_directory(bucket.name, key)
            self._show_misplaced(bucket, key)
        self._prune(bucket, key)

    def copy(self, source: Bucket, key: bytes, target: Bucket, new_key: bytes) -> Found:
        """Copy an object, with its version and custom metadata."""
        with self.work_file() as work:
            with self.locks.reading((source.name, key)):
                found = find(source, key)
                shutil.copyfile(source.path_of(key), work)
            with self.locks.writing((target.name, new_key)):
                old = target.find(new_key)
                return self.commit(target, new_key, work, found.record, old)

    def annotate(
        self, bucket: Bucket, key: bytes, values: dict[str, str], replace_all: bool
    ) -> None:
        """Change an object's custom metadata and nothing else."""
        with self.locks.writing((bucket.name, key)):
            found = bucket.find(key)
            if found is None:
                raise failures.no_object(bucket.name, key)
            self._keep_replaced(bucket, key, found)
            self.traps.moving.placed(bucket.name, key)
            custom = values if replace_all else {**found.record.custom, **values}
            record = replace(found.record, custom=custom)
            bucket.records.store(key, found.size, found.mtime_ns, record)

    # Data that moves between targets: see `aisfs.server.storage.traps`

    def begin_move(self, plan: Plan) -> bool:
        """Begin by this plan, or go on by it; return whether data began to move."""
        is_new = self.traps.moving.begin(plan)
        if plan.cause == "return":
            for (bucket, key), copy in self.traps.moving.take_back().items():
                with suppress(Failure):  # the bucket is gone, or the place is taken
                    self._take_back(self.bucket(bucket), key, copy)
        return is_new

    def end_move(self) -> None:
        """Let all data come."""
        self.traps.moving.hurry()
        self._let_come()
        self.traps.moving.end()

    def wait_for_move(self) -> None:
        """Wait until all data has moved, and let it come meanwhile."""
        while self.traps.moving.wait():
            self._let_come()
        self._let_come()
        self.traps.moving.end()

    def _take_back(self, bucket: Bucket, key: bytes, copy: Copy | None) -> None:
        """Let the target of a name have what it had when it left."""
        moving = self.traps.moving
        with self.locks.writing((bucket.name, key)):
            now = bucket.find(key)
            if copy is None:
                moving.missing(bucket.name, key)
                return
            if now is not None:
                moving.misplaced[bucket.name, key] = self._copy(bucket, key, now)
            self._publish(bucket, key, copy.path, copy.record, now)
            moving.placed(bucket.name, key)

    def _let_come(self) -> None:
        """Let objects replace what is at their targets with a lower version."""
        moving = self.traps.moving
        for bucket, key in list(moving.misplaced):
            if moving.is_on_its_way(bucket, key):
                continue
            with self.locks.writing((bucket, key)):
                if (copy := moving.misplaced.get((bucket, key))) is None:
                    continue
                with suppress(Failure):
                    self._let_one_come(self.bucket(bucket), key, copy)
                copy.path.unlink(missing_ok=True)
                moving.misplaced.pop((bucket, key), None)

    def _let_one_come(self, bucket: Bucket, key: bytes, copy: Copy) -> None:
        there = bucket.find(key)
        if there is None or copy.record.number > there.record.number:
            self._publish(bucket, key, copy.path, copy.record, there)

    def _keep_replaced(self, bucket: Bucket, key: bytes, found: Found | None) -> None:
        """Keep of an object that is to change what other targets have of it."""
        moving = self.traps.moving
        if moving.has_left(bucket.name, key):
            copy = self._copy(bucket, key, found) if found else None
            moving.leave(bucket.name, key, copy)
        if found and moving.is_to_come(bucket.name, key):
            moving.misplaced[bucket.name, key] = self._copy(bucket, key, found)

    def _copy(self, bucket: Bucket, key: bytes, found: Found) -> Copy:
        work = self.work_path()
        shutil.copy2(os.fsdecode(bucket.path_of(key)), work)
        return Copy(work, found.record)

    def _show_misplaced(self, bucket: Bucket, key: bytes) -> None:
        """Show what is to come to a name at whose target there is nothing any more."""
        moving = self.traps.moving
        if (copy := moving.misplaced.pop((bucket.name, key), None)) is not None:
            self._publish(bucket, key, copy.path, copy.record, None)
            moving.missing(bucket.name, key)


def check_bucket_name(name: str) -> str:
    """Return the name of a bucket that may have to be made.

    Raises:
        Failure: 400; no bucket can have this name.
    """
    if not BUCKET_NAME.fullmatch(name):
        text = "bucket name is invalid: may only contain letters, numbers, dashes (-)"
        raise Failure(400, f"{text}, underscores (_), and dots (.)")
    return name


def _object_in_path() -> Failure:
    return Failure(400, "destination contains an object in its path", "ErrMv")


def find(bucket: Bucket, key: bytes) -> Found:
    """Return an object that is to be moved or copied.

    Raises:
        Failure: 404 when there is none, 400 when its metadata is known to be inconsistent.
    """
    found = bucket.find(key)
    if found is None:
        raise failures.no_object(bucket.name, key)
    try:
        found.check()
    except Failure as error:
        text = f"t[{{node}}]: failed to coi-load {failures.uri_of(bucket.name, key)}, err: {error}"
        raise Failure(400, text, "ErrFailedTo") from error
    return found


def write_out(
    pieces: Iterable[bytes],
    target: BinaryIO,
    hashers: Iterable[Hasher],
    turn: AbstractContextManager[object] = _ANY_TIME,
) -> int:
    """Write pieces to a file, each holding `turn`, and update the hashes; return the byte count."""
    total, feeding = 0, list(hashers)
    for piece in pieces:
        with turn:
            target.write(piece)
        total += len(piece)
        for hasher in feeding:
            hasher.update(piece)
    return total


def hold_directory(root: Path) -> int:
    """Make this process the only server of a directory; return the descriptor to keep open.

    Raises:
        ConfigError: another server has it, or nothing can be written there.
    """
    state = root / STATE_DIRECTORY
    try:
        state.mkdir(exist_ok=True)
        fd = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"cannot keep metadata below {root}: {error.strerror}") from error
    deadline = time.monotonic() + TAKEOVER_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                os.close(fd)
                raise ConfigError(f"{root} is already being served") from error
            threading.Event().wait(0.1)


def _drop_empty(path: bytes) -> bool:
    with suppress(OSError):
        os.rmdir(path)
        return True
    return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
