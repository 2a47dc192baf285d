"""Finds room for bytes that are about to be fetched: from the grant, from the ledger, by eviction.

A transaction of the ledger costs some 50 µs, so a process has a little more granted than it needs,
and most small reservations are paid from what is left. A reservation holds room for a range of an entry from then until
it is written or returned.
"""

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from aisfs.cache.directory import HEADER, SEGMENT, Damaged, EntryId
from aisfs.cache.ledger import Row
from aisfs.cache.resident import Bookkeeper
from aisfs.cache.segments import Segment, SegmentFile, part_bytes, sums_of, sums_of_bytes
from aisfs.model import ByteRange, RangeSet


@dataclass(slots=True)
class Part:
    """The share of one segment in a reservation."""

    segment: Segment
    range: ByteRange
    cost: int
    """Bytes of the grant it may use."""
    file: SegmentFile
    written: bool = False


class Reservation:
    """Room to write a range of an entry into. A context manager: leaving returns what is left.

    Threads may write and publish different parts of it at once. When the disk fails nothing is
    raised: `publish` returns False and the bytes are just not kept.
    """

    def __init__(self, wanted: ByteRange, bookkeeper: Bookkeeper) -> None:
        """Made by `SpaceReserver.reserve`, which adds the parts."""
        self.range = wanted
        self.parts: list[Part] = []
        self._bookkeeper = bookkeeper
        self._resident = bookkeeper.resident
        self._written = RangeSet()
        self._failed = False
        self._open = True

    def __repr__(self) -> str:
        state = "failed" if self._failed else "open" if self._open else "finished"
        return f"<Reservation {self.range} {self._written.total} bytes written, {state}>"

    @property
    def is_open(self) -> bool:
        """Whether it was not finished yet."""
        return self._open

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def _pieces(self, wanted: ByteRange) -> Iterator[tuple[Part, ByteRange]]:
        for part in self.parts:
            start, stop = max(wanted.start, part.range.start), min(wanted.stop, part.range.stop)
            if start < stop:
                yield part, ByteRange(start, stop)

    def write(
        self,
        offset: int,
        data: bytes | bytearray | memoryview,
        *,
        past_page_cache: bool = False,
    ) -> None:
        """Write bytes that start at `offset` of the object; readers see them once published.

        Args:
            offset: Where.
            data: What.
            past_page_cache: To the disk itself, which takes no memory and less processor time. For
                what will not be read from this cache soon; it should begin on a page in memory.

        Raises:
            ValueError: they are not within what was reserved, or it was finished.
        """
        stop = offset + len(data)
        if not self._open or offset < self.range.start or stop > self.range.stop:
            raise ValueError(f"[{offset}, {stop}) is not within {self!r}")
        view = memoryview(data)
        for part, piece in self._pieces(ByteRange(offset, stop)):
            with self._resident.lock:
                if part.segment.gone:
                    self._failed = True
                if self._failed or not self._open:
                    return
                part.written = True
            try:
                content = view[piece.start - offset : piece.stop - offset]
                part.file.write(piece.start, content, past_page_cache=past_page_cache)
            except OSError as error:
                self._failed = True
                self._bookkeeper.health.trouble(error)
                return
            with self._resident.lock:
                self._written.add(piece)

    def publish(self, published: ByteRange, data: memoryview | None = None) -> bool:
        """Publish a range that is completely written to readers; return False if the disk failed.

        Args:
            published: The range.
            data: Its bytes, where they are at hand: they need not be read back for their checksums.

        Raises:
            ValueError: it is not written.
        """
        with self._resident.lock:
            if not self._failed and not self._written.covers(published):
                raise ValueError(f"{published} is not written: {self!r}")
        if self._failed or not self._open:
            return False
        for part, piece in self._pieces(published):
            sums = None
            if data is None:
                try:
                    sums = sums_of(part.file, piece)
                except OSError as error:
                    self._bookkeeper.health.trouble(error)
            else:
                base = published.start
                sums = sums_of_bytes(piece, data[piece.start - base : piece.stop - base])
            with self._resident.lock:
                if sums is None or part.segment.gone:
                    self._failed = True
                    return False
                part.segment.publish(piece, sums)
                if part.segment.file is None:
                    self._resident.files.put(part.segment, part.file)
                self._resident.dirty.add(part.segment)
        self._bookkeeper.on_published(len(published))
        return True

    def finish(self) -> None:
        """Return what was not used; a second time does nothing."""
        with self._resident.lock:
            if not self._open:
                return
            self._open = False
            parts, self.parts = self.parts, []
            for part in parts:
                if not part.segment.gone:
                    self._resident.end(part.segment, part.cost, spent=part.written)
        if self._failed:
            try:
                self._bookkeeper.remove_empty(part.segment for part in parts)
            except (OSError, sqlite3.Error) as error:
                self._bookkeeper.health.trouble(error)

    def abandon(self) -> None:
        """Return everything, and remove files that were made for it."""
        self._failed = True
        self.finish()


QUANTUM = 1024 * 1024
"""Bytes granted in advance at most; it is less in small caches, which others share."""


class _Again(Exception):
    """Other processes changed the ledger meanwhile."""


