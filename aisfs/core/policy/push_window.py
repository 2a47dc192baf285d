"""One reader going through a shard, and the window of members pushed ahead of it."""

from collections.abc import Sequence
from dataclasses import dataclass

WINDOW_FIRST = 8
WINDOW_MAX = 512
WINDOW_BYTES = 8 << 20
"""Most bytes ahead of one reader: 2 ms of pushing small members, 4 ms of large ones."""
PAGE = 4096


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


class Stream:
    """One reader going through a shard."""

    __slots__ = ("ahead", "at", "behind_marker", "bytes_left", "bytes_max", "has_gaps", "marker",
                 "pushed", "rows_left", "seen", "stalled", "top", "wasted", "window")  # fmt: skip

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
        self.has_gaps = False
        """Whether rows up to `top` were skipped because their bytes were missing."""
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
