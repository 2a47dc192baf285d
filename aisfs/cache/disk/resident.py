"""The part of the cache that is in memory: what a hit needs, and what decides on evictions.

One lock guards all of it. It is held for microseconds only, never around a system call. To use the
ledger as well, take the ledger's lock first: segments are added and forgotten under both.
"""

import contextlib
import errno
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable

from aisfs.cache.disk.format import SEGMENT, EntryId
from aisfs.cache.disk.ledger import Row
from aisfs.cache.disk.segment_file import SegmentFile
from aisfs.cache.disk.segments import OpenFiles, Segment
from aisfs.core.policy.admission import Admission
from aisfs.model import ByteRange
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

    def will_need(self, entry: EntryId, wanted: ByteRange) -> None:
        """Have the kernel read what `hit` would return, so that it need not wait for the disk then."""
        if not wanted:  # which the kernel takes for all that follows
            return
        with self.lock:
            segment = self.segments.get(entry.key(wanted.start // SEGMENT))
            there = segment is not None and segment.verified.covers(wanted)
            file = segment.file if segment is not None and there else None
        if file is not None:
            with contextlib.suppress(OSError):  # whoever reads them gets the same error
                file.will_need(wanted)

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
