"""The services that read a source, for mounting and inspecting."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import trio

from aisfs.cache.block_cache import LEAST, BlockCache
from aisfs.cache.directory import CacheDirectory
from aisfs.cache.files import IndexCache, ListingCache, NumberCache
from aisfs.cache.names import MetadataCache
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.names.sources import DatasetSource, Source
from aisfs.core.views.sample_views import samples_view
from aisfs.core.views.tree import MembersView, members_only, without_folders
from aisfs.engine.buffers import ReadCounts
from aisfs.engine.dataset.reshuffler import SyntheticReader
from aisfs.engine.disk import BackgroundThread, background_thread, unattended
from aisfs.engine.fetcher import Fetcher, Hooks
from aisfs.engine.index_sources import IndexBucket, IndexSource, PublishedSource, ShardIndexSource
from aisfs.engine.labels import LabelReader
from aisfs.engine.listing import Lister
from aisfs.engine.prefetcher import Prefetcher
from aisfs.engine.reader import Reader
from aisfs.engine.scanning import ShardScanner, TarFeeder
from aisfs.engine.shards import ArchiveForms, CacheCoverage, Indexer
from aisfs.engine.unpacker import Unpacker
from aisfs.engine.writing.staging import StagingArea
from aisfs.errors import (
    AisfsError,
    ConfigError,
)
from aisfs.filesystem.nodes import DirectoryNode, Node
from aisfs.metrics import Metrics
from aisfs.mount.memory import MemoryLimits, memory_limits
from aisfs.mount.setup import MountSetup, SourceSetup, is_local, origin_of
from aisfs.mount.source import OpenSource, open_source
from aisfs.settings import CacheSettings, ShardIndex, TreeSettings, View
from aisfs.stores.ais.readiness import Readiness
from aisfs.stores.epochs import in_epoch
from aisfs.stores.port import WritableStore
from aisfs.stores.registry import direct_store, named_files
from aisfs.system.memory import MachineMemory

log = logging.getLogger(__name__)

SHARE_SECONDS = 5.0
"""How often mounts that share memory look how many they are: soon enough for the next one, and a read of one small file."""

PREFETCH_SHARE = 4
"""At most a quarter of the cache is filled with shards that no reader has opened yet."""
INDEX_SHARE = 16
INDEX_DISK_LIMIT = 2**30
"""Indexes take a sixteenth of the disk cache, but never more than this: some 200 million members."""
LISTING_SHARE = 16
"""Listings take at most a sixteenth of what indexes may: 40 MiB of 10 GiB, about a million names. So do inode numbers."""
CLOCK = time.monotonic
"""The clock by which listings expire; unlike trio's own, any thread may ask it."""


@dataclass(frozen=True, slots=True)
class Services:
    """What reads a source, and what it stands on."""

    source: Source
    root: Node
    store: WritableStore
    ping: Callable[[], Awaitable[None]] | None
    """Raises if the cluster does not answer; None where there is no cluster."""
    readiness: Readiness | None
    """What is known of the cluster's map."""
    metrics: Metrics
    blocks: BlockCache | None
    """The disk cache."""
    staging: StagingArea | None
    """Where files are written; None when the source is only read."""
    nursery: trio.Nursery
    background: BackgroundThread
    hooks: Hooks
    """What the services call; filled in by what is built on them."""
    lister: Lister
    fetcher: Fetcher
    indexer: Indexer
    index_bucket: IndexBucket | None
    """Has the published indexes; None where they lie beside the shards."""
    scans: TarFeeder
    """Reads shards whose index nobody knows."""
    reader: Reader
    assembler: SyntheticReader
    coverage: CacheCoverage

    def set_ttls(self, tree: TreeSettings) -> None:
        """Use other times to live from now on."""
        lister, attr_ttl, list_ttl = self.lister, tree.attr_ttl, tree.list_ttl
        negative_ttl = tree.negative_ttl
        lister.cache.set_ttls(attr_ttl=attr_ttl, list_ttl=list_ttl, negative_ttl=negative_ttl)
        lister.list_ttl = lister.buckets.list_ttl = lister.overlay.list_ttl = list_ttl
        lister.overlay.change_ttl = max(attr_ttl, list_ttl, negative_ttl)
        if lister.kept is not None:
            lister.kept.max_age = list_ttl

    async def flush(self) -> None:
        """Wait until everything that was read is on disk."""
        await self.background.run(lambda: None)


