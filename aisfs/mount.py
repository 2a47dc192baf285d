"""The composition root: builds a mount bottom up, runs it, and takes it down in reverse."""

import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar, assert_never

import trio

from aisfs.ais.client import AISClient
from aisfs.cache.blocks import BlockCache
from aisfs.cache.indexes import IndexCache
from aisfs.cache.metadata import MetadataCache
from aisfs.config import CacheSettings, ClusterSettings, KernelSettings, TreeSettings, View
from aisfs.core.member_index import MemberIndex
from aisfs.core.patterns import EVERY_KEY, KeyFilter
from aisfs.core.samples_view import samples_view
from aisfs.core.sources import BucketSource, DatasetSource, DirectorySource, Everything, Source
from aisfs.core.view_spec import LabelSource, ViewSpec
from aisfs.core.views import MembersView, without_folders
from aisfs.core.virtual_shard import virtual_shards
from aisfs.engine.assembler import Assembler
from aisfs.engine.background import BackgroundThread, background_thread
from aisfs.engine.fetcher import Fetcher
from aisfs.engine.indexer import INDEX_BYTES_MAX, Indexer
from aisfs.engine.label_table import read_table
from aisfs.engine.lister import Lister
from aisfs.engine.loose_objects import find_loose_objects, nothing
from aisfs.engine.merger import Merger
from aisfs.engine.prefetcher import Prefetcher
from aisfs.engine.reader import Reader
from aisfs.engine.shard_set import find_shards
from aisfs.engine.unpacker import Unpacker
from aisfs.errors import AisfsError, BucketNotFound, ConfigError, SourceMissing, Unavailable
from aisfs.filesystem.attributes import AttrMaker
from aisfs.filesystem.dataset_tree import DatasetTree
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.known import Known
from aisfs.filesystem.members import Members
from aisfs.filesystem.merged_tree import MergedTree
from aisfs.filesystem.nodes import DatasetNode, DirectoryNode, Node, RootNode
from aisfs.filesystem.shards import ShardFolders
from aisfs.filesystem.tree import Names, Tree
from aisfs.filesystem.virtual_tree import VirtualTree
from aisfs.filesystem.xattrs import Xattrs
from aisfs.fuse import mountpoint as mountpoints
from aisfs.fuse import tuning
from aisfs.fuse.headroom import Headroom
from aisfs.fuse.notifier import Notifier
from aisfs.fuse.operations import Operations, PyfuseKernel, serve, terminate
from aisfs.fuse.pusher import Pusher
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
FSNAME_MAX = 256
"""Characters of the source that `mount` and `df` show; the kernel takes a page of options in all."""
CLOCK = time.monotonic
"""What listings expire by; unlike trio's own clock it may be asked from any thread."""
GRACE_SECONDS = 5
"""How long requests under way may go on after SIGTERM, before they are cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """Everything that is to be known to read a source."""

    source: Source
    cluster: ClusterSettings
    tree: TreeSettings
    cache: CacheSettings
    view: ViewSpec = field(default_factory=ViewSpec)
    """How a dataset is laid out; other sources are shown as they are."""
    keys: KeyFilter = EVERY_KEY
    """What of a bucket, prefix or directory is shown; a dataset has a filter of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPlan(SourcePlan):
    """Everything a mount needs to know."""

    mountpoint: Path
    options: frozenset[str]
    """Mount options for the kernel, as of `mount -o`."""
    kernel: KernelSettings


@dataclass(slots=True)
class Stop:
    """How a mount is asked to end: at once while it is being built, then by unmounting."""

    ask: Callable[[], None]


def is_local(source: Source) -> bool:
    """Say whether a source needs no cluster."""
    return isinstance(source, DirectorySource) or (
        isinstance(source, DatasetSource) and source.local
    )


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
    mountpoints.check_fuse(lane=plan.kernel.lane)
    mountpoints.prepare(plan.mountpoint, allow_nonempty="nonempty" in plan.options)


