"""Where a member index comes from: memory, disk, AIStore's own index, or a scan."""

from contextlib import asynccontextmanager

import pytest
import trio

from aisfs.cache.files import IndexCache
from aisfs.core.index.published import ScanRules
from aisfs.engine.index_sources import ShardIndexSource
from aisfs.engine.scanning import ShardScanner
from aisfs.engine.shards import ArchiveForms, Indexer
from aisfs.engine.unpacker import Unpacker
from aisfs.errors import AccessDenied, BucketNotFound, Unavailable
from aisfs.model import Bucket
from aisfs.stores.ais.requests import SYSTEM_BUCKET, shard_index_location
from aisfs.stores.memory import MemoryStore
from tests.engine.fetchers import fetcher_of
from tests.stores.ais.test_shard_index import as_aistore_does, payload, sealed
from tests.support.archives import make_tar
from tests.support.tars import entry

BUCKET = Bucket("b")


def tar_of(count, size=1000):
    return make_tar({f"{n:04}.jpg": bytes(size) for n in range(count)})


@asynccontextmanager
async def indexing(store, *, shard_indexes=None, others=(), nesting=0, **options):
    async with fetcher_of(store) as (fetcher, services):
        unpacker = Unpacker(fetcher, services, cache=None)
        own = ShardIndexSource(shard_indexes, services, nesting=nesting) if shard_indexes else None
        yield Indexer(
            ShardScanner(fetcher, unpacker, rules=ScanRules(nesting=nesting)),
            ArchiveForms(fetcher),
            services,
            sources=[*others, own] if own else others,
            **options,
        )


@pytest.fixture
def store():
    store = MemoryStore(sink_in_thread=False)
    store.add_bucket(BUCKET)
    return store


async def test_shard_is_scanned_once_however_many_open_it(store):
    shard = store.put(BUCKET, "x.tar", tar_of(50))
    async with indexing(store) as indexer:
        async with trio.open_nursery() as openers:
            for _ in range(8):
                openers.start_soon(indexer.open, BUCKET, shard)
        view = await indexer.open(BUCKET, shard)
    assert len(view.index) == 50
    assert store.bytes_read <= shard.size


async def test_kept_index_is_not_scanned_again(store, tmp_path):
    shard = store.put(BUCKET, "x.tar", tar_of(50))
    kept = IndexCache(tmp_path, 1 << 20)
    async with indexing(store, indexes=kept) as indexer:
        first = (await indexer.open(BUCKET, shard)).index
        assert kept.get(BUCKET, shard) is None, "who opens a shard does not wait for that"
    before = store.calls.total()
    async with indexing(store, indexes=IndexCache(tmp_path, 1 << 20)) as indexer:
        second = (await indexer.open(BUCKET, shard)).index
    assert store.calls.total() == before
    assert second.names() == first.names()


async def test_failed_scan_is_tried_again(store):
    shard = store.put(BUCKET, "x.tar", tar_of(5))

    async def fail(method, bucket, key):
        raise Unavailable("injected")

    async with indexing(store) as indexer:
        store.hook = fail
        with pytest.raises(Unavailable):
            await indexer.open(BUCKET, shard)
        store.hook = None
        assert len((await indexer.open(BUCKET, shard)).index) == 5


async def test_shard_index_that_makes_no_sense_is_passed_over(store):
    shard = store.put(BUCKET, "x.tar", tar_of(5))
    place, key = shard_index_location(BUCKET, "x.tar")
    store.add_bucket(place)
    store.put(place, key, b"nonsense")
    async with indexing(store, shard_indexes=store) as indexer:
        assert len((await indexer.open(BUCKET, shard)).index) == 5


async def test_cluster_without_shard_indexes_is_no_error(store):
    shard = store.put(BUCKET, "x.tar", tar_of(5))
    async with indexing(store, shard_indexes=store) as indexer:
        assert len((await indexer.open(BUCKET, shard)).index) == 5


async def test_shard_index_of_the_cluster_spares_the_scan(store):
    shard = put_indexed(store, "x.tar", tar_of(5))
    before = store.bytes_read
    async with indexing(store, shard_indexes=store) as indexer:
        view = await indexer.open(BUCKET, shard)
    assert view.index.names() == [f"{n:04}.jpg".encode() for n in range(5)]
    assert store.bytes_read - before < 1000, "the shard itself was read"


async def test_shard_index_does_not_say_what_is_in_a_tar_in_the_shard(store):
    shard = put_indexed(store, "x.tar", entry(b"in.tar", tar_of(3)) + tar_of(2))
    async with indexing(store, shard_indexes=store) as indexer:
        assert len((await indexer.open(BUCKET, shard)).index) == 3
    async with indexing(store, shard_indexes=store, nesting=8) as indexer:
        index = (await indexer.open(BUCKET, shard)).index
    assert index.names()[2:5] == [b"in.tar.d/%04d.jpg" % n for n in range(3)]
    assert len(index) == 7


async def test_large_members_of_tars_in_the_shard_are_not_read_when_nothing_is_kept(store):
    shard = store.put(BUCKET, "x.tar", entry(b"in.tar", tar_of(5, 8 << 20)) + tar_of(1))
    async with indexing(store, nesting=8) as indexer:
        assert len((await indexer.open(BUCKET, shard)).index) == 8
    assert store.bytes_read < shard.size // 4


def put_indexed(store, key, content):
    """A shard, and AIStore's own index of it."""
    shard = store.put(BUCKET, key, content)
    kind, _, checksum = shard.checksum.partition(":")
    place, index = shard_index_location(BUCKET, key)
    store.add_bucket(place)
    members = as_aistore_does(content)
    body = payload(members, shard.size, kind=kind.encode(), checksum=checksum.encode())
    store.put(place, index, sealed(body))
    return shard


async def test_shard_indexes_are_listed_once_and_only_those_are_read(store):
    shards = [put_indexed(store, f"d/{n}.tar", tar_of(3 + n)) for n in range(3)]
    bare = store.put(BUCKET, "d/bare.tar", tar_of(2))
    store.calls.clear()
    async with indexing(store, shard_indexes=store) as indexer:
        for n, shard in enumerate(shards):
            view = await indexer.open(BUCKET, shard)
            assert len(view.index) == 3 + n
            assert view.index.without_attributes
        assert (store.calls["list_page"], store.calls["head"]) == (1, 0)
        assert store.calls["read_range"] == 3
        assert not (await indexer.open(BUCKET, bare)).index.without_attributes


@pytest.mark.parametrize("error", [AccessDenied("403"), BucketNotFound("none")])
async def test_shard_indexes_that_cannot_be_had_are_asked_for_once(store, error):
    async def refuse(method, bucket, key):
        if bucket == SYSTEM_BUCKET:
            raise error

    shards = [put_indexed(store, f"d/{n}.tar", tar_of(3 + n)) for n in range(3)]
    store.hook = refuse
    store.calls.clear()
    async with indexing(store, shard_indexes=store) as indexer:
        for shard in shards:
            assert not (await indexer.open(BUCKET, shard)).index.without_attributes
    assert (store.calls["list_page"], store.calls["head"]) == (1, 0)
