"""Ranges of objects in memory: under way from the store, or landed."""

import mmap
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import trio

from aisfs.errors import untraced
from aisfs.model import ByteRange
from aisfs.process.request_log import DISK, request_log
from aisfs.process.threads import any_thread

PART_MAX = 8 << 20
"""Bytes of one GET. Two round trips of 1 ms then cost a fifth at 1 GB/s, and a reader that needs
the first byte of a part waits 8 ms for it."""
FIRST_PART = 1 << 20
"""Bytes of the first GET of a whole object; the next ones are larger (`core.ranges.GROWTH`)."""
COPIED_MAX = 1 << 20
"""Bytes that the trio thread copies from the disk cache itself: one READ of the kernel, 0.1 ms."""
BUFFERS_MAX = 16
"""Free buffers kept at most: 128 MiB, what one fast reader has under way."""

BOOKS = 2048
"""Bytes that a part costs beside its content: itself, its event, the object it belongs to, its places
in dicts. 1,840 were measured; what small objects take is mostly this."""

_LENT_FROM = 64 << 10
"""Bytes from which fresh memory costs more than the copy into it: it is mapped page by page."""
_LENT_MAX = 4
"""Buffers of `COPIED_MAX` that are lent; most are free again as soon as the kernel has a reply."""

_UNREAD_TAIL = 16 << 10
"""Bytes at the end of a part that a reader of members may leave out: padding and the next header."""

Data = bytes | bytearray | memoryview


def _new_buffer(size: int) -> mmap.mmap:
    """Return fresh memory in large pages: a hundredth of the page faults of small ones."""
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without large pages
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


class ReadCounts:
    """Bytes that readers and pushes got, by where they were.

    Threads may count at once: about right is good enough.
    """

    __slots__ = ("disk", "memory", "network")

    def __init__(self) -> None:
        """Start at zero."""
        self.disk = 0
        """In the disk cache."""
        self.memory = 0
        """In parts that had landed."""
        self.network = 0
        """In parts that had to be waited for."""


