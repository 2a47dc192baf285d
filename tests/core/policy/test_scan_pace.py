"""What a scan reads of a tar: never much dearer than the best that could be done with all sizes known."""

from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from aisfs.core.policy.link import LARGE, SMALL
from aisfs.core.policy.shard_readers import (
    BREAK_EVEN_MAX,
    BREAK_EVEN_MIN,
    GLANCE_MAX,
    GLANCE_MIN,
    PIECE_MAX,
    UNMEASURED,
    ScanPace,
    break_even,
    step,
    too_long,
)

HEADER = 512


class Walk(NamedTuple):
    requests: int
    fetched: int
    looked: int
    """Bytes of headers, and of data that is too short to be skipped."""
    least: int
    """What the cheapest way costs at least, in bytes, with each request as much as the break-even."""

    def cost(self, even: int) -> int:
        return self.fetched + self.requests * even


def walk(sizes: list[int], even: int) -> Walk:
    """Scan a tar as the engine does, in parts of 8 MiB."""
    ends = list(accumulate(HEADER + -(-size // HEADER) * HEADER for size in sizes))
    heads = [0, *ends]
    size = heads[-1]

    def needed(seen: int) -> int:
        """The first byte needed when all up to `seen` was looked at."""
        at = bisect_left(heads, seen - HEADER + 1)
        return max(seen, heads[at]) if at < len(heads) else size

    pace = ScanPace(size)
    requests = fetched = position = 0
    while position < size:
        piece = pace.next_piece(position, even)
        assert piece.start == position < piece.stop <= size
        read = total = 0
        for start in range(piece.start, piece.stop, 8 << 20):
            stop = min(start + (8 << 20), piece.stop)
            skippable = 0
            position = max(start, position)
            while position < stop:
                end = min(position + step(len(piece)), stop)
                following = min(needed(end), size)
                if following - end > even:
                    skippable += min(following, stop) - end
                position = max(end, min(following, stop))
            requests += 1
            read, total = read + stop - start, total + skippable
            if too_long(stop - start, skippable):
                break
        position = min(needed(position), size)
        fetched += read
        pace.observe(read, total)
    looked = sum(HEADER + (size if size <= even else 0) for size in sizes)
    least = even + sum(min(HEADER + size, even) for size in sizes)
    return Walk(requests, fetched, looked, least)


members = st.lists(
    st.one_of(
        st.integers(0, 4000),
        st.integers(10_000, 200_000),
        st.integers(1 << 20, 40 << 20),
    ),
    min_size=1,
    max_size=6,
)
"""A sample, which is repeated."""


@settings(deadline=None)  # thousands of members
@given(members, st.integers(1, 60), st.integers(BREAK_EVEN_MIN, 8 << 20))
@example([1000], 50_000, 125_000)
@example([110_000, 3, 400], 700, 125_000)
@example([10_000] * 100 + [10_000_000], 20, 125_000)
@example([1_000_000], 500, 125_000)
@example([30_000_000], 100, 6 << 20)
def test_scan_costs_at_most_four_times_the_least_that_is_possible(sample, times, even):
    done = walk(sample * times, even)
    # Pieces double from a glance on, so a scan begins with some requests more.
    assert done.cost(even) <= 4 * done.least + 12 * even


@settings(deadline=None)  # thousands of members
@given(members, st.integers(1, 60), st.integers(BREAK_EVEN_MIN, 8 << 20))
def test_never_much_more_is_fetched_than_looked_at(sample, times, even):
    done = walk(sample * times, even)
    assert done.fetched <= 4 * done.looked + done.requests * GLANCE_MAX


@settings(deadline=None)  # thousands of members
@given(st.integers(200, 4000))
def test_large_members_are_skipped_with_a_glance_each(count):
    done = walk([5_000_000] * count, 125_000)
    assert done.requests == count
    assert done.fetched <= count * GLANCE_MIN


@settings(deadline=None)  # thousands of members
@given(st.integers(1, 100_000), st.integers(2000, 20_000))
def test_small_members_are_streamed(size, count):
    done = walk([size] * count, 1 << 20)
    assert done.requests <= 12 + size * count // (7 << 20)


@given(
    st.none() | st.floats(0, 10, exclude_min=True),
    st.none() | st.floats(1, 1e11),
    st.integers(0, 64),
)
def test_break_even_is_the_time_of_a_request_at_the_rate_of_the_link(latency, rate, at_once):
    even = break_even(latency, rate, at_once)
    assert even is None or BREAK_EVEN_MIN <= even <= BREAK_EVEN_MAX
    if latency is None or rate is None:
        assert even is None
    elif BREAK_EVEN_MIN < even < BREAK_EVEN_MAX:
        assert even == int(latency * rate / max(1, at_once))


def test_slow_requests_and_a_fast_link_make_for_streaming():
    near, far = break_even(0.0005, 1e8), break_even(0.05, 1e8)
    assert near < 110_000 < far
    assert break_even(0.05, 1e8, 16) < far


def test_link_is_measured_before_much_is_read():
    pace, lengths = ScanPace(1 << 40), []
    for _ in range(12):
        piece = pace.next_piece(0, None)
        lengths.append(len(piece))
        pace.observe(len(piece), 0)
    assert lengths[:3] == [16 << 10, 32 << 10, SMALL], "these measure the latency"
    assert any(length >= LARGE for length in lengths), "and these the rate"
    assert max(lengths) == UNMEASURED


@given(st.integers(0, 1 << 40), st.integers(BREAK_EVEN_MIN, BREAK_EVEN_MAX))
def test_piece_begins_small_and_ends_with_the_tar(size, even):
    pace = ScanPace(size + 1)
    assert GLANCE_MIN <= len(pace.next_piece(0, even)) <= GLANCE_MAX or size < GLANCE_MAX
    for _ in range(40):
        pace.observe(100, 0)
        assert len(pace.next_piece(0, even)) <= PIECE_MAX
    pace.observe(100, 90)
    assert len(pace.next_piece(size, even)) == 1
    assert len(pace.next_piece(0, even)) <= GLANCE_MAX
