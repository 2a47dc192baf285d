"""What is known about reading one version of one object, while anybody reads it."""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable

from aisfs.cache.disk.block_cache import BlockCache
from aisfs.cache.disk.format import EntryId
from aisfs.core.policy.readahead import ReadAhead
from aisfs.engine.fetch.part import Part
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.process.locks import Rank, ranked_lock

_FAILED_MAX = 16
"""Failed ranges that are remembered of an object: what readers and their read-ahead have under way."""
OBJECTS_MAX = 10_000
"""Objects whose read-ahead is remembered."""

LOOKS = 16
"""Objects looked at when one is added: few enough to take microseconds, and more than one, so that the
number falls again after most of them had parts."""

Source = Callable[[int, memoryview], Awaitable[None]]
"""Fills a buffer with the bytes from an offset on; raises as `ObjectStore.read_range` does."""


class OpenObject:
    """What is known about reading one version of one object, or what it is when decompressed."""

    __slots__ = ("bucket", "cache", "entry", "failed", "info", "kept_by_source", "key", "lock", "parts",
                 "read_ahead", "source")  # fmt: skip

    def __init__(
        self,
        key: Hashable,
        bucket: Bucket,
        info: ObjectInfo,
        read_ahead: ReadAhead,
        source: Source,
        cached: tuple[BlockCache, EntryId] | None,
        *,
        kept_by_source: bool = False,
    ) -> None:
        """Know no parts yet.

        Args:
            key: Tells it from all others.
            bucket: Where the object is.
            info: The version; its size is how much can be read.
            read_ahead: Watches its readers.
            source: Where bytes come from that are neither in memory nor on disk.
            cached: Where they are on disk; None if nothing of it goes there.
            kept_by_source: The source itself writes to disk what it gives.
        """
        self.key = key
        self.bucket = bucket
        self.info = info
        self.read_ahead = read_ahead
        self.lock = ranked_lock(Rank.READ_AHEAD)
        """Guards `read_ahead`, which the lane's thread tells of reads too."""
        self.source = source
        self.cache: BlockCache | None = cached[0] if cached else None
        self.entry: EntryId | None = cached[1] if cached else None
        self.kept_by_source = kept_by_source
        self.failed: tuple[ByteRange, ...] = ()
        """The latest ranges that could not be fetched. Belongs to the trio thread."""
        self.parts: list[Part] = []
        """Sorted, disjoint. Changed by the trio thread only; `landed` looks at it from any."""

    def landed(self, wanted: ByteRange) -> memoryview | None:
        """Give bytes that one part in memory has, or two of them. Waits for nothing, from any thread.

        The list may change between any two steps here, so nothing that was found is believed before
        the part itself was asked: its range never changes, nor its bytes once it is done, and the
        view keeps its buffer from being used again.
        """
        parts = self.parts
        try:
            at = bisect_right(parts, wanted.start, key=_start) - 1
            part = parts[at]
            there = part.range
            if not (there.start <= wanted.start < there.stop and part.landed):
                return None
            if wanted.stop <= there.stop:
                return part.view(wanted)
            behind = parts[at + 1]
        except IndexError:
            return None
        rest = behind.range
        if rest.start == there.stop and wanted.stop <= rest.stop and behind.landed:
            return memoryview(b"".join((part.view(wanted), behind.view(wanted))))
        return None

    def overlapping(self, wanted: ByteRange) -> list[Part]:
        """Give the parts that have bytes of `wanted`, in order."""
        parts = self.parts
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
        """Take in a part of a range that no other has."""
        insort(self.parts, part, key=_start)

    def remove(self, part: Part) -> bool:
        """Take a part out again; says whether it was there."""
        at = bisect_left(self.parts, part.range.start, key=_start)
        if at == len(self.parts) or self.parts[at] is not part:
            return False
        del self.parts[at]
        return True


class OpenObjects:
    """Those that are known, the ones used last. From any thread."""

    def __init__(self) -> None:
        """Know none."""
        self._lock = ranked_lock(Rank.OPEN_OBJECTS)
        self._objects: OrderedDict[Hashable, OpenObject] = OrderedDict()

    def get(self, key: Hashable) -> OpenObject | None:
        """Give the one of that key, if it is known."""
        with self._lock:
            found = self._objects.get(key)
            if found is not None:
                self._objects.move_to_end(key)
            return found

    def add(self, opened: OpenObject) -> OpenObject:
        """Give the one that is known under the key of `opened`, or from now on `opened`."""
        with self._lock:
            found = self._objects.setdefault(opened.key, opened)
            self._objects.move_to_end(opened.key)
            self._forget_oldest()
            return found

    def _forget_oldest(self) -> None:
        """Forget those used longest ago, but none with parts: memory bounds how many these are."""
        for _ in range(min(LOOKS, len(self._objects))):
            if len(self._objects) <= OBJECTS_MAX:
                return
            key, oldest = next(iter(self._objects.items()))
            if oldest.parts:
                self._objects.move_to_end(key)  # else it would hide those behind it
            else:
                del self._objects[key]


def _start(part: Part) -> int:
    return part.range.start
