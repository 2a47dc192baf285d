"""Ranges of objects in memory: under way from the store, or landed; and the objects they belong to.

Landed parts stay in memory if they are nowhere else, or if their reader is yet to come. A part that was written past the page
cache would have to be read from the disk again, so it stays until a reader has passed it, until no reader has come for a while,
or until the memory is needed.

A part that only a scan has read stays for the readers that may follow. It gives way to everything else, the
latest first: readers come in the order of the scan, and a scan of more than fits would otherwise
replace all that it had read by what is read last.

Checksums of whole objects are computed while their parts are in memory; at the end, the object would have to be read from the
disk again. One thread does this, and gets the parts nearly in order.
"""

import logging
import mmap
import os
import time
import weakref
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from weakref import WeakValueDictionary

import trio

from aisfs.cache.block_cache import BlockCache
from aisfs.cache.directory import SEGMENT, EntryId
from aisfs.core.policy.shard_readers import ReadAhead
from aisfs.engine.buffers import BufferPool, ReadCounts, buffer_size
from aisfs.errors import NoRanges, Unavailable, untraced
from aisfs.model import Bucket, ByteRange, Hasher, ObjectInfo, hasher_for_cache
from aisfs.stores.port import Arrived, ObjectStore
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.logs import DISK, MEMORY, request_log
from aisfs.system.threads import any_thread

BOOKS = 2048
"""Bytes that a part costs beside its content: itself, its event, the object it belongs to, its places
in dicts. 1,840 were measured; what small objects take is mostly this."""

_UNREAD_TAIL = 16 << 10
"""Bytes at the end of a part that a reader of members may leave out: padding and the next header."""
_AWAITED, _UNAWAITED = 1 << 20, 4 << 20
"""Bytes received at once while somebody waits for them, one READ of the kernel, and otherwise: each time costs
two waits for the interpreter's lock."""
_PIECE_SECONDS = 0.05
"""A reader that comes while so many bytes are received should not wait longer for the last of them than four times this."""
_PUSH_SECONDS = 0.02
"""A push takes some milliseconds from one batch to the next; after so long it has left a part behind."""

Data = bytes | bytearray | memoryview
Received = Data | Exception | None
"""What came of bytes that were under way; None where their part ended without them or an error."""

_arrivals = ranked_lock(Rank.ARRIVALS)
"""Guards the waiting readers of all parts together."""


def _replace_lock() -> None:
    """Have a lock in a forked process that no thread of its parent holds."""
    global _arrivals
    _arrivals = ranked_lock(Rank.ARRIVALS)


os.register_at_fork(after_in_child=_replace_lock)


class _Room:
    """The memory of one part. When the part is gone its buffer is free for other bytes.

    Not the part itself has the finalizer: until that is over, weak references still give the object.
    """

    __slots__ = ("_buffer", "_pool", "content")

    def __init__(self, pool: BufferPool, buffer: mmap.mmap | bytearray, length: int) -> None:
        self._pool = pool
        self._buffer = buffer
        self.content = memoryview(buffer)[:length]

    def __del__(self) -> None:
        self.content.release()
        self._pool.give_back(self._buffer)


