"""The composition root: builds a mount bottom up, runs it, and takes it down in reverse."""

import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from aisfs.core.names.sources import DatasetSource, DirectorySource, missing_path
from aisfs.engine.dataset.merger import Merger
from aisfs.engine.dataset.shard_set import OpenProgress
from aisfs.errors import AccessDenied, AisfsError, SourceMissing
from aisfs.filesystem.filesystem import FileSystem, InstantAnswers, Members
from aisfs.filesystem.inodes import ShardFolders
from aisfs.filesystem.nodes import LONGEST_TIMEOUT, AttrMaker, DirectoryNode
from aisfs.filesystem.plans import Plans, Recorder, read_recorded
from aisfs.filesystem.takeover import Forgotten, NumberLog
from aisfs.filesystem.trees import Names, Tree
from aisfs.filesystem.writing.setattr import WriteLayer
from aisfs.filesystem.xattrs import Xattrs
from aisfs.fuse import mountpoint as mountpoints
from aisfs.fuse.dispatcher import Observer
from aisfs.fuse.mountpoint import check_descriptor, descriptor_of
from aisfs.fuse.notifier import Notifier
from aisfs.fuse.operations import Operations, PyfuseKernel, serve, serves_descriptors, terminate
from aisfs.fuse.pusher import PageCacheBudget, Pusher
from aisfs.fuse.session import FastPathSession
from aisfs.mount.dataset import build_dataset
from aisfs.mount.memory import memory_limits
from aisfs.mount.monitoring import About, Health, MetricsServer, describe, listen, serve_metrics
from aisfs.mount.recovery import build_write_layer, upload_rest
from aisfs.mount.services import CLOCK, Services, open_numbers, open_services
from aisfs.mount.setup import MountSetup, check_places
from aisfs.settings import TreeSettings, View
from aisfs.system import daemon
from aisfs.system.keeping import Keeping, can_keep
from aisfs.system.logs import RecentWarnings
from aisfs.system.memory import map_large_blocks

log = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""How long a thread that computes may keep the others waiting. Python's 5 ms would delay every
request while a shard is scanned (docs/PERFORMANCE.md)."""
FSNAME_MAX = 256
"""Characters of the source that `mount` and `df` show; the kernel takes one page of options."""
TOLD_SECONDS = 0.2
"""Between reports of progress: often enough for a bar to move, and cheap."""
GRACE_SECONDS = 5
"""How long requests under way may go on after SIGTERM, before they are cancelled."""


def check(setup: MountSetup) -> None:
    """Check everything that can be checked without asking the cluster.

    Raises:
        MountError, FuseUnavailable, SourceMissing, AccessDenied: the message says why.
    """
    if isinstance(setup.source, DirectorySource):
        if not setup.source.path.is_dir():
            raise SourceMissing(missing_path(setup.source.path, "directory"))
        if not os.access(setup.source.path, os.R_OK | os.X_OK):
            raise AccessDenied(
                f"{setup.source.path}: permission denied: you cannot read this directory"
            )
    if isinstance(setup.source, DatasetSource) and setup.source.local:
        root = setup.source.common_directory(os.path.realpath)
        if not os.path.isdir(root):
            raise SourceMissing(missing_path(root, "directory"))
    inherited = descriptor_of(setup.mountpoint)
    if inherited is not None:
        check_descriptor(inherited, setup.options)
        os.set_inheritable(inherited, False)  # a keeper gets it from the daemon, and lets go of it
        return
    check_places(setup)
    mountpoints.check_fuse(fastpath=setup.kernel.fastpath)
    mountpoints.prepare(setup.mountpoint, allow_nonempty="nonempty" in setup.options)


def can_outlive(setup: MountSetup) -> bool:
    """Return whether another daemon may go on with a mount when its own dies.

    Not without the fast path, where libfuse has the device.
    """
    kernel = setup.kernel
    if not kernel.keeper or not kernel.fastpath:
        return False
    if not can_keep():
        log.info("this mount ends with its daemon: going on needs Linux 6.9 or later")
        return False
    return True


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


class Start(Protocol):
    """Receives the progress of the start of a mount."""

    def progress(self, state: Mapping[str, int | str | None]) -> None:
        """Note how far the shards of a dataset are that have to be opened first.

        Args:
            state: `shards` (None until they are known), how many are `opened`, the `files` they show,
                `noun` (what these files are), and the `bytes` that were fetched.
        """
        ...

    def ready(self, note: str) -> None:
        """Note that the mount is up, and the dataset ready unless the setup is lazy.

        Args:
            note: What the user should know about it; empty for nothing.
        """
        ...


class _Observers:
    """Tells of reads those who follow their order, besides the pusher."""

    def __init__(self, pusher: Pusher, followers: Sequence[Callable[[int], None]]) -> None:
        self._read = pusher.was_read
        self._followers = followers
        self.was_listed = pusher.was_listed

    def was_read(self, ino: int, offset: int, size: int) -> None:
        self._read(ino, offset, size)
        if not offset and size:
            for follower in self._followers:
                follower(ino)


Reload = Callable[[], TreeSettings | None]
"""Reads the configuration files again and changes the log; returns the times to live, unless it failed."""


class _Launch:
    """The start of one mount: what comes after the kernel has it, and how far it is."""

    def __init__(
        self,
        setup: MountSetup,
        services: Services,
        start: Start,
        health: Health,
        end: Callable[[], Awaitable[None]],
    ) -> None:
        self.progress = OpenProgress()
        self.merger: Merger | None = None
        """Of a dataset that is opened as a whole."""
        self.set_ttls: Callable[[TreeSettings], None] = lambda _: None
        """Uses other times to live."""
        self.failure: AisfsError | None = None
        """Why the dataset cannot be shown."""
        self.write: WriteLayer | None = None
        """Of a mount that can be written."""
        self._setup = setup
        self._services = services
        self._start = start
        self._health = health
        self._end = end
        self.keep_numbers: Callable[[], None] = lambda: None
        """Keeps for the next mount what inode numbers stand for. Waits for the disk."""
        self.keeping: Keeping | None = None
        """Of a mount that outlives its daemon."""
        self._telling = trio.CancelScope()

    @asynccontextmanager
    async def numbers(self) -> AsyncIterator[None]:
        """Keep at the end of the block what file handles of this mount name."""
        yield
        await trio.to_thread.run_sync(self.keep_numbers)

    async def tell(self) -> None:
        """Say how far the shards are until they are all open, if the start waits for them."""
        view = self._setup.view
        if not view.reshaped and (not view.merged or self._setup.lazy):
            return
        noun = "files" if view.view is View.FLAT else "samples"
        with self._telling:
            while True:
                now = self.progress
                state = {"shards": now.shards, "opened": now.opened, "files": now.files}
                fetched = self._services.metrics.fetched()
                self._start.progress({**state, "noun": noun, "bytes": fetched})
                await trio.sleep(TOLD_SECONDS)

    async def finish(self) -> None:
        """Tune the mount and open the dataset; say that it is ready, or unmount.

        This is a task so that it runs after the kernel got the reply to INIT, which sets defaults.
        """
        # The fast path raises the limit on background requests in INIT, which does not need root.
        memory = self._services.fetcher.memory_limit
        within = None if self._setup.kernel.fastpath else mountpoints.background_within(memory)
        await trio.to_thread.run_sync(_tune, self._setup.mountpoint, within)
        log.info("mounted %s on %s", self._setup.source, self._setup.mountpoint)
        if self._services.ping is not None:  # a directory is read from the page cache
            self._services.fetcher.pool.wants_ready = True
        if self.merger is not None and not self._setup.lazy:
            try:
                await self.merger.merged()
            except AisfsError as error:
                self.failure = error
                await self._end()
                return
        self._telling.cancel()
        self._health.is_ready = True
        if self.keeping is not None:
            self.keeping.ready()
        self._start.ready(self.merger.note if self.merger is not None else "")


async def run(
    setup: MountSetup,
    start: Start,
    warnings: RecentWarnings,
    reload: Reload | None = None,
    keeping: Keeping | None = None,
) -> None:
    """Mount and serve until unmounted from outside or told to stop by a signal.

    Args:
        setup: What and where.
        start: Told how it goes.
        warnings: Shown by `aisfs status`.
        reload: What SIGHUP does; None to unmount.
        keeping: What lets another daemon go on with the mount if this one dies; None for nothing. This one may go on
            with the mount of another.

    Raises:
        AisfsError: the cluster, the bucket, the dataset or the kernel refused; nothing is left mounted.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    map_large_blocks()
    daemon.allow_many()
    if setup.kernel.fastpath and not serves_descriptors():
        log.warning("mounting without the fast path, which needs libfuse 3.3 or later")
        setup = replace(setup, kernel=setup.kernel.changed(fastpath=False))
    memory_limits(setup.cache).tell()
    with listen(
        setup.monitoring, shared=keeping is not None and keeping.takeover is not None
    ) as server:
        await _serve(setup, start, warnings, server, reload, keeping)
    log.info("unmounted %s", setup.mountpoint)


