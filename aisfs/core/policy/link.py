"""The link to a store: its latency and rate, estimated from requests as they end, and a limit on bytes per second.

The limit is a token bucket that many share, whose tokens may be spent early. A sender is given the time that it has to wait. None
waits for a later one, whatever the sizes; the turns of those that gave up go to the next. Until any moment, no more bytes may go
than the rate permits, and those of one request.
"""

from collections import deque

SMALL = 64 << 10
"""Bytes up to which a request takes about as long as one of a byte: half a millisecond at 1 Gbit/s."""
LARGE = 256 << 10
"""Bytes from which the time of a request says how fast bytes arrive."""
SAMPLES = 32
"""Requests of either kind that count: the link's load changes, and scans want to follow it."""


class LinkEstimate:
    """What requests under way together show of their link.

    A request takes the latency, and then as long as the link needs for its bytes and for those of the
    others. So the rate is that of all bytes that arrived while a large request was under way.

    A rate that is estimated too low would make scans skip so much that nothing large is measured any
    more; one that is too high makes them stream, and is corrected. So in doubt the estimate is high.
    """

    def __init__(self) -> None:
        """Start without an estimate."""
        self._arrived = 0
        self._latencies: deque[float] = deque(maxlen=SAMPLES)
        self._rates: deque[tuple[float, int]] = deque(maxlen=SAMPLES)
        """Each with the bytes that it was measured by."""

    @property
    def arrived(self) -> int:
        """How many bytes have arrived in all; a request begins with a look at it."""
        return self._arrived

    def observe(self, length: int, seconds: float, before: int) -> None:
        """Record a request that has ended.

        Args:
            length: Its bytes.
            seconds: How long it took.
            before: `arrived` when it began.
        """
        self._arrived += length
        if seconds <= 0:
            return
        if length <= SMALL:
            self._latencies.append(seconds)
        elif length >= LARGE:
            busy = max(seconds - (self.latency or 0.0), seconds / 4)
            arrived = self._arrived - before
            self._rates.append((arrived / busy, arrived))

    @property
    def latency(self) -> float | None:
        """Seconds of a small request; None until one has ended.

        A quarter of the latest took no longer: the others may have waited for a connection, or for the
        bytes of large ones.
        """
        return sorted(self._latencies)[len(self._latencies) // 4] if self._latencies else None

    @property
    def rate(self) -> float | None:
        """Bytes a second of all requests together; None until a large one has ended.

        Half of the bytes came faster, and half slower.
        """
        left = sum(weight for _, weight in self._rates) / 2
        for rate, weight in sorted(self._rates):
            left -= weight
            if left <= 0:
                return rate
        return None


class TokenBucket:
    """Says when bytes may go."""

    def __init__(self, rate: float) -> None:
        """Let `rate` bytes go in a second."""
        self._rate = rate
        self._paid_at = 0.0
        """When all bytes taken so far are paid for."""

    def take(self, size: int, now: float) -> float:
        """Take `size` bytes; return the seconds until they may go."""
        start = max(self._paid_at, now)
        self._paid_at = start + size / self._rate
        return start - now

    def give_back(self, size: int) -> None:
        """Return bytes that were taken, and whose time has not come: they will not go."""
        self._paid_at -= size / self._rate
