"""What transformations have made: whole files below the cache directory, and a table of their sizes that outlives them.

    <cache-dir>/v1/transformed/results.db           of each result: size, checksum, last use, whether its file is there;
                                                    of each mount with ETLs: how these were defined when it last asked
    <cache-dir>/v1/transformed/data/<digest>-<content>    a result; its name has the checksum of its bytes

A digest says what was transformed, and how. Files never change: a result that is made again and has other bytes is
another file. Invariants: files take no more than the limit, besides those that are being made; one that this process
has not made is verified before it is read; mounts may share the directory.
"""

import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import xxhash

from aisfs.errors import ConfigError, ContentUnreadable, Stale, TransformFailed
from aisfs.system import locks
from aisfs.system.locks import Rank, ranked_lock

_LAYOUT = "v1"
_TEMPORARY = ".tmp"
_LEFT_SECONDS = 3600.0
"""No file of this age is still being made: no transformation takes so long."""
_ROWS_MOST = 1_000_000
"""Results whose sizes are remembered, some 100 MB of disk."""
_TOUCH_SECONDS = 60.0
"""How exactly the last use is known; saves a write per read."""
_BUSY_SECONDS = 10.0
"""Another mount holds the table for as long as it takes to unlink some files."""
_KEPT_EIGHTHS = 7  # after an eviction: the next one is a while off
_BLOCK = 4096
_PIECE = 1 << 20
_AT_ONCE = 500
"""Digests in one query, of which SQLite takes 32,766."""
_TABLE = """
create table if not exists results (
    digest blob primary key, size integer, content blob, used real, kept integer
) without rowid
"""
_DEFINITIONS = """
create table if not exists definitions (mount text primary key, said text) without rowid
"""


@contextmanager
def on_disk() -> Iterator[None]:
    """Report what the disk refuses as an error of the object that is read."""
    try:
        yield
    except OSError as error:
        raise ContentUnreadable(f"results of transformations: {error}") from error


class Result(NamedTuple):
    """What is known of a result, whose file may be gone."""

    size: int
    content: bytes
    """Checksum of its bytes."""


