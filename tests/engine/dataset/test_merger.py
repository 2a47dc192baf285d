"""Opening all shards of a dataset: what fails, what changes meanwhile, what is fetched."""

from collections import Counter
from contextlib import asynccontextmanager

import pytest
import trio

from aisfs.cache.files import IndexCache
from aisfs.core.views.spec import LabelRule, LabelSource, ViewSpec
from aisfs.core.views.tree import without_folders
from aisfs.engine.dataset.merger import Merger
from aisfs.engine.dataset.shard_set import MISSING, Shard, ShardSet
from aisfs.errors import NotFound, Stale, Unavailable
from aisfs.metrics import Metrics
from aisfs.model import Bucket
from aisfs.settings import View
from aisfs.stores.memory import MemoryStore
from tests.engine.test_indexer import indexing
from tests.support.archives import make_tar

BUCKET = Bucket("b")
CLASS = ViewSpec(View.CLASS)


def shard_of(number: int, *, label: int = 0, size: int = 10) -> bytes:
    key = f"k{number}"
    return make_tar([(f"{key}.cls", b"%d" % label), (f"{key}.jpg", bytes(size))])


async def no_zip(*member):
    raise AssertionError("the labels of a tar come with its scan")


@asynccontextmanager
async def merging(store: MemoryStore, infos: list, *, spec: ViewSpec = CLASS, **options):
    async with indexing(store, lay_out=without_folders, **options) as indexer:
        shards = [Shard(BUCKET, info, info.key.encode()) for info in infos]
        async with trio.open_nursery() as services:
            found = ShardSet(store, Metrics(), shards, Counter())
            yield Merger(found, indexer, no_zip, spec, services, Metrics())
            services.cancel_scope.cancel()


def paths(view) -> list[str]:
    return sorted(
        f"{folder.name.decode()}/{file.name.decode()}"
        for folder in view.children(0)
        for file in view.children(folder.directory)
    )


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore(sink_in_thread=False)
    store.add_bucket(BUCKET)
    return store


async def test_many_who_ask_build_once(store: MemoryStore):
    infos = [store.put(BUCKET, f"{n}.tar", shard_of(n)) for n in range(6)]
    async with merging(store, infos) as merger:
        async with trio.open_nursery() as askers:
            for _ in range(5):
                askers.start_soon(merger.merged)
        before = store.calls.total()
        view = (await merger.merged()).view
        assert paths(view) == [f"0/k{n}.jpg" for n in range(6)]
        assert store.calls.total() == before
    assert store.bytes_read <= sum(info.size for info in infos)


async def test_a_shard_that_cannot_be_read_fails_the_listing_and_is_tried_again(
    store: MemoryStore,
):
    infos = [store.put(BUCKET, f"{n}.tar", shard_of(n)) for n in range(3)]

    async def fail(method, bucket, key):
        if key == "1.tar":
            raise Unavailable("injected")

    async with merging(store, infos) as merger:
        store.hook = fail
        with pytest.raises(Unavailable):
            await merger.merged()
        assert merger.known is None
        store.hook = None
        assert len(paths((await merger.merged()).view)) == 3


async def test_shards_that_change_or_go_before_they_are_opened(store: MemoryStore):
    infos = [store.put(BUCKET, f"{n}.tar", shard_of(n)) for n in range(3)]
    store.put(BUCKET, "0.tar", shard_of(0, label=1))
    store.delete(BUCKET, "2.tar")
    async with merging(store, infos) as merger:
        assert paths((await merger.merged()).view) == ["0/k1.jpg", "1/k0.jpg"]
        assert merger.exclusions == {MISSING: 1}


async def test_a_dataset_that_never_settles_is_an_error(store: MemoryStore):
    info = store.put(BUCKET, "0.tar", shard_of(0))

    async def fail(method, bucket, key):
        if method != "head":
            store.put(BUCKET, "0.tar", shard_of(0))
            raise Stale("it changed again")

    async with merging(store, [info]) as merger:
        store.hook = fail
        with pytest.raises(Stale, match="go on changing"):
            await merger.merged()


