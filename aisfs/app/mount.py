"""The composition root: builds a mount bottom up, runs it, and takes it down in reverse."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import trio

from aisfs.app.dataset import build_dataset
from aisfs.app.plan import MountPlan, check_places, is_local, origin_of
from aisfs.app.services import CLOCK, Services, open_services
from aisfs.core.namespace.sources import DatasetSource, DirectorySource
from aisfs.engine.write.writer import Writer
from aisfs.errors import AccessDenied, SourceMissing
from aisfs.filesystem.attributes import AttrMaker
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.instant import InstantAnswers
from aisfs.filesystem.open_shards import Members
from aisfs.filesystem.shard_folders import ShardFolders
from aisfs.filesystem.trees.bucket_tree import Names, Tree
from aisfs.filesystem.write.layer import WriteLayer, write_layer
from aisfs.filesystem.xattrs import Xattrs
from aisfs.fuse.mounting import kernel_settings
from aisfs.fuse.mounting import mountpoint as mountpoints
from aisfs.fuse.notifier import Notifier
from aisfs.fuse.push.memory_budget import PageCacheBudget
from aisfs.fuse.push.pusher import Pusher
from aisfs.fuse.pyfuse.operations import Operations
from aisfs.fuse.pyfuse.serving import PyfuseKernel, serve, serves_descriptors, terminate
from aisfs.fuse.session import FastPathSession
from aisfs.process import descriptors
from aisfs.process.memory import map_large_blocks

log = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""How long a thread that computes may keep the others waiting. Python's 5 ms would delay every
request while a shard is scanned (docs/PERFORMANCE.md)."""
FSNAME_MAX = 256
"""Characters of the source that `mount` and `df` show; the kernel takes one page of options."""
GRACE_SECONDS = 5
"""How long requests under way may go on after SIGTERM, before they are cancelled."""


def check(plan: MountPlan) -> None:
    """Check everything that can be checked without asking the cluster.

    Raises:
        MountError, FuseUnavailable, SourceMissing, AccessDenied: the message says why.
    """
    if isinstance(plan.source, DirectorySource):
        if not plan.source.path.is_dir():
            raise SourceMissing(
                f"{plan.source.path}: no such directory; a bucket is written ais://BUCKET"
            )
        if not os.access(plan.source.path, os.R_OK | os.X_OK):
            raise AccessDenied(
                f"{plan.source.path}: permission denied: you cannot read this directory"
            )
    if isinstance(plan.source, DatasetSource) and plan.source.local:
        root = plan.source.common_directory(os.path.realpath)
        if not os.path.isdir(root):
            raise SourceMissing(f"{root}: no such directory")
    check_places(plan)
    mountpoints.check_fuse(fastpath=plan.kernel.fastpath)
    mountpoints.prepare(plan.mountpoint, allow_nonempty="nonempty" in plan.options)


class Session(Protocol):
    """What serves a mount."""

    async def serve(self, mountpoint: Path, options: set[str]) -> None:
        """Mount, answer until unmounted or `terminate` is called, and unmount."""
        ...

    def terminate(self) -> None:
        """Make `serve` return once the requests under way are answered."""
        ...


@dataclass(frozen=True, slots=True)
class _PyfuseSession:
    """Serves a mount through pyfuse3 alone."""

    operations: Operations

    async def serve(self, mountpoint: Path, options: set[str]) -> None:
        await serve(self.operations, str(mountpoint), options - {"nonempty"})

    def terminate(self) -> None:
        terminate()


