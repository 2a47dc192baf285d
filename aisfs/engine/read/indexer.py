"""The member index of a shard: from memory, from the index cache, or scanned as the shard streams by.

The scan reads through the fetcher, so that what it needs is in the disk cache afterwards and the
first index never costs a second download. It runs in worker threads, part by part; the trio thread
goes on answering.
"""

import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial

import trio
from cachetools import LRUCache

from aisfs.ais.protocol.shard_index import MAX_BYTES, decode_shard_index, shard_index_location
from aisfs.cache.disk.format import CONTENT_MAX, PAGE
from aisfs.cache.index_cache import IndexCache
from aisfs.cache.single_flight import SingleFlight
from aisfs.core.archive.formats import HEAD, Form, form_of_content, form_of_name
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.nested_tars import NestedTars
from aisfs.core.ranges import aligned
from aisfs.core.tar.scanner import TarScanner
from aisfs.core.views.directory_tree import MembersView
from aisfs.core.views.labels import (
    UNUSABLE,
    LabelColumn,
    LabelScan,
    label_column,
    label_rows,
    read_label,
)
from aisfs.core.views.spec import LabelRule
from aisfs.core.zip.directory import ZipScanner
from aisfs.engine.fetch.fetcher import Fetcher
from aisfs.engine.fetch.part import Data
from aisfs.engine.fetch.writer_thread import unattended
from aisfs.engine.read.unpacker import Unpacker
from aisfs.errors import AisfsError, ShardDamaged
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.process.locks import Rank, ranked_lock
from aisfs.process.threads import any_thread
from aisfs.store.port import ObjectStore

log = logging.getLogger(__name__)

ReadContent = Callable[[Bucket, ObjectInfo, MemberIndex, int], Awaitable[Data]]
"""Reads all of a member, which a row of the index stands for."""
ReadLocal = Callable[[int, int], bytes]
"""Returns the bytes at an offset of a local file; fewer than asked for only at its end."""
ShardId = tuple[Bucket, ObjectInfo]
"""A version of a shard."""

INDEX_BYTES_MAX = 512 * 2**20
"""Memory for indexes not in use; six million members at 80 bytes each."""
FORMS_MAX = 100_000
"""Objects of which is remembered whether their content is an archive."""
PUT_SECONDS = 1.0
"""How long after a scan its index is kept on disk: coding it takes as long as listing the shard."""
LOCAL_READ = 256 << 10
"""Bytes of a local tar read at once: some hundred small members, or the header of a large one."""
HOP = 1 << 20
"""Bytes read at a header when data is skipped: a few hundred small members, or one large one's."""


