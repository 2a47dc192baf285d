"""The shards of a source as they are now, for commands that need no other service of a mount."""

from math import inf

import trio

from aisfs.cache.names import MetadataCache
from aisfs.core.names.sources import DatasetSource
from aisfs.engine.dataset.shard_set import ShardSet, find_shards
from aisfs.engine.listing import Lister
from aisfs.errors import AisfsError
from aisfs.metrics import Metrics
from aisfs.mount.services import CLOCK
from aisfs.stores.port import ObjectStore


async def list_shards(source: DatasetSource, store: ObjectStore) -> ShardSet:
    """Find the shards of a source; see `find_shards`.

    Raises:
        SourceMissing: a word leads to no shard.
    """
    failure: AisfsError | None = None
    async with trio.open_nursery() as nursery:
        cache = MetadataCache(attr_ttl=inf, list_ttl=inf, negative_ttl=inf, clock=CLOCK)
        lister = Lister(
            store, cache, nursery, list_ttl=inf, clock=CLOCK, metrics=Metrics(), change_ttl=inf
        )
        try:
            return await find_shards(source, lister, store, Metrics())
        except AisfsError as error:  # a nursery would put it into a group
            failure = error
        finally:
            nursery.cancel_scope.cancel()
    raise failure
