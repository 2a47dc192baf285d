"""Published indexes as a source: few requests, none where nothing is published, and no trust."""

import logging
import math
from collections import Counter
from contextlib import asynccontextmanager

import pytest
import trio
from msgspec import structs

from aisfs.cache.files import IndexCache
from aisfs.cache.names import Dated
from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.index.published import ScanRules, encode_published
from aisfs.core.names.listing import Form, Listing, place_in, published_key
from aisfs.core.views.sample_views import LabelScan
from aisfs.engine import index_sources as source_module
from aisfs.engine.index_sources import IndexBucket, PublishedSource
from aisfs.errors import AccessDenied, AisfsError, Unavailable, Unsupported
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.memory import MemoryStore
from tests.core.views.test_labels import CLS
from tests.engine.test_indexer import indexing
from tests.support.tars import END, entry

BUCKET = Bucket("b")
NAME = f"{CLS.source.name} {CLS.text}"
RULES = ScanRules()


def data_of(number: int) -> bytes:
    return entry(b"a.jpg", bytes(9000)) + entry(b"a.cls", b"%d" % number) + END


def publish(store: MemoryStore, shard: ObjectInfo, data: bytes) -> ObjectInfo:
    scanner = TarScanner(len(data))
    labels = LabelScan(CLS, scanner.rows)
    scanner.feed(data)
    labels.feed(0, memoryview(data))
    index = scanner.finish()
    published = encode_published(shard, index, {NAME: labels.finish(index)}, RULES)
    return store.put(BUCKET, published_key(shard.key), published)


def fill(store: MemoryStore, count: int, published: bool = True) -> list[ObjectInfo]:
    shards = []
    for number in range(count):
        shards.append(store.put(BUCKET, f"d/{number:03}.tar", data_of(number)))
        if published:
            publish(store, shards[-1], data_of(number))
    return shards


@pytest.fixture(params=[True, False], ids=["batches", "singly"])
def store(request) -> MemoryStore:
    store = MemoryStore(sink_in_thread=False, batches=request.param)
    store.add_bucket(BUCKET)
    return store


@asynccontextmanager
async def source(store, **options):
    async with trio.open_nursery() as services:
        yield PublishedSource(store, services, RULES, list_ttl=60.0, **options)
        services.cancel_scope.cancel()


async def test_many_are_read_with_few_requests_and_in_any_order(store):
    shards = fill(store, 300)
    async with source(store) as published:

        async def find(shard):
            found = await published.find(BUCKET, shard, Form.TAR)
            assert found.index.names() == [b"a.jpg", b"a.cls"]
            assert found.labels[NAME].table == [shard.key[2:5].lstrip("0").encode() or b"0"]

        limiter = trio.CapacityLimiter(4)

        async def some(shard):
            async with limiter:
                await find(shard)

        async with trio.open_nursery() as nursery:
            for shard in shards[:250]:
                nursery.start_soon(some, shard)
        for shard in reversed(shards[250:]):
            await find(shard)
        await find(shards[7])  # again, and by itself
    assert store.calls["list_page"] == 1
    assert store.calls["head"] == store.calls["stream"] == 0
    if store.batches:
        assert store.calls["read_many"] + store.calls["read_range"] < 30
    else:
        assert store.calls["read_range"] <= 301


async def test_what_is_read_ahead_and_never_asked_for_stays_small(store, monkeypatch):
    shards = fill(store, 300)
    indexes = [await store.head(BUCKET, published_key(shard.key)) for shard in shards]
    most = max(index.size for index in indexes)
    monkeypatch.setattr(source_module, "AHEAD_BYTES", 10 * most)
    async with source(store) as published:
        for shard in shards[::10]:
            assert await published.find(BUCKET, shard, Form.TAR) is not None
    assert store.bytes_read <= (30 + 10) * most


async def test_what_was_read_ahead_and_asked_for_makes_room_for_more(monkeypatch):
    store = MemoryStore(sink_in_thread=False, batches=True)
    store.add_bucket(BUCKET)
    shards = fill(store, 300)
    index = await store.head(BUCKET, published_key(shards[-1].key))
    monkeypatch.setattr(source_module, "AHEAD_BYTES", 64 * index.size)
    async with source(store) as published:
        for shard in shards:
            assert await published.find(BUCKET, shard, Form.TAR) is not None
    assert store.calls["read_many"] + store.calls["read_range"] < 30


