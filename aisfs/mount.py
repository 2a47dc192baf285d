"""The composition root: builds a mount bottom up, runs it, and takes it down in reverse."""

import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio

from aisfs.ais.client import AISClient
from aisfs.cache.blocks import BlockCache
from aisfs.cache.indexes import IndexCache
from aisfs.cache.metadata import MetadataCache
from aisfs.config import View
from aisfs.core.member_index import MemberIndex
from aisfs.core.samples_view import samples_view
from aisfs.core.sources import BucketSource, DatasetSource, DirectorySource, Everything, Source
from aisfs.core.view_spec import LabelSource, ViewSpec
from aisfs.core.views import MembersView, without_folders
from aisfs.engine.background import BackgroundThread, background_thread
from aisfs.engine.fetcher import Fetcher
from aisfs.engine.indexer import INDEX_BYTES_MAX, Indexer
from aisfs.engine.label_table import read_table
from aisfs.engine.lister import Lister
from aisfs.engine.merger import Merger
from aisfs.engine.overlay import OverlaidLister
from aisfs.engine.prefetcher import Prefetcher
from aisfs.engine.reader import Reader
from aisfs.engine.shard_set import find_shards
from aisfs.engine.staging import StagingArea
from aisfs.engine.writer import Writer
from aisfs.errors import AisfsError, BucketNotFound, SourceMissing, Unavailable
from aisfs.filesystem.attributes import AttrMaker
from aisfs.filesystem.dataset_tree import DatasetTree
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.known import Known
from aisfs.filesystem.members import Members
from aisfs.filesystem.merged_tree import MergedTree
from aisfs.filesystem.naming import NamingFileSystem
from aisfs.filesystem.nodes import DatasetNode, DirectoryNode, Node, RootNode
from aisfs.filesystem.shards import ShardFolders
from aisfs.filesystem.tree import Names, Tree
from aisfs.filesystem.xattrs import Xattrs
from aisfs.fuse import mountpoint as mountpoints
from aisfs.fuse import tuning
from aisfs.fuse.headroom import Headroom
from aisfs.fuse.notifier import Notifier
from aisfs.fuse.operations import (
    Operations,
    PyfuseKernel,
    WritableOperations,
    serve,
    terminate,
)
from aisfs.fuse.pusher import Pusher
from aisfs.fuse.session import LaneSession, LaneUnavailable
from aisfs.metrics import Metrics
from aisfs.model import Bucket
from aisfs.mount_plan import MountPlan, is_local, origin_of
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
SWITCH_SECONDS = 0.0005
"""How long a thread that computes may keep the others waiting: Python's 5 ms would be the delay of
every request while a shard is scanned (docs/PERFORMANCE.md)."""
FSNAME_MAX = 256
"""Characters of the source that `mount` and `df` show; the kernel takes a page of options in all."""
GRACE_SECONDS = 5
"""How long requests under way may go on after SIGTERM, before they are cancelled."""


@dataclass(slots=True)
class Stop:
    """How a mount is asked to end: at once while it is being built, then by unmounting."""

    ask: Callable[[], None]


def check(plan: MountPlan) -> None:
    """Check all that can be checked without asking the cluster.

    Raises:
        MountError, FuseUnavailable, SourceMissing: as the message says.
    """
    if isinstance(plan.source, DirectorySource) and not plan.source.path.is_dir():
        raise SourceMissing(
            f"{plan.source.path}: no such directory; a bucket is written ais://BUCKET"
        )
    if isinstance(plan.source, DatasetSource) and plan.source.local:
        root = plan.source.common_directory(os.path.realpath)
        if not os.path.isdir(root):
            raise SourceMissing(f"{root}: no such directory")
    mountpoints.check_fuse(lane=plan.lane)
    mountpoints.prepare(plan.mountpoint, allow_nonempty="nonempty" in plan.options)


