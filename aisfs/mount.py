"""The composition root: builds a mount bottom up, runs it, and takes it down in reverse."""

import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from aisfs.ais.client import AISClient
from aisfs.cache.blocks import BlockCache
from aisfs.cache.indexes import IndexCache
from aisfs.cache.metadata import MetadataCache
from aisfs.config import CacheSettings, ClusterSettings, KernelSettings, TreeSettings
from aisfs.core.sources import BucketSource, DirectorySource, Everything, Source
from aisfs.engine.background import BackgroundThread, background_thread
from aisfs.engine.fetcher import Fetcher
from aisfs.engine.indexer import Indexer
from aisfs.engine.lister import Lister
from aisfs.engine.prefetcher import Prefetcher
from aisfs.engine.reader import Reader
from aisfs.engine.unpacker import Unpacker
from aisfs.errors import BucketNotFound, ConfigError, MountError, SourceMissing, Unavailable
from aisfs.filesystem.attributes import AttrMaker
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.known import Known
from aisfs.filesystem.nodes import DirectoryNode, Node, RootNode
from aisfs.filesystem.shards import ShardFolders
from aisfs.filesystem.tree import Tree
from aisfs.filesystem.xattrs import Xattrs
from aisfs.fuse import mountpoint as mountpoints
from aisfs.fuse import tuning
from aisfs.fuse.operations import Operations, PyfuseKernel, serve, terminate
from aisfs.fuse.session import LaneSession, LaneUnavailable
from aisfs.metrics import Metrics
from aisfs.model import Bucket
from aisfs.store.local import LocalStore
from aisfs.store.metered import MeteredStore
from aisfs.store.port import ObjectStore
from aisfs.store.retry import RetryingStore

log = logging.getLogger(__name__)

PREFETCH_SHARE = 4
"""A quarter of the cache at most is filled with shards that nobody has asked for yet."""
INDEX_SHARE = 16
INDEX_DISK_LIMIT = 2**30
"""Indexes take a sixteenth of the disk cache, and never more than this: some 200 million members."""
SWITCH_SECONDS = 0.0005
"""How long a thread that computes may keep the others waiting: Python's 5 ms would be the delay of
every request while a shard is scanned (docs/PERFORMANCE.md)."""
CLOCK = time.monotonic
"""What listings expire by; unlike trio's own clock it may be asked from any thread."""
GRACE_SECONDS = 5
"""How long requests under way may go on after SIGTERM, before they are cancelled."""


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """Everything that is to be known to read a source."""

    source: Source
    cluster: ClusterSettings
    tree: TreeSettings
    cache: CacheSettings


@dataclass(frozen=True, slots=True)
class MountPlan(SourcePlan):
    """Everything a mount needs to know."""

    mountpoint: Path
    options: frozenset[str]
    """Mount options for the kernel, as of `mount -o`."""
    kernel: KernelSettings


def is_local(source: Source) -> bool:
    """Say whether a source needs no cluster."""
    return isinstance(source, DirectorySource)


def check(plan: MountPlan) -> None:
    """Check all that can be checked without asking the cluster.

    Raises:
        MountError, FuseUnavailable, SourceMissing: as the message says.
    """
    if isinstance(plan.source, DirectorySource) and not plan.source.path.is_dir():
        raise SourceMissing(
            f"{plan.source.path}: no such directory; a bucket is written ais://BUCKET"
        )
    mountpoints.check_fuse(lane=plan.kernel.lane)
    mountpoints.prepare(plan.mountpoint, allow_nonempty="nonempty" in plan.options)