class Part:
    """A range of an object under way, or landed and kept in memory."""

    __slots__ = ("__weakref__", "_furthest", "_pool", "_pushed_at", "_room", "_told", "_waiting",
                 "arrived", "content", "done", "error", "first_seconds", "from_disk", "given",
                 "pushed", "range", "to_disk")  # fmt: skip

    def __init__(self, wanted: ByteRange, pool: BufferPool, *, to_disk: bool = True) -> None:
        """Start without bytes."""
        self._pool = pool
        self._room: _Room | None = None
        self.range = wanted
        self.to_disk = to_disk
        """Whether the disk cache is to get the bytes."""
        self.content = memoryview(b"")
        """Room for the bytes, and once `done` is set without an error the bytes."""
        self.arrived = 0
        """How many of the first ones are there already."""
        self.first_seconds: float | None = None
        """How long the first of them took, if they came piece by piece."""
        self._told = 0.0
        """When the bytes were asked for, or some of them came last, in seconds of `time.monotonic`."""
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        """The waiting readers, each with the number of first bytes that it needs."""
        self.done = trio.Event()
        self.error: Exception | None = None
        self.from_disk = False
        """Whether the bytes are from the disk cache."""
        self.given = 0
        """How many bytes readers got, those that several got as often."""
        self.pushed = 0
        """How many of these the page cache got, and not a reader."""
        self._pushed_at = 0.0
        """When that was last, in seconds of `time.monotonic`."""
        self._furthest = 0

    @property
    def cost(self) -> int:
        """Return how much memory it takes, with all that is kept because of it."""
        return buffer_size(len(self.range)) + BOOKS

    @property
    def landed(self) -> bool:
        """Whether the bytes are there, for good."""
        return self.done.is_set() and self.error is None

    def allocate(self) -> memoryview:
        """Return room for the bytes."""
        length = len(self.range)
        self._room = _Room(self._pool, self._pool.take(length), length)
        self.content = self._room.content
        return self.content

    @any_thread
    def share(self, wanted: ByteRange) -> int:
        """Return how many bytes of `wanted`, which overlaps with it, lie in the part."""
        return min(self.range.stop, wanted.stop) - max(self.range.start, wanted.start)

    @any_thread
    def has(self, wanted: ByteRange) -> bool:
        """Return whether the bytes of `wanted` that lie in the part are there."""
        return self.arrived >= min(wanted.stop, self.range.stop) - self.range.start

    @any_thread
    def when_here(self, wanted: ByteRange, then: Callable[[], None]) -> bool:
        """Have `then` called as soon as it has the bytes of `wanted` that lie in it, or they will not come.

        In the thread that receives them, or trio's. It must not raise, nor wait.

        Returns:
            Whether it will be called; False if the bytes are there, or none will come any more.
        """
        length = min(wanted.stop, self.range.stop) - self.range.start
        with _arrivals:
            if self.arrived >= length or self.done.is_set():
                return False
            self._waiting.append((length, then))
            return True

    def settled(self, wanted: ByteRange) -> bool:
        """Return whether there is nothing to wait for."""
        return self.done.is_set() or self.has(wanted)

    async def wait(self, wanted: ByteRange) -> None:
        """Wait until the bytes of `wanted` that lie in the part are there, or will not come."""
        if wanted.stop < self.range.stop:
            here, token = trio.Event(), trio.lowlevel.current_trio_token()

            def then() -> None:
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(here.set)

            if self.when_here(wanted, then):
                await here.wait()
        else:
            await self.done.wait()

    def arriving(self, start: int) -> Arrived:
        """Return what is to be told of the bytes from `start` on, which are asked for now."""
        self._told = time.monotonic()
        return partial(self._have_arrived, start)

    def _have_arrived(self, start: int, length: int) -> int:
        """Take note that the first `start + length` bytes are there. In the thread that receives them.

        Returns:
            How many more are best received at once.
        """
        length += start
        now = time.monotonic()
        seconds, self._told = now - self._told, now
        if self.first_seconds is None:
            self.first_seconds = seconds
        with _arrivals:
            self.arrived = max(self.arrived, length)  # another attempt begins anew
            if not self._waiting:
                return _UNAWAITED if seconds < _PIECE_SECONDS else _AWAITED
            here = [then for wanted, then in self._waiting if wanted <= length]
            self._waiting = [each for each in self._waiting if each[0] > length]
        for then in here:
            then()
        return _AWAITED

    def finish(self, error: Exception | None = None) -> None:
        """Take note that all bytes are there, or that no more will come. In the trio thread."""
        with _arrivals:
            self.error = error
            if error is None:
                self.arrived = len(self.range)
            self.done.set()
            waiting, self._waiting = self._waiting, []
        for _, then in waiting:
            then()

    @property
    def passed(self) -> bool:
        """Whether a reader seems to have come by all of it, or will not come.

        It was at the end and got much of it, or nearly all was pushed, all but single members: what
        a push under way has yet to come to would have to be read from the disk.
        """
        length = len(self.range)
        if self._furthest >= length - _UNREAD_TAIL and self.given * 4 >= length:
            return True
        nearly_all = self.pushed * 8 >= length * 7
        return nearly_all and time.monotonic() - self._pushed_at > _PUSH_SECONDS

    @any_thread
    def view(self, wanted: ByteRange, *, by_reader: bool = True, push: bool = False) -> memoryview:
        """Return the bytes of this part that lie in `wanted`.

        Args:
            wanted: The range, in the object.
            by_reader: Count them as read, by a program and not by a scan.
            push: They are for the page cache.
        """
        start = max(wanted.start, self.range.start) - self.range.start
        stop = min(wanted.stop, self.range.stop) - self.range.start
        if by_reader:  # threads may count at once: about right is good enough
            self.given += stop - start
            self._furthest = max(self._furthest, stop)
            if push:
                self.pushed += stop - start
                self._pushed_at = time.monotonic()
        return self.content[start:stop]


