"""Sets of byte ranges, against the dumbest model: a set of ints."""

import zlib
from itertools import pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aisfs.model import GROWTH, ByteRange, RangeSet, aligned, growing_pieces, pieces
from tests.support.for_each import for_each

END = 40


@st.composite
def byte_ranges(draw, end=END):
    start = draw(st.integers(0, end))
    return ByteRange(start, draw(st.integers(start, end)))


def members(ranges):
    return {offset for each in ranges for offset in range(each.start, each.stop)}


class AgainstInts(RuleBasedStateMachine):
    """Any adds and subtractions; each answer must be the model's."""

    def __init__(self):
        super().__init__()
        self.ranges = RangeSet()
        self.model = set()

    @rule(each=byte_ranges())
    def add(self, each):
        self.ranges.add(each)
        self.model |= members([each])

    @rule(each=byte_ranges())
    def subtract(self, each):
        self.ranges.subtract(each)
        self.model -= members([each])

    @rule(wanted=byte_ranges())
    def ask(self, wanted):
        missing = self.ranges.missing(wanted)
        assert members(missing) == members([wanted]) - self.model
        assert self.ranges.covers(wanted) == (not missing)
        assert all(missing)
        for one, following in pairwise(missing):
            assert one.stop < following.start

    @invariant()
    def same_bytes_in_sorted_ranges_that_do_not_touch(self):
        ranges = list(self.ranges)
        assert members(ranges) == self.model
        assert self.ranges.total == len(self.model)
        assert len(self.ranges) == len(ranges)
        assert all(ranges)
        for one, following in pairwise(ranges):
            assert one.stop < following.start

    @invariant()
    def survives_packing(self):
        again = RangeSet.unpack(self.ranges.pack())
        assert again == self.ranges
        assert again.total == self.ranges.total


TestAgainstInts = AgainstInts.TestCase


@given(st.lists(byte_ranges(1 << 62)))
def test_large_offsets_survive_packing(ranges):
    assert RangeSet.unpack(RangeSet(ranges).pack()) == RangeSet(ranges)


@given(st.binary(max_size=100))
def test_garbage_is_a_value_error(garbage):
    for packed in (garbage, b"\x01" + garbage, b"\x01" + zlib.compress(garbage)):
        try:
            ranges = list(RangeSet.unpack(packed))
        except ValueError:
            continue
        assert RangeSet.unpack(RangeSet(ranges).pack()) == RangeSet(ranges)


@given(st.lists(byte_ranges(), min_size=1), st.data())
def test_damaged_or_cut_bytes_are_a_value_error(ranges, data):
    packed = RangeSet(ranges).pack()
    with pytest.raises(ValueError):  # noqa: PT011  # the type is the promise
        RangeSet.unpack(packed[: data.draw(st.integers(0, len(packed) - 1))])
    with pytest.raises(ValueError, match="something behind"):
        RangeSet.unpack(packed + b"\0")


@for_each(
    "steps",
    [(0, 0), (3, 0), (0, 4, 0, 4), (1 << 63, 1), ((1 << 64) - 1, (1 << 64) - 1), (5,)],
)
def test_ranges_that_cannot_be_are_a_value_error(steps):
    raw = b"".join(step.to_bytes(8, "little") for step in steps)
    with pytest.raises(ValueError):  # noqa: PT011  # the type is the promise
        RangeSet.unpack(b"\x01" + zlib.compress(raw))


def test_many_ranges_pack_into_few_bytes_each():
    ranges = RangeSet(ByteRange(at * 8192, at * 8192 + 4096) for at in range(100_000))
    assert len(ranges) == 100_000
    assert len(ranges.pack()) < len(ranges)
    assert RangeSet.unpack(ranges.pack()) == ranges


@given(byte_ranges(), st.integers(1, 9), st.integers(0, END))
def test_aligned_grows_to_borders_and_is_cut_at_the_size(wanted, block, size):
    grown = aligned(wanted, block, size)
    inside = {offset for offset in members([wanted]) if offset < size}
    blocks = {offset // block for offset in inside}
    assert members([grown]) == {
        offset for offset in range(size) if inside and min(blocks) <= offset // block <= max(blocks)
    }
    assert 0 <= grown.start <= grown.stop <= size


@given(byte_ranges(), st.integers(1, 9))
def test_pieces_follow_each_other(whole, length):
    cut = list(pieces(whole, length))
    assert [offset for each in cut for offset in range(each.start, each.stop)] == list(
        range(whole.start, whole.stop)
    )
    assert all(len(each) == length for each in cut[:-1])
    assert all(0 < len(each) <= length for each in cut)


@given(byte_ranges(1000), st.integers(1, 9), st.integers(0, 4))
def test_growing_pieces_follow_each_other_up_to_whole_pieces(whole, first, doublings):
    most = first << doublings
    cut = list(growing_pieces(whole, first, most))
    assert [offset for each in cut for offset in range(each.start, each.stop)] == list(
        range(whole.start, whole.stop)
    )
    grown = list(takewhile(lambda edge: edge < most, (first * GROWTH**at for at in range(9))))
    edges = [*grown, *(most * at for at in range(1, len(cut) + 1))]
    ends = [each.stop - whole.start for each in cut]
    assert ends == [*edges[: len(cut) - 1], len(whole)] if cut else not whole