async def run(plan: MountPlan, on_ready: Callable[[], None]) -> None:
    """Mount and serve until unmounted from outside or told to stop by SIGTERM or SIGINT.

    Raises:
        AisfsError: the cluster, the bucket or the kernel refused; nothing is left mounted.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    plan, direct, root = _open_source(plan)
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
            refused: AisfsError | None = None
            async with background_thread() as background, trio.open_nursery() as services:
                foundation = Foundation(store, blocks, staging, services, background, metrics)
                session = trio.CancelScope()
                stop = Stop(session.cancel)
                services.start_soon(_stop_on_signal, signals, session, stop)
                try:
                    with session:
                        operations, lane = await _build(plan, foundation, root, on_ready)
                        stop.ask = terminate if lane is None else lane.terminate
                        await _serve(plan, operations, lane)
                except AisfsError as error:  # out of the nursery it would come in a group
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


async def _serve(plan: MountPlan, operations: Operations, lane: LaneSession | None) -> None:
    options = _kernel_options(plan)
    if lane is not None:
        try:
            await lane.serve(plan.mountpoint, options)
            return
        except LaneUnavailable as error:
            log.info("mounting without the lane: %s", error)
    await serve(operations, str(plan.mountpoint), options - {"nonempty"})


def _open_source(plan: MountPlan) -> tuple[MountPlan, WritableStore, Node]:
    """Open what holds the source; a dataset's local files get a bucket in the plan."""
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
        case DatasetSource():
            for bucket in source.buckets:
                await _check_bucket(store, bucket, "")
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


async def _build(
    plan: MountPlan, base: Foundation, root: Node, on_ready: Callable[[], None]
) -> tuple[Operations, LaneSession | None]:
    clock = time.monotonic  # unlike trio.current_time it may be asked from any thread
    ttls = plan.tree
    cache = MetadataCache(
        attr_ttl=ttls.attr_ttl, list_ttl=ttls.list_ttl, negative_ttl=ttls.negative_ttl, clock=clock
    )
    lister = _build_lister(plan, base, cache, root)
    fetcher = Fetcher(
        base.store,
        base.services,
        base.background,
        cache=base.blocks,
        origin=plan.cluster.endpoint,
        memory_limit=plan.cache.memory_limit,
        read_ahead_max=plan.cache.read_ahead_max,
    )
    prefetcher = _build_prefetcher(plan, base, fetcher, lister)
    make = AttrMaker(plan.tree, time.time_ns())
    indexer = _build_indexer(plan, base, fetcher)
    folders = ShardFolders(indexer, make)
    plain = Tree(lister, plan.tree.shards)
    tree: Names = plain
    if isinstance(plan.source, DatasetSource):
        tree = await _build_dataset(plan, plan.source, base, lister, indexer)
    reader = Reader(fetcher, prefetcher)
    filesystem = _build_filesystem(plan, base, root, tree, lister, folders, reader, make)
    filesystem.kernel = PyfuseKernel()
    plain.watch(filesystem.listing_changed)
    _describe(plan, base, filesystem)

    async def report() -> None:
        # A task, so that it runs when the kernel has the reply to INIT, which sets the defaults.
        # The lane has asked for more requests in the background already, which needs no root.
        background = not plan.lane
        await trio.to_thread.run_sync(partial(tuning.tune, plan.mountpoint, background=background))
        log.info("mounted %s on %s", plan.source, plan.mountpoint)
        on_ready()

    kind = WritableOperations if isinstance(filesystem, NamingFileSystem) else Operations
    operations = kind(
        filesystem,
        Xattrs(filesystem, folders, base.metrics),
        base.metrics,
        negative_timeout=ttls.negative_ttl,
        on_ready=lambda: base.services.start_soon(report),
    )
    if not plan.lane:
        if plan.kernel.lane:
            log.info("mounting without the lane: the mount is writable")
        return operations, None
    known = Known(filesystem, tree, folders, reader)
    members = Members(filesystem, folders, reader)

    def observe(notifier: Notifier) -> Pusher:
        pusher = Pusher(notifier, members, Headroom().room, base.metrics)
        fetcher.on_landed = pusher.landed
        return pusher

    lane = LaneSession(
        operations,
        filesystem,
        known,
        base.metrics,
        negative_timeout=operations.negative_timeout,
        observe=observe,
    )
    return operations, lane


