"""What readers get of a directory before its listing is complete."""

import random
from collections import Counter
from contextlib import suppress

import pytest
import trio

from aisfs.cache.names import MetadataCache
from aisfs.core.names.listing import ArrivingListing, Listing
from aisfs.engine.fetcher import Hooks
from aisfs.engine.listing import (
    PAGES_AHEAD,
    SINGLE_LOOKUPS,
    UNASKED_SECONDS,
    WAITING_MAX,
    Arriving,
    Lister,
)
from aisfs.errors import Unavailable
from aisfs.metrics import Metrics
from aisfs.model import Bucket
from aisfs.stores.memory import MemoryStore

BUCKET = Bucket("pets")


async def settled(steps=500):
    """Let all that needs no other thread go on as far as it does."""
    for _ in range(steps):
        await trio.lowlevel.checkpoint()


class Pages(MemoryStore):
    """Gives pages only as far as it is let."""

    def __init__(self, page_size):
        super().__init__(page_size=page_size, sink_in_thread=False)
        self.add_bucket(BUCKET)
        self.let = trio.Semaphore(0)
        self.error = None

    async def list_page(self, bucket, prefix, *, token=""):
        await self.let.acquire()
        if self.error is not None:
            raise self.error
        return await super().list_page(bucket, prefix, token=token)

    def open(self):
        """Give all pages from now on."""
        for _ in range(10_000):
            self.let.release()

    async def give(self, pages=1):
        for _ in range(pages):
            self.let.release()
            await settled(50)


def make(store, nursery, *, list_ttl=60.0, clock=trio.current_time, hooks=None):
    cache = MetadataCache(attr_ttl=60.0, list_ttl=list_ttl, negative_ttl=5.0, clock=clock)
    return Lister(
        store, cache, nursery, list_ttl=list_ttl, clock=clock, metrics=Metrics(), hooks=hooks
    )  # fmt: skip


class Reader:
    """Reads a directory once, as the kernel does: it only keeps an offset."""

    def __init__(self, lister, prefix=""):
        self.lister, self.prefix = lister, prefix
        self.listing = None
        self.offset = 0
        self.names = []
        self.offsets = {}

    async def begin(self):
        self.listing = await self.lister.first_names(BUCKET, self.prefix)
        return self

    def take(self, most=None):
        """Read what there is, or so much of it."""
        arriving = isinstance(self.listing, Arriving)
        dated = self.listing.read(self.offset) if arriving else self.listing
        for offset, name, listed in dated.value.after(self.offset):
            if most is not None and most == 0:
                break
            most = most - 1 if most is not None else None
            assert offset > self.offset
            assert dated.value[name] == listed
            self.offset = offset
            self.names.append(name)
            self.offsets[name] = offset
        return self

    async def rest(self):
        while isinstance(self.listing, Arriving):
            self.take()
            if not await self.listing.more(self.offset):
                whole = self.listing.whole
                self.listing = whole or await self.lister.directory(BUCKET, self.prefix)
        return self.take()


@pytest.fixture
def store():
    return Pages(page_size=10)


def fill(store, count=45):
    for n in range(count):
        store.put(BUCKET, f"{n:03}", b"x")
    return [b"%03d" % n for n in range(count)]


async def begun(store, nursery, reader):
    """Have a reader begin with the first page."""
    nursery.start_soon(reader.begin)
    await store.give()
    assert isinstance(reader.listing, Arriving)
    return reader


async def test_names_of_a_page_come_before_the_next(store, nursery):
    names = fill(store)
    reader = await begun(store, nursery, Reader(make(store, nursery)))
    assert reader.take().names == names[:10]
    await store.give()
    assert reader.take().names == names[:20]
    assert isinstance(reader.listing, Arriving)
    await store.give(3)
    assert (await reader.rest()).names == names
    assert store.calls == {"list_page": 5}


async def test_a_small_directory_is_complete_at_once(store, nursery):
    names = fill(store, 7)
    reader = Reader(make(store, nursery))
    store.let.release()
    await reader.begin()
    assert not isinstance(reader.listing, Arriving)
    assert reader.take().names == names
    assert not reader.lister._arriving


async def test_a_page_that_fails_is_an_error_behind_what_was_given(store, nursery):
    names = fill(store)
    lister = make(store, nursery)
    reader = await begun(store, nursery, Reader(lister))
    store.error = Unavailable("injected")
    await store.give()
    with pytest.raises(Unavailable):
        await reader.rest()
    assert reader.names == names[:10]
    store.error = None
    store.open()
    assert (await (await Reader(lister).begin()).rest()).names == names


