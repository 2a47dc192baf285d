"""How much of the objects that were read is on the local disk, for `aisfs warm`."""

import trio

from aisfs.engine.fetch.fetcher import Fetcher
from aisfs.engine.fetch.writer_thread import BackgroundThread
from aisfs.engine.read.indexer import Indexer
from aisfs.model import Bucket, ByteRange, ObjectInfo


class CacheCoverage:
    """Counts what is in the disk cache."""

    def __init__(
        self, fetcher: Fetcher, indexer: Indexer, background: BackgroundThread, *, local: bool
    ) -> None:
        """Ask these services; objects that are `local` are on disk anyway."""
        self._fetcher = fetcher
        self._indexer = indexer
        self._background = background
        self._local = local

    async def cached(self, bucket: Bucket, info: ObjectInfo, wanted: ByteRange) -> int:
        """Count the bytes of a range that are in the disk cache, or need not be.

        What was read is on its way there, so this waits for it.
        """
        if self._local:
            return len(wanted)
        opened = self._fetcher.open(bucket, info)
        if opened.cache is None or opened.entry is None:
            return 0
        await self._background.run(lambda: None)
        missing = await trio.to_thread.run_sync(opened.cache.missing, opened.entry, wanted)
        return len(wanted) - sum(map(len, missing))

    async def save_index(self, bucket: Bucket, shard: ObjectInfo) -> bool:
        """Write the index of a shard to disk; return whether it is there.

        Raises:
            Stale: the shard changed meanwhile.
        """
        return await self._indexer.save(bucket, shard)
