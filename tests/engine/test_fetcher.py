"""Shared fetching: each byte once, failures and cancellations, and the bounds of memory."""

import gc
import threading
import traceback
import weakref
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
import xxhash

from aisfs.cache.directory import entry_id
from aisfs.engine import fetcher as fetcher_module
from aisfs.engine import parts as opened_module
from aisfs.engine.buffers import FIRST_PART, PART_MAX
from aisfs.engine.fetcher import STREAM_BYTES
from aisfs.engine.parts import BOOKS
from aisfs.errors import NotFound, ProtocolError, Unavailable
from aisfs.model import Bucket, ByteRange, ObjectInfo, RangeSet
from aisfs.stores.memory import MemoryStore
from tests.engine.fetchers import fetcher_of
from tests.support.for_each import for_each

BUCKET = Bucket("b")
MIB = 1 << 20


class FakeCache:
    """A disk cache in memory, of the shape the fetcher uses."""

    limit = 1 << 30

    def __init__(self, *, admits=True):
        self.admits = admits
        self.writes = threading.Event()
        """Cleared, it takes what is written, but for the time being does not write it."""
        self.writes.set()
        self.data = {}
        self.valid = {}
        self.checksums = []
        self.losses = 0
        self.direct = RangeSet()
        """What was written past the page cache."""

    def read(self, entry, wanted, room=None):
        if entry not in self.valid or not self.valid[entry].covers(wanted):
            return None
        if room is None:
            room = memoryview(bytearray(len(wanted)))
        room[:] = self.data[entry][wanted.start : wanted.stop]
        return room

    hit = copied = read

    def verify_object(self, entry, computed):
        self.checksums.append(computed)
        return True

    def missing(self, entry, wanted):
        return self.valid.get(entry, RangeSet()).missing(wanted)

    def reserve(self, entry, wanted):
        return FakeReservation(self, entry) if self.admits else None


class FakeReservation:
    def __init__(self, cache, entry):
        self.cache, self.entry = cache, entry
        self.is_open = True

    def write(self, offset, data, *, past_page_cache):
        self.cache.writes.wait(20)
        if past_page_cache:
            self.cache.direct.add(ByteRange(offset, offset + len(data)))
        whole = self.cache.data.setdefault(self.entry, bytearray())
        whole.extend(bytes(max(0, offset + len(data) - len(whole))))
        whole[offset : offset + len(data)] = data

    def publish(self, published, data):
        self.cache.valid.setdefault(self.entry, RangeSet()).add(published)
        return True

    def finish(self):
        self.is_open = False


class Setup:
    def __init__(self, store, fetcher, opened, content):
        self.store, self.fetcher, self.opened, self.content = store, fetcher, opened, content

    async def read(self, start, stop):
        return bytes(await self.fetcher.start(self.opened, ByteRange(start, stop)).wait())

    @property
    def gets(self):
        return self.store.calls["read_range"]