class Results:
    """The results in one cache directory. All methods may wait for the disk, and any thread may call them."""

    def __init__(self, cache_dir: Path, limit: int) -> None:
        """Open what is there.

        Raises:
            ConfigError: the directory cannot be used.
        """
        self.limit = limit
        """Bytes of disk for all files."""
        self._root = cache_dir / _LAYOUT / "transformed"
        self._data = self._root / "data"
        self._lock = ranked_lock(Rank.TRANSFORM_RESULTS)
        self._taken = 0
        """Bytes of disk of all files, as of `_seen`, a version of the table."""
        self._seen = -1
        self._verified: dict[tuple[bytes, bytes], float] = {}
        """Files that may be read, and when their last use was noted."""
        try:
            locks.make_directory(self._data)
            try:
                self._db = self._open_table()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                clear(cache_dir)  # damaged: it is only a cache
                locks.make_directory(self._data)
                self._db = self._open_table()
            self._sweep()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{self._root} cannot be used: {error}") from error

    @property
    def scratch(self) -> Path:
        """A directory for other temporary files."""
        return self._data

    def close(self) -> None:
        """Close the table."""
        self._db.close()

    def find(self, digests: Sequence[bytes]) -> dict[bytes, Result]:
        """Return what is known of results."""
        found = {}
        with self._using():
            for start in range(0, len(digests), _AT_ONCE):
                some = digests[start : start + _AT_ONCE]
                marks = ",".join("?" * len(some))
                query = f"select digest, size, content from results where digest in ({marks})"
                for digest, size, content in self._db.execute(query, some):
                    found[digest] = Result(size, content)
        return found

    def learn(self, rows: Mapping[bytes, tuple[int, bytes]]) -> None:
        """Remember sizes and checksums that others know, of results that are not known here."""
        now = time.time()
        new = ((digest, size, content, now, 0) for digest, (size, content) in rows.items())
        with self._using():
            self._db.execute("begin immediate")
            try:
                self._db.executemany("insert or ignore into results values (?, ?, ?, ?, ?)", new)
                self._db.execute("commit")
            except BaseException:
                self._roll_back()
                raise

    @on_disk()
    def open(self, digest: bytes, result: Result) -> int | None:
        """Open the file of a result; None if it is gone, or damaged.

        Raises:
            Stale: it has another size, which is known from now on.
        """
        content = result.content
        path = self._path(digest, content)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            now, noted = time.time(), self._verified.get((digest, content))
            if noted is None and checksum(descriptor) != content:
                self._drop(digest, path)
                os.close(descriptor)
                return None
            size = os.fstat(descriptor).st_size
            if size != result.size:
                true = "update results set size = ? where digest = ? and content = ?"
                with self._using():
                    self._db.execute(true, (size, digest, content))
                    self._seen = -1
                raise Stale(f"a result has {size} bytes, not {result.size}")
            if noted is None or noted < now - _TOUCH_SECONDS:
                self._verified[digest, content] = now
                old = "update results set used = ? where digest = ? and used < ?"
                with suppress(ContentUnreadable), self._using():  # on a full disk, it can be read
                    self._db.execute(old, (now, digest, now - _TOUCH_SECONDS))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def definition(self, mount: str) -> str:
        """Return what `note_definition` has noted; empty for nothing."""
        query = "select said from definitions where mount = ?"
        with self._using():
            found = self._db.execute(query, (mount,)).fetchone()
        return str(found[0]) if found is not None else ""

    def note_definition(self, mount: str, said: str) -> None:
        """Note how the transformers of a mount are defined, for a daemon that goes on with it while they do not run."""
        with self._using():
            self._db.execute("insert or replace into definitions values (?, ?)", (mount, said))

    @contextmanager
    def begin(self) -> Iterator["Draft"]:
        """Yield a place for a result that is being made; `keep` keeps it."""
        draft = Draft(self._data / f"{secrets.token_hex(8)}{_TEMPORARY}")
        try:
            yield draft
        finally:
            draft.discard()

    def keep(self, digest: bytes, draft: "Draft", *, opens: bool) -> tuple[Result, int | None]:
        """Keep a draft as the result; return it, and a descriptor of the file if that is to be opened.

        Raises:
            TransformFailed: it is larger than all results may be.
            ContentUnreadable: the disk refuses it.
        """
        size = draft.finish()
        if _weight(size) > self.limit:
            raise TransformFailed(
                f"the result has {size} bytes, and there is room for {self.limit}, half of --cache-size"
            )
        content, now = draft.checksum(), time.time()
        descriptor: int | None = None
        with self._using():
            self._db.execute("begin immediate")
            try:
                if opens:
                    descriptor = os.dup(draft.file.fileno())
                self._make_room(_weight(size), digest)
                draft.move(self._path(digest, content))
                row = (digest, size, content, now, 1)
                self._db.execute("insert or replace into results values (?, ?, ?, ?, ?)", row)
                self._db.execute("commit")
            except BaseException:
                self._seen = -1
                if descriptor is not None:
                    os.close(descriptor)
                self._roll_back()
                raise
        self._verified[digest, content] = now
        return Result(size, content), descriptor

    def _make_room(self, weight: int, digest: bytes) -> None:
        """Remove an earlier file of a digest, and those that were used least recently until another one fits."""
        query = "select digest, size, content from results where kept and"
        rows = self._db.execute(f"{query} digest = ?", (digest,)).fetchall()
        (version,) = self._db.execute("pragma data_version").fetchone()
        if version != self._seen:  # another mount has changed the table
            sizes = self._db.execute("select size from results where kept")
            self._taken = sum(_weight(each) for (each,) in sizes)
            self._seen = version
        if self._taken + weight > self.limit:
            rows += self._db.execute(f"{query} digest != ? order by used", (digest,))
        for at, (each, size, content) in enumerate(rows):
            if (at or each != digest) and self._taken + weight <= self.limit * _KEPT_EIGHTHS // 8:
                break
            self._path(each, content).unlink(missing_ok=True)
            self._db.execute("update results set kept = 0 where digest = ?", (each,))
            self._taken -= _weight(size)
        self._taken += weight

    def _roll_back(self) -> None:
        if self._db.in_transaction:  # on a full disk, SQLite has done so itself
            self._db.execute("rollback")

    def _drop(self, digest: bytes, path: Path) -> None:
        path.unlink(missing_ok=True)
        with self._using():
            self._db.execute("update results set kept = 0 where digest = ?", (digest,))
            self._seen = -1

    def _path(self, digest: bytes, content: bytes) -> Path:
        return self._data / f"{digest.hex()}-{content.hex()}"

    @contextmanager
    def _using(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except (OSError, sqlite3.Error) as error:
            raise ContentUnreadable(f"{self._root}: {error}") from error

    def _open_table(self) -> sqlite3.Connection:
        path = self._root / "results.db"
        with closing(os.fdopen(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))):
            pass
        db = sqlite3.connect(
            path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            # Losing the last rows costs a transformation each.
            db.execute("pragma journal_mode = wal")
            db.execute("pragma synchronous = off")
            db.execute(_TABLE)
            db.execute(_DEFINITIONS)
            (count,) = db.execute("select count(*) from results").fetchone()
            oldest = "select digest from results where not kept order by used limit ?"
            delete = f"delete from results where digest in ({oldest})"
            db.execute(delete, (max(0, count - _ROWS_MOST),))
        except BaseException:
            db.close()
            raise
        return db

    def _sweep(self) -> None:
        """Remove what is in no row: processes that were killed have left it, or used a table that was cleared."""
        query = self._db.execute("select digest, content from results where kept")
        known = {self._path(*row).name for row in query}
        before = time.time() - _LEFT_SECONDS
        for path in self._data.iterdir():
            with suppress(FileNotFoundError):
                if path.name not in known and path.stat().st_mtime < before:
                    path.unlink()


def clear(cache_dir: Path) -> None:
    """Remove all results of a cache directory, and what is known of them. Mounts that use them make them again.

    Raises:
        OSError: something cannot be removed.
    """
    root = cache_dir / _LAYOUT / "transformed"
    for path in [*root.glob("results.db*"), *root.glob("data/*")]:
        path.unlink(missing_ok=True)


def _weight(size: int) -> int:
    """Return the bytes of disk that a file takes on the usual file systems."""
    return -(-size // _BLOCK) * _BLOCK


class Draft:
    """A file that a result is being written to, made when it is first used. Any thread may use it, one at a time.

    What the disk refuses is `ContentUnreadable`; of `move`, OSError.
    """

    def __init__(self, path: Path) -> None:
        """Write to this path, of which there is nothing."""
        self._path = path
        self._file: BinaryIO | None = None
        self._hasher = xxhash.xxh3_128()
        self._written = 0
        """How many bytes `write` has got: all, unless something else writes to the file."""

    @property
    @on_disk()
    def file(self) -> BinaryIO:
        """The file."""
        if self._file is None:
            self._file = open(self._path, "x+b", opener=locks.opener)  # noqa: SIM115 - until `discard`
        return self._file

    @on_disk()
    def restart(self) -> None:
        """Begin again."""
        self.file.seek(0)
        self.file.truncate()
        self._hasher.reset()
        self._written = 0

    @on_disk()
    def write(self, piece: memoryview | bytes) -> None:
        """Add the next bytes."""
        self.file.write(piece)
        self._hasher.update(piece)
        self._written += len(piece)

    @on_disk()
    def end(self, most: int) -> bytes:
        """Return the last bytes, `most` at most."""
        size = self.finish()
        return os.pread(self.file.fileno(), most, max(0, size - most))

    @on_disk()
    def finish(self) -> int:
        """Have all bytes in the file; return how many there are."""
        self.file.flush()
        return os.fstat(self.file.fileno()).st_size

    @on_disk()
    def checksum(self) -> bytes:
        """Return the checksum of all bytes."""
        if self.finish() == self._written:
            return self._hasher.digest()
        return checksum(self.file.fileno())

    def move(self, path: Path) -> None:
        """Close the file, and keep it under another name."""
        self.file.close()
        os.replace(self._path, path)
        self._file = None

    def discard(self) -> None:
        """Remove the file, unless it was kept."""
        if self._file is not None:
            with suppress(OSError):  # what is not written yet need not be
                self._file.close()
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def checksum(descriptor: int) -> bytes:
    """Return what tells the bytes of a file from all others."""
    hasher, at = xxhash.xxh3_128(), 0
    while piece := os.pread(descriptor, _PIECE, at):
        hasher.update(piece)
        at += len(piece)
    return hasher.digest()
