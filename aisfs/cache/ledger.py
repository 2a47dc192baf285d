"""The ledger of a cache directory: one SQLite database that all its processes share.

It knows which segments exist, which of their bytes are valid, what they take on the disk and which
processes are writing to them. The limit holds because of one rule: disk bytes are granted in a
transaction to an owner (a process) before it writes them, and

    bytes booked for segments + bytes granted to owners + overhead of the directory <= limit

An owner turns its grant into booked bytes when it records what it has written. It may write to a
segment only while it is one of the `writers`: when it dies, those are the segments with pages that
the ledger does not know. Files are created and unlinked inside transactions, so outside of them
every file has a row.

The database runs without fsync (`synchronous=OFF`). A killed process loses nothing by that. After a
crash of the machine, noticed by another boot id, the database is checked once; data that did not
reach the disk fails its checksum. With WAL, reading never waits for writers.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from aisfs.system import locks
from aisfs.system.locks import Rank, ranked_lock, ranked_rlock

BUSY_SECONDS = 5.0
"""How long a transaction waits for those of other processes, which take some 100 µs each."""
_CHECKPOINT_PAGES = 128
"""Pages in the WAL at which it is copied back: half a MiB, small enough for any cache."""
_TOMBSTONES = 65_536
"""Removals remembered for other processes; a process that misses more loads everything again."""
_VERSION = 1
# Columns of tables without rowid are in the order of the key: the quick_check of sqlite 3.40 takes
# others for damaged.
_SCHEMA = f"""
    PRAGMA auto_vacuum = INCREMENTAL;
    PRAGMA journal_mode = WAL;
    BEGIN;
    CREATE TABLE totals (bytes INTEGER, changes INTEGER, boot TEXT);
    INSERT INTO totals VALUES (0, 0, '');
    CREATE TABLE segments (id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB UNIQUE, bytes INTEGER,
        pieces INTEGER, used_at INTEGER, changed INTEGER);
    CREATE INDEX segments_changed ON segments (changed);
    CREATE TABLE pieces (segment INTEGER, start INTEGER, stop INTEGER, sums BLOB,
        PRIMARY KEY (segment, start, stop)) WITHOUT ROWID;
    CREATE TABLE gone (changed INTEGER, segment INTEGER);
    CREATE INDEX gone_changed ON gone (changed);
    CREATE TABLE owners (id INTEGER PRIMARY KEY AUTOINCREMENT, token TEXT, bytes_limit INTEGER,
        granted INTEGER);
    CREATE TABLE writers (segment INTEGER, owner INTEGER, PRIMARY KEY (segment, owner))
        WITHOUT ROWID;
    CREATE TABLE pins (owner INTEGER, digest BLOB, PRIMARY KEY (owner, digest)) WITHOUT ROWID;
    PRAGMA user_version = {_VERSION};
    COMMIT;
"""


class Row(NamedTuple):
    """A segment in the ledger."""

    id: int
    key: bytes
    bytes: int
    """Booked: what its file takes on the disk, besides the grants of its writers."""
    pieces: int
    used_at: int
    """Seconds since the epoch, to about a minute."""


_ROWS = "SELECT id, key, bytes, pieces, used_at FROM segments"
_PIECES = "SELECT start, stop, sums FROM pieces WHERE segment = ? ORDER BY start"

Piece = tuple[int, int, bytes]
"""Start and stop in the object, and a checksum for each step in between."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened in the ledger after a given change."""

    until: int
    rows: list[Row]
    gone: list[int] | None
    """None if they are not known any more; `rows` are all segments then."""


