"""Slows uploads down to a limit that all of them share."""

import time
from collections.abc import Callable, Iterator

from aisfs.core.policy.link import TokenBucket
from aisfs.system.locks import Rank, ranked_lock

_LOOK_SECONDS = 0.1
"""How often a waiting thread looks whether its request was cancelled."""


class UploadPace:
    """Hands out the pieces of bodies when they may be sent. For the threads that send."""

    def __init__(self, rate: int) -> None:
        """Let `rate` bytes go in a second."""
        self._lock = ranked_lock(Rank.UPLOAD_PACE)
        self._bucket = TokenBucket(rate)

    def paced(
        self, pieces: Iterator[memoryview], is_aborted: Callable[[], bool]
    ) -> Iterator[memoryview]:
        """Yield each piece when it may be sent, or at once if the request is aborted."""
        for piece in pieces:
            self._wait(len(piece), is_aborted)
            yield piece

    def _wait(self, size: int, is_aborted: Callable[[], bool]) -> None:
        now = time.monotonic()
        with self._lock:
            until = now + self._bucket.take(size, now)
        while (left := until - time.monotonic()) > 0:
            if is_aborted():
                with self._lock:
                    self._bucket.give_back(size)
                return
            time.sleep(min(left, _LOOK_SECONDS))  # noqa: TID251 - a thread of one request
