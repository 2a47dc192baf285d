"""What a mount changed shows at once, whatever was listed before, and gives way to what comes after."""

import pytest
import trio

from aisfs.cache.names import WOULD_WAIT, MetadataCache
from aisfs.engine import overlay
from aisfs.engine.listing import Lister
from aisfs.metrics import Metrics
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.memory import MemoryStore

B = Bucket("b")


class Clock:
    """Seconds that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def lister(store: MemoryStore, nursery: trio.Nursery, clock: Clock):
    cache = MetadataCache(attr_ttl=60, list_ttl=60, negative_ttl=5, clock=clock)
    return Lister(store, cache, nursery, list_ttl=60, change_ttl=60, clock=clock, metrics=Metrics())


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.put(B, "d/old", b"old")
    return store


async def names(lister: Lister, prefix: str = "d/") -> list[bytes]:
    listing = (await lister.directory(B, prefix)).value
    return [name for _, name, _ in listing.after(0)]


async def test_pending_and_settled(lister: Lister, store: MemoryStore):
    assert await names(lister) == [b"old"]
    lister.overlay.set_pending(B, "d/new", ObjectInfo("d/new", 0, "pending"))
    assert await names(lister) == [b"old", b"new"]
    info = store.put(B, "d/new", b"content")
    lister.overlay.settle(B, "d/new", info)
    assert (await lister.find(B, "d/", b"new")).value == info
    lister.overlay.remove(B, "d/old")
    assert await names(lister) == [b"new"]
    assert await lister.find(B, "d/", b"old") is None


async def test_a_later_listing_wins(lister: Lister, store: MemoryStore, clock: Clock):
    await names(lister)
    info = store.put(B, "d/new", b"ours")
    lister.overlay.settle(B, "d/new", info)
    store.delete(B, "d/new")  # by somebody else
    assert await names(lister) == [b"old", b"new"]
    clock.now += 61
    assert await names(lister) == [b"old"]
    assert await lister.find(B, "d/", b"new") is None


async def test_an_emptied_directory_stays_until_it_is_removed(
    lister: Lister, store: MemoryStore, clock: Clock
):
    store.delete(B, "d/old")
    lister.overlay.remove(B, "d/old")
    assert await names(lister, "") == [b"d"]
    clock.now += 1000
    assert await names(lister, "") == [b"d"]
    lister.overlay.remove(B, "d/")
    assert await names(lister, "") == []


async def test_a_directory_with_an_object_is_the_stores(
    lister: Lister, store: MemoryStore, clock: Clock
):
    lister.overlay.set_pending(B, "e/", None)
    assert await names(lister, "") == [b"d", b"e"]
    lister.overlay.settle(B, "e/f", store.put(B, "e/f", b""))
    clock.now += 61
    assert await names(lister, "") == [b"d", b"e"]
    store.delete(B, "e/f")  # by somebody else
    clock.now += 61
    assert await names(lister, "") == [b"d"]


async def test_what_is_over_is_forgotten(lister: Lister, clock: Clock):
    for number in range(5000):
        if number % 500 == 0:
            clock.now += 50
        lister.overlay.settle(B, f"x{number}/y", ObjectInfo(f"x{number}/y", 1))
    assert len(lister.overlay._directories) < 2500


async def test_a_directory_made_again_takes_no_place_among_the_removed_ones(
    lister: Lister, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(overlay, "REMOVED_MAX", 3)
    lister.overlay.remove(B, "gone/")
    for _ in range(5):
        lister.overlay.remove(B, "again/")
        lister.overlay.set_pending(B, "again/", None)
    assert lister.overlay.was_directory(B, "gone")
    assert not lister.overlay.was_directory(B, "again")


async def test_only_what_others_changed_is_news(lister: Lister, store: MemoryStore):
    told: list[bytes] = []
    lister._hooks.listing_changed = lambda bucket, prefix, names: told.extend(names)
    store.put(B, "d/kept", b"1")
    await names(lister)
    lister.overlay.set_pending(B, "d/held/", None)
    lister.overlay.settle(B, "d/ours", store.put(B, "d/ours", b"2"))
    store.delete(B, "d/old")
    lister.overlay.remove(B, "d/old")
    lister.overlay.settle(B, "d/both", store.put(B, "d/both", b"3"))
    theirs = {"d/both": b"4", "d/kept": b"5", "d/held/x": b"6"}
    for key, content in theirs.items():
        store.put(B, key, content)
    lister.drop(B, "d/", b"kept")
    await names(lister)
    assert sorted(told) == [b"both", b"kept"]


async def test_a_directory_is_there_as_long_as_one_in_it_is_held(
    lister: Lister, store: MemoryStore, clock: Clock
):
    lister.overlay.set_pending(B, "d/held/", None)
    lister.overlay.settle(B, "d/new", store.put(B, "d/new", b""))
    for key in ("d/old", "d/new"):
        store.delete(B, key)  # by somebody else
    clock.now += 61
    assert await names(lister, "") == [b"d"]
    lister.overlay.settle(B, "d/held/f", store.put(B, "d/held/f", b""))
    store.delete(B, "d/held/f")
    clock.now += 61
    assert await names(lister, "") == []


async def test_what_is_known_without_asking_has_the_changes(
    lister: Lister, store: MemoryStore, clock: Clock
):
    assert lister.try_find(B, "d/", b"old") is WOULD_WAIT
    assert lister.try_directory(B, "d/") is None
    await names(lister)
    before = lister.overlay.changes
    lister.overlay.remove(B, "d/old")
    lister.overlay.set_pending(B, "d/new", ObjectInfo("d/new", 0, "pending"))
    assert lister.overlay.changes > before
    assert lister.try_find(B, "d/", b"old") is None
    assert lister.try_find(B, "d/", b"new").value.version == "pending"
    assert lister.try_directory(B, "d/") is None, "not without putting them together"
    assert await names(lister) == [b"new"]
    listing = lister.try_directory(B, "d/").value
    assert [name for _, name, _ in listing.after(0)] == [b"new"]
    lister.overlay.forget(B, "d/new")
    assert lister.try_directory(B, "d/") is None
    assert lister.try_find(B, "d/", b"new") is None
    clock.now += 61
    assert lister.try_find(B, "d/", b"old") is WOULD_WAIT
    assert lister.believed_until(B, "d/") is None


async def test_a_change_outlasts_the_listing_that_was_asked_for_before_it(
    lister: Lister, store: MemoryStore, clock: Clock
):
    async def change_and_wait(call: str, bucket: Bucket | None, key: str) -> None:
        if call == "list_page":
            store.hook = None
            lister.overlay.settle(B, "d/new", ObjectInfo("d/new", 4, "9"))
            clock.now += 10

    store.hook = change_and_wait
    await names(lister)
    clock.now += 55  # the listing is still believed then
    assert await names(lister) == [b"old", b"new"]


async def test_nobody_else_looks_while_something_changes(lister: Lister):
    def taken() -> bool:
        free = lister.overlay.namespace_lock.acquire(blocking=False)
        if free:
            lister.overlay.namespace_lock.release()
        return not free

    with lister.overlay.namespace_lock:
        lister.overlay.set_pending(B, "d/new", ObjectInfo("d/new", 0, "pending"))
        assert await trio.to_thread.run_sync(taken)
    assert not await trio.to_thread.run_sync(taken)
