"""Bytes of object versions: from the disk cache, from memory, or fetched once for all readers.

A range of an object that is being fetched is a `Part`. In one step, without waiting, a read collects
the pieces that are here, the parts under way that overlap its range, and new parts for the rest
(invariant I5: no byte is under way twice). It then waits only for those parts. Each is fetched by a task
of its own, which outlives its readers. Its failure is raised in all of them, and is forgotten.

A part that has landed goes to the disk cache, or stays in memory until newer ones need the room. A large
part is written past the page cache, and stays in memory until its reader has passed it (docs/adr/0020).
Dropping parts at any moment changes no result (invariant I6).
"""

import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import trio

from aisfs.cache.block_cache import BlockCache
from aisfs.cache.directory import EntryId, entry_id
from aisfs.cache.space import Reservation
from aisfs.core.policy.link import LinkEstimate
from aisfs.core.policy.shard_readers import ReadAhead
from aisfs.engine.batches import LEAST, Batches, Gathering
from aisfs.engine.buffers import COPIED_MAX, FIRST_PART, WHOLE_PART_MAX, BufferPool
from aisfs.engine.disk import (
    BackgroundThread,
    Missing,
    WrongContent,
    look,
    look_for_all,
    lost,
    report_wrong,
    store,
)
from aisfs.engine.parts import (
    Cached,
    Data,
    OpenObject,
    OpenObjects,
    Part,
    Reading,
    Retained,
    RetainedParts,
    RunningSums,
    Source,
    not_to_be_had,
)
from aisfs.errors import AisfsError, NoRanges, Unavailable, untraced
from aisfs.model import Bucket, ByteRange, ObjectInfo, RangeSet, pieces
from aisfs.stores.port import Arrived, ObjectStore
from aisfs.system.memory import give_memory_back
from aisfs.system.threads import any_thread

ListingChanged = Callable[[Bucket, str, list[bytes]], None]


async def _there(start: int, buffer: memoryview, arrived: Arrived) -> None:
    """Fill a buffer that a batch has filled already."""


@dataclass(slots=True)
class Hooks:
    """Made before the services and filled in after them; none of the calls may wait."""

    landed: Callable[[], None] = lambda: None
    """Bytes are here that were not before."""
    content_was_wrong: Callable[[Bucket, ObjectInfo], None] = lambda bucket, info: None
    """Readers got wrong bytes of an object."""
    listing_changed: ListingChanged = lambda bucket, prefix, names: None
    """These names changed in a directory whose previous listing had not expired."""


log = logging.getLogger(__name__)

STREAM_BYTES = 32 << 20
"""Bytes under way when a stream begins: what 1 Gbit/s carries in 250 ms."""
HIGH_LATENCY_SECONDS = 0.02
"""A part whose first bytes took longer came over a slow link, or one with latency: more may be under way."""
SPARE_SECONDS = 2.0
"""How long an unused buffer is kept: longer than the pause between two batches."""


