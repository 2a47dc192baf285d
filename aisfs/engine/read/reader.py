"""Reads of open objects and members: what to fetch for this read, and what ahead of it.

An object is read with a read-ahead window. Members of a shard that are read in the order of the tar
count as one sequential read of the shard. Members read in any other order are fetched together with
their sample, since a program that opens an image wants its label too; or alone, once it turns out that
the rest of the sample is not read.

The methods whose names begin with `try` answer at once or not at all, from any thread. If such a read
makes more bytes worth fetching, the trio thread fetches them. It is woken rarely, because waking it for
each read would cost more than the read.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress

import trio
from cachetools import LRUCache

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.zip_columns import Stored
from aisfs.core.policy.shard_readers import Access, SampleAffinity
from aisfs.core.ranges import aligned
from aisfs.core.views.samples import SPAN_MAX, member_span, sample_span
from aisfs.engine.fetch.fetcher import Fetcher
from aisfs.engine.fetch.object_state import OpenObject
from aisfs.engine.fetch.part import Data, Reading, Received
from aisfs.engine.read.open_member import MemberReads, OpenMember
from aisfs.engine.read.prefetcher import Prefetcher
from aisfs.engine.read.sparse_reader import SparseReader
from aisfs.engine.read.unpacker import Unpacker
from aisfs.engine.read.zip_reader import ZipReader
from aisfs.errors import ShardDamaged
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)

BLOCK = 4096
"""Reads of objects are fetched in whole pages of the kernel's and of the disk cache."""
LARGE = 128 * 1024
"""A first request of this size is more than a look at a header. For the largest buffer with which
`file`, tarfile or numpy look at one (16 KiB), the kernel reads 64 KiB; for that of cat or cp, 512 KiB."""
ORDERS_MAX = 10_000
"""For how many shards to remember in which order their members are read."""
REPORT_SECONDS = 0.2
"""The trio thread is told at most this often that an object is still being read in order."""


