"""The composition root: builds a mount bottom up, runs it, and takes it down in reverse."""

import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio

from aisfs.app.plan import MountPlan, check_places, is_local, origin_of
from aisfs.app.services import (
    CLOCK,
    Engine,
    Foundation,
    build_engine,
    check_source,
    open_cache,
    open_source,
)
from aisfs.cache.disk.block_cache import BlockCache
from aisfs.config import View
from aisfs.core.namespace.sources import DatasetSource, DirectorySource
from aisfs.core.synthetic.tar import LooseShard, VirtualShard, loose_shards
from aisfs.core.views.spec import LabelSource, ViewSpec
from aisfs.engine.dataset.label_table import read_table
from aisfs.engine.dataset.loose_objects import find_loose_objects, nothing
from aisfs.engine.dataset.merger import Merger
from aisfs.engine.dataset.reshuffler import reshuffle
from aisfs.engine.dataset.shard_set import find_shards
from aisfs.engine.fetch.writer_thread import background_thread
from aisfs.engine.listing.overlay import OverlaidLister
from aisfs.engine.write.staging import StagingArea
from aisfs.engine.write.writer import Writer
from aisfs.errors import AccessDenied, AisfsError, SourceMissing, Unavailable
from aisfs.filesystem.attributes import AttrMaker
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.instant import InstantAnswers
from aisfs.filesystem.nodes import Node
from aisfs.filesystem.open_shards import Members
from aisfs.filesystem.shard_folders import ShardFolders
from aisfs.filesystem.trees.bucket_tree import Names, Tree
from aisfs.filesystem.trees.dataset_tree import DatasetTree
from aisfs.filesystem.trees.merged_tree import MergedTree
from aisfs.filesystem.trees.synthetic_tree import SyntheticTree
from aisfs.filesystem.write.instant import WritableInstantAnswers
from aisfs.filesystem.write.rename import NamingFileSystem
from aisfs.filesystem.xattrs import Xattrs
from aisfs.fuse.mounting import kernel_settings
from aisfs.fuse.mounting import mountpoint as mountpoints
from aisfs.fuse.notifier import Notifier
from aisfs.fuse.push.memory_budget import PageCacheBudget
from aisfs.fuse.push.pusher import Pusher
from aisfs.fuse.pyfuse.reading import Operations
from aisfs.fuse.pyfuse.serving import PyfuseKernel, serve, serves_descriptors, terminate
from aisfs.fuse.pyfuse.writing import WritableOperations
from aisfs.fuse.session import FastPathSession
from aisfs.metrics import Metrics
from aisfs.process import descriptors
from aisfs.process.memory import map_large_blocks
from aisfs.store.metered import MeteredStore
from aisfs.store.retry import RetryingStore

log = logging.getLogger(__name__)

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
    if isinstance(plan.source, DirectorySource):
        if not plan.source.path.is_dir():
            raise SourceMissing(
                f"{plan.source.path}: no such directory; a bucket is written ais://BUCKET"
            )
        if not os.access(plan.source.path, os.R_OK | os.X_OK):
            raise AccessDenied(f"{plan.source.path}: it may not be read by who mounts")
    if isinstance(plan.source, DatasetSource) and plan.source.local:
        root = plan.source.common_directory(os.path.realpath)
        if not os.path.isdir(root):
            raise SourceMissing(f"{root}: no such directory")
    check_places(plan)
    mountpoints.check_fuse(lane=plan.kernel.lane)
    mountpoints.prepare(plan.mountpoint, allow_nonempty="nonempty" in plan.options)


