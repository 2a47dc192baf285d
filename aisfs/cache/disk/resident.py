"""The part of the cache that is in memory: what a hit needs and what decides who stays.

One lock guards all of it and is held for microseconds only, never around a call of the system. Who
needs the ledger as well takes the ledger's lock first. Segments come and go under both.
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
from aisfs.process.locks import Rank, ranked_lock

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 30.0
"""How long nothing is admitted after the disk was full or failed."""
_UNLIMITED = 1 << 62
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Health:
    """Whether the disk takes what the cache writes."""

    def __init__(self) -> None:
        self.broken = False
        """The ledger cannot be used any more by this process."""
        self._paused_until = 0.0

    @property
    def admits(self) -> bool:
        """Say whether it is worth trying."""
        return not self.broken and time.monotonic() >= self._paused_until

    def trouble(self, error: Exception) -> None:
        """Take note of a failure and stop admitting, for a while or for good; logs once."""
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
        """Granted bytes that no segment owes; below zero while a grant is on its way."""
        self.leased: set[Segment] = set()
        """Segments that this process is a writer of."""
        self.dirty: set[Segment] = set()
        """Segments with something the ledger does not know."""
        self.touched: set[Segment] = set()
        self.pins: Counter[bytes] = Counter()
        """Pins of this process by the digest of the entry."""
        self.foreign_pins: set[bytes] = set()
        self.hits = self.misses = self.evictions = self.rejected = 0
        self.losses = 0
        """Segments that left, for whatever reason."""

    def hit(self, entry: EntryId, wanted: ByteRange) -> memoryview | None:
        """Return bytes that are mapped and verified already, for the kernel to copy.

        Whoever touches them in this process is killed (SIGBUS) should the file have been cut or the
        disk fail: that is what `copied` is for. The kernel answers EFAULT instead; see `distrust`.
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
        with contextlib.suppress(OSError):  # `Bookkeeper.verify` meets it again, and deals with it
            if file.read_into(wanted.start, room):
                return room
        self.distrust(file.view)
        return None

    def distrust(self, data: bytes | bytearray | memoryview) -> None:
        """Have the file that `data` is a view of verified anew: its bytes could not be read."""
        mapping = memoryview(data).obj
        with self.lock:
            for segment, file in list(self.files):
                if file.view.obj is mapping:
                    self.files.drop(segment)
                    segment.distrust()

    def _hit_file(self, entry: EntryId, wanted: ByteRange) -> SegmentFile | None:
        file = self._open_file(entry, wanted)
        if file is None or file.seems_whole():
            return file
        if file.write_error() is None:
            self.distrust(file.view)
        return (
            None  # what was lost `Bookkeeper.verify` drops, who needs the file that was told of it
        )

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
            length = wanted.stop - wanted.start
            whole = min(SEGMENT, entry.size - segment.start)
            self.admission.request(segment.key, length, whole=whole)
            return file

    def requested(self, entry: EntryId, wanted: ByteRange, *, found: bool) -> None:
        """Count a read that was not a plain hit."""
        with self.lock:
            if found:
                self.hits += 1
            else:
                self.misses += 1
            for number in entry.numbers(wanted):
                start = number * SEGMENT
                stop = min(start + SEGMENT, entry.size)
                length = min(wanted.stop, stop) - max(wanted.start, start)
                self.admission.request(entry.key(number), length, whole=stop - start)
                segment = self.segments.get(entry.key(number))
                if segment is not None and found:
                    self.touched.add(segment)

    # Coming and going; the caller holds the lock -------------------------------------------------

    def restore(self, rows: Iterable[Row], limit: int) -> list[Segment]:
        """Know what was there at the start; gives those for which the limit has no room."""
        self.admission.limit = limit
        residents = []
        position = 0
        for row in sorted(rows, key=lambda row: row.used_at):
            position += row.bytes  # as if each had been used once, in this order
            residents.append((row.key, row.bytes, position))
            self.add(Segment(row))
        return [self.segments[key] for key in self.admission.restore(residents)]

    def add(self, segment: Segment) -> None:
        """Know a segment that admission knows."""
        self.segments[segment.key] = segment
        self.by_id[segment.id] = segment

    def adopt(self, segment: Segment) -> None:
        """Know a segment that is on the disk, whatever admission thinks of it."""
        self.add(segment)
        limit, self.admission.limit = self.admission.limit, _UNLIMITED
        self.admission.admit(segment.key, segment.bytes + segment.owed)
        self.admission.limit = limit
        self.pin_if_wanted(segment)

    def resize(self, segment: Segment) -> None:
        """Tell admission what a segment takes now."""
        self.admission.resize(segment.key, segment.bytes + segment.owed)

    def forget(self, segment: Segment) -> None:
        """Know a segment no more; what it owed of the grant is free again."""
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
        """Know nothing more; files that nobody looks at are closed. The caller holds no lock."""
        with self.lock:
            for segment in list(self.segments.values()):
                self.forget(segment)

    # Pins; the caller holds the lock ---------------------------------------------------------------

    def pin_if_wanted(self, segment: Segment) -> None:
        """Bring the pin of a segment in line with those of its entry."""
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
        for number in entry.numbers(ByteRange(0, entry.size)):
            segment = self.segments.get(entry.key(number))
            if segment is not None:
                self.pin_if_wanted(segment)

    def set_foreign_pins(self, pinned: set[bytes]) -> None:
        """Know what other processes pin."""
        changed = self.foreign_pins ^ pinned
        if not changed:
            return
        self.foreign_pins = pinned
        for segment in self.segments.values():
            if segment.key[:-4] in changed:
                self.pin_if_wanted(segment)