class Reader:
    """Reads ranges of objects and of members."""

    def __init__(self, fetcher: Fetcher, prefetcher: Prefetcher, unpacker: Unpacker) -> None:
        """Read through `fetcher`, and report to `prefetcher` which shards are being read.

        Content that has to be decompressed first comes from `unpacker`.
        """
        self._unpacker = unpacker
        self._fetcher = fetcher
        self._prefetcher = prefetcher
        self._zips = ZipReader(self._fetch, self._inflate, fetcher.memory_limit)
        self._sparse = SparseReader(fetcher)
        self._token = trio.lowlevel.current_trio_token()
        self._lock = ranked_lock(Rank.MEMBER_READS)
        """Guards `_orders` and what is in them."""
        self._orders: LRUCache[tuple[Bucket, ObjectInfo], MemberReads] = LRUCache(ORDERS_MAX)
        self._affinity = SampleAffinity()

    # opening, without waiting --------------------------------------------------------------------

    @any_thread
    def open_shard(self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex) -> MemberReads:
        """Return how the members of a shard are read.

        Raises:
            Unsupported: it is compressed, and there is no cache.
        """
        with self._lock:
            known = self._orders.get((bucket, shard))
        if known is None:
            opened = self._unpacker.open_shard(bucket, shard, index)
            known = MemberReads(shard, opened, len(index))
            with self._lock:
                known = self._orders.setdefault((bucket, shard), known)
        return known

    @any_thread
    def open_member(
        self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex, row: int, *, again: bool
    ) -> OpenMember:
        """Return a member to read; `again` if it was opened before, and this is another read."""
        reads = self.open_shard(bucket, shard, index)
        if not again and self._observe_opening(reads, row):
            self._report(reads)
        return OpenMember(reads, index, row, reads.in_order)

    def _observe_opening(self, reads: MemberReads, row: int) -> bool:
        """Follow the order of openings; return whether the prefetcher should hear of this one."""
        with self._lock:
            in_order = reads.order.observe(row) is Access.IN_ORDER
            changed, reads.in_order = in_order != reads.in_order, in_order
        return _is_due(reads, at_once=changed)

    def _report(self, reads: MemberReads) -> None:
        if reads.in_order:
            self._prefetcher.in_order(reads.bucket, reads.shard)
        elif not reads.opened.cached_by_source:  # else the object itself is no longer needed
            self._prefetcher.touched(reads.bucket, reads.shard)

    @any_thread
    def folder_listed(self, bucket: Bucket, shard: ObjectInfo) -> None:
        """Report that the folder of a shard is being listed."""
        self._later(lambda: self._prefetcher.folder_listed(bucket, shard))

    # reading, without waiting --------------------------------------------------------------------

    @any_thread
    def try_read_object(self, bucket: Bucket, info: ObjectInfo, wanted: ByteRange) -> Data | None:
        """Read a range of an object, cut at its end; None when the bytes are not here."""
        wanted = ByteRange(wanted.start, min(wanted.stop, info.size))
        if wanted.start >= wanted.stop:
            return b""
        opened = self._fetcher.open(bucket, info)
        data = opened.try_read(wanted)
        if data is not None and self._observe_read(opened, wanted) and _is_due(opened):
            self._later(lambda: self._prefetcher.in_order(bucket, info))
        return data

    @any_thread
    def when_here(
        self,
        bucket: Bucket,
        info: ObjectInfo,
        wanted: ByteRange,
        then: Callable[[Received], None],
    ) -> bool:
        """Read a range of an object when it has been received, if it is under way: see `OpenObject.when_here`."""
        wanted = ByteRange(wanted.start, min(wanted.stop, info.size))
        if wanted.start >= wanted.stop:  # another version of it is known by now
            return False
        opened = self._fetcher.open(bucket, info)
        if not opened.when_here(wanted, then):
            return False
        far = self._fetcher.high_latency
        with opened.lock:
            plan = opened.read_ahead.observe(wanted, stalled=True, high_latency=far)
        self._fetch_ahead(opened, plan.ahead)
        if plan.sequential and _is_due(opened):
            if wanted.start or len(wanted) >= LARGE:
                self._later(lambda: self._prefetcher.streamed(bucket, info))
            self._later(lambda: self._prefetcher.in_order(bucket, info))
        return True

    @any_thread
    def try_read_member(
        self, reads: MemberReads, index: MemberIndex, row: int, wanted: ByteRange
    ) -> Data | None:
        """Read a range of a member, cut at its end; None when the bytes are not here.

        Raises:
            ShardDamaged: the range lies behind the end of a truncated shard.
        """
        if index.packing is not None or index.sparse(row):
            return None  # its bytes are not stored as they are read
        stored = index.read_range(row, wanted.start, len(wanted))
        if stored.start >= stored.stop:
            return b""
        data = reads.opened.try_read(stored)
        if data is None:
            return None
        # The first read of a member counts as opening it.
        if wanted.start == 0 and self._observe_opening(reads, row):
            self._later(lambda: self._report(reads))
        if reads.in_order:
            self._observe_read(reads.opened, stored)
        return data

    def _observe_read(self, opened: OpenObject, wanted: ByteRange) -> bool:
        """Record a read and start fetching ahead of it; return whether it was sequential."""
        with opened.lock:
            plan = opened.read_ahead.observe(wanted, stalled=False)
        self._fetch_ahead(opened, plan.ahead)
        return plan.sequential

    def pushed(
        self, reads: MemberReads, row: int, last: int, stored: ByteRange, *, stalled: bool
    ) -> None:
        """Record bytes that were pushed, so that their reader need not ask for them.

        Args:
            reads: How the members of the shard are read.
            row: The member this reader is known to have opened last.
            last: The last member it need not ask for.
            stored: The pushed bytes or, if there were none, those that the reader will need next.
            stalled: Whether more would have been pushed, had the bytes been here.
        """
        with self._lock:
            reads.order.pushed(row, last)
        if reads.in_order:
            with reads.opened.lock:
                plan = reads.opened.read_ahead.pushed(stored, stalled=stalled)
            self._fetch_ahead(reads.opened, plan.ahead)

    def _fetch_ahead(self, opened: OpenObject, ahead: ByteRange | None) -> None:
        if ahead is not None:
            self._later(lambda: self._fetcher.ahead(opened, ahead))

    def _later(self, work: Callable[[], None]) -> None:
        """Run `work` in the trio thread."""

        def run() -> None:
            try:
                work()
            except Exception:
                log.exception("reading ahead failed: this is a bug in aisfs, please report it")

        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(run)

    # reading, in the trio thread -----------------------------------------------------------------

    async def read_object(self, bucket: Bucket, info: ObjectInfo, wanted: ByteRange) -> Data:
        """Read a range of an object, cut at its end; empty beyond the end.

        Raises:
            Stale: the object is no longer the version `info`.
        """
        wanted = ByteRange(wanted.start, min(wanted.stop, info.size))
        if wanted.start >= wanted.stop:
            return b""
        opened = self._fetcher.open(bucket, info)
        blocks = aligned(wanted, BLOCK, info.size)
        reading, sequential = self._start(opened, blocks)
        if sequential and (wanted.start or len(wanted) >= LARGE):
            self._prefetcher.streamed(bucket, info)
        data = await reading.wait()
        if sequential and _is_due(opened):
            self._prefetcher.in_order(bucket, info)
        if blocks == wanted:
            return data
        start = wanted.start - blocks.start
        return memoryview(data)[start : start + len(wanted)]

    async def read_whole(
        self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex, row: int
    ) -> Data:
        """Read all of a member, as one of many that are read in order.

        Raises:
            Stale, ShardDamaged: see `read_member`.
        """
        member = OpenMember(self.open_shard(bucket, shard, index), index, row, in_order=True)
        return await self.read_member(member, ByteRange(0, index.size(row)))

    async def read_member(self, member: OpenMember, wanted: ByteRange) -> Data:
        """Read a range of a member, cut at its end; empty beyond the end.

        Raises:
            Stale: the shard has changed meanwhile.
            ShardDamaged: the range lies behind the end of a truncated shard.
        """
        index, row = member.index, member.row
        if index.packing is not None:
            return await self._zips.read(member, wanted)
        try:
            if index.sparse(row):
                return await self._sparse.read(member, wanted)
            stored = index.read_range(row, wanted.start, len(wanted))
        except ShardDamaged as error:
            raise ShardDamaged(f"{member.reads}: {error}") from error
        return await self._fetch(member, stored) if stored else b""

    async def _fetch(self, member: OpenMember, stored: ByteRange) -> Data:
        """Fetch stored bytes of a member, and start to fetch what will probably be read with them."""
        opened, index, row = member.reads.opened, member.index, member.row
        if member.in_order:
            return await self._start(opened, stored)[0].wait()
        span = sample_span(index, row)
        within = span.start <= stored.start and stored.stop <= span.stop
        if not within or len(span) > SPAN_MAX:
            return await self._start(opened, stored)[0].wait()
        reading = self._fetcher.start(opened, stored)
        if not reading.ready and span != stored:
            if self._affinity.alone((*member.id[:2], span.start), row):
                span = member_span(index, row)
            self._fetcher.ahead(opened, span)
        return await reading.wait()

    def _start(self, opened: OpenObject, wanted: ByteRange) -> tuple[Reading, bool]:
        """Begin a read, with read-ahead; return also whether it belongs to a sequential stream."""
        reading = self._fetcher.start(opened, wanted)
        far = self._fetcher.high_latency
        with opened.lock:
            plan = opened.read_ahead.observe(wanted, stalled=not reading.ready, high_latency=far)
        if plan.ahead is not None:
            self._fetcher.ahead(opened, plan.ahead)
        return reading, plan.sequential

    async def _inflate(
        self, reads: MemberReads, stored: ByteRange, member: Stored, wanted: ByteRange
    ) -> Data:
        opened = self._unpacker.open_member(reads.bucket, reads.shard, stored, member)
        return await self._start(opened, wanted)[0].wait()


def _is_due(read: OpenObject | MemberReads, *, at_once: bool = False) -> bool:
    """Return whether to report again that an object is being read: now and then, or `at_once`."""
    now = time.monotonic()
    if read.reported_until > now and not at_once:
        return False
    read.reported_until = now + REPORT_SECONDS
    return True
