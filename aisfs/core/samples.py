"""Which members belong together: neighbours in the tar whose names share a sample key.

The key rule is webdataset's: the path up to the first dot of its last component. It decides here
only what is fetched together, never what a user sees.
"""

from collections.abc import Hashable

from cachetools import LRUCache

from aisfs.core.member_index import MemberIndex
from aisfs.model import ByteRange

SPAN_MAX = 4 << 20
"""Bytes of a sample fetched in one go; a larger one is left to read-ahead inside the member."""
PARTS_MAX = 64
"""Members looked at on either side; a shard whose names have no dots would be one endless sample."""

SAMPLES_MAX = 50_000
"""Samples of which is remembered how they are read: some 15 MB. A forgotten one is fetched whole."""
CLOSE = 64
"""Fetches between two members of one sample that still count as reading them together: some dozens
of workers take turns."""


def sample_key(name: bytes) -> bytes:
    """Give the part of a member's path that its sample shares."""
    directory, slash, base = name.rpartition(b"/")
    return directory + slash + base.split(b".", 1)[0]


def sample_span(index: MemberIndex, row: int) -> ByteRange:
    """Give the stored bytes of the sample that `row` belongs to, headers between members included.

    It is cut to the member alone where the sample is too large to be fetched for one of its parts.
    """
    key = sample_key(index.name(row))
    first = last = row
    while first > max(0, row - PARTS_MAX) and sample_key(index.name(first - 1)) == key:
        first -= 1
    while last < min(len(index) - 1, row + PARTS_MAX) and sample_key(index.name(last + 1)) == key:
        last += 1
    own = index.data_range(row)
    # A hardlink has its data where its target is, far from its neighbours.
    start = min(index.data_range(first).start, own.start)
    stop = max(index.data_range(last).stop, own.stop)
    stop = min(stop, index.object_size)
    if stop - start > max(SPAN_MAX, len(own)):
        return member_span(index, row)
    return ByteRange(start, stop)


def member_span(index: MemberIndex, row: int) -> ByteRange:
    """Give the stored bytes of one member, as far as the shard has them."""
    own = index.data_range(row)
    return ByteRange(own.start, min(own.stop, index.object_size))


class SampleHabit:
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
