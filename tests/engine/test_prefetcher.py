"""Nobody waits for what is fetched ahead, so nothing that goes wrong in it may reach the mount."""

import logging
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from aisfs.core.names.listing import Listing, ListingBuilder
from aisfs.engine.prefetcher import Prefetcher, fill
from aisfs.errors import Unavailable
from aisfs.model import Bucket, ByteRange, ObjectInfo, Page, RangeSet
from tests.engine.test_fetcher import MIB, FakeCache, fetching
from tests.support.for_each import for_each

BUCKET = Bucket("b")
SHARD = ObjectInfo("x.tar", 10, "1")


class FailingFetcher:
    """Fetches nothing, and says why in its way."""

    cache = SimpleNamespace(limit=1 << 30)

    def __init__(self, error):
        self.error = error
        self.asked = 0

    def open(self, bucket, info):
        cache = SimpleNamespace(missing=lambda entry, wanted: [wanted])
        return SimpleNamespace(info=info, cache=cache, entry="entry")

    async def stream(self, opened, **_):
        self.asked += 1
        raise self.error
        yield


@pytest.mark.parametrize(
    ("error", "level"), [(Unavailable("not now"), "INFO"), (ValueError("no idea"), "ERROR")]
)
async def test_what_fails_is_left_for_a_reader_to_find(error, level, caplog):
    caplog.set_level(logging.INFO)
    fetcher = FailingFetcher(error)
    builder = ListingBuilder("")
    builder.add(Page([SHARD], [], ""))
    listing = builder.finish()
    lister = SimpleNamespace(last_listing=lambda bucket, prefix: listing)
    async with trio.open_nursery() as services:
        prefetcher = Prefetcher(fetcher, lister, services, max_shards=2, budget=1 << 20)
        for times in (1, 2):  # it is tried again
            prefetcher.touched(BUCKET, SHARD)
            with trio.fail_after(20):
                while fetcher.asked < times:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            await trio.testing.wait_all_tasks_blocked()
            assert fetcher.asked == times
        assert [record.levelname for record in caplog.records] == [level, level]
        assert "x.tar" in caplog.text


class WatchedListing(Listing):
    """Notes which threads look at all its entries."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.looked = []

    def after(self, offset):
        self.looked.append(threading.get_ident())
        return super().after(offset)


class CountingFetcher(FailingFetcher):
    """Has every object at once."""

    def __init__(self):
        self.fetched = []
        self.first = trio.Event()

    async def stream(self, opened, **_):
        self.fetched.append(opened.info.key)
        self.first.set()
        return
        yield


def names(count):
    return {b"%06d.tar" % at: ObjectInfo(f"{at:06}.tar", 10, "1") for at in range(count)}


@for_each("count", [100, 20_000])
async def test_a_directory_is_not_looked_through_for_what_is_no_shard(count):
    listing = WatchedListing({b"x.bin": ObjectInfo("x.bin", 10, "1"), **names(count)}, Counter())
    lister = SimpleNamespace(last_listing=lambda bucket, prefix: listing)
    async with trio.open_nursery() as services:
        prefetcher = Prefetcher(CountingFetcher(), lister, services, max_shards=2, budget=1 << 20)
        for tell in (prefetcher.in_order, prefetcher.streamed, prefetcher.folder_listed):
            tell(BUCKET, ObjectInfo("x.bin", 10, "1"))
            await trio.testing.wait_all_tasks_blocked()
    assert not listing.looked


async def test_a_large_directory_is_looked_through_once_and_in_a_thread():
    listing = WatchedListing(names(20_000), Counter())
    lister = SimpleNamespace(last_listing=lambda bucket, prefix: listing)
    fetcher = CountingFetcher()
    async with trio.open_nursery() as services:
        prefetcher = Prefetcher(fetcher, lister, services, max_shards=2, budget=1 << 20)
        for _ in range(100):
            prefetcher.touched(BUCKET, ObjectInfo("000007.tar", 10, "1"))
        with trio.fail_after(60):
            await fetcher.first.wait()
        prefetcher.touched(BUCKET, ObjectInfo("000008.tar", 10, "1"))
        await trio.testing.wait_all_tasks_blocked()
    assert fetcher.fetched == ["000007.tar", "000008.tar"]
    assert len(listing.looked) == 1
    assert listing.looked != [threading.get_ident()]


async def test_filling_the_disk_cache_leaves_what_is_there_where_it_is():
    cache = FakeCache()
    async with fetching(9 * MIB, cache=cache) as setup:
        entry = setup.opened.entry
        cache.data[entry] = bytearray(setup.content)
        cache.valid[entry] = RangeSet([ByteRange(0, 4 * MIB)])
        await fill(setup.fetcher, setup.opened)
        assert setup.store.bytes_read == 5 * MIB
        assert all(part.range.start >= 4 * MIB for part in setup.opened.parts)
