"""Bytes of virtual shards out of objects: fetched once, several at once, ahead of a reader in order."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from aisfs.core.views.shuffled_tar import VirtualShard, loose_shards
from aisfs.core.views.spec import ShardSplit
from aisfs.engine.batches import LEAST, MOST, SIZE_MAX
from aisfs.engine.dataset.reshuffler import AHEAD_OBJECTS, SyntheticReader
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    ProtocolError,
    Stale,
    Unavailable,
    Unsupported,
)
from aisfs.model import Bucket, ByteRange
from aisfs.stores.memory import MemoryStore
from tests.engine.fetchers import fetcher_of
from tests.support.for_each import for_each

BUCKET = Bucket("b")
MIB = 1 << 20
READ = 128 * 1024


class Setup:
    def __init__(self, store: MemoryStore, assembler: SyntheticReader, shard: VirtualShard) -> None:
        self.store, self.assembler, self.shard = store, assembler, shard

    async def read(self, start: int, stop: int) -> bytes:
        return bytes(await self.assembler.read(self.shard, ByteRange(start, stop)))

    @property
    def gets(self) -> int:
        return self.store.calls["read_range"]


@asynccontextmanager
async def assembling(
    sizes: list[int], *, read_ahead_max: int = 64 * MIB, hook=None, batches: bool = False
) -> AsyncIterator[Setup]:
    store = MemoryStore(hook=hook, sink_in_thread=False, batches=batches)
    store.add_bucket(BUCKET)
    objects = [
        store.put(BUCKET, f"{n:05}.bin", bytes([n % 251]) * size) for n, size in enumerate(sizes)
    ]
    shards, _ = loose_shards(BUCKET, objects, 0, ShardSplit(samples=len(sizes)))
    limits = {"memory_limit": 256 * MIB, "read_ahead_max": read_ahead_max}
    async with fetcher_of(store, **limits) as (fetcher, _):
        reader = SyntheticReader(fetcher, read_ahead_max)
        yield Setup(store, reader, shards[0])


async def test_a_reader_in_order_fetches_each_byte_once():
    sizes = [0, 1, 5000, 3 * MIB, 512, 200_000]
    async with assembling(sizes) as setup:
        found = [await setup.read(at, at + READ) for at in range(0, setup.shard.size, READ)]
        whole = b"".join(found)
        assert len(whole) == setup.shard.size
        assert await setup.read(100, setup.shard.size + 7) == whole[100:]
        assert await setup.read(setup.shard.size, setup.shard.size + 1) == b""
        assert setup.store.bytes_read == sum(sizes)


async def test_the_objects_of_one_read_are_fetched_together():
    under_way, most = 0, 0

    async def hook(method: str, bucket: Bucket, key: str) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await trio.testing.wait_all_tasks_blocked()
        under_way -= 1

    async with assembling([1000] * 50, read_ahead_max=0, hook=hook) as setup:
        await setup.read(0, 10 * 1536)
        assert most == setup.gets == 10


async def test_what_comes_next_is_there_before_it_is_read_and_not_much_more():
    async with assembling([100] * 5000) as setup:
        await setup.read(0, 4096)
        await trio.testing.wait_all_tasks_blocked()
        ahead = setup.gets
        assert 4 < ahead <= AHEAD_OBJECTS + 8
        await setup.read(4096, 8192)
        assert setup.gets == ahead
    async with assembling([100] * 5000, read_ahead_max=0) as setup:
        await setup.read(0, 4096)
        await trio.testing.wait_all_tasks_blocked()
        assert setup.gets == 4


@for_each("change", ["put", "delete"])
async def test_an_object_that_changed_is_named(change: str):
    async with assembling([1000] * 4, read_ahead_max=0) as setup:
        if change == "put":
            setup.store.put(BUCKET, "00002.bin", b"x" * 1000)
        else:
            setup.store.delete(BUCKET, "00002.bin")
        with pytest.raises(Stale, match=r"ais://b/00002\.bin changed since the mount began"):
            await setup.read(0, setup.shard.size)
        assert len(await setup.read(0, 2 * 1536)) == 2 * 1536
        start = 3 * 1536 + 512
        assert await setup.read(start, start + 1000) == bytes([3]) * 1000


async def test_small_objects_are_fetched_in_batches():
    sizes = [1000] * 300 + [SIZE_MAX + 1] + [0]
    async with assembling(sizes, batches=True) as setup:
        whole = await setup.read(0, setup.shard.size)
        assert len(whole) == setup.shard.size
        assert setup.store.bytes_read == sum(sizes)
        assert setup.gets == 1
        assert setup.store.calls["read_many"] == -(-300 // MOST)


async def test_few_objects_are_fetched_singly():
    async with assembling([1000] * 100, read_ahead_max=0, batches=True) as setup:
        await setup.read(0, (LEAST - 1) * 1536)
        assert (setup.gets, setup.store.calls["read_many"]) == (LEAST - 1, 0)


async def test_what_a_batch_did_not_bring_is_fetched_singly():
    async with assembling([1000] * 20, batches=True) as setup:
        setup.store.put(BUCKET, "00007.bin", b"x" * 1000)
        with pytest.raises(Stale, match=r"00007\.bin changed since"):
            await setup.read(0, setup.shard.size)
        assert (setup.gets, setup.store.calls["read_many"]) == (1, 1)
        assert len(await setup.read(8 * 1536, 20 * 1536)) == 12 * 1536
        assert setup.gets == 1


@pytest.mark.parametrize(
    ("error", "asked"),
    [(Unsupported("no"), 1), (AccessDenied("no"), 1), (ProtocolError("no"), 1),
     (Unavailable("not now"), 3)],
)  # fmt: skip
async def test_a_store_without_batches_is_asked_once(error: AisfsError, asked: int, caplog):
    async def hook(method: str, bucket: Bucket, key: str) -> None:
        if method == "read_many":
            raise error

    caplog.set_level("INFO")
    async with assembling([1000] * 60, read_ahead_max=0, hook=hook, batches=True) as setup:
        for start in range(0, 60 * 1536, 20 * 1536):
            assert len(await setup.read(start, start + 20 * 1536)) == 20 * 1536
        assert (setup.gets, setup.store.calls["read_many"]) == (60, asked)
    assert caplog.text.count("one by one from now on") == (asked == 1)