async def test_offsets_outlive_a_listing_that_failed(store, nursery):
    names = fill(store)
    lister = make(store, nursery)
    reader = await begun(store, nursery, Reader(lister))
    await store.give()
    reader.take()
    store.error = Unavailable("injected")
    await store.give()
    with pytest.raises(Unavailable):
        await reader.rest()
    store.error = None
    store.delete(BUCKET, "003")
    store.put(BUCKET, "0005", b"x")
    store.open()
    reader.listing = await lister.first_names(BUCKET, "")
    await reader.rest()
    assert len(set(reader.names)) == len(reader.names)
    assert sorted(reader.names) == sorted([*names, b"0005"])


async def test_readers_share_pages_and_one_that_leaves_ends_nothing(store, nursery):
    names = fill(store)
    lister = make(store, nursery)
    leaving, staying = Reader(lister), Reader(lister)
    async with trio.open_nursery() as own:
        await begun(store, own, leaving)
        await staying.begin()
        own.start_soon(leaving.rest)
        nursery.start_soon(staying.rest)
        await store.give()
        own.cancel_scope.cancel()
    await store.give(3)
    assert staying.names == names
    assert store.calls["list_page"] == 5


async def test_it_goes_on_a_few_pages_ahead_of_its_reader(store, nursery):
    names = fill(store, 95)
    lister = make(store, nursery)
    slow, quick = await begun(store, nursery, Reader(lister)), Reader(lister)
    store.open()
    await settled()
    assert store.calls["list_page"] == PAGES_AHEAD + 1
    await quick.begin()
    assert slow.take(5).names == quick.take(10).names[:5]
    quick.take(0)  # asks for what is behind what it has
    await settled()
    assert store.calls["list_page"] == PAGES_AHEAD + 2
    slow.take(3)
    await settled()
    assert store.calls["list_page"] == PAGES_AHEAD + 2, "the furthest reader counts"
    assert (await quick.rest()).names == (await slow.rest()).names == names
    assert store.calls["list_page"] == 10


async def test_a_reader_in_another_thread_is_heard(store, nursery):
    names = fill(store, 95)
    reader = await begun(store, nursery, Reader(make(store, nursery)))
    store.open()
    await settled()
    reader.take()
    await trio.to_thread.run_sync(reader.take, 0)
    await settled()
    assert store.calls["list_page"] == 2 * PAGES_AHEAD + 1
    assert (await reader.rest()).names == names


async def test_who_wants_all_waits_for_no_reader(store, nursery):
    names = fill(store, 95)
    lister = make(store, nursery)
    reader = await begun(store, nursery, Reader(lister))
    store.open()
    await settled()
    whole = await lister.directory(BUCKET, "")
    assert [name for _, name, _ in whole.value.after(0)] == names
    assert store.calls["list_page"] == 10
    assert (await reader.rest()).names == names
    assert store.calls["list_page"] == 10


async def test_who_waits_for_the_first_page_with_others_waits(store, nursery, autojump_clock):
    """The clock only goes on if nobody asks all the time."""
    names = fill(store, 30)
    lister = make(store, nursery)
    reader = Reader(lister)
    nursery.start_soon(reader.begin)
    await settled()
    nursery.start_soon(lister.directory, BUCKET, "")
    with trio.fail_after(10):
        await trio.sleep(1)
    store.open()
    await settled()
    assert (await reader.rest()).names == names


async def test_a_listing_that_nobody_reads_ends(store, nursery, autojump_clock):
    names = fill(store, 95)
    lister = make(store, nursery)
    reader = await begun(store, nursery, Reader(lister))
    reader.take()
    store.open()
    await trio.sleep(UNASKED_SECONDS - 1)
    assert lister._arriving
    await trio.sleep(2)
    assert not lister._arriving
    store.delete(BUCKET, "003")
    store.put(BUCKET, "0005", b"x")
    await reader.rest()  # it comes all the same
    assert sorted(reader.names) == sorted([*names, b"0005"])


async def test_few_listings_wait_for_readers(store, nursery):
    lister, readers = make(store, nursery), []
    store.open()
    for n in range(WAITING_MAX + 3):
        for key in range(95):
            store.put(BUCKET, f"{n:02}/{key:02}", b"x")
        readers.append(await Reader(lister, f"{n:02}/").begin())
        await settled()
    assert len(lister._arriving) <= WAITING_MAX
    for reader in readers:
        assert (await reader.rest()).names == [b"%02d" % key for key in range(95)]


async def test_names_are_believed_no_longer_than_others(store, nursery):
    """What was given is believed from the first page on, and the time in which a listing waited counts."""
    now = [0.0]
    fill(store, 95)
    lister = make(store, nursery, clock=lambda: now[0])
    reader = await begun(store, nursery, Reader(lister))
    assert reader.listing.read(0).expires == 60
    store.open()
    await settled()
    now[0] = 50
    await reader.rest()
    assert lister.cache.last_listing((BUCKET, "")).expires == 60
    assert lister.cache.listing((BUCKET, ""))
    now[0] = 61
    assert not lister.cache.listing((BUCKET, ""))
    await (await Reader(lister).begin()).rest()
    assert lister.cache.listing((BUCKET, "")).expires == 121


