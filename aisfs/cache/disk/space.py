"""How bytes get room in the cache.

A reservation is granted bytes by the ledger before anything is written. Since a transaction costs
some 50 µs, a process asks for a little more than it needs, so that most small reservations are paid
from what is left.
"""

import time
from dataclasses import dataclass, field

from aisfs.cache.disk.bookkeeping import Bookkeeper
from aisfs.cache.disk.format import HEADER, SEGMENT, Damaged, EntryId
from aisfs.cache.disk.ledger import Row
from aisfs.cache.disk.reservation import Part
from aisfs.cache.disk.segment_file import SegmentFile
from aisfs.cache.disk.segments import Segment, part_bytes
from aisfs.model import ByteRange

QUANTUM = 1024 * 1024
"""Bytes granted in advance at most; it is less in small caches, which others share."""


class _Again(Exception):
    """Other processes changed the ledger meanwhile."""


@dataclass(slots=True)
class _Plan:
    parts: list[Part] = field(default_factory=list)
    victims: list[Segment] = field(default_factory=list)


class SpaceReserver:
    """Reserves room."""

    def __init__(self, bookkeeper: Bookkeeper) -> None:
        """Reserve through this bookkeeper."""
        self._bookkeeper = bookkeeper
        self._resident = bookkeeper.resident
        self._ledger = bookkeeper.ledger

    def reserve(
        self, entry: EntryId, wanted: ByteRange, *, urgent: bool = False
    ) -> list[Part] | None:
        """Give room for a range, or None; `urgent` as in `core.admission`.

        Raises:
            OSError, sqlite3.Error: the disk fails.
        """
        parts = self._reserve_quickly(entry, wanted)
        if parts is None:
            with self._ledger.lock:
                parts = self._reserve(entry, wanted, urgent)
        return parts

    def _reserve_quickly(self, entry: EntryId, wanted: ByteRange) -> list[Part] | None:
        """Pay from the grant, if there is nothing else to do."""
        numbers = entry.numbers(wanted)
        if len(numbers) != 1:
            return None
        resident = self._resident
        with resident.lock:
            segment = resident.segments.get(entry.key(numbers[0]))
            if segment is None or not segment.leased or segment.file is None:
                return None
            if segment.key not in resident.admission:  # a victim about to be removed
                return None
            cost = part_bytes(wanted)
            if cost > min(resident.free, resident.admission.limit - resident.admission.used):
                return None
            resident.free -= cost
            resident.admission.grow(segment.key, cost)
            resident.admission.pin(segment.key)
            segment.promised += cost
            return [Part(segment, cost, segment.file)]

    def _reserve(self, entry: EntryId, wanted: ByteRange, urgent: bool) -> list[Part] | None:
        for _ in range(2):
            try:
                plan = self._plan(self._lease(entry, wanted), wanted, urgent)
                if plan is None:
                    return None
                try:
                    self._pay(entry, plan)
                except BaseException:
                    self._undo(plan)
                    raise
            except (_Again, Damaged):
                self._bookkeeper.pull()
            else:
                return plan.parts
        return None

    def _lease(self, entry: EntryId, wanted: ByteRange) -> list[tuple[Segment, SegmentFile | None]]:
        """Become a writer of the segments that are there; give provisional ones for the others."""
        resident, now = self._resident, int(time.time())
        found: list[tuple[Segment, SegmentFile | None]] = []
        for number in entry.numbers(wanted):
            key = entry.key(number)
            segment = resident.segments.get(key)
            if segment is None:
                segment = Segment(Row(0, key, 0, 0, now))
                segment.leased = True
                found.append((segment, None))
                continue
            file = self._bookkeeper.open(segment)
            if not segment.leased:
                self._lease_one(segment, now)
            found.append((segment, file))
        return found

    def _lease_one(self, segment: Segment, now: int) -> None:
        ledger = self._ledger
        try:
            with ledger.transaction():
                row, _ = ledger.lease(self._bookkeeper.owner, segment.key, now)
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

    def _plan(
        self, found: list[tuple[Segment, SegmentFile | None]], wanted: ByteRange, urgent: bool
    ) -> _Plan | None:
        """Ask admission; None if it refuses."""
        resident, plan = self._resident, _Plan()
        admission = resident.admission
        with resident.lock:
            for segment, file in found:
                if file is not None:
                    admission.pin(segment.key)
                plan.parts.append(Part(segment, 0, file))
            for part in plan.parts:
                segment = part.segment
                stop = min(wanted.stop, segment.start + SEGMENT)
                part.cost = part_bytes(ByteRange(max(wanted.start, segment.start), stop))
                if part.file is None:
                    part.cost += HEADER
                change = admission.admit if part.file is None else admission.grow
                segment.promised += part.cost
                resident.free -= part.cost
                victims = change(segment.key, part.cost, urgent=urgent)
                if victims is None:
                    break
                if part.file is None:
                    admission.pin(segment.key)
                plan.victims += [resident.segments[key] for key in victims]
            else:
                return plan
        self._undo(plan)
        return None

    def _undo(self, plan: _Plan) -> None:
        """Put everything back as it was before `_plan`, but for victims that are gone."""
        resident = self._resident
        with resident.lock:
            for part in plan.parts:
                segment = part.segment
                if segment.gone:
                    continue
                segment.promised -= part.cost
                resident.free += part.cost
                if segment.key in resident.segments:
                    resident.admission.unpin(segment.key)
                    resident.resize(segment)
                else:
                    resident.admission.evicted(segment.key)
            for victim in plan.victims:
                if not victim.gone:
                    resident.adopt(victim)

    def _pay(self, entry: EntryId, plan: _Plan) -> None:
        """Remove the victims of a plan, get the grant for it, and make the new files."""
        resident, ledger = self._resident, self._ledger
        gain = sum(victim.bytes + victim.owed for victim in plan.victims)
        if resident.free < 0 and -resident.free > self._bookkeeper.room() + gain:
            raise _Again
        if plan.victims:
            self._bookkeeper.remove(plan.victims)
            resident.evictions += len(plan.victims)
        new = [part for part in plan.parts if part.file is None]
        try:
            with ledger.transaction():
                granted = self._grant(-resident.free) if resident.free < 0 else 0
                for part in new:
                    part.file = self._create(entry, part.segment)
        except BaseException:
            for part in new:
                if part.file is not None:
                    self._bookkeeper.directory.unlink(part.segment.id)
            raise
        with resident.lock:
            resident.free += granted
            for part in new:
                assert part.file is not None
                resident.add(part.segment)
                resident.leased.add(part.segment)
                resident.pin_if_wanted(part.segment)
                resident.files.put(part.segment, part.file)

    def _grant(self, short: int) -> int:
        """Get at least `short` bytes granted."""
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
        directory = self._bookkeeper.directory
        descriptor = directory.open_segment(row.id, new=True)
        try:
            return SegmentFile.create(descriptor, entry, segment.start // SEGMENT)
        except BaseException:
            directory.unlink(row.id)
            raise
