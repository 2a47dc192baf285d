"""Read-ahead: what may be asked for whatever the reads are, and what must be for common ones."""

import random

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.policy.shard_readers import (
    FORWARD,
    LARGE_READ,
    LARGE_START,
    MAX_STREAMS,
    NEAR_WINDOW,
    START_WINDOW,
    ReadAhead,
)
from aisfs.model import ByteRange
from tests.support.for_each import for_each

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
REQUEST = 128 * KIB  # the kernel's


def reads(start, count, length=REQUEST):
    return [ByteRange(start + at * length, start + (at + 1) * length) for at in range(count)]


def observe(readahead, wanted, stalled=False):
    return [readahead.observe(each, stalled=stalled) for each in wanted]


def asked_ahead(plans):
    return sum(len(plan.ahead) for plan in plans if plan.ahead)


@given(
    st.integers(0, 64 * MIB),
    st.sampled_from([0, 512 * KIB, 4 * MIB, 64 * MIB]),
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 70 * MIB), st.integers(0, 30).map(lambda at: at * 128 * KIB)),
            st.integers(0, 2 * MIB),
            st.booleans(),
            st.booleans(),
        ),
        max_size=60,
    ),
)
def test_plans_stay_inside_whatever_is_read(size, max_window, steps):
    readahead = ReadAhead(size, max_window=max_window)
    for start, length, stalled, memory_is_short in steps:
        if memory_is_short:
            readahead.shrink()
        plan = readahead.observe(ByteRange(start, start + length), stalled=stalled)
        assert plan.need == ByteRange(min(start, size), min(start + length, size))
        if plan.ahead is not None:
            assert plan.sequential
            assert plan.need.stop <= plan.ahead.start < plan.ahead.stop <= size
            assert len(plan.ahead) <= max_window
        assert len(readahead.windows) <= MAX_STREAMS
        assert all(min(MIB, max_window) <= window <= max_window for window in readahead.windows)


def test_read_in_the_middle_gets_what_it_asked_for_and_the_next_one_more():
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    first, second = observe(readahead, reads(5 * MIB, 2))
    assert (first.ahead, first.sequential) == (None, False)
    assert second.sequential
    assert second.ahead == ByteRange(5 * MIB + 2 * REQUEST, 6 * MIB + 2 * REQUEST)