async def _serve(
    setup: MountSetup,
    start: Start,
    warnings: RecentWarnings,
    server: MetricsServer | None,
    reload: Reload | None,
    keeping: Keeping | None,
) -> None:
    """Mount and serve; the counters, too, if there is a `server`."""
    async with _open_services(setup, keeping) as services:
        health = Health(services.metrics, services.ping)
        with trio.open_signal_receiver(*_ending_signals()) as signals:
            session: Session | None = None
            launch: _Launch | None = None
            scope = trio.CancelScope()
            finishing: trio.CancelScope | None = None

            async def end() -> None:
                if session is None:  # it is still being built
                    scope.cancel()
                else:
                    session.terminate()
                await trio.sleep(GRACE_SECONDS)
                scope.cancel()

            async def end_on_signal(*, task_status: trio.TaskStatus[None]) -> None:
                task_status.started()
                async for number in signals:
                    if number == signal.SIGHUP and reload is not None:
                        tree = reload()
                        if tree is not None and launch is not None:
                            launch.set_ttls(tree)
                        continue
                    log.info("unmounting on %s", signal.Signals(number).name)
                    if finishing is not None:
                        finishing.cancel()
                    else:
                        await end()

            # It waits before anything can fail: a receiver that is closed may not be asked any more.
            await services.nursery.start(end_on_signal)
            with scope:
                setup = replace(setup, source=services.source)
                launch = _Launch(setup, services, start, health, end)
                services.nursery.start_soon(launch.tell)
                about = About(
                    services.metrics, health, writable=setup.writing.writable, keeping=keeping
                )
                services.nursery.start_soon(about.sample)
                session = await _build(setup, services, launch, warnings, about, keeping)
                async with serve_metrics(server, health), launch.numbers():
                    await session.serve(setup.mountpoint, _kernel_options(setup))
            with trio.move_on_after(GRACE_SECONDS):
                await services.flush()
            if launch is not None and launch.failure is not None:
                raise launch.failure
            if launch is not None and launch.write is not None:
                finishing = trio.CancelScope()  # another signal leaves the rest to the next mount
                await upload_rest(launch.write, finishing)


@asynccontextmanager
async def _open_services(setup: MountSetup, keeping: Keeping | None) -> AsyncIterator[Services]:
    """Open the services; go on with the staged files of the daemon before, and have the keeper lock them."""
    takeover = keeping.takeover if keeping is not None else None
    lock = takeover.lock if takeover is not None else None
    if keeping is not None and keeping.is_upgrade and setup.writing.writable:
        await trio.to_thread.run_sync(keeping.loaded)  # two daemons cannot have the staged files
    async with open_services(setup, lock, restarted=takeover is not None) as services:
        if keeping is not None and services.staging is not None:
            keeping.hold(services.staging.lock)
        yield services


async def _build(
    setup: MountSetup,
    services: Services,
    launch: _Launch,
    warnings: RecentWarnings,
    about: About,
    keeping: Keeping | None,
) -> Session:
    make = AttrMaker(setup.tree, time.time_ns())
    folders = ShardFolders(services.indexer, make)
    look_inside = services.indexer.forms.is_archive if setup.tree.magic else None
    writable = services.staging is not None
    # A READDIR that waits for a page would hold up whoever makes names in the directory; and without the fast path, nobody tells
    # us whose READDIR it is, to end it with its caller.
    reads_pages = not writable and setup.kernel.fastpath
    plain = Tree(services.lister, setup.tree.shards, look_inside, reads_pages=reads_pages)
    tree: Names = plain
    if isinstance(setup.source, DatasetSource):
        dataset = await build_dataset(setup, setup.source, services, launch.progress)
        tree, launch.merger = dataset.tree, dataset.merger
    root = services.root
    if isinstance(setup.source, DatasetSource) and setup.transform.epochs:
        root = DirectoryNode(setup.source.buckets[0], "")  # above the directories of epochs
    filesystem = FileSystem(
        root,
        tree=tree,
        folders=folders,
        reader=services.reader,
        assembler=services.assembler,
        make=make,
        clock=CLOCK,
        list_ttl=setup.tree.list_ttl,
        kernel=PyfuseKernel(),
        overlay=services.lister.overlay if writable else None,
    )
    write = await build_write_layer(setup, services, filesystem, plain)
    launch.write = write
    services.hooks.listing_changed = plain.with_all_names(filesystem.listing_changed)
    services.hooks.content_was_wrong = filesystem.content_was_wrong
    describe(setup, services, filesystem, launch.progress)
    plans = None
    if setup.kernel.fastpath:
        plans = Plans(filesystem, services.reader, services.fetcher, services.nursery)
    operations = Operations(
        filesystem,
        write,
        Xattrs(
            filesystem,
            services.metrics,
            services.coverage,
            warnings,
            reports=about.reports,
            plans=plans,
            flush=write.flush if write is not None else None,
            listed=setup.tree.list_xattrs,
        ),
        services.metrics,
        negative_timeout=setup.tree.negative_ttl,
        on_ready=lambda: services.nursery.start_soon(launch.finish),
    )
    launch.set_ttls = partial(_set_ttls, services, filesystem, operations)
    if plans is None:
        services.nursery.start_soon(operations.watch_callers)
        return _PyfuseSession(operations)
    if services.blocks is not None:
        numbers = open_numbers(setup, services.blocks)
        filesystem.inodes.forgotten = Forgotten(numbers.most, numbers.get)
        launch.keep_numbers = lambda: numbers.put(filesystem.inodes.lasting())
    if keeping is not None:
        await _keep(keeping, services, filesystem, launch)
        if write is not None and keeping.takeover is not None:
            write.restorer.restore(operations.handles.restore, write.committer)
            services.nursery.start_soon(write.restorer.settle, write.committer)
    followers = [plans.was_read]
    goes_on = keeping is not None and keeping.takeover is not None
    if setup.cache.replay is not None and not goes_on:
        recorded = await trio.to_thread.run_sync(read_recorded, setup.cache.replay)
        plans.announce("replay", *recorded)
    if setup.cache.record is not None:
        recorder = Recorder(filesystem, setup.cache.record, go_on=goes_on)
        services.nursery.start_soon(recorder.record)
        followers.append(recorder.was_read)
    return _build_fast_path(services, operations, filesystem, write, keeping, followers)