@asynccontextmanager
async def fetching(size=4 * MIB, *, cache=None, memory_limit=64 * MIB, hook=None):
    store = MemoryStore(hook=hook, sink_in_thread=False)
    store.add_bucket(BUCKET)
    content = (bytes(i * 7 % 251 for i in range(1009)) * (size // 1009 + 1))[:size]
    info = store.put(BUCKET, "o", content)
    async with fetcher_of(store, cache=cache, memory_limit=memory_limit) as (fetcher, _):
        yield Setup(store, fetcher, fetcher.open(BUCKET, info), content)


@for_each("cache", [None, FakeCache(), FakeCache(admits=False)])
async def test_bytes_are_right_whatever_is_there_already(cache):
    async with fetching(cache=cache) as setup:
        for start, stop in [(10, 20), (0, 100), (5, 3000), (2 * MIB, 3 * MIB), (0, 4 * MIB)]:
            assert await setup.read(start, stop) == setup.content[start:stop]
        assert setup.store.bytes_read == 4 * MIB  # each byte once


async def test_many_readers_of_one_range_share_one_get():
    async def slow(method, bucket, key):
        await trio.testing.wait_all_tasks_blocked()

    async with fetching(hook=slow) as setup:
        results = []

        async def read():
            results.append(await setup.read(0, 1000))

        async with trio.open_nursery() as readers:
            for _ in range(8):
                readers.start_soon(read)
        assert results == [setup.content[:1000]] * 8
        assert setup.gets == 1


async def test_overlapping_readers_fetch_only_what_is_not_under_way():
    gate = trio.Event()

    async def wait(method, bucket, key):
        await gate.wait()

    async with fetching(hook=wait) as setup:
        first = setup.fetcher.start(setup.opened, ByteRange(1000, 2000))
        second = setup.fetcher.start(setup.opened, ByteRange(500, 2500))
        assert not first.ready
        gate.set()
        assert bytes(await second.wait()) == setup.content[500:2500]
        assert bytes(await first.wait()) == setup.content[1000:2000]
        assert setup.store.bytes_read == 2000
        assert setup.gets == 3


async def test_reader_that_goes_away_leaves_the_part_to_the_others():
    gate = trio.Event()

    async def wait(method, bucket, key):
        await gate.wait()

    async with fetching(hook=wait) as setup:
        with trio.move_on_after(0):
            await setup.read(0, 1000)
        gate.set()
        assert await setup.read(0, 1000) == setup.content[:1000]
        assert setup.gets == 1


async def test_failure_goes_to_all_who_wait_and_no_further():
    failing = True

    async def fail(method, bucket, key):
        await trio.testing.wait_all_tasks_blocked()
        if failing:
            raise Unavailable("injected")

    async with fetching(hook=fail) as setup:
        failed = []

        async def read():
            with pytest.raises(Unavailable):
                await setup.read(0, 1000)
            failed.append(1)

        async with trio.open_nursery() as readers:
            for _ in range(5):
                readers.start_soon(read)
        assert len(failed) == 5
        assert setup.gets == 1
        failing = False
        assert await setup.read(0, 1000) == setup.content[:1000]
        assert setup.fetcher.buffered == 1000 + BOOKS


async def test_what_failed_is_fetched_as_a_whole_by_who_asks_for_a_page_of_it():
    """The kernel asks for each page of a failed read again, one after another."""
    failing = True

    async def fail(method, bucket, key):
        if failing:
            raise ProtocolError("injected")

    async with fetching(hook=fail) as setup:
        with pytest.raises(ProtocolError):
            await setup.read(MIB, 2 * MIB)
        with pytest.raises(ProtocolError):
            await setup.read(3 * MIB, 4 * MIB)
        with pytest.raises(ProtocolError):
            await setup.read(MIB, MIB + 4096)  # it is as it was before
        assert setup.gets == 3
        failing = False
        assert await setup.read(MIB + 8192, MIB + 8292) == setup.content[MIB + 8192 : MIB + 8292]
        for start in range(MIB, 2 * MIB, 4096):
            assert await setup.read(start, start + 4096) == setup.content[start : start + 4096]
        assert setup.gets == 4
        assert setup.store.bytes_read == MIB
        assert await setup.read(MIB - 10, MIB) == setup.content[MIB - 10 : MIB]
        assert setup.store.bytes_read == MIB + 10


async def test_parts_under_way_stay_apart_from_what_failed_around_them():
    failing = True

    async def fail(method, bucket, key):
        if failing:
            raise ProtocolError("injected")

    async with fetching(hook=fail) as setup:
        with pytest.raises(ProtocolError):
            await setup.read(0, MIB)
        failing = False
        setup.opened.failed = ()
        assert await setup.read(5000, 6000) == setup.content[5000:6000]
        assert await setup.read(9000, 9500) == setup.content[9000:9500]
        setup.opened.failed = (ByteRange(0, MIB),)
        assert await setup.read(7000, 7100) == setup.content[7000:7100]
        assert setup.store.bytes_read == 1000 + 500 + 3000
        assert await setup.read(0, MIB) == setup.content[:MIB]
        assert setup.store.bytes_read == MIB


async def test_what_the_cache_does_not_take_stays_within_the_memory_limit():
    async with fetching(16 * MIB, cache=FakeCache(admits=False), memory_limit=4 * MIB) as setup:
        for start in range(0, 16 * MIB, MIB):
            assert await setup.read(start, start + MIB) == setup.content[start : start + MIB]
            assert setup.fetcher.buffered <= 4 * MIB
        before = setup.gets
        assert await setup.read(15 * MIB, 16 * MIB) == setup.content[15 * MIB :]
        assert setup.gets == before, "the newest part is still there"


async def test_what_is_on_disk_takes_no_memory():
    async with fetching(16 * MIB, cache=FakeCache()) as setup:
        await setup.read(0, 16 * MIB)
        with trio.fail_after(10):
            while setup.fetcher.buffered:  # noqa: ASYNC110 - nobody tells when it is on disk
                await trio.sleep(0.01)
        assert await setup.read(0, 16 * MIB) == setup.content
        assert setup.store.bytes_read == 16 * MIB


async def test_what_was_written_past_the_page_cache_waits_in_memory_for_its_reader(monkeypatch):
    monkeypatch.setattr(fetcher_module, "SPARE_SECONDS", 0.05)
    cache = FakeCache()
    async with fetching(16 * MIB, cache=cache) as setup, trio.open_nursery() as nursery:
        async for _ in setup.fetcher.stream(setup.opened):
            pass
        await _written(cache, setup)
        assert cache.direct.total == 16 * MIB
        # Parts of 1, 3, 4 and 8 MiB, of which one has a buffer of 4.
        assert setup.fetcher.buffered // MIB == 17, (
            "an index took note of it; the reader is to come"
        )
        cache.hit = cache.read = None
        part = ByteRange(MIB - 500, MIB + 500)  # from one part into the next
        assert setup.opened.try_read(part) == setup.content[part.start : part.stop]
        nursery.start_soon(setup.fetcher.tidy)
        with trio.fail_after(10):
            while setup.fetcher.buffered:  # noqa: ASYNC110 - nobody tells when it is let go
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_what_the_disk_cache_has_lost_is_fetched_and_kept_again():
    cache = FakeCache()
    async with fetching(4 * MIB, cache=cache) as setup:
        async for _ in setup.fetcher.stream(setup.opened):
            pass
        await _written(cache, setup)
        await setup.fetcher.drop_lost()
        assert setup.fetcher.buffered // MIB == 5
        cache.valid.clear()
        with trio.fail_after(10):
            while setup.fetcher.buffered:  # a part is kept a moment after it was written
                cache.losses += 1
                await setup.fetcher.drop_lost()
                await trio.sleep(0.01)
        assert await setup.read(0, 4 * MIB) == setup.content
        await _written(cache, setup)
        assert setup.store.bytes_read == 8 * MIB


async def test_wrong_content_does_not_count_as_on_its_way_to_disk_for_ever():
    cache = FakeCache()
    cache.verify_object = lambda entry, computed: False
    async with fetching(4 * MIB, cache=cache, memory_limit=2 * MIB) as setup:
        for _ in range(2):
            cache.valid.clear()
            dropped = trio.Event()
            setup.fetcher._hooks.content_was_wrong = lambda *_, dropped=dropped: dropped.set()
            with trio.fail_after(20):
                assert await setup.read(0, 4 * MIB) == setup.content
                await dropped.wait()


async def test_what_is_mapped_is_not_read_ahead():
    """Nor while other bytes of the object are on their way."""
    cache = FakeCache()
    async with fetching(9 * MIB, cache=cache) as setup:
        entry, there = setup.opened.entry, ByteRange(MIB, 9 * MIB)
        cache.data[entry] = bytearray(setup.content)
        cache.valid[entry] = RangeSet([there])
        reading = setup.fetcher.start(setup.opened, ByteRange(0, MIB))
        before = setup.fetcher.buffered
        setup.fetcher.ahead(setup.opened, there)
        assert setup.fetcher.buffered == before
        assert await reading.wait() == setup.content[:MIB]


async def test_memory_is_made_ready_for_large_parts_only():
    """Smaller ones take none of it: a mount that is read in small files stays small."""
    for size, is_large in [(FIRST_PART - 1, False), (FIRST_PART, True)]:
        async with fetching(size) as setup:
            setup.fetcher.pool.wants_ready = True
            await setup.read(0, size)
            assert setup.fetcher.pool.wants_ready is not is_large


async def test_what_a_reader_has_passed_makes_room_before_what_is_still_to_be_read():
    cache = FakeCache()
    async with fetching(8 * MIB, cache=cache, memory_limit=64 * MIB) as setup:
        async for _ in setup.fetcher.stream(setup.opened, ByteRange(0, 7 * MIB)):
            pass
        await _written(cache, setup, 7 * MIB)
        for start in range(0, 4 * MIB, MIB // 4):  # the first two parts
            assert setup.opened.try_read(ByteRange(start, start + MIB // 4))
        async for _ in setup.fetcher.stream(setup.opened, ByteRange(7 * MIB, 8 * MIB)):
            pass
        await _written(cache, setup)
        with trio.fail_after(10):
            while setup.fetcher.buffered // MIB != 5:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert await setup.read(0, 8 * MIB) == setup.content
        assert setup.store.bytes_read == 8 * MIB


async def test_what_waits_for_its_reader_stays_within_the_memory_limit():
    cache = FakeCache()
    async with fetching(32 * MIB, cache=cache, memory_limit=16 * MIB) as setup:
        async for _ in setup.fetcher.stream(setup.opened):
            assert setup.fetcher.buffered <= 16 * MIB
        await _written(cache, setup)
        assert await setup.read(0, 32 * MIB) == setup.content
        assert setup.store.bytes_read == 32 * MIB


async def test_long_parts_are_written_past_the_page_cache_even_if_much_waits_for_the_disk():
    cache = FakeCache()
    async with fetching(8 * MIB, cache=cache) as setup:
        cache.writes.clear()
        for start in range(0, 8 * MIB, MIB):
            await setup.read(start, start + MIB)
        cache.writes.set()
        await _written(cache, setup)
        assert list(cache.direct) == [ByteRange(0, 8 * MIB)]


async def test_the_whole_checksum_comes_of_the_bytes_in_memory():
    cache = FakeCache()
    async with fetching(5 * MIB, cache=cache) as setup:
        known = setup.opened.info
        digest = xxhash.xxh64(setup.content).hexdigest()
        info = ObjectInfo("o", known.size, version=known.version, checksum=f"xxhash2:{digest}")
        setup.opened.entry = entry_id(BUCKET, info)
        async for _ in setup.fetcher.stream(setup.opened):
            pass
        with trio.fail_after(10):
            while not cache.checksums:  # noqa: ASYNC110 - nobody tells when it is on disk
                await trio.sleep(0.01)
        assert cache.checksums == [digest]


async def _written(cache, setup, length=None):
    whole = ByteRange(0, length or setup.opened.info.size)
    with trio.fail_after(10):
        while cache.missing(setup.opened.entry, whole):  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_readers_wait_for_a_disk_slower_than_the_link_and_then_everything_is_kept():
    cache = FakeCache()
    cache.writes.clear()
    async with fetching(16 * MIB, cache=cache, memory_limit=4 * MIB) as setup:
        done = 0
        with trio.move_on_after(1):
            while done < 16 * MIB:
                await setup.read(done, done + MIB)
                done += MIB
        cache.writes.set()
        assert done <= 5 * MIB, "what waits for the disk is held in memory"
        with trio.fail_after(20):
            assert await setup.read(0, 16 * MIB) == setup.content
            await _written(cache, setup)
            assert await setup.read(0, 16 * MIB) == setup.content
        assert setup.store.bytes_read == 16 * MIB


async def test_reading_ahead_stops_at_the_memory_limit_and_reading_goes_on():
    gate = trio.Event()

    async def wait(method, bucket, key):
        await gate.wait()

    async with fetching(64 * MIB, memory_limit=16 * MIB, hook=wait) as setup:
        setup.fetcher.ahead(setup.opened, ByteRange(0, 64 * MIB))
        assert setup.fetcher.buffered <= 16 * MIB
        gate.set()
        assert await setup.read(60 * MIB, 64 * MIB) == setup.content[60 * MIB :]


async def test_stream_gives_everything_in_order_and_at_most_a_few_parts_at_once():
    async with fetching(5 * PART_MAX + 17) as setup:
        position = 0
        async for offset, data in setup.fetcher.stream(setup.opened):
            assert offset == position
            assert data == setup.content[offset : offset + len(data)]
            position += len(data)
        assert position == 5 * PART_MAX + 17
        assert setup.gets == 8  # up to 1, 4 and 8 MiB, then 8 MiB each, and the rest


async def test_stream_asks_for_a_link_full_at_once_and_first_for_little():
    asked = []

    async def hold(method, bucket, key):
        asked.append(method)
        await trio.sleep_forever()

    async with fetching(64 * MIB, memory_limit=256 * MIB, hook=hold) as setup:
        async with trio.open_nursery() as streams:
            streams.start_soon(anext, setup.fetcher.stream(setup.opened))
            await trio.testing.wait_all_tasks_blocked()
            parts = [len(part.range) for part in setup.opened.parts]
            streams.cancel_scope.cancel()
        assert parts[0] == FIRST_PART
        assert sum(parts) == STREAM_BYTES == PART_MAX * 4


@for_each("cache", [None, FakeCache(admits=False), FakeCache()])
async def test_streams_that_fill_the_memory_go_on(cache):
    """Parts that landed and stay in memory make room too: a stream waited for ever for a drop."""
    whole = 6 * PART_MAX

    async def slow(method, bucket, key):
        await trio.sleep(0.01)

    async with fetching(whole, cache=cache, memory_limit=16 * MIB, hook=slow) as setup:
        lengths = []

        async def stream():
            found = [len(data) async for _, data in setup.fetcher.stream(setup.opened)]
            lengths.append(sum(found))

        with trio.fail_after(30):
            async with trio.open_nursery() as streams:
                for _ in range(3):
                    streams.start_soon(stream)
        assert lengths == [whole] * 3


async def test_end_of_the_mount_ends_everybody_who_waits():
    async def never(method, bucket, key):
        await trio.sleep_forever()

    outcome = []

    async def read(setup):
        with trio.CancelScope(shield=True), pytest.raises(Unavailable):
            await setup.read(0, 10)
        outcome.append("ended")

    async with trio.open_nursery() as readers, fetching(hook=never) as setup:
        readers.start_soon(read, setup)
        await trio.testing.wait_all_tasks_blocked()
    assert outcome == ["ended"]


async def failure_of(reading):
    try:
        await reading.wait()
    except NotFound as error:
        return id(error), len(traceback.extract_tb(error.__traceback__))
    raise AssertionError("it was read")


async def test_failed_part_holds_no_memory_and_no_waiter_adds_to_the_error_of_another():
    async def fail(method, bucket, key):
        raise NotFound("gone")

    async with fetching(hook=fail) as setup:
        gc.disable()
        try:
            reading = setup.fetcher.start(setup.opened, ByteRange(0, 2 * MIB))
            part = weakref.ref(reading.pieces[0])
            first, second = await failure_of(reading), await failure_of(reading)
            assert first[1] == second[1]
            await trio.testing.wait_all_tasks_blocked()
            del reading
            assert part() is None
        finally:
            gc.enable()


async def test_objects_are_forgotten_although_the_oldest_has_a_part(monkeypatch):
    monkeypatch.setattr(opened_module, "OBJECTS_MAX", 100)
    async with fetching(size=1000) as setup:
        assert await setup.read(0, 1000) == setup.content  # kept in memory, and never read again
        for number in range(1000):
            setup.fetcher.open(BUCKET, ObjectInfo(f"other-{number}", 1000, version="1"))
        assert len(setup.fetcher._objects._recent) <= 100
        assert await setup.read(0, 1000) == setup.content
        assert setup.gets == 1


async def test_small_objects_in_memory_count_with_all_they_cost():
    limit = 2 * MIB
    async with fetching(size=1000, memory_limit=limit) as setup:
        for number in range(3000):
            info = setup.store.put(BUCKET, f"small-{number}", bytes(100))
            await setup.fetcher.start(setup.fetcher.open(BUCKET, info), ByteRange(0, 100)).wait()
        await trio.testing.wait_all_tasks_blocked()
        assert 0 < len(setup.fetcher._retained._only) * 1940 <= limit  # what one was seen to take


@asynccontextmanager
async def small_objects(on_disk, hook=None):
    """Yield 20 of them, which a thread has to look for, with the fetcher, the cache and the store; some are on disk."""
    store = MemoryStore(hook=hook, sink_in_thread=False, batches=True)
    store.add_bucket(BUCKET)
    infos = [store.put(BUCKET, str(number), bytes([number]) * 1000) for number in range(20)]
    cache = FakeCache()
    cache.copied = lambda *_: None
    async with fetcher_of(store, cache=cache) as (fetcher, _):
        objects = [fetcher.open(BUCKET, info) for info in infos]
        for at in on_disk:
            await fetcher.start(objects[at], ByteRange(0, 1000)).wait()
        while fetcher.buffered:  # noqa: ASYNC110 - nobody tells when it is on disk
            await trio.sleep(0.001)
        yield objects, fetcher, cache, store


async def test_objects_of_a_batch_that_are_on_disk_are_read_there_some_at_once():
    whole, together_there = ByteRange(0, 1000), threading.Barrier(4)
    async with small_objects(range(20)) as (objects, fetcher, cache, store):

        def read(entry, wanted, room=None):
            together_there.wait(20)
            return FakeCache.read(cache, entry, wanted, room)

        cache.read = read
        with fetcher.gathering() as together:
            readings = [fetcher.start(opened, whole, together) for opened in objects]
        assert [await each.wait() for each in readings] == [bytes([n]) * 1000 for n in range(20)]
    assert store.calls["read_many"] == 0


async def test_what_is_on_disk_does_not_wait_for_the_batch_that_brings_the_rest():
    asked, answered, whole = trio.Event(), trio.Event(), ByteRange(0, 1000)

    async def hook(method: str, bucket: Bucket, key: str) -> None:
        if method == "read_many":
            asked.set()
            await answered.wait()

    async with small_objects([3], hook) as (objects, fetcher, _, store):
        with fetcher.gathering() as together:
            readings = [fetcher.start(opened, whole, together) for opened in objects]
        await asked.wait()
        assert await readings[3].wait() == bytes([3]) * 1000
        assert not readings[4].ready
        answered.set()
        found = [await reading.wait() for reading in readings]
    assert found == [bytes([number]) * 1000 for number in range(20)]
    assert (store.calls["read_range"], store.calls["read_many"]) == (1, 1)