async def test_what_turned_out_incomplete_believes_nothing(store, nursery):
    fill(store)
    lister = make(store, nursery, clock=lambda: 0.0)
    await begun(store, nursery, Reader(lister))
    store.error = Unavailable("injected")
    await store.give()
    assert lister.cache.last_listing((BUCKET, "")) is not None
    assert lister.cache.listing((BUCKET, "")) is None


async def test_lookups_do_not_wait_for_the_end(store, nursery):
    fill(store)
    lister = make(store, nursery)
    await begun(store, nursery, Reader(lister))
    store.let.release(), store.let.release()
    for n in range(SINGLE_LOOKUPS):
        assert (await lister.find(BUCKET, "", b"%03d" % n)).value.size == 1


async def test_directories_come_with_the_end(store, nursery):
    names = fill(store, 30)
    for n in range(0, 30, 7):
        store.put(BUCKET, f"{n:03}-/below", b"x")
    store.put(BUCKET, "021/below", b"x")  # a file and a directory, on one page
    lister = make(store, nursery)
    reader = await begun(store, nursery, Reader(lister))
    store.open()
    await settled()
    assert all(listed for _, _, listed in reader.listing.read(0).value.after(0))
    assert b"020" not in reader.take().names, "nothing of that page is given"
    await reader.rest()
    assert len(set(reader.names)) == len(reader.names)
    assert set(reader.names) == {*names, *(b"%03d-" % n for n in range(0, 30, 7))}
    assert reader.listing.value[b"021"] is None


async def test_a_file_that_turns_out_to_be_a_directory_is_told(store, nursery):
    told = []
    hooks = Hooks(listing_changed=lambda bucket, prefix, names: told.append(names))
    fill(store, 30)
    for n in range(20):
        store.put(BUCKET, f"001-{n:02}", b"x")
    store.put(BUCKET, "001/below", b"x")  # two pages behind the file
    reader = await begun(store, nursery, Reader(make(store, nursery, hooks=hooks)))
    given = reader.listing
    assert given.listing[b"001"] is not None
    store.open()
    await reader.rest()
    assert reader.listing.value[b"001"] is None
    assert told == [[b"001"]]
    assert reader.listing.expires != given.expires, "the kernel must not take one for the other"


@pytest.mark.parametrize("list_ttl", [60, 0])
async def test_nobody_joins_a_listing_that_has_waited_too_long(store, nursery, list_ttl):
    now = [0.0]
    names = fill(store, 95)
    lister = make(store, nursery, clock=lambda: now[0], list_ttl=list_ttl)
    old = await begun(store, nursery, Reader(lister))
    old.take()
    store.open()
    await settled()
    now[0] = 61
    store.put(BUCKET, "0005", b"x")
    new = await (await Reader(lister).begin()).rest()
    assert set(new.names) == {*names, b"0005"}
    await old.rest()
    assert len(set(old.names)) == len(old.names)
    assert set(old.names) >= set(names)


async def test_lookups_do_not_believe_a_listing_that_has_waited_too_long(store, nursery):
    now = [0.0]
    fill(store, 95)
    lister = make(store, nursery, clock=lambda: now[0])
    await begun(store, nursery, Reader(lister))
    store.open()
    await settled()
    now[0] = 61
    store.put(BUCKET, "0005", b"x")
    for n in range(SINGLE_LOOKUPS + 1):
        assert await lister.find(BUCKET, "", b"%03d" % n)
    assert await lister.find(BUCKET, "", b"0005")


@pytest.mark.parametrize("how", ["new", "changed"])
async def test_what_was_found_meanwhile_does_not_disappear(store, nursery, how):
    names = fill(store, 95)
    lister = make(store, nursery)
    reader = await begun(store, nursery, Reader(lister))
    store.open()
    assert (await lister.find(BUCKET, "", b"003")).value.size == 1
    name = b"0005" if how == "new" else b"003"
    store.put(BUCKET, name.decode(), b"xyz")
    if how == "changed":
        lister.drop(BUCKET, "", name)
    assert (await lister.find(BUCKET, "", name)).value.size == 3
    await reader.rest()
    assert set(reader.names) == set(names)
    assert reader.listing.expires > 0, "a directory's time is made of it"
    assert (await lister.find(BUCKET, "", name)).value.size == 3


async def test_a_refresh_of_what_was_given_in_part_makes_no_news(store, nursery):
    told = []
    hooks = Hooks(listing_changed=lambda bucket, prefix, names: told.append(names))
    fill(store, 95)
    lister = make(store, nursery, hooks=hooks)
    (await begun(store, nursery, Reader(lister))).take()
    await lister.refresh(None)
    store.delete(BUCKET, "002")
    store.open()
    await (await Reader(lister).begin()).rest()
    assert told == [[b"002"]]


