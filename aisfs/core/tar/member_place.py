"""The bytes of one member, fetched because an index says where they are, compared with that index."""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.paths import HiddenName, normalise
from aisfs.core.tar.header import BLOCK, parse_header

SHORT_NAME = 100
"""Bytes of a name for which a header block has room, if they are ASCII; others may be in blocks before it."""


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """Where a plain tar has a small member: the last of its header blocks, then the content."""

    start: int
    """Of that block."""
    stop: int
    name: bytes
    """The path of the member."""
    alone: bool
    """Whether that block is its only header, and so has to say everything."""

    @property
    def offset(self) -> int:
        """Where the content starts."""
        return self.start + BLOCK

    def __len__(self) -> int:
        return self.stop - self.start

    def content(self, data: memoryview) -> memoryview | None:
        """Return the content out of all bytes of the place; None if they are not those of this member."""
        header = parse_header(bytes(data[:BLOCK]))
        if header is None or (self.alone and header.size != self.stop - self.offset):
            return None
        return data[BLOCK:] if not self.alone or self.is_named_in(data) else None

    def is_named_in(self, data: memoryview) -> bool:
        """Return whether the header has the name of the member, as far as one block can have it."""
        if not self.alone and (len(self.name) > SHORT_NAME or not self.name.isascii()):
            return True  # other blocks have the name
        header = parse_header(bytes(data[:BLOCK]))
        try:
            # Of members of tars in the shard the header knows but the end of the path.
            return header is not None and self.name.endswith(normalise(header.name))
        except HiddenName:
            return False


def member_places(index: MemberIndex, rows: Iterable[int]) -> list[MemberPlace]:
    """Return where an index has members, by offset; without links and what is not stored as it is."""
    columns = index.columns
    places = [
        MemberPlace(
            columns.offsets[row] - BLOCK,
            columns.offsets[row] + columns.sizes[row],
            index.name(row),
            columns.leads[row] == 1,
        )
        for row in rows
        if index.plain(row) and columns.offsets[row] >= BLOCK
    ]
    return sorted(places, key=attrgetter("start"))