@asynccontextmanager
async def open_services(
    setup: SourceSetup, lock: int | None = None, *, restarted: bool = False
) -> AsyncIterator[Services]:
    """Open the services of a source, and take them down in reverse.

    With `lock`, go on with the staged files of the daemon before, whose lock it is. Such a mount is `restarted`.

    Raises:
        AisfsError: the source or the disk cache cannot be opened, or the block raised it: it does
            not come in a group.
    """
    failure: AisfsError | None = None
    metrics = Metrics()
    may = {
        "may_be_unlistable": setup.partly,
        "by_name": isinstance(setup, MountSetup),
        "writable": setup.writing.writable,
        "create_bucket": setup.writing.create_bucket,
    }

    async def show(found: OpenSource, pipeline: WritableStore) -> WritableStore:
        from aisfs.mount.transforming import transformed  # imports the jobs of the cluster

        limit = await trio.to_thread.run_sync(_disk_limit, setup)
        places = found.source, found.root, found.store, pipeline, found.index_bucket
        return await transformed(setup, *places, limit, metrics, restarted=restarted)

    shows = show if setup.transform else None
    async with (
        open_source(
            setup.source, setup.cluster, metrics, reach=setup.reach, shows=shows, **may
        ) as opened,
        _open_disk(setup, lock) as (blocks, staging),
        background_thread() as background,
        trio.open_nursery() as nursery,
    ):
        try:
            setup = replace(setup, source=opened.source)
            yield _build(setup, opened, blocks, staging, nursery, background, metrics)
        except AisfsError as error:  # a nursery would put it into a group
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


@asynccontextmanager
async def _open_disk(
    setup: SourceSetup, lock: int | None
) -> AsyncIterator[tuple[BlockCache | None, StagingArea | None]]:
    """Open the disk cache and the staging directory, as far as they are wanted."""
    stack = ExitStack()

    def enter() -> tuple[BlockCache | None, StagingArea | None]:
        blocks = _open_cache(setup)
        if blocks is not None:
            stack.callback(blocks.close)
        if not setup.writing.writable:
            return blocks, None
        if blocks is not None and not is_local(setup.source):
            listings = _open_listings(setup, blocks)
            listings.forget()
            stack.callback(listings.forget)
        writing = setup.writing
        waits = writing.write_back > 0
        staging = StagingArea(
            writing.staging_dir, writing.staging_limit(), journal=waits, lock=lock
        )
        stack.callback(staging.close)
        return blocks, staging

    try:
        yield await trio.to_thread.run_sync(enter)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(stack.close)


