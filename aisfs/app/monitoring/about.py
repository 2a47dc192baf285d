"""What the daemon of a mount says of itself: its process, its log, and how much it has done lately."""

import json
import logging
import logging.handlers
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import trio

from aisfs.app.monitoring.health import Health
from aisfs.filesystem.xattrs import ABOUT, HEALTH
from aisfs.metrics import Metrics, Totals
from aisfs.stores.ais.transport import VERSION

SAMPLE_SECONDS = 5.0
WINDOWS = {"last_10_seconds": 10.0, "last_minute": 60.0}
"""Over which rates are told. A mount that is younger tells them since its start."""


class _Sample(NamedTuple):
    time: float
    totals: Totals


class About:
    """For the trio thread."""

    def __init__(self, metrics: Metrics, health: Health, *, writable: bool) -> None:
        """Tell of the process that calls this."""
        self._metrics = metrics
        self._health = health
        self._writable = writable
        self._started = time.monotonic()
        self._samples: deque[_Sample] = deque()

    @property
    def reports(self) -> Mapping[bytes, Callable[[], Awaitable[bytes]]]:
        """The extended attributes of the root that this answers."""
        return {ABOUT: self._describe, HEALTH: self._check}

    async def sample(self) -> None:
        """Remember every few seconds what was done until then."""
        longest = max(WINDOWS.values())
        while True:
            now = self._sample()
            self._samples.append(now)
            while len(self._samples) > 1 and self._samples[1].time <= now.time - longest:
                self._samples.popleft()
            await trio.sleep(SAMPLE_SECONDS)

    async def _describe(self) -> bytes:
        about = {
            "pid": os.getpid(),
            "uptime_seconds": int(time.monotonic() - self._started),
            "version": VERSION,
            "writable": self._writable,
            "log": log_destination(),
            "rates": {name: self._rates(seconds) for name, seconds in WINDOWS.items()},
        }
        return json.dumps(about, ensure_ascii=False).encode()

    async def _check(self) -> bytes:
        return (await self._health.problem()).encode()

    def _sample(self) -> _Sample:
        return _Sample(time.monotonic(), self._metrics.totals())

    def _rates(self, seconds: float) -> dict[str, float]:
        """Return how much was done in a second, over the last so many."""
        now = self._sample()
        since = next(
            (s for s in reversed(self._samples) if s.time <= now.time - seconds),
            self._samples[0] if self._samples else now,
        )
        passed = max(now.time - since.time, 1.0)
        done = zip(Totals._fields, now.totals, since.totals, strict=True)
        return {name: round((after - before) / passed, 1) for name, after, before in done}


def log_destination() -> str:
    """Return where log lines of this process go, as set up in `aisfs.system.logs`."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            return handler.baseFilename
        if isinstance(handler, logging.handlers.SysLogHandler):
            return f"the system's log ({handler.address})"
    return "stderr or nowhere"