async def run(plan: MountPlan, on_ready: Callable[[], None]) -> None:
    """Mount and serve until unmounted from outside or told to stop by SIGTERM or SIGINT.

    Raises:
        AisfsError: the cluster, the bucket or the kernel refused; nothing is left mounted.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    direct, root = open_source(plan)
    blocks: BlockCache | None = None
    try:
        try:
            await check_source(direct, plan.source)
        except Unavailable as error:
            raise Unavailable(f"{plan.cluster.endpoint} does not answer: {error}") from error
        blocks = await trio.to_thread.run_sync(open_cache, plan)
        metrics = Metrics()
        store = MeteredStore(RetryingStore(direct, deadline=plan.cluster.io_timeout), metrics)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            refused: MountError | None = None
            async with background_thread() as background, trio.open_nursery() as services:
                foundation = Foundation(store, blocks, services, background, metrics)
                operations, lane = _build(plan, foundation, root, on_ready)
                session = trio.CancelScope()
                services.start_soon(_stop_on_signal, signals, session, lane)
                try:
                    with session:
                        await _serve(plan, operations, lane)
                except MountError as error:  # out of the nursery it would come in a group
                    refused = error
                with trio.move_on_after(GRACE_SECONDS):
                    await background.run(lambda: None)  # what landed is on disk after this
                services.cancel_scope.cancel()
            if refused is not None:
                raise refused
    finally:
        with trio.CancelScope(shield=True):
            await direct.aclose()
            if blocks is not None:
                await trio.to_thread.run_sync(blocks.close)
    log.info("unmounted %s", plan.mountpoint)


async def _serve(plan: MountPlan, operations: Operations, lane: LaneSession | None) -> None:
    options = _kernel_options(plan)
    if lane is not None:
        try:
            await lane.serve(plan.mountpoint, options)
            return
        except LaneUnavailable as error:
            log.info("mounting without the lane: %s", error)
    await serve(operations, str(plan.mountpoint), options - {"nonempty"})


def open_source(plan: SourcePlan) -> tuple[ObjectStore, Node]:
    """Open the store of a source, and give the node that is its root."""
    match plan.source:
        case DirectorySource(path):
            local = LocalStore(path.resolve())
            return local, DirectoryNode(local.bucket, "")
        case BucketSource(bucket, prefix):
            return AISClient(plan.cluster), DirectoryNode(bucket, prefix)
        case Everything():
            return AISClient(plan.cluster), RootNode()


def open_cache(plan: SourcePlan) -> BlockCache | None:
    """Open the disk cache, if it may have any size.

    Of a local directory, which is on disk already, it has only indexes and what was decompressed;
    most such mounts never need it, so they go without if it cannot be had.
    """
    if plan.cache.cache_size == 0:
        return None
    limit = plan.cache.disk_limit()
    if not limit:
        log.warning("no disk cache: %s has hardly any room left", plan.cache.cache_dir)
        return None
    try:
        return BlockCache.open(plan.cache.cache_dir, limit - _index_limit(limit))
    except ConfigError as error:
        if not is_local(plan.source):
            raise
        log.warning("no disk cache: %s", error)
        return None


def _origin(plan: SourcePlan) -> str:
    """Name where objects come from: a version without a checksum means nothing elsewhere."""
    if isinstance(plan.source, DirectorySource):
        return str(plan.source.path.resolve())
    return plan.cluster.endpoint


def _index_limit(cache_size: int) -> int:
    """Give the share of the disk cache that indexes may take."""
    return min(cache_size // INDEX_SHARE, INDEX_DISK_LIMIT)


async def _sync_cache(blocks: BlockCache) -> None:
    """Keep the books of several daemons on one cache directory together."""
    while True:
        await trio.sleep(1)
        await trio.to_thread.run_sync(blocks.sync)


async def check_source(store: ObjectStore, source: Source) -> None:
    """Ask once, without retries: a mount that cannot work should say so at once.

    Raises:
        AisfsError: it cannot be reached, or does not exist.
    """
    match source:
        case BucketSource(bucket, prefix):
            await _check_bucket(store, bucket, prefix)
        case Everything():
            await store.list_buckets()


async def _check_bucket(store: ObjectStore, bucket: Bucket, prefix: str) -> None:
    try:
        await store.list_page(bucket, prefix, page_size=1)
    except BucketNotFound as error:
        raise BucketNotFound(f"bucket {bucket} does not exist; `ais ls` shows what does") from error


@dataclass(frozen=True, slots=True)
class Foundation:
    """What the services of a mount stand on, and what outlives them."""

    store: ObjectStore
    blocks: BlockCache | None
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


def build_engine(plan: SourcePlan, base: Foundation) -> Engine:
    """Put the services together that read a source."""
    ttls = plan.tree
    cache = MetadataCache(
        attr_ttl=ttls.attr_ttl, list_ttl=ttls.list_ttl, negative_ttl=ttls.negative_ttl, clock=CLOCK
    )
    lister = Lister(
        base.store, cache, base.services, list_ttl=ttls.list_ttl, clock=CLOCK, metrics=base.metrics
    )
    fetcher = Fetcher(
        base.store,
        base.services,
        base.background,
        cache=None if is_local(plan.source) else base.blocks,
        origin=_origin(plan),
        memory_limit=plan.cache.memory_limit,
        read_ahead_max=plan.cache.read_ahead_max,
    )
    prefetcher = Prefetcher(
        fetcher,
        lister,
        base.services,
        max_shards=plan.cache.prefetch_shards,
        budget=base.blocks.limit // PREFETCH_SHARE if base.blocks is not None else 0,
    )
    unpacker = Unpacker(fetcher, base.services, cache=base.blocks)
    indexer = _build_indexer(plan, base, fetcher, unpacker)
    return Engine(lister, fetcher, indexer, Reader(fetcher, prefetcher, unpacker))


def _build(
    plan: MountPlan, base: Foundation, root: Node, on_ready: Callable[[], None]
) -> tuple[Operations, LaneSession | None]:
    engine = build_engine(plan, base)
    make = AttrMaker(plan.tree, time.time_ns())
    folders = ShardFolders(engine.indexer, make)
    look_inside = engine.indexer.is_archive if plan.tree.magic else None
    tree = Tree(engine.lister, plan.tree.shards, look_inside)
    filesystem = FileSystem(
        root,
        tree=tree,
        folders=folders,
        reader=engine.reader,
        lister=engine.lister,
        make=make,
        clock=CLOCK,
    )
    filesystem.kernel = PyfuseKernel()

    async def report() -> None:
        # A task, so that it runs when the kernel has the reply to INIT, which sets the defaults.
        # The lane has asked for more requests in the background already, which needs no root.
        background = not plan.kernel.lane
        await trio.to_thread.run_sync(partial(tuning.tune, plan.mountpoint, background=background))
        log.info("mounted %s on %s", plan.source, plan.mountpoint)
        on_ready()

    operations = Operations(
        filesystem,
        Xattrs(filesystem, folders, engine.lister, base.metrics),
        base.metrics,
        negative_timeout=plan.tree.negative_ttl,
        on_ready=lambda: base.services.start_soon(report),
    )
    if not plan.kernel.lane:
        return operations, None
    known = Known(filesystem, tree, folders, engine.reader)
    lane = LaneSession(
        operations, filesystem, known, base.metrics, negative_timeout=operations.negative_timeout
    )
    return operations, lane


def _build_indexer(
    plan: SourcePlan, base: Foundation, fetcher: Fetcher, unpacker: Unpacker
) -> Indexer:
    indexes = None
    if base.blocks is not None:
        scope = f"{_origin(plan)} ignore_zeros={plan.tree.ignore_zeros}"
        scope += " magic" if plan.tree.magic else ""
        limit = base.blocks.limit // (INDEX_SHARE - 1)
        indexes = IndexCache(plan.cache.cache_dir, min(limit, INDEX_DISK_LIMIT), scope=scope)
        base.services.start_soon(_sync_cache, base.blocks)
    return Indexer(
        fetcher,
        base.services,
        unpacker,
        indexes=indexes,
        shard_indexes=base.store if plan.tree.shard_index else None,
        ignore_zeros=plan.tree.ignore_zeros,
        magic=plan.tree.magic,
    )


def _kernel_options(plan: MountPlan) -> set[str]:
    # noatime: else every read would make the kernel ask for attributes again.
    return {
        "ro",
        "noatime",
        "default_permissions",
        "subtype=aisfs",
        f"fsname={str(plan.source).replace(',', '_')}",
    } | plan.options


async def _stop_on_signal(
    signals: AsyncIterator[int], session: trio.CancelScope, lane: LaneSession | None
) -> None:
    async for number in signals:
        log.info("unmounting on %s", signal.Signals(number).name)
        (terminate if lane is None else lane.terminate)()
        await trio.sleep(GRACE_SECONDS)
        session.cancel()
