"""Indexes that are written to disk when nobody waits for shards any more.

Writing the index of a shard takes as long as opening it. So whoever opens many shards has them first,
and one thread writes all of the indexes afterwards. An unmount waits for them only so long.
"""

import logging
import time
from collections.abc import Callable
from math import inf

import trio

from aisfs.engine.fetch.writer_thread import unattended

log = logging.getLogger(__name__)

QUIET_SECONDS = 1.0
"""How long no index may have come before writing begins: coding one takes as long as listing a shard."""
MOST_TURNS = 10
"""How often that is waited for, so that a daemon that is killed has not lost everything."""
AT_ONCE = 16
"""Written by one call of a thread: some 50 ms of work."""
END_SECONDS = 20.0
"""How long an unmount waits: some thousand indexes, or a lock that a stopped daemon keeps. What is not
written is found again by the next mount."""

Write = Callable[[], None]
"""Writes something in a worker thread. It handles its own errors of the disk."""


class LateWrites:
    """Writes in the background, at the latest when its nursery is cancelled."""

    def __init__(self, services: trio.Nursery) -> None:
        """Write in a task of `services`, which is there while there is something to write."""
        self._services = services
        self._waiting: list[Write] = []
        self._added = 0
        self._running = False

    def add(self, write: Write) -> None:
        """Have something written later."""
        self._waiting.append(write)
        self._added += 1
        if not self._running:
            self._running = True
            self._services.start_soon(unattended, "keeping indexes", self._run)

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._wait_for_quiet()
                for _ in range(0, len(self._waiting), AT_ONCE):
                    await self._write_some()
        finally:
            with trio.CancelScope(shield=True):
                await self._write_last()
            self._running = False

    async def _wait_for_quiet(self) -> None:
        for _ in range(MOST_TURNS):
            before = self._added
            await trio.sleep(QUIET_SECONDS)
            if self._added == before:
                return

    async def _write_last(self) -> None:
        until = time.monotonic() + END_SECONDS
        while self._waiting and time.monotonic() < until:
            await self._write_some(until)
        if self._waiting:
            log.info("%d indexes are not kept: the mount ends", len(self._waiting))
            self._waiting.clear()

    async def _write_some(self, until: float = inf) -> None:
        some, self._waiting[:AT_ONCE] = self._waiting[:AT_ONCE], []
        done = await trio.to_thread.run_sync(_write_all, some, until)
        self._waiting[:0] = some[done:]


def _write_all(writes: list[Write], until: float) -> int:
    """Write until there is nothing left or it is that late; return how many were written."""
    for done, write in enumerate(writes):
        if time.monotonic() >= until:
            return done
        write()
    return len(writes)
