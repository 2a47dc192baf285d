"""The shards of a source as they are now: for jobs, and for commands that need no other service of a mount."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import trio

from aisfs.cache.names import MetadataCache
from aisfs.core.names.sources import DatasetSource
from aisfs.engine.dataset.shard_set import ShardSet, find_shards
from aisfs.engine.listing import Lister
from aisfs.errors import AisfsError, ConfigError
from aisfs.metrics import Metrics
from aisfs.model import Bucket, ObjectInfo
from aisfs.mount.services import CLOCK
from aisfs.mount.setup import read_shards
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


@dataclass(frozen=True, slots=True)
class FoundShards:
    """Plain tars of one bucket."""

    bucket: Bucket
    shards: list[ObjectInfo]
    missing: Sequence[str]
    """What was named and does not exist."""

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(shard.size for shard in self.shards)


def read_cluster_shards(
    words: Sequence[str], settings: Mapping[str, object], instead: str
) -> DatasetSource:
    """Return the shards that the arguments and options of a command mean, in one bucket of a cluster.

    Args:
        words: Each SOURCE as it was typed.
        settings: The options that were given, by name of the setting.
        instead: What serves for local files.

    Raises:
        ConfigError: they are local files, or in several buckets.
    """
    source = read_shards(words, settings)
    if source.local:
        raise ConfigError(
            f"{source.words[0].text}: the cluster does this, with shards of a bucket: write ais://BUCKET/…; "
            f"for local files {instead}"
        )
    if direct := [bucket for bucket in source.buckets if bucket.store]:
        raise ConfigError(f"{direct[0]}: the cluster does this, with shards that it serves")
    if len(source.buckets) > 1:
        names = ", ".join(map(str, source.buckets))
        raise ConfigError(f"one job reads one bucket, not {names}; start one for each")
    return source


async def find_plain_tars(source: DatasetSource, store: ObjectStore) -> FoundShards:
    """Find the shards of a source.

    Raises:
        SourceMissing: there is none.
        ConfigError: some are compressed, or a list names shards of another bucket.
    """
    shards = await list_shards(source, store)
    _check_bucket(source, shards)
    found = [shard.info for _, shard in shards.current]
    (bucket,) = source.buckets
    odd = [shard.key for shard in found if not shard.key.endswith(".tar")]
    if odd:
        raise ConfigError(
            f"{bucket}/{odd[0]}: not a plain tar, as {len(odd)} of {len(found)} shards; "
            "choose the others, as in '*.tar'"
        )
    return FoundShards(bucket, found, shards.missing)


def _check_bucket(source: DatasetSource, shards: ShardSet) -> None:
    """Refuse shards of another bucket, which a list in this one may name."""
    for _, shard in shards.current:
        if shard.bucket not in source.buckets:
            place = f"{shard.bucket}/{shard.info.key}"
            raise ConfigError(f"one job reads one bucket, and {place} is in another")
