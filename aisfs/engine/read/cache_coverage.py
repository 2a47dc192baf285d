"""What of the objects that were read is on the local disk: for who fills the cache and wants to know."""

import trio

from aisfs.engine.fetch.fetcher import Fetcher
from aisfs.engine.fetch.writer_thread import BackgroundThread
from aisfs.engine.read.indexer import Indexer
from aisfs.model import Bucket, ByteRange, ObjectInfo


class CacheCoverage:
    """Looks after what should be on disk by now."""

    def __init__(
        self, fetcher: Fetcher, indexer: Indexer, background: BackgroundThread, *, local: bool
    ) -> None:
        """Ask these services; objects that are `local` are on disk anyway."""
        self._fetcher = fetcher
        self._indexer = indexer
        self._background = background
        self._local = local

    async def kept(self, bucket: Bucket, info: ObjectInfo, wanted: ByteRange) -> int:
        """Count the bytes of a range that are in the disk cache, or need not be.

        What somebody has read is on its way there, so this waits for it.
        """
        if self._local:
            return len(wanted)
        opened = self._fetcher.open(bucket, info)
        if opened.cache is None or opened.entry is None:
            return 0
        await self._background.run(lambda: None)
        missing = await trio.to_thread.run_sync(opened.cache.missing, opened.entry, wanted)
        return len(wanted) - sum(map(len, missing))

    async def keep_index(self, bucket: Bucket, shard: ObjectInfo) -> bool:
        """Have the index of a shard on disk, and say whether it is there.

        Raises:
            Stale: the shard changed meanwhile.
        """
        return await self._indexer.keep(bucket, shard)
