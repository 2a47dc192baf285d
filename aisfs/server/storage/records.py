"""Metadata of objects: one small SQLite database per bucket.

A row describes the file that has exactly the row's size and mtime. If a file was changed without the
server, it no longer matches and the row is ignored. A PUT inserts the new row *before* its rename and
keeps the old file's row, so at any instant, even after kill -9, the current file has its row.

A record has the object's checksum, of one of AIStore's types, and the damage that a trap did to the object
until it is replaced: the file stays intact, and the replies withhold what a real AIStore would have lost.
"""

import errno
import hashlib
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import xxhash
from crc32c import CRC32CHash

from aisfs.server.failures import Failure, Headers

_PIECE = 1 << 20


class LostPart(msgspec.Struct, frozen=True):
    """A part of an upload whose file is gone, and its place in the object."""

    start: int
    size: int
    name: str


class Damage(msgspec.Struct, frozen=True, omit_defaults=True):
    """All damage of one object."""

    lost: tuple[LostPart, ...] = ()
    length: int = 0
    """The length of the file if it is not the object's size, else 0."""
    noticed: bool = False
    """Whether the lengths were compared, which makes the object unreadable."""
    unchecked: bool = False
    """Grown in place, without a checksum: bad data to a bucket that validates reads."""

    def readable(self, start: int, size: int, headers: Headers) -> int:
        """Return how many bytes of a range can be read.

        Raises:
            Failure: 404 when the first one is lost, with the headers of the range.
        """
        for part in self.lost:
            if part.start <= start < part.start + part.size:
                told = [h for h in headers if h[0] in ("Accept-Ranges", "Content-Range")]
                text = f"[fs-path] {part.name}: chunk does not exist"
                raise Failure(404, text, "PathError", headers=told)
        return min([size, *(p.start - start for p in self.lost if p.start > start)])


def break_off(fd: int, start: int, size: int) -> Iterator[bytes]:
    """Yield the first bytes of a longer reply, close `fd` and drop the connection."""
    with os.fdopen(fd, "rb") as file:
        file.seek(start)
        while size and (piece := file.read(min(size, _PIECE))):
            size -= len(piece)
            yield piece
    raise ConnectionResetError(errno.ECONNRESET, "the rest is lost")