def _open_cache(setup: SourceSetup) -> BlockCache | None:
    """Open the disk cache, if it may have any size.

    A local directory is on disk already, so its cache holds only indexes and what was decompressed;
    most such mounts never need it, and go without if it cannot be opened. So does every mount while
    the disk is full.
    """
    if setup.cache.cache_size == 0:
        return None
    limit = _disk_limit(setup)
    if setup.transform:
        from aisfs.mount.transforming import results_limit

        limit -= results_limit(limit)
    if not limit:
        log.warning("no disk cache: %s has hardly any room left", setup.cache.cache_dir)
        return None
    try:
        indexes = min(limit // INDEX_SHARE, INDEX_DISK_LIMIT)
        return BlockCache.open(setup.cache.cache_dir, max(limit - indexes, LEAST))
    except ConfigError as error:
        if not is_local(setup.source) and setup.cache.free_disk() >= LEAST:
            raise
        log.warning("no disk cache: %s", error)
        return None


def _disk_limit(setup: SourceSetup) -> int:
    return setup.cache.disk_limit(CacheDirectory(setup.cache.cache_dir).taken())


def _build(
    setup: SourceSetup,
    opened: OpenSource,
    blocks: BlockCache | None,
    staging: StagingArea | None,
    nursery: trio.Nursery,
    background: BackgroundThread,
    metrics: Metrics,
) -> Services:
    store = opened.store
    hooks = Hooks()
    lister = _build_lister(setup, opened.root, store, nursery, metrics, hooks, blocks)
    fetcher = _build_fetcher(setup, store, blocks, nursery, background, metrics, hooks)
    if opened.watch is not None:
        nursery.start_soon(opened.watch)
    unpacker = Unpacker(fetcher, nursery, cache=blocks)
    scans = TarFeeder(fetcher, lister, mode=setup.tree.scan)
    indexer = Indexer(
        ShardScanner(fetcher, unpacker, scans, rules=setup.scan),
        ArchiveForms(fetcher, magic=setup.tree.magic),
        nursery,
        indexes=_open_indexes(setup, blocks) if blocks is not None and not setup.rescan else None,
        sources=_index_sources(setup, opened, nursery, lister, blocks),
        labels=LabelReader(store, fetcher),
        lay_out=_lay_out(setup),
        # Common directories hold the indexes of all their shards anyway.
        memory_limit=float("inf") if setup.view.merged else _memory_of(setup).indexes,
    )
    prefetcher = Prefetcher(
        fetcher,
        lister,
        nursery,
        max_shards=setup.cache.prefetch_shards,
        budget=blocks.limit // PREFETCH_SHARE if blocks is not None else 0,
        open_folder=indexer.open,
    )
    return Services(
        source=opened.source,
        root=opened.root,
        store=store,
        ping=opened.ping,
        readiness=opened.readiness,
        metrics=metrics,
        blocks=blocks,
        staging=staging,
        nursery=nursery,
        background=background,
        hooks=hooks,
        lister=lister,
        fetcher=fetcher,
        indexer=indexer,
        index_bucket=opened.index_bucket,
        scans=scans,
        reader=Reader(fetcher, prefetcher, unpacker),
        assembler=SyntheticReader(fetcher, setup.cache.read_ahead_max),
        coverage=CacheCoverage(
            fetcher, indexer, background, local=is_local(setup.source) or bool(setup.transform)
        ),
    )


def _memory_of(setup: SourceSetup) -> MemoryLimits:
    return memory_limits(setup.cache, sharers=setup.sharers() if setup.sharers is not None else 1)


def _build_fetcher(
    setup: SourceSetup,
    store: WritableStore,
    blocks: BlockCache | None,
    nursery: trio.Nursery,
    background: BackgroundThread,
    metrics: Metrics,
    hooks: Hooks,
) -> Fetcher:
    """Return what fetches contents, and start what keeps it in shape."""
    fetcher = Fetcher(
        store,
        nursery,
        background,
        # What is transformed is on disk already.
        cache=None if is_local(setup.source) or setup.only_indexes or setup.transform else blocks,
        origin=origin_of(setup),
        memory_limit=_memory_of(setup).fetched,
        read_ahead_max=setup.cache.read_ahead_max,
        hooks=hooks,
    )
    metrics.before_text.append(partial(_count_read, fetcher.pool.read, metrics))
    nursery.start_soon(fetcher.tidy)
    if setup.sharers is not None:
        nursery.start_soon(_share_memory, setup.cache, setup.sharers, fetcher)
    if blocks is not None:
        nursery.start_soon(_sync_cache, blocks, fetcher)
    return fetcher


def _build_lister(
    setup: SourceSetup,
    root: Node,
    store: WritableStore,
    nursery: trio.Nursery,
    metrics: Metrics,
    hooks: Hooks,
    blocks: BlockCache | None,
) -> Lister:
    ttls = setup.tree
    # Commands look at what is there now, and a mount that changes things knows more than is kept.
    # A directory of files that were named has no other ones for this mount.
    # Sizes of results are kept with the results.
    own = setup.writing.writable or is_local(setup.source) or bool(named_files(setup.source))
    own = own or bool(setup.transform)
    shared = isinstance(setup, MountSetup) and not own
    cache = MetadataCache(
        attr_ttl=ttls.attr_ttl, list_ttl=ttls.list_ttl, negative_ttl=ttls.negative_ttl, clock=CLOCK
    )
    prefix = root.prefix if isinstance(root, DirectoryNode) else ""
    return Lister(
        store,
        cache,
        nursery,
        list_ttl=ttls.list_ttl,
        clock=CLOCK,
        metrics=metrics,
        hooks=hooks,
        wanted=None if setup.writing.writable else _wanted(setup, prefix),
        change_ttl=max(ttls.attr_ttl, ttls.list_ttl, ttls.negative_ttl),
        kept=_open_listings(setup, blocks) if shared and blocks is not None else None,
    )


def _wanted(setup: SourceSetup, prefix: str) -> Callable[[str], bool] | None:
    """Return the test for keys that are shown; None if all are."""
    if not setup.transform.epochs:
        return setup.keys.below(prefix)
    test, cut = in_epoch(setup.keys.below("")), len(prefix)
    return (lambda key: test(key[cut:])) if test is not None else None


def _open_listings(setup: SourceSetup, blocks: BlockCache) -> ListingCache:
    return ListingCache(
        setup.cache.cache_dir,
        _index_limit(blocks) // LISTING_SHARE,
        cluster=origin_of(setup),
        scope=f"{setup.keys} of {setup.source}" if setup.keys else "",
        max_age=setup.tree.list_ttl,
    )


def open_numbers(setup: SourceSetup, blocks: BlockCache) -> NumberCache:
    """Return where inode numbers are kept for the next mount of the same."""
    scope = f"{origin_of(setup)} {setup.source} {setup.keys} {setup.view}"
    return NumberCache(setup.cache.cache_dir, _index_limit(blocks) // LISTING_SHARE, scope=scope)


def _index_sources(
    setup: SourceSetup,
    opened: OpenSource,
    nursery: trio.Nursery,
    lister: Lister,
    blocks: BlockCache | None,
) -> list[IndexSource]:
    """Return where indexes are looked for before shards are scanned, in this order."""
    if setup.only_indexes or setup.transform:  # others' are of the shards as they are stored
        return []
    tree, rules, store = setup.tree, setup.scan, opened.store
    sources: list[IndexSource] = []
    if tree.published_index:
        published = partial(PublishedSource, store, nursery, rules, list_ttl=tree.list_ttl)
        if opened.index_bucket is not None:
            sources.append(published(own=opened.index_bucket))
        # Most web servers leave out names that begin with a dot.
        hidden = direct_store(setup.source) == "web"
        sources.append(published() if hidden else published(try_directory=lister.try_directory))
    demanded = tree.shard_index is ShardIndex.ALWAYS
    timeless = setup.view.view in (View.CLASS, View.FLAT)
    wanted = demanded or (tree.shard_index is ShardIndex.AUTO and timeless)
    if wanted and not (is_local(setup.source) or direct_store(setup.source)):
        kept = _open_indexes(setup, blocks) if blocks is not None else None
        sources.append(
            ShardIndexSource(store, nursery, nesting=rules.nesting, kept=kept, demanded=demanded)
        )
    return sources


def _open_indexes(setup: SourceSetup, blocks: BlockCache) -> IndexCache:
    scope = origin_of(setup) + (" magic" if setup.tree.magic else "")
    # Without published indexes, what other mounts have kept of them is not wanted either.
    scope += "" if setup.tree.published_index else " unpublished"
    limit = _index_limit(blocks)
    room = limit - 2 * (limit // LISTING_SHARE)
    return IndexCache(setup.cache.cache_dir, room, scan=setup.scan, scope=scope)


def _index_limit(blocks: BlockCache) -> int:
    """Return the bytes of disk for indexes and listings."""
    return min(blocks.limit // (INDEX_SHARE - 1), INDEX_DISK_LIMIT)


def _lay_out(setup: SourceSetup) -> Callable[[MemberIndex], MembersView]:
    """Return what makes the folder of a shard."""
    view = setup.view
    if view.merged or view.view is View.SHARDS:
        return without_folders
    if view.view is View.SAMPLES:
        return partial(samples_view, spec=view)
    if isinstance(setup.source, DatasetSource):
        return partial(members_only, wanted=view.wanted)
    return partial(MembersView, shards=setup.tree.shards)


async def _share_memory(cache: CacheSettings, sharers: Callable[[], int], fetcher: Fetcher) -> None:
    """Take more or less memory as mounts that share it end or begin."""
    memory = MachineMemory()
    while True:
        await trio.sleep(SHARE_SECONDS)
        limit = memory_limits(cache, memory, sharers()).fetched
        if limit != fetcher.memory_limit:
            fetcher.limit_memory(limit)


async def _sync_cache(blocks: BlockCache, fetcher: Fetcher) -> None:
    """Synchronize the ledgers of all daemons that use a cache directory."""
    while True:
        await trio.sleep(1)
        await unattended("the upkeep of the cache", partial(trio.to_thread.run_sync, blocks.sync))
        await unattended("looking for what the cache has lost", fetcher.drop_lost)


def _count_read(counts: ReadCounts, metrics: Metrics) -> None:
    """Bring what readers got into the metrics."""
    for source in ReadCounts.__slots__:
        metrics.show_read(source, getattr(counts, source))
