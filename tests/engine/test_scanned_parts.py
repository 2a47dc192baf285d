"""What a scan has streamed stays in memory for readers, and in nobody's way."""

from unittest.mock import Mock

import pytest
import trio

from aisfs.engine import parts
from aisfs.engine import parts as part_module
from aisfs.engine.buffers import FIRST_PART, BufferPool
from aisfs.engine.parts import Part
from aisfs.model import ByteRange
from tests.engine.test_fetcher import BUCKET, MIB, FakeCache, fetching
from tests.support.for_each import for_each


async def scan(setup, opened=None, **options):
    opened = opened or setup.opened
    async for _ in setup.fetcher.stream(opened, **options):
        pass


@for_each("cache", [None, FakeCache(admits=False)])
async def test_what_a_scan_has_streamed_is_read_from_memory(cache):
    async with fetching(16 * MIB, cache=cache, memory_limit=20 * MIB) as setup:
        await scan(setup)
        assert setup.store.bytes_read == 16 * MIB
        for start in range(0, 16 * MIB, MIB):
            assert await setup.read(start, start + MIB) == setup.content[start : start + MIB]
        assert setup.store.bytes_read == 16 * MIB


@for_each("at_once", [MIB, 8 * MIB])
async def test_of_more_than_fits_the_beginning_is_kept(at_once):
    async with fetching(64 * MIB, memory_limit=32 * MIB) as setup:
        await scan(setup, at_once=at_once)
        assert setup.fetcher.buffered <= 32 * MIB
        assert setup.opened.try_read(ByteRange(0, MIB)) is not None
        assert setup.opened.try_read(ByteRange(50 * MIB, 51 * MIB)) is None


async def test_reader_finds_all_that_was_kept_although_it_reads_ahead():
    async with fetching(64 * MIB, memory_limit=32 * MIB) as setup:
        await scan(setup, at_once=MIB)
        kept = sum(len(part.range) for part in setup.opened.parts)
        before = setup.store.bytes_read
        for start in range(0, 64 * MIB, MIB):
            setup.fetcher.ahead(
                setup.opened, ByteRange(start + MIB, min(start + 17 * MIB, 64 * MIB))
            )
            assert await setup.read(start, start + MIB) == setup.content[start : start + MIB]
        assert kept > 16 * MIB
        assert setup.store.bytes_read - before <= 64 * MIB - kept


async def test_scan_does_not_displace_what_readers_have_to_come_to():
    async with fetching(64 * MIB, memory_limit=32 * MIB) as setup:
        other = setup.store.put(BUCKET, "other", bytes(8 * MIB))
        opened = setup.fetcher.open(BUCKET, other)
        setup.fetcher.ahead(opened, ByteRange(0, 8 * MIB))
        await setup.fetcher.start(opened, ByteRange(0, MIB)).wait()
        await scan(setup, at_once=MIB)
        assert opened.try_read(ByteRange(7 * MIB, 8 * MIB)) is not None


async def test_what_no_reader_came_for_is_forgotten(monkeypatch, autojump_clock):
    async with fetching(4 * MIB) as setup:
        setup.fetcher._services.start_soon(setup.fetcher.tidy)
        await scan(setup)
        await trio.sleep(parts.SCANNED_SECONDS - 10)
        assert setup.opened.try_read(ByteRange(0, MIB)) is not None
        await trio.sleep(20)
        assert setup.opened.try_read(ByteRange(MIB, 2 * MIB)) is None
        assert setup.opened.try_read(ByteRange(0, MIB)) is not None, "this one had a reader"


async def test_glance_is_not_written_to_disk_and_leaves_no_hole_there():
    cache = FakeCache()
    async with fetching(4 * MIB, cache=cache) as setup:
        await scan(setup, wanted=ByteRange(MIB, MIB + 4096), to_disk=False)
        assert setup.opened.entry not in cache.valid
        assert setup.opened.parts == []
        assert await setup.read(0, 4 * MIB) == setup.content
        with trio.fail_after(20):
            while cache.missing(setup.opened.entry, ByteRange(0, 4 * MIB)):  # noqa: ASYNC110
                await trio.sleep(0.01)


async def test_link_is_measured_by_what_comes_from_the_store(autojump_clock):
    async def wait(method, bucket, key):
        await trio.sleep(0.05)

    async with fetching(4 * MIB, hook=wait) as setup:
        assert (setup.fetcher.link.latency, setup.fetcher.link.rate) == (None, None)
        await setup.read(0, 4096)
        assert setup.fetcher.link.latency == pytest.approx(0.05, abs=0.01)
        await setup.read(MIB, MIB + FIRST_PART)
        assert setup.fetcher.link.rate > 0
        await setup.read(0, 4096)
        assert len(setup.fetcher.link._latencies) == 1, "that came from memory"


