"""What one process knows about the segments on disk, and the files it has open.

Pages of a segment are counted with bit masks, one bit per page of data. A page is *booked* when the
ledger counts it for the segment, *charged* when it is paid from the grant of this process, and
*written* when this process may have written to it. A page with published bytes is never given back
other than by unlinking the file, for others may be reading it.
"""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from aisfs.cache.disk import format as entries
from aisfs.cache.disk.format import PAGE, SEGMENT, STEP
from aisfs.cache.disk.ledger import Piece, Row
from aisfs.cache.disk.segment_file import SegmentFile
from aisfs.core.ranges import RangeSet
from aisfs.model import ByteRange
from aisfs.process import descriptors

OPEN_FILES = 192
"""Segments mapped at a time, at most: 3 GiB. Mapping one again takes some 30 µs."""
_SHARE = 12
"""One of so many descriptors is that of a segment. A mapping has one too, and writing past the page
cache a third, so all of them take a quarter: the rest is for connections."""
_INLINE_RUNS = 3
"""Extents that ext4 keeps in the inode, besides the header's."""
_RUNS_PER_BLOCK = 64
"""Extents per block of ext4's tree: 340 fit, blocks split in the middle are half full, and pages that
come in any order left 80 in one."""
_SCATTERED = 512
"""Pages from which on each is taken for an extent of its own, though neighbours: the kernel may write
them out one by one when memory is short, and 0.8 % more room is a small price. Of smaller files the
few extents are within the margin."""

Step = tuple[int, int, int]
"""Start and stop in the object, and the checksum."""


