"""The cache on the local disk, as the engine uses it: bytes of object versions that survive a restart.

Guarantees (invariants I3 and I9)
- The directory never takes more of the disk than the limit, with any number of processes: the
  ledger grants room before a byte is written. The smallest limit of the living processes holds.
- Nothing here makes a read fail. If the disk is full or failing, bytes are not kept; if a file or the
  ledger is damaged, its bytes count as not found. Either is logged once.
- A process that is killed leaves only unpublished pages behind, which the next one returns.

    hit            a view of bytes in a mapped file, for the kernel only
    copied, read   a copy of them, for everything else: touching a view of a truncated file is fatal
    reserve        room for bytes that are to be fetched, or None: fetch them, but do not keep them
    sync           once a second: exchange news with other processes

`hit` and `copied` answer within microseconds on the caller's thread. Everything else may wait for the
disk and belongs on a worker thread. None of it may be used after a fork.
"""

import contextlib
import logging
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from aisfs.cache.directory import CacheDirectory, Damaged, EntryId, boot_id
from aisfs.cache.ledger import Ledger
from aisfs.cache.maintenance import Maintenance
from aisfs.cache.resident import (
    Bookkeeper,
    CheckReport,
    Health,
    Progress,
    ResidentSet,
    verify_all,
    verify_object,
)
from aisfs.cache.space import Reservation, SpaceReserver
from aisfs.errors import ConfigError
from aisfs.model import ByteRange, RangeSet, hasher_for_cache
from aisfs.system.threads import any_thread

logger = logging.getLogger(__name__)

