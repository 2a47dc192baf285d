"""A listing is complete or an error, it ends, and a name is what is really there."""

import time

import pytest
import trio
import trio.testing

from aisfs.cache.names import MetadataCache
from aisfs.core.names.listing import SHORT_PAGES_MAX, ListingBounds
from aisfs.engine import overlay
from aisfs.engine.listing import Lister
from aisfs.engine.overlay import HeldDirectories, RemovedDirectories
from aisfs.errors import OutOfSpace, ProtocolError
from aisfs.metrics import Metrics
from aisfs.model import Bucket, Keys, ObjectInfo, Page
from aisfs.stores.memory import MemoryStore
from tests.engine.test_lister import BUCKET, make
from tests.support.for_each import for_each

TTL = 60.0


def overlaid(store: MemoryStore, nursery: trio.Nursery) -> Lister:
    clock = trio.current_time
    cache = MetadataCache(attr_ttl=TTL, list_ttl=TTL, negative_ttl=5, clock=clock)
    return Lister(
        store, cache, nursery, list_ttl=TTL, change_ttl=TTL, clock=clock, metrics=Metrics()
    )


class CutStore(MemoryStore):
    """Ends its listings before a name, as a target does at a corrupt object, and keeps directories."""

    cut = ""
    kept: tuple[str, ...] = ()
    only_once = False

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        page = await super().list_page(bucket, prefix, token=token)
        kept = [
            name for name in self.kept if name.rpartition("/")[0].count("/") == prefix.count("/")
        ]
        page = Page(page.objects, sorted({*page.directories, *kept}), page.next_token)
        if not self.cut:
            return page
        objects = [info for info in page.objects if info.key < self.cut]
        directories = [name for name in page.directories if name < self.cut]
        if self.only_once:
            self.cut = ""
        return Page(objects, directories, "")


@pytest.fixture
def store() -> CutStore:
    store = CutStore(sink_in_thread=False)
    for name in ("a", "b", "c", "d/x", "e"):
        store.put(BUCKET, name, b"1")
    return store


async def test_listing_that_lacks_what_it_had_is_an_error(store, nursery, autojump_clock):
    lister = make(store, nursery)
    assert len((await lister.directory(BUCKET, "")).value) == 5
    store.cut = "b"
    await trio.sleep(TTL)
    with pytest.raises(ProtocolError, match="ErrLmetaCorrupted") as caught:
        await lister.directory(BUCKET, "")
    assert "'b', which exists" in str(caught.value)
    store.cut = ""
    assert len((await lister.directory(BUCKET, "")).value) == 5


async def test_listing_that_lacks_a_directory_it_had_is_an_error(store, nursery, autojump_clock):
    lister = make(store, nursery)
    await lister.directory(BUCKET, "")
    store.delete(BUCKET, "e")
    store.cut = "d"
    await trio.sleep(TTL)
    with pytest.raises(ProtocolError, match="below which there are objects"):
        await lister.directory(BUCKET, "")


async def test_what_is_gone_is_no_error(store, nursery, autojump_clock):
    lister = make(store, nursery)
    await lister.directory(BUCKET, "")
    for name in ("b", "c", "d/x", "e"):
        store.delete(BUCKET, name)
    await trio.sleep(TTL)
    assert list((await lister.directory(BUCKET, "")).value.names) == [b"a"]


async def test_the_corrupt_object_itself_tells(store, nursery, autojump_clock):
    lister = make(store, nursery)
    await lister.directory(BUCKET, "")
    store.cut = "c"
    for name in ("d/x", "e"):
        store.delete(BUCKET, name)

    async def corrupt(method, bucket, key):
        if (method, key) == ("head", "c"):
            raise ProtocolError("errsize (4096 != 10240)")

    store.hook = corrupt
    await trio.sleep(TTL)
    with pytest.raises(ProtocolError, match="cannot read"):
        await lister.directory(BUCKET, "")


async def test_names_that_come_while_they_are_listed_are_listed_again(
    store, nursery, autojump_clock
):
    lister = make(store, nursery)
    await lister.directory(BUCKET, "")
    store.cut, store.only_once = "c", True
    await trio.sleep(TTL)
    assert len((await lister.directory(BUCKET, "")).value) == 5