@dataclass(frozen=True, slots=True)
class Reading:
    """A range being read: pieces in order, each there already or a part to wait for."""

    wanted: ByteRange
    pieces: list[Data | Part]
    counts: ReadCounts
    """Where to count what is read."""

    @property
    def ready(self) -> bool:
        """Whether nothing has to be waited for."""
        return all(not isinstance(p, Part) or p.settled(self.wanted) for p in self.pieces)

    async def wait(self, *, by_reader: bool = True) -> Data:
        """Wait for the parts and return the bytes; `by_reader` as in `Part.view`.

        Raises:
            AisfsError: a part could not be fetched.
        """
        found: list[Data] = []
        was_done = [isinstance(each, Part) and each.settled(self.wanted) for each in self.pieces]
        for piece, landed in zip(self.pieces, was_done, strict=True):
            if isinstance(piece, Part):
                await piece.wait(self.wanted)
                if piece.error is not None and not piece.has(self.wanted):
                    raise untraced(piece.error)
                found.append(piece.view(self.wanted, by_reader=by_reader))
                source = "disk" if piece.from_disk else "memory" if landed else "network"
            else:
                found.append(piece)
                source = "disk"
            if by_reader:
                self._count(source, len(found[-1]))
        return found[0] if len(found) == 1 else b"".join(found)

    def _count(self, source: str, size: int) -> None:
        request_log.note(DISK if source == "disk" else source)
        counts = self.counts
        if source == "disk":
            counts.disk += size
        elif source == "memory":
            counts.memory += size
        else:
            counts.network += size


CHECKSUMS_MAX = 64
"""Objects under way at once, about; of a forgotten one the disk is read."""
EARLY_MAX = 64
"""Parts of one object that came before the one that is due: those of a full window, and more."""


@dataclass(slots=True)
class _Sum:
    hasher: Hasher
    upto: int = 0
    """What is in the checksum: the first so many bytes."""
    early: dict[int, weakref.ref[Part]] = field(default_factory=dict)
    """By where they start. They hold no memory: one that goes leaves a gap that nothing fills."""


class RunningSums:
    """The checksums of the objects that are being fetched."""

    def __init__(self) -> None:
        """Start without any."""
        self._sums: OrderedDict[EntryId, _Sum] = OrderedDict()

    def add(self, entry: EntryId, part: Part) -> None:
        """Add a landed part of an object."""
        running = self._sums.get(entry)
        if running is None or part.range.start < running.upto:
            # Bytes that come once more are on the disk in place of those that were summed up.
            hasher = hasher_for_cache(entry.checksum)
            if hasher is None:
                return
            running = self._sums[entry] = _Sum(hasher)
            if len(self._sums) > CHECKSUMS_MAX:
                self._sums.popitem(last=False)
        self._sums.move_to_end(entry)
        if len(running.early) < EARLY_MAX:
            running.early[part.range.start] = weakref.ref(part)
        while (reference := running.early.pop(running.upto, None)) is not None:
            due = reference()
            if due is None:
                return
            running.hasher.update(due.content)
            running.upto = due.range.stop

    def finish(self, entry: EntryId) -> str | None:
        """Return the checksum of an object in hexadecimal digits; None if not all of it came by."""
        running = self._sums.pop(entry, None)
        if running is None or running.upto != entry.size:
            return None
        return running.hasher.hexdigest()


