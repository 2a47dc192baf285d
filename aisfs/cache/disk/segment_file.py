"""The file of one segment: create, open, map, read, write it, and compute checksums of it."""

import errno
import logging
import mmap
import os
import time
from array import array

import xxhash

from aisfs.cache.disk import format as entries
from aisfs.cache.disk.directory import lost_writes
from aisfs.cache.disk.format import HEADER, PAGE, SEGMENT, STEP, Damaged, EntryId
from aisfs.core.ranges import pieces as cut
from aisfs.model import ByteRange
from aisfs.system.locks import Rank, ranked_lock

logger = logging.getLogger(__name__)

_NOT_OPEN, _REFUSED = -1, -2
_LOOK_SECONDS = 0.01
"""How long the length of a file is trusted. Asking takes 1 µs, a twentieth of a small read."""
_opening = ranked_lock(Rank.CACHE_DIRECT_WRITES)


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
            write(descriptor, 0, entries.header(entry, number))
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
            size = entries.object_size(os.pread(descriptor, HEADER, 0), key)
            base = entries.segment_start(key)
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
