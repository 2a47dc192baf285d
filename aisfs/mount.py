"""The composition root: builds a mount bottom up, runs it, and takes it down in reverse."""

import logging
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from aisfs.ais.client import AISClient
from aisfs.cache.metadata import MetadataCache
from aisfs.config import ClusterSettings, TreeSettings
from aisfs.core.sources import BucketSource, DirectorySource, Everything, Source
from aisfs.engine.indexer import Indexer
from aisfs.engine.lister import Lister
from aisfs.engine.reader import Reader
from aisfs.errors import BucketNotFound, MountError, SourceMissing, Unavailable
from aisfs.filesystem.attributes import AttrMaker
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.nodes import DirectoryNode, Node, RootNode
from aisfs.filesystem.shards import ShardFolders
from aisfs.filesystem.tree import Tree
from aisfs.filesystem.xattrs import Xattrs
from aisfs.fuse import mountpoint as mountpoints
from aisfs.fuse.operations import Operations, PyfuseKernel, serve, terminate
from aisfs.metrics import Metrics
from aisfs.model import Bucket
from aisfs.store.local import LocalStore
from aisfs.store.metered import MeteredStore
from aisfs.store.port import ObjectStore
from aisfs.store.retry import RetryingStore

log = logging.getLogger(__name__)

GRACE_SECONDS = 5
"""How long requests under way may go on after SIGTERM, before they are cancelled."""


@dataclass(frozen=True, slots=True)
class MountPlan:
    """Everything a mount needs to know."""

    source: Source
    mountpoint: Path
    cluster: ClusterSettings
    tree: TreeSettings
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
    try:
        try:
            await _check_source(direct, plan.source)
        except Unavailable as error:
            raise Unavailable(f"{plan.cluster.endpoint} does not answer: {error}") from error
        metrics = Metrics()
        store = MeteredStore(RetryingStore(direct, deadline=plan.cluster.io_timeout), metrics)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            refused: MountError | None = None
            async with trio.open_nursery() as services:
                operations = _build(plan, store, root, services, metrics, on_ready)
                session = trio.CancelScope()
                services.start_soon(_stop_on_signal, signals, session)
                try:
                    with session:
                        await serve(operations, str(plan.mountpoint), _kernel_options(plan))
                except MountError as error:  # out of the nursery it would come in a group
                    refused = error
                services.cancel_scope.cancel()
            if refused is not None:
                raise refused
    finally:
        with trio.CancelScope(shield=True):
            await direct.aclose()
    log.info("unmounted %s", plan.mountpoint)


def _open_source(plan: MountPlan) -> tuple[ObjectStore, Node]:
    match plan.source:
        case DirectorySource(path):
            local = LocalStore(path.resolve())
            return local, DirectoryNode(local.bucket, "")
        case BucketSource(bucket, prefix):
            return AISClient(plan.cluster), DirectoryNode(bucket, prefix)
        case Everything():
            return AISClient(plan.cluster), RootNode()


async def _check_source(store: ObjectStore, source: Source) -> None:
    """Ask once, without retries: a mount that cannot work should say so at once."""
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


def _build(
    plan: MountPlan,
    store: ObjectStore,
    root: Node,
    services: trio.Nursery,
    metrics: Metrics,
    on_ready: Callable[[], None],
) -> Operations:
    clock = trio.current_time
    ttls = plan.tree
    cache = MetadataCache(
        attr_ttl=ttls.attr_ttl, list_ttl=ttls.list_ttl, negative_ttl=ttls.negative_ttl, clock=clock
    )
    lister = Lister(store, cache, services, list_ttl=ttls.list_ttl, clock=clock, metrics=metrics)
    make = AttrMaker(plan.tree, time.time_ns())
    folders = ShardFolders(Indexer(store, services, ignore_zeros=ttls.ignore_zeros), make)
    filesystem = FileSystem(
        root,
        tree=Tree(lister, plan.tree.shards),
        folders=folders,
        reader=Reader(store),
        lister=lister,
        make=make,
        clock=clock,
    )
    filesystem.kernel = PyfuseKernel()

    def ready() -> None:
        log.info("mounted %s on %s", plan.source, plan.mountpoint)
        on_ready()

    return Operations(
        filesystem,
        Xattrs(filesystem, folders, lister, metrics),
        metrics,
        negative_timeout=ttls.negative_ttl,
        on_ready=ready,
    )


def _kernel_options(plan: MountPlan) -> set[str]:
    # noatime: else every read would make the kernel ask for attributes again.
    return {
        "ro",
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
