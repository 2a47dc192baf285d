"""Reads of virtual shards: the objects of the range, all at once, and those that come next.

Small objects are fetched whole, since the next read wants the rest, and many of them with one
request where the store does that.
"""

from cachetools import LRUCache

from aisfs.core.policy.shard_readers import ReadAhead
from aisfs.core.ranges import aligned
from aisfs.core.views.shuffled_tar import Content, VirtualShard
from aisfs.engine.fetch.batches import Batches, BatchWindow
from aisfs.engine.fetch.buffers import FIRST_PART
from aisfs.engine.fetch.fetcher import Fetcher
from aisfs.engine.fetch.part import Data, Reading
from aisfs.errors import NotFound, Stale
from aisfs.model import ByteRange

AHEAD_OBJECTS = 256
"""Objects fetched ahead of a reader at most, about: eight for each connection."""
BLOCK = 4096
"""Large objects are fetched in whole pages of the disk cache."""
SHARDS_MAX = 1000
"""Virtual shards whose readers are remembered."""


class SyntheticReader:
    """Makes the bytes of virtual shards."""

    def __init__(self, fetcher: Fetcher, batches: Batches, read_ahead_max: int) -> None:
        """Fetch objects through `fetcher`, at most `read_ahead_max` bytes ahead of a reader.

        What is small is fetched in `batches`.
        """
        self._fetcher = fetcher
        self._batches = batches
        self._read_ahead_max = read_ahead_max
        self._readers: LRUCache[str, ReadAhead] = LRUCache(SHARDS_MAX)

    async def read(self, shard: VirtualShard, wanted: ByteRange) -> Data:
        """Read a range of a virtual shard, cut at its end; empty behind the end.

        Raises:
            Stale: an object of the range is no longer the version that was laid out.
        """
        wanted = ByteRange(wanted.start, min(wanted.stop, shard.size))
        if wanted.start >= wanted.stop:
            return b""
        with self._batches.gathering() as together:
            found = [
                piece if isinstance(piece, bytes) else (piece, self._start(piece, together))
                for piece in shard.pieces(wanted)
            ]
            stalled = any(not isinstance(each, bytes) and not each[1].ready for each in found)
            self._fetch_ahead(shard, wanted, together, stalled=stalled)
        return b"".join([each if isinstance(each, bytes) else await _wait(*each) for each in found])

    def _start(self, content: Content, together: BatchWindow | None) -> Reading:
        opened = self._fetcher.open(content.bucket, content.info)
        return self._fetcher.start(opened, _fetched(content), together)

    def _fetch_ahead(
        self, shard: VirtualShard, wanted: ByteRange, together: BatchWindow | None, *, stalled: bool
    ) -> None:
        reader = self._readers.get(shard.digest)
        if reader is None:
            window = min(self._read_ahead_max, AHEAD_OBJECTS * shard.size // len(shard))
            reader = ReadAhead(shard.size, max_window=window)
            self._readers[shard.digest] = reader
        plan = reader.observe(wanted, stalled=stalled, high_latency=self._fetcher.high_latency)
        for content in shard.contents(plan.ahead) if plan.ahead is not None else ():
            opened = self._fetcher.open(content.bucket, content.info)
            self._fetcher.ahead(opened, _fetched(content), together)


def _fetched(content: Content) -> ByteRange:
    """Return what to fetch of an object of which a range is wanted."""
    size = content.info.size
    return ByteRange(0, size) if size <= FIRST_PART else aligned(content.range, BLOCK, size)


async def _wait(content: Content, reading: Reading) -> Data:
    try:
        data = await reading.wait()
    except (Stale, NotFound) as error:
        raise Stale(
            f"{content.bucket}/{content.info.key} changed since the mount began; mount again to see"
            " virtual shards with what it is now"
        ) from error
    start = content.range.start - reading.wanted.start
    return memoryview(data)[start : start + len(content.range)]
