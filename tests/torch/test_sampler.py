"""Samplers: where a state goes on, in how many processes, and at which step they end."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisfs.torch import ShardWindowSampler, SpreadBatches
from tests.support.for_each import for_each


class Sharded:
    """Samples that know their shards."""

    def __init__(self, *sizes):
        self.sizes = sizes

    def shard_numbers(self):
        return np.repeat(np.arange(len(self.sizes), dtype=np.uint32), self.sizes)


DATA = Sharded(10, 1, 7, 20, 3, 12)
COUNT = sum(DATA.sizes)
WORLDS = st.integers(1, 9)


def samplers(world, data=DATA, **options):
    options = {"window": 3, **options}
    return [
        ShardWindowSampler(data, num_replicas=world, rank=rank, **options) for rank in range(world)
    ]


def steps(iterators, most=None):
    """What all processes draw together, step by step."""
    found, iterators = [], list(map(iter, iterators))
    while most is None or len(found) < most:
        drawn = [np.atleast_1d(next(each, [])).tolist() for each in iterators]
        if not all(drawn):
            assert not any(drawn), "all end at the same step"
            break
        found.append(sorted(chain(*drawn)))
    return found


@given(WORLDS, st.booleans(), st.integers(1, 4))
def test_processes_share_one_order_evenly(world, drop_last, pieces):
    found = samplers(world, drop_last=drop_last, pieces=pieces)
    order = found[0].order().tolist()
    drawn = steps(found)
    assert len(drawn) == len(found[0]) == (COUNT // world if drop_last else -(-COUNT // world))
    seen = Counter(chain(*drawn))
    if drop_last:
        assert seen == Counter(order[: len(drawn) * world])
    else:
        assert set(seen) == set(range(COUNT))
        assert sum(seen.values()) - COUNT == len(drawn) * world - COUNT < world


@given(WORLDS, st.integers(1, 20), st.integers(1, 4))
def test_batches_are_spread(world, size, pieces):
    found = [SpreadBatches(sampler, size) for sampler in samplers(world, pieces=pieces)]
    batches = [list(each) for each in found]
    assert {len(each) for each in batches} == {len(found[0])} == {-(-COUNT // (world * size))}
    sizes = [len(batch) for each in batches for batch in each]
    assert max(sizes) <= size
    repeated = sum(sizes) - COUNT
    assert 0 <= repeated < world
    assert set(chain(*chain(*batches))) == set(range(COUNT))
    if size > 1:
        assert not repeated
        assert max(sizes) - min(sizes) <= 1 + (len(found[0]) > 1)


@given(st.randoms(use_true_random=False), st.sampled_from([0, 2, 5]))
def test_any_worlds_after_each_other_draw_one_order(chance, size):
    """At each restart, with as many processes as chance has it: nothing is left out or repeated."""
    order = samplers(1, seed=4)[0].order(2).tolist()
    state, drawn = {}, []
    while state.get("place") != COUNT:
        found = samplers(chance.randint(1, 5), seed=4)
        each = [SpreadBatches(s, size) if size else s for s in found]
        for sampler, source in zip(found, each, strict=True):
            if state:
                source.load_state_dict(state)
            else:
                sampler.set_epoch(2)
        for step in steps(each, chance.randint(1, 4)):
            drawn += step
        states = [sampler.state_dict() for sampler in each]
        assert all(one == states[0] for one in states)
        state = states[0]
        done = order[: state["place"]]
        assert set(drawn) >= set(done)
        if len(drawn) <= COUNT - 5:  # before the end, where samples are repeated
            assert sorted(drawn) == sorted(done)
    assert set(drawn) == set(order)
    assert len(drawn) - COUNT < 5


@for_each("size", [0, 4])
def test_a_state_says_how_much_was_consumed(size: int):
    """A loader has drawn more. The state depends on what the loop is done with, and not on that."""
    (sampler,) = samplers(1, seed=1)
    source = SpreadBatches(sampler, size) if size else sampler
    expected = list(source)
    for ahead in range(0, len(expected), 3):
        for consumed in range(0, ahead + 1, 2):
            sampler.set_epoch(9), sampler.set_epoch(0)
            drawing = iter(source)
            for _ in range(ahead):
                next(drawing)
            state = source.state_dict(consumed=consumed)
            assert source.state_dict(consumed=consumed) == state, "asking changes nothing"
            (other,) = samplers(1, seed=8)
            resumed = SpreadBatches(other, size) if size else other
            resumed.load_state_dict(state)
            assert list(resumed) == expected[consumed:]
            resumed.load_state_dict(state)
            again = iter(resumed)
            for _ in range(len(expected) - consumed):
                next(again)
            assert resumed.state_dict()["place"] == COUNT
            assert resumed.state_dict(consumed=0)["place"] == state["place"]


def test_the_next_epoch_is_whole():
    (sampler,) = samplers(1)
    first = list(sampler)
    assert list(sampler) == first, "without set_epoch all have the same order"
    drawing = iter(sampler)
    for _ in range(5):
        next(drawing)
    assert list(sampler) == first, "as of every sampler, also after an epoch that was left"
    sampler.load_state_dict(sampler.state_dict(consumed=50))
    sampler.set_epoch(0)
    assert list(sampler) == first[50:]
    assert list(sampler) == first
    sampler.load_state_dict(sampler.state_dict(consumed=50))
    sampler.set_epoch(1)
    assert sorted(sampler) == list(range(COUNT))
    assert len(sampler) == COUNT


def test_a_loader_may_ask_for_two_iterators():
    """torch's iterator asks for one when it is made, and for another one when it is reset."""
    (sampler,) = samplers(1)
    expected = list(sampler)
    sampler.load_state_dict(sampler.state_dict(consumed=7))
    iter(sampler)
    drawing = iter(sampler)
    assert sampler.state_dict()["place"] == 7
    assert list(drawing) == expected[7:]


def test_a_state_is_of_one_data_set():
    (sampler,) = samplers(1)
    for sizes in ((*DATA.sizes, 1), DATA.sizes[::-1]):
        (other,) = samplers(1, Sharded(*sizes))
        with pytest.raises(ValueError, match=f"the state is of {COUNT} samples in other shards"):
            other.load_state_dict(sampler.state_dict())


def test_a_state_is_plain_numbers():
    (sampler,) = samplers(1)
    next(iter(SpreadBatches(sampler, 3)))
    assert {type(value) for value in sampler.state_dict().values()} == {int}
    assert {type(index) for index in sampler} == {int}


def test_pieces_keep_shards_apart():
    """Also in fewer processes than pieces, each then reads some of the pieces."""
    data = Sharded(*[50] * 40)
    for world in (4, 2):
        opened = [
            {sample // 50 for sample in sampler} for sampler in samplers(world, data, pieces=4)
        ]
        assert sum(map(len, opened)) <= 40 + 3


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="at least one piece, not 0"):
        samplers(1, pieces=0)
    with pytest.raises(ValueError, match="at least one sample, not 0"):
        SpreadBatches(samplers(1)[0], 0)


def test_no_samples_at_all():
    (sampler,) = samplers(1, Sharded())
    assert (list(sampler), list(SpreadBatches(sampler, 4)), len(sampler), sampler.shards) == (
        [],
        [],
        0,
        0,
    )
    sampler.load_state_dict(sampler.state_dict())
