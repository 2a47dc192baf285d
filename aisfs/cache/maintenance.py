"""Upkeep of the cache directory: what a process does once a second, and for processes that were killed."""

import contextlib
import logging
import os
import sqlite3
import time
from collections import deque
from collections.abc import Set

from aisfs.cache.directory import HEADER, PAGE, SEGMENT, Damaged, punch, start_writing
from aisfs.cache.ledger import Piece
from aisfs.cache.resident import Bookkeeper
from aisfs.cache.segments import Segment, booked_bytes
from aisfs.cache.space import QUANTUM
from aisfs.model import ByteRange, RangeSet
from aisfs.system.locks import Rank, ranked_lock

logger = logging.getLogger(__name__)

SYNC_SECONDS = 1.0
"""How long it may take until another process sees what this one published."""
_RECLAIM_SECONDS = 5.0
"""How often to look for dead processes."""
_USE_SECONDS = 60
"""Precision of recorded uses: one write per segment and minute."""
_WRITTEN_SECONDS = 60.0
"""By then the kernel has written a file to the disk, for which it waits 30 s."""
_CORRECTED = 64
"""Bookings corrected with each sync: a GiB."""
_WAL_MAX = 1024 * 1024
"""Bytes of the WAL above which it is truncated, if readers kept it from starting over."""


