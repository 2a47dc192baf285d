"""The segments on disk: their files, and what one process knows about them.

Room is charged before it is used: `part_bytes` is the most that writing a part can take. When the
part is written the ledger books what the file takes, as the file system counts it, and what its
list of extents may still grow by (`booked_bytes`). A page with published bytes is only ever given
back by unlinking the file, for others may be reading it.
"""

import errno
import logging
import mmap
import os
import time
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator

import xxhash

from aisfs.cache.directory import (
    HEADER,
    PAGE,
    SEGMENT,
    STEP,
    Damaged,
    EntryId,
    header,
    lost_writes,
    object_size,
    segment_start,
)
from aisfs.cache.ledger import Piece, Row
from aisfs.model import ByteRange, RangeSet
from aisfs.model import pieces as cut
from aisfs.system import daemon
from aisfs.system.locks import Rank, ranked_lock

logger = logging.getLogger(__name__)

_NOT_OPEN, _REFUSED = -1, -2
_LOOK_SECONDS = 0.01
"""How long the length of a file is trusted. Asking takes 1 µs, a twentieth of a small read."""
_opening = ranked_lock(Rank.CACHE_DIRECT_WRITES)


def _replace_lock() -> None:
    """Have a lock in a forked process that no thread of its parent holds."""
    global _opening
    _opening = ranked_lock(Rank.CACHE_DIRECT_WRITES)


os.register_at_fork(after_in_child=_replace_lock)


