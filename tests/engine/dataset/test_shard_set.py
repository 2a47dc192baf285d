"""The shards of a dataset that are made when somebody asks for their sizes, while they change."""

from collections import Counter

import pytest
import trio

from aisfs.engine.dataset.shard_set import Shard, ShardSet
from aisfs.errors import NotFound, Unavailable
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


async def find(shards, name):
    async with trio.open_nursery() as nursery:
        return await shards.find_sized(name, nursery)


async def test_shards_that_are_found_anew_while_they_are_made_have_sizes(store):
    shards = await found(store, a=1, b=2, c=3)

    async def renew():
        shards.renew(await found(store, a=1, b=2, c=3, d=4))

    store.meanwhile = [renew]
    assert (await find(shards, b"a")).info.size == 1
    store.meanwhile = [renew]
    await shards.make_all()
    assert [shard.info.size for _, shard in shards.current] == [1, 2, 3, 4]


async def test_a_shard_that_changes_while_it_is_made_has_its_new_size(store):
    shards = await found(store, a=1, b=2, c=3)

    async def change():
        store.sizes["b"] = 20

    async def settle():
        assert shards.changed(B, shards.find(b"b").info)
        store.sizes["b"] = 21
        await shards.settle()

    store.meanwhile = [change, settle]
    assert (await find(shards, b"b")).info.size == 21


async def test_a_shard_that_goes_while_it_is_made_is_gone(store):
    shards = await found(store, a=1, b=2, c=3)

    async def remove():
        del store.sizes["c"]

    store.meanwhile = [remove]
    assert await find(shards, b"c") is None
    await shards.make_all()
    assert [shard.info.size for _, shard in shards.current] == [1, 2]


async def test_a_shard_that_is_never_the_same_is_an_error(store):
    shards = await found(store, a=1)

    async def change():
        store.sizes["a"] += 1

    store.meanwhile = [change] * 1000
    with pytest.raises(Unavailable, match="b/a: changes"):
        await shards.make_all()
    assert store.made < 100


async def test_a_version_that_was_shown_is_known_by_what_is_told_of_it(store):
    shards = await found(store, a=1)
    other = ObjectInfo("a", 2, "v2").unsized
    assert not shards.changed(B, other)
    again = await store.head(B, "a")
    assert (again != shards.find(b"a").info, again != other) == (False, True)
    assert shards.changed(B, again)