async def run(plan: MountPlan, on_ready: Callable[[], None]) -> None:
    """Mount and serve until unmounted from outside or told to stop by a signal.

    Raises:
        AisfsError: the cluster, the bucket or the kernel refused; nothing is left mounted.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    map_large_blocks()
    descriptors.allow_many()
    if plan.kernel.fastpath and not serves_descriptors():
        log.warning("mounting without the fast path, which needs libfuse 3.3 or later")
        plan = replace(plan, kernel=plan.kernel.model_copy(update={"fastpath": False}))
    async with open_services(plan) as services:
        with trio.open_signal_receiver(*_ending_signals()) as signals:
            session: Session | None = None
            scope = trio.CancelScope()

            async def end_on_signal(*, task_status: trio.TaskStatus[None]) -> None:
                task_status.started()
                async for number in signals:
                    log.info("unmounting on %s", signal.Signals(number).name)
                    if session is None:  # it is still being built
                        scope.cancel()
                    else:
                        session.terminate()
                    await trio.sleep(GRACE_SECONDS)
                    scope.cancel()

            # It waits before anything can fail: a receiver that is closed may not be asked any more.
            await services.nursery.start(end_on_signal)
            with scope:
                plan = replace(plan, source=services.source)
                session = await _build(plan, services, on_ready)
                await session.serve(plan.mountpoint, _kernel_options(plan))
            with trio.move_on_after(GRACE_SECONDS):
                await services.flush()
    log.info("unmounted %s", plan.mountpoint)


async def _build(plan: MountPlan, services: Services, on_ready: Callable[[], None]) -> Session:
    make = AttrMaker(plan.tree, time.time_ns())
    folders = ShardFolders(services.indexer, make)
    look_inside = services.indexer.is_archive if plan.tree.magic else None
    plain = Tree(services.lister, plan.tree.shards, look_inside)
    tree: Names = plain
    if isinstance(plan.source, DatasetSource):
        tree = await build_dataset(plan.view, plan.source, services)
    filesystem = FileSystem(
        services.root,
        tree=tree,
        folders=folders,
        reader=services.reader,
        assembler=services.assembler,
        make=make,
        clock=CLOCK,
        list_ttl=plan.tree.list_ttl,
        kernel=PyfuseKernel(),
        overlay=services.lister.overlay if services.staging is not None else None,
    )
    write = _build_write_layer(plan, services, filesystem, plain)
    services.hooks.listing_changed = plain.with_all_names(filesystem.listing_changed)
    services.hooks.content_was_wrong = filesystem.content_was_wrong
    _describe(plan, services, filesystem)

    async def report() -> None:
        # This is a task so that it runs after the kernel got the reply to INIT, which sets defaults.
        # The fast path raises the limit on background requests in INIT, which does not need root.
        background = not plan.kernel.fastpath
        await trio.to_thread.run_sync(_tune, plan.mountpoint, background)
        log.info("mounted %s on %s", plan.source, plan.mountpoint)
        on_ready()

    operations = Operations(
        filesystem,
        write,
        Xattrs(filesystem, services.metrics, services.coverage),
        services.metrics,
        negative_timeout=plan.tree.negative_ttl,
        on_ready=lambda: services.nursery.start_soon(report),
    )
    if not plan.kernel.fastpath:
        services.nursery.start_soon(operations.watch_callers)
        return _PyfuseSession(operations)
    return _build_fast_path(services, operations, filesystem, write)


def _build_fast_path(
    services: Services, operations: Operations, filesystem: FileSystem, write: WriteLayer | None
) -> FastPathSession:
    members = Members(filesystem, services.reader)

    def observe(notifier: Notifier) -> Pusher:
        pusher = Pusher(notifier, members, PageCacheBudget().room, services.metrics)
        services.hooks.landed = pusher.landed
        return pusher

    return FastPathSession(
        operations,
        filesystem,
        InstantAnswers(filesystem, services.reader),
        write,
        services.metrics,
        negative_timeout=operations.negative_timeout,
        observe=observe,
        on_fault=services.blocks.distrust if services.blocks is not None else lambda _: None,
    )


def _build_write_layer(
    plan: MountPlan,
    services: Services,
    filesystem: FileSystem,
    tree: Tree,
) -> WriteLayer | None:
    if services.staging is None:
        return None
    writer = Writer(
        services.store,
        services.staging,
        services.nursery,
        endpoint=origin_of(plan),
        ignore_zeros=plan.tree.ignore_zeros,
        indexer=services.indexer,
    )
    return write_layer(filesystem, tree, services.lister.overlay, writer, plan.writing, CLOCK)


def _describe(plan: MountPlan, services: Services, filesystem: FileSystem) -> None:
    """Show in the counters what is mounted, and how full its cache is."""
    metrics, blocks, staging = services.metrics, services.blocks, services.staging
    endpoint = "" if is_local(plan.source) else plan.cluster.endpoint
    directory = "" if blocks is None else str(plan.cache.cache_dir)
    names = (str(plan.source), endpoint, directory)
    metrics.mount.labels(*(os.fsencode(n).decode(errors="replace") for n in names)).set(1)

    def update() -> None:
        metrics.inodes.set(len(filesystem.inodes))
        if staging is not None:
            metrics.staging_limit.set(staging.limit)
            metrics.staging_used.set(staging.used)
        if blocks is not None:
            counts = blocks.counts()
            metrics.cache_limit.set(blocks.limit)
            metrics.cache_used.set(counts.used)
            metrics.cache_hits.set(counts.hits)
            metrics.cache_misses.set(counts.misses)

    metrics.before_text.append(update)


def _tune(mountpoint: Path, background: bool) -> None:
    # This returns only once the kernel has the reply to INIT, which another thread may be sending.
    with suppress(OSError):
        os.statvfs(mountpoint)
    kernel_settings.tune(mountpoint, background=background)


def _kernel_options(plan: MountPlan) -> set[str]:
    # Without noatime, every read would make the kernel ask for attributes again.
    return {
        "rw" if plan.writing.writable else "ro",
        "noatime",
        "default_permissions",
        "subtype=aisfs",
        f"fsname={str(plan.source).replace(',', '_')[:FSNAME_MAX]}",
    } | plan.options


def _ending_signals() -> list[signal.Signals]:
    """Return the signals that unmount; by default they would end the process and leave a dead mount."""
    ending = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
        ending.append(signal.SIGHUP)
    return ending
