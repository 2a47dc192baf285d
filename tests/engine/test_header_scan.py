"""A scan that skips data finds what one finds that reads all, and is used where it is cheaper."""

from collections import Counter
from contextlib import asynccontextmanager
from types import SimpleNamespace

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.names.listing import Listing
from aisfs.core.policy.shard_readers import BREAK_EVEN_MIN, ScanPace
from aisfs.core.views.sample_views import LabelScan
from aisfs.core.views.spec import parse_label
from aisfs.engine.scanning import STREAMS, WALKS, StreamTurns, TarFeeder, TarSight
from aisfs.model import ObjectInfo
from aisfs.settings import Scan
from tests.core.archive.test_scanner import everything
from tests.engine.test_fetcher import BUCKET, MIB, FakeCache, fetching
from tests.support.for_each import for_each
from tests.support.tars import BLOCK, END, entry, long_name, pax

LABEL = parse_label("cls")
large = st.integers(BREAK_EVEN_MIN // 4, 20 * BREAK_EVEN_MIN)
names = st.text("ab./", min_size=1, max_size=6).map(str.encode)


@st.composite
def plain(draw):
    return entry(draw(names) + b".jpg", bytes(draw(large)))


@st.composite
def labelled(draw):
    """A label between large members, sometimes large itself."""
    text = b"%d" % draw(st.integers(0, 3))
    size = draw(st.sampled_from([0, 1, 10, 600, BREAK_EVEN_MIN, 5 * BREAK_EVEN_MIN]))
    return entry(draw(names) + b".cls", text.ljust(size))


@st.composite
def with_metadata(draw):
    lead = draw(
        st.sampled_from(
            [
                pax({b"mtime": b"1700000000.5"}),
                pax({b"path": b"long/" + b"n" * 3000}),
                long_name(b"l" * 400),
            ]
        )
    )
    return lead + draw(plain())


@st.composite
def tar_in_tar(draw):
    inner = b"".join(draw(st.lists(plain() | labelled(), max_size=4)))
    return entry(draw(names) + b".tar", inner + END)


members = st.lists(plain() | labelled() | with_metadata() | tar_in_tar(), min_size=1, max_size=12)


@st.composite
def tars(draw):
    """A tar, whole or damaged."""
    data = b"".join(draw(members)) + END
    damage = draw(st.sampled_from(["none", "none", "truncated", "flipped"]))
    if damage == "truncated":
        return data[: draw(st.integers(0, len(data)))]
    if damage == "flipped":
        at = draw(st.integers(0, len(data) // BLOCK - 1)) * BLOCK + draw(st.integers(0, 160))
        return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
    return data


def looked_at(data: bytes, nesting: int, look) -> tuple[object, object]:
    scanner = TarScanner(len(data), nesting=nesting)
    labels = LabelScan(LABEL, scanner.rows)
    look(TarSight(scanner, labels))
    index = scanner.finish()
    return everything(index), labels.finish(index).by_row()


@settings(deadline=None, max_examples=150)
@given(tars(), st.sampled_from([0, 2]))
def test_members_and_labels_are_those_of_a_scan_of_all_bytes(data, nesting):
    read = 0

    def walk(sight: TarSight) -> None:
        nonlocal read
        pace = ScanPace(len(data))
        while (needed := sight.needed) < len(data):
            piece = pace.next_piece(needed, BREAK_EVEN_MIN)
            view = memoryview(data)[piece.start : piece.stop]
            pace.observe(len(piece), sight.look(piece.start, view, BREAK_EVEN_MIN, len(piece)))
            read += len(piece)

    whole = looked_at(data, nesting, lambda sight: sight.feed(0, memoryview(data)))
    assert looked_at(data, nesting, walk) == whole
    assert read <= len(data)


def sight_of(data: bytes) -> TarSight:
    return TarSight(TarScanner(len(data)))


LARGE = b"".join(entry(b"%d.bin" % n, bytes(4 * MIB)) for n in range(8)) + END


@asynccontextmanager
async def feeding(*, limit=None, beside=None, **options):
    """A feeder of a shard with large members, with a cache of `limit` and so much data beside it."""
    cache = FakeCache() if limit is not None else None
    if cache is not None:
        cache.limit = limit
    listing = Listing({b"y": ObjectInfo("y", beside or 0)}, Counter())
    lister = SimpleNamespace(last_listing=lambda *_: listing if beside is not None else None)
    async with fetching(memory_limit=256 * MIB, cache=cache) as setup:
        shard = setup.store.put(BUCKET, "x.tar", LARGE)
        feeder = TarFeeder(setup.fetcher, lister, **options)
        yield feeder, shard, setup
        assert feeder.report.streamed + feeder.report.walked == 1


@for_each(
    "limit, beside, expected, mode, streams",
    [
        (1 << 30, None, None, Scan.AUTO, True),
        (1 << 30, 1 << 29, None, Scan.AUTO, True),
        (1 << 30, 1 << 31, None, Scan.AUTO, False),
        (1 << 30, None, 1 << 31, Scan.AUTO, False),
        (1 << 30, 1 << 31, 1 << 29, Scan.AUTO, True),
        (16 * MIB, None, None, Scan.AUTO, False),
        (None, None, None, Scan.AUTO, False),
        (None, None, None, Scan.STREAM, True),
        (1 << 30, 1 << 31, 1 << 31, Scan.STREAM, True),
        (1 << 30, None, None, Scan.HEADERS, False),
    ],
)
async def test_all_is_read_where_it_is_wanted_or_the_cache_can_keep_it(
    limit, beside, expected, mode, streams
):
    async with feeding(limit=limit, beside=beside, mode=mode) as (feeder, shard, setup):
        if expected is not None:
            feeder.expect(expected)
        await feeder.feed(BUCKET, shard, sight_of(LARGE))
        assert bool(feeder.report.streamed) is streams
        if streams:
            assert setup.store.bytes_read == shard.size
        else:
            assert setup.store.bytes_read < shard.size // 10
            assert feeder.report.walked_read == setup.store.bytes_read
        assert feeder.at_once in (STREAMS, WALKS)


async def test_many_shards_at_once_only_where_data_is_skipped():
    for limit, expected, mode, at_once in [
        (1 << 30, 1 << 20, Scan.AUTO, STREAMS),
        (1 << 30, 1 << 31, Scan.AUTO, WALKS),
        (None, 1, Scan.AUTO, WALKS),
        (1 << 30, 1 << 31, Scan.STREAM, STREAMS),
        (1 << 30, 1, Scan.HEADERS, WALKS),
    ]:
        async with feeding(limit=limit, mode=mode) as (feeder, shard, _):
            feeder.expect(expected)
            assert feeder.at_once == at_once
            await feeder.feed(BUCKET, shard, sight_of(LARGE))


SMALL_MEMBERS = b"".join(entry(b"%d.bin" % n, bytes(BREAK_EVEN_MIN // 2)) for n in range(512)) + END


async def test_a_scan_begins_as_that_of_the_shard_before_it_in_the_directory_ended():
    async with fetching(memory_limit=256 * MIB) as setup:
        feeder, requests, found = TarFeeder(setup.fetcher), [], []
        for key, data in [
            ("d/0.tar", SMALL_MEMBERS),
            ("d/1.tar", SMALL_MEMBERS),
            ("d/2.tar", LARGE),
            ("d/3.tar", LARGE),
            ("e/0.tar", SMALL_MEMBERS),
        ]:
            shard, before = setup.store.put(BUCKET, key, data), setup.store.calls["read_range"]
            scanner = TarScanner(len(data))
            await feeder.feed(BUCKET, shard, TarSight(scanner))
            requests.append(setup.store.calls["read_range"] - before)
            found.append(len(scanner.finish()))
        assert found == [512, 512, 8, 8, 512]
        first, next_one, *_, elsewhere = requests
        assert next_one < first / 2 < elsewhere
        assert setup.store.bytes_read < 3 * len(SMALL_MEMBERS) + 12 * MIB, "of larger members"


# Streams in turns


@for_each(
    "sizes, most",
    [([8 << 20] * 20, STREAMS), ([55 << 20] * 6, 2), ([1 << 30] * 3, 1), ([0] * 9, STREAMS)],
)
async def test_shards_are_streamed_in_their_order_and_few_bytes_of_them_at_once(sizes, most):
    turns, began, under_way, peaks = StreamTurns(), [], set(), []

    async def stream(number: int) -> None:
        async with turns.take(sizes[number]):
            began.append(number)
            under_way.add(number)
            peaks.append(len(under_way))
            await trio.testing.wait_all_tasks_blocked()
            under_way.discard(number)

    async with trio.open_nursery() as nursery:
        for number in range(len(sizes)):
            nursery.start_soon(stream, number)
            await trio.lowlevel.checkpoint()
    assert began == list(range(len(sizes)))
    assert max(peaks) == most


async def test_a_scan_that_is_given_up_leaves_its_turn_to_others():
    turns = StreamTurns()
    with trio.fail_after(5):
        async with turns.take(1 << 30), trio.open_nursery() as nursery:

            async def wait() -> None:
                async with turns.take(1 << 30):
                    raise AssertionError("there is no room")

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        async with turns.take(1 << 30):
            pass