async def test_one_shard_costs_its_own_index_only(store):
    shards = fill(store, 100)
    async with source(store) as published:
        await published.find(BUCKET, shards[50], Form.TAR)
    assert store.calls == {"list_page": 1, "read_range": 1}


async def test_where_nothing_is_published_there_is_one_request_or_none(store):
    shards = fill(store, 20, published=False)
    async with source(store) as published:
        for shard in shards:
            assert await published.find(BUCKET, shard, Form.TAR) is None
    assert store.calls == {"list_page": 1}
    known = Dated(Listing({}, Counter()), math.inf)
    async with source(store, try_directory=lambda bucket, prefix: known) as published:
        assert await published.find(BUCKET, shards[0], Form.TAR) is None
    assert store.calls == {"list_page": 1}


@pytest.mark.parametrize("by_name", [False, True], ids=["listed", "by name"])
async def test_a_store_that_failed_is_asked_again(
    store, caplog, monkeypatch, autojump_clock, by_name
):
    """A failure is no answer; it is told once. The clock stands still: a failure counts as long as it took."""
    monkeypatch.setattr(source_module, "FAILED_SECONDS", 0)
    shards = fill(store, 20)
    failing: type[AisfsError] | None = Unavailable

    async def hook(method, bucket, key):
        if by_name and method == "list_page":
            raise Unsupported("no index page")
        if failing and method == ("head" if by_name else "list_page"):
            raise failing("injected")

    store.hook = hook
    async with source(store) as published:
        for _ in range(3):
            assert await published.find(BUCKET, shards[0], Form.TAR) is None
        (told,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
        assert "injected" in told
        failing = None
        assert await published.find(BUCKET, shards[0], Form.TAR)


async def test_what_is_refused_is_absent(store, caplog):
    """Many sites refuse whatever begins with a dot."""
    (shard,) = fill(store, 1)

    async def hook(method, bucket, key):
        raise Unsupported("no index page") if method == "list_page" else AccessDenied("403")

    store.hook = hook
    async with source(store) as published:
        for _ in range(3):
            assert await published.find(BUCKET, shard, Form.TAR) is None
    assert store.calls["head"] == 1
    assert "WARNING" not in [record.levelname for record in caplog.records]


async def test_what_is_gone_is_scanned(store, caplog):
    """Indexes that are gone or replaced since they were listed."""
    shards = fill(store, 20)
    async with source(store) as published:
        assert await published.find(BUCKET, shards[0], Form.TAR)
        for shard in shards[1:]:
            store.delete(BUCKET, published_key(shard.key))
        publish(store, shards[9], data_of(9))
        for shard in shards[1:]:
            assert await published.find(BUCKET, shard, Form.TAR) is None
    assert "WARNING" not in [record.levelname for record in caplog.records]


async def test_refused_indexes_are_told_once(store, caplog):
    caplog.set_level(logging.INFO)
    shards = fill(store, 6)
    damaged = bytearray(publish(store, shards[0], data_of(0)).size)
    store.put(BUCKET, published_key(shards[0].key), bytes(damaged))
    for shard in shards[1:3]:
        store.put(BUCKET, shard.key, data_of(7))  # is not what was published any more
    now = [await store.head(BUCKET, shard.key) for shard in shards]
    store.put(BUCKET, published_key(shards[3].key), bytes(1 << 20))
    async with source(store) as published:
        found = [await published.find(BUCKET, shard, Form.TAR) for shard in now]
        assert await published.find(BUCKET, now[4], Form.ZIP) is None
    assert [one is not None for one in found] == [False] * 4 + [True] * 2
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 3
    assert all("the shard is scanned" in line for line in said)
    assert "000.tar.idx" in said[0]
    assert "another version of the shard; publish it anew: aisfs index --publish" in said[1]
    assert "no index of a shard" in said[2]


async def test_members_and_labels_come_without_reading_the_shard(tmp_path, store):
    (shard,) = fill(store, 1)

    async def read(*_):
        raise AssertionError("nothing needs to be read")

    for again in (False, True):
        kept = IndexCache(tmp_path, 1 << 20)
        store.calls.clear()
        async with (
            source(store) as published,
            indexing(store, indexes=kept, others=[published]) as indexer,
        ):
            index, column = await indexer.labels(BUCKET, shard, CLS, read)
        assert index.names() == [b"a.jpg", b"a.cls"]
        assert column.by_row() == {1: b"0"}
        assert store.calls == ({} if again else {"list_page": 1, "read_range": 1})


async def test_an_index_is_kept_as_it_was_published(tmp_path, store):
    (shard,) = fill(store, 1)
    kept = IndexCache(tmp_path, 1 << 20)
    async with (
        source(store) as published,
        indexing(store, indexes=kept, others=[published]) as indexer,
    ):
        assert len((await indexer.open(BUCKET, shard)).index) == 2
    assert kept.get(BUCKET, shard).index.names() == [b"a.jpg", b"a.cls"]


# In the bucket of indexes -------------------------------------------------------------------

OWN = Bucket("aisfs-index")


async def uuid_of(bucket: Bucket) -> Bucket:
    return Bucket(bucket.name, namespace=bucket.namespace.replace("@far", "@uuid"))


@asynccontextmanager
async def own_source(store):
    async with source(store, own=IndexBucket(OWN, uuid_of)) as published:
        yield published


def publish_in_own(store: MemoryStore, shard: ObjectInfo, bucket: Bucket, data: bytes) -> None:
    scanner = TarScanner(len(data))
    scanner.feed(data)
    place = place_in(OWN, bucket)
    encoded = encode_published(shard, scanner.finish(), {}, RULES, renewable=place.renewable)
    store.put(OWN, place.key(shard.key), encoded)


async def test_many_are_read_from_the_bucket_of_indexes_with_few_requests(store):
    store.add_bucket(OWN)
    shards = fill(store, 300, published=False)
    for at, shard in enumerate(shards):
        publish_in_own(store, shard, BUCKET, data_of(at))
    async with own_source(store) as published:
        wanted = [(BUCKET, shard, Form.TAR) for shard in shards]
        found = await published.find_many(wanted, lambda _, found: found)
        assert all(found)
    assert store.calls["list_page"] == 1
    assert store.calls["head"] == store.calls["stream"] == 0
    if store.batches:
        assert store.calls["read_many"] + store.calls["read_range"] < 30


async def test_a_cluster_is_known_by_its_uuid(store):
    store.add_bucket(OWN)
    far, same = Bucket("b", namespace="@far#"), Bucket("b", namespace="@uuid#")
    (shard,) = fill(store, 1, published=False)
    publish_in_own(store, shard, same, data_of(0))
    async with own_source(store) as published:
        for bucket, there in ((far, True), (same, True), (BUCKET, False)):
            assert bool(await published.find(bucket, shard, Form.TAR)) is there


@pytest.mark.parametrize("denied", [None, "list_page", "read"])
async def test_without_the_bucket_of_indexes_one_request_is_made_for_all(store, caplog, denied):
    caplog.set_level(logging.INFO)
    shards = [store.put(BUCKET, f"{at % 20}/{at}.tar", data_of(at)) for at in range(100)]
    if denied:
        store.add_bucket(OWN)
        for at, shard in enumerate(shards):
            publish_in_own(store, shard, BUCKET, data_of(at))

    async def hook(method, bucket, key):
        if denied and bucket == OWN and method.startswith(denied):
            raise AccessDenied("403")

    store.hook = hook
    async with own_source(store) as published:

        async def find(shard):
            assert await published.find(BUCKET, shard, Form.TAR) is None

        await find(shards[0])
        async with trio.open_nursery() as nursery:
            for shard in shards[1:]:
                nursery.start_soon(find, shard)
    assert sum(store.calls.values()) == (2 if denied == "read" else 1)
    said = [record.getMessage() for record in caplog.records if "not used" in record.getMessage()]
    assert len(said) == bool(denied)


async def test_a_bucket_of_indexes_that_is_made_later_is_found(store, autojump_clock):
    (shard,) = fill(store, 1, published=False)
    async with own_source(store) as published:
        assert await published.find(BUCKET, shard, Form.TAR) is None
        store.add_bucket(OWN)
        publish_in_own(store, shard, BUCKET, data_of(0))
        assert await published.find(BUCKET, shard, Form.TAR) is None
        await trio.sleep(61)
        assert await published.find(BUCKET, shard, Form.TAR)


async def test_an_index_of_a_bucket_that_was_made_again_is_not_used(store, caplog):
    store.add_bucket(OWN)
    (shard,) = fill(store, 1, published=False)
    bare = structs.replace(shard, checksum="", version="1", mtime_ns=5)
    publish_in_own(store, bare, BUCKET, data_of(0))
    async with own_source(store) as published:
        again = structs.replace(bare, mtime_ns=6)
        assert await published.find(BUCKET, again, Form.TAR) is None
        assert await published.find(BUCKET, bare, Form.TAR)
    assert "another version" in caplog.text
