"""Room for a range of an entry, from the moment it is reserved until it is written or returned."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from aisfs.cache.disk.bookkeeping import Bookkeeper
from aisfs.cache.disk.segment_file import SegmentFile, sums_of, sums_of_bytes
from aisfs.cache.disk.segments import Segment
from aisfs.core.ranges import RangeSet
from aisfs.model import ByteRange


@dataclass(slots=True)
class Part:
    """The share of one segment in a reservation."""

    segment: Segment
    range: ByteRange
    cost: int
    """Bytes of the grant it may use."""
    file: SegmentFile
    written: bool = False


class Reservation:
    """Room to write a range of an entry into. A context manager: leaving returns what is left.

    Threads may write and publish different parts of it at once. When the disk fails nothing is
    raised: `publish` returns False and the bytes are just not kept.
    """

    def __init__(self, wanted: ByteRange, bookkeeper: Bookkeeper) -> None:
        """Made by `SpaceReserver.reserve`, which adds the parts."""
        self.range = wanted
        self.parts: list[Part] = []
        self._bookkeeper = bookkeeper
        self._resident = bookkeeper.resident
        self._written = RangeSet()
        self._failed = False
        self._open = True

    def __repr__(self) -> str:
        state = "failed" if self._failed else "open" if self._open else "finished"
        return f"<Reservation {self.range} {self._written.total} bytes written, {state}>"

    @property
    def is_open(self) -> bool:
        """Whether it was not finished yet."""
        return self._open

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def _pieces(self, wanted: ByteRange) -> Iterator[tuple[Part, ByteRange]]:
        for part in self.parts:
            start, stop = max(wanted.start, part.range.start), min(wanted.stop, part.range.stop)
            if start < stop:
                yield part, ByteRange(start, stop)

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
        view = memoryview(data)
        for part, piece in self._pieces(ByteRange(offset, stop)):
            with self._resident.lock:
                if part.segment.gone:
                    self._failed = True
                if self._failed or not self._open:
                    return
                part.written = True
            try:
                content = view[piece.start - offset : piece.stop - offset]
                part.file.write(piece.start, content, past_page_cache=past_page_cache)
            except OSError as error:
                self._failed = True
                self._bookkeeper.health.trouble(error)
                return
            with self._resident.lock:
                self._written.add(piece)

    def publish(self, published: ByteRange, data: memoryview | None = None) -> bool:
        """Publish a range that is completely written to readers; return False if the disk failed.

        Args:
            published: The range.
            data: Its bytes, where they are at hand: they need not be read back for their checksums.

        Raises:
            ValueError: it is not written.
        """
        with self._resident.lock:
            if not self._failed and not self._written.covers(published):
                raise ValueError(f"{published} is not written: {self!r}")
        if self._failed or not self._open:
            return False
        for part, piece in self._pieces(published):
            sums = None
            if data is None:
                try:
                    sums = sums_of(part.file, piece)
                except OSError as error:
                    self._bookkeeper.health.trouble(error)
            else:
                base = published.start
                sums = sums_of_bytes(piece, data[piece.start - base : piece.stop - base])
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
        """Return what was not used; a second time does nothing."""
        with self._resident.lock:
            if not self._open:
                return
            self._open = False
            parts, self.parts = self.parts, []
            for part in parts:
                if not part.segment.gone:
                    self._resident.end(part.segment, part.cost, spent=part.written)
        if self._failed:
            try:
                self._bookkeeper.remove_empty(part.segment for part in parts)
            except (OSError, sqlite3.Error) as error:
                self._bookkeeper.health.trouble(error)

    def abandon(self) -> None:
        """Return everything, and remove files that were made for it."""
        self._failed = True
        self.finish()