log = logging.getLogger(__name__)

_FAILED_MAX = 16
"""Failed ranges that are remembered of an object: what readers and their read-ahead have under way."""
OBJECTS_MAX = 10_000
"""Objects whose read-ahead is remembered."""

Source = Callable[[int, memoryview, Arrived], Awaitable[None]]
"""Fills a buffer with the bytes from an offset on; tells and raises what `ObjectStore.read_range` does."""


class OpenObject:
    """One version of one object, or what it is when decompressed, as its readers share it."""

    __slots__ = (
        "__weakref__",
        "_pool",
        "bucket",
        "cache",
        "cached_by_source",
        "entry",
        "failed",
        "info",
        "lock",
        "parts",
        "read_ahead",
        "reported_until",
        "source",
    )  # fmt: skip

    def __init__(
        self,
        bucket: Bucket,
        info: ObjectInfo,
        read_ahead: ReadAhead,
        source: Source,
        cached: tuple[BlockCache, EntryId] | None,
        pool: BufferPool,
        *,
        cached_by_source: bool = False,
    ) -> None:
        """Start without parts.

        Args:
            bucket: Where the object is.
            info: The version; its size is how much can be read.
            read_ahead: Watches its readers.
            source: Where bytes come from that are neither in memory nor on disk.
            cached: Where they are on disk; None if nothing of it goes there.
            pool: Lends buffers for copies.
            cached_by_source: The source itself writes its bytes to disk.
        """
        self.bucket = bucket
        self.info = info
        self.read_ahead = read_ahead
        self.lock = ranked_lock(Rank.READ_AHEAD)
        """Guards `read_ahead` and `reported_until`, which the dispatcher changes too."""
        self.reported_until = 0.0
        """Until when the trio thread need not hear again that it is read in order."""
        self.source = source
        self.cache: BlockCache | None = cached[0] if cached else None
        self.entry: EntryId | None = cached[1] if cached else None
        self.cached_by_source = cached_by_source
        self.failed: tuple[ByteRange, ...] = ()
        """The latest ranges that could not be fetched. Belongs to the trio thread."""
        self.parts: list[Part] = []
        """Sorted, disjoint. Changed by the trio thread only; `_landed` looks at it from any."""
        self._pool = pool

    # bytes that are here, without waiting --------------------------------------------------------

    @any_thread
    def try_read(self, wanted: ByteRange, *, push: bool = False) -> Data | None:
        """Return a range in memory or mapped, for the kernel alone; see `BlockCache.hit`.

        With `push` it is for its page cache, and not for a reader.
        """
        there = self._landed(wanted, push=push) if self.parts else None  # without the disk
        if there is not None:
            self._pool.read.memory += len(wanted)
            request_log.note(MEMORY)
            return there
        there = self.mapped(wanted)
        if there is None:
            return self._joined(wanted)
        self._pool.read.disk += len(wanted)
        request_log.note(DISK)
        return there

    @any_thread
    def try_copy(self, wanted: ByteRange, *, push: bool = False) -> bytearray | memoryview | None:
        """Return a copy of what `try_read` returns, for callers that touch the bytes."""
        landed = self._landed(wanted, push=push) if self.parts else None
        if landed is not None:
            self._pool.read.memory += len(wanted)
            request_log.note(MEMORY)
            room = self._pool.lend(len(landed))
            room[:] = landed
            return room
        there = self.copied(wanted)
        if there is None:
            return self._joined(wanted)
        self._pool.read.disk += len(wanted)
        request_log.note(DISK)
        return there

    @any_thread
    def in_memory(self, wanted: ByteRange) -> int:
        """Return how many bytes of a range have landed and are in memory still."""
        parts = self.overlapping(wanted, self.parts.copy())
        return sum(part.share(wanted) for part in parts if part.landed)

    @any_thread
    def border(self, position: int) -> int:
        """Return the end of the part in memory that has `position`; that of the object if none has."""
        parts = self.parts.copy()
        at = bisect_right(parts, position, key=_start) - 1
        if at >= 0 and position < parts[at].range.stop and parts[at].landed:
            return parts[at].range.stop
        return self.info.size

    @any_thread
    def will_be_read(self, wanted: ByteRange) -> bool:
        """Have a range in the page cache before its reader comes; return whether it is on disk, mapped."""
        if self.cache is None or self.entry is None:
            return False
        return self.cache.will_need(self.entry, wanted)

    def mapped(self, wanted: ByteRange) -> memoryview | None:
        """Return a range that the disk cache has mapped, for the kernel alone."""
        if self.cache is None or self.entry is None:
            return None
        return self.cache.hit(self.entry, wanted)

    def copied(self, wanted: ByteRange) -> memoryview | None:
        """Return a copy of a range that the disk cache has mapped."""
        if self.cache is None or self.entry is None:
            return None
        return self.cache.copied(self.entry, wanted, self._pool.lend(len(wanted)))

    def _joined(self, wanted: ByteRange) -> bytearray | None:
        """Return a range that crosses a border of segments, so that no file of the cache has it all."""
        border = wanted.stop // SEGMENT * SEGMENT
        if not wanted.start < border < wanted.stop:
            return None
        before = self.try_copy(ByteRange(wanted.start, border))
        behind = self.try_copy(ByteRange(border, wanted.stop)) if before is not None else None
        if before is None or behind is None:
            return None
        return bytearray().join((before, behind))

    def _landed(self, wanted: ByteRange, *, push: bool) -> memoryview | None:
        """Return bytes that one part in memory has, or two of them."""
        # The list may change between any two steps here, so the part itself is asked about whatever
        # was found: its range never changes, nor its bytes once it is done, and the view keeps its
        # buffer from being used again.
        parts = self.parts
        try:
            at = bisect_right(parts, wanted.start, key=_start) - 1
            part = parts[at]
            there = part.range
            if not (there.start <= wanted.start < there.stop and part.has(wanted)):
                return None
            if wanted.stop <= there.stop:
                return part.view(wanted, push=push)
            behind = parts[at + 1]
        except IndexError:
            return None
        rest = behind.range
        if rest.start == there.stop and wanted.stop <= rest.stop and behind.has(wanted):
            room, border = self._pool.lend(len(wanted)), there.stop - wanted.start
            room[:border] = part.view(wanted, push=push)
            room[border:] = behind.view(wanted, push=push)
            return room
        return None

    @any_thread
    def when_here(self, wanted: ByteRange, then: Callable[[Received], None]) -> bool:
        """Have `then` called with a range that parts under way have all of, as soon as it is received.

        In the thread that receives it, or trio's; with the error of its part if that failed.

        Returns:
            Whether it will be called.
        """
        parts = self.overlapping(wanted, self.parts.copy())
        if sum(part.share(wanted) for part in parts) < len(wanted):
            return False
        due = next((part for part in parts if not part.has(wanted)), None)
        if due is None:
            return False
        return due.when_here(wanted, partial(self._received, due, wanted, then))

    def _received(self, due: Part, wanted: ByteRange, then: Callable[[Received], None]) -> None:
        got: Received = None
        try:
            got = self._landed(wanted, push=False)
            if got is not None:
                self._pool.read.network += len(got)
            elif due.error is not None:
                got = untraced(due.error)
            elif self.when_here(wanted, then):  # the rest is in the part behind
                return
        except Exception:  # no memory, perhaps; others wait for bytes in this thread
            log.exception("a READ is left to a task")
        then(got)

    def become_content(self, cache: BlockCache, entry: EntryId, source: Source) -> None:
        """Read from now on what `source` makes and writes to disk. Only in the trio thread."""
        self.source, self.cached_by_source = source, True
        self.cache, self.entry = cache, entry

    # parts, in the trio thread ------------------------------------------------------------------

    def overlapping(self, wanted: ByteRange, parts: list[Part] | None = None) -> list[Part]:
        """Return the parts that have bytes of `wanted`, in order; other threads give a copy of all."""
        parts = self.parts if parts is None else parts
        at = bisect_left(parts, wanted.start, key=lambda part: part.range.stop - 1)
        found = []
        while at < len(parts) and parts[at].range.start < wanted.stop:
            found.append(parts[at])
            at += 1
        return found

    def note_failure(self, failed: ByteRange) -> None:
        """Remember a range that could not be fetched."""
        self.failed = (*self.failed, failed)[-_FAILED_MAX:]

    def as_failed(self, wanted: ByteRange) -> ByteRange:
        """Widen a range that no part covers to the failed one around it, as far as none does.

        The kernel asks again for each page of a READ that failed, and each would be a request.
        """
        for failed in self.failed:
            if failed.start <= wanted.start and wanted.stop <= failed.stop:
                self.failed = tuple(other for other in self.failed if other != failed)
                start, stop = failed.start, failed.stop
                for part in self.overlapping(failed):
                    if part.range.stop <= wanted.start:
                        start = part.range.stop
                    else:
                        stop = min(stop, part.range.start)
                return ByteRange(start, stop)
        return wanted

    def add(self, part: Part) -> None:
        """Add a part of a range that no other has."""
        insort(self.parts, part, key=_start)

    def remove(self, part: Part) -> bool:
        """Remove a part; return whether it was there."""
        at = bisect_left(self.parts, part.range.start, key=_start)
        if at == len(self.parts) or self.parts[at] is not part:
            return False
        del self.parts[at]
        return True


