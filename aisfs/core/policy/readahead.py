"""Which bytes of an object to fetch ahead of its readers.

The kernel's own read-ahead and parallel `pread`s make one reader's requests arrive slightly out of
order, and several readers' requests interleaved. So there is one `ReadAhead` per open object, which
distinguishes up to `MAX_STREAMS` streams by their positions. Each has a window: how far ahead of its
reader bytes are requested. A window grows only when its reader had to wait for bytes that were
requested ahead: starvation, not sequential access, is the reason to fetch more (mountpoint-s3).
It doubles, or with high latency, where each step costs a round trip, is multiplied by
`_HIGH_LATENCY_GROWTH`. Without, it stays below `NEAR_WINDOW`.

    random ──the next read adjoins it──▸ sequential ──too many skips in a row──▸ random

A read at offset 0 starts a sequential stream at once. Any other read that belongs to no stream starts
a random one and gets exactly the requested bytes.
"""

from dataclasses import dataclass

from aisfs.model import ByteRange

MIB = 1 << 20

START_WINDOW = MIB
"""A few round trips of a disk or a LAN, and cheap to waste on a file that is only peeked at."""
NEAR_WINDOW = 32 * MIB
"""Largest window where bytes begin to come within 20 ms: half of it arrives at 800 MB/s meanwhile, and more
under way would only take memory that no processor's cache has."""
LARGE_READ = 512 * 1024
LARGE_START = 4 * MIB
"""The first window of who begins with such a read, as cat and cp do; a look at a header is shorter. The kernel
itself reads as far ahead of it."""
MAX_STREAMS = 4
"""Most streams of one object: two interleaved readers, and a place each for a stray read."""
FORWARD = 16 * MIB
"""Longest skip that keeps a stream (mountpoint-s3, hf-mount); never more than the window, since
bytes that were not requested ahead gain nothing."""
BACKWARD = MIB
"""Longest step back that keeps a stream: covers the disorder of the kernel's requests of 128 KiB, and
formats that reread a header (mountpoint-s3, hf-mount)."""
_HIGH_LATENCY_GROWTH = 4
"""From 1 MiB to 64 MiB in three round trips instead of six: at 100 ms those were a third of the
time of 64 MB at 1 Gbit/s. The waste stays below 4 MiB and 16 times the bytes read."""
_PAGE = 4096
"""Sequential reads may overlap by one page, because the kernel rereads the page that ends a short read, or
leave one out: what lies between the members of a tar is padding, headers, perhaps a label."""
_MAX_SKIPS = 4
"""Successive skips with holes that end a stream: otherwise a reader of every tenth megabyte would
fetch everything (gcsfuse stops after three seeks)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to fetch for one read."""

    need: ByteRange
    """The bytes this read needs, cut at the end of the object."""
    ahead: ByteRange | None
    """What else to fetch now; begins after `need`."""
    sequential: bool
    """Whether the read belongs to a sequential stream."""


