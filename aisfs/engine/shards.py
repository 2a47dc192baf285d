"""The member index of a shard: from memory, from the index cache, from a source of indexes, or scanned.

Names, or the first bytes, decide which objects are archives, and in what form. Writing the index of a
shard to disk takes as long as opening it. So a new index is written once no reader waits for a shard; an unmount
waits for that only so long.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence
from functools import partial
from math import inf
from typing import TypeVar

import trio
from cachetools import LRUCache

from aisfs.cache.directory import PAGE
from aisfs.cache.files import IndexCache
from aisfs.cache.names import SingleFlight
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import LabelColumn
from aisfs.core.names.listing import HEAD, Form, form_of_content, form_of_name
from aisfs.core.views.spec import LabelRule
from aisfs.core.views.tree import MembersView
from aisfs.engine.disk import BackgroundThread, unattended
from aisfs.engine.fetcher import Fetcher
from aisfs.engine.index_sources import KEPT, FoundIndex, IndexSource
from aisfs.engine.labels import LabelReader
from aisfs.engine.scanning import ReadContent, ReadLocal, ShardScanner, read_labels
from aisfs.model import Bucket, ByteRange, ObjectInfo, aligned
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.threads import any_thread

FORMS_MAX = 100_000
"""Objects for which it is remembered whether their content is an archive."""


class ArchiveForms:
    """Recognises archives."""

    def __init__(self, fetcher: Fetcher, *, magic: bool = False) -> None:
        """Read first bytes through `fetcher`; if `magic`, of those too whose names say what they are."""
        self._fetcher = fetcher
        self._magic = magic
        self._by_content: LRUCache[tuple[Bucket, ObjectInfo], Form | None] = LRUCache(FORMS_MAX)

    def form_by_name(self, shard: ObjectInfo) -> Form | None:
        """Return the form that the name of an archive says; None if content decides."""
        if self._magic and shard.size:
            return None
        return form_of_name(os.fsencode(shard.key.rpartition("/")[2]))

    async def form(self, bucket: Bucket, shard: ObjectInfo) -> Form | None:
        """Return the form of an archive, by its content if its name has no suffix; None if it is none.

        Raises:
            Stale: the object changed meanwhile.
        """
        named = form_of_name(os.fsencode(shard.key.rpartition("/")[2]))
        if (named is not None and not self._magic) or not shard.size:
            return named
        known = self._by_content
        if (bucket, shard) not in known:
            wanted = aligned(ByteRange(0, min(HEAD, shard.size)), PAGE, shard.size)
            head = await self._fetcher.start(self._fetcher.open(bucket, shard), wanted).wait()
            known[bucket, shard] = form_of_content(bytes(head[:HEAD])) or named
        return known[bucket, shard]

    async def is_archive(self, bucket: Bucket, info: ObjectInfo) -> bool:
        """Return whether an object is an archive.

        Raises:
            Stale: the object changed meanwhile.
        """
        return await self.form(bucket, info) is not None


log = logging.getLogger(__name__)

QUIET_SECONDS = 1.0
"""How long no index may have come before writing begins: coding one takes as long as listing a shard."""
MOST_TURNS = 10
"""How often that is waited for, so that a daemon that is killed has not lost everything."""
AT_ONCE = 16
"""Written by one call of a thread: some 50 ms of work."""
END_SECONDS = 20.0
"""How long an unmount waits: some thousand indexes, or a lock that a stopped daemon keeps. What is not
written is found again by the next mount."""

Write = Callable[[], None]
"""Writes something in a worker thread. It handles its own errors of the disk."""


class LateWrites:
    """Writes in the background, at the latest when its nursery is cancelled."""

    def __init__(self, services: trio.Nursery) -> None:
        """Write in a task of `services`, which is there while there is something to write."""
        self._services = services
        self._waiting: list[Write] = []
        self._added = 0
        self._running = False

    def add(self, write: Write) -> None:
        """Have something written later."""
        self._waiting.append(write)
        self._added += 1
        if not self._running:
            self._running = True
            self._services.start_soon(unattended, "keeping indexes", self._run)

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._wait_for_quiet()
                for _ in range(0, len(self._waiting), AT_ONCE):
                    await self._write_some()
        finally:
            with trio.CancelScope(shield=True):
                await self._write_last()
            self._running = False

    async def _wait_for_quiet(self) -> None:
        for _ in range(MOST_TURNS):
            before = self._added
            await trio.sleep(QUIET_SECONDS)
            if self._added == before:
                return

    async def _write_last(self) -> None:
        until = time.monotonic() + END_SECONDS
        while self._waiting and time.monotonic() < until:
            await self._write_some(until)
        if self._waiting:
            log.info("%d indexes are not kept: the mount ends", len(self._waiting))
            self._waiting.clear()

    async def _write_some(self, until: float = inf) -> None:
        some, self._waiting[:AT_ONCE] = self._waiting[:AT_ONCE], []
        done = await trio.to_thread.run_sync(_write_all, some, until)
        self._waiting[:0] = some[done:]


def _write_all(writes: list[Write], until: float) -> int:
    """Write until there is nothing left or it is that late; return how many were written."""
    for done, write in enumerate(writes):
        if time.monotonic() >= until:
            return done
        write()
    return len(writes)


ShardId = tuple[Bucket, ObjectInfo]
"""A version of a shard."""

T = TypeVar("T")
Use = Callable[[int, MemberIndex, LabelColumn | None], T]
_Used = tuple[FoundIndex, MembersView, T | None]
_Asked = Sequence[tuple[int, Form]]


class Indexer:
    """Opens shards."""

    def __init__(
        self,
        scanner: ShardScanner,
        forms: ArchiveForms,
        services: trio.Nursery,
        *,
        indexes: IndexCache | None = None,
        sources: Sequence[IndexSource] = (),
        labels: LabelReader | None = None,
        lay_out: Callable[[MemberIndex], MembersView] = MembersView,
        memory_limit: float = float("inf"),
    ) -> None:
        """Scan shards with `scanner`; shared scans run in `services`.

        Args:
            scanner: Reads shards whose index nobody knows.
            forms: Says which form an archive has.
            services: Outlives every reader.
            indexes: Where indexes are kept; None keeps them in memory only.
            sources: Where else to look for an index before its shard is scanned, in this order.
            labels: Reads labels where the index is known; None scans the shard for them.
            lay_out: Puts the members of a shard into directories. Runs in a worker thread.
            memory_limit: Bytes of indexes to keep in memory when they are not in use.
        """
        self.forms = forms
        self._scanner = scanner
        self._writes = LateWrites(services)
        self._indexes = indexes
        self._sources = sources
        self._labels = labels
        self.origins: Counter[str] = Counter()
        """Where the indexes of opened shards were found, unless they were scanned."""
        self._lock = ranked_lock(Rank.INDEXES)
        """Guards `_views`, which the dispatcher uses too."""
        self._lay_out = lay_out
        self._views: LRUCache[ShardId, MembersView] = LRUCache(memory_limit, getsizeof=_memory)
        self._scans: SingleFlight[ShardId, MembersView] = SingleFlight(services)

    @property
    def at_once(self) -> int:
        """How many shards are best opened at once, if all of a dataset are."""
        return self._scanner.feeder.at_once

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
        return self._lay_out(self._scanner.rescan_local(index, size, read))

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
        if index.without_attributes:
            return True  # its source has kept it
        if not await trio.to_thread.run_sync(indexes.has, bucket, shard):
            await trio.to_thread.run_sync(indexes.put, bucket, shard, index)
        return await trio.to_thread.run_sync(indexes.has, bucket, shard)

    async def _load(self, bucket: Bucket, shard: ObjectInfo) -> MembersView:
        found = await self._find(bucket, shard)
        if found is not None:
            self.origins[found.origin] += 1
            if found.encoded is not None:
                self._put_later((bucket, shard), found)
            return await self._keep(bucket, shard, found.index)
        form = await self.forms.form(bucket, shard) or Form.TAR
        index = await self._scanner.scan(bucket, shard, form)
        self._put_later((bucket, shard), FoundIndex(index))
        return await self._keep(bucket, shard, index)

    async def _find(self, bucket: Bucket, shard: ObjectInfo) -> FoundIndex | None:
        """Return what is on disk of this version, or what the first source knows that knows it."""
        return await self._kept(bucket, shard) or await self._ask_sources(bucket, shard)

    async def _kept(
        self,
        bucket: Bucket,
        shard: ObjectInfo,
        rules: Container[str] = (),
        *,
        without_attributes: bool = False,
    ) -> FoundIndex | None:
        if self._indexes is None:
            return None
        without = without_attributes
        get = partial(self._indexes.get, bucket, shard, rules, without_attributes=without)
        kept = await trio.to_thread.run_sync(get)
        return FoundIndex(kept.index, kept.labels) if kept is not None else None

    async def _ask_sources(self, bucket: Bucket, shard: ObjectInfo) -> FoundIndex | None:
        if not self._sources:
            return None
        form = await self.forms.form(bucket, shard) or Form.TAR
        for source in self._sources:
            found = await source.find(bucket, shard, form)
            if found is not None:
                return found
        return None

    def _put_later(self, shard: ShardId, found: FoundIndex) -> None:
        if self._indexes is not None:
            put = partial(self._indexes.put, *shard, found.index, found.labels, found.encoded)
            self._writes.add(put)

    async def _keep(self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex) -> MembersView:
        view = await trio.to_thread.run_sync(self._lay_out, index)
        self._learn(bucket, shard, view)
        return view

    def _learn(self, bucket: Bucket, shard: ObjectInfo, view: MembersView) -> None:
        for warning in view.index.warnings:
            log.warning("%s/%s: %s", bucket, shard.key, warning)
        self.learn(bucket, shard, view)

    async def use_known(
        self, shards: Sequence[ShardId], rule: LabelRule | None, use: Use[T]
    ) -> list[T | None]:
        """Return what `use` makes of shards that need no scan: of the members, and labels by a rule.

        Much faster than `open` or `labels` of one after the other, since a thread does it at once.

        Args:
            shards: The shards.
            rule: Says which labels are needed.
            use: Called with the position of a shard, its members and labels, in a worker thread.

        Returns:
            None for a shard of which neither the index cache nor a source has all of it; what they
            have of its members is known to `open` then.
        """
        made = await self._use_kept(shards, rule, use)
        for source in self._sources:
            places = [at for at, one in enumerate(made) if one is None]
            forms = [(at, self.forms.form_by_name(shards[at][1])) for at in places]
            asked = [(at, form) for at, form in forms if form is not None]

            def use_found(place: int, found: FoundIndex, asked: _Asked = asked) -> _Used[T]:
                column = found.labels.get(saved_as(rule)) if rule is not None else None
                whole, at = rule is None or column is not None, asked[place][0]
                result = use(at, found.index, column) if whole else None
                return found, self._lay_out(found.index), result

            results = await source.find_many([(*shards[at], form) for at, form in asked], use_found)
            for (at, _), used in zip(asked, results, strict=True):
                if used is not None:
                    found, view, made[at] = used
                    self.origins[found.origin] += 1
                    self._learn(*shards[at], view)
                    self._put_later(shards[at], found)
        return made

    async def _use_kept(
        self, shards: Sequence[ShardId], rule: LabelRule | None, use: Use[T]
    ) -> list[T | None]:
        indexes = self._indexes
        if indexes is None:
            return [None] * len(shards)
        rules = () if rule is None else (saved_as(rule),)

        def load() -> list[tuple[MembersView, T] | None]:
            made: list[tuple[MembersView, T] | None] = []
            for at, (bucket, shard) in enumerate(shards):
                kept = indexes.get(bucket, shard, rules)
                column = kept.labels.get(saved_as(rule)) if kept and rule is not None else None
                if kept is None or (rule is not None and column is None):
                    made.append(None)
                else:
                    made.append((self._lay_out(kept.index), use(at, kept.index, column)))
            return made

        kept = await trio.to_thread.run_sync(load)
        for shard, one in zip(shards, kept, strict=True):
            if one is not None:
                self.origins[KEPT] += 1
                self._learn(*shard, one[0])
        return [one[1] if one is not None else None for one in kept]

    async def labels(
        self, bucket: Bucket, shard: ObjectInfo, rule: LabelRule, read: ReadContent
    ) -> tuple[MemberIndex, LabelColumn]:
        """Return the members of this version of a shard, and the labels in their contents.

        Where the members are known but not the labels, only these are fetched. Where nothing is known,
        both come from one scan: never is a shard fetched for each of them.

        Raises:
            Stale: the shard changed meanwhile.
        """
        known, name = self.try_open(bucket, shard), saved_as(rule)
        stripped = known is not None and known.index.without_attributes
        found = await self._kept(bucket, shard, (name,), without_attributes=stripped)
        if known is not None:
            found = FoundIndex(known.index, found.labels if found is not None else {})
        if found is None or name not in found.labels:
            other = await self._ask_sources(bucket, shard)
            if other is not None and (found is None or name in other.labels):
                found = other
        fresh = found is None or found.encoded is not None
        if found is None or name not in found.labels:
            known_index = found.index if found is not None else None
            index, column = await self._find_labels(bucket, shard, rule, known_index, read)
            encoded = found.encoded if found is not None and index is known_index else None
            found, fresh = FoundIndex(index, {name: column}, encoded), True
        if fresh:
            self._put_later((bucket, shard), found)
        if known is None or known.index is not found.index:
            await self._keep(bucket, shard, found.index)
        return found.index, found.labels[name]

    async def contents(
        self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex, rows: Sequence[int]
    ) -> dict[int, bytes]:
        """Return the contents of small members by row, with few requests for many of them.

        Those that cannot be read this way are missing.

        Raises:
            Stale: the shard changed meanwhile.
        """
        if self._labels is None or index.form is not Form.TAR:
            return {}
        found = await self._labels.contents(bucket, shard, index, rows) or {}
        offsets = index.columns.offsets
        return {row: found[offsets[row]] for row in rows if offsets[row] in found}

    async def _find_labels(
        self,
        bucket: Bucket,
        shard: ObjectInfo,
        rule: LabelRule,
        index: MemberIndex | None,
        read: ReadContent,
    ) -> tuple[MemberIndex, LabelColumn]:
        if index is not None and index.form is Form.ZIP:  # its members are read one by one
            return index, await read_labels(rule, index, partial(read, bucket, shard, index))
        if index is not None and index.form is Form.TAR and self._labels is not None:
            column = await self._labels.read(bucket, shard, rule, index)
            if column is not None:
                return index, column
        form = index.form if index is not None else await self.forms.form(bucket, shard)
        return await self._scanner.scan_labels(bucket, shard, form or Form.TAR, rule, read)


def saved_as(rule: LabelRule) -> str:
    """Return the name under which the labels by a rule are kept and published."""
    return f"{rule.source.name} {rule.text}"


def _memory(view: MembersView) -> int:
    return view.nbytes + view.index.nbytes


class CacheCoverage:
    """Counts what is in the disk cache."""

    def __init__(
        self, fetcher: Fetcher, indexer: Indexer, background: BackgroundThread, *, local: bool
    ) -> None:
        """Ask these services; objects that are `local`, as results of transformations, are on disk anyway."""
        self._fetcher = fetcher
        self._indexer = indexer
        self._background = background
        self._local = local

    async def cached(self, bucket: Bucket, info: ObjectInfo, wanted: ByteRange) -> int:
        """Count the bytes of a range that are in the disk cache, or need not be.

        What was read is on its way there, so this waits for it.
        """
        if self._local:
            return len(wanted)
        opened = self._fetcher.open(bucket, info)
        if opened.cache is None or opened.entry is None:
            return 0
        await self._background.run(lambda: None)
        missing = await trio.to_thread.run_sync(opened.cache.missing, opened.entry, wanted)
        return len(wanted) - sum(map(len, missing))

    async def save_index(self, bucket: Bucket, shard: ObjectInfo) -> bool:
        """Write the index of a shard to disk; return whether it is there.

        Raises:
            Stale: the shard changed meanwhile.
        """
        return await self._indexer.save(bucket, shard)
