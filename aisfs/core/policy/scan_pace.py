"""How to go through a tar whose data need not be fetched: what to read, and what to skip.

A range that is skipped costs a request more, and saves the time of its bytes. So data is skipped where
it is longer than the break-even: what the link carries during one request. Shorter members are
streamed, in pieces that begin small and double as long as there is little to skip.
"""

from aisfs.core.policy.link import SMALL
from aisfs.model import ByteRange

GLANCE_MIN, GLANCE_MAX = 16 << 10, SMALL
"""Bytes of a first piece: the headers of a few samples, and little beside the latency, which it
measures."""
PIECE_MAX = 64 << 20
"""Bytes of the longest piece; it is streamed, and ends early where skipping becomes worthwhile."""
BREAK_EVEN_MIN = 2 * GLANCE_MIN
"""A member that is shorter lies mostly in the piece that has its header."""
BREAK_EVEN_MAX = PIECE_MAX
FITS = 0.9
"""Share of the cache that data may take to count as fitting: blocks and headers need some too."""
STEP_MIN, STEP_MAX = 4 << 10, 64 << 10
UNMEASURED = 1 << 20
"""The break-even until the link was measured, and the longest piece: 1 Gbit/s at 8 ms."""


def break_even(latency: float | None, rate: float | None, at_once: int = 1) -> int | None:
    """Return how many bytes of data take as long to stream as to skip; None if nobody knows.

    Args:
        latency: Seconds of a small request; None if unknown.
        rate: Bytes a second of all requests together; None if unknown.
        at_once: How many scans are under way: each waits for its own requests, but they share the rate.
    """
    if latency is None or rate is None:
        return None
    return int(min(max(latency * rate / max(1, at_once), BREAK_EVEN_MIN), BREAK_EVEN_MAX))


def fits(total: int, capacity: int) -> bool:
    """Return whether so much data would stay in a disk cache of this capacity."""
    return total <= FITS * capacity


class ScanPace:
    """The pieces in which one tar is read."""

    def __init__(self, size: int, length: int = 0) -> None:
        """Begin a tar of `size` bytes with a piece of `length`, if that is known from others like it."""
        self._size = size
        self.length = length
        """Of the next piece, if no bounds forbid it."""

    def next_piece(self, needed: int, even: int | None) -> ByteRange:
        """Return what to read next.

        Args:
            needed: The first byte that has to be looked at, or one shortly before.
            even: The break-even of now, if it is known. If not, the first pieces are the smallest:
                they measure the latency.
        """
        first = GLANCE_MIN if even is None else min(max(even // 8, GLANCE_MIN), GLANCE_MAX)
        most = UNMEASURED if even is None else PIECE_MAX
        self.length = min(max(self.length, first), most)
        return ByteRange(needed, min(needed + self.length, self._size))

    def observe(self, read: int, skippable: int) -> None:
        """Record a piece.

        Args:
            read: The bytes that were read of it, from its start on.
            skippable: How many of these were in stretches longer than the break-even that nobody
                looked at.
        """
        if too_long(read, skippable):
            self.length = 0
        elif skippable * 4 <= read:
            self.length *= 2


def step(length: int) -> int:
    """Return how many bytes of a piece of this length to look at before asking what is needed next.

    Small pieces are looked at closely, so that a single long member is noticed; in large ones
    64 KiB are close enough, and scanners are faster on runs of members.
    """
    return min(max(length // 16, STEP_MIN), STEP_MAX)


def too_long(read: int, skippable: int) -> bool:
    """Return whether so much of what was read could have been skipped that streaming should end."""
    return skippable * 2 > read