async def test_a_change_makes_everything_new_but_what_did_not_change(store: MemoryStore):
    infos = [store.put(BUCKET, f"{n}.tar", shard_of(n)) for n in range(3)]
    async with merging(store, infos) as merger:
        await merger.merged()
        store.put(BUCKET, "1.tar", shard_of(1, label=7))
        assert merger.changed(BUCKET, infos[1]) == [b"0"]
        assert merger.changed(BUCKET, infos[1]) == []
        before = store.bytes_read
        assert paths((await merger.merged()).view) == ["0/k0.jpg", "0/k2.jpg", "7/k1.jpg"]
        assert store.bytes_read - before <= infos[1].size


async def test_labels_are_kept_and_large_images_not_read(store: MemoryStore, tmp_path):
    infos = [store.put(BUCKET, f"{n}.tar", shard_of(n, size=8 << 20)) for n in range(2)]
    async with merging(store, infos, indexes=IndexCache(tmp_path, 1 << 20)) as merger:
        first = paths((await merger.merged()).view)
    assert store.bytes_read < sum(info.size for info in infos) // 2
    before = store.calls.total()
    async with merging(store, infos, indexes=IndexCache(tmp_path, 1 << 20)) as merger:
        assert paths((await merger.merged()).view) == first
    assert store.calls.total() == before


async def test_an_index_that_was_kept_without_labels_is_no_obstacle(store: MemoryStore, tmp_path):
    info = store.put(BUCKET, "0.tar", shard_of(0, label=5))
    flat = ViewSpec(View.FLAT)
    kept = IndexCache(tmp_path, 1 << 20)
    async with merging(store, [info], spec=flat, indexes=kept) as merger:
        await merger.merged()
    async with merging(store, [info], indexes=kept) as merger:
        assert paths((await merger.merged()).view) == ["5/k0.jpg"]


async def test_other_rules_have_labels_of_their_own(store: MemoryStore, tmp_path):
    data = make_tar([("a.cls", b"1"), ("a.txt", b"cat"), ("a.jpg", b"x")])
    info = store.put(BUCKET, "0.tar", data)
    kept = IndexCache(tmp_path, 1 << 20)
    for extension, path in (("cls", "1/a.jpg"), ("txt", "cat/a.jpg"), ("cls", "1/a.jpg")):
        spec = ViewSpec(View.CLASS, label=LabelRule(LabelSource.CONTENT, extension))
        async with merging(store, [info], spec=spec, indexes=kept) as merger:
            assert paths((await merger.merged()).view) == [path]


async def test_a_shard_that_is_gone_is_no_longer_found(store: MemoryStore):
    info = store.put(BUCKET, "0.tar", shard_of(0))
    shards = ShardSet(store, Metrics(), [Shard(BUCKET, info, b"0")], Counter())
    assert shards.find(b"0") is not None
    store.delete(BUCKET, "0.tar")
    assert shards.changed(BUCKET, info)
    await shards.settle()
    assert shards.find(b"0") is None
    assert len(shards) == 0
    with pytest.raises(NotFound):
        await store.head(BUCKET, "0.tar")


async def test_kept_indexes_are_loaded_without_a_request_and_others_opened(store, tmp_path):
    infos = [store.put(BUCKET, f"{n:03}.tar", shard_of(n, label=n % 3)) for n in range(70)]
    async with merging(store, infos[:69], indexes=IndexCache(tmp_path, 1 << 24)) as merger:
        first = paths((await merger.merged()).view)
    before = store.calls.total()
    async with merging(store, infos, indexes=IndexCache(tmp_path, 1 << 24)) as merger:
        again = paths((await merger.merged()).view)
    assert again == sorted([*first, "0/k69.jpg"])
    assert store.calls.total() - before == 1, "more than the shard that was not kept was read"
