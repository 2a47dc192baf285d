"""How many bytes a token bucket lets go, and when."""

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.policy.link import TokenBucket

RATE = 1000.0
REQUESTS = st.lists(
    st.tuples(st.floats(0, 5), st.integers(1, 5000), st.booleans()), min_size=1, max_size=40
)
"""Of each request: the seconds since the one before, its bytes, and whether it is cancelled while it waits."""


@given(REQUESTS)
def test_bytes_keep_to_the_limit_and_requests_to_their_order(requests):
    bucket, now = TokenBucket(RATE), 0.0
    taken: list[tuple[float, int]] = []
    waiting: list[tuple[float, int]] = []
    for pause, size, cancelled in requests:
        now += pause
        for place in [place for place in waiting if place[0] > now]:
            bucket.give_back(place[1])
            taken.remove(place)
        waiting.clear()
        start = now + bucket.take(size, now)
        assert start >= now
        taken.append((start, size))
        if cancelled:
            waiting.append((start, size))
    if not any(cancelled for _, _, cancelled in requests):
        assert taken == sorted(taken, key=lambda each: each[0])
    largest = max(size for _, size, _ in requests)
    for until, _ in taken:
        gone = sum(size for start, size in taken if start <= until)
        assert gone <= RATE * until + largest + 1e-6


def test_a_bucket_that_was_idle_lets_one_request_go_at_once():
    bucket = TokenBucket(RATE)
    assert bucket.take(5000, 100.0) == 0
    assert bucket.take(1, 100.0) == 5
    assert bucket.take(1, 200.0) == 0


def test_who_gives_up_its_turn_lets_the_next_one_have_it():
    bucket = TokenBucket(RATE)
    assert bucket.take(1000, 0.0) == 0
    assert bucket.take(5000, 0.0) == 1
    bucket.give_back(5000)
    assert bucket.take(1, 0.0) == 1