LEAST = 4 * 1024 * 1024
"""Smallest limit: the ledger and the margin take half of it."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """What is in the cache, from all processes."""

    limit: int
    used: int
    """Bytes on disk: files, the ledger, and the room that processes were granted."""
    entries: int
    """Versions of objects."""
    segments: int


@dataclass(frozen=True, slots=True)
class Counts:
    """What this process can count without the ledger."""

    used: int
    """Bytes of segments, as of the last `sync`."""
    hits: int
    misses: int
    evictions: int
    rejected: int
    """Reservations that were refused."""


@any_thread
class BlockCache:
    """The cache in one directory, as one process uses it."""

    def __init__(
        self, bookkeeper: Bookkeeper, maintenance: Maintenance, token: str, descriptor: int
    ) -> None:
        """Called by `open`."""
        self._bookkeeper = bookkeeper
        self._resident = bookkeeper.resident
        self._health = bookkeeper.health
        self._reserver = SpaceReserver(bookkeeper)
        self._maintenance = maintenance
        self._token = token
        self._descriptor = descriptor
        self._open = True
        self.hit = bookkeeper.resident.hit
        """`hit(entry, wanted)`: a view of bytes that are mapped and verified, counted as a use, or
        None. Never blocks. `wanted` must not reach beyond the object."""
        self.copied = bookkeeper.resident.copied
        """`copied(entry, wanted)`: a copy of what `hit` returns, or None. Never blocks."""
        self.will_need = bookkeeper.resident.will_need
        """`will_need(entry, wanted)`: `hit` will be asked for this; returns whether it is there. Never blocks."""
        self.distrust = bookkeeper.resident.distrust
        """`distrust(view)`: the kernel could not read a view from `hit`. Never blocks."""

    @classmethod
    def open(cls, directory: Path, limit: int | None) -> Self:
        """Open `directory` with a limit in bytes; without one, only to inspect it.

        Raises:
            ConfigError: the directory or the limit cannot be used; the message names it.
        """
        if limit is not None and limit < LEAST:
            raise ConfigError(f"a cache of {limit} bytes is too small: {LEAST} at least")
        place = CacheDirectory(directory)
        with place.opening():
            try:
                place.sweep_discarded()
                place.create()
                try:
                    return cls._start(place, limit)
                except sqlite3.OperationalError:
                    raise
                except (sqlite3.DatabaseError, TypeError, ValueError) as error:
                    logger.warning("cache %s starts empty: its ledger is bad: %s", directory, error)
                    place.discard()
                    return cls._start(place, limit)
            except (OSError, sqlite3.Error) as error:
                raise ConfigError(f"cache directory {directory} cannot be used: {error}") from error

    @classmethod
    def _start(cls, place: CacheDirectory, limit: int | None) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(place.close)
            ledger = stack.enter_context(contextlib.closing(Ledger.open(place.ledger, boot_id())))
            token, descriptor = place.enter()
            stack.callback(place.leave, token, descriptor)
            with ledger.transaction():
                owner = ledger.enter(token, limit)
            bookkeeper = Bookkeeper(ResidentSet(), ledger, place, Health(), owner)
            maintenance = Maintenance(bookkeeper)
            if maintenance.reclaim():
                ledger.check()
            maintenance.sweep_files()
            changes = ledger.changes(-1)
            bookkeeper.seen = changes.until
            bookkeeper.room()
            room = bookkeeper.resident.admission.limit if limit is not None else 1 << 62
            with bookkeeper.resident.lock:
                surplus = bookkeeper.resident.restore(changes.rows, room)
            bookkeeper.remove(surplus)
            bookkeeper.pull()
            cache = cls(bookkeeper, maintenance, token, descriptor)
            stack.pop_all()
        return cache

    def close(self) -> None:
        """Record everything and return what is left of the grant. Views stay valid."""
        if not self._open:
            return
        self._open = False
        ledger = self._bookkeeper.ledger
        with ledger.lock:
            if not self._health.broken:
                try:
                    self._bookkeeper.record()
                    with ledger.transaction():
                        ledger.leave(self._bookkeeper.owner)
                except (OSError, sqlite3.Error) as error:
                    self._health.trouble(error)
            self._health.broken = True
            self._resident.forget_all()
            ledger.close()
        self._bookkeeper.directory.leave(self._token, self._descriptor)
        self._bookkeeper.directory.close()

    @property
    def limit(self) -> int:
        """Bytes the cache may take: the smallest limit of the processes that use it."""
        return self._bookkeeper.limit

    def __repr__(self) -> str:
        return f"<BlockCache {self._bookkeeper.directory.directory} {self._resident.admission!r}>"

    # Reading -----------------------------------------------------------------------------------

    def read(
        self, entry: EntryId, wanted: ByteRange, room: memoryview | None = None
    ) -> memoryview | None:
        """Return a copy of a range, cut at the end of the object, if all of it is here.

        Counts as a use. The copy is made in `room`, if that is given; it must be as long as the range.
        """
        wanted = ByteRange(wanted.start, min(wanted.stop, entry.size))
        if wanted.start >= wanted.stop:
            return memoryview(b"")
        if room is None:
            room = memoryview(bytearray(len(wanted)))
        if (
            len(entry.numbers(wanted)) == 1
            and self._resident.copied(entry, wanted, room) is not None
        ):
            return room
        found = all(
            self._read_part(key, part, room[part.start - wanted.start : part.stop - wanted.start])
            for key, part in entry.parts(wanted)
        )
        self._resident.requested(entry, wanted, found=found)
        return room if found else None

    def _read_part(self, key: bytes, wanted: ByteRange, room: memoryview) -> bool:
        segment = self._resident.segments.get(key)
        if segment is None or self._health.broken:
            return False
        try:
            if segment.stale:
                self._bookkeeper.load(segment)
            if not segment.valid.covers(wanted):
                return False
            file = self._bookkeeper.open(segment)
            self._bookkeeper.verify(segment, file, wanted)
            try:
                complete = file.read_into(wanted.start, room)
            except OSError as error:
                raise self._bookkeeper.drop(segment, error) from None
            if not complete:
                raise self._bookkeeper.drop(segment, f"{wanted} of the object is cut off")
        except Damaged:
            return False
        except (OSError, sqlite3.Error) as error:
            self._health.trouble(error)
            return False
        return True

    def missing(self, entry: EntryId, wanted: ByteRange) -> list[ByteRange]:
        """Return the parts of a range, cut at the end of the object, that are not here."""
        gaps = RangeSet()  # joins gaps that touch where segments meet
        for key, part in entry.parts(ByteRange(wanted.start, min(wanted.stop, entry.size))):
            segment = self._resident.segments.get(key)
            found = [part]
            if segment is not None and not self._health.broken:
                with contextlib.suppress(Damaged, sqlite3.Error):
                    if segment.stale:
                        self._bookkeeper.load(segment)
                    with self._resident.lock:
                        found = segment.valid.missing(part)
            for gap in found:
                gaps.add(gap)
        return list(gaps)

    # Filling -----------------------------------------------------------------------------------

    def reserve(
        self, entry: EntryId, wanted: ByteRange, *, urgent: bool = False
    ) -> Reservation | None:
        """Make room for a range that is about to be fetched; None if it is not to be kept.

        `urgent` is for bytes that are expensive to get again: they displace whatever was idle longest.

        Raises:
            ValueError: it is empty or reaches beyond the object.
        """
        if not 0 <= wanted.start < wanted.stop <= entry.size:
            raise ValueError(f"{wanted} is no part of {entry}")
        self._maintenance.sync_if_due()
        reservation = None
        if self._health.admits:
            try:
                reservation = self._reserver.reserve(entry, wanted, urgent=urgent)
            except (OSError, sqlite3.Error) as error:
                self._health.trouble(error)
        if reservation is None:
            with self._resident.lock:
                self._resident.rejected += 1
        return reservation

    def verify_object(self, entry: EntryId, computed: str | None = None) -> bool:
        """Compare a complete entry with the checksum from AIStore; drop it if they differ.

        Args:
            entry: What to verify.
            computed: The checksum of the bytes as they arrived; None reads them back from the disk.

        Returns:
            False if they differ; True also if the entry is not complete or has no usable checksum.
        """
        hasher = hasher_for_cache(entry.checksum)
        if hasher is None or self.missing(entry, ByteRange(0, entry.size)):
            return True
        return verify_object(self._bookkeeper, entry, computed, hasher)

    def drop(self, entry: EntryId) -> None:
        """Remove all segments of an entry."""
        with self._resident.lock:
            found = [s for s in self._resident.segments.values() if s.key.startswith(entry.digest)]
        try:
            self._bookkeeper.remove(found)
        except (OSError, sqlite3.Error) as error:
            self._health.trouble(error)

    def pin(self, entry: EntryId) -> None:
        """Keep an entry from being evicted until `unpin` is called as often.

        Other processes respect this from the next `sync` on.
        """
        with self._resident.lock:
            self._resident.pin(entry, 1)

    def unpin(self, entry: EntryId) -> None:
        """Take back one `pin`."""
        with self._resident.lock:
            self._resident.pin(entry, -1)

    # Maintenance -------------------------------------------------------------------------------

    def sync(self) -> None:
        """Record what happened here and learn what other processes did. To be called once a second.

        Closes files that other processes have evicted; until then, these still take space.
        """
        self._maintenance.sync()

    @property
    def losses(self) -> int:
        """How many segments this process has forgotten. Never blocks."""
        return self._resident.losses

    def counts(self) -> Counts:
        """Count without the ledger."""
        resident = self._resident
        with resident.lock:
            used = resident.admission.used
            done = (resident.hits, resident.misses, resident.evictions, resident.rejected)
        return Counts(used, *done)

    def statistics(self) -> Statistics:
        """Count what the ledger knows; zeros if it cannot be used."""
        ledger = self._bookkeeper.ledger
        if not self._health.broken:
            with contextlib.suppress(sqlite3.Error):
                used = sum(ledger.used()) + self._bookkeeper.directory.overhead()
                return Statistics(ledger.limit(), used, *ledger.count())
        return Statistics(0, 0, 0, 0)

    def check(self, progress: Progress | None = None) -> CheckReport:
        """Read everything and drop what is damaged."""
        self.sync()
        return verify_all(self._bookkeeper, progress)

    def clear(self) -> None:
        """Remove everything, even what this process or others have pinned or are writing.

        Raises:
            ConfigError: something could not be removed; the message names the directory.
        """
        with self._bookkeeper.ledger.lock:
            self.sync()
            try:
                self._bookkeeper.remove(list(self._resident.segments.values()))
            except (OSError, sqlite3.Error) as error:
                directory = self._bookkeeper.directory.directory
                raise ConfigError(
                    f"cache directory {directory} cannot be cleared: {error}"
                ) from error
