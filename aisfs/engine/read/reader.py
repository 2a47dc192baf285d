"""Reads of open objects and members: what to fetch for this read, and what ahead of it.

An object is read with a read-ahead window. Members of a shard that are read in the order of the tar
are one such sequential reading of the shard. Members read in any other order are fetched with the
sample they belong to and nothing more, since whoever opens an image wants its label too; or alone,
once that has turned out to be in vain.

The methods whose names begin with `known` answer at once or not at all, from any thread. What such
a read makes worth fetching is begun by the trio thread, which is told seldom: waking it for each
read would cost more than the read.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio
from cachetools import LRUCache

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.zip_columns import Stored
from aisfs.core.policy.access_order import Access, MemberOrder
from aisfs.core.policy.sample_affinity import SampleAffinity
from aisfs.core.ranges import aligned
from aisfs.core.tar.sparse import Segment, segments_of, sparse_segments
from aisfs.core.views.samples import SPAN_MAX, member_span, sample_span
from aisfs.engine.fetch.fetcher import Fetcher
from aisfs.engine.fetch.object_state import OpenObject
from aisfs.engine.fetch.part import Data, Reading
from aisfs.engine.read.prefetcher import Prefetcher
from aisfs.engine.read.unpacker import Unpacker
from aisfs.engine.read.zip_reader import ZipReader
from aisfs.errors import ShardDamaged
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.process.locks import Rank, ranked_lock

log = logging.getLogger(__name__)

BLOCK = 4096
"""Reads of objects are fetched in whole pages of the kernel's and of the disk cache."""
LARGE = 128 * 1024
"""Bytes of a first request that no look at a header makes: the kernel reads 64 KiB for the largest
buffer (16 KiB) that `file`, tarfile or numpy look with, and 512 KiB for the one of cat or cp."""
SPARSE_HEAD = 64 * 1024
"""Bytes read first for the map of a sparse member; four times as many each time it is longer."""
SPARSE_MAPS_MAX = 64
"""Maps of sparse members kept, so that reading one in order fetches its map once."""
ORDERS_MAX = 10_000
"""Shards of which is remembered how their members are read."""

TELL_SECONDS = 0.2
"""How often at most the trio thread is told that an object is still being read in order."""

ObjectId = tuple[Bucket, ObjectInfo]


class MemberReads:
    """How the members of one version of a shard are read."""

    __slots__ = ("in_order", "opened", "order", "shard", "told_until")

    def __init__(self, shard: ObjectInfo, opened: OpenObject, members: int) -> None:
        """Know nothing yet.

        Args:
            shard: The version.
            opened: What the offsets of its index refer to: the object, or what it is decompressed.
            members: How many it has.
        """
        self.shard = shard
        self.opened = opened
        self.order = MemberOrder(members)
        self.in_order = False
        """Whether members are being read in the order of the tar."""
        self.told_until = 0.0