@pytest.mark.parametrize("make_cache", [lambda: None, FakeCache], ids=["no cache", "cache"])
async def test_what_fetches_and_what_passes_do_not_drift_apart(
    make_cache, monkeypatch, autojump_clock
):
    monkeypatch.setattr(parts, "COPIES_MAX", 8 * MIB)
    cache = make_cache()
    async with fetching(96 * MIB, cache=cache, memory_limit=90 * MIB) as setup:
        most, at = 0, 0

        async def push() -> None:
            nonlocal at
            while at < 96 * MIB:
                if setup.opened.try_read(ByteRange(at, at + MIB), push=True) is None:
                    await trio.sleep(0.001)
                else:
                    at += MIB

        async with trio.open_nursery() as nursery:
            nursery.start_soon(push)
            async for _ in setup.fetcher.stream(setup.opened, at_once=8 * MIB):
                most = max(most, setup.fetcher.buffered)
        assert most <= 41 * MIB
        assert setup.store.bytes_read == 96 * MIB


async def test_a_part_in_memory_only_stays_until_nearly_all_of_it_was_read(monkeypatch):
    monkeypatch.setattr(parts, "COPIES_MAX", 4 * MIB)
    async with fetching(32 * MIB, memory_limit=64 * MIB) as setup:
        async for start, data in setup.fetcher.stream(setup.opened, at_once=8 * MIB):
            stop = start + len(data)  # its last half is read, and the first one later
            assert setup.opened.try_read(ByteRange((start + stop) // 2, stop)) is not None
        assert await setup.read(0, 32 * MIB) == setup.content
        assert setup.store.bytes_read == 32 * MIB


async def test_a_scan_is_not_held_up_again_and_again_by_what_nobody_reads(
    monkeypatch, autojump_clock
):
    monkeypatch.setattr(parts, "COPIES_MAX", 8 * MIB)
    retained = parts.RetainedParts()
    opened, unread = Mock(cache=None), Mock(spec=Part, cost=16 * MIB, given=0, passed=False)
    retained.add(unread, opened, on_disk=False)
    retained.scanned(opened, [unread], trio.current_time())
    other = Mock(cost=MIB, passed=False, given=0)

    async def read() -> None:
        while True:
            await trio.sleep(0.04)
            retained.add(other, None, on_disk=True)
            other.passed = True

    def drop(passed: object) -> None:
        other.passed = False
        retained.remove(other)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for _ in range(40):
            await retained.wait_for_readers(drop, lambda: 0)
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began <= 2 * parts.WAIT_SECONDS + 1


async def test_a_scan_whose_bytes_nobody_wants_goes_on(monkeypatch, autojump_clock):
    monkeypatch.setattr(parts, "COPIES_MAX", 8 * MIB)
    cache = FakeCache()
    async with fetching(64 * MIB, cache=cache, memory_limit=128 * MIB) as setup:
        began, most = trio.current_time(), 0
        async for _ in setup.fetcher.stream(setup.opened, at_once=8 * MIB):
            most = max(most, setup.fetcher.buffered)
        assert trio.current_time() - began < 2 * parts.STUCK_SECONDS
        assert most <= 56 * MIB, "what is on disk need not be in memory as well"
        assert await setup.read(0, 64 * MIB) == setup.content
        assert setup.store.bytes_read == 64 * MIB


async def test_progress_of_other_readers_does_not_hold_a_scan_up(monkeypatch, autojump_clock):
    monkeypatch.setattr(parts, "COPIES_MAX", 0)
    retained = parts.RetainedParts()
    part = Mock(cost=MIB, passed=False, given=0)
    retained.add(part, None, on_disk=True)

    async def read() -> None:
        while True:
            await trio.sleep(0.01)
            part.passed = not part.passed

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            began = trio.current_time()
            await retained.wait_for_readers(
                lambda passed: setattr(part, "passed", False), lambda: 0
            )
            assert trio.current_time() - began <= 2 * parts.WAIT_SECONDS
            nursery.cancel_scope.cancel()


async def test_a_scan_waits_for_the_thread_that_writes(monkeypatch, autojump_clock):
    monkeypatch.setattr(parts, "COPIES_MAX", 8 * MIB)
    began = trio.current_time()

    def unwritten() -> int:
        return round(20 * MIB - (trio.current_time() - began) * 200 * MIB)

    with trio.fail_after(10):
        await parts.RetainedParts().wait_for_readers(lambda _: None, unwritten)
    assert unwritten() <= 8 * MIB


async def test_a_scan_does_not_wait_for_a_disk_that_takes_nothing(monkeypatch, autojump_clock):
    monkeypatch.setattr(parts, "COPIES_MAX", 8 * MIB)
    retained = parts.RetainedParts()
    began = trio.current_time()
    for _ in range(100):
        await retained.wait_for_readers(lambda _: None, lambda: 20 * MIB)
    assert trio.current_time() - began <= 2 * parts.WAIT_SECONDS


def test_a_part_is_not_passed_while_a_push_has_yet_to_come_to_its_end(monkeypatch):
    now = 100.0
    monkeypatch.setattr(part_module.time, "monotonic", lambda: now)
    part = Part(ByteRange(8 * MIB, 16 * MIB), BufferPool(64 * MIB))
    part.allocate()

    def push(start: int, stop: int) -> None:
        part.view(ByteRange(8 * MIB + start, 8 * MIB + stop), push=True)

    push(0, 7 * MIB + MIB // 2)
    assert not part.passed, "the next batch would have to be read from the disk"
    now += 1
    assert part.passed, "single members at its end are left to a reader"
    push(7 * MIB + MIB // 2, 8 * MIB)
    assert part.passed