class Fetcher:
    """Reads ranges of objects, each byte fetched once."""

    def __init__(
        self,
        store: ObjectStore,
        services: trio.Nursery,
        background: BackgroundThread,
        *,
        cache: BlockCache | None,
        origin: str,
        memory_limit: int,
        read_ahead_max: int,
        hooks: Hooks | None = None,
    ) -> None:
        """Fetch from `store` in tasks of `services`.

        Args:
            store: Where the bytes come from.
            services: Outlives every reader.
            background: Writes to the cache.
            cache: None keeps nothing on disk.
            origin: The cluster: distinguishes versions that are numbered alike in several clusters.
            memory_limit: Bytes of all parts together; read-ahead stops there. Bytes that a reader
                waits for are fetched even beyond it, unless that many bytes wait for the disk.
            read_ahead_max: Largest window ahead of one sequential reader, bytes.
            hooks: Called when bytes land, or turn out to be wrong.
        """
        self.store = store
        self._batches = Batches(store)
        self._services = services
        self._background = background
        self.cache = cache
        self._origin = origin
        self.memory_limit = memory_limit
        self._read_ahead_max = read_ahead_max
        self._objects = OpenObjects()  # used by any thread, as the cache is
        self._retained = RetainedParts()
        self._sums = RunningSums()  # belongs to the background thread
        self._changed = trio.Event()
        """Set, and then replaced, whenever a part was dropped or can be."""
        self._hooks = hooks or Hooks()
        self.take_whole: Callable[[Bucket, ObjectInfo], Cached] = not_to_be_had
        self.buffered = 0
        """Bytes of memory that all parts take, under way or retained."""
        self.pool = BufferPool(memory_limit, lambda: self.buffered)
        self.link = LinkEstimate()
        """What the parts that landed show of the link to the store."""
        self.high_latency = False
        """Whether the first bytes of the latest part to land took longer than `HIGH_LATENCY_SECONDS`."""
        self._unwritten = 0
        """How many of those have landed and are on their way to disk."""

    def limit_memory(self, limit: int) -> None:
        """Take another limit on memory than at first, from now on."""
        self.memory_limit = limit
        self.pool.limit_to(limit)
        self._make_room(0)

    @any_thread
    def open(self, bucket: Bucket, info: ObjectInfo) -> OpenObject:
        """Return a version of an object, to read from."""
        found = self._objects.get((bucket, info))
        if found is not None:
            return found
        entry = entry_id(self.distinguished(bucket, info), info) if self.cache else None
        cached = (self.cache, entry) if self.cache and entry else None
        source = partial(self.store.read_range, bucket, info)
        watch = ReadAhead(info.size, max_window=self._read_ahead_max)
        opened = OpenObject(bucket, info, watch, source, cached, self.pool)
        return self._objects.add((bucket, info), opened)

    @any_thread
    def open_content(
        self, bucket: Bucket, info: ObjectInfo, source: Source, cached: tuple[BlockCache, EntryId]
    ) -> OpenObject:
        """Return content that is made from an object, such as a decompressed tar, to read from.

        Args:
            bucket: The bucket of the object.
            info: That object, with the size of the content.
            source: Makes it, and writes it to disk.
            cached: Where it is on disk, and its identity there.
        """
        watch = ReadAhead(info.size, max_window=self._read_ahead_max)
        opened = OpenObject(bucket, info, watch, source, cached, self.pool, cached_by_source=True)
        return self._objects.add(cached[1], opened)

    def distinguished(self, bucket: Bucket, info: ObjectInfo) -> Bucket:
        """Return the bucket, renamed if a cache could not tell this version from another cluster's."""
        if info.checksum:  # else version 1 of this name in another cluster is something else
            return bucket
        return replace(bucket, namespace=f"{bucket.namespace} {self._origin}")

    def start(
        self,
        opened: OpenObject,
        wanted: ByteRange,
        together: Gathering | None = None,
        *,
        to_disk: bool = True,
    ) -> Reading:
        """Begin to read a range that lies inside the object; start to fetch what is not under way.

        Does not wait, not even for the disk: bytes on disk that are not yet mapped and verified become
        a part like any other, which a worker thread gets from the disk. Whole objects, as they are
        in the store, are fetched `together` with others if given; those not `to_disk` stay in memory.
        """
        begin = partial(self._begin, opened, together=together, to_disk=to_disk)
        found: list[Data | Part] = []
        position = wanted.start
        for part in opened.overlapping(wanted):
            if position < part.range.start:
                self._fill(opened, ByteRange(position, part.range.start), found, begin)
            found.append(part)
            self._retained.use(part)
            position = part.range.stop
        if position < wanted.stop:
            self._fill(opened, ByteRange(position, wanted.stop), found, begin)
        return Reading(wanted, found, self.pool.read)

    @contextmanager
    def gathering(self) -> Iterator[Gathering | None]:
        """Fetch together what begins in the block, where it is given this; None where reading singly is better.

        Nothing may be awaited in the block.
        """
        if self._batches.given_up:
            yield None
            return
        together = Gathering()
        try:
            yield together
        finally:
            for batch in together.batches():
                if len(batch) >= LEAST:
                    self._services.start_soon(self._fetch_batch, batch)
                else:
                    for part, opened in batch:
                        self._services.start_soon(self._fetch, opened, part, opened.source)

    def ahead(
        self, opened: OpenObject, wanted: ByteRange, together: Gathering | None = None
    ) -> None:
        """Fetch a range that no reader waits for yet, as far as memory permits."""
        for piece in pieces(wanted, self.pool.ahead):
            if not self._make_room(len(piece), reading=opened):
                with opened.lock:
                    opened.read_ahead.shrink()
                return
            if opened.mapped(piece) is None:
                self.start(opened, piece, together)

    def bring(
        self, opened: OpenObject, wanted: ByteRange, together: Gathering | None = None
    ) -> list[Part]:
        """Do the same with a range that is not all on disk; return the parts to wait for."""
        if not self._make_room(len(wanted)):
            return []
        reading = self.start(opened, wanted, together)
        return [part for part in reading.pieces if isinstance(part, Part)]

    async def stream(
        self,
        opened: OpenObject,
        wanted: ByteRange | None = None,
        *,
        held_up: bool = True,
        at_once: int = STREAM_BYTES,
        as_whole: bool = False,
        to_disk: bool = True,
        lacking: RangeSet | None = None,
    ) -> AsyncGenerator[tuple[int, Data], None]:
        """Yield an object, or a range of it, in order as (offset, bytes), somewhat ahead of the caller.

        How far ahead depends on how long parts take, up to the window of a sequential reader. The first
        parts are small: parts that share a link land together, and readers wait for the first.

        Args:
            opened: The object.
            wanted: The range; None is all.
            held_up: Whether to wait while memory is full. Must be False if the readers that fill the
                memory wait for this stream: it then takes at most `at_once` while there is no room.
            at_once: Bytes under way at the beginning.
            as_whole: Whether only all parts together are of use: then the first ones are not small.
            to_disk: Whether the disk cache gets what it does not have.
            lacking: Pieces that have none of these bytes are left out.
        """
        under_way, ahead, at_once = deque[Reading](), 0, min(at_once, self.pool.stream)
        whole, near = wanted or ByteRange(0, opened.info.size), not (lacking or self.high_latency)
        for piece in self.pool.parts(whole, as_whole=as_whole, near=near):
            if lacking is not None and lacking.missing(piece) == [piece]:
                continue
            while under_way and ahead + len(piece) > at_once:
                data = await self._scan(opened, reading := under_way.popleft())
                ahead -= len(reading.wanted)
                if self.high_latency and (held_up or self._make_room(2 * at_once)):
                    at_once = max(at_once, min(2 * at_once, self._read_ahead_max))
                yield reading.wanted.start, data
            if held_up:
                await self._wait_for_room(len(piece))
            under_way.append(self.start(opened, piece, to_disk=to_disk))
            ahead += len(piece)
        while under_way:
            yield (reading := under_way.popleft()).wanted.start, await self._scan(opened, reading)

    async def _scan(self, opened: OpenObject, reading: Reading) -> Data:
        """Wait for bytes of a stream, which does not come back for them as readers do."""
        data = await reading.wait(by_reader=False)
        self._drop_all(self._retained.scanned(opened, reading.pieces, trio.current_time()))
        return data

    async def tidy(self) -> None:
        """Free memory after much was fetched. Never returns."""
        while True:
            await trio.sleep(SPARE_SECONDS)
            self._drop_all(self._retained.idle(trio.current_time()))
            if self.pool.let_go():
                await trio.to_thread.run_sync(give_memory_back)

    async def drop_lost(self) -> None:
        """Drop what the disk cache has lost, so that filling it fetches that once more."""
        if self.cache is not None and self._retained.losses != self.cache.losses:
            self._retained.losses = self.cache.losses
            self._drop_all(await trio.to_thread.run_sync(lost, self._retained.copies()))

    def _fill(
        self,
        opened: OpenObject,
        gap: ByteRange,
        found: list[Data | Part],
        begin: Callable[[ByteRange], Part],
    ) -> None:
        """Cover a range that no part covers."""
        for piece in pieces(gap, WHOLE_PART_MAX):
            # A larger copy takes longer, so a worker thread makes it.
            there = opened.copied(piece) if len(piece) <= COPIED_MAX else None
            if there is None and piece == gap:
                piece = opened.as_failed(piece)
            found.append(begin(piece) if there is None else there)

    def _begin(
        self, opened: OpenObject, wanted: ByteRange, *, together: Gathering | None, to_disk: bool
    ) -> Part:
        if self.pool.wants_ready and len(wanted) >= FIRST_PART:  # shorter ones take none of these
            self.pool.wants_ready = False
            self._services.start_soon(trio.to_thread.run_sync, self.pool.make_ready)
        part = Part(wanted, self.pool, to_disk=to_disk)
        opened.add(part)
        self.buffered += part.cost
        if together is None or not together.take(part, opened):
            self._services.start_soon(self._fetch, opened, part, opened.source)
        return part

    async def _fetch_batch(self, batch: list[Retained]) -> None:
        """Fetch whole objects of a bucket with one request, then each that is still missing. Raises nothing but Cancelled."""
        rest: list[tuple[Retained, Missing | None]] = [(each, None) for each in batch]
        filled: set[Part] = set()
        try:
            looked = await trio.to_thread.run_sync(look_for_all, batch)
            rest = []
            for (part, opened), gaps in zip(batch, looked, strict=True):
                if gaps and gaps[0][0] == part.range:
                    rest.append(((part, opened), gaps))
                else:
                    self._services.start_soon(self._fetch, opened, part, opened.source, gaps)
            if len(rest) >= LEAST:
                await self._wait_for_disk()
                since = trio.current_time()
                wanted = [each for each, _ in rest]
                there = await self._batches.read(batch[0][1].bucket, wanted)
                self._note_latency(trio.current_time() - since)
                filled = {part for (part, _), one in zip(wanted, there, strict=True) if one}
        except Exception:
            log.exception("a batch failed: this is a bug in aisfs, please report it")
        finally:
            for (part, opened), gaps in rest:
                source = _there if part in filled else opened.source
                self._services.start_soon(self._fetch, opened, part, source, gaps)

    async def _fetch(
        self, opened: OpenObject, part: Part, source: Source, missing: Missing | None = None
    ) -> None:
        """Fetch a part from `source` and hand it to the cache. Raises nothing but Cancelled.

        What is `missing` on disk is looked for here if that is not given.
        """
        kept = False
        try:
            try:
                kept = await self._fetch_and_store(opened, part, source, missing)
            except NoRanges:
                opened.become_content(*self.take_whole(opened.bucket, opened.info))
                kept = await self._fetch_and_store(opened, part, opened.source)
        except AisfsError as error:
            opened.note_failure(part.range)
            part.finish(untraced(error))
        except Exception as error:
            log.exception("fetching failed: this is a bug in aisfs, please report it")
            if not part.done.is_set():  # what landed is good, even if it could not be kept
                part.finish(untraced(error))
        finally:
            if not part.done.is_set():
                part.finish(Unavailable("the mount is ending"))
            if not kept:
                self._drop(opened, part)

    async def _fetch_and_store(
        self, opened: OpenObject, part: Part, source: Source, missing: Missing | None = None
    ) -> bool:
        """Get the bytes from disk or from the store; return whether they have to stay in memory."""
        cache, entry = opened.cache, opened.entry
        if missing is None:
            in_thread = cache is not None and entry is not None
            missing = (
                await trio.to_thread.run_sync(look, part, opened)
                if in_thread
                else look(part, opened)
            )
        if not missing:
            self._land(part)
            return False
        room = part.content
        try:
            await self._wait_for_disk()
            since, before = trio.current_time(), self.link.arrived
            for gap, _ in missing:
                start = gap.start - part.range.start
                await source(gap.start, room[start : start + len(gap)], part.arriving(start))
            seconds = trio.current_time() - since
            # Neither making content nor taking it out of a batch says anything about the link.
            if source is opened.source and not opened.cached_by_source:
                self._note_latency(part.first_seconds or seconds)
                if len(missing) == 1:
                    self.link.observe(len(missing[0][0]), seconds, before)
            self._land(part)  # readers need not wait for the disk
            if cache is None or entry is None or any(room is None for _, room in missing):
                return self._keep(opened, part)
            direct = len(part.range) >= FIRST_PART
            self._unwritten += len(part.range)
            work = partial(store, cache, entry, part, missing, self._sums, past_page_cache=direct)
            try:
                stored = await self._background.run(work)
            except WrongContent:
                self._forget_wrong(opened)
                return False
            finally:
                self._unwritten -= len(part.range)
                self._tell()
            passed = stored and (not direct or part.passed)
            return not passed and self._keep(opened, part, on_disk=stored)
        finally:
            await self._finish([room for _, room in missing if room is not None and room.is_open])

    def _forget_wrong(self, opened: OpenObject) -> None:
        """Drop all bytes of an object whose content turned out to be wrong."""
        report_wrong(opened)
        self._drop_all([(part, opened) for part in opened.parts if part.done.is_set()])
        self._hooks.content_was_wrong(opened.bucket, opened.info)

    def _note_latency(self, seconds: float) -> None:
        """Take note of how long the first bytes took that were asked for at once."""
        self.pool.fit(seconds)
        self.high_latency = seconds > HIGH_LATENCY_SECONDS

    def _land(self, part: Part) -> None:
        part.finish()
        self._hooks.landed()

    async def _finish(self, reservations: list[Reservation]) -> None:
        """Return what was reserved and not used, even while the mount is ending."""
        if reservations:
            with trio.CancelScope(shield=True):
                for reservation in reservations:
                    await trio.to_thread.run_sync(reservation.finish)

    def _keep(self, opened: OpenObject, part: Part, *, on_disk: bool = False) -> bool:
        """Retain a landed part in memory, and drop others if it needs their room."""
        self._drop_all(self._retained.passed())
        if on_disk and self._retained.overfull:
            return False
        self._retained.add(part, opened, on_disk=on_disk)
        self._tell()
        self._make_room(0, but_for=part)
        return True

    def _drop_all(self, parts: Iterable[Retained]) -> None:
        for part, opened in parts:
            self._drop(opened, part)

    def _drop(self, opened: OpenObject, part: Part) -> None:
        self._retained.remove(part)
        if opened.remove(part):
            self.buffered -= part.cost
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _wait_for_disk(self) -> None:
        """Wait while memory is full of bytes that the disk, slower than the link, has yet to take."""
        while self._unwritten > self.memory_limit:
            await self._changed.wait()

    async def _wait_for_room(self, length: int) -> None:
        """Wait until there is room for `length` more bytes: the disk may be slow, or readers."""
        await self._retained.wait_for_readers(self._drop_all, lambda: self._unwritten)
        while not self._make_room(length) and self.buffered:
            await self._changed.wait()

    def _make_room(
        self, length: int, *, but_for: Part | None = None, reading: OpenObject | None = None
    ) -> bool:
        """Drop retained parts that come before `but_for` until `length` more bytes fit; return whether they do."""
        while self.buffered + length > self.memory_limit:
            first = self._retained.first_to_go(reading)
            if first is None or first[0] is but_for:
                return False
            self._drop_all([first])
        return True