class Indexer:
    """Opens shards."""

    def __init__(
        self,
        fetcher: Fetcher,
        services: trio.Nursery,
        unpacker: Unpacker,
        *,
        indexes: IndexCache | None = None,
        shard_indexes: ObjectStore | None = None,
        ignore_zeros: bool = False,
        nesting: int = 0,
        lay_out: Callable[[MemberIndex], MembersView] = MembersView,
        memory_limit: float = INDEX_BYTES_MAX,
        magic: bool = False,
    ) -> None:
        """Read shards through `fetcher`; shared scans run in `services`.

        Args:
            fetcher: Reads the shards.
            services: Outlives every reader.
            unpacker: Opens what is compressed as a whole.
            indexes: Where indexes are kept; None keeps them in memory only.
            shard_indexes: Where to look for AIStore's own index of a shard before it is scanned;
                None to never look. Such an index knows no times and no modes.
            ignore_zeros: Scan behind the zeros that end a tar.
            nesting: How many tars deep tars are opened that are members.
            lay_out: Puts the members of a shard into directories. Runs in a worker thread.
            memory_limit: Bytes of indexes to keep in memory when they are not in use.
            magic: Tell the form of an archive by its content.
        """
        self._fetcher = fetcher
        self._services = services
        self._unpacker = unpacker
        self._shard_indexes = shard_indexes
        self._indexes = indexes
        self._ignore_zeros = ignore_zeros
        self._nesting = nesting
        self._magic = magic
        self._forms: LRUCache[ShardId, Form | None] = LRUCache(FORMS_MAX)
        self._lock = ranked_lock(Rank.INDEXES)
        """Guards `_views`, which the dispatcher uses too."""
        self._lay_out = lay_out
        self._views: LRUCache[ShardId, MembersView] = LRUCache(memory_limit, getsizeof=_memory)
        self._scans: SingleFlight[ShardId, MembersView] = SingleFlight(services)

    async def open(self, bucket: Bucket, shard: ObjectInfo) -> MembersView:
        """Return the members of this version of a shard.

        Damage is no error: the members before it are there and the index has warnings.

        Raises:
            Stale: the shard changed meanwhile.
        """
        known = self.try_open(bucket, shard)
        if known is not None:
            return known
        return await self._scans.fetch((bucket, shard), lambda: self._load(bucket, shard))

    @any_thread
    def try_open(self, bucket: Bucket, shard: ObjectInfo) -> MembersView | None:
        """Return the members if they are in memory. Does not wait."""
        with self._lock:
            return self._views.get((bucket, shard))

    def forget(self, bucket: Bucket, shard: ObjectInfo) -> None:
        """Drop a version that is no longer needed."""
        with self._lock:
            self._views.pop((bucket, shard), None)

    def view_of(self, index: MemberIndex, size: int, read: ReadLocal) -> MembersView:
        """Lay out the members of a plain tar on the local disk. For a worker thread."""
        if self._nesting:
            scanner = self._scanner(size, Form.TAR)
            scan_local(scanner, size, read)
            index = scanner.finish()
        return self._lay_out(index)

    def learn(self, bucket: Bucket, shard: ObjectInfo, view: MembersView) -> None:
        """Use what `view_of` returned as this version of a shard, which was written here."""
        if _memory(view) <= self._views.maxsize:
            with self._lock:
                self._views[bucket, shard] = view

    async def save(self, bucket: Bucket, shard: ObjectInfo) -> bool:
        """Write the index of this version to disk, even if the cache was cleared since it was read;
        return whether it is there now.

        Raises:
            Stale: the shard changed meanwhile.
        """
        indexes = self._indexes
        if indexes is None:
            return False
        index = (await self.open(bucket, shard)).index
        if not await trio.to_thread.run_sync(indexes.has, bucket, shard):
            await trio.to_thread.run_sync(indexes.put, bucket, shard, index)
        return await trio.to_thread.run_sync(indexes.has, bucket, shard)

    async def _load(self, bucket: Bucket, shard: ObjectInfo) -> MembersView:
        index = None
        indexes = self._indexes
        if indexes is not None:
            index = await trio.to_thread.run_sync(indexes.get, bucket, shard)
        form = await self.form(bucket, shard) if index is None else index.form
        if index is None and self._shard_indexes is not None and form is Form.TAR:
            index = await self._find_shard_index(self._shard_indexes, bucket, shard)
        if index is None:
            index = await self._scan(bucket, shard, form or Form.TAR)
            if indexes is not None:
                put = partial(self._put, indexes, bucket, shard, index)
                what = f"keeping the index of {bucket}/{shard.key}"
                self._services.start_soon(unattended, what, put)
        return await self._keep(bucket, shard, index)

    async def _put(
        self, indexes: IndexCache, bucket: Bucket, shard: ObjectInfo, index: MemberIndex
    ) -> None:
        """Write an index to disk when its readers have listed it, or the mount ends."""
        try:
            await trio.sleep(PUT_SECONDS)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(indexes.put, bucket, shard, index)

    async def _keep(self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex) -> MembersView:
        view = await trio.to_thread.run_sync(self._lay_out, index)
        for warning in index.warnings:
            log.warning("%s/%s: %s", bucket, shard.key, warning)
        self.learn(bucket, shard, view)
        return view

    async def labels(
        self, bucket: Bucket, shard: ObjectInfo, rule: LabelRule, read: ReadContent
    ) -> tuple[MemberIndex, LabelColumn]:
        """Return the members of this version of a shard, and the labels in their contents.

        Both come from disk, or both from one scan: never is a shard fetched for each of them.

        Raises:
            Stale: the shard changed meanwhile.
        """
        indexes, saved_as = self._indexes, f"{rule.source.name} {rule.text}"
        known = self.try_open(bucket, shard)
        index = known.index if known is not None else None
        column = None
        if indexes is not None:
            if index is None:
                index = await trio.to_thread.run_sync(indexes.get, bucket, shard)
            if index is not None:
                get = partial(indexes.get_labels, bucket, shard, index, saved_as)
                column = await trio.to_thread.run_sync(get)
        if index is None or column is None:
            index, column = await self._find_labels(bucket, shard, rule, index, read)
            if indexes is not None:
                await trio.to_thread.run_sync(indexes.put, bucket, shard, index)
                put = partial(indexes.put_labels, bucket, shard, saved_as, column)
                await trio.to_thread.run_sync(put)
        if known is None or known.index is not index:
            await self._keep(bucket, shard, index)
        return index, column

    async def _find_labels(
        self,
        bucket: Bucket,
        shard: ObjectInfo,
        rule: LabelRule,
        index: MemberIndex | None,
        read: ReadContent,
    ) -> tuple[MemberIndex, LabelColumn]:
        form = index.form if index is not None else await self.form(bucket, shard) or Form.TAR
        if form is Form.ZIP:  # members are read one by one there, so nothing else need be
            zipped = index or await self._scan_zip(bucket, shard)
            return zipped, await _read_labels(rule, zipped, partial(read, bucket, shard, zipped))
        scanner = self._scanner(shard.size, form)
        scan = LabelScan(rule, scanner.rows)
        index = await self._scan_tar(bucket, shard, form, scanner, scan)
        return index, await trio.to_thread.run_sync(scan.finish, index)

    async def _find_shard_index(
        self, store: ObjectStore, bucket: Bucket, shard: ObjectInfo
    ) -> MemberIndex | None:
        """Return AIStore's own index of this version, if there is one and it hides nothing."""
        place, key = shard_index_location(bucket, shard.key)
        try:
            info = await store.head(place, key)
            if not 0 < info.size <= MAX_BYTES:
                return None
            buffer = bytearray(info.size)
            await store.read_range(place, info, 0, memoryview(buffer))
        except AisfsError as error:  # whatever it is, the shard can be scanned
            log.debug("%s/%s: no shard index: %s", bucket, shard.key, error)
            return None
        index = await trio.to_thread.run_sync(decode_shard_index, bytes(buffer), shard)
        if index is not None and self._nesting and any(map(NestedTars.opens, index.names())):
            return None  # it does not say what is in them
        return index

    async def form(self, bucket: Bucket, shard: ObjectInfo) -> Form | None:
        """Return the form of an archive; None if it is none.

        Raises:
            Stale: the object changed meanwhile.
        """
        named = form_of_name(os.fsencode(shard.key.rpartition("/")[2]))
        if not self._magic or not shard.size:
            return named
        if (bucket, shard) not in self._forms:
            wanted = aligned(ByteRange(0, min(HEAD, shard.size)), PAGE, shard.size)
            head = await self._fetcher.start(self._fetcher.open(bucket, shard), wanted).wait()
            self._forms[bucket, shard] = form_of_content(bytes(head[:HEAD])) or named
        return self._forms[bucket, shard]

    async def is_archive(self, bucket: Bucket, info: ObjectInfo) -> bool:
        """Return whether an object is an archive.

        Raises:
            Stale: the object changed meanwhile.
        """
        return await self.form(bucket, info) is not None

    async def _scan(self, bucket: Bucket, shard: ObjectInfo, form: Form) -> MemberIndex:
        if form is Form.ZIP:
            return await self._scan_zip(bucket, shard)
        return await self._scan_tar(bucket, shard, form, self._scanner(shard.size, form))

    def _scanner(self, size: int, form: Form) -> TarScanner:
        # How long the content of a compressed one is, is known when it has all been seen.
        size = CONTENT_MAX if form.compressed else size
        return TarScanner(size, ignore_zeros=self._ignore_zeros, nesting=self._nesting)

    async def _scan_zip(self, bucket: Bucket, shard: ObjectInfo) -> MemberIndex:
        """Read the directory of a zip, which is all at its end."""
        scanner = ZipScanner(shard.size)
        opened = self._fetcher.open(bucket, shard)
        while (wanted := scanner.wanted) is not None:
            data = await self._fetcher.start(opened, wanted).wait()
            await trio.to_thread.run_sync(scanner.feed, memoryview(data))
        return await trio.to_thread.run_sync(scanner.finish)

    async def _scan_tar(
        self,
        bucket: Bucket,
        shard: ObjectInfo,
        form: Form,
        scanner: TarScanner,
        labels: LabelScan | None = None,
    ) -> MemberIndex:
        """Scan a tar as it streams by, decompressed if it has to be."""

        def feed(start: int, data: memoryview) -> None:
            scanner.feed(data)
            if labels is not None:
                labels.feed(start, data)

        if form.compressed:
            end = await self._unpacker.stream(bucket, shard, form, feed)
            warning = f"damaged behind byte {end.size} of its content: {end.damage}"
            scanner.end_at(end.size, warning if end.damage else "")
            return await trio.to_thread.run_sync(scanner.finish, form)
        opened = self._fetcher.open(bucket, shard)
        if opened.entry is None:
            # Nothing is kept, so nothing is fetched that is not looked at.
            while (start := _needed(scanner, labels)) < shard.size:
                wanted = ByteRange(start, min(start + HOP, shard.size))
                data = await self._fetcher.start(opened, wanted).wait()
                scanner.seek(start)
                await trio.to_thread.run_sync(feed, start, memoryview(data))
        else:
            async for start, data in self._fetcher.stream(opened):
                await trio.to_thread.run_sync(feed, start, memoryview(data))
        return await trio.to_thread.run_sync(scanner.finish)


async def _read_labels(
    rule: LabelRule, index: MemberIndex, read: Callable[[int], Awaitable[Data]]
) -> LabelColumn:
    """Read labels member by member; a damaged one has none."""
    labels = []
    for row in label_rows(rule, index):
        try:
            label = read_label(rule, bytes(await read(row)))
        except ShardDamaged:
            label = UNUSABLE
        labels.append((row, label))
    return label_column(labels)


def _needed(scanner: TarScanner, labels: LabelScan | None) -> int:
    needed = labels.needed if labels is not None else None
    return scanner.needed if needed is None else min(needed, scanner.needed)


def _memory(view: MembersView) -> int:
    return view.nbytes + view.index.nbytes


def scan_local(scanner: TarScanner, size: int, read: ReadLocal) -> None:
    """Feed a scanner what it needs of a tar on the local disk."""
    while (start := scanner.needed) < size:
        scanner.seek(start)
        scanner.feed(read(start, LOCAL_READ))
