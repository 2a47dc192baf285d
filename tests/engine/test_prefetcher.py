"""Nobody waits for what is fetched ahead, so nothing that goes wrong in it may reach the mount."""

import logging
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from aisfs.core.listing import ListingBuilder
from aisfs.engine.prefetcher import Prefetcher
from aisfs.errors import Unavailable
from aisfs.model import Bucket, ObjectInfo, Page

BUCKET = Bucket("b")
SHARD = ObjectInfo("x.tar", 10, "1")


class FailingFetcher:
    """Fetches nothing, and says why in its way."""

    cache = SimpleNamespace(limit=1 << 30)

    def __init__(self, error):
        self.error = error
        self.asked = 0

    def open(self, bucket, info):
        return info

    async def stream(self, opened):
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
            await trio.testing.wait_all_tasks_blocked()
            assert fetcher.asked == times
        assert [record.levelname for record in caplog.records] == [level, level]
        assert "x.tar" in caplog.text