class SegmentFile:
    """An open and mapped file. It is closed when nothing refers to it or a view of it any more."""

    __slots__ = ("_direct", "_look_at", "_lost", "base", "descriptor", "size", "view")
    _refusals = 0
    """Of all files: it is logged once."""

    def __init__(self, descriptor: int, base: int, size: int, mapping: mmap.mmap) -> None:
        """Use `create` or `open`."""
        self.descriptor = descriptor
        self.base = base - HEADER
        """What to subtract from an offset in the object."""
        self.size = size
        """Size of the object."""
        self.view = memoryview(mapping)
        self._direct = _NOT_OPEN
        """A descriptor that writes past the page cache."""
        self._look_at = 0.0
        self._lost: OSError | None = None

    def __del__(self) -> None:
        # A thread may be inside `pwrite` when the segment is forgotten, and the number of a closed
        # descriptor is reused at once; so only the last reference closes it.
        os.close(self.descriptor)
        if self._direct >= 0:
            os.close(self._direct)

    @classmethod
    def create(cls, descriptor: int, entry: EntryId, number: int) -> "SegmentFile":
        """Write the header of a new file and set its length; takes the descriptor over.

        Raises:
            OSError: no space, for example.
        """
        try:
            base = number * SEGMENT
            write(descriptor, 0, header(entry, number))
            os.ftruncate(descriptor, _file_length(base, entry.size))
            return cls(descriptor, base, entry.size, _map(descriptor))
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def open(cls, descriptor: int, key: bytes) -> "SegmentFile":
        """Verify that a file is that of the segment `key`; takes the descriptor over.

        Raises:
            Damaged: it is not what it should be.
            OSError: the disk fails.
        """
        try:
            size = object_size(os.pread(descriptor, HEADER, 0), key)
            base = segment_start(key)
            length = os.fstat(descriptor).st_size
            if length != _file_length(base, size):
                raise Damaged(f"{length} bytes long instead of {_file_length(base, size)}")
            return cls(descriptor, base, size, _map(descriptor))
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def has_full_length(self) -> bool:
        """True while it is as long as it was when it was mapped."""
        return os.fstat(self.descriptor).st_size == len(self.view)

    def seems_intact(self) -> bool:
        """Return whether it had its full length, and no write to it had failed, a moment ago.

        Otherwise pages of it may read as zeros.
        """
        now = time.monotonic()
        if now < self._look_at:
            return True
        if not self.has_full_length or self.write_error() is not None:
            return False
        self._look_at = now + _LOOK_SECONDS
        return True

    def write_error(self) -> OSError | None:
        """Return the error if the kernel failed to write pages of it to the disk later on.

        Such pages look good as long as they stay in memory, and are lost when memory gets short. The
        kernel reports this once for each open file, so it is remembered.
        """
        if self._lost is None:
            self._lost = lost_writes(self.descriptor)
        return self._lost

    def will_need(self, wanted: ByteRange) -> None:
        """Have the kernel read a range of the object from the disk, and nothing around it. Does not wait."""
        os.posix_fadvise(
            self.descriptor, wanted.start - self.base, len(wanted), os.POSIX_FADV_WILLNEED
        )

    def write(self, start: int, data: memoryview, *, past_page_cache: bool) -> None:
        """Write bytes of the object.

        Only complete pages go past the page cache, and only where file system and memory permit it.
        Mappings of the file do not see old bytes: the kernel drops the pages it had.

        Raises:
            OSError: no space, for example.
        """
        at = start - self.base
        if past_page_cache:
            head = min(-at % PAGE, len(data))
            write(self.descriptor, at, data[:head])
            pages = (len(data) - head) // PAGE * PAGE
            done = head + self._write_directly(at + head, data[head : head + pages])
            at, data = at + done, data[done:]
        write(self.descriptor, at, data)

    def _write_directly(self, at: int, data: memoryview) -> int:
        """Write pages; return how many bytes the kernel took that way."""
        done = 0
        try:
            if self._direct == _NOT_OPEN:
                self._open_directly()
            while self._direct >= 0 and done < len(data):
                done += os.pwrite(self._direct, data[done:], at + done)
        except OSError as error:
            if error.errno != errno.EINVAL:  # the alignment in memory, or the length
                raise
        return done

    def _open_directly(self) -> None:
        with _opening:
            if self._direct == _NOT_OPEN:
                again = f"/proc/self/fd/{self.descriptor}"
                try:
                    self._direct = os.open(again, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
                except OSError as error:  # a file system without, or too many open files
                    self._direct = _REFUSED
                    if not SegmentFile._refusals:
                        logger.info("the disk cache is written through the page cache: %s", error)
                    SegmentFile._refusals += 1

    def read(self, start: int, stop: int) -> bytes:
        """Read bytes of the object: a failing disk is an error here, and SIGBUS for a view.

        Raises:
            OSError: the disk fails.
        """
        return os.pread(self.descriptor, stop - start, start - self.base)

    def read_into(self, start: int, room: memoryview) -> bool:
        """Fill `room` with the bytes from `start` on; return whether the file has all of them.

        Raises:
            OSError: the disk fails.
        """
        return os.preadv(self.descriptor, [room], start - self.base) == len(room)

    def sum_up(self, start: int, stop: int) -> int:
        """Compute the checksum of bytes of the object; -1 if the file ends before.

        Raises:
            OSError: the disk fails.
        """
        data = self.read(start, stop)
        return xxhash.xxh3_64_intdigest(data) if len(data) == stop - start else -1


def write(descriptor: int, offset: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of `data`.

    Raises:
        OSError: no space, for example.
    """
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest = rest[written:]
        offset += written


def sums_of(file: SegmentFile, piece: ByteRange) -> bytes | None:
    """Compute the checksums of a piece; None if the file ends before.

    Raises:
        OSError: the disk fails.
    """
    data = file.read(piece.start, piece.stop)
    return sums_of_bytes(piece, memoryview(data)) if len(data) == len(piece) else None


def sums_of_bytes(piece: ByteRange, data: memoryview) -> bytes:
    """Compute the checksums of a piece from its bytes."""
    base = piece.start
    sums = (
        xxhash.xxh3_64_intdigest(data[step.start - base : step.stop - base])
        for step in cut(piece, STEP)
    )
    return array("Q", sums).tobytes()


def _map(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


def _file_length(base: int, size: int) -> int:
    """Length of the file of the segment that starts at `base` of an object of `size` bytes."""
    return HEADER + max(0, min(SEGMENT, size - base))


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
            if closed.write_error() is not None:  # the next open file would not see it
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
    """One segment, as this process knows it. Guarded by the lock of `cache.resident`."""

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
        self.start = segment_start(row.key)
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
