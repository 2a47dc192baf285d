"""A limit on bytes per second that many share: a token bucket whose tokens may be spent early.

Who wants to send bytes is told how long to wait. Nobody waits for who asks later, whatever the sizes; the
turns of those who gave up go to the next who ask. Until any moment, no more bytes may go than the rate
permits, and those of one request.
"""


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
