"""Content that is decompressed into the cache: whoever reads gets it, whatever the cache keeps."""

import random
from contextlib import asynccontextmanager

import pytest
import trio

from aisfs.cache.block_cache import BlockCache
from aisfs.cache.directory import CONTENT_MAX
from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.names.listing import Form
from aisfs.engine import unpacker as unpacking
from aisfs.engine.unpacker import Unpacker
from aisfs.errors import ArchiveTooLarge, ShardDamaged, Stale, Unavailable, Unsupported
from aisfs.model import Bucket, ByteRange
from aisfs.stores.memory import MemoryStore
from tests.engine.fetchers import fetcher_of
from tests.support.archives import COMPRESSIONS, make_tar, text
from tests.support.mounts import eventually

BUCKET = Bucket("b")
MIB = 1 << 20
TEXT = text(MIB)
TAR = make_tar({f"{n}.txt": TEXT[n * 1000 :] + TEXT[: n * 1000] for n in range(30)})


@pytest.fixture
def store():
    store = MemoryStore(sink_in_thread=False)
    store.add_bucket(BUCKET)
    return store


@pytest.fixture
def cache(tmp_path):
    cache = BlockCache.open(tmp_path / "cache", 60 * MIB)
    yield cache
    cache.close()


@asynccontextmanager
async def unpacking_from(store, cache, memory_limit=64 * MIB):
    async with fetcher_of(store, cache=cache, memory_limit=memory_limit) as (fetcher, services):
        yield fetcher, Unpacker(fetcher, services, cache=cache)


def ignore(start, data):
    """Look at nothing."""


async def opened(unpacker, shard):
    scanner = TarScanner(CONTENT_MAX)
    end = await unpacker.stream(BUCKET, shard, Form.TAR_GZ, lambda _, data: scanner.feed(data))
    assert (end.size, end.damage) == (len(TAR), "")
    scanner.end_at(end.size)
    return unpacker.open_shard(BUCKET, shard, scanner.finish(Form.TAR_GZ))


def lose(fetcher, cache, content):
    """Make everything that was kept of some content be gone."""
    cache.drop(content.entry)
    for part in list(content.parts):
        fetcher._drop(content, part)
    assert not content.parts


async def read(fetcher, content, wanted):
    return bytes(await fetcher.start(content, wanted).wait())


async def test_index_keeps_the_content_and_reads_the_object_once(store, cache):
    shard = store.put(BUCKET, "x.tgz", COMPRESSIONS["tgz"](TAR))
    async with unpacking_from(store, cache) as (fetcher, unpacker):
        content = await opened(unpacker, shard)
        assert store.bytes_read == shard.size
        for start in (20 * MIB, 0, len(TAR) - 100):
            wanted = ByteRange(start, min(start + 5 * MIB, len(TAR)))
            assert await read(fetcher, content, wanted) == TAR[wanted.start : wanted.stop]
        assert store.bytes_read == shard.size


async def test_many_readers_in_any_order_while_content_is_lost_again_and_again(store, cache):
    shard = store.put(BUCKET, "x.tgz", COMPRESSIONS["tgz"](TAR))
    async with unpacking_from(store, cache) as (fetcher, unpacker):
        content = await opened(unpacker, shard)

        async def reader(seed):
            chosen = random.Random(seed)
            for _ in range(6):
                start = chosen.randrange(len(TAR) - 1)
                wanted = ByteRange(start, min(start + chosen.randrange(1, 3 * MIB), len(TAR)))
                assert await read(fetcher, content, wanted) == TAR[wanted.start : wanted.stop]

        with trio.fail_after(100):
            async with trio.open_nursery() as readers:
                for seed in range(8):
                    readers.start_soon(reader, seed)
                for _ in range(10):
                    await trio.sleep(0.02)
                    await trio.to_thread.run_sync(cache.drop, content.entry)


async def test_readers_that_fill_memory_do_not_stop_the_pass_they_wait_for(store, cache):
    shard = store.put(BUCKET, "x.tgz", COMPRESSIONS["tgz"](TAR))
    async with unpacking_from(store, cache, memory_limit=MIB) as (fetcher, unpacker):
        content = await opened(unpacker, shard)
        lose(fetcher, cache, content)
        found = []

        async def reader(wanted):
            found.append(await read(fetcher, content, wanted) == TAR[wanted.start : wanted.stop])

        with trio.fail_after(60):
            async with trio.open_nursery() as readers:
                for start in range(0, 28 * MIB, 4 * MIB):
                    readers.start_soon(reader, ByteRange(start, start + 4 * MIB))
        assert found == [True] * 7


async def test_a_cache_that_takes_nothing_costs_time_only(store, cache, monkeypatch):
    shard = store.put(BUCKET, "x.tgz", COMPRESSIONS["tgz"](TAR))
    async with unpacking_from(store, cache) as (fetcher, unpacker):
        content = await opened(unpacker, shard)
        lose(fetcher, cache, content)
        monkeypatch.setattr(cache, "reserve", lambda *_, **__: None)
        with trio.fail_after(60):
            for start in (25 * MIB, MIB):
                wanted = ByteRange(start, start + 1000)
                assert await read(fetcher, content, wanted) == TAR[start : start + 1000]