async def test_name_that_was_looked_up_is_expected(nursery):
    store = CutStore(page_size=10, sink_in_thread=False)
    for number in range(40):
        store.put(BUCKET, f"{number:02}", b"1")
    lister = make(store, nursery)
    assert await lister.find(BUCKET, "", b"39") is not None
    assert await lister.find(BUCKET, "", b"38") is not None
    store.cut = "2"
    with pytest.raises(ProtocolError, match="'38', which exists"):
        await lister.directory(BUCKET, "")


async def test_what_this_mount_wrote_is_expected(store, nursery):
    lister = overlaid(store, nursery)
    lister.overlay.settle(BUCKET, "z", store.put(BUCKET, "z", b"1"))
    store.cut = "c"
    with pytest.raises(ProtocolError, match="'z', which exists"):
        await lister.directory(BUCKET, "")


@pytest.mark.parametrize("many", [0, 20])
async def test_emptied_directory_gives_way_to_an_object(many, store, nursery):
    names = ["a", *(f"x{number}" for number in range(many))]  # `x10` begins with `x1`
    for name in names:
        store.put(BUCKET, name, b"1")
    store.kept = tuple(f"{name}/" for name in names)
    store.put(BUCKET, "e/below", b"1")
    lister = make(store, nursery)
    listing = (await lister.directory(BUCKET, "")).value
    assert all(isinstance(listing[name.encode()], ObjectInfo) for name in names)
    assert listing[b"e"] is None
    assert sum(listing.refused.values()) == 1
    assert store.calls["first_keys"] <= 2


class TwoDisks(MemoryStore):
    """Finds nothing in a directory with the name of an object, or below one, unless asked to be sure."""

    def hides(self, bucket: Bucket, prefix: str) -> bool:
        ends = (end for end, character in enumerate(prefix) if character == "/")
        keys = self._contents(bucket).objects
        return any(prefix[:end] in keys for end in ends)

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        page = await super().list_page(bucket, prefix, token=token)
        return Page([], [], "") if self.hides(bucket, prefix) else page

    async def first_keys(
        self, bucket: Bucket, prefix: str, most: int, *, sure: bool = False
    ) -> Keys:
        keys = await super().first_keys(bucket, prefix, most)
        return keys if sure or not self.hides(bucket, prefix) else Keys([], complete=True)


async def test_directory_beside_an_object_of_its_name_is_complete(nursery):
    store = TwoDisks(sink_in_thread=False)
    for name in ("p", "p/q", "p/s/deep/r", "p/s/t", "p2"):
        store.put(BUCKET, name, b"1")
    lister = overlaid(store, nursery)
    assert await lister.find(BUCKET, "", b"p") is not None
    for prefix, names in (("p/", {b"q", b"s"}), ("p/s/", {b"deep", b"t"}), ("p/s/deep/", {b"r"})):
        assert (await lister.directory(BUCKET, prefix)).value.names == names
        assert not await lister.overlay.is_empty(BUCKET, prefix)
    listing = (await lister.directory(BUCKET, "p/")).value
    assert listing[b"q"] == await store.head(BUCKET, "p/q")
    assert listing[b"s"] is None


async def test_too_large_directory_beside_an_object_is_an_error(nursery, monkeypatch):
    monkeypatch.setattr(overlay, "KEYS", 2)
    store = TwoDisks(sink_in_thread=False)
    for name in ("p", "p/1", "p/2", "p/3"):
        store.put(BUCKET, name, b"1")
    lister = make(store, nursery)
    await lister.directory(BUCKET, "")
    with pytest.raises(ProtocolError, match="rename that object"):
        await lister.directory(BUCKET, "p/")


async def test_removed_directory_stays_away_until_something_is_in_it(
    store, nursery, autojump_clock
):
    lister = overlaid(store, nursery)
    store.kept = ("d/",)
    store.delete(BUCKET, "d/x")
    lister.overlay.remove(BUCKET, "d/")
    for _ in range(3):
        assert b"d" not in (await lister.directory(BUCKET, "")).value
        await trio.sleep(2 * TTL)
    store.put(BUCKET, "d/new", b"1")
    assert b"d" in (await lister.directory(BUCKET, "")).value
    store.delete(BUCKET, "d/new")
    await trio.sleep(2 * TTL)
    assert b"d" in (await lister.directory(BUCKET, "")).value, (
        "another client's: the cluster says so"
    )