class BufferPool:
    """Buffers of `PART_MAX` bytes that are used again: fresh memory costs more than the copy into it."""

    def __init__(self, limit: int) -> None:
        """Start with none; keep at most `limit` bytes of them."""
        self._free: list[mmap.mmap] = []
        self._spare = 0
        """How many of these, the first ones, were not needed since the last `let_go`."""
        self._most = min(BUFFERS_MAX, limit // PART_MAX)
        self._lent: deque[mmap.mmap] = deque()
        self.read = ReadCounts()
        """What was read of all parts that have their buffers here, and past them from the disk cache."""

    def take(self, length: int) -> mmap.mmap | bytearray:
        """Return a buffer of at least `length` bytes; what is in it is undefined.

        Of `FIRST_PART` or more it begins on a page, as writing past the page cache wants it.
        """
        if length < FIRST_PART:
            return bytearray(length)
        try:
            buffer = self._free.pop()
        except IndexError:
            return _new_buffer(PART_MAX)
        self._spare = min(self._spare, len(self._free))
        return buffer

    def give_back(self, buffer: mmap.mmap | bytearray) -> None:
        """Take a buffer back that is no longer filled or read; one with views of it is left."""
        if isinstance(buffer, bytearray) or len(self._free) >= self._most:
            return
        try:
            buffer.resize(PART_MAX)  # to the size it has; refused while a view exists
        except BufferError:
            return
        self._free.append(buffer)

    @any_thread
    def lend(self, length: int) -> memoryview:
        """Return room for bytes, which is used again once there is no view of it."""
        if not _LENT_FROM <= length <= COPIED_MAX:
            return memoryview(bytearray(length))
        for _ in range(_LENT_MAX):
            try:
                buffer = self._lent.popleft()  # so that no other thread has it
            except IndexError:
                break
            try:
                buffer.resize(COPIED_MAX)  # to the size it has; refused while a view exists
                return memoryview(buffer)[:length]
            except BufferError:
                pass
            finally:
                self._lent.append(buffer)
        if len(self._lent) >= _LENT_MAX:
            return memoryview(bytearray(length))
        buffer = _new_buffer(COPIED_MAX)
        room = memoryview(buffer)[:length]
        self._lent.append(buffer)
        return room

    def let_go(self) -> bool:
        """Free those that were not needed since the last call; return whether there were any."""
        spare = self._spare
        del self._free[:spare]
        self._spare = len(self._free)
        return spare > 0


class _Room:
    """The memory of one part. When the part is gone its buffer is free for other bytes.

    Not the part itself has the finalizer: until that is over, weak references still give the object.
    """

    __slots__ = ("_buffer", "_pool", "content")

    def __init__(self, pool: BufferPool, buffer: mmap.mmap | bytearray, length: int) -> None:
        self._pool = pool
        self._buffer = buffer
        self.content = memoryview(buffer)[:length]

    def __del__(self) -> None:
        self.content.release()
        self._pool.give_back(self._buffer)


class Part:
    """A range of an object under way, or landed and kept in memory."""

    __slots__ = ("__weakref__", "_furthest", "_pool", "_room", "content", "done", "error",
                 "from_disk", "given", "range", "to_disk")  # fmt: skip

    def __init__(self, wanted: ByteRange, pool: BufferPool, *, to_disk: bool = True) -> None:
        """Start without bytes."""
        self._pool = pool
        self._room: _Room | None = None
        self.range = wanted
        self.to_disk = to_disk
        """Whether the disk cache is to get the bytes."""
        self.content = memoryview(b"")
        """The bytes, once `done` is set without an error."""
        self.done = trio.Event()
        self.error: Exception | None = None
        self.from_disk = False
        """Whether the bytes are from the disk cache."""
        self.given = 0
        """How many bytes readers got, those that several got as often."""
        self._furthest = 0

    @property
    def cost(self) -> int:
        """Return how much memory it takes, with all that is kept because of it."""
        return len(self.range) + BOOKS

    @property
    def landed(self) -> bool:
        """Whether the bytes are there, for good."""
        return self.done.is_set() and self.error is None

    def allocate(self) -> memoryview:
        """Return room for the bytes."""
        length = len(self.range)
        self._room = _Room(self._pool, self._pool.take(length), length)
        self.content = self._room.content
        return self.content

    @property
    def passed(self) -> bool:
        """Whether a reader seems to have come by all of it: it was at the end, and got much of it."""
        length = len(self.range)
        return self._furthest >= length - _UNREAD_TAIL and self.given * 4 >= length

    @any_thread
    def view(self, wanted: ByteRange, *, by_reader: bool = True) -> memoryview:
        """Return the bytes of this part that lie in `wanted`.

        Args:
            wanted: The range, in the object.
            by_reader: Count them as read, by a program and not by a scan.
        """
        start = max(wanted.start, self.range.start) - self.range.start
        stop = min(wanted.stop, self.range.stop) - self.range.start
        if by_reader:  # threads may count at once: about right is good enough
            self.given += stop - start
            self._furthest = max(self._furthest, stop)
        return self.content[start:stop]


@dataclass(frozen=True, slots=True)
class Reading:
    """A range being read: pieces in order, each there already or a part to wait for."""

    wanted: ByteRange
    pieces: list[Data | Part]
    counts: ReadCounts
    """Where to count what is read."""

    @property
    def ready(self) -> bool:
        """Whether nothing has to be waited for."""
        return all(not isinstance(p, Part) or p.done.is_set() for p in self.pieces)

    async def wait(self, *, by_reader: bool = True) -> Data:
        """Wait for the parts and return the bytes; `by_reader` as in `Part.view`.

        Raises:
            AisfsError: a part could not be fetched.
        """
        found: list[Data] = []
        was_done = [isinstance(piece, Part) and piece.done.is_set() for piece in self.pieces]
        for piece, landed in zip(self.pieces, was_done, strict=True):
            if isinstance(piece, Part):
                await piece.done.wait()
                if piece.error is not None:
                    raise untraced(piece.error)
                found.append(piece.view(self.wanted, by_reader=by_reader))
                source = "disk" if piece.from_disk else "memory" if landed else "network"
            else:
                found.append(piece)
                source = "disk"
            if by_reader:
                self._count(source, len(found[-1]))
        return found[0] if len(found) == 1 else b"".join(found)

    def _count(self, source: str, size: int) -> None:
        request_log.note(DISK if source == "disk" else source)
        counts = self.counts
        if source == "disk":
            counts.disk += size
        elif source == "memory":
            counts.memory += size
        else:
            counts.network += size
