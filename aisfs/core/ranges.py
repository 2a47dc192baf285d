"""Sets of byte ranges: which bytes of an object are present, and which are missing.

A set may hold 100,000 ranges (every other sample of a large shard), so every operation is a binary
search and visits only the ranges concerned. Ranges of a set are sorted, not empty, and separated by
gaps: adjacent ranges are joined, so that equal sets have equal ranges.
"""

import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

from aisfs.model import ByteRange

_LAYOUT = b"\x01"
"""First byte of the packed form: 0x01, then a zlib stream of gaps and lengths in turn."""
_LEVEL = 1  # block-aligned ranges are mostly zeros; a higher level gains nothing
MAX_RANGES = 1 << 24
"""Most ranges that `unpack` accepts, so that damaged bytes cannot fill memory: a shard has no more
members (`inodes.MAX_MEMBERS`)."""
GROWTH = 4
"""Growth factor of the first pieces of a stream. A piece costs a request or two: of 2, 4 and 8
this was the fastest for the members of a shard of 8 MB."""
_MAX_OFFSET = (1 << 63) - 1  # what `lseek` and AIStore take


class RangeSet:
    """A set of bytes of one object, as ranges."""

    __slots__ = ("_starts", "_stops", "total")

    def __init__(self, ranges: Iterable[ByteRange] = ()) -> None:
        """Start with the bytes of `ranges`, which may overlap and be in any order."""
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.total = 0
        """Bytes in the set."""
        for each in ranges:
            self.add(each)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[ByteRange]:
        return map(ByteRange, self._starts, self._stops)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._starts == other._starts and self._stops == other._stops

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"<RangeSet {self.total} bytes in {len(self)} ranges>"

    def add(self, added: ByteRange) -> None:
        """Add all bytes of a range."""
        start, stop = added.start, added.stop
        if start >= stop:
            return
        first = bisect_left(self._stops, start)
        behind = bisect_right(self._starts, stop)
        if first < behind:  # these overlap or adjoin it
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[behind - 1])
        self._replace(first, behind, [start], [stop])

    def subtract(self, removed: ByteRange) -> None:
        """Remove all bytes of a range."""
        start, stop = removed.start, removed.stop
        if start >= stop:
            return
        first = bisect_right(self._stops, start)
        behind = bisect_left(self._starts, stop)
        if first >= behind:
            return
        starts, stops = [], []
        if self._starts[first] < start:
            starts.append(self._starts[first])
            stops.append(start)
        if stop < self._stops[behind - 1]:
            starts.append(stop)
            stops.append(self._stops[behind - 1])
        self._replace(first, behind, starts, stops)

    def covers(self, wanted: ByteRange) -> bool:
        """Return whether every byte of `wanted` is in the set."""
        if wanted.start >= wanted.stop:
            return True
        place = bisect_right(self._starts, wanted.start) - 1
        return place >= 0 and wanted.stop <= self._stops[place]

    def missing(self, wanted: ByteRange) -> list[ByteRange]:
        """Return the parts of `wanted` that are not in the set, in order."""
        gaps = []
        start = wanted.start
        for place in range(bisect_right(self._stops, start), len(self._starts)):
            if self._starts[place] >= wanted.stop:
                break
            if start < self._starts[place]:
                gaps.append(ByteRange(start, self._starts[place]))
            start = self._stops[place]
        if start < wanted.stop:
            gaps.append(ByteRange(start, wanted.stop))
        return gaps

    def pack(self) -> bytes:
        """Return a compact form that `unpack` reads on any machine."""
        steps = array("Q", bytes(16 * len(self)))
        before = [0, *self._stops]
        steps[0::2] = array("Q", map(int.__sub__, self._starts, before))
        steps[1::2] = array("Q", map(int.__sub__, self._stops, self._starts))
        if sys.byteorder == "big":
            steps.byteswap()
        return _LAYOUT + zlib.compress(steps.tobytes(), _LEVEL)

    @classmethod
    def unpack(cls, packed: bytes) -> "RangeSet":
        """Return the set that `pack` packed.

        Raises:
            ValueError: these are not the bytes of a set.
        """
        if packed[:1] != _LAYOUT:
            raise ValueError("ranges of an unknown layout")
        unzip = zlib.decompressobj()
        try:
            raw = unzip.decompress(packed[1:], 16 * MAX_RANGES)
        except zlib.error as error:
            raise ValueError(f"damaged ranges: {error}") from None
        if not unzip.eof or unzip.unused_data or len(raw) % 16:
            raise ValueError("ranges cut off or with something behind")
        steps = array("Q", raw)
        if sys.byteorder == "big":
            steps.byteswap()
        if 0 in steps[1:]:  # only the first range may start without a gap
            raise ValueError("an empty range, or two that touch")
        borders = list(accumulate(steps))
        if borders and borders[-1] > _MAX_OFFSET:
            raise ValueError("a range beyond the end of any object")
        ranges = cls()
        ranges._starts, ranges._stops = borders[0::2], borders[1::2]
        ranges.total = sum(steps[1::2])
        return ranges

    def _replace(self, first: int, behind: int, starts: list[int], stops: list[int]) -> None:
        gone = sum(self._stops[first:behind]) - sum(self._starts[first:behind])
        self.total += sum(stops) - sum(starts) - gone
        self._starts[first:behind] = starts
        self._stops[first:behind] = stops


def aligned(wanted: ByteRange, block: int, size: int) -> ByteRange:
    """Return `wanted` extended to block boundaries and cut at `size`, the end of the object.

    An empty range stays empty.
    """
    start, stop = min(wanted.start, size), min(wanted.stop, size)
    if start >= stop:
        return ByteRange(start, start)
    return ByteRange(start // block * block, min(-(-stop // block) * block, size))


def pieces(whole: ByteRange, length: int) -> Iterator[ByteRange]:
    """Yield `whole` in ranges of `length` bytes; the last one may be shorter."""
    for start in range(whole.start, whole.stop, length):
        yield ByteRange(start, min(start + length, whole.stop))


def growing_pieces(whole: ByteRange, first: int, most: int) -> Iterator[ByteRange]:
    """Yield `whole` in ranges cut at `first` bytes, `GROWTH` times that, and so on; at most `most` long."""
    start, edge = whole.start, first
    while start < whole.stop:
        stop = min(whole.start + edge, whole.stop)
        yield ByteRange(start, stop)
        edge = edge + most if edge >= most else min(GROWTH * edge, most)
        start = stop