def test_memory_of_directories_is_bounded(monkeypatch):
    monkeypatch.setattr(overlay, "REMOVED_MAX", 3)
    monkeypatch.setattr(overlay, "HELD_MAX", 3)
    removed = RemovedDirectories()
    for number in range(9):
        removed.add((BUCKET, f"{number}/"), b"x")
    assert len(removed) == 3
    assert removed.within((BUCKET, "8/")) == {b"x"}
    assert removed.discard((BUCKET, "8/"), b"x")
    assert not removed.discard((BUCKET, "8/"), b"x")
    assert len(removed) == 2
    held = HeldDirectories(60.0, time.monotonic)
    assert [held.empty(BUCKET, f"{n}/") for n in range(3)] == [None] * 3
    assert held.empty(BUCKET, "3/") == (BUCKET, "0/")
    for number in range(3):
        held.check_room(BUCKET, "new/")
        held.make(BUCKET, f"m{number}/")
    with pytest.raises(OutOfSpace, match="put something into them"):
        held.check_room(BUCKET, "new/")
    held.let_go(BUCKET, "m0/")
    held.check_room(BUCKET, "new/")


@for_each("list_ttl", [1.0, 600.0])
def test_a_directory_made_here_is_soon_asked_about_however_long_listings_are_believed(list_ttl):
    now = 100.0
    held = HeldDirectories(list_ttl, lambda: now)
    held.make(BUCKET, "new/")
    assert held.is_fresh(BUCKET, "new/")
    assert not held.is_fresh(BUCKET, "other/")
    now += min(list_ttl, overlay.FRESH_SECONDS)
    assert not held.is_fresh(BUCKET, "new/")


class EndlessStore(MemoryStore):
    """Lists for ever, in one of several ways."""

    way = ""
    pages = 0

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        await trio.lowlevel.checkpoint()
        self.pages += 1
        match self.way:
            case "alternating tokens":
                return Page([], [], "ab"[self.pages % 2])
            case "empty pages":
                return Page([], [], f"{self.pages:09}")
            case "names that come again":
                return Page([ObjectInfo("a", 1)], [], f"{self.pages:09}")
        names = [f"{self.pages:06}-{number:04}" for number in range(1000)]
        return Page([ObjectInfo(name, 1) for name in names], [], names[-1])

    async def first_keys(
        self, bucket: Bucket, prefix: str, most: int, *, sure: bool = False
    ) -> Keys:
        raise AssertionError("not asked")


@pytest.mark.parametrize("way", ["alternating tokens", "empty pages", "names that come again"])
async def test_listing_without_an_end_is_an_error(way, nursery):
    store = EndlessStore(sink_in_thread=False)
    store.way = way
    with pytest.raises(ProtocolError, match="has no end"):
        await make(store, nursery).directory(BUCKET, "")
    assert store.pages <= 2 * SHORT_PAGES_MAX


async def test_ever_new_names_end_at_a_limit(nursery, monkeypatch):
    monkeypatch.setattr("aisfs.core.names.listing.ENTRIES_MAX", 20_000)
    store = EndlessStore(sink_in_thread=False)
    with pytest.raises(ProtocolError, match="more than 21000 names"):
        await make(store, nursery).directory(BUCKET, "")


def test_long_names_end_at_a_limit(monkeypatch):
    monkeypatch.setattr("aisfs.core.names.listing.NAME_BYTES_MAX", 10_000)
    bounds = ListingBounds("b/")
    bounds.check(["x" * 9_000], "x")
    with pytest.raises(ProtocolError, match="has no end"):
        bounds.check(["y" * 2_000], "y")


async def test_listing_that_nobody_waits_for_ends(nursery):
    store = EndlessStore(sink_in_thread=False)
    lister = make(store, nursery)
    with trio.move_on_after(0.05):
        await lister.directory(BUCKET, "")
    await trio.testing.wait_all_tasks_blocked()
    pages = store.pages
    await trio.sleep(0.05)
    assert store.pages == pages
