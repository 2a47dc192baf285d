"""The composition root: builds a mount bottom up, runs it, and takes it down in reverse."""

import logging
import signal
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
from aisfs.config import CacheSettings, ClusterSettings, TreeSettings, WriteSettings
from aisfs.core.sources import BucketSource, DirectorySource, Everything, Source
from aisfs.engine.background import BackgroundThread, background_thread
from aisfs.engine.fetcher import Fetcher
from aisfs.engine.indexer import Indexer
from aisfs.engine.lister import Lister
from aisfs.engine.overlay import OverlaidLister
from aisfs.engine.prefetcher import Prefetcher
from aisfs.engine.reader import Reader
from aisfs.engine.staging import StagingArea
from aisfs.engine.writer import Writer
from aisfs.errors import BucketNotFound, MountError, SourceMissing, Unavailable
from aisfs.filesystem.attributes import AttrMaker
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.naming import NamingFileSystem
from aisfs.filesystem.nodes import DirectoryNode, Node, RootNode
from aisfs.filesystem.shards import ShardFolders
from aisfs.filesystem.tree import Tree
from aisfs.filesystem.xattrs import Xattrs
from aisfs.fuse import mountpoint as mountpoints
from aisfs.fuse import tuning
from aisfs.fuse.operations import Operations, PyfuseKernel, WritableOperations, serve, terminate
from aisfs.metrics import Metrics
from aisfs.model import Bucket
from aisfs.store.local import LocalStore
from aisfs.store.metered import MeteredStore
from aisfs.store.port import WritableStore
from aisfs.store.retry import RetryingStore

log = logging.getLogger(__name__)

PREFETCH_SHARE = 4
"""A quarter of the cache at most is filled with shards that nobody has asked for yet."""
INDEX_SHARE = 16
INDEX_DISK_LIMIT = 2**30
"""Indexes take a sixteenth of the disk cache, and never more than this: some 200 million members."""
GRACE_SECONDS = 5
"""How long requests under way may go on after SIGTERM, before they are cancelled."""


@dataclass(frozen=True, slots=True)
class MountPlan:
    """Everything a mount needs to know."""

    source: Source
    mountpoint: Path
    cluster: ClusterSettings
    tree: TreeSettings
    cache: CacheSettings
    writing: WriteSettings
    options: frozenset[str]
    """Mount options for the kernel, as of `mount -o`."""


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
    mountpoints.check_fuse()
    mountpoints.prepare(plan.mountpoint, allow_nonempty="nonempty" in plan.options)


async def run(plan: MountPlan, on_ready: Callable[[], None]) -> None:
    """Mount and serve until unmounted from outside or told to stop by SIGTERM or SIGINT.

    Raises:
        AisfsError: the cluster, the bucket or the kernel refused; nothing is left mounted.
    """
    direct, root = _open_source(plan)
    blocks: BlockCache | None = None
    staging: StagingArea | None = None
    try:
        try:
            await _check_source(direct, plan.source)
        except Unavailable as error:
            raise Unavailable(f"{plan.cluster.endpoint} does not answer: {error}") from error
        blocks = await trio.to_thread.run_sync(_open_cache, plan)
        if plan.writing.writable:
            staging = await trio.to_thread.run_sync(
                StagingArea, plan.writing.staging_dir, plan.writing.staging_limit()
            )
        metrics = Metrics()
        store = MeteredStore(RetryingStore(direct, deadline=plan.cluster.io_timeout), metrics)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            refused: MountError | None = None
            async with background_thread() as background, trio.open_nursery() as services:
                foundation = Foundation(store, blocks, staging, services, background, metrics)
                operations = _build(plan, foundation, root, on_ready)
                session = trio.CancelScope()
                services.start_soon(_stop_on_signal, signals, session)
                try:
                    with session:
                        await serve(operations, str(plan.mountpoint), _kernel_options(plan))
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
            if staging is not None:
                await trio.to_thread.run_sync(staging.close)
            if blocks is not None:
                await trio.to_thread.run_sync(blocks.close)
    log.info("unmounted %s", plan.mountpoint)


def _open_source(plan: MountPlan) -> tuple[WritableStore, Node]:
    match plan.source:
        case DirectorySource(path):
            local = LocalStore(path.resolve())
            return local, DirectoryNode(local.bucket, "")
        case BucketSource(bucket, prefix):
            return AISClient(plan.cluster), DirectoryNode(bucket, prefix)
        case Everything():
            return AISClient(plan.cluster), RootNode()


def _open_cache(plan: MountPlan) -> BlockCache | None:
    """Open the disk cache; none for a local directory, which is on disk already, or of no size."""
    if is_local(plan.source) or plan.cache.cache_size == 0:
        return None
    limit = plan.cache.disk_limit()
    if not limit:
        log.warning("no disk cache: %s has hardly any room left", plan.cache.cache_dir)
        return None
    return BlockCache.open(plan.cache.cache_dir, limit - _index_limit(limit))