@any_thread
class OpenObjects:
    """At most one `OpenObject` for each key, as long as anyone holds it.

    A part under way holds its object, and so does one that is retained.
    """

    def __init__(self) -> None:
        """Start without any."""
        self._lock = ranked_lock(Rank.OPEN_OBJECTS)
        self._recent: OrderedDict[Hashable, OpenObject] = OrderedDict()
        self._held: WeakValueDictionary[Hashable, OpenObject] = WeakValueDictionary()

    def get(self, key: Hashable) -> OpenObject | None:
        """Return the one of that key."""
        with self._lock:
            found = self._recent.get(key)
            if found is not None:
                self._recent.move_to_end(key)
            elif (found := self._held.get(key)) is not None:
                self._remember(key, found)
            return found

    def add(self, key: Hashable, opened: OpenObject) -> OpenObject:
        """Return the one of that key, from now on `opened` if there is none."""
        with self._lock:
            found = self._held.setdefault(key, opened)
            self._remember(key, found)
            return found

    def _remember(self, key: Hashable, opened: OpenObject) -> None:
        self._recent[key] = opened
        if len(self._recent) > OBJECTS_MAX:
            self._recent.popitem(last=False)


def _start(part: Part) -> int:
    return part.range.start


Retained = tuple[Part, OpenObject]

