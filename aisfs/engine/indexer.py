"""The member index of a shard: from memory, from the index cache, or scanned as the shard streams by.

The scan reads through the fetcher, so that what it needs is in the disk cache afterwards and the
first index never costs a second download. It runs in worker threads, part by part; the trio thread
goes on answering.
"""

import logging
from functools import partial

import trio
from cachetools import LRUCache

from aisfs.ais.shard_index import MAX_BYTES, decode_shard_index, shard_index_location
from aisfs.cache.indexes import IndexCache
from aisfs.cache.single_flight import SingleFlight
from aisfs.core.member_index import MemberIndex
from aisfs.core.tar import TarScanner
from aisfs.core.views import MembersView
from aisfs.engine.fetcher import Fetcher
from aisfs.errors import AisfsError
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.store.port import ObjectStore

log = logging.getLogger(__name__)

ShardId = tuple[Bucket, ObjectInfo]
"""A version of a shard."""

INDEX_BYTES_MAX = 512 * 2**20
"""Memory for indexes not in use; six million members at 80 bytes each."""
HOP = 1 << 20
"""Bytes read at a header when data is skipped: a few hundred small members, or one large one's."""


class Indexer:
    """Opens shards."""

    def __init__(
        self,
        fetcher: Fetcher,
        services: trio.Nursery,
        *,
        indexes: IndexCache | None = None,
        shard_indexes: ObjectStore | None = None,
        ignore_zeros: bool = False,
    ) -> None:
        """Read shards through `fetcher`; shared scans run in `services`.

        Args:
            fetcher: Reads the shards.
            services: Outlives every reader.
            indexes: Where indexes are kept; None keeps them in memory only.
            shard_indexes: Where to look for AIStore's own index of a shard before it is scanned;
                None to never look. Such an index knows no times and no modes.
            ignore_zeros: Scan behind the zeros that end a tar.
        """
        self._fetcher = fetcher
        self._shard_indexes = shard_indexes
        self._indexes = indexes
        self._ignore_zeros = ignore_zeros
        self._views: LRUCache[ShardId, MembersView] = LRUCache(INDEX_BYTES_MAX, getsizeof=_memory)
        self._scans: SingleFlight[ShardId, MembersView] = SingleFlight(services)

    async def open(self, bucket: Bucket, shard: ObjectInfo) -> MembersView:
        """Give the members of this version of a shard.

        Damage is no error: the members before it are there and the index has warnings.

        Raises:
            Stale: the shard changed meanwhile.
        """
        known = self._views.get((bucket, shard))
        if known is not None:
            return known
        return await self._scans.fetch((bucket, shard), lambda: self._load(bucket, shard))

    def opened(self, bucket: Bucket, shard: ObjectInfo) -> MembersView | None:
        """Give the members of this version if they are in memory; asks nobody."""
        return self._views.get((bucket, shard))

    async def _load(self, bucket: Bucket, shard: ObjectInfo) -> MembersView:
        index = None
        indexes = self._indexes
        if indexes is not None:
            index = await trio.to_thread.run_sync(indexes.get, bucket, shard)
        if index is None and self._shard_indexes is not None:
            index = await self._find_shard_index(self._shard_indexes, bucket, shard)
        if index is None:
            index = await self._scan(bucket, shard)
            if indexes is not None:
                await trio.to_thread.run_sync(indexes.put, bucket, shard, index)
        view = await trio.to_thread.run_sync(MembersView, index)
        for warning in index.warnings:
            log.warning("%s/%s: %s", bucket, shard.key, warning)
        if _memory(view) <= INDEX_BYTES_MAX:
            self._views[bucket, shard] = view
        return view

    async def _find_shard_index(
        self, store: ObjectStore, bucket: Bucket, shard: ObjectInfo
    ) -> MemberIndex | None:
        """Take AIStore's own index of this version, where there is one and it hides nothing."""
        place, key = shard_index_location(bucket, shard.key)
        try:
            info = await store.head(place, key)
            if not 0 < info.size <= MAX_BYTES:
                return None
            buffer = bytearray(info.size)
            await store.read_range(place, info, 0, memoryview(buffer))
        except AisfsError as error:  # whatever it is, the shard can be scanned
            log.debug("%s/%s: no shard index: %s", bucket, shard.key, error)
            return None
        return await trio.to_thread.run_sync(decode_shard_index, bytes(buffer), shard)

    async def _scan(self, bucket: Bucket, shard: ObjectInfo) -> MemberIndex:
        scanner = TarScanner(shard.size, ignore_zeros=self._ignore_zeros)
        opened = self._fetcher.open(bucket, shard)
        if opened.entry is None:
            while not scanner.done:  # nothing is kept, so nothing is fetched that is not looked at
                start = scanner.needed
                wanted = ByteRange(start, min(start + HOP, shard.size))
                data = await self._fetcher.start(opened, wanted).wait()
                scanner.seek(start)
                await trio.to_thread.run_sync(scanner.feed, memoryview(data))
        else:
            async for _, data in self._fetcher.stream(opened):
                await trio.to_thread.run_sync(partial(scanner.feed, memoryview(data)))
        return await trio.to_thread.run_sync(scanner.finish)


def _memory(view: MembersView) -> int:
    return view.nbytes + view.index.nbytes
