"""The part of the cache that is in memory: what a hit needs, and what decides on evictions.

One lock guards all of it. It is held for microseconds only, never around a system call. To use the
ledger as well, take the ledger's lock first: segments are added and forgotten under both.

Segments are opened, verified, recorded and removed by `Bookkeeper`, so that ledger, files and memory change together.
To verify all contents takes as long as the disk needs, so that belongs on a worker thread.
"""

import contextlib
import errno
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aisfs.cache.directory import HEADER, SEGMENT, CacheDirectory, Damaged, EntryId
from aisfs.cache.ledger import Ledger, Row
from aisfs.cache.segments import OpenFiles, Segment, SegmentFile, booked_bytes, sums_of
from aisfs.core.policy.admission import Admission
from aisfs.model import ByteRange, Hasher, pieces
from aisfs.system.locks import Rank, ranked_lock

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 30.0
"""How long nothing is admitted after the disk was full or failed."""
_UNLIMITED = 1 << 62
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Health:
    """The state of the disk: in use, bypassed for a while, or given up."""

    def __init__(self) -> None:
        self.broken = False
        """This process cannot use the ledger any more."""
        self._paused_until = 0.0

    @property
    def admits(self) -> bool:
        """Return whether writing is worth a try."""
        return not self.broken and time.monotonic() >= self._paused_until

    def trouble(self, error: Exception) -> None:
        """Stop admitting after a failure, for a while or for good; logs once."""
        news = self.admits
        self._paused_until = time.monotonic() + PAUSE_SECONDS  # before threads that fail meanwhile
        full = isinstance(error, OSError) and error.errno in _FULL
        operational = isinstance(error, sqlite3.OperationalError)
        # The database as such is fine, but has lost a table: that does not pass either.
        lost = operational and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR
        if isinstance(error, sqlite3.Error) and (lost or not operational):
            self.fail(f"its ledger is damaged or cannot be read ({error})")
        elif news:
            reason = "the disk is full" if full else str(error)
            logger.warning("cache bypassed for %d s: %s", PAUSE_SECONDS, reason)

    def fail(self, reason: str) -> None:
        """Stop using the cache until the next start; logs once."""
        if not self.broken:
            logger.warning("cache not used until the next start: %s", reason)
        self.broken = True