def pages_of(start: int, stop: int) -> int:
    """Give the pages that bytes of a segment, counted from its start, lie on."""
    return (1 << -(-stop // PAGE)) - (1 << start // PAGE)


def pages_of_pieces(pieces: Iterable[Piece]) -> int:
    """Give the pages that pieces of one segment lie on."""
    pages = 0
    for start, stop, _ in pieces:
        base = start // SEGMENT * SEGMENT
        pages |= pages_of(start - base, stop - base)
    return pages


def disk_bytes(pages: int) -> int:
    """Bytes that the file of a segment takes with these pages of data: also header and extents."""
    extents = (pages & ~(pages << 1)).bit_count()
    count = pages.bit_count()
    if count >= _SCATTERED:
        extents = count
    blocks = 0 if extents <= _INLINE_RUNS else 2 + extents // _RUNS_PER_BLOCK
    return PAGE * (1 + count + blocks)


def runs_of(pages: int) -> Iterator[tuple[int, int]]:
    """Give (first, behind the last) of each run of pages."""
    first = 0
    while pages:
        skipped = (pages & -pages).bit_length() - 1
        pages >>= skipped
        length = (~pages & (pages + 1)).bit_length() - 1
        yield first + skipped, first + skipped + length
        first += skipped + length
        pages >>= length


class OpenFiles:
    """The files that are open, at most `OPEN_FILES` and within their share of descriptors; the ones
    not used for longest go."""

    def __init__(self) -> None:
        self._files: OrderedDict[Segment, SegmentFile] = OrderedDict()

    def __iter__(self) -> Iterator[tuple["Segment", SegmentFile]]:
        return iter(self._files.items())

    def put(self, segment: "Segment", file: SegmentFile) -> None:
        """Keep a file."""
        segment.file = file
        self._files[segment] = file
        most = min(OPEN_FILES, max(1, descriptors.allowed() // _SHARE))
        while len(self._files) > most:
            oldest, closed = self._files.popitem(last=False)
            oldest.file = None
            if closed.write_error() is not None:  # which the file that is opened next is not told
                oldest.distrust()

    def use(self, segment: "Segment") -> None:
        """Say that the file of a segment is used; it has one."""
        self._files.move_to_end(segment)

    def drop(self, segment: "Segment") -> None:
        """Let a file go."""
        segment.file = None
        self._files.pop(segment, None)


_NO_STEPS = array("Q")


class Segment:
    """One segment, as this process knows it. Guarded by the lock of the resident set."""

    __slots__ = (
        "_starts", "_stops", "active", "booked", "bytes", "charged", "counted", "file",
        "gone", "id", "idle", "key", "leased", "pending", "pieces", "pinned", "stale",
        "start", "sums", "surplus", "used_at", "valid", "verified", "written"
    )  # fmt: skip

    def __init__(self, row: Row) -> None:
        """Know what the ledger knows."""
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
        """Of the valid ones those that this process wrote or has verified."""
        self._starts = self._stops = self.sums = _NO_STEPS
        """Checksums of the steps that were loaded."""
        self.counted = row.bytes
        """What admission believes it takes."""
        self.pinned = False
        """Its entry is pinned."""
        # While this process is a writer:
        self.leased = False
        self.idle = False
        self.active: list[int] = []
        """The pages of each reservation under way."""
        self.booked = self.charged = self.written = 0
        self.surplus = 0
        """Booked bytes for pages that are not known here."""
        self.pending: list[Piece] = []
        """Published, not yet in the ledger."""

    def __repr__(self) -> str:
        return f"<Segment {self.id} {self.bytes} bytes, {self.valid.total} valid>"

    # Pieces ------------------------------------------------------------------------------------

    def load(self, loaded: Iterable[Piece]) -> None:
        """Take over the pieces of the ledger."""
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
        """Have everything verified again before it is read."""
        self.verified = RangeSet()
        self.stale = True

    def unverified(self, wanted: ByteRange) -> list[Step]:
        """Give the steps that have to be verified before `wanted` can be read."""
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

    # Pages -------------------------------------------------------------------------------------

    def pages(self, part: ByteRange) -> int:
        """Give the pages that a part of this segment lies on."""
        return pages_of(part.start - self.start, part.stop - self.start)

    def lease(self, row: Row) -> None:
        """Become a writer; all pieces of the ledger are loaded."""
        self.leased = True
        self.bytes = row.bytes
        self.booked = 0
        for each in self.valid:
            self.booked |= self.pages(each)
        self.surplus = max(0, row.bytes - disk_bytes(self.booked)) if row.bytes else 0
        self.charged = self.written = 0

    def release(self) -> None:
        """Stop being a writer; everything is booked."""
        self.leased = self.idle = False
        self.booked = self.charged = self.written = self.surplus = 0

    @property
    def quiet(self) -> bool:
        """Nothing is being written, and the ledger knows everything."""
        return not (self.active or self.pending or self.charged & self.written)

    @property
    def empty(self) -> bool:
        """Nothing is in it, as far as is known here, and nothing is being written."""
        return not (self.gone or self.active or self.valid or self.pieces)

    @property
    def owed(self) -> int:
        """Bytes of the grant that this segment takes."""
        if not self.leased or not (self.booked | self.charged):
            return 0
        return disk_bytes(self.booked | self.charged) + self.surplus - self.bytes

    @property
    def bookable(self) -> tuple[int, int]:
        """Give the pages to be booked next, and by how many bytes the booking grows."""
        pages = self.charged & self.written
        if not pages:
            return 0, 0
        return pages, disk_bytes(self.booked | pages) + self.surplus - self.bytes

    def book(self, pages: int, extra: int, pieces: int) -> None:
        """Take over what the ledger has recorded."""
        self.booked |= pages
        self.charged &= ~pages
        self.bytes += extra
        self.pieces += pieces
        del self.pending[:pieces]

    def end(self, pages: int) -> None:
        """Let go of the pages that a reservation has not written and no other one needs."""
        self.active.remove(pages)
        needed = self.written
        for others in self.active:
            needed |= others
        self.charged &= needed


def _steps(piece: ByteRange) -> tuple[list[int], list[int]]:
    starts = list(range(piece.start, piece.stop, STEP))
    return starts, [*starts[1:], piece.stop]
