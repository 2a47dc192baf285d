"""What mounting and inspecting stand on: the store of a source, its cache, the services that read it."""

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar, assert_never

import trio

from aisfs.ais.client import AISClient
from aisfs.app.plan import SourcePlan, is_local, origin_of
from aisfs.cache.disk.block_cache import LEAST, BlockCache
from aisfs.cache.disk.directory import CacheDirectory
from aisfs.cache.index_cache import IndexCache
from aisfs.cache.metadata_cache import MetadataCache
from aisfs.config import View
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.nested_tars import MAX_NESTING
from aisfs.core.namespace.sources import (
    BucketSource,
    DatasetSource,
    DirectorySource,
    Everything,
    Source,
)
from aisfs.core.views.directory_tree import MembersView, members_only, without_folders
from aisfs.core.views.samples_view import samples_view
from aisfs.engine.dataset.synthetic_reader import SyntheticReader
from aisfs.engine.fetch.batches import Batches
from aisfs.engine.fetch.fetcher import Fetcher
from aisfs.engine.fetch.writer_thread import BackgroundThread, unattended
from aisfs.engine.listing.lister import Lister
from aisfs.engine.listing.overlay import OverlaidLister
from aisfs.engine.read.cache_coverage import CacheCoverage
from aisfs.engine.read.indexer import INDEX_BYTES_MAX, Indexer
from aisfs.engine.read.prefetcher import Prefetcher
from aisfs.engine.read.reader import Reader
from aisfs.engine.read.unpacker import Unpacker
from aisfs.engine.write.staging import StagingArea
from aisfs.errors import AccessDenied, BucketNotFound, ConfigError, NotFound, SourceMissing
from aisfs.filesystem.nodes import DatasetNode, DirectoryNode, Node, RootNode
from aisfs.metrics import Metrics
from aisfs.model import Bucket
from aisfs.store.local.store import LocalStore
from aisfs.store.port import WritableStore

log = logging.getLogger(__name__)

PREFETCH_SHARE = 4
"""A quarter of the cache at most is filled with shards that nobody has asked for yet."""
INDEX_SHARE = 16
INDEX_DISK_LIMIT = 2**30
"""Indexes take a sixteenth of the disk cache, and never more than this: some 200 million members."""
CLOCK = time.monotonic
"""What listings expire by; unlike trio's own clock it may be asked from any thread."""

PlanT = TypeVar("PlanT", bound=SourcePlan)


def open_source(plan: PlanT) -> tuple[PlanT, WritableStore, Node]:
    """Open the store of a source, and give the node that is its root.

    A dataset's local files get a bucket in the plan.
    """
    match plan.source:
        case DirectorySource(path):
            local = LocalStore(path.resolve())
            return plan, local, DirectoryNode(local.bucket, "")
        case BucketSource(bucket, prefix):
            return plan, AISClient(plan.cluster), DirectoryNode(bucket, prefix)
        case Everything():
            return plan, AISClient(plan.cluster), RootNode()
        case DatasetSource() if plan.source.local:
            root = plan.source.common_directory(os.path.realpath)
            local = LocalStore(Path(root))
            found = plan.source.below(root, local.bucket, os.path.realpath)
            return replace(plan, source=found), local, DatasetNode()
        case DatasetSource():
            return plan, AISClient(plan.cluster), DatasetNode()
        case _:
            assert_never(plan.source)


def open_cache(plan: SourcePlan) -> BlockCache | None:
    """Open the disk cache, if it may have any size.

    Of a local directory, which is on disk already, it has only indexes and what was decompressed;
    most such mounts never need it, so they go without if it cannot be had. So does every mount while
    the disk is full.
    """
    if plan.cache.cache_size == 0:
        return None
    limit = plan.cache.disk_limit(CacheDirectory(plan.cache.cache_dir).taken())
    if not limit:
        log.warning("no disk cache: %s has hardly any room left", plan.cache.cache_dir)
        return None
    try:
        return BlockCache.open(plan.cache.cache_dir, limit - _index_limit(limit))
    except ConfigError as error:
        if not is_local(plan.source) and plan.cache.free_disk() >= LEAST:
            raise
        log.warning("no disk cache: %s", error)
        return None