class ResidentSet:
    """The segments this process knows, the open files, and admission."""

    def __init__(self) -> None:
        self.lock = ranked_lock(Rank.CACHE_SEGMENTS)
        self.segments: dict[bytes, Segment] = {}
        self.by_id: dict[int, Segment] = {}
        self.files = OpenFiles()
        self.admission: Admission[bytes] = Admission(0)
        self.free = 0
        """Granted bytes that no segment owes; below zero until the ledger grants the rest."""
        self.leased: set[Segment] = set()
        """Segments that this process is a writer of."""
        self.dirty: set[Segment] = set()
        """Segments with something to record in the ledger."""
        self.touched: set[Segment] = set()
        self.pins: Counter[bytes] = Counter()
        """Pins of this process by the digest of the entry."""
        self.foreign_pins: set[bytes] = set()
        self.hits = self.misses = self.evictions = self.rejected = 0
        self.losses = 0
        """Segments forgotten, for whatever reason."""

    def hit(self, entry: EntryId, wanted: ByteRange) -> memoryview | None:
        """Return bytes that are mapped and verified already, for the kernel to copy.

        Touching them in this process is fatal (SIGBUS) if the file was cut or the disk fails; use
        `copied` for that. The kernel fails with EFAULT instead: see `distrust`.
        """
        file = self._hit_file(entry, wanted)
        if file is None:
            return None
        return file.view[wanted.start - file.base : wanted.stop - file.base]

    def copied(
        self, entry: EntryId, wanted: ByteRange, room: memoryview | None = None
    ) -> memoryview | None:
        """Return a copy of what `hit` would return, in `room` if that is given."""
        file = self._hit_file(entry, wanted)
        if file is None:
            return None
        if room is None:
            room = memoryview(bytearray(len(wanted)))
        with contextlib.suppress(OSError):  # `Bookkeeper.verify` gets the same error and handles it
            if file.read_into(wanted.start, room):
                return room
        self.distrust(file.view)
        return None

    def will_need(self, entry: EntryId, wanted: ByteRange) -> bool:
        """Have the kernel read what `hit` would return, so that it need not wait for the disk then.

        Returns:
            Whether `hit` would return it. This is not counted as a use.
        """
        if not wanted:  # which the kernel takes for all that follows
            return False
        with self.lock:
            segment = self.segments.get(entry.key(wanted.start // SEGMENT))
            there = segment is not None and segment.verified.covers(wanted)
            file = segment.file if segment is not None and there else None
        if file is not None:
            with contextlib.suppress(OSError):  # a read of them gets the same error
                file.will_need(wanted)
        return file is not None

    def distrust(self, data: bytes | bytearray | memoryview) -> None:
        """Verify the file that `data` is a view of again before its next use: reading it failed."""
        mapping = memoryview(data).obj
        with self.lock:
            for segment, file in list(self.files):
                if file.view.obj is mapping:
                    self.files.drop(segment)
                    segment.distrust()

    def _hit_file(self, entry: EntryId, wanted: ByteRange) -> SegmentFile | None:
        file = self._open_file(entry, wanted)
        if file is None or file.seems_intact():
            return file
        if file.write_error() is None:  # else `Bookkeeper.verify` needs this file, and drops it
            self.distrust(file.view)
        return None

    def _open_file(self, entry: EntryId, wanted: ByteRange) -> SegmentFile | None:
        with self.lock:
            segment = self.segments.get(entry.key(wanted.start // SEGMENT))
            if segment is None:
                return None
            file = segment.file
            if file is None or not segment.verified.covers(wanted):
                return None
            self.hits += 1
            self.files.use(segment)
            self.touched.add(segment)
            length = entry.segment_length(segment.key)
            self.admission.request(segment.key, len(wanted), whole=length)
            return file

    def requested(self, entry: EntryId, wanted: ByteRange, *, found: bool) -> None:
        """Count a read that was not a plain hit."""
        with self.lock:
            if found:
                self.hits += 1
            else:
                self.misses += 1
            for key, part in entry.parts(wanted):
                self.admission.request(key, len(part), whole=entry.segment_length(key))
                segment = self.segments.get(key)
                if segment is not None and found:
                    self.touched.add(segment)

    # Adding and forgetting; the caller holds the lock -------------------------------------------------

    def restore(self, rows: Iterable[Row], limit: int) -> list[Segment]:
        """Start with what the ledger knows; return the segments that the limit has no room for."""
        self.admission.limit = limit
        residents = []
        position = 0
        for row in sorted(rows, key=lambda row: row.used_at):
            position += row.bytes  # as if each had been used once, in this order
            residents.append((row.key, row.bytes, position))
            self.add(Segment(row))
        return [self.segments[key] for key in self.admission.restore(residents)]

    def add(self, segment: Segment) -> None:
        """Add a segment that admission has already."""
        self.segments[segment.key] = segment
        self.by_id[segment.id] = segment

    def adopt(self, segment: Segment) -> None:
        """Add a segment that is on the disk, whatever admission would decide."""
        self.add(segment)
        limit, self.admission.limit = self.admission.limit, _UNLIMITED
        self.admission.admit(segment.key, segment.bytes + segment.owed)
        self.admission.limit = limit
        self.pin_if_wanted(segment)

    def resize(self, segment: Segment) -> None:
        """Update what a segment takes in admission."""
        self.admission.resize(segment.key, segment.bytes + segment.owed)

    def promise(self, segment: Segment, cost: int) -> None:
        """Set bytes of the grant aside for a reservation, and keep its segment; `end` undoes it."""
        segment.promised += cost
        self.free -= cost
        self.admission.pin(segment.key)

    def end(self, segment: Segment, cost: int, *, spent: bool) -> None:
        """Take a promise back; what was spent is returned when the ledger has booked the file."""
        segment.promised -= cost
        if spent:
            segment.spent += cost
            self.dirty.add(segment)
        else:
            self.free += cost
        self.admission.unpin(segment.key)
        self.resize(segment)

    def forget(self, segment: Segment) -> None:
        """Forget a segment; what it owed of the grant is free again."""
        if segment.gone:
            return
        segment.gone = True
        self.losses += 1
        self.free += segment.owed
        self.files.drop(segment)
        self.leased.discard(segment)
        self.dirty.discard(segment)
        self.touched.discard(segment)
        del self.segments[segment.key], self.by_id[segment.id]
        self.admission.evicted(segment.key)

    def forget_all(self) -> None:
        """Forget all segments, and close files that are not in use. The caller holds no lock."""
        with self.lock:
            for segment in list(self.segments.values()):
                self.forget(segment)

    # Pins; the caller holds the lock ---------------------------------------------------------------

    def pin_if_wanted(self, segment: Segment) -> None:
        """Pin or unpin a segment as its entry is."""
        digest = segment.key[:-4]
        wanted = self.pins[digest] > 0 or digest in self.foreign_pins
        if wanted == segment.pinned or segment.key not in self.admission:
            return
        segment.pinned = wanted
        if wanted:
            self.admission.pin(segment.key)
        else:
            self.admission.unpin(segment.key)

    def pin(self, entry: EntryId, change: int) -> None:
        """Add pins to an entry, or take them back."""
        self.pins[entry.digest] += change
        if self.pins[entry.digest] <= 0:
            del self.pins[entry.digest]
        for key, _ in entry.parts(ByteRange(0, entry.size)):
            segment = self.segments.get(key)
            if segment is not None:
                self.pin_if_wanted(segment)

    def set_foreign_pins(self, pinned: set[bytes]) -> None:
        """Replace what other processes pin."""
        changed = self.foreign_pins ^ pinned
        if not changed:
            return
        self.foreign_pins = pinned
        for segment in self.segments.values():
            if segment.key[:-4] in changed:
                self.pin_if_wanted(segment)


MARGIN = 1024 * 1024
"""Kept free, besides a 256th of the limit, for what grows between two measurements: the ledger, its
WAL, directories."""
_VICTIMS = 32
"""Removed in one transaction: bounds the WAL, as each may touch a dozen pages of the ledger."""
_BATCH_PIECES = 64
_BATCH_BYTES = 4 * 1024 * 1024
"""What is published but not recorded, at most and for a second at most: what `kill -9` loses. To
record takes some 50 µs, and to write a piece of 4 MiB some milliseconds."""


class Bookkeeper:
    """The accounts of one process, which is the owner `owner` in the ledger."""

    def __init__(
        self,
        resident: ResidentSet,
        ledger: Ledger,
        directory: CacheDirectory,
        health: Health,
        owner: int,
    ) -> None:
        """Keep these in agreement."""
        self.resident = resident
        self.ledger = ledger
        self.directory = directory
        self.health = health
        self.owner = owner
        self.seen = -1
        """The last change of the ledger that this process has learned."""
        self.limit = 0
        """The limit as of the last `room`."""
        self._unrecorded_pieces = 0
        self._unrecorded_bytes = 0

    def room(self) -> int:
        """Return the bytes that can still be granted, and update the limit of admission."""
        limit = self.limit = self.ledger.limit()
        booked, granted = self.ledger.used()
        usable = limit - MARGIN - limit // 256 - self.directory.overhead()
        others = granted - self.ledger.granted(self.owner)
        with self.resident.lock:
            self.resident.admission.limit = max(0, usable - others)
        return usable - booked - granted

    # Opening and removing ----------------------------------------------------------------------

    def open(self, segment: Segment) -> SegmentFile:
        """Open the file of a segment and check that it is its file.

        Raises:
            Damaged: it was removed or damaged or cannot be read, and is forgotten now.
            OSError, sqlite3.Error: the disk fails.
        """
        files = self.resident.files
        with self.resident.lock:
            if segment.file is not None:
                files.use(segment)
                return segment.file
        try:
            file = SegmentFile.open(self.directory.open_segment(segment.id), segment.key)
        except FileNotFoundError:
            raise self.drop(segment, "missing") from None
        except Damaged as error:
            raise self.drop(segment, str(error)) from None
        except OSError as error:
            if error.errno == errno.EIO:
                raise self.drop(segment, error) from None
            raise
        with self.resident.lock:
            if not segment.gone:
                files.put(segment, file)
        return file

    def load(self, segment: Segment) -> None:
        """Load what is valid of a segment from the ledger.

        Raises:
            Damaged: the record makes no sense; the segment is forgotten now.
            sqlite3.Error: the disk fails.
        """
        pieces = self.ledger.pieces(segment.id)
        try:
            with self.resident.lock:
                segment.load(pieces)
        except (ValueError, TypeError):
            raise self.drop(segment, "its record makes no sense") from None

    def verify(self, segment: Segment, file: SegmentFile, wanted: ByteRange) -> None:
        """Verify what this process has not verified yet of a valid range.

        Raises:
            Damaged: its checksum is wrong, or it cannot be read; the segment is forgotten now.
        """
        lost = None if file.seems_intact() else file.write_error()
        if lost is not None:
            raise self.drop(segment, lost)
        with self.resident.lock:
            steps = segment.unverified(wanted)
        for start, stop, checksum in steps:
            try:
                found = file.sum_up(start, stop)
            except OSError as error:
                raise self.drop(segment, error) from None
            if found != checksum:
                raise self.drop(
                    segment, f"bytes {start} to {stop} of the object are not as written"
                )
            with self.resident.lock:
                segment.verified.add(ByteRange(start, stop))
        with self.resident.lock:
            complete = segment.verified.covers(wanted)
        if not complete:
            raise self.drop(segment, "checksums are missing")

    def drop(self, segment: Segment, reason: str | OSError) -> Damaged:
        """Remove a damaged segment, and log it unless another process has removed it before.

        An error of the disk is logged once for all segments. Each is dropped nevertheless: if only a
        sector is bad, the file that replaces it lies elsewhere.
        """
        with self.ledger.lock:
            if isinstance(reason, OSError):
                self.health.trouble(reason)
            elif not segment.gone and self.ledger.exists(segment.id):
                path = self.directory.path(segment.id)
                logger.warning("dropped from the cache: %s is damaged: %s", path, reason)
            self.remove([segment])
        return Damaged(str(reason))

    def remove(self, segments: list[Segment]) -> None:
        """Remove segments: the files, in the ledger and in memory.

        Raises:
            sqlite3.Error: they are forgotten, but still in the ledger.
        """
        with self.ledger.lock:
            for first in range(0, len(segments), _VICTIMS):
                some = segments[first : first + _VICTIMS]
                with self.resident.lock:
                    for segment in some:
                        self.resident.forget(segment)  # unmapped, it makes room for the ledger
                try:
                    with self.ledger.transaction():
                        for segment in some:
                            self.directory.unlink(segment.id)
                            self.ledger.remove(segment.id)
                except BaseException:
                    self.seen = -1  # `pull` finds what the ledger still has
                    raise

    def remove_empty(self, segments: Iterable[Segment]) -> None:
        """Remove those segments that are empty and that no process is writing to.

        Raises:
            OSError, sqlite3.Error: the disk fails.
        """
        ledger = self.ledger
        with ledger.lock:
            with self.resident.lock:
                empty = [segment for segment in segments if segment.empty]
            for segment in empty:
                row = ledger.find(segment.key)
                if row is None or (not row.pieces and ledger.writers_of(row.id) <= {self.owner}):
                    self.remove([segment])

    # Recording and learning ---------------------------------------------------------------------

    def on_published(self, length: int) -> None:
        """Count a published piece, and record if the batch is full."""
        with self.resident.lock:
            self._unrecorded_pieces += 1
            self._unrecorded_bytes += length
            few = self._unrecorded_pieces < _BATCH_PIECES
            if few and self._unrecorded_bytes < _BATCH_BYTES:
                return
        try:
            self.record()
        except (OSError, sqlite3.Error) as error:
            self.health.trouble(error)

    def record(self) -> None:
        """Record in the ledger what was published and written.

        Raises:
            sqlite3.Error: that is not possible now; nothing is lost yet.
        """
        resident = self.resident
        with self.ledger.lock:
            with resident.lock:
                dirty = [segment for segment in resident.dirty if segment.leased]
                batch = [
                    (each, each.spent, HEADER + each.valid.total, list(each.pending))
                    for each in dirty
                ]
                resident.dirty.clear()
                self._unrecorded_pieces = self._unrecorded_bytes = 0
            batch = [item for item in batch if item[1] or item[3]]
            if not batch:
                return
            booked: list[int | None] = []
            try:
                with self.ledger.transaction():
                    for segment, spent, valid, pieces in batch:
                        taken = 0
                        if spent:  # some file systems count blocks only seconds later
                            taken = booked_bytes(max(valid, self.directory.taken_by(segment.id)))
                        booked.append(self.ledger.book(segment.id, taken, pieces))
                    self.ledger.grant(self.owner, -sum(item[1] for item in batch))
            except BaseException:
                with resident.lock:
                    resident.dirty.update(item[0] for item in batch if not item[0].gone)
                raise
            with resident.lock:
                for (segment, spent, _, pieces), size in zip(batch, booked, strict=True):
                    segment.spent -= spent
                    if size is None:
                        resident.forget(segment)
                        continue
                    segment.bytes = size
                    segment.pieces += len(pieces)
                    del segment.pending[: len(pieces)]
                    segment.idle = False
                    resident.resize(segment)

    def pull(self) -> None:
        """Learn from the ledger what other processes did.

        Raises:
            sqlite3.Error: the disk fails.
        """
        with self.ledger.lock:
            changes = self.ledger.changes(self.seen)
            pinned = self.ledger.pinned(self.owner)
            with self.resident.lock:
                gone = changes.gone
                if gone is None:
                    gone = list(self.resident.by_id.keys() - {row.id for row in changes.rows})
                for identity in gone:
                    segment = self.resident.by_id.get(identity)
                    if segment is not None:
                        self.resident.forget(segment)
                for row in changes.rows:
                    self._learn(row)
                self.resident.set_foreign_pins(pinned)
            self.seen = changes.until
            self.room()

    def _learn(self, row: Row) -> None:
        resident = self.resident
        segment = resident.segments.get(row.key)
        if segment is not None and segment.id != row.id:
            resident.forget(segment)
            segment = None
        if segment is None:
            resident.adopt(Segment(row))
            return
        if segment.pieces != row.pieces:
            segment.pieces = row.pieces
            segment.stale = True
        segment.bytes = row.bytes
        resident.resize(segment)


_CHUNK = 1024 * 1024


Progress = Callable[[int, int], None]
"""Called with the bytes that are done, and the total."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `verify_all` found."""

    segments: int
    bytes: int
    """Verified bytes of objects."""
    damaged: int
    """Segments that were dropped."""
    unknown: int
    """Segments that could not be read, or not be dropped."""


def verify_object(
    bookkeeper: Bookkeeper, entry: EntryId, computed: str | None, hasher: Hasher
) -> bool:
    """Compare a complete entry with the checksum from AIStore; drop it if they differ.

    Args:
        bookkeeper: Has the entry.
        entry: What to verify.
        computed: The checksum of the bytes as they came; None reads them from the disk.
        hasher: Computes that checksum.

    Returns:
        False if they differ; True also if it turns out to be damaged, and is not complete any more,
        or if the disk fails.
    """
    keys = [key for key, _ in entry.parts(ByteRange(0, entry.size))]
    segments = [each for each in map(bookkeeper.resident.segments.get, keys) if each is not None]
    try:
        if computed is None:
            for segment in segments:
                file = bookkeeper.open(segment)
                stop = min(segment.start + SEGMENT, entry.size)
                for chunk in pieces(ByteRange(segment.start, stop), _CHUNK):
                    hasher.update(file.read(chunk.start, chunk.stop))
            computed = hasher.hexdigest()
        if computed == entry.checksum.partition(":")[2].lower():
            return True
        bookkeeper.remove(segments)
    except Damaged:
        return True
    except (OSError, sqlite3.Error) as error:
        bookkeeper.health.trouble(error)
        return computed is None
    return False


def verify_all(bookkeeper: Bookkeeper, progress: Progress | None = None) -> CheckReport:
    """Read everything and drop what is damaged."""
    with bookkeeper.resident.lock:
        segments = list(bookkeeper.resident.segments.values())
    total = sum(segment.bytes for segment in segments)
    done = verified = damaged = unknown = 0
    for place, segment in enumerate(segments):
        if bookkeeper.health.broken:
            unknown += len(segments) - place
            break
        try:
            file = bookkeeper.open(segment)
            for start, stop, sums in bookkeeper.ledger.pieces(segment.id):
                try:
                    found = sums_of(file, ByteRange(start, stop))
                except OSError as error:
                    raise bookkeeper.drop(segment, error) from None
                if found != sums:
                    raise bookkeeper.drop(segment, f"bytes {start} to {stop} have changed")
                verified += stop - start
        except Damaged:
            damaged += 1
        except (OSError, sqlite3.Error) as error:
            unknown += 1
            bookkeeper.health.trouble(error)
        done += segment.bytes
        if progress is not None:
            progress(done, total)
    return CheckReport(len(segments), verified, damaged, unknown)