class SpaceReserver:
    """Reserves room."""

    def __init__(self, bookkeeper: Bookkeeper) -> None:
        """Reserve through this bookkeeper."""
        self._bookkeeper = bookkeeper
        self._resident = bookkeeper.resident
        self._ledger = bookkeeper.ledger

    def reserve(self, entry: EntryId, wanted: ByteRange, *, urgent: bool) -> Reservation | None:
        """Reserve room for a range; None if it is not to be kept.

        Raises:
            OSError, sqlite3.Error: the disk fails.
        """
        reservation = Reservation(wanted, self._bookkeeper)
        try:
            for key, piece in entry.parts(wanted):
                part = self._pay_from_grant(key, piece)
                if part is None:
                    with self._ledger.lock:
                        part = self._reserve_part(entry, key, piece, urgent)
                if part is None:
                    reservation.abandon()
                    return None
                reservation.parts.append(part)
        except BaseException:
            reservation.abandon()
            raise
        return reservation

    def _pay_from_grant(self, key: bytes, piece: ByteRange) -> Part | None:
        """Reserve without the ledger; None if that is not possible."""
        resident = self._resident
        with resident.lock:
            segment = resident.segments.get(key)
            if segment is None or not segment.leased or segment.file is None:
                return None
            if key not in resident.admission:  # a victim about to be removed
                return None
            cost = part_bytes(piece)
            if cost > min(resident.free, resident.admission.limit - resident.admission.used):
                return None
            resident.admission.grow(key, cost)
            resident.promise(segment, cost)
            return Part(segment, piece, cost, segment.file)

    def _reserve_part(
        self, entry: EntryId, key: bytes, piece: ByteRange, urgent: bool
    ) -> Part | None:
        for _ in range(2):
            try:
                segment = self._resident.segments.get(key)
                if segment is None:
                    segment = Segment(Row(0, key, 0, 0, int(time.time())))
                    return self._admit(entry, segment, None, piece, urgent)
                file = self._bookkeeper.open(segment)
                if not segment.leased:
                    self._lease(segment)
                return self._admit(entry, segment, file, piece, urgent)
            except (_Again, Damaged):
                self._bookkeeper.pull()
        return None

    def _lease(self, segment: Segment) -> None:
        """Become a writer of a segment that is there."""
        ledger = self._ledger
        try:
            with ledger.transaction():
                row, _ = ledger.lease(self._bookkeeper.owner, segment.key, int(time.time()))
                if row.id != segment.id:
                    raise _Again  # removed by another process; also takes the new row back
                pieces = ledger.pieces_now(row.id)  # from now on no page can be given back
            with self._resident.lock:
                segment.load(pieces)
                segment.bytes, segment.pieces = row.bytes, row.pieces
                segment.leased = True
                self._resident.leased.add(segment)
                self._resident.resize(segment)
        except (ValueError, TypeError):
            raise self._bookkeeper.drop(segment, "its record makes no sense") from None

    def _admit(
        self,
        entry: EntryId,
        segment: Segment,
        file: SegmentFile | None,
        piece: ByteRange,
        urgent: bool,
    ) -> Part | None:
        """Ask admission, and pay if it agrees; `file` is None for a new segment."""
        resident, admission, key = self._resident, self._resident.admission, segment.key
        cost = part_bytes(piece) + (HEADER if file is None else 0)
        with resident.lock:
            change = admission.admit if file is None else admission.grow
            victims = change(key, cost, urgent=urgent)
            if victims is None:
                return None
            resident.promise(segment, cost)
            evicted = [resident.segments[victim] for victim in victims]
        try:
            return Part(segment, piece, cost, self._pay(entry, segment, file, evicted))
        except BaseException:
            with resident.lock:
                if not segment.gone:
                    resident.end(segment, cost, spent=False)
                if key not in resident.segments:
                    admission.evicted(key)
                for victim in evicted:
                    if not victim.gone:
                        resident.adopt(victim)
            raise

    def _pay(
        self, entry: EntryId, segment: Segment, file: SegmentFile | None, evicted: list[Segment]
    ) -> SegmentFile:
        """Remove the victims, get the grant, and make the file if there is none."""
        resident, ledger, bookkeeper = self._resident, self._ledger, self._bookkeeper
        gain = sum(victim.bytes + victim.owed for victim in evicted)
        if resident.free < 0 and -resident.free > bookkeeper.room() + gain:
            raise _Again
        bookkeeper.remove(evicted)
        resident.evictions += len(evicted)
        new = file is None
        try:
            with ledger.transaction():
                granted = self._grant(-resident.free) if resident.free < 0 else 0
                file = file or self._create(entry, segment)
        except BaseException:
            if new and segment.id:
                bookkeeper.directory.unlink(segment.id)
            raise
        with resident.lock:
            resident.free += granted
            if new:
                segment.leased = True
                resident.add(segment)
                resident.leased.add(segment)
                resident.pin_if_wanted(segment)
                resident.files.put(segment, file)
        return file

    def _grant(self, short: int) -> int:
        """Ask the ledger to grant at least `short` bytes."""
        room = self._bookkeeper.room()
        if short > room:
            raise _Again
        granted = short + min(QUANTUM, self._ledger.limit() // 256, room - short)
        self._ledger.grant(self._bookkeeper.owner, granted)
        return granted

    def _create(self, entry: EntryId, segment: Segment) -> SegmentFile:
        row, new = self._ledger.lease(self._bookkeeper.owner, segment.key, segment.used_at)
        if not new:
            raise _Again  # another process was quicker; the next attempt knows its segment
        segment.id = row.id
        descriptor = self._bookkeeper.directory.open_segment(row.id, new=True)
        return SegmentFile.create(descriptor, entry, segment.start // SEGMENT)
