"""The shards of a dataset that are made when somebody asks for their sizes, while they change."""

from collections import Counter

import pytest
import trio

from aisfs.engine.dataset.shard_set import Shard, ShardSet
from aisfs.errors import NotFound
from aisfs.metrics import Metrics
from aisfs.model import Bucket, ObjectInfo

B = Bucket("b")


class Making:
    """A store that makes objects; what a test has it do comes before."""

    def __init__(self):
        self.sizes = {}
        self.meanwhile = []
        self.made = 0

    async def head(self, bucket, key):
        if key not in self.sizes:
            raise NotFound(key)
        return ObjectInfo(key, self.sizes[key], f"v{self.sizes[key]}").unsized

    async def sized(self, bucket, info):
        self.made += 1
        await trio.lowlevel.checkpoint()
        if self.meanwhile:
            await self.meanwhile.pop(0)()
        if info != await self.head(bucket, info.key):
            raise NotFound(info.key)
        return info.source


@pytest.fixture
def store():
    return Making()


async def found(store, **sizes):
    store.sizes = sizes
    shards = [Shard(B, await store.head(B, key), key.encode()) for key in sizes]
    return ShardSet(store, Metrics(), shards, Counter())


async def test_a_version_that_was_shown_is_known_by_what_is_told_of_it(store):
    shards = await found(store, a=1)
    other = ObjectInfo("a", 2, "v2").unsized
    assert not shards.changed(B, other)
    again = await store.head(B, "a")
    assert (again != shards.find(b"a").info, again != other) == (False, True)
    assert shards.changed(B, again)
