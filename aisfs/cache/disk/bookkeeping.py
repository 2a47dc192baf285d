"""Keeps the ledger, the files and the memory of one process in agreement.

Segments are opened, verified, recorded and removed here, so that all three change together.
"""

import errno
import logging
import sqlite3
from collections.abc import Iterable

from aisfs.cache.disk.directory import CacheDirectory
from aisfs.cache.disk.format import HEADER, Damaged
from aisfs.cache.disk.ledger import Ledger, Row
from aisfs.cache.disk.resident import Health, ResidentSet
from aisfs.cache.disk.segment_file import SegmentFile
from aisfs.cache.disk.segments import Segment, booked_bytes
from aisfs.model import ByteRange

logger = logging.getLogger(__name__)

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