def test_random_reads_never_read_ahead():
    shuffle = random.Random(3)
    readahead = ReadAhead(10 * GIB, max_window=GIB)
    for _ in range(20_000):
        start = shuffle.randrange(1, 10 * GIB // 4096) * 4096
        plan = readahead.observe(ByteRange(start, start + 4096), stalled=True)
        assert plan.ahead is None
        assert plan.need == ByteRange(start, start + 4096)


def test_everything_ahead_is_asked_for_once_and_in_order():
    readahead = ReadAhead(100 * MIB, max_window=16 * MIB)
    plans = observe(readahead, reads(0, 800), stalled=True)
    stop = REQUEST
    for plan in plans:
        if plan.ahead:
            assert plan.ahead.start == stop
            stop = plan.ahead.stop
    assert stop == 100 * MIB


def test_extends_when_less_than_half_the_window_is_left():
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    plans = observe(readahead, reads(0, 9))
    assert [at for at, plan in enumerate(plans) if plan.ahead] == [0, 5]


def test_window_grows_only_while_the_reader_stalls():
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    observe(readahead, reads(0, 1), stalled=True)
    observe(readahead, reads(REQUEST, 100))
    assert readahead.windows == [MIB]
    observe(readahead, reads(101 * REQUEST, 2000), stalled=True)
    assert readahead.windows == [NEAR_WINDOW]


def test_window_grows_further_where_the_first_bytes_take_long():
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    observe(readahead, reads(0, 2000), stalled=True)
    for each in reads(2000 * REQUEST, 2000):
        readahead.observe(each, stalled=True, high_latency=True)
    assert readahead.windows == [64 * MIB]
    observe(readahead, reads(4000 * REQUEST, 2000), stalled=True)
    assert readahead.windows == [64 * MIB], "one part that came quickly takes nothing back"


@for_each(
    "first, window",
    [(LARGE_READ, LARGE_START), (LARGE_READ - 1, START_WINDOW), (MIB, LARGE_START)],
)
def test_who_begins_with_a_large_read_has_a_larger_window(first, window):
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    plan = readahead.observe(ByteRange(0, first), stalled=True)
    assert plan.ahead == ByteRange(first, first + window)
    assert ReadAhead(GIB, max_window=MIB).observe(ByteRange(0, MIB), stalled=True).ahead == (
        ByteRange(MIB, 2 * MIB)
    )


def test_only_whole_halves_of_a_window_are_asked_for():
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    plans = observe(
        readahead, [ByteRange(at * MIB, (at + 1) * MIB) for at in range(500)], stalled=True
    )
    lengths = [len(plan.ahead) for plan in plans if plan.ahead]
    assert set(lengths[-10:]) == {NEAR_WINDOW // 2}


def test_requests_that_wait_together_double_the_window_once():
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    observe(readahead, reads(0, 6), stalled=True)
    assert readahead.windows == [2 * MIB]


def test_two_interleaved_streams_both_read_ahead():
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    plans = [
        observe(readahead, pair) for pair in zip(reads(0, 200), reads(500 * MIB, 200), strict=True)
    ]
    for ours in zip(*plans, strict=True):
        assert all(plan.sequential for plan in ours[1:])
        assert asked_ahead(ours) >= 199 * REQUEST
        assert asked_ahead(ours) <= 200 * REQUEST + MIB


def test_interleaved_streams_nearer_than_a_skip_keep_apart():
    readahead = ReadAhead(GIB, max_window=4 * MIB)
    plans = [
        observe(readahead, pair) for pair in zip(reads(0, 30), reads(8 * MIB, 30), strict=True)
    ]
    assert all(plan.sequential for pair in plans[1:] for plan in pair)
    assert len(readahead.windows) == 2


def test_neighbours_that_change_places_are_still_one_sequential_stream():
    for start in (0, 300 * MIB):
        wanted = reads(start, 400)
        for at in range(0, 400, 2):
            wanted[at], wanted[at + 1] = wanted[at + 1], wanted[at]
        readahead = ReadAhead(GIB, max_window=64 * MIB)
        plans = observe(readahead, wanted)
        assert all(plan.sequential for plan in plans[1:])
        assert asked_ahead(plans) >= 396 * REQUEST
        assert len(readahead.windows) == 1


def test_short_skips_and_ways_back_keep_the_stream():
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    observe(readahead, reads(0, 4000), stalled=True)
    stop = 4000 * REQUEST
    assert readahead.observe(
        ByteRange(stop + FORWARD, stop + FORWARD + 1), stalled=False
    ).sequential
    stop += FORWARD + 1
    assert readahead.observe(ByteRange(stop - MIB, stop - MIB + 1), stalled=False).sequential
    assert readahead.windows == [NEAR_WINDOW]


def test_long_jumps_start_anew():
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    observe(readahead, reads(0, 4000), stalled=True)
    for start in (4000 * REQUEST + 2 * FORWARD, 4000 * REQUEST - 3 * MIB):
        plan = readahead.observe(ByteRange(start, start + 1), stalled=True)
        assert (plan.ahead, plan.sequential) == (None, False)


def test_reader_that_leaves_holes_all_the_time_is_not_sequential():
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    plans = [
        readahead.observe(ByteRange(at * MIB, at * MIB + 4096), stalled=True) for at in range(500)
    ]
    assert not any(plan.sequential for plan in plans[10:])
    assert asked_ahead(plans) < 8 * MIB


def test_members_of_a_tar_are_one_sequential_stream():
    """Between them are padding and headers, and labels of which nobody asks."""
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    plans = observe(readahead, [ByteRange(at, at + 20_000) for at in range(512, 4 * MIB, 22_016)])
    assert all(plan.sequential for plan in plans[1:])
    assert asked_ahead(plans) >= 4 * MIB - 2 * 22_016
    assert len(readahead.windows) == 1


@for_each("start", [0, 512])
def test_a_reader_that_starts_over_reads_ahead_if_its_bytes_were_dropped(start):
    readahead = ReadAhead(10 * MIB, max_window=64 * MIB)
    readahead.observe(ByteRange(0, REQUEST), stalled=True)
    for pushed in reads(REQUEST, 79):
        readahead.pushed(pushed, stalled=False)
    again = observe(readahead, reads(start, 79), stalled=True)
    assert asked_ahead(again) >= 9 * MIB


def test_stray_reads_do_not_disturb_a_stream():
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    shuffle = random.Random(5)
    for each in reads(0, 300):
        assert readahead.observe(each, stalled=False).sequential
        stray = shuffle.randrange(100 * MIB, GIB - 1)
        readahead.observe(ByteRange(stray, stray + 1), stalled=True)


def test_shrinking_stops_at_one_mebibyte():
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    observe(readahead, reads(0, 4000), stalled=True)
    readahead.shrink()
    assert readahead.windows == [NEAR_WINDOW // 2]
    for _ in range(10):
        readahead.shrink()
    assert readahead.windows == [MIB]


def seconds_to_read(size, *, delay, bandwidth, far=None):
    """Model one reader of 1 MiB pieces over a link that carries one request after the other."""
    readahead = ReadAhead(size, max_window=64 * MIB)
    landed = []  # (stop, when) of what was asked for, in order
    now = free = 0.0

    def ask(wanted):
        nonlocal free
        for start in range(wanted.start, wanted.stop, MIB):
            stop = min(start + MIB, wanted.stop)
            free = max(free, now + delay) + (stop - start) / bandwidth
            landed.append((stop, free))

    known = False
    for need in reads(0, size // MIB, MIB):
        asked = landed[-1][0] if landed else 0
        if asked < need.stop:
            ask(ByteRange(max(asked, need.start), need.stop))
        when = next(when for stop, when in landed if need.stop <= stop)
        plan = readahead.observe(need, stalled=when > now, high_latency=far is None and known)
        if plan.ahead:
            ask(plan.ahead)
        known = known or delay > 0.02
        now = max(now, when) + 0.0005
    return now


@for_each("delay, share", [(0.001, 0.98), (0.02, 0.95), (0.1, 0.9)])
def test_windows_fill_a_link_soon_enough_to_read_half_a_gigabyte_at_its_speed(delay, share):
    size, bandwidth = 512 * MIB, 125e6
    least = delay + size / bandwidth
    assert seconds_to_read(size, delay=delay, bandwidth=bandwidth) <= least / share


def test_far_away_the_window_grows_in_fewer_round_trips():
    size, delay, bandwidth = 64 * MIB, 0.1, 125e6
    near, far = (
        seconds_to_read(size, far=known, delay=delay, bandwidth=bandwidth)
        for known in (False, None)
    )
    assert far < delay + size / bandwidth + delay < near


def test_a_reader_that_stops_early_wasted_no_more_than_a_few_times_what_it_read():
    readahead = ReadAhead(GIB, max_window=GIB)
    asked = 0
    for need in reads(0, 64 * MIB // REQUEST):
        plan = readahead.observe(need, stalled=True, high_latency=True)
        asked += len(plan.ahead or ())
        assert asked <= 16 * need.stop + 4 * MIB


def test_what_is_pushed_for_a_reader_moves_its_window():
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    readahead.observe(ByteRange(0, REQUEST), stalled=True)
    for start in range(REQUEST, 40 * MIB, MIB):
        pushed = ByteRange(start, start + MIB)
        readahead.pushed(pushed, stalled=True)
        behind = ByteRange(max(start - 6 * MIB, 0), max(start - 6 * MIB, 0) + REQUEST)
        assert readahead.observe(behind, stalled=False).sequential
    assert len(readahead.windows) == 1
    assert readahead.windows[0] > 16 * MIB


def test_of_what_is_worth_fetching_anyway_a_window_is_fetched_at_once():
    readahead = ReadAhead(GIB, max_window=64 * MIB)
    assert readahead.widen() is None, "nobody reads"
    readahead.observe(ByteRange(0, MIB), stalled=True)
    ahead = readahead.widen()
    assert ahead == ByteRange(MIB + LARGE_START, MIB + LARGE_START + NEAR_WINDOW // 2)
    assert readahead.widen() is None, "half a window is under way"
    assert readahead.windows == [NEAR_WINDOW]
    small = ReadAhead(GIB, max_window=2 * MIB)
    small.observe(ByteRange(0, MIB), stalled=True)
    small.widen()
    assert small.windows == [2 * MIB]
