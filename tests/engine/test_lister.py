"""What a look-up and a listing cost, and when they are believed."""

import threading

import pytest
import trio
import trio.testing

from aisfs.cache.files import ListingCache
from aisfs.cache.names import MetadataCache
from aisfs.engine.listing import SINGLE_LOOKUPS, Lister
from aisfs.errors import AccessDenied, BucketNotFound, Unavailable, Unsupported
from aisfs.metrics import Metrics
from aisfs.model import Bucket, Page
from aisfs.stores.memory import MemoryStore

BUCKET = Bucket("pets")


@pytest.fixture
def store():
    store = MemoryStore(page_size=10, sink_in_thread=False)
    store.add_bucket(BUCKET)
    return store


def make(store, nursery, *, attr_ttl=60.0, list_ttl=60.0, negative_ttl=5.0, wanted=None, kept=None):
    cache = MetadataCache(
        attr_ttl=attr_ttl, list_ttl=list_ttl, negative_ttl=negative_ttl, clock=trio.current_time
    )
    return Lister(
        store,
        cache,
        nursery,
        list_ttl=list_ttl,
        clock=trio.current_time,
        metrics=Metrics(),
        wanted=wanted,
        kept=kept,
    )


async def test_one_listing_answers_all_names_of_a_directory(store, nursery):
    for n in range(5):
        store.put(BUCKET, f"a/{n}", b"x")
    lister = make(store, nursery)
    for n in range(5):
        found = await lister.find(BUCKET, "a/", str(n).encode())
        assert found.value.size == 1
    assert await lister.find(BUCKET, "a/", b"none") is None
    assert len((await lister.directory(BUCKET, "a/")).value) == 5
    assert store.calls == {"list_page": 1}


@pytest.mark.parametrize("page_size", [10, 1000])
async def test_large_pages_do_not_hold_up_other_requests(nursery, page_size):
    store = MemoryStore(page_size=page_size)
    store.add_bucket(BUCKET)
    for n in range(3 * page_size - 1):
        store.put(BUCKET, f"{n:04}", b"")
    threads = set()

    def wanted(key):
        threads.add(threading.current_thread())
        return True

    listing = (await make(store, nursery, wanted=wanted).directory(BUCKET, "")).value
    assert [name for _, name, _ in listing.after(0)] == [
        b"%04d" % n for n in range(3 * page_size - 1)
    ]
    assert (threading.main_thread() in threads) == (page_size == 10)
    assert store.calls["list_page"] == 3


async def test_failure_on_a_later_page_is_an_error_not_a_short_listing(store, nursery):
    for n in range(95):
        store.put(BUCKET, f"{n:03}", b"")
    lister = make(store, nursery)

    async def fail_on_fifth(method, bucket, key):
        if store.calls["list_page"] >= 5:
            raise Unavailable("injected")

    store.hook = fail_on_fifth
    with pytest.raises(Unavailable):
        await lister.directory(BUCKET, "")
    store.hook = None
    assert len((await lister.directory(BUCKET, "")).value) == 95


async def test_large_directory_is_not_listed_for_one_name(store, nursery):
    for n in range(500):
        store.put(BUCKET, f"{n:03}", b"x")
    lister = make(store, nursery)
    assert (await lister.find(BUCKET, "", b"499")).value.key == "499"
    assert await lister.find(BUCKET, "", b"nope") is None
    assert store.calls == {"list_page": 1, "first_keys": 2, "head": 2}
    await lister.find(BUCKET, "", b"499")
    await lister.find(BUCKET, "", b"nope")
    assert store.calls.total() == 5


async def test_large_directory_is_listed_once_enough_names_were_asked_for(store, nursery):
    for n in range(500):
        store.put(BUCKET, f"{n:03}", b"x")
    lister = make(store, nursery)
    for n in range(SINGLE_LOOKUPS + 5):
        assert await lister.find(BUCKET, "", f"{n:03}".encode()) is not None
    before = store.calls.total()
    for n in range(500):
        assert await lister.find(BUCKET, "", f"{n:03}".encode()) is not None
    assert store.calls.total() == before


async def test_directory_wins_over_the_object_of_its_name_when_asked_singly(store, nursery):
    store.put(BUCKET, "p", b"object")
    store.put(BUCKET, "p/q", b"below")
    lister = make(store, nursery, list_ttl=0)
    assert (await lister.find(BUCKET, "", b"p")).value is None


async def test_listing_is_asked_for_again_after_its_time(store, nursery, autojump_clock):
    store.put(BUCKET, "a", b"x")
    lister = make(store, nursery, list_ttl=60)
    await lister.directory(BUCKET, "")
    store.put(BUCKET, "b", b"x")
    await trio.sleep(59)
    assert len((await lister.directory(BUCKET, "")).value) == 1
    await trio.sleep(2)
    assert len((await lister.directory(BUCKET, "")).value) == 2


async def test_missing_name_is_asked_for_again_after_its_time(store, nursery, autojump_clock):
    lister = make(store, nursery, list_ttl=0, negative_ttl=5)
    assert await lister.find(BUCKET, "", b"new") is None
    store.put(BUCKET, "new", b"x")
    assert await lister.find(BUCKET, "", b"new") is None
    await trio.sleep(6)
    assert await lister.find(BUCKET, "", b"new") is not None


async def test_dropped_name_is_asked_for_at_once(store, nursery):
    store.put(BUCKET, "a", b"old")
    lister = make(store, nursery)
    old = await lister.find(BUCKET, "", b"a")
    store.put(BUCKET, "a", b"newer")
    lister.drop(BUCKET, "", b"a")
    assert (await lister.find(BUCKET, "", b"a")).value.size == 5
    assert old.value.size == 3


