"""Room for a range of an entry, from the moment it is reserved until it is written or returned."""

import sqlite3
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aisfs.cache.disk.bookkeeping import Bookkeeper
from aisfs.cache.disk.format import SEGMENT
from aisfs.cache.disk.segment_file import SegmentFile, sums_of, sums_of_bytes
from aisfs.cache.disk.segments import Segment
from aisfs.core.ranges import RangeSet
from aisfs.model import ByteRange


@dataclass(slots=True)
class Part:
    """The share of one segment in a reservation."""

    segment: Segment
    cost: int
    """Bytes of the grant it was promised."""
    file: SegmentFile | None = None
    written: bool = False


class Reservation:
    """Room to write a range of an entry into. A context manager: leaving returns what is left.

    Threads may write and publish different parts of it at once. When the disk fails nothing is
    raised: `publish` says False and the bytes are just not kept.
    """

    def __init__(
        self,
        wanted: ByteRange,
        parts: list[Part],
        bookkeeper: Bookkeeper,
    ) -> None:
        """Given out by `BlockCache.reserve`."""
        self.range = wanted
        self._parts = {part.segment.start: part for part in parts}
        self._bookkeeper = bookkeeper
        self._resident = bookkeeper.resident
        self._written = RangeSet()
        self._failed = False
        self._open = True

    def __repr__(self) -> str:
        state = "failed" if self._failed else "open" if self._open else "finished"
        return f"<Reservation {self.range} {self._written.total} bytes written, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.finish()

    @property
    def _writable(self) -> bool:
        return self._open and not self._failed

    def write(
        self,
        offset: int,
        data: bytes | bytearray | memoryview,
        *,
        past_page_cache: bool = False,
    ) -> None:
        """Write bytes that start at `offset` of the object; readers see them once published.

        Args:
            offset: Where.
            data: What.
            past_page_cache: To the disk itself, which takes no memory and less processor time. For
                what will not be read from this cache soon; it should begin on a page in memory.

        Raises:
            ValueError: they are not within what was reserved, or it was finished.
        """
        stop = offset + len(data)
        if not self._open or offset < self.range.start or stop > self.range.stop:
            raise ValueError(f"[{offset}, {stop}) is not within {self!r}")
        rest = memoryview(data)
        parts = self._parts
        while rest:
            part = parts[offset // SEGMENT * SEGMENT]
            segment, file = part.segment, part.file
            piece = ByteRange(offset, min(stop, segment.start + SEGMENT))
            with self._resident.lock:
                if segment.gone:
                    self._failed = True
                if file is None or not self._writable:
                    return
                part.written = True
            try:
                file.write(offset, rest[: len(piece)], past_page_cache=past_page_cache)
            except OSError as error:
                self._failed = True
                self._bookkeeper.health.trouble(error)
                return
            with self._resident.lock:
                self._written.add(piece)
            rest = rest[len(piece) :]
            offset = piece.stop

    def publish(self, published: ByteRange, data: memoryview | None = None) -> bool:
        """Let readers have a range that is written as a whole; False if the disk failed.

        Args:
            published: The range.
            data: Its bytes, where they are at hand: they need not be read back for their checksums.

        Raises:
            ValueError: it is not written.
        """
        with self._resident.lock:
            if not self._failed and not self._written.covers(published):
                raise ValueError(f"{published} is not written: {self!r}")
        if not self._writable:
            return False
        for start, part in self._parts.items():
            first, last = max(start, published.start), min(start + SEGMENT, published.stop)
            if first >= last or part.file is None:
                continue
            piece = ByteRange(first, last)
            sums = None
            if data is None:
                try:
                    sums = sums_of(part.file, piece)
                except OSError as error:
                    self._bookkeeper.health.trouble(error)
            else:
                sums = sums_of_bytes(piece, data[first - published.start : last - published.start])
            with self._resident.lock:
                if sums is None or part.segment.gone:
                    self._failed = True
                    return False
                part.segment.publish(piece, sums)
                if part.segment.file is None:
                    self._resident.files.put(part.segment, part.file)
                self._resident.dirty.add(part.segment)
        self._bookkeeper.on_published(len(published))
        return True

    def finish(self) -> None:
        """Return what was not used. Also what `cancel` does; a second time does nothing."""
        resident = self._resident
        with resident.lock:
            if not self._open:
                return
            self._open = False
            for part in self._parts.values():
                segment = part.segment
                if segment.gone:
                    continue
                segment.promised -= part.cost
                if part.written:
                    segment.spent += part.cost
                    resident.dirty.add(segment)
                else:
                    resident.free += part.cost
                    resident.resize(segment)
                resident.admission.unpin(segment.key)
            segments = [part.segment for part in self._parts.values()]
            self._parts = {}
        if self._failed:
            try:
                self._bookkeeper.remove_empty(segments)
            except (OSError, sqlite3.Error) as error:
                self._bookkeeper.health.trouble(error)

    cancel = finish
