"""The samples of which virtual shards consist: of one source after the other, or of several joined."""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Protocol

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.views.join import JoinedSamples
from aisfs.core.views.merged import DUPLICATE
from aisfs.core.views.samples import Samples
from aisfs.core.views.spec import Component
from aisfs.settings import KeyRule


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed of an epoch's virtual shards; epoch 0 has that of the mount."""
    if not epoch:
        return seed
    return int.from_bytes(blake2b(f"{seed}/{epoch}".encode(), digest_size=8).digest())


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
        names, whole = index.names(), index.all_plain(0, len(index))
        for part in found:
            last = groups.setdefault(part.key, {})
            name = names[part.row]
            if name in last:
                self.skipped[DUPLICATE] += 1
            last[name] = part.row
        for last in groups.values():
            rows = sorted(last.values())
            if not whole and any(map(index.truncated, rows)):
                self.skipped[CUT_OFF] += 1
            else:
                self._rows.extend(rows)
                self._ends.append(len(self._rows))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def rows(self, sample: int) -> Sequence[int]:
        """Return the members of a sample in the order of the tar."""
        return self._rows[self._ends[sample] : self._ends[sample + 1]]
