"""Counts of the requests of each kind since the server started."""

import threading
from collections import Counter


class Counters:
    """Counts by kind; the kinds are listed in `aisfs.server.app`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, kind: str, number: int = 1) -> None:
        """Count one more request, or so many bytes."""
        with self._lock:
            self._counts[kind] += number

    def snapshot(self) -> dict[str, int]:
        """Return all counts that are not zero."""
        with self._lock:
            return dict(self._counts)
