"""The order of a shuffled epoch that reads every shard once.

If all samples of a data set are shuffled, any sample can be next, and a cache smaller than the data
contains few of them. Here shards are shuffled, and samples are drawn from a window of shards: at most
`window` shards are open at any time, and a shard whose samples were all drawn is not opened again in
this epoch. So a cache with room for `window` shards is enough.
"""

from collections.abc import Hashable, Iterator, Sequence
from random import Random


def epoch_order(
    shards: Sequence[Hashable],
    *,
    window: int,
    seed: int,
    epoch: int,
    replicas: int = 1,
    rank: int = 0,
    drop_last: bool = False,
) -> Iterator[int]:
    """Return the samples of one epoch of one replica, as positions in `shards`.

    The order only depends on the arguments, so every process can compute its own share.

    Args:
        shards: The shard of each sample.
        window: How many shards may be open at once, in each replica.
        seed: Each seed has another order.
        epoch: Each epoch has another order.
        replicas: The number of processes that share the samples. The shuffled sequence of shards
            is cut into as many pieces, so that two replicas have at most one shard in common.
        rank: The number of this replica, from 0.
        drop_last: Leave out the samples that cannot be divided evenly; otherwise some replicas
            see one of their samples twice.
    """
    chance = Random(f"{seed}/{epoch}")
    members: dict[Hashable, list[int]] = {}
    for at, shard in enumerate(shards):
        members.setdefault(shard, []).append(at)
    order = list(members)
    chance.shuffle(order)
    for samples in members.values():  # a shard must not always be cut at the same place
        chance.shuffle(samples)
    sequence = [at for shard in order for at in members[shard]]
    length = share_length(len(sequence), replicas, drop_last=drop_last)
    start, end = (len(sequence) * cut // replicas for cut in (rank, rank + 1))
    share = sequence[start:end][:length]
    if len(share) < length:
        share.append(sequence[start])
    mine: dict[Hashable, list[int]] = {}
    for sample in share:
        mine.setdefault(shards[sample], []).append(sample)
    return _mixed(mine, shards, window, chance)


def share_length(samples: int, replicas: int, *, drop_last: bool) -> int:
    """Return the number of samples of each replica."""
    return samples // replicas if drop_last else -(-samples // replicas)


def _mixed(
    members: dict[Hashable, list[int]], shards: Sequence[Hashable], window: int, chance: Random
) -> Iterator[int]:
    """Draw from the first `window` shards; the next is opened when one has nothing left."""
    waiting = iter(members.items())
    left: dict[Hashable, int] = {}
    pool: list[int] = []
    while True:
        while len(left) < window and (following := next(waiting, None)) is not None:
            shard, samples = following
            left[shard] = len(samples)
            pool += samples
        if not pool:
            return
        at = int(chance.random() * len(pool))
        pool[at], pool[-1] = pool[-1], pool[at]
        sample = pool.pop()
        left[shards[sample]] -= 1
        if not left[shards[sample]]:
            del left[shards[sample]]
        yield sample
