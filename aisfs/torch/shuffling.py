"""The order of a shuffled epoch that reads every shard once, as one array.

If all samples of a data set are shuffled, any sample can be next, and a cache smaller than the data
contains few of them. Here shards are shuffled, and each sample gets a random place near that of its shard: at
any time, the samples of at most `window` shards are dealt out, and a shard whose samples were all
dealt out is not opened again in this epoch. So a cache with room for `window` shards is enough.

The order depends on the arguments only, and not on Python's or numpy's generators, which another version may
change: a job that goes on elsewhere finds the same one.

It costs 4 bytes for each sample while it is used; making it takes about 30 more, and a second or two for 10 million.
"""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint32]


def epoch_order(shards: Numbers, *, window: int, seed: int, epoch: int, pieces: int = 1) -> Numbers:
    """Return all samples of an epoch, as positions in `shards`.

    Args:
        shards: The shard of each sample, as numbers from 0 without gaps.
        window: How many shards may be open at once, in each piece.
        seed: Each seed has another order.
        epoch: Each epoch has another order.
        pieces: The shuffled sequence of shards is cut into as many pieces, of which each is shuffled
            alone; then samples are taken from each in turn. Two pieces have at most one shard in common.
    """
    count = len(shards)
    name = f"{seed}/{epoch}"
    kinds = int(shards.max()) + 1 if count else 0
    place = np.empty(kinds, np.uint32)
    place[_shuffled(np.zeros(kinds, np.uint32), 1, f"{name}/shards")] = np.arange(kinds)
    sequence = np.arange(count, dtype=np.uint32)
    if pieces > 1:  # a shard must not always be cut at the same place
        sequence = _shuffled(place[shards], 1, f"{name}/samples")
    order = np.empty(count, np.uint32)
    start = 0
    for number in range(min(pieces, count)):
        piece = sequence[start : start + len(order[number::pieces])]
        start += len(piece)
        places = place[shards[piece]]
        places -= places.min()
        order[number::pieces] = piece[_mixed(places, window, f"{name}/{number}")]
    return order


def _mixed(places: Numbers, window: int, name: str) -> Numbers:
    """Shuffle samples, given the place of the shard of each in the sequence of shards.

    At time t, samples are drawn from the shards t to t + window - 1; the last time is that at which the last
    shard begins. So each shard has a first and a last time, and each of its samples a random one between them.
    """
    times = max(int(places.max()) + 2 - window, 1)
    last = np.minimum(places, times - 1)
    places = np.maximum(places, window - 1)  # from here on the first time of each shard
    places -= window - 1
    return _shuffled(places, last - places + 1, name)


def _shuffled(first: Numbers, length: Numbers | int, name: str) -> Numbers:
    """Sort things by a random moment that each has in an interval of its own."""
    count = len(first)
    times = int(first.max(initial=0)) + int(np.max(length, initial=1))
    number_bits = max(count - 1, 1).bit_length()
    bits = min(32, 64 - number_bits - times.bit_length())
    moments = _random(count, name)
    moments >>= np.uint64(64 - bits)
    moments *= np.asarray(length, np.uint64)
    moments += np.left_shift(first, bits, dtype=np.uint64)
    moments <<= np.uint64(
        number_bits
    )  # whose order is that of the values then, not only of their places
    moments |= np.arange(count, dtype=np.uint64)
    moments.sort()
    moments &= np.uint64((1 << number_bits) - 1)
    return moments.astype(np.uint32)


def _random(count: int, name: str) -> NDArray[np.uint64]:
    """Return random numbers of 64 bits: splitmix64, whose state at any step is known at once."""
    start = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
    found = np.arange(1, count + 1, dtype=np.uint64)
    found *= np.uint64(0x9E3779B97F4A7C15)
    found += np.uint64(start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        found ^= found >> np.uint64(shift)
        found *= np.uint64(factor)
    found ^= found >> np.uint64(31)
    return found