COPIES_MAX = 128 << 20
"""Bytes that wait for readers or for the disk before what is fetched for nobody waits, too: some shards."""
LOOK_SECONDS, LOOKS_MAX = 0.002, 25
"""How often copies are looked at, and how often in vain: a part is pushed in some 20 ms."""
WAIT_SECONDS = 0.25
"""How long to wait at most although copies are passed: they may be those of other readers."""
STUCK_SECONDS = 1.0
"""How long nobody waits after either, so that a twentieth of the rate is lost where nobody reads."""
LOOKS = 64
"""Parts that may be looked at, on average or at once, to find one that was passed."""
SCANNED_SECONDS = 600.0
"""How long what a scan has read waits for readers: they come after the listing, or not at all."""


class RetainedParts:
    """Which parts stay, and which of them goes first. All of it in the trio thread."""

    def __init__(self) -> None:
        """Start without any."""
        self._only: OrderedDict[Part, OpenObject] = OrderedDict()
        """In memory only, the one not used for longest first."""
        self._copies: OrderedDict[Part, OpenObject] = OrderedDict()
        """On disk as well."""
        self._scanned: OrderedDict[Part, tuple[OpenObject, float]] = OrderedDict()
        """In memory only, not read by any reader, and when a scan had read them; the first first."""
        self._scanned_size = 0
        """What these take: they can be many, and small."""
        self._passed: list[Part] = []
        """Some of these that were passed, the first to go last."""
        self._calls = 0
        """How often such a part was wanted since all were looked at."""
        self._seen: dict[Part, int] = {}
        """How many bytes of each copy had been given when `idle` was called last."""
        self._stuck_until = 0.0
        """Until when nobody need wait for copies to be passed."""
        self.losses = 0
        """How often the disk had lost something when copies were compared with it last."""

    def __bool__(self) -> bool:
        return bool(self._only or self._copies or self._scanned)

    def add(self, part: Part, opened: OpenObject, *, on_disk: bool) -> None:
        """Retain a part."""
        (self._copies if on_disk else self._only)[part] = opened

    def use(self, part: Part) -> None:
        """Mark a part, if it is retained, as read just now."""
        for kept in (self._only, self._copies):
            if part in kept:
                kept.move_to_end(part)
        self._unscan(part)

    def scanned(
        self, opened: OpenObject, pieces: Iterable[Data | Part], now: float
    ) -> list[Retained]:
        """Mark parts that are retained in memory only as read by a scan just now.

        Returns:
            Those to drop: the disk cache was spared them, and is to get them with their neighbours once
            a reader comes.
        """
        unread = [p for p in pieces if isinstance(p, Part) and p in self._only and not p.given]
        spent = [part for part in unread if opened.cache is not None and not part.to_disk]
        for part in unread:
            self._scanned[part] = self._only.pop(part), now
            self._scanned_size += part.cost
        return [(part, opened) for part in spent]

    def _unscan(self, part: Part) -> None:
        if part in self._scanned:
            self._only[part], _ = self._scanned.pop(part)
            self._scanned_size -= part.cost

    def remove(self, part: Part) -> None:
        """Stop retaining a part, if it was."""
        self._only.pop(part, None)
        self._copies.pop(part, None)
        if self._scanned.pop(part, None) is not None:
            self._scanned_size -= part.cost
        self._seen.pop(part, None)

    def first_to_go(self, reading: OpenObject | None = None) -> Retained | None:
        """Return what is missed least when memory is needed.

        That is what the disk also has, then what a reader has passed, then what only a scan has
        read. If memory is needed to read ahead in an object, nothing that was scanned of that object goes:
        its reader comes to that first.
        """
        if self._copies:
            return next(iter(self._copies.items()))
        if self._scanned:
            passed = self._first_passed()
            if passed is not None:
                return passed, self._only.get(passed) or self._scanned[passed][0]
            last = next(reversed(self._scanned))
            opened = self._scanned[last][0]
            return (last, opened) if opened is not reading else None
        return next(iter(self._only.items()), None)

    def _first_passed(self) -> Part | None:
        """Return a part in memory only that a reader has passed, or whose members were all pushed."""
        self._calls += 1
        if not self._passed and LOOKS * self._calls >= len(self._only) + len(self._scanned):
            self._calls = 0
            found = [part for kept in (self._only, self._scanned) for part in kept if part.passed]
            self._passed = found[::-1]
        while self._passed:
            part = self._passed.pop()
            if part in self._only or part in self._scanned:
                return part
        return None

    def copies(self) -> list[Retained]:
        """Return those that are on disk as well."""
        return list(self._copies.items())

    @property
    def overfull(self) -> bool:
        """Whether there are so many copies that more should come from the disk."""
        return self._copies_size > 2 * COPIES_MAX

    @property
    def _copies_size(self) -> int:
        return sum(part.cost for part in self._copies)

    async def wait_for_readers(
        self, drop: Callable[[list[Retained]], None], unwritten: Callable[[], int]
    ) -> None:
        """Wait while there are many copies, as long as readers or pushes pass them; `drop` those.

        Otherwise what fetches and what passes would drift apart, as far as memory permits. So would the
        thread that writes: what is `unwritten` counts as well, and memory for it would be new memory.
        """
        looks, until = 0, trio.current_time() + WAIT_SECONDS
        before = unwritten()
        began = self._waiting_size + before
        while (
            self._waiting_size + (lag := unwritten()) > COPIES_MAX
            and (now := trio.current_time()) >= self._stuck_until
        ):
            if passed := self.passed() + self._scanned_and_passed():
                drop(passed)
                looks = 0
            elif lag < before:
                before, looks = lag, 0
            elif looks == LOOKS_MAX:  # those who listed a folder do not read it, or not yet
                self._stuck_until = now + STUCK_SECONDS
            elif now >= until:
                if self._waiting_size + lag >= began:  # others go on, and this is not theirs
                    self._stuck_until = now + STUCK_SECONDS
                return
            else:
                await trio.sleep(LOOK_SECONDS)
                looks += 1

    def passed(self) -> list[Retained]:
        """Return the copies that a reader has passed."""
        return [kept for kept in self._copies.items() if kept[0].passed]

    @property
    def _waiting_size(self) -> int:
        return self._copies_size + self._scanned_size

    def _scanned_and_passed(self) -> list[Retained]:
        """Return those in memory only that were scanned lately, and pushed nearly whole."""
        some = islice(reversed(self._scanned.items()), LOOKS)
        return [(part, opened) for part, (opened, _) in some if _is_spent(part)]

    def idle(self, now: float) -> list[Retained]:
        """Return the copies that were there at the last call and were not read since.

        Also what was scanned too long ago, and no reader came for it.
        """
        idle = [kept for kept in self._copies.items() if self._seen.get(kept[0]) == kept[0].given]
        self._seen = {part: part.given for part in self._copies}
        for part in [part for part in self._scanned if part.given and not _is_spent(part)]:
            self._unscan(part)
        for part, (opened, since) in self._scanned.items():
            if now - since < SCANNED_SECONDS:
                break
            idle.append((part, opened))
        return idle