class Ledger:
    """A connection to the ledger. Methods change something only inside of `transaction`."""

    def __init__(self, writing: sqlite3.Connection, reading: sqlite3.Connection) -> None:
        """Use `open`."""
        self._writing = writing
        self._reading = reading
        self._reading_lock = ranked_lock(Rank.CACHE_LEDGER_READS)
        self.lock = ranked_rlock(Rank.CACHE_LEDGER)
        """Held while working with the ledger. A hit never waits for it."""

    @classmethod
    def open(cls, path: Path, boot: str) -> "Ledger":
        """Open the database, or create it; only while no other process opens it.

        Raises:
            sqlite3.Error: it cannot be used.
        """
        new = not path.exists()
        if new:  # sqlite would let everybody read it, and gives its other files the same mode
            os.close(locks.opener(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC))
        with contextlib.ExitStack() as stack:
            writing = stack.enter_context(contextlib.closing(_connect(path)))
            if new:
                writing.executescript(_SCHEMA)
            if writing.execute("PRAGMA user_version").fetchone() != (_VERSION,):
                raise sqlite3.DatabaseError("written by another version")
            if _tables(writing) != _expected_tables():
                raise sqlite3.DatabaseError("tables are missing, or others than they should be")
            reading = stack.enter_context(contextlib.closing(_connect(path)))
            ledger = cls(writing, reading)
            if writing.execute("SELECT boot FROM totals").fetchone() != (boot,):
                ledger.check()
                writing.execute("UPDATE totals SET boot = ?", (boot,))
            stack.pop_all()
        return ledger

    def check(self) -> None:
        """Check the database as a whole: 10 ms for ten thousand segments.

        Raises:
            sqlite3.Error: it is damaged.
        """
        found = self._writing.execute("PRAGMA quick_check(1)").fetchall()
        if found != [("ok",)]:
            raise sqlite3.DatabaseError(f"{found[0][0]}")

    def close(self) -> None:
        """Close the connections."""
        with self.lock, self._reading_lock:
            self._reading.close()
            self._writing.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Change all or nothing; transactions of all processes come one after the other."""
        with self.lock:
            self._writing.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._writing.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._writing.execute("ROLLBACK")
                raise

    def tidy(self, wal: Path, most: int) -> None:
        """Keep the files small: free unused pages, and truncate the WAL if it is larger than `most`."""
        with self.lock:
            self._writing.execute("PRAGMA incremental_vacuum(64)").fetchall()
            with contextlib.suppress(FileNotFoundError):
                if wal.stat().st_size > most:
                    self._writing.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    # Owners and the limit ----------------------------------------------------------------------

    def enter(self, token: str, limit: int | None) -> int:
        """Register a process with the limit it was given."""
        insert = "INSERT INTO owners (token, bytes_limit, granted) VALUES (?, ?, 0) RETURNING id"
        return int(self._writing.execute(insert, (token, limit)).fetchone()[0])

    def leave(self, owner: int) -> None:
        """Forget a process and return its grant."""
        for table in ("writers", "pins"):
            self._writing.execute(f"DELETE FROM {table} WHERE owner = ?", (owner,))
        self._writing.execute("DELETE FROM owners WHERE id = ?", (owner,))

    def owners(self) -> list[tuple[int, str]]:
        """Return (id, token) of all processes."""
        return self._select("SELECT id, token FROM owners")

    def limit(self) -> int:
        """Return the smallest limit of all processes, or 0 if none has one."""
        ((smallest,),) = self._select("SELECT min(bytes_limit) FROM owners")
        return int(smallest or 0)

    def used(self) -> tuple[int, int]:
        """Return the bytes booked for segments, and those granted to processes."""
        query = "SELECT bytes, (SELECT total(granted) FROM owners) FROM totals"
        ((booked, granted),) = self._select(query)
        return int(booked), int(granted)

    def granted(self, owner: int) -> int:
        """Return the bytes granted to one process."""
        query = "SELECT granted FROM owners WHERE id = ?"
        with self.lock:
            return int(self._writing.execute(query, (owner,)).fetchone()[0])

    def grant(self, owner: int, amount: int) -> None:
        """Grant bytes to a process, or take them back."""
        update = "UPDATE owners SET granted = granted + ? WHERE id = ?"
        self._writing.execute(update, (amount, owner))

    # Segments ----------------------------------------------------------------------------------

    def lease(self, owner: int, key: bytes, now: int) -> tuple[Row, bool]:
        """Become a writer of a segment, created if need be; return its row and if it is new."""
        row = self.find(key)
        new = row is None
        if row is None:
            insert = """INSERT INTO segments (key, bytes, pieces, used_at, changed)
                VALUES (?, 0, 0, ?, ?) RETURNING id"""
            identity = self._writing.execute(insert, (key, now, self._change())).fetchone()[0]
            row = Row(identity, key, 0, 0, now)
        self._writing.execute("INSERT OR IGNORE INTO writers VALUES (?, ?)", (row.id, owner))
        return row, new

    def release(self, owner: int, segments: Iterable[int]) -> None:
        """Stop being a writer of these."""
        delete = "DELETE FROM writers WHERE segment = ? AND owner = ?"
        self._writing.executemany(delete, ((segment, owner) for segment in segments))

    def writers(self, owner: int) -> list[int]:
        """Return the segments a process is a writer of."""
        rows = self._select("SELECT segment FROM writers WHERE owner = ?", owner)
        return [segment for (segment,) in rows]

    def writers_of(self, segment: int) -> set[int]:
        """Return the processes that are writers of a segment."""
        rows = self._select("SELECT owner FROM writers WHERE segment = ?", segment)
        return {owner for (owner,) in rows}

    def book(self, segment: int, size: int, pieces: list[Piece]) -> int | None:
        """Record pieces as valid, and that the file takes `size` bytes at least.

        Returns:
            What is booked for it now; None if it is gone.
        """
        row = self._writing.execute(
            "SELECT bytes FROM segments WHERE id = ?", (segment,)
        ).fetchone()
        if row is None:
            return None
        booked = max(size, int(row[0]))
        self.set_bytes(segment, booked)
        update = "UPDATE segments SET pieces = pieces + ? WHERE id = ?"
        self._writing.execute(update, (len(pieces), segment))
        self._writing.executemany(
            "INSERT OR REPLACE INTO pieces VALUES (?, ?, ?, ?)",
            ((segment, *piece) for piece in pieces),
        )
        return booked

    def set_bytes(self, segment: int, size: int) -> None:
        """Correct what the file of a segment takes."""
        update = "UPDATE totals SET bytes = bytes + ? - (SELECT bytes FROM segments WHERE id = ?)"
        self._writing.execute(update, (size, segment))
        update = "UPDATE segments SET bytes = ?, changed = ? WHERE id = ?"
        self._writing.execute(update, (size, self._change(), segment))

    def remove(self, segment: int) -> bool:
        """Remove a segment; return False if another process did."""
        delete = "DELETE FROM segments WHERE id = ? RETURNING bytes"
        row = self._writing.execute(delete, (segment,)).fetchone()
        if row is None:
            return False
        self._writing.execute("UPDATE totals SET bytes = bytes - ?", row)
        self._writing.execute("DELETE FROM pieces WHERE segment = ?", (segment,))
        self._writing.execute("DELETE FROM writers WHERE segment = ?", (segment,))
        change = self._change()
        self._writing.execute("INSERT INTO gone VALUES (?, ?)", (change, segment))
        if change % 1024 == 0:
            self._writing.execute("DELETE FROM gone WHERE changed < ?", (change - _TOMBSTONES,))
        return True

    def use(self, uses: Iterable[tuple[int, int]]) -> None:
        """Record (seconds since the epoch, segment) of last uses."""
        self._writing.executemany("UPDATE segments SET used_at = ? WHERE id = ?", uses)

    def pin(self, owner: int, digests: Iterable[bytes]) -> None:
        """Replace the pins of a process by these."""
        self._writing.execute("DELETE FROM pins WHERE owner = ?", (owner,))
        rows = ((owner, digest) for digest in digests)
        self._writing.executemany("INSERT INTO pins VALUES (?, ?)", rows)

    # Looking -----------------------------------------------------------------------------------

    def find(self, key: bytes) -> Row | None:
        """Return the row of a segment."""
        rows = self._select(f"{_ROWS} WHERE key = ?", key)
        return Row(*rows[0]) if rows else None

    def ids(self) -> set[int]:
        """Return all segments."""
        return {segment for (segment,) in self._select("SELECT id FROM segments")}

    def exists(self, segment: int) -> bool:
        """Return whether a segment is in the ledger, without waiting for writers."""
        query = "SELECT 1 FROM segments WHERE id = ?"
        with self._reading_lock:
            return self._reading.execute(query, (segment,)).fetchone() is not None

    def pieces(self, segment: int) -> list[Piece]:
        """Return what is valid of a segment, in order, without waiting for writers."""
        with self._reading_lock:
            return self._reading.execute(_PIECES, (segment,)).fetchall()

    def pieces_now(self, segment: int) -> list[Piece]:
        """Return what is valid of a segment as of the transaction under way."""
        return self._select(_PIECES, segment)

    def pinned(self, but: int) -> set[bytes]:
        """Return what processes other than `but` pin."""
        rows = self._select("SELECT digest FROM pins WHERE owner <> ?", but)
        return {digest for (digest,) in rows}

    def changes(self, since: int) -> Changes:
        """Return what happened after the change `since`; -1 for everything."""
        with self.lock:
            ((until,),) = self._select("SELECT changes FROM totals")
            if since < 0 or since < until - _TOMBSTONES:
                return Changes(until, list(map(Row._make, self._select(_ROWS))), None)
            rows = list(map(Row._make, self._select(f"{_ROWS} WHERE changed > ?", since)))
            gone = self._select("SELECT segment FROM gone WHERE changed > ?", since)
            return Changes(until, rows, [segment for (segment,) in gone])

    def count(self) -> tuple[int, int]:
        """Return how many entries and how many segments there are."""
        query = "SELECT count(DISTINCT substr(key, 1, 16)), count(*) FROM segments"
        with self._reading_lock:
            entries, segments = self._reading.execute(query).fetchone()
        return int(entries), int(segments)

    def _select(self, query: str, *values: int | bytes) -> list[Any]:
        with self.lock:
            return self._writing.execute(query, values).fetchall()

    def _change(self) -> int:
        update = "UPDATE totals SET changes = changes + 1 RETURNING changes"
        return int(self._writing.execute(update).fetchone()[0])


def _tables(connection: sqlite3.Connection) -> set[tuple[str, str | None]]:
    """Return what a database consists of: names, and the SQL that made them."""
    return set(connection.execute("SELECT name, sql FROM sqlite_master"))


@cache
def _expected_tables() -> set[tuple[str, str | None]]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(_SCHEMA)
        return _tables(connection)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {_CHECKPOINT_PAGES * 4096}")
    except BaseException:
        connection.close()
        raise
    return connection