def _index_limit(cache_size: int) -> int:
    """Give the share of the disk cache that indexes may take."""
    return min(cache_size // INDEX_SHARE, INDEX_DISK_LIMIT)


async def _sync_cache(blocks: BlockCache) -> None:
    """Keep the books of several daemons on one cache directory together."""
    while True:
        await trio.sleep(1)
        await trio.to_thread.run_sync(blocks.sync)


async def _check_source(store: WritableStore, source: Source) -> None:
    """Ask once, without retries: a mount that cannot work should say so at once."""
    match source:
        case BucketSource(bucket, prefix):
            await _check_bucket(store, bucket, prefix)
        case Everything():
            await store.list_buckets()


async def _check_bucket(store: WritableStore, bucket: Bucket, prefix: str) -> None:
    try:
        await store.list_page(bucket, prefix, page_size=1)
    except BucketNotFound as error:
        raise BucketNotFound(f"bucket {bucket} does not exist; `ais ls` shows what does") from error


@dataclass(frozen=True, slots=True)
class Foundation:
    """What the services of a mount stand on, and what outlives them."""

    store: WritableStore
    blocks: BlockCache | None
    staging: StagingArea | None
    services: trio.Nursery
    background: BackgroundThread
    metrics: Metrics


def _build(
    plan: MountPlan, base: Foundation, root: Node, on_ready: Callable[[], None]
) -> Operations:
    clock = trio.current_time
    ttls = plan.tree
    cache = MetadataCache(
        attr_ttl=ttls.attr_ttl, list_ttl=ttls.list_ttl, negative_ttl=ttls.negative_ttl, clock=clock
    )
    lister = _build_lister(plan, base, cache)
    fetcher = Fetcher(
        base.store,
        base.services,
        base.background,
        cache=base.blocks,
        origin=plan.cluster.endpoint,
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
    make = AttrMaker(plan.tree, time.time_ns())
    folders = ShardFolders(_build_indexer(plan, base, fetcher), make)
    reader = Reader(fetcher, prefetcher)
    filesystem = _build_filesystem(plan, base, root, folders, reader, lister, make)
    filesystem.kernel = PyfuseKernel()

    async def report() -> None:
        # A task, so that it runs when the kernel has the reply to INIT, which sets the defaults.
        await trio.to_thread.run_sync(tuning.tune, plan.mountpoint)
        log.info("mounted %s on %s", plan.source, plan.mountpoint)
        on_ready()

    kind = Operations
    if isinstance(filesystem, NamingFileSystem):
        kind = WritableOperations
    return kind(
        filesystem,
        Xattrs(filesystem, folders, lister, base.metrics),
        base.metrics,
        negative_timeout=ttls.negative_ttl,
        on_ready=lambda: base.services.start_soon(report),
    )


def _build_lister(plan: MountPlan, base: Foundation, cache: MetadataCache) -> Lister:
    ttls = plan.tree
    kind: Callable[..., Lister] = Lister
    if base.staging is not None:
        change_ttl = max(ttls.attr_ttl, ttls.list_ttl, ttls.negative_ttl)
        kind = partial(OverlaidLister, change_ttl=change_ttl)
    return kind(
        base.store,
        cache,
        base.services,
        list_ttl=ttls.list_ttl,
        clock=trio.current_time,
        metrics=base.metrics,
    )


def _build_filesystem(
    plan: MountPlan,
    base: Foundation,
    root: Node,
    folders: ShardFolders,
    reader: Reader,
    lister: Lister,
    make: AttrMaker,
) -> FileSystem:
    tree = Tree(lister, plan.tree.shards)
    clock = trio.current_time
    if base.staging is None:
        return FileSystem(
            root, tree=tree, folders=folders, reader=reader, lister=lister, make=make, clock=clock
        )
    assert isinstance(lister, OverlaidLister), "a mount with staging has one"
    return NamingFileSystem(
        root,
        tree=tree,
        folders=folders,
        reader=reader,
        lister=lister,
        make=make,
        clock=clock,
        writer=Writer(base.store, base.staging, endpoint=origin_of(plan)),
        settings=plan.writing,
    )


def origin_of(plan: MountPlan) -> str:
    """Say where objects go: the endpoint, or the directory that is mounted."""
    if isinstance(plan.source, DirectorySource):
        return str(plan.source.path.resolve())
    return plan.cluster.endpoint


def _build_indexer(plan: MountPlan, base: Foundation, fetcher: Fetcher) -> Indexer:
    indexes = None
    if base.blocks is not None:
        scope = f"{plan.cluster.endpoint} ignore_zeros={plan.tree.ignore_zeros}"
        limit = base.blocks.limit // (INDEX_SHARE - 1)
        indexes = IndexCache(plan.cache.cache_dir, min(limit, INDEX_DISK_LIMIT), scope=scope)
        base.services.start_soon(_sync_cache, base.blocks)
    return Indexer(
        fetcher,
        base.services,
        indexes=indexes,
        shard_indexes=base.store if plan.tree.shard_index else None,
        ignore_zeros=plan.tree.ignore_zeros,
    )


def _kernel_options(plan: MountPlan) -> set[str]:
    # noatime: else every read would make the kernel ask for attributes again.
    return {
        "rw" if plan.writing.writable else "ro",
        "noatime",
        "default_permissions",
        "subtype=aisfs",
        f"fsname={str(plan.source).replace(',', '_')}",
    } | {option for option in plan.options if option != "nonempty"}


async def _stop_on_signal(signals: AsyncIterator[int], session: trio.CancelScope) -> None:
    async for number in signals:
        log.info("unmounting on %s", signal.Signals(number).name)
        terminate()
        await trio.sleep(GRACE_SECONDS)
        session.cancel()
