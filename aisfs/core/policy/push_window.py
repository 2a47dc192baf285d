"""One reader going through a shard, and the window of members pushed ahead of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.policy.page_cache_map import PageCacheMap

WINDOW_FIRST = 8
WINDOW_MAX = 512
WINDOW_BYTES = 8 << 20
"""Most bytes ahead of one reader: 2 ms of pushing small members, 4 ms of large ones."""
PAGE = 4096
BATCH_ROWS = 256
BATCH_BYTES = 2 << 20
"""Most rows and bytes of a batch: a millisecond of work."""
RUN_LEAST = 64
"""Rows that are worth a look at all of them at once; smaller windows are gone through row by row."""


@dataclass(slots=True)
class PushCounts:
    """Counts of pushed members; the use of samples and whole shards is often unknown."""

    pushed: int = 0
    bytes: int = 0
    used: int = 0
    """An ordered reader passed them without a READ."""
    wasted: int = 0
    """They were READ anyway, or the stream ended before them."""


def footprint(size: int) -> int:
    """Return the bytes of page cache that a file of `size` bytes takes."""
    return -(-size // PAGE) * PAGE


class PushableRows:
    """Which rows of a shard can be pushed and are probably not in the page cache."""

    __slots__ = ("index", "pages")

    def __init__(self, index: MemberIndex, pages: PageCacheMap) -> None:
        self.index = index
        self.pages = pages

    def wanted(self, row: int) -> bool:
        """Return whether to push a row."""
        if not self.pages.absent(row):
            return False
        index = self.index
        return index.plain(row) and 0 < index.size(row) <= WINDOW_BYTES

    def all_small(self, start: int, stop: int) -> bool:
        """Return whether all rows of a range are wanted, and take a page each."""
        index = self.index
        small = index.all_plain(start, stop) and index.sizes_within(start, stop, PAGE)
        return small and self.pages.all_absent(start, stop)


class Stream:
    """One reader going through a shard."""

    __slots__ = ("ahead", "at", "behind_marker", "bytes_left", "bytes_max", "has_gaps", "marker",
                 "misses", "pushed", "rows_left", "scanned", "seen", "stalled", "top", "wasted", "window")  # fmt: skip

    def __init__(self, at: int, top: int, *, seen: bool = True) -> None:
        """Begin after the row `top`."""
        self.at = at
        """The row that was read last, as far as READs show."""
        self.top = top
        """Rows up to here were pushed or skipped."""
        self.window = 0
        """Rows ahead of the reader; 0 until a second READ confirms that there is one."""
        self.rows_left = 0
        self.bytes_left = self.bytes_max = WINDOW_BYTES
        self.seen = seen
        """Whether there was a READ. Where there was only a listing, missing bytes are not waited for."""
        self.scanned = False
        """Whether the window is what a scan left in memory. What is missing there only a READ will bring."""
        self.has_gaps = False
        """Whether rows up to `top` were skipped because their bytes were missing."""
        self.misses = 0
        """How many batches in a row began with such a row."""
        self.marker = -1
        """The row left out in the middle of the window."""
        self.stalled = False
        """Whether the bytes of the next row are missing."""
        self.ahead = self.behind_marker = 0
        """Bytes pushed and not known to be read: in all, and after the marker."""
        self.pushed = self.wasted = 0
        """Rows of this window that were pushed, and that were pushed in vain."""

    def open_window(self, rows: int, size: int = WINDOW_BYTES) -> None:
        """Begin a window of so many rows behind `top`, and of at most `size` bytes."""
        self.window = self.rows_left = rows
        self.bytes_left = self.bytes_max = size

    def skip(self, stored: int) -> int:
        """Return how many rows to leave out, as the one behind those `stored` is missing.

        More with each batch that brings nothing: what is missing lies together.
        """
        self.has_gaps = True
        self.misses = 0 if stored else self.misses + 1
        return min(1 << self.misses, BATCH_ROWS)

    def put_back(self, rows: Sequence[int], cost: int) -> None:
        """Put the last rows, of `cost` bytes, back into the window."""
        self.rows_left += self.top - (rows[0] - 1)
        self.bytes_left += cost
        self.top = rows[0] - 1
        if self.marker > self.top:
            self.marker, self.behind_marker = -1, 0
        elif self.marker >= 0:
            self.behind_marker -= cost

    @property
    def pending(self) -> bool:
        """Whether rows of the window are still to be pushed."""
        return self.rows_left > 0 and self.bytes_left > 0 and not self.stalled

    def advance(self, rows: int, cost: int) -> None:
        """Go on by so many rows; of these `cost` bytes are to be pushed."""
        self.top += rows
        self.rows_left -= rows
        self.bytes_left -= cost
        if self.marker >= 0:
            self.behind_marker += cost

    def choose(self, rows: PushableRows, room: int) -> Sequence[int]:
        """Return the next rows to push, a batch of at most `room` bytes."""
        if count := self._small_ones(rows, room):
            self.advance(count, count * PAGE)
            return range(self.top - count + 1, self.top + 1)
        batch: list[int] = []
        taken = 0
        wanted, size, end = rows.wanted, rows.index.size, len(rows.index)
        marked = not self.window or self.marker >= 0
        while self.pending and len(batch) < BATCH_ROWS and taken < BATCH_BYTES:
            row = self.top + 1
            if row >= end:
                self.rows_left = 0
                break
            if wanted(row):
                if not marked and self.at_middle:
                    self.marker, marked = row, True
                else:
                    cost = footprint(size(row))
                    if cost > self.bytes_left and self.bytes_left < self.bytes_max:
                        self.bytes_left = 0
                        break
                    if taken + cost > room:
                        break
                    taken += cost
                    batch.append(row)
                    self.advance(1, cost)
                    continue
            self.advance(1, 0)
        return batch

    def _small_ones(self, rows: PushableRows, room: int) -> int:
        """Return how many of the next rows to push as they are, as all of them are small."""
        count = min(self.rows_left, BATCH_ROWS, min(self.bytes_left, room) // PAGE)
        if self.window and self.marker < 0:
            count = min(count, self.until_middle)
        start = self.top + 1
        count = min(count, len(rows.index) - start)
        if self.stalled or count < RUN_LEAST:
            return 0
        return count if rows.all_small(start, start + count) else 0

    @property
    def until_middle(self) -> int:
        """Return how many rows of a page each there are at least before the middle of the window."""
        return min(
            self.rows_left - self.window // 2, (self.bytes_left - self.bytes_max // 2) // PAGE
        )

    @property
    def at_middle(self) -> bool:
        """Return whether half of the window is pushed, which is where the marker belongs."""
        return 2 * self.rows_left <= self.window or 2 * self.bytes_left <= self.bytes_max