class Maintenance:
    """Exchanges news with other processes through the ledger, and cleans up."""

    def __init__(self, bookkeeper: Bookkeeper) -> None:
        """Work through this bookkeeper."""
        self._bookkeeper = bookkeeper
        self._synced = time.monotonic()
        self._reclaimed = self._synced
        self._turn = ranked_lock(Rank.CACHE_SYNC)
        self._pinned: frozenset[bytes] = frozenset()
        self._released: deque[tuple[float, Segment]] = deque()
        """Segments whose files may be booked too high, and when they were written to last."""
        self._inode = os.stat(bookkeeper.directory.ledger).st_ino

    def sync_if_due(self) -> None:
        """Do `sync` if the last one was a second ago and no other thread is at it."""
        if not self._bookkeeper.health.admits or time.monotonic() - self._synced < SYNC_SECONDS:
            return  # while the cache is bypassed a reader should not wait for its disk
        if not self._turn.acquire(blocking=False):
            return
        try:
            self.sync()
        finally:
            self._turn.release()

    def sync(self) -> None:
        """Record what happened here, learn what other processes did, and clean up."""
        self._synced = time.monotonic()
        bookkeeper = self._bookkeeper
        if bookkeeper.health.broken:
            return
        try:
            with bookkeeper.ledger.lock:
                if os.stat(bookkeeper.directory.ledger).st_ino != self._inode:
                    raise FileNotFoundError
                bookkeeper.record()
                self._release()
                self._correct()
                bookkeeper.pull()
                self._drop_spoilt_files()
                if self._synced - self._reclaimed > _RECLAIM_SECONDS:
                    self._reclaimed = self._synced
                    self.reclaim()
                bookkeeper.ledger.tidy(
                    bookkeeper.directory.ledger.with_name("ledger.db-wal"), _WAL_MAX
                )
        except FileNotFoundError:
            bookkeeper.health.fail(f"{bookkeeper.directory.root} was removed")
            bookkeeper.resident.forget_all()  # open files take room on the disk, though they have no name
        except (TypeError, ValueError) as error:
            bookkeeper.health.fail(f"its ledger makes no sense ({error})")
        except (OSError, sqlite3.Error) as error:
            bookkeeper.health.trouble(error)

    def _drop_spoilt_files(self) -> None:
        """Drop mapped files that were cut, and those that the kernel failed to write."""
        with self._bookkeeper.resident.lock:
            files = list(self._bookkeeper.resident.files)
        for segment, file in files:
            if not file.has_full_length:
                self._bookkeeper.drop(segment, "it has another length than when it was opened")
            elif lost := file.write_error():
                self._bookkeeper.drop(segment, lost)

    def _release(self) -> None:
        """Record uses and pins, release idle segments, return what is left of the grant."""
        bookkeeper = self._bookkeeper
        resident, ledger, owner = bookkeeper.resident, bookkeeper.ledger, bookkeeper.owner
        now = int(time.time())
        bookkeeper.remove_empty([each for each in resident.leased.copy() if each.idle])
        with resident.lock:
            used = [each for each in resident.touched if now - each.used_at >= _USE_SECONDS]
            resident.touched.clear()
            idle = {each for each in resident.leased if each.idle and each.quiet}
            for segment in resident.leased:
                segment.idle = segment.quiet
            resident.leased -= idle
            for segment in idle:
                segment.leased = segment.idle = False
            spare = max(0, resident.free - (QUANTUM if resident.leased else 0))
            resident.free -= spare
            pins = frozenset(resident.pins)
        if not (used or idle or spare or pins != self._pinned):
            return
        try:
            with ledger.transaction():
                ledger.use((now, segment.id) for segment in used)
                ledger.release(owner, [segment.id for segment in idle])
                ledger.grant(owner, -spare)
                if pins != self._pinned:
                    ledger.pin(owner, pins)
        except BaseException:
            with resident.lock:
                resident.free += spare
            raise
        for segment in used:
            segment.used_at = now
        self._pinned = pins
        self._released += ((self._synced, segment) for segment in idle)

    def _correct(self) -> None:
        """Book what files take exactly, once the kernel has had time to write them."""
        ledger, directory = self._bookkeeper.ledger, self._bookkeeper.directory
        taken: dict[int, int] = {}
        while self._released and len(taken) < _CORRECTED:
            since, segment = self._released[0]
            if self._synced - since < _WRITTEN_SECONDS:
                break
            self._released.popleft()
            if segment.gone or segment.leased:
                continue
            with contextlib.suppress(OSError, Damaged):  # a read of the file will find out
                descriptor = directory.open_segment(segment.id)
                start_writing(descriptor)  # next to nothing is left
                os.close(descriptor)
                taken[segment.id] = directory.taken_by(segment.id)
        if taken:
            with ledger.transaction():
                for identity, size in taken.items():
                    if not ledger.writers_of(identity):
                        ledger.set_bytes(identity, size)

    def reclaim(self) -> bool:
        """Return what dead processes were granted, and the pages they did not publish.

        Returns:
            Whether there were dead processes.

        Raises:
            OSError, sqlite3.Error: the disk fails.
        """
        ledger, directory = self._bookkeeper.ledger, self._bookkeeper.directory
        dead = {
            owner: token
            for owner, token in ledger.owners()
            if owner != self._bookkeeper.owner and not directory.alive(token)
        }
        for owner, token in dead.items():
            with ledger.transaction():
                written = ledger.writers(owner)
            swept = [self._sweep(segment, dead.keys()) for segment in written]
            if all(swept):  # else others are writing there, and whose pages are whose is unknown
                with ledger.transaction():
                    ledger.leave(owner)
                directory.leave(token)
        return bool(dead)

    def _sweep(self, segment: int, dead: Set[int]) -> bool:
        """Punch out all pages without published bytes; return False if others write to it."""
        ledger, directory = self._bookkeeper.ledger, self._bookkeeper.directory
        with ledger.transaction():
            if ledger.writers_of(segment) - dead:
                return False
            pieces = ledger.pieces_now(segment)
            try:
                if pieces:
                    _punch_all_but(directory.open_segment(segment), pieces)
                    ledger.set_bytes(segment, booked_bytes(directory.taken_by(segment)))
            except (OSError, Damaged):
                pieces = []  # holes cannot be punched, or there is no file
            if not pieces:
                directory.unlink(segment)
                ledger.remove(segment)
        return True

    def sweep_files(self) -> None:
        """Remove files without a row and rows without a file, by their names only.

        Raises:
            OSError, sqlite3.Error: the disk fails.
        """
        ledger, directory = self._bookkeeper.ledger, self._bookkeeper.directory
        directory.sweep_owners({token for _, token in ledger.owners()})
        with ledger.transaction():  # files come and go inside of transactions
            rows = ledger.ids()
            files = directory.segments()
            for segment in files - rows:
                directory.unlink(segment)
            for segment in rows - files:
                ledger.remove(segment)
        if rows - files:
            logger.warning("dropped from the cache: %d files are missing", len(rows - files))


def _punch_all_but(descriptor: int, pieces: list[Piece]) -> None:
    base = pieces[0][0] // SEGMENT * SEGMENT
    kept = RangeSet()
    for start, stop, _ in pieces:
        kept.add(ByteRange(start // PAGE * PAGE, -(-stop // PAGE) * PAGE))
    try:
        for gap in kept.missing(ByteRange(base, base + SEGMENT)):
            punch(descriptor, HEADER + gap.start - base, HEADER + gap.stop - base)
    finally:
        os.close(descriptor)
