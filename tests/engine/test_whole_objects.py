"""Objects that a store sends only whole: one stream serves all readers, and the disk cache keeps it."""

import random

import pytest
import trio

from aisfs.cache.block_cache import BlockCache
from aisfs.core.names.listing import Form
from aisfs.errors import AisfsError, ArchiveTooLarge, NoRanges, Stale, Unavailable, Unsupported
from aisfs.model import Bucket, ByteRange
from aisfs.stores.memory import MemoryStore
from tests.engine.test_unpacker import unpacking_from
from tests.support.archives import COMPRESSIONS

BUCKET = Bucket("b")
MIB = 1 << 20
DATA = random.Random(3).randbytes(30 * MIB + 17)


class WholeStore(MemoryStore):
    """A store without ranges."""

    async def read_range(self, bucket, expected, start, buffer, arrived=None):
        await trio.lowlevel.checkpoint()
        raise NoRanges(f"{expected.key}: only whole")


@pytest.fixture
def store():
    store = WholeStore()
    store.add_bucket(BUCKET)
    return store


@pytest.fixture
def cache(tmp_path):
    cache = BlockCache.open(tmp_path / "cache", 60 * MIB)
    yield cache
    cache.close()


async def read(fetcher, opened, start, stop):
    return bytes(await fetcher.start(opened, ByteRange(start, stop)).wait())


async def test_readers_everywhere_share_one_stream(store, cache):
    info = store.put(BUCKET, "k", DATA)
    async with unpacking_from(store, cache) as (fetcher, _):
        opened = fetcher.open(BUCKET, info)

        async def reader(seed):
            chosen = random.Random(seed)
            for _ in range(5):
                start = chosen.randrange(len(DATA) - 1)
                stop = min(start + chosen.randrange(1, 3 * MIB), len(DATA))
                assert await read(fetcher, opened, start, stop) == DATA[start:stop]

        with trio.fail_after(60):
            async with trio.open_nursery() as readers:
                for seed in range(8):
                    readers.start_soon(reader, seed)
        assert store.calls["stream"] == 1
    async with unpacking_from(store, cache) as (fetcher, _):  # as after a remount
        opened = fetcher.open(BUCKET, info)
        assert await read(fetcher, opened, 0, len(DATA)) == DATA
        assert store.calls["stream"] == 1


async def test_what_was_evicted_is_streamed_again(store, cache):
    info = store.put(BUCKET, "k", DATA)
    async with unpacking_from(store, cache, memory_limit=MIB) as (fetcher, _):
        opened = fetcher.open(BUCKET, info)
        assert await read(fetcher, opened, 5, 10) == DATA[5:10]
        await trio.to_thread.run_sync(cache.drop, opened.entry)
        for start in (29 * MIB, 7 * MIB):
            assert await read(fetcher, opened, start, start + MIB) == DATA[start : start + MIB]


async def test_a_compressed_tar_is_decompressed_from_the_copy(store, cache):
    shard = store.put(BUCKET, "x.tgz", COMPRESSIONS["tgz"](DATA[: 8 * MIB]))
    found = []
    async with unpacking_from(store, cache) as (_, unpacker):
        with trio.fail_after(60):
            end = await unpacker.stream(
                BUCKET, shard, Form.TAR_GZ, lambda _, data: found.append(bytes(data))
            )
    assert (end.size, end.damage) == (8 * MIB, "")
    assert b"".join(found) == DATA[: 8 * MIB]
    assert store.calls["stream"] == 1


async def test_no_room_no_cache_no_version(store, cache, tmp_path):
    large = store.put(BUCKET, "large", bytes(46 * MIB))
    async with unpacking_from(store, cache) as (fetcher, _):
        with pytest.raises(ArchiveTooLarge, match=r"only whole.*give a larger --cache-size"):
            await read(fetcher, fetcher.open(BUCKET, large), 0, 10)
    async with unpacking_from(store, None) as (fetcher, _):
        with pytest.raises(Unsupported, match="no disk cache: give --cache-size"):
            await read(fetcher, fetcher.open(BUCKET, large), 0, 10)
    assert not store.calls["stream"]


@pytest.mark.parametrize("kind", [Stale, Unavailable])
async def test_a_stream_that_fails_fails_its_readers_and_nothing_else(cache, kind):
    failing = [True]

    async def hook(method, bucket, key):
        if method == "stream" and failing:
            raise kind("as it was told")

    store = WholeStore(hook=hook)
    store.add_bucket(BUCKET)
    info = store.put(BUCKET, "k", DATA)
    async with unpacking_from(store, cache) as (fetcher, _):
        opened = fetcher.open(BUCKET, info)
        with trio.fail_after(60), pytest.raises(AisfsError) as caught:
            await read(fetcher, opened, 0, 10)
        assert type(caught.value) is kind
        failing.clear()
        assert await read(fetcher, opened, 0, 10) == DATA[:10]


async def test_the_end_of_a_mount_ends_a_stream(store, cache):
    info = store.put(BUCKET, "k", DATA)
    with trio.fail_after(60):
        async with unpacking_from(store, cache) as (fetcher, _):
            fetcher.start(fetcher.open(BUCKET, info), ByteRange(0, 10))
            await trio.sleep(0.01)