async def test_content_displaces_what_is_idle_for_longest(store, cache):
    other = store.put(BUCKET, "other", bytes(80 * MIB))
    shard = store.put(BUCKET, "x.tgz", COMPRESSIONS["tgz"](TAR))
    async with unpacking_from(store, cache) as (fetcher, unpacker):
        async for _ in fetcher.stream(fetcher.open(BUCKET, other)):
            pass
        await fetcher._background.run(lambda: None)  # the cache is full
        content = await opened(unpacker, shard)
        assert not cache.missing(content.entry, ByteRange(0, len(TAR)))


async def test_another_version_is_stale(store, cache):
    shard = store.put(BUCKET, "x.tgz", COMPRESSIONS["tgz"](TAR))
    async with unpacking_from(store, cache) as (fetcher, unpacker):
        content = await opened(unpacker, shard)
        cache.clear()
        store.put(BUCKET, "x.tgz", b"something else")
        for part in list(fetcher.open(BUCKET, shard).parts):
            fetcher._drop(fetcher.open(BUCKET, shard), part)
        with trio.fail_after(60), pytest.raises(Stale):
            await read(fetcher, content, ByteRange(0, 100))


async def test_too_large_is_told_once_and_leaves_nothing(store, tmp_path):
    cache = BlockCache.open(tmp_path / "small", 20 * MIB)
    shard = store.put(BUCKET, "x.tgz", COMPRESSIONS["tgz"](TAR))
    async with unpacking_from(store, cache) as (_, unpacker):
        for _ in range(2):
            with pytest.raises(ArchiveTooLarge, match="--cache-size"):
                await unpacker.stream(BUCKET, shard, Form.TAR_GZ, ignore)
        before = store.bytes_read
        with pytest.raises(ArchiveTooLarge):
            await unpacker.stream(BUCKET, shard, Form.TAR_GZ, ignore)
        assert store.bytes_read == before
    assert cache.statistics().used <= 20 * MIB
    cache.close()


async def test_all_readers_fail_with_a_pass_also_one_whose_bytes_have_gone_by(
    store, cache, monkeypatch
):
    shard = store.put(BUCKET, "x.tgz", COMPRESSIONS["tgz"](TAR))
    async with unpacking_from(store, cache) as (fetcher, unpacker):
        content = await opened(unpacker, shard)
        lose(fetcher, cache, content)
        monkeypatch.setattr(cache, "reserve", lambda *_, **__: None)
        usual, under_way = unpacker._step, trio.Event()

        def step(made, *args):
            if made.position:
                trio.from_thread.run_sync(under_way.set)
                assert eventually(lambda: made.later)
                raise Unavailable("injected")
            return usual(made, *args)

        monkeypatch.setattr(unpacker, "_step", step)

        async def reader(start):
            with pytest.raises(Unavailable):
                await read(fetcher, content, ByteRange(start, start + 10))

        with trio.fail_after(20):
            async with trio.open_nursery() as readers:
                readers.start_soon(reader, len(TAR) - 10)
                await under_way.wait()
                readers.start_soon(reader, 0)


async def test_without_a_cache_or_a_version(store, cache):
    shard = store.put(BUCKET, "x.tgz", COMPRESSIONS["tgz"](TAR))
    async with unpacking_from(store, None) as (_, unpacker):
        with pytest.raises(Unsupported, match="cache"):
            await unpacker.stream(BUCKET, shard, Form.TAR_GZ, ignore)


async def test_content_that_ends_early_is_damage(store, cache):
    whole = COMPRESSIONS["tgz"](TAR)
    shard = store.put(BUCKET, "x.tgz", whole[: len(whole) // 2])
    async with unpacking_from(store, cache) as (fetcher, unpacker):
        end = await unpacker.stream(BUCKET, shard, Form.TAR_GZ, ignore)
        assert 0 < end.size < len(TAR)
        assert end.damage
        # As if the index said more than there is.
        content = unpacker._open(unpacker._tar(BUCKET, shard, Form.TAR_GZ), BUCKET, shard, len(TAR))
        with trio.fail_after(60), pytest.raises(ShardDamaged, match="ends at byte"):
            await read(fetcher, content, ByteRange(len(TAR) - 10, len(TAR)))


async def test_a_mount_that_goes_away_does_not_wait(store, cache, monkeypatch):
    monkeypatch.setattr(unpacking, "PIECE", 64 * 1024)
    shard = store.put(BUCKET, "x.tgz", COMPRESSIONS["tgz"](TAR))
    with trio.fail_after(60):
        async with unpacking_from(store, cache) as (_, unpacker):
            with trio.move_on_after(0.05):
                await unpacker.stream(BUCKET, shard, Form.TAR_GZ, ignore)