class _Stream:
    """One reader, inferred from its requests."""

    __slots__ = (
        "asked",
        "back",
        "hole",
        "judged",
        "sequential",
        "skips",
        "start",
        "stop",
        "window",
    )

    def __init__(self, need: ByteRange, window: int) -> None:
        self.start = need.start
        """Where the latest read began; earlier bytes follow if it arrived too early."""
        self.stop = need.stop
        """The furthest byte read."""
        self.asked = need.stop
        """Bytes before this one have been requested."""
        self.judged = need.stop
        """A stall before this byte does not concern the current window."""
        self.window = window
        self.sequential = need.start == 0
        self.back = BACKWARD
        """How far before `stop` the reader may be."""
        self.skips = 0
        self.hole = ByteRange(0, 0)
        """The rest of the bytes that the latest skip left out."""

    def touches(self, need: ByteRange) -> bool:
        """Return whether `need` continues this stream, or arrived one request late."""
        if need.stop == self.start:
            return True
        return self.stop - _PAGE <= need.start <= self.stop + _PAGE and self.stop < need.stop

    def reaches(self, need: ByteRange, *, stalled: bool) -> bool:
        """Return whether `need` is near enough to belong to this reader."""
        if not self.sequential:
            return self.touches(need)
        # To wait for bytes far back means that they were dropped: a reader starts over without them.
        back = BACKWARD if stalled else self.back
        ahead = min(max(self.window, self.asked - self.stop), FORWARD)
        return self.stop - back <= need.start <= self.stop + ahead

    def advance(self, need: ByteRange) -> None:
        if self.touches(need):
            self.sequential = True
            self.skips = 0
        elif self.stop < need.start:
            self.skips += 1
            self.hole = ByteRange(self.stop, need.start)
            self.sequential = self.skips < _MAX_SKIPS
        elif self.hole.start <= need.start < self.hole.stop:  # requests were reordered
            self.skips = 0
            self.hole = ByteRange(self.hole.start, need.start)
        self.start = need.start
        self.stop = max(self.stop, need.stop)
        self.asked = max(self.asked, self.stop)

    def stall(self, need: ByteRange, max_window: int, *, high_latency: bool) -> None:
        """Grow the window, but once per window, since parallel requests all stall."""
        if need.stop > self.judged:
            growth, most = (_HIGH_LATENCY_GROWTH, max_window) if high_latency else (2, NEAR_WINDOW)
            self.window = max(self.window, min(growth * self.window, most, max_window))
            self.judged = self.asked

    def extend(self, size: int) -> ByteRange | None:
        """Request more when less than half a window is left ahead: one half keeps requests large, the
        reader has the other half while they are in flight. Only whole halves: what is left over would be
        a request of its own."""
        half = max(self.window // 2, 1)
        left = self.asked - self.stop
        target = min(self.asked + (self.window - left) // half * half, size)
        if 2 * left >= self.window or target <= self.asked:
            return None
        ahead = ByteRange(self.asked, target)
        self.asked = target
        return ahead


class ReadAhead:
    """The streams of one open object."""

    def __init__(self, size: int, *, start_window: int = START_WINDOW, max_window: int) -> None:
        """Plan for an object of `size` bytes; a `max_window` of 0 never reads ahead."""
        self._size = size
        self._max = max_window
        self._start = min(start_window, max_window)
        self._streams: list[_Stream] = []
        """The one read last is the last."""

    def __repr__(self) -> str:
        windows = ", ".join(
            f"{each.stop}+{each.window}" for each in self._streams if each.sequential
        )
        return f"<ReadAhead of {self._size} bytes: {windows or 'random'}>"

    @property
    def windows(self) -> list[int]:
        """Windows of the sequential streams, the memory they may take together."""
        return [each.window for each in self._streams if each.sequential]

    @property
    def positions(self) -> list[int]:
        """How far the sequential streams have been read."""
        return [each.stop for each in self._streams if each.sequential]

    def observe(self, wanted: ByteRange, *, stalled: bool, high_latency: bool = False) -> Plan:
        """Record a read and return what to fetch; `stalled` when it had to wait for bytes.

        With `high_latency` any fetch takes long, so windows grow in larger steps.
        """
        size = self._size
        need = ByteRange(min(wanted.start, size), min(wanted.stop, size))
        if need.start >= need.stop:
            return Plan(need, None, sequential=False)
        stream = self._find(need, stalled=stalled)
        if stream is None:
            large = need.start == 0 and len(need) >= LARGE_READ
            stream = _Stream(need, min(LARGE_START, self._max) if large else self._start)
            del self._streams[: len(self._streams) + 1 - MAX_STREAMS]
        else:
            self._streams.remove(stream)
            if stalled and stream.sequential:
                stream.stall(need, self._max, high_latency=high_latency)
            stream.advance(need)
        self._streams.append(stream)
        ahead = stream.extend(size) if stream.sequential else None
        return Plan(need, ahead, stream.sequential)

    def pushed(self, wanted: ByteRange, *, stalled: bool) -> Plan:
        """Record bytes that were pushed for a reader, which may read them later or never show."""
        plan = self.observe(wanted, stalled=stalled)
        if self._streams:
            self._streams[-1].back = FORWARD
        return plan

    def widen(self) -> ByteRange | None:
        """Return what to fetch for the latest reader now that all of the object is worth fetching."""
        stream = self._streams[-1] if self._streams else None
        if stream is None or not stream.sequential:
            return None
        stream.window = max(stream.window, min(NEAR_WINDOW, self._max))
        return stream.extend(self._size)

    def shrink(self) -> None:
        """Halve the windows because memory is short, but not below the smallest useful one."""
        for each in self._streams:
            each.window = max(each.window // 2, min(START_WINDOW, self._start))

    def _find(self, need: ByteRange, *, stalled: bool) -> _Stream | None:
        near = [each for each in self._streams if each.reaches(need, stalled=stalled)]
        return min(
            near,
            key=lambda each: (not each.touches(need), abs(need.start - each.stop)),
            default=None,
        )
