"""The member index of a shard: scanned once as the shard streams by, then kept in memory.

The scan runs in the store's worker thread, part by part, so the trio thread goes on answering.
"""

import logging

import trio
from cachetools import LRUCache

from aisfs.cache.single_flight import SingleFlight
from aisfs.core.tar import TarScanner
from aisfs.core.views import MembersView
from aisfs.model import Bucket, ObjectInfo
from aisfs.store.port import ObjectStore

log = logging.getLogger(__name__)

ShardId = tuple[Bucket, ObjectInfo]
"""A version of a shard."""

INDEX_BYTES_MAX = 512 * 2**20
"""Memory for indexes not in use; six million members at 80 bytes each."""


class Indexer:
    """Opens shards."""

    def __init__(
        self, store: ObjectStore, nursery: trio.Nursery, *, ignore_zeros: bool = False
    ) -> None:
        """Read shards through `store`; shared scans run in `nursery`."""
        self._store = store
        self._ignore_zeros = ignore_zeros
        self._views: LRUCache[ShardId, MembersView] = LRUCache(INDEX_BYTES_MAX, getsizeof=_memory)
        self._scans: SingleFlight[ShardId, MembersView] = SingleFlight(nursery)

    async def open(self, bucket: Bucket, shard: ObjectInfo) -> MembersView:
        """Give the members of this version of a shard.

        Damage is no error: the members before it are there and the index has warnings.

        Raises:
            Stale: the shard changed meanwhile.
        """
        known = self._views.get((bucket, shard))
        if known is not None:
            return known
        return await self._scans.fetch((bucket, shard), lambda: self._scan(bucket, shard))

    async def _scan(self, bucket: Bucket, shard: ObjectInfo) -> MembersView:
        scanner = TarScanner(shard.size, ignore_zeros=self._ignore_zeros)
        if shard.size:
            await self._store.stream(bucket, shard, scanner.feed)
        view = await trio.to_thread.run_sync(lambda: MembersView(scanner.finish()))
        for warning in view.index.warnings:
            log.warning("%s/%s: %s", bucket, shard.key, warning)
        if _memory(view) <= INDEX_BYTES_MAX:
            self._views[bucket, shard] = view
        return view


def _memory(view: MembersView) -> int:
    return view.nbytes + view.index.nbytes