async def run(plan: MountPlan, on_ready: Callable[[], None]) -> None:
    """Mount and serve until unmounted from outside or told to stop by SIGTERM or SIGINT.

    Raises:
        AisfsError: the cluster, the bucket or the kernel refused; nothing is left mounted.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    plan, direct, root = open_source(plan)
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
            refused: AisfsError | None = None
            async with background_thread() as background, trio.open_nursery() as services:
                foundation = Foundation(store, blocks, services, background, metrics)
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


PlanT = TypeVar("PlanT", bound=SourcePlan)


def open_source(plan: PlanT) -> tuple[PlanT, ObjectStore, Node]:
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
        case DatasetSource():
            for bucket in source.buckets:
                await _check_bucket(store, bucket, "")
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
    assembler: Assembler


def build_engine(plan: SourcePlan, base: Foundation, root: Node) -> Engine:
    """Put the services together that read a source."""
    ttls = plan.tree
    cache = MetadataCache(
        attr_ttl=ttls.attr_ttl, list_ttl=ttls.list_ttl, negative_ttl=ttls.negative_ttl, clock=CLOCK
    )
    lister = Lister(
        base.store,
        cache,
        base.services,
        list_ttl=ttls.list_ttl,
        clock=CLOCK,
        metrics=base.metrics,
        wanted=plan.keys.below(root.prefix if isinstance(root, DirectoryNode) else ""),
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
    reader = Reader(fetcher, prefetcher, unpacker)
    return Engine(lister, fetcher, indexer, reader, Assembler(fetcher, plan.cache.read_ahead_max))


async def _build(
    plan: MountPlan, base: Foundation, root: Node, on_ready: Callable[[], None]
) -> tuple[Operations, LaneSession | None]:
    engine = build_engine(plan, base, root)
    make = AttrMaker(plan.tree, time.time_ns())
    folders = ShardFolders(engine.indexer, make)
    look_inside = engine.indexer.is_archive if plan.tree.magic else None
    plain = Tree(engine.lister, plan.tree.shards, look_inside)
    tree: Names = plain
    if isinstance(plan.source, DatasetSource):
        tree = await _build_dataset(plan, plan.source, base, engine)
    filesystem = FileSystem(
        root,
        tree=tree,
        folders=folders,
        reader=engine.reader,
        assembler=engine.assembler,
        make=make,
        clock=CLOCK,
        list_ttl=plan.tree.list_ttl,
    )
    filesystem.kernel = PyfuseKernel()
    plain.watch(filesystem.listing_changed)
    _describe(plan, base, filesystem)

    async def report() -> None:
        # A task, so that it runs when the kernel has the reply to INIT, which sets the defaults.
        # The lane has asked for more requests in the background already, which needs no root.
        background = not plan.kernel.lane
        await trio.to_thread.run_sync(partial(tuning.tune, plan.mountpoint, background=background))
        log.info("mounted %s on %s", plan.source, plan.mountpoint)
        on_ready()

    operations = Operations(
        filesystem,
        Xattrs(filesystem, folders, base.metrics),
        base.metrics,
        negative_timeout=plan.tree.negative_ttl,
        on_ready=lambda: base.services.start_soon(report),
    )
    if not plan.kernel.lane:
        return operations, None
    known = Known(filesystem, tree, folders, engine.reader)
    members = Members(filesystem, folders, engine.reader)

    def observe(notifier: Notifier) -> Pusher:
        pusher = Pusher(notifier, members, Headroom().room, base.metrics)
        engine.fetcher.on_landed = pusher.landed
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


async def _build_dataset(
    plan: MountPlan, source: DatasetSource, base: Foundation, engine: Engine
) -> Names:
    view = plan.view
    if view.view is View.SHARDS:
        return await _build_virtual(view, source, base, engine)
    shards = await find_shards(source, engine.lister, base.store, base.metrics)
    if not view.merged:
        return DatasetTree(shards)
    table = None
    if view.view is View.CLASS and view.label.source is LabelSource.TABLE:
        table = await read_table(base.store, source, view.label.text)
    merger = Merger(
        shards,
        engine.indexer,
        engine.reader.read_whole,
        view,
        base.services,
        base.metrics,
        table=table,
    )
    return MergedTree(merger, repr(view))


async def _build_virtual(
    view: ViewSpec, source: DatasetSource, base: Foundation, engine: Engine
) -> Names:
    found = await find_loose_objects(source, engine.lister)
    cut = len(found.directory)
    shards, unused = await trio.to_thread.run_sync(
        virtual_shards, found.objects, cut, view.split, view.rule, view.require
    )
    left_out = found.left_out + unused
    if not shards:
        raise SourceMissing(f"{source}: {nothing(left_out)}")
    base.metrics.dataset_shards.labels("shown").set(len(shards))
    for reason, number in left_out.items():
        base.metrics.left_out.labels(reason.replace(" ", "_")).set(number)
    log.info("%d virtual shards of %d objects of %s", len(shards), sum(map(len, shards)), source)
    return VirtualTree(found.bucket, shards, left_out)


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
        lay_out=_lay_out(plan.view),
        # Common directories hold the indexes of all their shards anyway.
        memory_limit=float("inf") if plan.view.merged else INDEX_BYTES_MAX,
        magic=plan.tree.magic,
    )


def _kernel_options(plan: MountPlan) -> set[str]:
    # noatime: else every read would make the kernel ask for attributes again.
    return {
        "ro",
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
