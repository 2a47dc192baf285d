"""`aisfs.core.policy.plan`: where the readers of an announced order are, and what is next for them."""

import random
from array import array

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.policy.plan import DROPPED_AFTER, LOST_AFTER, WINDOW_MAX, Plan


def planned(*orders: list[int]) -> Plan:
    plan = Plan("p")
    for order in orders:
        plan.add(array("Q", order))
    return plan


def test_a_file_is_ahead_from_its_fetch_until_it_is_read():
    plan = planned([11, 12, 13])
    assert plan.take(2) == [11, 12]
    plan.begin(11, 100)
    plan.begin(12, 10)
    assert (plan.ahead_bytes, plan.position) == (110, 0)
    assert plan.read(11)
    assert (plan.ahead_bytes, plan.position, plan.followed) == (10, 1, 1)
    assert plan.take(5) == [13]
    assert plan.read(12)
    assert not plan.ended
    assert plan.read(13)
    assert plan.ended
    assert plan.ahead_bytes == 0


@given(
    count=st.integers(1, 400),
    workers=st.integers(1, 8),
    chunk=st.integers(1, 50),
    seen=st.floats(0.2, 1.0),
    seed=st.integers(0, 1000),
)
def test_readers_side_by_side_are_followed_to_the_end(
    count: int, workers: int, chunk: int, seen: float, seed: int
):
    """Some reads are never seen: the page cache answers them."""
    source = random.Random(seed)
    order = source.sample(range(10, 10 + 10 * count), count)
    plan = planned(order)
    fetched: list[int] = []
    # Each worker has every so many-th file, and is now ahead, now behind.
    queues = [order[worker::workers] for worker in range(workers)]
    while any(queues):
        taken = plan.take(chunk)
        for number in taken:
            plan.begin(number, 7)
        fetched += taken
        queue = source.choice([queue for queue in queues if queue])
        number = queue.pop(0)
        if source.random() < seen:
            assert plan.read(number) == (number in taken or number in fetched)
        assert 0 <= plan.ahead_bytes <= 7 * WINDOW_MAX
    rest = plan.take(count + 1)
    assert fetched + rest == order, "each file is fetched once, in order"


def test_what_the_page_cache_answers_does_not_stay_ahead():
    plan = planned(list(range(10_000)))
    for start in range(0, 10_000, 100):
        for number in plan.take(100):
            plan.begin(number, 1)
        plan.read(start + 99)
    assert plan.ahead_bytes < 200


def test_no_more_than_the_window_is_ahead_and_then_the_next_order():
    plan = planned(list(range(WINDOW_MAX)), [7, WINDOW_MAX + 1])
    assert len(plan.take(2 * WINDOW_MAX)) == WINDOW_MAX
    assert plan.take(1) == []
    plan.read(0)
    assert plan.take(5) == [7]
    assert plan.position == 1


def found(plan: Plan) -> int | None:
    return next((place for place in plan.search() if place is not None), None)


def stray(plan: Plan, numbers: list[int]) -> None:
    for number in numbers:
        assert not plan.read(number)
        plan.stray(number)


def test_readers_that_begin_elsewhere_are_found():
    order = list(range(100, 9100))
    plan = planned(order, order[::-1])
    plan.take(10)
    stray(plan, order[5000 : 5000 + LOST_AFTER])
    place = found(plan)
    assert place == 5000 + LOST_AFTER - 1
    plan.move_to(place)
    assert plan.take(2) == [order[place], order[place + 1]]
    assert plan.position == place
    stray(plan, order[6000 : 6000 - LOST_AFTER : -1])
    assert found(plan) == 5999 - LOST_AFTER + 2, "the first order, wherever it has them"


def test_the_next_epoch_is_found_once_it_is_read():
    source = random.Random(3)
    first, second = (source.sample(range(9000), 9000) for _ in range(2))
    plan = planned(first, second)
    stray(plan, second[:LOST_AFTER])
    assert found(plan) == 9000 + LOST_AFTER - 1


def test_a_job_with_an_order_of_its_own_does_not_move_the_plan_and_ends_it():
    source = random.Random(4)
    order, other = (source.sample(range(50_000), 50_000) for _ in range(2))
    plan = planned(order)
    window = plan.take(300)
    reads = 0
    while not plan.lost:
        number = other[reads]
        reads += 1
        if not plan.read(number) and plan.stray(number):
            assert found(plan) is None
    assert DROPPED_AFTER <= reads < 1.1 * DROPPED_AFTER
    assert plan.take(10) == order[300:310]
    assert len(window) == 300


def test_readers_beside_others_keep_their_plan():
    order = list(range(20_000))
    plan = planned(order)
    for number in order:
        plan.take(100)
        assert plan.read(number)
        for other in range(2):
            plan.stray(100_000 + 2 * number + other)
    assert not plan.lost


def test_orders_that_nobody_reads_do_not_pile_up():
    plan = planned(*([each, each + 1] for each in range(0, 40, 2)))
    assert len(plan) == 40
    assert [plan.take(1) for _ in range(7)] == [[34], [35], [36], [37], [38], [39], []]


def test_ten_million_files_take_eight_bytes_each():
    plan = planned()
    plan.add(array("Q", range(10_000_000)))
    assert len(plan) == 10_000_000
    stray(plan, list(range(9_999_900, 10_000_000)))
    place = found(plan)
    assert place == 9_999_999
    plan.move_to(place)
    assert plan.take(10) == [9_999_999]


def test_what_cannot_be_fetched_is_not_waited_for():
    plan = planned([1, 2, 3])
    assert plan.take(3) == [1, 2, 3]
    plan.skip(3)
    assert plan.read(1)
    assert plan.read(2)
    assert plan.ended
