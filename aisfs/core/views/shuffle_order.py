"""The order of a shuffled epoch that reads every shard once, and the samples of which virtual shards consist.

If all samples of a data set are shuffled, any sample can be next, and a cache smaller than the data
contains few of them. Here shards are shuffled, and samples are drawn from a window of shards: at most
`window` shards are open at any time, and a shard whose samples were all drawn is not opened again in
this epoch. So a cache with room for `window` shards is enough.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from random import Random
from typing import Protocol

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.views.join import JoinedSamples
from aisfs.core.views.merged import DUPLICATE
from aisfs.core.views.samples import Samples
from aisfs.core.views.spec import Component
from aisfs.settings import KeyRule


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


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed of an epoch's virtual shards; epoch 0 has that of the mount."""
    if not epoch:
        return seed
    return int.from_bytes(blake2b(f"{seed}/{epoch}".encode(), digest_size=8).digest())


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


CUT_OFF = "cut off sample"
"""A sample that is truncated in its shard."""
Part = tuple[int, int]
"""A member of a sample: the position of its source, and the row of the index of that source."""


class SampleList(Protocol):
    """The samples of all sources, in their order."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def parts(self, sample: int) -> Sequence[Part]:
        """Return the members of a sample in their order."""
        ...

    @property
    def firsts(self) -> Sequence[int]:
        """The number of the first sample of each source that samples belong to."""
        ...


class SeparateSamples:
    """Samples that lie in one source each."""

    def __init__(self, samples: "Sequence[ShardSamples]") -> None:
        """Put the samples of all sources one after the other."""
        self._samples = samples
        self._starts = list(accumulate(map(len, samples), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def parts(self, sample: int) -> Sequence[Part]:
        """Return the members of a sample in the order of the tar."""
        source = bisect_right(self._starts, sample) - 1
        rows = self._samples[source].rows(sample - self._starts[source])
        return [(source, row) for row in rows]

    @property
    def firsts(self) -> Sequence[int]:
        """The number of the first sample of each source, also of those without any."""
        return self._starts[:-1]


class TogetherSamples:
    """Samples whose parts lie in several sources."""

    def __init__(self, joined: JoinedSamples) -> None:
        """Take the samples of `joined`."""
        self._joined = joined
        self.firsts = [samples[0] for _, samples in joined.homes()]
        """The number of the first sample of each source that has first parts."""

    def __len__(self) -> int:
        return len(self._joined)

    def parts(self, sample: int) -> Sequence[Part]:
        """Return the members of a sample in the order of the sources."""
        shards, rows = self._joined.shards, self._joined.rows
        return [(shards[at], rows[at]) for at in self._joined.parts(sample)]


class ShardSamples:
    """The samples of one tar, as rows of its index, with those of a sample adjacent."""

    def __init__(
        self,
        index: MemberIndex,
        rule: KeyRule,
        require: tuple[Component, ...],
        wanted: Callable[[bytes], bool] | None = None,
    ) -> None:
        """Group the members of `index` that are `wanted`. Of members with one name the last wins."""
        self.index = index
        found = Samples(index, rule, require, wanted)
        self.skipped = found.skipped
        """How many members and samples are left out, by reason."""
        self._rows, self._ends = array("I"), array("I", [0])
        groups: dict[bytes, dict[bytes, int]] = {}
        for part in found:
            last = groups.setdefault(part.key, {})
            name = index.name(part.row)
            self.skipped[DUPLICATE] += name in last
            last[name] = part.row
        for last in groups.values():
            rows = sorted(last.values())
            if any(map(index.truncated, rows)):
                self.skipped[CUT_OFF] += 1
            else:
                self._rows.extend(rows)
                self._ends.append(len(self._rows))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def rows(self, sample: int) -> Sequence[int]:
        """Return the members of a sample in the order of the tar."""
        return self._rows[self._ends[sample] : self._ends[sample + 1]]
