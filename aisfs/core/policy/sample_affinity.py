"""Whether the members of a sample are read together, or far apart."""

from collections.abc import Hashable

from cachetools import LRUCache

SAMPLES_MAX = 50_000
"""Samples of which is remembered how they are read: some 15 MB. A forgotten one is fetched whole."""
CLOSE = 64
"""Fetches between two members of one sample that still count as reading them together: some dozens
of workers take turns."""


class SampleAffinity:
    """Whether the rest of a sample is worth fetching with one of its members.

    It is, until a member is asked for whose sample was fetched with another one and is there no
    more: the members of a sample are read far apart, and the cache had no room for it. From then on
    each is fetched alone, until two are asked for close together.
    """

    def __init__(self) -> None:
        """Know nothing of any sample."""
        self._fetches = 0
        self._samples: LRUCache[Hashable, tuple[int, int, bool]] = LRUCache(SAMPLES_MAX)
        """By sample: the row it was last fetched for, when, and whether that came alone."""

    def alone(self, sample: Hashable, row: int) -> bool:
        """Tell that `row` has to be fetched; say whether to fetch it without its sample."""
        self._fetches += 1
        leader, when, alone = self._samples.get(sample, (row, 0, False))
        if row != leader:
            together = self._fetches - when <= CLOSE
            # Next time the rest shall come with the one that is asked for first.
            self._samples[sample] = (leader if together else row, self._fetches, not together)
            return True
        self._samples[sample] = (row, self._fetches, alone)
        return alone
