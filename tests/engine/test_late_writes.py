"""Indexes that are written when nobody waits any more, and at the end."""

from types import SimpleNamespace

import pytest
import trio

from aisfs.engine import shards
from aisfs.engine.shards import END_SECONDS, LateWrites


class Disk:
    """Counts writes, each of which takes a while by the clock of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.written = 0
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(shards, "time", clock)

    def write(self) -> None:
        self.now += self.seconds
        self.written += 1


async def add(disk: Disk, count: int) -> None:
    """Add writes, and end the services before the first is done."""
    async with trio.open_nursery() as services:
        writes = LateWrites(services)
        for _ in range(count):
            writes.add(disk.write)
        services.cancel_scope.cancel()


async def test_an_unmount_writes_what_is_waiting(monkeypatch):
    disk = Disk(monkeypatch, 0.0)
    await add(disk, 1000)
    assert disk.written == 1000


async def test_an_unmount_does_not_wait_for_a_slow_disk(monkeypatch):
    disk = Disk(monkeypatch, 2.0)  # as long as a put waits for the lock of a stopped daemon
    await add(disk, 1000)
    assert disk.written == END_SECONDS / 2