def _build_prefetcher(
    plan: MountPlan, base: Foundation, fetcher: Fetcher, lister: Lister
) -> Prefetcher:
    return Prefetcher(
        fetcher,
        lister,
        base.services,
        max_shards=plan.cache.prefetch_shards,
        budget=base.blocks.limit // PREFETCH_SHARE if base.blocks is not None else 0,
    )


def _build_filesystem(
    plan: MountPlan,
    base: Foundation,
    root: Node,
    tree: Names,
    lister: Lister,
    folders: ShardFolders,
    reader: Reader,
    make: AttrMaker,
) -> FileSystem:
    clock = time.monotonic
    if base.staging is None:
        return FileSystem(
            root,
            tree=tree,
            folders=folders,
            reader=reader,
            make=make,
            clock=clock,
            list_ttl=plan.tree.list_ttl,
        )
    assert isinstance(lister, OverlaidLister), "a mount with staging has one"
    assert isinstance(tree, Tree), "a dataset is never writable"
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


async def _build_dataset(
    plan: MountPlan, source: DatasetSource, base: Foundation, lister: Lister, indexer: Indexer
) -> Names:
    shards = await find_shards(source, lister, base.store, base.metrics)
    view = plan.view
    if not view.merged:
        return DatasetTree(shards)
    table = None
    if view.view is View.CLASS and view.label.source is LabelSource.TABLE:
        table = await read_table(base.store, source, view.label.text)
    merger = Merger(shards, indexer, view, base.services, base.metrics, table=table)
    return MergedTree(merger, repr(view))


def _lay_out(view: ViewSpec) -> Callable[[MemberIndex], MembersView]:
    """Choose what a folder of a shard shows."""
    if view.view is View.SAMPLES:
        return partial(samples_view, spec=view)
    return without_folders if view.merged else MembersView


def _describe(plan: MountPlan, base: Foundation, filesystem: FileSystem) -> None:
    """Let the counters say what is mounted and how its cache does."""
    metrics, blocks = base.metrics, base.blocks
    endpoint = "" if is_local(plan.source) else plan.cluster.endpoint
    directory = "" if blocks is None else str(plan.cache.cache_dir)
    names = (str(plan.source), endpoint, directory)
    metrics.mount.labels(*(os.fsencode(n).decode(errors="replace") for n in names)).set(1)

    def update() -> None:
        metrics.inodes.set(len(filesystem.inodes))
        if blocks is not None:
            counts = blocks.counts()
            metrics.cache_limit.set(blocks.limit)
            metrics.cache_used.set(counts.used)
            metrics.cache_hits.set(counts.hits)
            metrics.cache_misses.set(counts.misses)

    metrics.before_text.append(update)


def _build_lister(plan: MountPlan, base: Foundation, cache: MetadataCache, root: Node) -> Lister:
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
        clock=time.monotonic,
        metrics=base.metrics,
    )


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
        lay_out=_lay_out(plan.view),
        # Common directories hold the indexes of all their shards anyway.
        memory_limit=float("inf") if plan.view.merged else INDEX_BYTES_MAX,
    )


def _kernel_options(plan: MountPlan) -> set[str]:
    # noatime: else every read would make the kernel ask for attributes again.
    return {
        "rw" if plan.writing.writable else "ro",
        "noatime",
        "default_permissions",
        "subtype=aisfs",
        f"fsname={str(plan.source).replace(',', '_')[:FSNAME_MAX]}",
    } | plan.options


async def _stop_on_signal(
    signals: AsyncIterator[int], session: trio.CancelScope, stop: Stop
) -> None:
    async for number in signals:
        log.info("unmounting on %s", signal.Signals(number).name)
        stop.ask()
        await trio.sleep(GRACE_SECONDS)
        session.cancel()