async def _keep(
    keeping: Keeping, services: Services, filesystem: FileSystem, launch: _Launch
) -> None:
    """Note what another daemon would need, and in one of an upgrade wait until the one before is gone."""
    if keeping.is_upgrade and launch.write is None:
        if launch.merger is not None:
            await launch.merger.merged()
        await trio.to_thread.run_sync(keeping.loaded)
    launch.keeping = keeping
    if keeping.takeover is not None:
        services.metrics.restarts.inc(keeping.takeover.restarts)
    keeping.listen()
    numbers = NumberLog(keeping.numbers)
    filesystem.take_over(numbers)
    if services.readiness is not None:
        if (known := numbers.get("map")) is not None:
            services.readiness.go_on(known)
        services.readiness.note = partial(filesystem.inodes.fact, "map")
        services.readiness.note(services.readiness.known)
    services.nursery.start_soon(filesystem.shorten_log)


def _build_fast_path(
    services: Services,
    operations: Operations,
    filesystem: FileSystem,
    write: WriteLayer | None,
    keeping: Keeping | None,
    followers: Sequence[Callable[[int], None]],
) -> FastPathSession:
    members = Members(filesystem, services.reader)

    def observe(notifier: Notifier) -> Observer:
        pusher = Pusher(notifier, members, PageCacheBudget().room, services.metrics)
        services.hooks.landed = pusher.landed
        return _Observers(pusher, followers)

    return FastPathSession(
        operations,
        filesystem,
        InstantAnswers(filesystem, services.reader),
        write,
        services.metrics,
        background=mountpoints.background_within(services.fetcher.memory_limit),
        observe=observe,
        on_fault=services.blocks.distrust if services.blocks is not None else lambda _: None,
        keeping=keeping,
    )


def _set_ttls(
    services: Services, filesystem: FileSystem, operations: Operations, tree: TreeSettings
) -> None:
    services.set_ttls(tree)
    filesystem.inodes.validity.list_ttl = tree.list_ttl
    operations.negative_timeout = min(tree.negative_ttl, LONGEST_TIMEOUT)


def _tune(mountpoint: Path, background: int | None) -> None:
    if descriptor_of(mountpoint) is not None:
        return  # to be done by the program that mounted, which knows where
    # This returns only once the kernel has the reply to INIT, which another thread may be sending.
    with suppress(OSError):
        os.statvfs(mountpoint)
    mountpoints.tune(mountpoint, background=background)


def _kernel_options(setup: MountSetup) -> set[str]:
    # Without noatime, every read would make the kernel ask for attributes again.
    return {
        "rw" if setup.writing.writable else "ro",
        "noatime",
        "default_permissions",
        "subtype=aisfs",
        f"fsname={str(setup.source).replace(',', '_')[:FSNAME_MAX]}",
    } | setup.options


def _ending_signals() -> list[signal.Signals]:
    """Return the signals that unmount; by default they would end the process and leave a dead mount."""
    ending = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
        ending.append(signal.SIGHUP)
    return ending