def _is_spent(part: Part) -> bool:
    """Return whether the page cache has nearly all of it: what it has not would have to be fetched again."""
    return part.passed and part.pushed * 8 >= len(part.range) * 7


Cached = tuple[BlockCache, EntryId, Source]
"""Where an object is on disk, and what brings it there."""

_AHEAD = 4
"""Pieces that wait for the reader: a stream is not held up by each write to the disk."""


def not_to_be_had(bucket: Bucket, info: ObjectInfo) -> Cached:
    """Refuse to read an object that the store sends only whole."""
    raise NoRanges(f"{bucket}/{info.key}: the store sends it only whole")


async def whole_stream(
    store: ObjectStore, bucket: Bucket, info: ObjectInfo, services: trio.Nursery
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield all of an object as (offset, bytes), no faster than the caller takes it.

    Args:
        store: Has the object.
        bucket: Where it is.
        info: Its version.
        services: Outlives the caller.
    """
    send, receive = trio.open_memory_channel[bytes](_AHEAD)
    token = trio.lowlevel.current_trio_token()
    scope = trio.CancelScope()
    failed: list[Exception] = []

    def take(piece: memoryview) -> None:
        # The stream is held up here; it goes on, by an error, as soon as nobody receives any more.
        trio.from_thread.run(send.send, bytes(piece), trio_token=token)

    async def pump() -> None:
        with scope, send:
            try:
                await store.stream(bucket, info, take)
            except trio.BrokenResourceError:
                pass
            except Exception as error:  # noqa: BLE001 - raised where it is received
                failed.append(error)

    services.start_soon(pump)
    position = 0
    try:
        async for piece in receive:
            yield position, piece
            position += len(piece)
    finally:
        receive.close()
        scope.cancel()
    if failed:
        raise failed[0]
    if position < info.size:
        raise Unavailable("the mount is ending")
