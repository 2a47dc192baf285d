"""The order of a shuffled epoch: what every order must be, whatever the shards."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.views.shuffle_order import epoch_order, share_length
from tests.support.for_each import for_each

SHARDS = st.lists(st.integers(0, 12), max_size=120)
WINDOWS = st.integers(1, 15)
SEEDS = st.integers(0, 5)


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
    order = list(epoch_order(shards, window=window, seed=seed, epoch=epoch))
    assert sorted(order) == list(range(len(shards)))
    assert most_open(shards, order) <= window
    assert order == list(epoch_order(shards, window=window, seed=seed, epoch=epoch))


@given(SHARDS, WINDOWS, SEEDS, st.integers(1, 9), st.booleans())
def test_replicas_share_nothing_and_get_as_much(shards, window, seed, replicas, drop_last):
    shares = [
        list(
            epoch_order(
                shards, window=window, seed=seed, epoch=0,
                replicas=replicas, rank=rank, drop_last=drop_last,
            )
        )
        for rank in range(replicas)
    ]  # fmt: skip
    length = share_length(len(shards), replicas, drop_last=drop_last)
    assert [len(share) for share in shares] == [length] * replicas
    assert all(most_open(shards, share) <= window for share in shares)
    seen = Counter(at for share in shares for at in share)
    spare = length * replicas - len(shards)
    assert -replicas < spare < replicas
    if drop_last:
        assert all(count == 1 for count in seen.values())
        assert len(seen) == len(shards) + spare
    else:
        assert set(seen) == set(range(len(shards)))
        assert sum(count - 1 for count in seen.values()) == spare


@for_each("replicas", [1, 2, 3, 8])
def test_replicas_cut_few_shards(replicas):
    shards = [at // 50 for at in range(2000)]
    opened = Counter()
    for rank in range(replicas):
        share = epoch_order(shards, window=4, seed=3, epoch=0, replicas=replicas, rank=rank)
        opened.update({shards[at] for at in share})
    assert sum(opened.values()) - 40 <= replicas - 1


def test_epochs_and_seeds_differ():
    shards = [at // 10 for at in range(100)]
    orders = {
        tuple(epoch_order(shards, window=4, seed=seed, epoch=epoch))
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25


def test_samples_of_the_window_are_mixed():
    """Neighbours in the order are of another shard as often as chance has it."""
    window, shards = 8, [at // 200 for at in range(8000)]
    order = list(epoch_order(shards, window=window, seed=1, epoch=0))
    changes = sum(shards[a] != shards[b] for a, b in pairwise(order))
    assert 0.8 < changes / len(order) / (1 - 1 / window) < 1.05
    assert order[:200] != sorted(order[:200])


@given(st.permutations(list("abcdef")), SEEDS)
def test_names_of_shards_do_not_matter(names, seed):
    shards = [at % 6 for at in range(60)]
    renamed = [names[shard] for shard in shards]
    assert list(epoch_order(shards, window=2, seed=seed, epoch=0)) == list(
        epoch_order(renamed, window=2, seed=seed, epoch=0)
    )
