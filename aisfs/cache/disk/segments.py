"""What one process knows about the segments on disk, and the files it has open.

Room is charged before it is used: `part_bytes` is the most that writing a part can take. When the
part is written the ledger books what the file takes, as the file system counts it, and what its
list of extents may still grow by (`booked_bytes`). A page with published bytes is only ever given
back by unlinking the file, for others may be reading it.
"""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from aisfs.cache.disk import format as entries
from aisfs.cache.disk.format import PAGE, STEP
from aisfs.cache.disk.ledger import Piece, Row
from aisfs.cache.disk.segment_file import SegmentFile
from aisfs.core.ranges import RangeSet
from aisfs.model import ByteRange
from aisfs.system import daemon

OPEN_FILES = 192
"""Segments mapped at a time, at most: 3 GiB. Mapping one again takes some 30 µs."""
_SHARE = 12
"""One descriptor of so many is for a segment. Its mapping has a second one, and writing past the page
cache a third, so segments take a quarter of all: the rest is for connections."""
_INLINE_EXTENTS = 4
"""Extents that ext4 keeps in the inode."""
_EXTENTS_PER_BLOCK = 64
"""Extents in each block of ext4's tree, at least: 340 fit, and pages written in the order of a
bisection left 93 in one."""

Step = tuple[int, int, int]
"""Start and stop in the object, and the checksum."""


def part_bytes(part: ByteRange) -> int:
    """Return the most that writing a part of a segment can add to its file."""
    pages = -(-part.stop // PAGE) - part.start // PAGE
    return PAGE * (pages + 1 + pages // _EXTENTS_PER_BLOCK)


def booked_bytes(taken: int) -> int:
    """Return the most that a file can take later which takes `taken` bytes now.

    What was just written has its blocks reserved. Its extents are made when the kernel writes it to
    the disk, and then the tree that lists them grows.
    """
    pages = taken // PAGE
    tree = 0 if pages <= _INLINE_EXTENTS else 1 + pages // _EXTENTS_PER_BLOCK
    return taken + PAGE * tree


class OpenFiles:
    """The open files, least recently used first: `OPEN_FILES` at most, within their share of descriptors."""

    def __init__(self) -> None:
        self._files: OrderedDict[Segment, SegmentFile] = OrderedDict()

    def __iter__(self) -> Iterator[tuple["Segment", SegmentFile]]:
        return iter(self._files.items())

    def put(self, segment: "Segment", file: SegmentFile) -> None:
        """Keep a file open, and close the least recently used one if there are too many."""
        segment.file = file
        self._files[segment] = file
        most = min(OPEN_FILES, max(1, daemon.allowed() // _SHARE))
        while len(self._files) > most:
            oldest, closed = self._files.popitem(last=False)
            oldest.file = None
            if closed.write_error() is not None:  # the kernel does not tell the next open file
                oldest.distrust()

    def use(self, segment: "Segment") -> None:
        """Count a use of the open file of a segment."""
        self._files.move_to_end(segment)

    def drop(self, segment: "Segment") -> None:
        """Close the file of a segment, if it is open."""
        segment.file = None
        self._files.pop(segment, None)


_NO_STEPS = array("Q")


class Segment:
    """One segment, as this process knows it. Guarded by the lock of the resident set."""

    __slots__ = (
        "_starts", "_stops", "bytes", "file", "gone", "id", "idle", "key", "leased", "pending",
        "pieces", "pinned", "promised", "spent", "stale", "start", "sums", "used_at", "valid",
        "verified"
    )  # fmt: skip

    def __init__(self, row: Row) -> None:
        """Start with what the ledger knows."""
        self.id = row.id
        self.key = row.key
        self.bytes = row.bytes
        """Booked by the ledger."""
        self.pieces = row.pieces
        self.used_at = row.used_at
        self.start = entries.segment_start(row.key)
        self.stale = row.pieces > 0
        """The ledger has pieces that are not loaded."""
        self.gone = False
        self.file: SegmentFile | None = None
        self.valid = RangeSet()
        self.verified = RangeSet()
        """The valid bytes that this process wrote or has verified."""
        self._starts = self._stops = self.sums = _NO_STEPS
        """The steps that were loaded, with their checksums."""
        self.pinned = False
        """Its entry is pinned."""
        # While this process is a writer:
        self.leased = False
        self.idle = False
        self.promised = 0
        """Bytes of the grant that reservations under way may use."""
        self.spent = 0
        """Bytes of the grant that finished reservations may have used and the ledger has not booked."""
        self.pending: list[Piece] = []
        """Published, not yet in the ledger."""

    def __repr__(self) -> str:
        return f"<Segment {self.id} {self.bytes} bytes, {self.valid.total} valid>"

    # Pieces ------------------------------------------------------------------------------------

    def load(self, loaded: Iterable[Piece]) -> None:
        """Load the pieces that the ledger has."""
        steps: list[Step] = []
        for start, stop, sums in loaded:
            whole = ByteRange(start, stop)
            self.valid.add(whole)
            if not self.verified.covers(whole):
                steps += zip(*_steps(whole), array("Q", sums), strict=False)
        steps.sort()
        self._starts = array("Q", [step[0] for step in steps])
        self._stops = array("Q", [step[1] for step in steps])
        self.sums = array("Q", [step[2] for step in steps])
        self.stale = False

    def distrust(self) -> None:
        """Verify everything again before it is read."""
        self.verified = RangeSet()
        self.stale = True

    def unverified(self, wanted: ByteRange) -> list[Step]:
        """Return the steps that have to be verified before `wanted` can be read."""
        if not self.sums or self.verified.covers(wanted):
            return []
        found = []
        for place in range(bisect_left(self._starts, max(0, wanted.start - STEP)), len(self.sums)):
            start, stop = self._starts[place], self._stops[place]
            if start >= wanted.stop:
                break
            if stop > wanted.start and not self.verified.covers(ByteRange(start, stop)):
                found.append((start, stop, self.sums[place]))
        return found

    def publish(self, piece: ByteRange, sums: bytes) -> None:
        """Make bytes readable that this process has written."""
        self.valid.add(piece)
        self.verified.add(piece)
        self.pending.append((piece.start, piece.stop, sums))

    # Room --------------------------------------------------------------------------------------

    @property
    def owed(self) -> int:
        """Bytes of the grant that this segment takes."""
        return self.promised + self.spent

    @property
    def quiet(self) -> bool:
        """Nothing is being written, and the ledger knows everything."""
        return not (self.promised or self.spent or self.pending)

    @property
    def empty(self) -> bool:
        """Nothing is in it, as far as is known here, and nothing is being written."""
        return not (self.gone or self.promised or self.valid or self.pieces)


def _steps(piece: ByteRange) -> tuple[list[int], list[int]]:
    starts = list(range(piece.start, piece.stop, STEP))
    return starts, [*starts[1:], piece.stop]
