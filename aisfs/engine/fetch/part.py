"""Ranges of objects in memory: under way from the store, or landed."""

import mmap
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from aisfs.engine.fetch.buffers import BufferPool, ReadCounts, buffer_size
from aisfs.errors import untraced
from aisfs.model import ByteRange
from aisfs.stores.port import Arrived
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.logs import DISK, request_log
from aisfs.system.threads import any_thread

BOOKS = 2048
"""Bytes that a part costs beside its content: itself, its event, the object it belongs to, its places
in dicts. 1,840 were measured; what small objects take is mostly this."""

_UNREAD_TAIL = 16 << 10
"""Bytes at the end of a part that a reader of members may leave out: padding and the next header."""
_AWAITED, _UNAWAITED = 1 << 20, 4 << 20
"""Bytes received at once while somebody waits for them, one READ of the kernel, and otherwise: each time costs
two waits for the interpreter's lock."""
_PIECE_SECONDS = 0.05
"""Who comes while so many bytes are received had better not wait longer for the last of them than four times this."""
_PUSH_SECONDS = 0.02
"""A push takes some milliseconds from one batch to the next; after so long it has left a part behind."""

Data = bytes | bytearray | memoryview
Received = Data | Exception | None
"""What came of bytes that were under way; None where their part ended without them or an error."""

_arrivals = ranked_lock(Rank.ARRIVALS)
"""Guards who waits for bytes of which part, of all parts together."""


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

    __slots__ = ("__weakref__", "_furthest", "_pool", "_pushed_at", "_room", "_told", "_waiting",
                 "arrived", "content", "done", "error", "first_seconds", "from_disk", "given",
                 "pushed", "range", "to_disk")  # fmt: skip

    def __init__(self, wanted: ByteRange, pool: BufferPool, *, to_disk: bool = True) -> None:
        """Start without bytes."""
        self._pool = pool
        self._room: _Room | None = None
        self.range = wanted
        self.to_disk = to_disk
        """Whether the disk cache is to get the bytes."""
        self.content = memoryview(b"")
        """Room for the bytes, and once `done` is set without an error the bytes."""
        self.arrived = 0
        """How many of the first ones are there already."""
        self.first_seconds: float | None = None
        """How long the first of them took, if they came piece by piece."""
        self._told = 0.0
        """When the bytes were asked for, or some of them came last, in seconds of `time.monotonic`."""
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        """Who waits for how many of the first ones."""
        self.done = trio.Event()
        self.error: Exception | None = None
        self.from_disk = False
        """Whether the bytes are from the disk cache."""
        self.given = 0
        """How many bytes readers got, those that several got as often."""
        self.pushed = 0
        """How many of these the page cache got, and not a reader."""
        self._pushed_at = 0.0
        """When that was last, in seconds of `time.monotonic`."""
        self._furthest = 0

    @property
    def cost(self) -> int:
        """Return how much memory it takes, with all that is kept because of it."""
        return buffer_size(len(self.range)) + BOOKS

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

    @any_thread
    def share(self, wanted: ByteRange) -> int:
        """Return how many bytes of `wanted`, which overlaps with it, lie in the part."""
        return min(self.range.stop, wanted.stop) - max(self.range.start, wanted.start)

    @any_thread
    def has(self, wanted: ByteRange) -> bool:
        """Return whether the bytes of `wanted` that lie in the part are there."""
        return self.arrived >= min(wanted.stop, self.range.stop) - self.range.start

    @any_thread
    def when_here(self, wanted: ByteRange, then: Callable[[], None]) -> bool:
        """Have `then` called as soon as it has the bytes of `wanted` that lie in it, or they will not come.

        In the thread that receives them, or trio's. It must not raise, nor wait.

        Returns:
            Whether it will be called; False if the bytes are there, or none will come any more.
        """
        length = min(wanted.stop, self.range.stop) - self.range.start
        with _arrivals:
            if self.arrived >= length or self.done.is_set():
                return False
            self._waiting.append((length, then))
            return True

    def settled(self, wanted: ByteRange) -> bool:
        """Return whether there is nothing to wait for."""
        return self.done.is_set() or self.has(wanted)

    async def wait(self, wanted: ByteRange) -> None:
        """Wait until the bytes of `wanted` that lie in the part are there, or will not come."""
        if wanted.stop < self.range.stop:
            here, token = trio.Event(), trio.lowlevel.current_trio_token()

            def then() -> None:
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(here.set)

            if self.when_here(wanted, then):
                await here.wait()
        else:
            await self.done.wait()

    def arriving(self, start: int) -> Arrived:
        """Return what is to be told of the bytes from `start` on, which are asked for now."""
        self._told = time.monotonic()
        return partial(self._have_arrived, start)

    def _have_arrived(self, start: int, length: int) -> int:
        """Take note that the first `start + length` bytes are there. In the thread that receives them.

        Returns:
            How many more are best received at once.
        """
        length += start
        now = time.monotonic()
        seconds, self._told = now - self._told, now
        if self.first_seconds is None:
            self.first_seconds = seconds
        with _arrivals:
            self.arrived = max(self.arrived, length)  # another attempt begins anew
            if not self._waiting:
                return _UNAWAITED if seconds < _PIECE_SECONDS else _AWAITED
            here = [then for wanted, then in self._waiting if wanted <= length]
            self._waiting = [each for each in self._waiting if each[0] > length]
        for then in here:
            then()
        return _AWAITED

    def finish(self, error: Exception | None = None) -> None:
        """Take note that all bytes are there, or that no more will come. In the trio thread."""
        with _arrivals:
            self.error = error
            if error is None:
                self.arrived = len(self.range)
            self.done.set()
            waiting, self._waiting = self._waiting, []
        for _, then in waiting:
            then()

    @property
    def passed(self) -> bool:
        """Whether a reader seems to have come by all of it, or will not come.

        It was at the end and got much of it, or nearly all was pushed, all but single members: what
        a push under way has yet to come to would have to be read from the disk.
        """
        length = len(self.range)
        if self._furthest >= length - _UNREAD_TAIL and self.given * 4 >= length:
            return True
        nearly_all = self.pushed * 8 >= length * 7
        return nearly_all and time.monotonic() - self._pushed_at > _PUSH_SECONDS

    @any_thread
    def view(self, wanted: ByteRange, *, by_reader: bool = True, push: bool = False) -> memoryview:
        """Return the bytes of this part that lie in `wanted`.

        Args:
            wanted: The range, in the object.
            by_reader: Count them as read, by a program and not by a scan.
            push: They are for the page cache.
        """
        start = max(wanted.start, self.range.start) - self.range.start
        stop = min(wanted.stop, self.range.stop) - self.range.start
        if by_reader:  # threads may count at once: about right is good enough
            self.given += stop - start
            self._furthest = max(self._furthest, stop)
            if push:
                self.pushed += stop - start
                self._pushed_at = time.monotonic()
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
        return all(not isinstance(p, Part) or p.settled(self.wanted) for p in self.pieces)

    async def wait(self, *, by_reader: bool = True) -> Data:
        """Wait for the parts and return the bytes; `by_reader` as in `Part.view`.

        Raises:
            AisfsError: a part could not be fetched.
        """
        found: list[Data] = []
        was_done = [isinstance(each, Part) and each.settled(self.wanted) for each in self.pieces]
        for piece, landed in zip(self.pieces, was_done, strict=True):
            if isinstance(piece, Part):
                await piece.wait(self.wanted)
                if piece.error is not None and not piece.has(self.wanted):
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
