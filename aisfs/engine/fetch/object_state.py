"""One version of one object while it is read: its parts, its place on disk, its readers."""

import logging
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from weakref import WeakValueDictionary

from aisfs.cache.block_cache import BlockCache
from aisfs.cache.format import SEGMENT, EntryId
from aisfs.core.policy.shard_readers import ReadAhead
from aisfs.engine.fetch.buffers import BufferPool
from aisfs.engine.fetch.part import Data, Part, Received
from aisfs.errors import untraced
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.stores.port import Arrived
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.logs import DISK, MEMORY, request_log
from aisfs.system.threads import any_thread

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
    def will_be_read(self, wanted: ByteRange) -> None:
        """Have a range that is on disk in the page cache before its reader comes."""
        if self.cache is not None and self.entry is not None:
            self.cache.will_need(self.entry, wanted)

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
