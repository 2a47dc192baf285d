"""Memory that objects are received into, used again: fresh memory costs more than the copy into it.

The kernel clears each new page, and on a virtual machine the host has to find it first. A pool keeps the buffers of the parts
that were lately under way. When a reader comes after a pause, enough for its first shard is made ready.
"""

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from aisfs.model import ByteRange, growing_pieces, pieces
from aisfs.system.threads import any_thread

PART_MAX = 8 << 20
"""Bytes of one GET of a stream that somebody follows. Two round trips of 1 ms then cost a fifth at 1 GB/s, and
who needs all of a part waits 8 ms for it."""
WHOLE_PART_MAX = 16 << 20
"""Bytes of one GET of an object that is of use only as a whole, or ahead of a reader, who waits for no more of a
part than it reads: a part costs as much as 2 MiB of bytes, here and in the server, whatever its length."""
QUICK_SECONDS = 0.01
"""Where the first MiB of a part takes no longer, two connections keep a window full."""
FIRST_PART = 1 << 20
"""Bytes of the first GET of a whole object; the next ones are larger (`model.GROWTH`)."""
COPIED_MAX = 1 << 20
"""Bytes that the trio thread copies from the disk cache itself: one READ of the kernel, 0.1 ms."""
WHOLE_PARTS = 3
"""Parts at least of an object that only all together are of use: the first is looked at meanwhile."""
WHOLE_SHARE = 8
"""Each takes at most one part in so many of the limit."""
READY_MAX = 96 << 20
"""Bytes that are made ready for the first reader: what a fast one has under way, and a shard to be listed."""
READY_SHARE = 4
"""At most one part in so many of the limit is made ready."""
READY_CALLS = 30
"""Calls of `let_go`, a minute, after which what nobody uses is not kept ready any more: to make it ready again takes
100 ms beside the first request, and a node may have a hundred mounts that nobody reads."""

_CAPACITIES = [1 << power for power in range(20, 25)]
"""Lengths of buffers, `FIRST_PART` to `WHOLE_PART_MAX`: so few that a free one mostly has the right one."""
_TRIES = 4
"""Free buffers that are tried; few have views still, of a reply or a push under way."""
_LENT_FROM = 64 << 10
"""Bytes from which fresh memory costs more than the copy into it: it is mapped page by page."""
_LENT_MAX = 4
"""Buffers of `COPIED_MAX` that are lent; most are free again as soon as the kernel has a reply."""


def buffer_size(length: int) -> int:
    """Return how much memory a part of so many bytes takes."""
    return length if length < FIRST_PART else 1 << (length - 1).bit_length()


def _power(length: int) -> int:
    """Return the largest power of two that is not greater."""
    return 1 << length.bit_length() >> 1


def _new_buffer(size: int) -> mmap.mmap:
    """Return fresh memory in large pages: sockets, disk and kernel look pages up by the thousand."""
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


class _Free:
    """Buffers of one capacity that nobody uses, the one used last at the end."""

    __slots__ = ("buffers", "idle", "kept", "spare")

    def __init__(self) -> None:
        self.buffers: list[mmap.mmap] = []
        self.spare = 0
        """How many of these, the first ones, were not needed since the last `let_go`."""
        self.kept = 0
        """How many stay although they were not needed."""
        self.idle = 0
        """How many calls of `let_go` ago one was taken."""


