"""Detection of whether the members of a sample are read together or far apart."""

from collections.abc import Hashable

from cachetools import LRUCache

SAMPLES_MAX = 50_000
"""Most samples remembered, in some 15 MB. A forgotten one is fetched whole."""
CLOSE = 64
"""Most fetches between two members of one sample that are read together, since some dozens of
workers take turns."""


class SampleAffinity:
    """Decides whether to fetch the rest of a sample with one of its members.

    The rest is fetched until a member is requested whose sample was fetched with another member and
    evicted: then its members are read far apart, and the cache is too small. From then on each is
    fetched alone, until two are requested close together.
    """

    def __init__(self) -> None:
        """Start without any samples."""
        self._fetches = 0
        self._samples: LRUCache[Hashable, tuple[int, int, bool]] = LRUCache(SAMPLES_MAX)
        """By sample: the row it was last fetched for, when, and whether that row was fetched alone."""

    def alone(self, sample: Hashable, row: int) -> bool:
        """Record that `row` has to be fetched; return whether to fetch it without its sample."""
        self._fetches += 1
        leader, when, alone = self._samples.get(sample, (row, 0, False))
        if row != leader:
            together = self._fetches - when <= CLOSE
            # Next time the member that is requested first brings the rest.
            self._samples[sample] = (leader if together else row, self._fetches, not together)
            return True
        self._samples[sample] = (row, self._fetches, alone)
        return alone