log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    key BLOB NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, version TEXT NOT NULL,
    checksum_type TEXT NOT NULL, checksum TEXT NOT NULL, custom TEXT NOT NULL,
    chunks TEXT NOT NULL DEFAULT '', damage TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (key, size, mtime_ns)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bucket (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Record:
    """The metadata of one version of one object."""

    version: str = ""
    checksum_type: str = ""
    checksum: str = ""
    custom: dict[str, str] = field(default_factory=dict)
    chunks: tuple[int, int] | None = None
    """Number and largest size of the parts it was uploaded in."""
    damage: Damage | None = None

    @property
    def number(self) -> int:
        """The version as a number; 0 if it is none."""
        return int(self.version) if self.version.isdecimal() else 0


class Records:
    """The rows of one bucket. Every method is safe to call from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._opened: sqlite3.Connection | None = None
        self._properties: dict[str, Any] | None = None
        self._has_chunks: bool | None = None

    def find(self, key: bytes, size: int, mtime_ns: int) -> Record | None:
        """Return the record of exactly this file, or None when there is none."""
        rows = self._rows(
            "SELECT version, checksum_type, checksum, custom, chunks, damage FROM objects"
            " WHERE key = ? AND size = ? AND mtime_ns = ?",
            (key, size, mtime_ns),
        )
        return _record(rows[0]) if rows else None

    def between(self, first: bytes, last: bytes) -> dict[tuple[bytes, int, int], Record]:
        """Return all records of keys from `first` to `last`, both included, by key, size, mtime."""
        rows = self._rows(
            "SELECT key, size, mtime_ns, version, checksum_type, checksum, custom, chunks,"
            " damage FROM objects"
            " WHERE key >= ? AND key <= ?",
            (first, last),
        )
        return {(row[0], row[1], row[2]): _record(row[3:]) for row in rows}

    def damaged(self) -> list[bytes]:
        """Return the keys that have, or recently had, a damaged object."""
        rows = self._rows("SELECT DISTINCT key FROM objects WHERE damage != ''")
        return [row[0] for row in rows]

    @property
    def has_chunks(self) -> bool:
        """Whether any object of the bucket may have been uploaded in parts."""
        with self._lock:
            if self._has_chunks is None:
                query = "SELECT 1 FROM objects WHERE chunks != '' LIMIT 1"
                self._has_chunks = bool(self._rows(query))
            return self._has_chunks

    def store(
        self,
        key: bytes,
        size: int,
        mtime_ns: int,
        record: Record,
        keep: tuple[int, int] | None = None,
    ) -> None:
        """Store the record of the file that is about to be at `key`.

        `keep` is size and mtime of the current file; all other rows of the key are deleted.
        """
        custom = json.dumps(record.custom) if record.custom else ""
        old_size, old_mtime = keep or (-1, -1)
        with self._lock, self._connection() as db:
            self._has_chunks = True if record.chunks else self._has_chunks
            db.execute("BEGIN IMMEDIATE")
            db.execute(
                "DELETE FROM objects WHERE key = ? AND NOT (size = ? AND mtime_ns = ?)",
                (key, old_size, old_mtime),
            )
            db.execute(
                "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    key,
                    size,
                    mtime_ns,
                    record.version,
                    record.checksum_type,
                    record.checksum,
                    custom,
                    json.dumps(record.chunks) if record.chunks else "",
                    msgspec.json.encode(record.damage).decode() if record.damage else "",
                ),
            )

    def forget(self, key: bytes) -> None:
        """Delete all records of a key."""
        self._rows("DELETE FROM objects WHERE key = ?", (key,))

    def properties(self) -> dict[str, Any]:
        """Return the stored bucket properties; empty when nothing was ever set."""
        with self._lock:
            if self._properties is None:
                rows = self._rows("SELECT value FROM bucket WHERE name = 'properties'")
                self._properties = dict(json.loads(rows[0][0])) if rows else {}
            return dict(self._properties)

    def set_properties(self, value: dict[str, Any]) -> None:
        """Replace the stored bucket properties."""
        with self._lock, self._connection() as db:
            db.execute(
                "INSERT OR REPLACE INTO bucket VALUES ('properties', ?)", (json.dumps(value),)
            )
            self._properties = None

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None
            self._properties = None

    def delete(self) -> None:
        """Close and remove the database."""
        self.close()
        for ending in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> list[Any]:
        with self._lock:
            # Reading must not create a database.
            if self._opened is None and not self.path.exists():
                return []
            return self._connection().execute(query, values).fetchall()

    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            try:
                self._opened = self._open()
            except sqlite3.DatabaseError as error:
                # Only versions, checksums and custom metadata are lost, never objects.
                aside = self.path.with_name(self.path.name + ".damaged")
                log.warning("%s is unreadable (%s); moved to %s", self.path, error, aside)
                self.path.replace(aside)
                self._opened = self._open()
        return self._opened

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=30)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            # The page cache survives kill -9; only a power cut may lose the last commits.
            db.execute("PRAGMA synchronous = OFF")
            db.executescript(_SCHEMA)
            columns = {row[1] for row in db.execute("PRAGMA table_info(objects)")}
            for name in {"chunks", "damage"} - columns:  # of older versions
                db.execute(f"ALTER TABLE objects ADD COLUMN {name} TEXT NOT NULL DEFAULT ''")
            db.execute("CREATE INDEX IF NOT EXISTS damaged ON objects (key) WHERE damage != ''")
        except sqlite3.DatabaseError:
            db.close()
            raise
        return db


def _record(row: tuple[str, str, str, str, str, str]) -> Record:
    version, checksum_type, checksum, custom, chunks, damage = row
    return Record(
        version,
        checksum_type,
        checksum,
        json.loads(custom) if custom else {},
        tuple(json.loads(chunks)) if chunks else None,
        msgspec.json.decode(damage, type=Damage) if damage else None,
    )


NODE_SEED = 1103515245
"""Seed of every hash AIStore uses for placement (its MLCG32 constant)."""


class Hasher(Protocol):
    """The part of hashlib's interface that the server uses."""

    def update(self, data: bytes, /) -> None:
        """Add the next bytes."""

    def hexdigest(self) -> str:
        """Return the checksum of everything so far, in hex."""
        ...


class _Nothing:
    def update(self, data: bytes, /) -> None:
        """Ignore bytes."""

    def hexdigest(self) -> str:
        """Return the empty checksum."""
        return ""


HASHERS: dict[str, Callable[[], Hasher]] = {
    "none": _Nothing,
    "xxhash": xxhash.xxh64,
    "xxhash2": xxhash.xxh64,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "crc32c": CRC32CHash,
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
}


def digest_of(text: str) -> int:
    """Return the hash of a node id or an object's uname, as in the cluster map."""
    return xxhash.xxh64_intdigest(text.encode(), seed=NODE_SEED)


def hash_file(path: Path, kind: str) -> str:
    """Return the checksum of a whole file."""
    hasher = HASHERS[kind]()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            hasher.update(piece)
    return hasher.hexdigest()
