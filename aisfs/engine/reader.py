"""Bytes of objects and members, by ranged GETs of one version.

Without a cache a read is one GET of just the bytes asked for; the kernel's page cache and its
read-ahead sit above. Version and size of every reply are compared with what was opened, so no two
versions are ever mixed (invariant I2).
"""

from cachetools import LRUCache

from aisfs.core.member_index import MemberIndex
from aisfs.core.sparse import Segment, segments_of, sparse_segments
from aisfs.errors import ShardDamaged
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.store.port import ObjectStore

SPARSE_HEAD = 64 * 1024
"""Bytes read first for the map of a sparse member; four times as many each time it is longer."""
SPARSE_MAPS_MAX = 64
"""Maps of sparse members kept, so that reading one in order fetches its map once."""


class Reader:
    """Reads ranges of objects and of members."""

    def __init__(self, store: ObjectStore) -> None:
        """Read through `store`."""
        self._store = store
        self._maps: LRUCache[tuple[Bucket, ObjectInfo, int], tuple[Segment, ...]] = LRUCache(
            SPARSE_MAPS_MAX
        )

    async def read_object(
        self, bucket: Bucket, info: ObjectInfo, wanted: ByteRange
    ) -> bytes | bytearray:
        """Read a range of an object, cut at its end; empty behind the end.

        Raises:
            Stale: the object is no longer the version `info`.
        """
        length = min(wanted.stop, info.size) - wanted.start
        if length <= 0:
            return b""
        buffer = bytearray(length)
        await self._store.read_range(bucket, info, wanted.start, memoryview(buffer))
        return buffer

    async def read_member(
        self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex, row: int, wanted: ByteRange
    ) -> bytes | bytearray:
        """Read a range of a member, cut at its end; empty behind the end.

        Raises:
            Stale: the shard is no longer the version `shard`.
            ShardDamaged: the range lies behind the end of a truncated shard.
        """
        try:
            if index.sparse(row):
                return await self._read_sparse(bucket, shard, index, row, wanted)
            stored = index.read_range(row, wanted.start, len(wanted))
        except ShardDamaged as error:
            raise ShardDamaged(f"{bucket}/{shard.key}: {error}") from error
        return await self.read_object(bucket, shard, stored)

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
            if at + segment.length > shard.size:
                raise ShardDamaged(f"the shard ends at byte {shard.size}, within this member")
            part = await self.read_object(bucket, shard, ByteRange(at, at + segment.length))
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
            stop = min(span.start + size, span.stop)
            head = await self.read_object(bucket, shard, ByteRange(span.start, stop))
            segments = sparse_segments(bytes(head), index.size(row))
            if segments is not None:
                self._maps[key] = segments
                return segments
            if stop == span.stop:
                raise ShardDamaged(f"member {index.name(row)!r} has no usable sparse map")
            size *= 4