def _index_limit(cache_size: int) -> int:
    """Give the share of the disk cache that indexes may take."""
    return min(cache_size // INDEX_SHARE, INDEX_DISK_LIMIT)


async def _sync_cache(blocks: BlockCache, fetcher: Fetcher) -> None:
    """Keep the books of several daemons on one cache directory together."""
    while True:
        await trio.sleep(1)
        await unattended("the upkeep of the cache", partial(trio.to_thread.run_sync, blocks.sync))
        await unattended("looking for what the cache has lost", fetcher.drop_lost)


async def check_source(store: WritableStore, source: Source) -> None:
    """Ask once, without retries: a mount that cannot work should say so at once.

    Raises:
        AisfsError: it cannot be reached, or does not exist.
    """
    match source:
        case BucketSource(bucket, prefix):
            occupied = await _check_bucket(store, bucket, prefix)
            if prefix and not occupied:
                await _check_no_object(store, bucket, prefix.removesuffix("/"))
        case DatasetSource():
            for bucket in source.buckets:
                await _check_bucket(store, bucket, "")
        case Everything():
            await store.list_buckets()


async def _check_bucket(store: WritableStore, bucket: Bucket, prefix: str) -> bool:
    """Make sure that a bucket is there; says whether anything is below `prefix`."""
    try:
        return bool((await store.first_keys(bucket, prefix, 1)).found)
    except BucketNotFound as error:
        raise BucketNotFound(f"bucket {bucket} does not exist; `ais ls` shows what does") from error


async def _check_no_object(store: WritableStore, bucket: Bucket, key: str) -> None:
    """Refuse an object in place of a directory; an empty one is just empty."""
    with suppress(NotFound, AccessDenied):
        await store.head(bucket, key)
        raise SourceMissing(f"{bucket}/{key} is an object, no directory of objects")


@dataclass(frozen=True, slots=True)
class Foundation:
    """What the services of a mount stand on, and what outlives them."""

    store: WritableStore
    blocks: BlockCache | None
    staging: StagingArea | None
    services: trio.Nursery
    background: BackgroundThread
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Engine:
    """The services that read a source."""

    lister: Lister
    fetcher: Fetcher
    indexer: Indexer
    reader: Reader
    assembler: SyntheticReader
    keeping: CacheCoverage


def build_engine(plan: SourcePlan, base: Foundation, root: Node) -> Engine:
    """Put the services together that read a source."""
    ttls = plan.tree
    cache = MetadataCache(
        attr_ttl=ttls.attr_ttl, list_ttl=ttls.list_ttl, negative_ttl=ttls.negative_ttl, clock=CLOCK
    )
    lister = _build_lister(plan, base, cache, root)
    fetcher = Fetcher(
        base.store,
        base.services,
        base.background,
        cache=None if is_local(plan.source) else base.blocks,
        origin=origin_of(plan),
        memory_limit=plan.cache.memory_limit,
        read_ahead_max=plan.cache.read_ahead_max,
    )
    base.services.start_soon(fetcher.tidy)
    prefetcher = Prefetcher(
        fetcher,
        lister,
        base.services,
        max_shards=plan.cache.prefetch_shards,
        budget=base.blocks.limit // PREFETCH_SHARE if base.blocks is not None else 0,
    )
    unpacker = Unpacker(fetcher, base.services, cache=base.blocks)
    indexer = _build_indexer(plan, base, fetcher, unpacker)
    prefetcher.open_folder = indexer.open
    reader = Reader(fetcher, prefetcher, unpacker)
    batches = Batches(base.store, base.services)
    assembler = SyntheticReader(fetcher, batches, plan.cache.read_ahead_max)
    keeping = CacheCoverage(fetcher, indexer, base.background, local=is_local(plan.source))
    return Engine(lister, fetcher, indexer, reader, assembler, keeping)


def _lay_out(plan: SourcePlan) -> Callable[[MemberIndex], MembersView]:
    """Choose what a folder of a shard shows."""
    view = plan.view
    if view.view is View.SAMPLES:
        return partial(samples_view, spec=view)
    if view.merged or view.view is View.SHARDS:
        return without_folders
    if isinstance(plan.source, DatasetSource):
        return members_only
    return partial(MembersView, shards=plan.tree.shards)


def _build_lister(plan: SourcePlan, base: Foundation, cache: MetadataCache, root: Node) -> Lister:
    ttls = plan.tree
    kind: Callable[..., Lister] = Lister
    if base.staging is not None:
        change_ttl = max(ttls.attr_ttl, ttls.list_ttl, ttls.negative_ttl)
        kind = partial(OverlaidLister, change_ttl=change_ttl)
    else:
        prefix = root.prefix if isinstance(root, DirectoryNode) else ""
        kind = partial(Lister, wanted=plan.keys.below(prefix))
    return kind(
        base.store,
        cache,
        base.services,
        list_ttl=ttls.list_ttl,
        clock=CLOCK,
        metrics=base.metrics,
    )


def _build_indexer(
    plan: SourcePlan, base: Foundation, fetcher: Fetcher, unpacker: Unpacker
) -> Indexer:
    indexes = None
    if base.blocks is not None:
        scope = f"{origin_of(plan)} ignore_zeros={plan.tree.ignore_zeros}"
        scope += " recursive" if plan.tree.recursive else ""
        scope += " magic" if plan.tree.magic else ""
        limit = base.blocks.limit // (INDEX_SHARE - 1)
        indexes = IndexCache(plan.cache.cache_dir, min(limit, INDEX_DISK_LIMIT), scope=scope)
        base.services.start_soon(_sync_cache, base.blocks, fetcher)
    return Indexer(
        fetcher,
        base.services,
        unpacker,
        indexes=indexes,
        shard_indexes=base.store if plan.tree.shard_index else None,
        ignore_zeros=plan.tree.ignore_zeros,
        nesting=MAX_NESTING if plan.tree.recursive else 0,
        lay_out=_lay_out(plan),
        # Common directories hold the indexes of all their shards anyway.
        memory_limit=float("inf") if plan.view.merged else INDEX_BYTES_MAX,
        magic=plan.tree.magic,
    )