async def test_a_refresh_meanwhile(store, nursery):
    names = fill(store)
    lister = make(store, nursery)
    old = await begun(store, nursery, Reader(lister))
    old.take()
    await lister.refresh(None)
    store.delete(BUCKET, "002")
    store.put(BUCKET, "0015", b"x")
    store.open()
    new = await (await Reader(lister).begin()).rest()
    assert sorted(new.names) == sorted({*names, b"0015"} - {b"002"})
    old.listing = new.listing  # as READDIR does, by offset alone
    await old.rest()
    assert len(set(old.names)) == len(old.names)
    assert {*old.names} >= {*names} - {b"002"}


async def model(seed):  # noqa: C901, PLR0915 - one story
    """Readers begin, read on, leave; pages come, fail; names come and go: each reading is a set of
    names that has all that were there all the time, none twice, and none that never was.

    Offsets are all that a reader knows: it goes on in whatever listing there is.
    """
    chance = random.Random(seed)
    store = Pages(chance.choice([1, 2, 3, 7, 20]))
    alphabet = ["a", "a-", "a.tar", "a0", "b", "ab", "\udcff"]

    def any_key():
        name = chance.choice(alphabet) + str(chance.randrange(15))
        return name + "/x" if chance.random() < 0.3 else name

    there = {any_key() for _ in range(chance.randrange(60))}
    for key in there:
        store.put(BUCKET, key, b"x")

    def name_of(key):
        return key.partition("/")[0].encode("utf-8", "surrogateescape")

    clock = [0.0]
    fixed = {key for key in there if chance.random() < 0.7}
    always = {name_of(key) for key in fixed}
    async with trio.open_nursery() as nursery:
        lister = make(store, nursery, list_ttl=chance.choice([0.0, 60.0]), clock=lambda: clock[0])
        ever, readers = {name_of(key) for key in there}, []

        async def begin():
            with suppress(Unavailable):
                readers.append(await Reader(lister).begin())

        async def look_up(name):
            with suppress(Unavailable):
                await lister.find(BUCKET, "", name)

        for _ in range(60):
            match chance.randrange(11):
                case 0 | 1:
                    nursery.start_soon(begin)
                case 2 | 3 | 4:
                    await store.give()
                case 5 if readers:
                    chance.choice(readers).take(chance.randrange(20))
                case 6:
                    store.error = Unavailable("injected")
                    await store.give()
                    store.error = None
                case 7:
                    key = any_key()
                    if key in fixed:
                        continue
                    ever.add(name_of(key))
                    if key in there:
                        store.delete(BUCKET, key)
                        there.discard(key)
                    else:
                        store.put(BUCKET, key, b"x")
                        there.add(key)
                case 8:
                    clock[0] += chance.choice([1.0, 61.0])
                case 9:
                    nursery.start_soon(look_up, name_of(any_key()))
                case 10:  # as when nobody asks for it
                    lister._end((BUCKET, ""), lister._arriving.get((BUCKET, "")))
        store.open()
        for reader in readers:
            clock[0] += chance.choice([1.0, 61.0])
            await reader.begin()
            await reader.rest()
            assert len(set(reader.names)) == len(reader.names), seed
            assert always <= set(reader.names), seed
            assert set(reader.names) <= ever, seed
        final = await (await Reader(lister).begin()).rest()
        assert set(final.names) >= always
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seeds", [range(at, at + 40) for at in range(0, 200, 40)], ids=str)
async def test_readings_equal_a_model(seeds):
    for seed in seeds:
        await model(seed)


@pytest.mark.parametrize("seed", range(40))
def test_offsets_keep_the_order_before(seed):
    chance = random.Random(seed)
    before = [b"%02d" % n for n in range(chance.randrange(20))]
    offsets = [3 * n + 1 for n in range(len(before))]
    new = before + [b"%02d" % n for n in range(50, 50 + chance.randrange(20))]
    gone = chance.randrange(len(new)) if chance.random() < 0.5 and new else len(new)
    new[gone : gone + 1] = []
    listing = ArrivingListing(dict.fromkeys(new), Listing.of_order(before, offsets))
    at = 0
    while at < len(new):
        size = chance.randrange(1, 6)
        listing.grow(new[at : at + size], fit=True)
        at += size
    shown = [(name, offset) for offset, name, _ in listing.after(0)]
    whole = Listing(dict.fromkeys(new), Counter(), Listing.of_order(before, offsets))
    assert shown == [(name, offset) for offset, name, _ in whole.after(0)][: len(shown)]
    if new[: len(before)] == before:
        assert len(shown) == len(new)