async def test_many_at_once_share_one_listing(store, nursery):
    store.put(BUCKET, "a", b"x")
    lister = make(store, nursery)

    async def slow(method, bucket, key):
        await trio.testing.wait_all_tasks_blocked()

    store.hook = slow
    async with trio.open_nursery() as askers:
        for _ in range(20):
            askers.start_soon(lister.find, BUCKET, "", b"a")
            askers.start_soon(lister.directory, BUCKET, "")
    assert store.calls["list_page"] <= 2


async def test_refused_names_cost_no_request(store, nursery):
    lister = make(store, nursery)
    for name in (b"..", b".", b"x" * 256, b""):
        assert await lister.find(BUCKET, "", name) is None
    assert not store.calls


async def test_bucket_can_be_opened_without_the_right_to_list_buckets(store, nursery):
    async def deny(method, bucket, key):
        if method == "list_buckets":
            raise AccessDenied("no")

    store.hook = deny
    lister = make(store, nursery)
    with pytest.raises(AccessDenied):
        await lister.buckets.get()
    await lister.check_bucket(BUCKET)
    with pytest.raises(BucketNotFound):
        await lister.check_bucket(Bucket("other"))


# listings that other mounts have made -------------------------------------------------------------


@pytest.fixture
def kept(tmp_path, autojump_clock):
    return ListingCache(tmp_path, 1 << 20, max_age=60.0, clock=autojump_clock.current_time)


async def list_in_a_mount(store, kept, **ttl):
    """What a new mount shows of the root."""
    async with trio.open_nursery() as nursery:
        return (await make(store, nursery, kept=kept, **ttl).directory(BUCKET, "")).value


async def test_next_mount_uses_a_listing_of_several_pages_while_it_is_young(
    store, kept, autojump_clock
):
    for n in range(25):
        store.put(BUCKET, f"{n:03}", b"x")
    first = await list_in_a_mount(store, kept)
    assert store.calls["list_page"] == 3
    await trio.sleep(59)
    again = await list_in_a_mount(store, kept)
    assert store.calls["list_page"] == 3
    assert list(again.after(0)) == list(first.after(0))
    await trio.sleep(2)
    await list_in_a_mount(store, kept)
    assert store.calls["list_page"] == 6


async def test_listing_is_never_older_than_its_time_to_live_whoever_made_it(
    store, kept, nursery, autojump_clock
):
    for n in range(25):
        store.put(BUCKET, f"{n:03}", b"x")
    await list_in_a_mount(store, kept)
    store.put(BUCKET, "new", b"x")
    await trio.sleep(40)
    lister = make(store, nursery, kept=kept)
    assert b"new" not in (await lister.directory(BUCKET, "")).value
    await trio.sleep(21)
    assert b"new" in (await lister.directory(BUCKET, "")).value


async def test_single_page_is_listed_anew_by_every_mount(store, kept, autojump_clock):
    store.put(BUCKET, "a", b"x")
    await list_in_a_mount(store, kept)
    store.put(BUCKET, "b", b"x")
    assert len(await list_in_a_mount(store, kept)) == 2


async def test_lookup_in_a_large_directory_needs_no_request_if_it_was_listed(
    store, kept, nursery, autojump_clock
):
    for n in range(25):
        store.put(BUCKET, f"{n:03}", b"x")
    await list_in_a_mount(store, kept)
    before = store.calls.total()
    lister = make(store, nursery, kept=kept)
    assert (await lister.find(BUCKET, "", b"007")).value.size == 1
    assert await lister.find(BUCKET, "", b"none") is None
    assert store.calls.total() == before


async def test_what_turned_out_to_have_changed_is_not_recalled(
    store, kept, nursery, autojump_clock
):
    for n in range(25):
        store.put(BUCKET, f"{n:03}", b"x")
    await list_in_a_mount(store, kept)
    await trio.sleep(1)
    store.put(BUCKET, "007", b"longer")
    lister = make(store, nursery, kept=kept)
    lister.drop(BUCKET, "", b"007")
    assert (await lister.directory(BUCKET, "")).value[b"007"].size == 6
    other = make(store, nursery, kept=kept)
    other.drop(BUCKET, "", b"007")
    assert (await other.directory(BUCKET, "")).value[b"007"].size == 6


async def test_directory_with_an_object_of_its_name_is_not_kept(store, kept, autojump_clock):
    for n in range(25):
        store.put(BUCKET, f"{n:03}", b"x")
    store.put(BUCKET, "007/below", b"x")
    await list_in_a_mount(store, kept)
    assert kept.get(BUCKET, "") is None


class WithoutIndex(MemoryStore):
    """A web server that lists nothing: names can only be looked up."""

    async def list_page(self, bucket, prefix, *, token=""):
        if token:
            raise Unsupported("no index")
        self.calls["list_page"] += 1
        return Page([], [], "/")


async def test_where_nothing_is_listed_any_number_of_names_can_be_looked_up(nursery):
    store = WithoutIndex(sink_in_thread=False)
    store.add_bucket(BUCKET)
    names = [f"{n:03}" for n in range(SINGLE_LOOKUPS + 10)]
    for name in names:
        store.put(BUCKET, f"d/{name}", b"x")
    lister = make(store, nursery)
    for name in names:
        assert (await lister.find(BUCKET, "d/", name.encode())).value.key == f"d/{name}"
    assert await lister.find(BUCKET, "d/", b"none") is None
    with pytest.raises(Unsupported):
        await lister.directory(BUCKET, "d/")
