"""Pushing members ahead of readers: what holds whatever is read, and how many READs are left."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.core.index.builder import MemberIndexBuilder
from aisfs.core.index.member_index import SPARSE, MemberKind
from aisfs.core.policy.push import (
    BATCH_BYTES,
    BATCH_ROWS,
    RANDOM_READS,
    WINDOW_BYTES,
    WINDOW_MAX,
    PushableRows,
    PushCounts,
    ShardPush,
    footprint,
)
from tests.support.for_each import for_each

KIB = 1 << 10
MIB = 1 << 20
ROOM = 1 << 30


def shard(sizes, *, parts=1, odd=()):
    """An index of members with these sizes, so many in each sample; `odd` rows are no plain files."""
    builder = MemberIndexBuilder(sum(512 + size + 511 for size in sizes) + 1024)
    offset = 0
    for row, size in enumerate(sizes):
        name = f"{row // parts:07}.{row % parts}".encode()
        flags = odd.get(row, MemberKind.FILE) if odd else MemberKind.FILE
        builder.add(name, offset + 512, 1, size, 0, flags)
        offset += 512 + -(-size // 512) * 512
    return builder.build()


class Kernel:
    """A page cache without limit that is told of pushes, and what is asked when it has not got a file.

    Every `pace` READs and reads of the page cache the pusher stores one batch of rows.
    """

    def __init__(self, index, *, room=ROOM, pace=1, listed=True):
        self.index = index
        self.counts = PushCounts()
        self.push = ShardPush(index, self.counts)
        self.cached = set()
        self.requests = []
        self.pushed = []
        self.room = room
        self.pace = pace
        self.steps = 0
        if listed:
            self.push.listed(range(len(index)))
            self.work()

    def read(self, row):
        if row not in self.cached:
            self.requests.append(row)
            self.push.read(row)
            self.cached.add(row)
        self.steps += 1
        if self.steps % self.pace == 0:
            self.work()

    def work(self):
        batch = list(self.push.next(self.room))
        assert len(batch) <= max(BATCH_ROWS, WINDOW_MAX)
        assert batch == sorted(set(batch))
        self.pushed.append(batch)
        self.cached.update(batch)
        self.push.settle(len(batch))

    def listed_long_ago(self):
        """Make all inodes known, and nothing pushed for it."""
        self.push.listed(range(len(self.index)))
        self.push.abandon()

    def drop_caches(self):
        self.cached.clear()


def test_what_a_window_leaves_out_is_told_once_and_only_until_its_reader_comes():
    kernel = Kernel(shard([50_000] * 300), listed=False)
    kernel.push.listed(range(300), in_memory=True)
    told = []
    while kernel.push.pending:
        kernel.work()
        told.append(kernel.push.left_out())
    assert told[-1] == sorted(set(range(300)) - kernel.cached)
    assert not any(told[:-1])
    for row in range(300):
        kernel.read(row)
        assert kernel.push.left_out() == []
    assert kernel.requests == told[-1]


def test_reader_in_order_asks_for_one_member_in_hundreds():
    kernel = Kernel(shard([1000] * 20_000), pace=4)
    for row in range(20_000):
        kernel.read(row)
    assert len(kernel.requests) < 200
    assert kernel.counts.used > 19_000
    assert kernel.counts.wasted < 100


def test_what_was_listed_is_pushed_to_its_end_even_if_its_reader_comes_first():
    kernel = Kernel(shard([1000] * 5000), listed=False)
    kernel.push.listed(range(5000), in_memory=True)
    for row in range(100):
        kernel.read(row)
    assert kernel.requests == [0]
    assert len(kernel.cached) == 4999, "all but the one in the middle"


def test_window_starts_small_and_doubles_while_the_reader_follows():
    kernel = Kernel(shard([1000] * 20_000), listed=False)
    kernel.listed_long_ago()
    for row in range(20_000):
        kernel.read(row)
    first = [batch for batch in kernel.pushed if batch][:3]
    assert [len(batch) for batch in first] == [7, 12, 24]  # one row of each window is left out
    between = [b - a for a, b in zip(kernel.requests, kernel.requests[1:], strict=False)]
    assert max(between) <= WINDOW_MAX // 2 + 1
    assert min(between[-5:-1]) >= WINDOW_MAX // 2


@for_each("size", [110 * KIB, 3 * MIB])
def test_large_members_are_pushed_by_bytes(size):
    kernel = Kernel(shard([size] * 400))
    ahead = []
    for row in range(400):
        kernel.read(row)
        ahead.append(sum(footprint(size) for other in kernel.cached if other > row))
    assert max(ahead) <= WINDOW_BYTES
    assert max(ahead) > WINDOW_BYTES // 3
    assert len(kernel.requests) < 400 * footprint(size) * 3 / WINDOW_BYTES + 20


def test_four_readers_with_a_range_each_are_told_apart():
    kernel = Kernel(shard([1000] * 20_000), pace=2)
    for step in range(5000):
        for reader in range(4):
            kernel.read(reader * 5000 + step)
    assert len(kernel.requests) < 600
    assert kernel.counts.wasted < 200


@for_each("members", [2000, 20_000])
def test_four_readers_that_take_turns_are_one_stream(members):
    dice = random.Random(4)
    kernel = Kernel(shard([1000] * members), pace=2)
    for step in range(0, members, 4):
        for row in dice.sample(range(step, step + 4), 4):  # they overtake each other
            kernel.read(row)
    assert len(kernel.requests) < members / 20


def test_samples_read_in_order_are_one_stream():
    kernel = Kernel(shard([1000] * 6000, parts=3))
    for sample in range(2000):
        for part in (2, 0, 1):
            kernel.read(3 * sample + part)
    assert len(kernel.requests) < 300


def test_member_read_at_random_brings_the_rest_of_its_sample():
    kernel = Kernel(shard([1000] * 3000, parts=3), listed=False)
    kernel.listed_long_ago()
    kernel.read(1000)  # in the middle of 999, 1000, 1001
    kernel.work()
    assert sorted(kernel.cached) == [999, 1000, 1001]
    assert not kernel.push.pending


def test_shard_read_at_random_is_pushed_whole_after_some_dozens():
    kernel = Kernel(shard([1000] * 20_000), pace=1)
    order = list(range(20_000))
    random.Random(1).shuffle(order)
    for row in order:
        kernel.read(row)
    assert RANDOM_READS <= len(kernel.requests) < 1000
    assert len(kernel.cached) == 20_000


def test_shard_beyond_the_room_is_not_pushed_whole():
    kernel = Kernel(shard([1000] * 20_000), room=4 * MIB)
    order = list(range(20_000))
    random.Random(1).shuffle(order)
    for row in order:
        kernel.read(row)
    assert len(kernel.requests) > 15_000


def test_pushing_a_whole_shard_waits_for_its_bytes():
    kernel = Kernel(shard([1000] * 20_000))
    rows = random.Random(1).sample(range(20_000), RANDOM_READS + 5)
    for row in rows:
        kernel.push.read(row)
    while kernel.push.pending:
        batch = kernel.push.next(ROOM)
        kernel.push.settle(0, missing=True)
        assert len(batch) <= BATCH_ROWS
    assert kernel.counts.pushed == 7  # the first window after the listing
    assert kernel.push.stalled
    assert kernel.push.landed()
    while kernel.push.pending:
        kernel.work()
    assert kernel.counts.pushed > 19_900


def test_names_that_were_never_listed_are_not_pushed():
    kernel = Kernel(shard([1000] * 2000), listed=False)
    for row in range(2000):
        kernel.read(row)
    assert len(kernel.requests) == 2000
    assert kernel.counts.pushed == 0


def test_rows_that_are_no_plain_files_with_content_are_not_pushed():
    odd = {3: MemberKind.DIRECTORY, 4: SPARSE}
    sizes = [1000] * 100
    sizes[5] = 0
    sizes[6] = WINDOW_BYTES + 1
    kernel = Kernel(shard(sizes, odd=odd))
    for row in range(100):
        if row not in (3, 5):
            kernel.read(row)
    assert not {3, 4, 5, 6} & {row for batch in kernel.pushed for row in batch}


def test_second_epoch_asks_for_nothing_and_pushes_nothing():
    kernel = Kernel(shard([1000] * 5000))
    for row in range(5000):
        kernel.read(row)
    requests, pushed = len(kernel.requests), kernel.counts.pushed
    for row in range(5000):
        kernel.read(row)
    assert (len(kernel.requests), kernel.counts.pushed) == (requests, pushed)


def test_everything_is_pushed_again_when_the_kernel_dropped_its_pages():
    kernel = Kernel(shard([1000] * 1500))
    for _ in range(100):  # more epochs than there are generations
        kernel.requests.clear()
        for row in range(1500):
            kernel.read(row)
        assert len(kernel.requests) < 100
        kernel.drop_caches()


@for_each("order", ["in order", "at random"])
def test_single_pages_that_go_are_not_taken_for_all(order):
    kernel = Kernel(shard([1000] * 20_000))
    rows = list(range(20_000))
    for row in rows:
        kernel.read(row)
    if order == "at random":
        random.Random(5).shuffle(rows)
    pushed = kernel.counts.pushed
    kernel.cached -= set(rows[::1000])
    for row in rows:
        kernel.read(row)
    assert kernel.counts.pushed == pushed


def test_inodes_the_kernel_forgot_are_not_pushed_until_they_are_listed_again():
    kernel = Kernel(shard([1000] * 1000), listed=False)
    kernel.listed_long_ago()
    row = 0
    while row < 500:
        kernel.push.read(row)
        row += 1
        batch = kernel.push.next(ROOM)
        kernel.push.settle(len(batch), batch)
    assert kernel.counts.pushed == 0
    assert kernel.push.next(ROOM) == []
    kernel.push.settle(0)
    kernel.push.listed(range(1000))
    for row in range(500, 1000):
        kernel.read(row)
    assert kernel.counts.pushed > 400


def test_pushing_rests_when_nothing_of_it_stays():
    kernel = Kernel(shard([1000] * 20_000))
    for row in range(20_000):
        kernel.drop_caches()  # the kernel has no memory left
        kernel.read(row)
    assert kernel.counts.pushed < 2000


def test_stream_waits_for_bytes_and_goes_on_when_they_land():
    kernel = Kernel(shard([1000] * 1000), listed=False)
    kernel.listed_long_ago()
    kernel.push.read(0)
    assert kernel.push.read(1)
    assert kernel.push.next(ROOM) == [2, 3, 4, 5, 7, 8, 9]
    kernel.push.settle(2, missing=True)
    assert not kernel.push.pending
    assert kernel.push.landed()
    assert kernel.push.next(ROOM)[0] == 4
    kernel.push.settle(1)
    assert kernel.push.next(ROOM)[0] == 5


def test_rows_the_kernel_does_not_know_are_not_tried_again():
    kernel = Kernel(shard([1000] * 100), listed=False)
    kernel.listed_long_ago()
    kernel.push.read(0)
    kernel.push.read(1)
    batch = kernel.push.next(ROOM)
    kernel.push.settle(len(batch), batch)
    assert kernel.counts.pushed == 0
    assert set(batch).isdisjoint(kernel.push.next(ROOM))


events = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 299)),
        st.tuples(st.just("run"), st.integers(0, 299)),
        st.tuples(st.just("push"), st.integers(0, 9)),
        st.tuples(st.just("list"), st.integers(0, 299)),
        st.tuples(st.just("landed"), st.just(0)),
        st.tuples(st.just("abandon"), st.just(0)),
    ),
    max_size=120,
)


@settings(max_examples=150)
@given(
    events,
    st.sampled_from([1, 3]),
    st.sampled_from([0, 64 * KIB, ROOM]),
    st.lists(st.sampled_from([0, 1, 1000, 5000, 110 * KIB, 3 * MIB, 9 * MIB]), min_size=1),
    st.data(),
)
def test_nothing_is_pushed_twice_or_beyond_what_is_allowed(events, parts, room, sizes, data):
    index = shard([sizes[row % len(sizes)] for row in range(300)], parts=parts)
    counts = PushCounts()
    push = ShardPush(index, counts)
    known, settled = set(), set()
    stored = 0
    for kind, value in events:
        match kind:
            case "read" | "run":
                for row in range(value, min(value + (20 if kind == "run" else 1), 300)):
                    push.read(row)
                    known.add(row)
                    if row in settled:
                        settled.clear()  # it was dropped, and the others of that age with it
                    settled.add(row)
            case "push":
                batch = push.next(room)
                assert batch == sorted(set(batch))
                assert set(batch) <= known
                assert not set(batch) & settled
                assert all(0 < index.size(row) <= WINDOW_BYTES for row in batch)
                cost = sum(footprint(index.size(row)) for row in batch)
                assert cost <= room
                assert cost <= BATCH_BYTES + WINDOW_BYTES
                done = min(value, len(batch))
                unknown = set(batch[:done][:1]) if value == 3 else set()
                push.settle(done, unknown, missing=value % 2 == 0)
                known -= unknown
                settled.update(set(batch[:done]) - unknown)
                stored += len(set(batch[:done]) - unknown)
            case "list":
                rows = range(value, min(value + 50, 300))
                push.listed(rows if value % 2 else list(rows))
                known.update(rows)
            case "landed":
                push.landed()
            case "abandon":
                push.abandon()
        assert push.ahead <= 8 * (WINDOW_BYTES + BATCH_BYTES)
    assert counts.pushed == stored
    assert counts.used + counts.wasted <= stored


@pytest.mark.parametrize("reading", ["in order", "at random", "interleaved"])
def test_work_grows_with_the_reads_not_with_the_shard(reading, monkeypatch):
    """Count the rows looked at: each READ and each row pushed pay for a bounded number."""
    looked = 0
    wanted, all_small = PushableRows.wanted, PushableRows.all_small

    def counted(self, row):
        nonlocal looked
        looked += 1
        return wanted(self, row)

    def counted_at_once(self, start, stop):
        nonlocal looked
        looked += stop - start
        return all_small(self, start, stop)

    monkeypatch.setattr(PushableRows, "wanted", counted)
    monkeypatch.setattr(PushableRows, "all_small", counted_at_once)
    kernel = Kernel(shard([1000] * 20_000))
    order = list(range(20_000))
    if reading == "at random":
        random.Random(2).shuffle(order)
    if reading == "interleaved":
        order = [part * 2500 + step for step in range(2500) for part in range(8)]
    for row in order:
        kernel.read(row)
    assert looked <= 2 * kernel.counts.pushed + 20 * len(kernel.requests)