class BufferPool:
    """Buffers for parts, and for copies of what is on disk."""

    def __init__(self, limit: int, used: Callable[[], int] = lambda: 0) -> None:
        """Start with none; keep free ones as long as they and `used()` bytes are within `limit`."""
        self._used = used
        self._free = {size: _Free() for size in _CAPACITIES}
        self._lent: deque[mmap.mmap] = deque()
        self.limit_to(limit)
        self.wants_ready = False
        """Whether `make_ready` should be called when a part of `FIRST_PART` or more is fetched next."""
        self.read = ReadCounts()
        """What was read of all parts that have their buffers here, and past them from the disk cache."""

    def limit_to(self, limit: int) -> None:
        """Keep free buffers within another limit, and fetch parts of lengths that fit it."""
        self._limit = limit
        self.longest = max(_power(min(limit // WHOLE_SHARE, WHOLE_PART_MAX)), FIRST_PART)
        """Length of the longest parts."""
        self.stream = max(limit // WHOLE_SHARE, FIRST_PART)
        """Bytes that a stream may have under way: some exceed the limit."""
        self.ahead = min(self.longest, PART_MAX)
        """Length of parts ahead of a reader."""
        self._make_room()

    def make_ready(self) -> None:
        """Fill the pool with what stays in it while there are readers, if there is memory.

        Takes some 100 ms, without the GIL; for a worker thread.
        """
        with suppress(OSError), open("/dev/zero", "rb", buffering=0) as zeros:
            for size in (WHOLE_PART_MAX, PART_MAX):
                free = self._free[size]
                free.kept = min(READY_MAX, self._limit // READY_SHARE) // 2 // size
                free.idle = 0
                for _ in range(free.kept - len(free.buffers)):
                    buffer = _new_buffer(size)
                    os.preadv(zeros.fileno(), [buffer], 0)  # the kernel maps all pages at once
                    free.buffers.append(buffer)

    def parts(self, whole: ByteRange, *, as_whole: bool, near: bool = False) -> Iterator[ByteRange]:
        """Yield the parts in which a range is fetched in its order.

        The first ones are small, as somebody waits for them, unless all are of use only `as_whole`:
        then all but the last have the same length, a power of two. From a store that is `near` a few MiB
        come in less time than several requests for them take.
        """
        if not as_whole:
            return growing_pieces(whole, FIRST_PART, PART_MAX)
        most = min(len(whole) // WHOLE_PARTS, self.longest)
        least = min(PART_MAX, self.longest) if near else FIRST_PART
        return pieces(whole, max(_power(most), least))

    def fit(self, seconds: float) -> None:
        """Choose `ahead` by how long the first bytes of a part took.

        Two connections that are slow would not fill a window by themselves.
        """
        self.ahead = self.longest if seconds < QUICK_SECONDS else min(self.longest, PART_MAX)

    def take(self, length: int) -> mmap.mmap | bytearray:
        """Return a buffer of at least `length` bytes; what is in it is undefined.

        Of `FIRST_PART` or more it begins on a page, as writing past the page cache wants it.
        """
        size = buffer_size(length)
        if size < FIRST_PART:
            return bytearray(length)
        free = self._free[size]
        free.idle = 0
        for _ in range(_TRIES):
            try:
                buffer = free.buffers.pop()
            except IndexError:
                break
            free.spare = min(free.spare, len(free.buffers))
            try:
                buffer.resize(size)  # to the size it has; refused while a view exists
            except BufferError:
                free.buffers.insert(0, buffer)
            else:
                return buffer
        self._make_room()
        return _new_buffer(size)

    def _make_room(self) -> None:
        """Free what is of no use to a new buffer, as far as the limit demands it."""
        over = self.free + self._used() - self._limit
        for size, free in self._free.items():
            while over > 0 and free.buffers:
                with suppress(IndexError):  # another thread took it
                    del free.buffers[0]
                    over -= size

    def give_back(self, buffer: mmap.mmap | bytearray) -> None:
        """Take a buffer back that is no longer filled; it is used again when there is no view of it."""
        if not isinstance(buffer, bytearray):
            size = len(buffer)
            if self.free + self._used() + size <= self._limit:
                self._free[size].buffers.append(buffer)

    @property
    def free(self) -> int:
        """Return the bytes of all buffers that nobody uses."""
        return sum(size * len(free.buffers) for size, free in self._free.items())

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
        gone = 0
        for free in self._free.values():
            free.idle += 1
            if free.idle > READY_CALLS and free.kept:
                free.kept = 0
                self.wants_ready = not any(other.kept for other in self._free.values())
            spare = max(min(free.spare, len(free.buffers) - free.kept), 0)
            del free.buffers[:spare]
            free.spare = len(free.buffers)
            gone += spare
        return gone > 0
