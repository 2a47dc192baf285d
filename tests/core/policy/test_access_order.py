"""Order of members and of shards: readers as they are, and readers that are not in order."""

import random

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.policy.shard_readers import Access, MemberOrder, ShardQueue
from tests.support.for_each import for_each

ROWS = [200, 1000, 10_000]


def overtaking(order, by, seed=0):
    """The same order, but each item up to `by` places late."""
    shuffle = random.Random(seed)
    places = [(at + shuffle.uniform(0, by), item) for at, item in enumerate(order)]
    return [item for _, item in sorted(places)]


def at_random(count, length, seed=0):
    shuffle = random.Random(seed)
    return [shuffle.randrange(count) for _ in range(length)]


def observed(rows, order):
    members = MemberOrder(rows)
    return [members.observe(row) for row in order]


def test_order_shows_after_four_members():
    assert observed(1000, range(5)) == [Access.UNDECIDED] * 3 + [Access.IN_ORDER] * 2


@for_each("rows", ROWS)
@for_each(
    "order",
    [
        lambda rows: range(rows),
        lambda rows: range(0, rows, 5),
        lambda rows: [row for row in range(rows) for _ in range(3)],
        lambda rows: [row ^ 1 for row in range(rows)],
        lambda rows: overtaking(range(rows), 8),
        lambda rows: overtaking(range(rows), 32),
        lambda rows: [part * (rows // 4) + at for at in range(rows // 4) for part in range(4)],
        lambda rows: [part * (rows // 16) + at for at in range(rows // 16) for part in range(16)],
        lambda rows: [
            row
            for group in range(0, rows, 256)
            for at in range(32)
            for worker in range(8)
            if (row := group + worker * 32 + at) < rows
        ],
    ],
)  # fmt: skip
def test_readers_in_order_are_recognised(rows, order):
    seen = observed(rows, order(rows))
    assert Access.IN_ORDER in seen[:60]
    assert seen[60:].count(Access.IN_ORDER) >= 0.85 * len(seen[60:])


@for_each("rows", [60, *ROWS])
@for_each("seed", range(5))
def test_random_readers_are_recognised(rows, seed):
    seen = observed(rows, at_random(rows, 1000, seed))
    assert Access.IN_ORDER not in seen
    assert seen[50:].count(Access.RANDOM) >= 0.97 * len(seen[50:])


def test_decision_follows_a_change_of_habit():
    members = MemberOrder(5000)
    for row in at_random(5000, 100):
        members.observe(row)
    assert members.access is Access.RANDOM
    for row in range(20):
        members.observe(row)
    assert members.access is Access.IN_ORDER
    for row in at_random(5000, 20, seed=1):
        members.observe(row)
    assert members.access is Access.RANDOM


@given(st.integers(0, 50), st.lists(st.integers(0, 60)))
def test_any_rows_are_taken(rows, order):
    observed(rows, order)


def shards(count):
    return [f"train-{number:05d}.tar".encode() for number in range(count)]


def prefetched(order, count, queue=None, size=1):
    """For each open the numbers of the shards prefetched then."""
    queue = queue or ShardQueue(4, 1 << 40)
    names = shards(count)
    return [
        [names.index(name) for name in queue.opened(names[at], names, lambda _: size)]
        for at in order
    ]


def useful(order, plans):
    """Shares of the opened shards that were prefetched before, and of prefetched ones opened."""
    opened_at = {at: when for when, at in reversed(list(enumerate(order)))}
    planned_at = {at: when for when, plan in enumerate(plans) for at in plan}
    in_time = [at for at in opened_at if at in planned_at and planned_at[at] < opened_at[at]]
    return len(in_time) / len(opened_at), len(in_time) / max(1, len(planned_at))


def test_from_the_second_shard_on_the_next_ones_are_prefetched():
    assert prefetched(range(6), 147) == [[], [2, 3, 4, 5], [6], [7], [8], [9]]


@for_each("count", [19, 147])
@for_each("workers", [1, 2, 4, 8])
def test_workers_that_take_shards_in_turn_find_them_prefetched(count, workers):
    order = overtaking(range(count), workers)
    share, good = useful(order, prefetched(order, count, ShardQueue(8, 1 << 40)))
    assert share >= (0.5 if count == 19 else 0.75)
    assert good >= 0.9


def test_stride_of_a_node_is_learnt():
    order = range(3, 147, 8)
    plans = prefetched(order, 147)
    share, good = useful(order, plans)
    assert share >= 0.6
    assert good == 1


def test_readers_of_a_part_each_are_recognised():
    order = [part * 36 + at for at in range(36) for part in range(4)]
    share, good = useful(order, prefetched(order, 147, ShardQueue(16, 1 << 40)))
    assert share >= 0.5
    assert good >= 0.85  # each part's reader also looks into the part behind


def test_next_epoch_goes_on_prefetching():
    plans = prefetched([*range(19)] * 3, 19)
    assert sum(map(len, plans[19:38])) >= 14


@for_each("count", [8, 19, 147])
def test_shards_at_random_prefetch_nothing(count):
    planned = opened = 0
    for seed in range(100):
        order = random.Random(seed).sample(range(count), count)
        planned += sum(map(len, prefetched(order, count)))
        opened += count
    assert planned <= 0.005 * opened


def test_prefetch_stops_when_shards_are_opened_at_random():
    queue = ShardQueue(4, 1 << 40)
    prefetched(range(30), 1000, queue)
    order = random.Random(1).sample(range(100, 1000), 60)
    assert not any(prefetched(order, 1000, queue)[10:])
    assert queue.access is Access.RANDOM


@given(
    st.integers(0, 5),
    st.integers(0, 50),
    st.lists(
        st.tuples(st.integers(0, 29), st.sampled_from(["in order", "used", "wasted", "any"])),
        max_size=ShardQueue.PATIENCE,
    ),
)
def test_never_more_than_the_limits_are_waiting(max_shards, budget, steps):
    names = shards(30)
    sizes = {name: 1 + at % 7 for at, name in enumerate(names)}
    queue = ShardQueue(max_shards, budget)
    waiting = set()
    last = -1
    for at, event in steps:
        if event in ("in order", "any"):
            last = (last + 1) % 30 if event == "in order" else at
            new = queue.opened(names[last], names, sizes.__getitem__)
            waiting.discard(names[last])
            assert len(set(new)) == len(new)
            assert not waiting & set(new)
            waiting.update(new)
        elif event == "used":
            queue.used(names[at])
            waiting.discard(names[at])
        else:
            queue.wasted(names[at])
            waiting.discard(names[at])
        assert 0 <= queue.allowance <= max_shards
        assert len(waiting) <= max_shards
        assert sum(map(sizes.__getitem__, waiting)) <= budget


def test_shard_that_does_not_fit_the_budget_ends_the_prefetch():
    assert prefetched(range(4), 147, ShardQueue(4, 25), size=10) == [[], [2, 3], [4], [5]]


def test_waste_halves_the_allowance_down_to_nothing_and_good_guesses_restore_it():
    queue = ShardQueue(8, 1 << 40)
    names = shards(1000)
    allowances = []
    for at in range(10):
        for name in queue.opened(names[at], names, lambda _: 1):
            queue.wasted(name)
        allowances.append(queue.allowance)
    assert allowances[1] == 0
    for at in range(10, 60):
        queue.opened(names[at], names, lambda _: 1)
    assert queue.allowance == 8


def test_prefetched_shard_nobody_comes_for_is_given_up():
    queue = ShardQueue(4, 1 << 40)
    prefetched(range(2), 1000, queue)
    assert queue.allowance == 4
    prefetched(random.Random(2).sample(range(100, 1000), ShardQueue.PATIENCE + 1), 1000, queue)
    assert queue.allowance == 0


def test_shard_missing_from_the_listing_is_ignored():
    assert ShardQueue(4, 100).opened(b"gone.tar", shards(3), lambda _: 1) == []


@for_each("rows", [200, 20_000])
def test_reader_that_shows_only_where_pushing_left_a_member_out_is_in_order(rows):
    order = MemberOrder(rows)
    row, window = 0, 8
    while row < rows:
        access = order.observe(row)
        order.pushed(row, row + window)
        row += window // 2  # the one left out
        window = min(2 * window, rows // 10)
    assert access is Access.IN_ORDER


def test_random_reads_of_which_samples_are_pushed_stay_random():
    order = MemberOrder(2000)
    for row in random.Random(3).sample(range(2000), 500):
        access = order.observe(row)
        order.pushed(row, row + 2)
    assert access is Access.RANDOM