async def run(plan: MountPlan, on_ready: Callable[[], None]) -> None:
    """Mount and serve until unmounted from outside or told to stop by a signal.

    Raises:
        AisfsError: the cluster, the bucket or the kernel refused; nothing is left mounted.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    map_large_blocks()
    descriptors.allow_many()
    if plan.kernel.lane and not serves_descriptors():
        log.warning("mounting without the lane, which is slower: it needs libfuse 3.3 or later")
        plan = replace(plan, kernel=plan.kernel.model_copy(update={"lane": False}))
    plan, direct, root = open_source(plan)
    blocks: BlockCache | None = None
    staging: StagingArea | None = None
    try:
        try:
            await check_source(direct, plan.source)
        except Unavailable as error:
            raise Unavailable(f"{plan.cluster.endpoint} does not answer: {error}") from error
        blocks = await trio.to_thread.run_sync(open_cache, plan)
        if plan.writing.writable:
            staging = await trio.to_thread.run_sync(
                StagingArea, plan.writing.staging_dir, plan.writing.staging_limit()
            )
        metrics = Metrics()
        store = MeteredStore(RetryingStore(direct, deadline=plan.cluster.io_timeout), metrics)
        with trio.open_signal_receiver(*_ending_signals()) as signals:
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


async def _serve(plan: MountPlan, operations: Operations, lane: FastPathSession | None) -> None:
    options = _kernel_options(plan)
    if lane is not None:
        await lane.serve(plan.mountpoint, options)
    else:
        await serve(operations, str(plan.mountpoint), options - {"nonempty"})


async def _build(
    plan: MountPlan, base: Foundation, root: Node, on_ready: Callable[[], None]
) -> tuple[Operations, FastPathSession | None]:
    engine = build_engine(plan, base, root)
    make = AttrMaker(plan.tree, time.time_ns())
    folders = ShardFolders(engine.indexer, make)
    look_inside = engine.indexer.is_archive if plan.tree.magic else None
    plain = Tree(engine.lister, plan.tree.shards, look_inside)
    tree: Names = plain
    if isinstance(plan.source, DatasetSource):
        tree = await _build_dataset(plan, plan.source, base, engine)
    filesystem = _build_filesystem(plan, base, root, tree, engine, folders, make)
    filesystem.kernel = PyfuseKernel()
    plain.watch(filesystem.listing_changed)
    engine.fetcher.on_wrong = filesystem.content_was_wrong
    _describe(plan, base, filesystem)

    async def report() -> None:
        # A task, so that it runs when the kernel has the reply to INIT, which sets the defaults.
        # The lane has asked for more requests in the background already, which needs no root.
        background = not plan.kernel.lane
        await trio.to_thread.run_sync(_tune, plan.mountpoint, background)
        log.info("mounted %s on %s", plan.source, plan.mountpoint)
        on_ready()

    kind = WritableOperations if isinstance(filesystem, NamingFileSystem) else Operations
    operations = kind(
        filesystem,
        Xattrs(filesystem, folders, base.metrics, engine.keeping),
        base.metrics,
        negative_timeout=plan.tree.negative_ttl,
        on_ready=lambda: base.services.start_soon(report),
    )
    if not plan.kernel.lane:
        base.services.start_soon(operations.watch_callers)
        return operations, None
    return operations, _build_lane(base, operations, filesystem, tree, engine, folders)


def _build_lane(
    base: Foundation,
    operations: Operations,
    filesystem: FileSystem,
    tree: Names,
    engine: Engine,
    folders: ShardFolders,
) -> FastPathSession:
    known: InstantAnswers
    if isinstance(filesystem, NamingFileSystem):
        known = WritableInstantAnswers(filesystem, tree, folders, engine.reader)
    else:
        known = InstantAnswers(filesystem, tree, folders, engine.reader)
    members = Members(filesystem, folders, engine.reader)

    def observe(notifier: Notifier) -> Pusher:
        pusher = Pusher(notifier, members, PageCacheBudget().room, base.metrics)
        engine.fetcher.on_landed = pusher.landed
        return pusher

    return FastPathSession(
        operations,
        filesystem,
        known,
        base.metrics,
        negative_timeout=operations.negative_timeout,
        observe=observe,
        on_fault=base.blocks.distrust if base.blocks is not None else lambda _: None,
    )


def _build_filesystem(
    plan: MountPlan,
    base: Foundation,
    root: Node,
    tree: Names,
    engine: Engine,
    folders: ShardFolders,
    make: AttrMaker,
) -> FileSystem:
    if base.staging is None:
        return FileSystem(
            root,
            tree=tree,
            folders=folders,
            reader=engine.reader,
            assembler=engine.assembler,
            make=make,
            clock=CLOCK,
            list_ttl=plan.tree.list_ttl,
        )
    assert isinstance(engine.lister, OverlaidLister), "a mount with staging has one"
    assert isinstance(tree, Tree), "a dataset is never writable"
    return NamingFileSystem(
        root,
        tree=tree,
        folders=folders,
        reader=engine.reader,
        assembler=engine.assembler,
        lister=engine.lister,
        make=make,
        clock=CLOCK,
        writer=Writer(
            base.store,
            base.staging,
            base.services,
            endpoint=origin_of(plan),
            ignore_zeros=plan.tree.ignore_zeros,
            indexer=engine.indexer,
        ),
        settings=plan.writing,
    )


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
    shards: Sequence[VirtualShard]
    if view.shuffle is not None:
        found = await find_shards(source, engine.lister, base.store, base.metrics)
        shards, exclusions = await reshuffle(found, engine.indexer, view)
    else:
        shards, exclusions = await _of_loose_objects(view, source, engine)
    base.metrics.dataset_shards.labels("shown").set(len(shards))
    for reason, number in exclusions.items():
        base.metrics.exclusions.labels(reason.replace(" ", "_")).set(number)
    log.info("%d virtual shards of %s", len(shards), source)
    return SyntheticTree(shards, exclusions)


async def _of_loose_objects(
    view: ViewSpec, source: DatasetSource, engine: Engine
) -> tuple[list[LooseShard], Counter[str]]:
    found = await find_loose_objects(source, engine.lister)
    make = partial(
        loose_shards,
        cut=len(found.directory),
        split=view.split,
        rule=view.rule,
        require=view.require,
    )
    shards, unused = await trio.to_thread.run_sync(make, found.bucket, found.objects)
    exclusions = found.exclusions + unused
    if not shards:
        raise SourceMissing(f"{source}: {nothing(exclusions)}")
    return shards, exclusions


def _describe(plan: MountPlan, base: Foundation, filesystem: FileSystem) -> None:
    """Let the counters say what is mounted and how its cache does."""
    metrics, blocks = base.metrics, base.blocks
    endpoint = "" if is_local(plan.source) else plan.cluster.endpoint
    directory = "" if blocks is None else str(plan.cache.cache_dir)
    names = (str(plan.source), endpoint, directory)
    metrics.mount.labels(*(os.fsencode(n).decode(errors="replace") for n in names)).set(1)

    def update() -> None:
        metrics.inodes.set(len(filesystem.inodes))
        if base.staging is not None:
            metrics.staging_limit.set(base.staging.limit)
            metrics.staging_used.set(base.staging.used)
        if blocks is not None:
            counts = blocks.counts()
            metrics.cache_limit.set(blocks.limit)
            metrics.cache_used.set(counts.used)
            metrics.cache_hits.set(counts.hits)
            metrics.cache_misses.set(counts.misses)

    metrics.before_text.append(update)


def _tune(mountpoint: Path, background: bool) -> None:
    # Answered only when the kernel has taken the reply to INIT, which another thread may carry.
    with suppress(OSError):
        os.statvfs(mountpoint)
    kernel_settings.tune(mountpoint, background=background)


def _kernel_options(plan: MountPlan) -> set[str]:
    # noatime: else every read would make the kernel ask for attributes again.
    return {
        "rw" if plan.writing.writable else "ro",
        "noatime",
        "default_permissions",
        "subtype=aisfs",
        f"fsname={str(plan.source).replace(',', '_')[:FSNAME_MAX]}",
    } | plan.options


def _ending_signals() -> list[signal.Signals]:
    """Give the signals that unmount: one that just ended the process would leave a dead mount."""
    ending = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
        ending.append(signal.SIGHUP)
    return ending


async def _stop_on_signal(
    signals: AsyncIterator[int], session: trio.CancelScope, stop: Stop
) -> None:
    async for number in signals:
        log.info("unmounting on %s", signal.Signals(number).name)
        stop.ask()
        await trio.sleep(GRACE_SECONDS)
        session.cancel()
