"""Which members belong together: neighbours in the tar whose names share a sample key.

The key rule is webdataset's: the path up to the first dot of its last component. It decides here
only what is fetched together, never what a user sees.
"""

from aisfs.core.member_index import MemberIndex
from aisfs.model import ByteRange

SPAN_MAX = 4 << 20
"""Bytes of a sample fetched in one go; a larger one is left to read-ahead inside the member."""
PARTS_MAX = 64
"""Members looked at on either side; a shard whose names have no dots would be one endless sample."""


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
        return ByteRange(own.start, min(own.stop, index.object_size))
    return ByteRange(start, stop)
