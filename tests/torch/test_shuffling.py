"""The order of a shuffled epoch: what every order must be, whatever the shards."""

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aisfs.torch.shuffling import epoch_order
from tests.support.for_each import for_each

SHARDS = st.lists(st.integers(0, 12), max_size=120)
WINDOWS = st.integers(1, 15)
PIECES = st.integers(1, 9)
SEEDS = st.integers(0, 5)


def numbered(shards):
    """As numbers without gaps, in the order in which they come."""
    numbers = {}
    return np.array([numbers.setdefault(shard, len(numbers)) for shard in shards], np.uint32)


def order_of(shards, *, window, seed=0, epoch=0, pieces=1):
    found = epoch_order(numbered(shards), window=window, seed=seed, epoch=epoch, pieces=pieces)
    return found.tolist()


def most_open(shards, order):
    """How many shards had been begun and not finished, at the worst moment."""
    left = Counter(shards[at] for at in order)
    begun, most = set(), 0
    for at in order:
        begun.add(shards[at])
        most = max(most, len(begun))
        left[shards[at]] -= 1
        if not left[shards[at]]:
            begun.discard(shards[at])
    return most


@given(SHARDS, WINDOWS, SEEDS, SEEDS)
def test_every_sample_once_and_few_shards_open(shards, window, seed, epoch):
    order = order_of(shards, window=window, seed=seed, epoch=epoch)
    assert sorted(order) == list(range(len(shards)))
    assert most_open(shards, order) <= window
    assert order == order_of(shards, window=window, seed=seed, epoch=epoch)


@given(SHARDS, WINDOWS, SEEDS, PIECES)
def test_pieces_share_nothing_and_few_shards_are_open_in_each(shards, window, seed, pieces):
    order = order_of(shards, window=window, seed=seed, pieces=pieces)
    assert sorted(order) == list(range(len(shards)))
    assert all(most_open(shards, order[piece::pieces]) <= window for piece in range(pieces))


@for_each("pieces", [1, 2, 3, 8])
def test_pieces_cut_few_shards(pieces):
    shards = [at // 50 for at in range(2000)]
    order = order_of(shards, window=4, seed=3, pieces=pieces)
    opened = [
        shard for piece in range(pieces) for shard in {shards[at] for at in order[piece::pieces]}
    ]
    assert len(opened) - 40 <= pieces - 1


def test_epochs_and_seeds_differ():
    shards = [at // 10 for at in range(100)]
    orders = {
        tuple(order_of(shards, window=4, seed=seed, epoch=epoch))
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25


def test_samples_of_the_window_are_mixed():
    """Neighbours in the order are of another shard as often as chance has it."""
    window, shards = 8, [at // 200 for at in range(8000)]
    order = order_of(shards, window=window, seed=1)
    changes = sum(shards[a] != shards[b] for a, b in pairwise(order))
    assert 0.8 < changes / len(order) / (1 - 1 / window) < 1.05
    assert order[:200] != sorted(order[:200])


def test_the_first_and_the_last_samples_are_of_a_whole_window():
    window, shards = 8, [at // 200 for at in range(8000)]
    order = order_of(shards, window=window, seed=1)
    assert len({shards[at] for at in order[:100]}) == window
    assert len({shards[at] for at in order[-100:]}) == window


def test_an_order_stays_the_same():
    """In every version of Python, numpy and aisfs, or a job that goes on after an upgrade repeats samples."""
    shards = [at // 4 for at in range(12)]
    assert order_of(shards, window=2, seed=7, epoch=3) == [4, 5, 7, 0, 6, 8, 11, 3, 10, 1, 9, 2]
    assert order_of(shards, window=2, seed=7, epoch=3, pieces=2) == [
        0,
        8,
        5,
        10,
        2,
        3,
        4,
        1,
        7,
        9,
        6,
        11,
    ]


def test_shards_of_any_size_and_number():
    for count in (1, 2, 255, 256, 257, 70_000):
        everything = order_of(range(count), window=count)
        assert sorted(everything) == sorted(order_of([0] * count, window=3)) == list(range(count))