class Reader:
    """Reads ranges of objects and of members."""

    def __init__(self, fetcher: Fetcher, prefetcher: Prefetcher, unpacker: Unpacker) -> None:
        """Read through `fetcher`, and tell `prefetcher` which shards are being read.

        What has to be decompressed first comes from `unpacker`.
        """
        self._unpacker = unpacker
        self._fetcher = fetcher
        self._prefetcher = prefetcher
        self._zips = ZipReader(self._read_inflated)
        self._token = trio.lowlevel.current_trio_token()
        self._lock = ranked_lock(Rank.MEMBER_READS)
        """Guards `_orders` and what is in them, and `_told`."""
        self._orders: LRUCache[ObjectId, MemberReads] = LRUCache(ORDERS_MAX)
        self._told: LRUCache[ObjectId, float] = LRUCache(ORDERS_MAX)
        self._habit = SampleAffinity()
        self._maps: LRUCache[tuple[Bucket, ObjectInfo, int], tuple[Segment, ...]] = LRUCache(
            SPARSE_MAPS_MAX
        )

    async def read_object(self, bucket: Bucket, info: ObjectInfo, wanted: ByteRange) -> Data:
        """Read a range of an object, cut at its end; empty behind the end.

        Raises:
            Stale: the object is no longer the version `info`.
        """
        wanted = ByteRange(wanted.start, min(wanted.stop, info.size))
        if wanted.start >= wanted.stop:
            return b""
        opened = self._fetcher.open(bucket, info)
        blocks = aligned(wanted, BLOCK, info.size)
        reading, sequential = self._start_on(opened, blocks)
        if sequential and (wanted.start or len(wanted) >= LARGE):
            self._prefetcher.streamed(bucket, info)
        data = await reading.wait()
        if sequential:
            self._prefetcher.in_order(bucket, info)
        if blocks == wanted:
            return data
        start = wanted.start - blocks.start
        return memoryview(data)[start : start + len(wanted)]

    def members(self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex) -> MemberReads:
        """Give what is known of how a shard is read. Waits for nothing, from any thread.

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

    def member_opened(
        self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex, row: int
    ) -> bool:
        """Take note of the opening of a member; returns whether members are read in order."""
        reads = self.members(bucket, shard, index)
        with self._lock:
            reads.in_order = reads.order.observe(row) is Access.IN_ORDER
        self._tell_prefetcher(reads)
        return reads.in_order

    def _tell_prefetcher(self, reads: MemberReads) -> None:
        bucket = reads.opened.bucket
        if reads.in_order:
            self._prefetcher.in_order(bucket, reads.shard)
        elif not reads.opened.kept_by_source:  # else the object itself is needed no more
            self._prefetcher.touched(bucket, reads.shard)

    def folder_listed(self, bucket: Bucket, shard: ObjectInfo) -> None:
        """Take note that the folder of a shard is being listed. Waits for nothing, from any thread."""
        self._later(lambda: self._prefetcher.folder_listed(bucket, shard))

    # without waiting, from any thread -----------------------------------------------------------

    def known_object(self, bucket: Bucket, info: ObjectInfo, wanted: ByteRange) -> Data | None:
        """Read a range of an object that is here, cut at its end; None when it is not."""
        wanted = ByteRange(wanted.start, min(wanted.stop, info.size))
        if wanted.start >= wanted.stop:
            return b""
        opened = self._fetcher.open(bucket, info)
        data = self._fetcher.known(opened, wanted)
        if data is None or not self._known_ahead(opened, wanted):
            return data
        with self._lock:
            now = time.monotonic()
            due = self._told.get((bucket, info), 0.0) <= now
            if due:
                self._told[bucket, info] = now + TELL_SECONDS
        if due:
            self._later(lambda: self._prefetcher.in_order(bucket, info))
        return data

    def known_member(
        self, reads: MemberReads, index: MemberIndex, row: int, wanted: ByteRange
    ) -> Data | None:
        """Read a range of a member that is here, cut at its end; None when it is not.

        Raises:
            ShardDamaged: the range lies behind the end of a truncated shard.
        """
        if index.packing is not None or index.sparse(row):
            return None  # its bytes are not there as they are stored
        stored = index.read_range(row, wanted.start, len(wanted))
        if stored.start >= stored.stop:
            return b""
        data = self._fetcher.known(reads.opened, stored)
        if data is None:
            return None
        if wanted.start == 0:
            self._known_opened(reads, row)
        if reads.in_order:
            self._known_ahead(reads.opened, stored)
        return data

    def known_stored(self, reads: MemberReads, wanted: ByteRange) -> Data | None:
        """Return stored bytes of a shard that are here, for the kernel; None when they are not."""
        return self._fetcher.known(reads.opened, wanted)

    def copied_stored(self, reads: MemberReads, wanted: ByteRange) -> bytearray | memoryview | None:
        """Return a copy of what `known_stored` returns."""
        return self._fetcher.copied(reads.opened, wanted)

    def pushed(
        self, reads: MemberReads, row: int, last: int, stored: ByteRange, *, stalled: bool
    ) -> None:
        """Take note of bytes read for somebody who need not ask for them. From any thread.

        Args:
            reads: Of the shard.
            row: The member this reader opened last, as far as anybody saw.
            last: The member up to which it need not ask.
            stored: The bytes, or, when there were none, those that it will need next.
            stalled: Whether more would have been read, had the bytes been here.
        """
        with self._lock:
            reads.order.pushed(row, last)
        if reads.in_order:
            with reads.opened.lock:
                plan = reads.opened.read_ahead.pushed(stored, stalled=stalled)
            self._fetch_ahead(reads.opened, plan.ahead)

    def _known_opened(self, reads: MemberReads, row: int) -> None:
        """Take note of the first read of a member, which stands for its opening."""
        with self._lock:
            in_order = reads.order.observe(row) is Access.IN_ORDER
            now = time.monotonic()
            due = reads.told_until <= now or in_order != reads.in_order
            reads.in_order = in_order
            if due:
                reads.told_until = now + TELL_SECONDS
        if due:
            self._later(lambda: self._tell_prefetcher(reads))

    def _known_ahead(self, opened: OpenObject, wanted: ByteRange) -> bool:
        """Have fetched what a read makes worth it; says whether the read was sequential."""
        with opened.lock:
            plan = opened.read_ahead.observe(wanted, stalled=False)
        self._fetch_ahead(opened, plan.ahead)
        return plan.sequential

    def _fetch_ahead(self, opened: OpenObject, ahead: ByteRange | None) -> None:
        if ahead is not None:
            self._later(lambda: self._fetcher.ahead(self._fetcher.again(opened), ahead))

    def _later(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception:
                log.exception("reading ahead failed: this is a bug in aisfs, please report it")

        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(run)

    # -----------------------------------------------------------------------------------------------

    async def read_whole(
        self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex, row: int
    ) -> Data:
        """Read all of a member, and as one of many in order.

        Raises:
            Stale, ShardDamaged: see `read_member`.
        """
        whole = ByteRange(0, index.size(row))
        return await self.read_member(bucket, shard, index, row, whole, in_order=True)

    async def read_member(
        self,
        bucket: Bucket,
        shard: ObjectInfo,
        index: MemberIndex,
        row: int,
        wanted: ByteRange,
        *,
        in_order: bool,
    ) -> Data:
        """Read a range of a member, cut at its end; empty behind the end.

        Raises:
            Stale: the shard is no longer the version `shard`.
            ShardDamaged: the range lies behind the end of a truncated shard.
        """
        if index.packing is not None:
            fetch = partial(self._fetch, bucket, shard, index, row, in_order)
            return await self._zips.read((bucket, shard), index, row, wanted, fetch)
        try:
            if index.sparse(row):
                return await self._read_sparse(bucket, shard, index, row, wanted)
            stored = index.read_range(row, wanted.start, len(wanted))
        except ShardDamaged as error:
            raise ShardDamaged(f"{bucket}/{shard.key}: {error}") from error
        if stored.start >= stored.stop:
            return b""
        return await self._fetch(bucket, shard, index, row, in_order, stored)

    async def _fetch(
        self,
        bucket: Bucket,
        shard: ObjectInfo,
        index: MemberIndex,
        row: int,
        in_order: bool,
        stored: ByteRange,
    ) -> Data:
        """Fetch stored bytes of a member, and what is worth having with them."""
        opened = self._unpacker.open_shard(bucket, shard, index)
        if in_order:
            return await self._start_on(opened, stored)[0].wait()
        span = sample_span(index, row)
        within = span.start <= stored.start and stored.stop <= span.stop
        if not within or len(span) > SPAN_MAX:
            return await self._start_on(opened, stored)[0].wait()
        reading = self._fetcher.start(opened, stored)
        if not reading.ready and span != stored:
            if self._habit.alone((bucket, shard, span.start), row):
                span = member_span(index, row)
            self._fetcher.ahead(opened, span)
        return await reading.wait()

    def _start_on(self, opened: OpenObject, wanted: ByteRange) -> tuple[Reading, bool]:
        """Begin to read with read-ahead; also says whether it belongs to a sequential stream."""
        reading = self._fetcher.start(opened, wanted)
        far = self._fetcher.far
        with opened.lock:
            plan = opened.read_ahead.observe(wanted, stalled=not reading.ready, far=far)
        if plan.ahead is not None:
            self._fetcher.ahead(opened, plan.ahead)
        return reading, plan.sequential

    async def _read_stored(
        self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex, wanted: ByteRange
    ) -> Data:
        opened = self._unpacker.open_shard(bucket, shard, index)
        return await self._fetcher.start(opened, wanted).wait()

    async def _read_inflated(
        self,
        bucket: Bucket,
        info: ObjectInfo,
        stored: ByteRange,
        member: Stored,
        wanted: ByteRange,
    ) -> Data:
        opened = self._unpacker.open_deflated(bucket, info, stored, member.size, member.crc)
        return await self._start_on(opened, wanted)[0].wait()

    async def _read_sparse(
        self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex, row: int, wanted: ByteRange
    ) -> bytearray:
        """Lay the stored segments over zeros."""
        stop = min(wanted.stop, index.size(row))
        length = max(stop - wanted.start, 0)
        content = bytearray(length)
        segments = await self._sparse_map(bucket, shard, index, row)
        base, end = index.span(row).start, index.end_of(row)
        for segment in segments_of(segments, wanted.start, length):
            at = base + segment.stored
            if at + segment.length > end:
                raise ShardDamaged(f"the tar ends at byte {end}, within this member")
            stored = ByteRange(at, at + segment.length)
            part = await self._read_stored(bucket, shard, index, stored)
            start = segment.offset - wanted.start
            content[start : start + segment.length] = part
        return content

    async def _sparse_map(
        self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex, row: int
    ) -> tuple[Segment, ...]:
        key = (bucket, shard, row)
        known = self._maps.get(key)
        if known is not None:
            return known
        span = index.span(row)
        size = SPARSE_HEAD
        while True:
            stop = min(span.start + size, span.stop, index.end_of(row))
            head = await self._read_stored(bucket, shard, index, ByteRange(span.start, stop))
            segments = sparse_segments(bytes(head), index.size(row))
            if segments is not None:
                self._maps[key] = segments
                return segments
            if stop < span.start + size:
                raise ShardDamaged(f"member {index.name(row)!r} has no usable sparse map")
            size *= 4
