"""What transformations have made: whole files below the cache directory, and a table of their sizes that outlives them.

    <cache-dir>/v1/transformed/results.db           of each result: size, checksum, last use, whether its file is there
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

from aisfs.errors import ConfigError, ContentUnreadable, TransformFailed
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
        self._verified: set[tuple[bytes, bytes]] = set()
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
                self._db.execute("rollback")
                raise

    def open(self, digest: bytes, content: bytes) -> int | None:
        """Open the file of a result; None if it is gone, or damaged."""
        path = self._path(digest, content)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            if (digest, content) not in self._verified:
                if checksum(descriptor) != content:
                    self._drop(digest, path)
                    os.close(descriptor)
                    return None
                self._verified.add((digest, content))
            now = time.time()
            old = "update results set used = ? where digest = ? and used < ?"
            with self._using():
                self._db.execute(old, (now, digest, now - _TOUCH_SECONDS))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    @contextmanager
    def begin(self) -> Iterator[BinaryIO]:
        """Yield a file for a result that is being made; `keep` keeps it."""
        path = self._data / f"{secrets.token_hex(8)}{_TEMPORARY}"
        try:
            with open(path, "x+b", opener=locks.opener) as file:
                yield file
        finally:
            path.unlink(missing_ok=True)

    def keep(self, digest: bytes, file: BinaryIO) -> tuple[Result, int]:
        """Keep a file that `begin` gave as the result; return it, and a descriptor of it.

        Raises:
            TransformFailed: it is larger than all results may be.
        """
        size = os.fstat(file.fileno()).st_size
        if _weight(size) > self.limit:
            raise TransformFailed(
                f"the result has {size} bytes, and there is room for {self.limit}, half of --cache-size"
            )
        content = checksum(file.fileno())
        with self._using():
            self._db.execute("begin immediate")
            try:
                self._make_room(_weight(size), digest)
                os.replace(file.name, self._path(digest, content))
                row = (digest, size, content, time.time(), 1)
                self._db.execute("insert or replace into results values (?, ?, ?, ?, ?)", row)
                self._db.execute("commit")
            except BaseException:
                self._seen = -1
                self._db.execute("rollback")
                raise
        self._verified.add((digest, content))
        return Result(size, content), os.dup(file.fileno())

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


def checksum(descriptor: int) -> bytes:
    """Return what tells the bytes of a file from all others."""
    hasher, at = xxhash.xxh3_128(), 0
    while piece := os.pread(descriptor, _PIECE, at):
        hasher.update(piece)
        at += len(piece)
    return hasher.digest()
