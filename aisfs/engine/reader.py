"""Reads of open objects and members: what to fetch for this read, and what ahead of it.

An object is read with a read-ahead window. Members of a shard that are read in the order of the tar
are one such sequential reading of the shard. Members read in any other order are fetched with the
sample they belong to and nothing more, since whoever opens an image wants its label too.
"""

from functools import partial

from cachetools import LRUCache

from aisfs.core.member_index import MemberIndex
from aisfs.core.packing import Stored
from aisfs.core.prefetch import Access, MemberOrder
from aisfs.core.ranges import aligned
from aisfs.core.samples import sample_span
from aisfs.core.sparse import Segment, segments_of, sparse_segments
from aisfs.engine.fetcher import Fetcher, OpenObject
from aisfs.engine.parts import Data
from aisfs.engine.prefetcher import Prefetcher
from aisfs.engine.unpacker import Unpacker
from aisfs.engine.zip_reader import ZipReader
from aisfs.errors import ShardDamaged
from aisfs.model import Bucket, ByteRange, ObjectInfo

BLOCK = 4096
"""Reads of objects are fetched in whole pages of the kernel's and of the disk cache."""
SPARSE_HEAD = 64 * 1024
"""Bytes read first for the map of a sparse member; four times as many each time it is longer."""
SPARSE_MAPS_MAX = 64
"""Maps of sparse members kept, so that reading one in order fetches its map once."""
ORDERS_MAX = 10_000
"""Shards of which is remembered how their members are read."""

ShardId = tuple[Bucket, ObjectInfo]


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
        self._orders: LRUCache[ShardId, MemberOrder] = LRUCache(ORDERS_MAX)
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
        data, sequential = await self._read_on(opened, blocks)
        if sequential:
            self._prefetcher.in_order(bucket, info)
        if blocks == wanted:
            return data
        start = wanted.start - blocks.start
        return memoryview(data)[start : start + len(wanted)]

    def member_opened(
        self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex, row: int
    ) -> bool:
        """Take note of the opening of a member; returns whether members are read in order."""
        order = self._orders.get((bucket, shard))
        if order is None:
            order = self._orders[bucket, shard] = MemberOrder(len(index))
        in_order = order.observe(row) is Access.IN_ORDER
        if in_order:
            self._prefetcher.in_order(bucket, shard)
        elif not index.form.compressed:  # of such a one the object itself is needed no more
            self._prefetcher.touched(bucket, shard)
        return in_order

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
            return (await self._read_on(opened, stored))[0]
        span = sample_span(index, row)
        if not (span.start <= stored.start and stored.stop <= span.stop):
            return (await self._read_on(opened, stored))[0]
        reading = self._fetcher.start(opened, stored)
        if not reading.ready and span != stored:
            self._fetcher.ahead(opened, span)
        return await reading.wait()

    async def _read_on(self, opened: OpenObject, wanted: ByteRange) -> tuple[Data, bool]:
        """Read with read-ahead; also says whether the read belongs to a sequential stream."""
        reading = self._fetcher.start(opened, wanted)
        plan = opened.read_ahead.observe(wanted, stalled=not reading.ready)
        if plan.ahead is not None:
            self._fetcher.ahead(opened, plan.ahead)
        return await reading.wait(), plan.sequential

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
        return (await self._read_on(opened, wanted))[0]

    async def _read_sparse(
        self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex, row: int, wanted: ByteRange
    ) -> bytearray:
        """Lay the stored segments over zeros."""
        stop = min(wanted.stop, index.size(row))
        length = max(stop - wanted.start, 0)
        content = bytearray(length)
        segments = await self._sparse_map(bucket, shard, index, row)
        base = index.span(row).start
        for segment in segments_of(segments, wanted.start, length):
            at = base + segment.stored
            if at + segment.length > index.object_size:
                raise ShardDamaged(
                    f"the shard ends at byte {index.object_size}, within this member"
                )
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
            stop = min(span.start + size, span.stop, index.object_size)
            head = await self._read_stored(bucket, shard, index, ByteRange(span.start, stop))
            segments = sparse_segments(bytes(head), index.size(row))
            if segments is not None:
                self._maps[key] = segments
                return segments
            if stop < span.start + size:
                raise ShardDamaged(f"member {index.name(row)!r} has no usable sparse map")
            size *= 4
