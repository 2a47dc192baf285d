"""Sparse members: stored without their holes, which are zeros."""

from cachetools import LRUCache

from aisfs.core.archive.tar import SparseSegment, segments_of, sparse_segments
from aisfs.engine.fetch.fetcher import Fetcher
from aisfs.engine.read.open_member import MemberId, OpenMember
from aisfs.errors import ShardDamaged
from aisfs.model import ByteRange

HEAD = 64 * 1024
"""Bytes read first for the map of a member; four times as many each time it is longer."""
MAPS_MAX = 64
"""Maps kept, so that reading a member in order fetches its map once."""


class SparseReader:
    """Reads ranges of sparse members."""

    def __init__(self, fetcher: Fetcher) -> None:
        """Read what is stored through `fetcher`."""
        self._fetcher = fetcher
        self._maps: LRUCache[MemberId, tuple[SparseSegment, ...]] = LRUCache(MAPS_MAX)

    async def read(self, member: OpenMember, wanted: ByteRange) -> bytearray:
        """Lay the stored segments over zeros.

        Raises:
            ShardDamaged: the tar ends within the member, or it has no usable map.
        """
        index, row, opened = member.index, member.row, member.reads.opened
        length = max(min(wanted.stop, index.size(row)) - wanted.start, 0)
        content = bytearray(length)
        base, end = index.span(row).start, index.end_of(row)
        for segment in segments_of(await self._map(member), wanted.start, length):
            at = base + segment.stored
            if at + segment.length > end:
                raise ShardDamaged(f"the tar ends at byte {end}, within this member")
            stored = ByteRange(at, at + segment.length)
            start = segment.offset - wanted.start
            content[start : start + segment.length] = await self._fetcher.start(
                opened, stored
            ).wait()
        return content

    async def _map(self, member: OpenMember) -> tuple[SparseSegment, ...]:
        segments = self._maps.get(member.id)
        index, row, size = member.index, member.row, HEAD
        span = index.span(row)
        while segments is None:
            stop = min(span.start + size, span.stop, index.end_of(row))
            wanted = ByteRange(span.start, stop)
            head = await self._fetcher.start(member.reads.opened, wanted).wait()
            segments = sparse_segments(bytes(head), index.size(row))
            if segments is None and stop < span.start + size:
                raise ShardDamaged(f"member {index.name(row)!r} has no usable sparse map")
            size *= 4
        self._maps[member.id] = segments
        return segments
