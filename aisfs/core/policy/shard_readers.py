"""How shards are read, and what to fetch ahead of it: inside an object, across members, across shards.

Readers are rarely strictly sequential: several have a part each, or worker w of n takes every n-th, and
their requests overtake each other. So an open is expected shortly after one of the latest ones, and the
evidence is how much more often that happens than by chance, because among few members, or with many
readers, almost everything is near (a sequential probability ratio test, Wald 1945). The evidence is
capped, so that a changed pattern shows soon.

Inside an object (`ReadAhead`), the kernel's own read-ahead and parallel `pread`s make one reader's requests arrive slightly out
of order, and those of several readers mixed. So there is one `ReadAhead` per open object, which distinguishes up to
`MAX_STREAMS` streams by their positions. Each has a window: how far ahead of its reader bytes are requested. A window grows only
when its reader had to wait for bytes that were requested ahead: starvation, not sequential access, is the reason to fetch more
(mountpoint-s3). It doubles, and stays below `NEAR_WINDOW`. With high latency, where each step costs a round trip, it is
multiplied by `_HIGH_LATENCY_GROWTH` and may grow further.

    random ──the next read adjoins it──▸ sequential ──too many skips in a row──▸ random

A read at offset 0 starts a sequential stream at once. Any other read that belongs to no stream starts
a random one and gets exactly the requested bytes.

A scan (`ScanPace`) skips what it need not fetch. Skipping a range costs one more request, and saves the time of its bytes. So
data is skipped where it is longer than the break-even: what the link carries during one request. Shorter members are streamed,
in pieces that begin small and double as long as there is little to skip.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import log

from aisfs.core.policy.link import SMALL
from aisfs.model import ByteRange

_REGULAR = 0.9
"""Share of opens that are expected when access is in order; the rest are readers that start over."""
_CERTAIN = log(100)
"""Evidence that decides: order is a hundred times as likely as disorder, or vice versa."""
_MOST = 1.5 * _CERTAIN
"""Most evidence kept: a new pattern has to outweigh this before it can decide."""
_DECAY = 1.5
"""How fast longer gaps get rarer in ordered access: slowly enough for readers of one part of each
sample, fast enough to tell many readers in a small shard from chance."""
_DECAY_SUM = 2.3
"""Sum of n^-_DECAY over the gaps a reader may leave, which normalizes the probabilities."""
_LEAST_CHANCE = 0.05
"""Lower bound of a probability, so that a single surprise does not decide."""


class Access(Enum):
    """How something is read."""

    UNDECIDED = "undecided"
    IN_ORDER = "in order"
    RANDOM = "random"


class _Evidence:
    """Evidence for order against disorder, updated with each open."""

    __slots__ = ("access", "weight")

    def __init__(self) -> None:
        self.weight = 0.0
        self.access = Access.UNDECIDED

    def weigh(self, in_order: float, by_chance: float) -> None:
        """Add an event that has these probabilities in ordered and in random access."""
        change = log(in_order / max(by_chance, 1e-9))
        self.weight = min(max(self.weight + change, -_MOST), _MOST)
        if self.weight >= _CERTAIN:
            self.access = Access.IN_ORDER
        elif self.weight <= -_CERTAIN:
            self.access = Access.RANDOM


class MemberOrder:
    """How the members of one shard are opened."""

    READERS = 16
    """Most readers distinguished: the data loader workers of one machine."""
    GAP = 32
    """Rows after a reader where its next open may be: four parts of a sample, or one part where
    samples of four fields are dealt to eight workers."""
    BACK = 8
    """Rows before a reader that it may still open: parts of one sample are opened in any order."""
    FIRST_OPENS = 4
    """Opens before the first decision: opening two or three members is no epoch."""

    def __init__(self, rows: int) -> None:
        """Observe a shard of `rows` rows."""
        self._rows = max(rows, 1)
        self._opens = 0
        self._readers: list[int] = []
        """The row each reader is at; the one that moved last is the last."""
        self._reach: dict[int, int] = {}
        """For the row of a reader, the last row that was pushed for it; reading these shows no opens."""
        self._latest = -1
        self._evidence = _Evidence()

    @property
    def access(self) -> Access:
        """The decision as it stands."""
        return self._evidence.access if self._opens >= self.FIRST_OPENS else Access.UNDECIDED

    def observe(self, row: int) -> Access:
        """Record that the member `row` was opened; return the decision."""
        if row == self._latest:  # opened again: no information
            return self.access
        self._latest = row
        self._opens += 1
        readers = self._readers
        near = [at for at in readers if -self.BACK <= self._distance(at, row) <= self.GAP]
        nearest = min(near, key=lambda at: abs(self._distance(at, row)), default=None)
        reach = -1 if nearest is None else self._reach.pop(nearest, -1)
        if readers:
            if nearest is not None and nearest < row <= reach:
                self._evidence.weigh(_REGULAR, 1 - self._beyond(reach - nearest))
            else:
                ahead = nearest is not None and row > reach >= 0
                self._weigh(None if nearest is None else abs(row - (reach if ahead else nearest)))
        if nearest is not None:
            readers.remove(nearest)
            row = max(row, nearest)
            if reach > row:
                self._reach[row] = reach
        elif len(readers) == self.READERS:
            self._reach.pop(readers.pop(0), None)
        readers.append(row)
        return self.access

    def pushed(self, row: int, last: int) -> None:
        """Record that members up to `last` were pushed for the reader that opened `row`.

        Its next visible open is at a member that was left out, or after the last one.
        """
        if row in self._readers:
            self._reach[row] = last

    def _distance(self, reader: int, row: int) -> int:
        """Return the distance of a row from where a reader may be: 0 inside what was pushed for it."""
        reach = self._reach.get(reader, reader)
        if row <= reader:
            return row - reader
        return max(row - reach, 0)

    def _weigh(self, distance: int | None) -> None:
        """Add an open at a distance from the nearest reader; None is out of reach of all."""
        if distance is None:
            beyond = self._beyond(self.GAP + self.BACK + 1)
            self._evidence.weigh(1 - _REGULAR, max(beyond, _LEAST_CHANCE))
        else:
            distance = max(distance, 1)
            in_order = _REGULAR * distance**-_DECAY / _DECAY_SUM
            before = min(distance, self.BACK)
            nearer = distance + before - 1 if distance > 1 else 0
            within = distance + before + 1 if distance <= self.BACK else nearer + 1
            by_chance = self._beyond(nearer) - self._beyond(within)
            self._evidence.weigh(in_order, max(by_chance, _LEAST_CHANCE * in_order))

    def _beyond(self, covered: int) -> float:
        """Return the chance that a random row is not among the `covered` nearest of any reader."""
        return max(0.0, 1 - covered / self._rows) ** len(self._readers)


class ShardQueue:
    """Which shards of one directory to fetch before they are opened."""

    RECENT = 16
    """How many latest opens the next one is compared with: one of each worker."""
    REACH = 2
    """Strides after a recent open where the next may be: workers overtake each other by one."""
    PATIENCE = 2 * RECENT
    """After so many opens of other shards a prefetched one counts as wasted."""
    FIRST_OPENS = 2
    """Opens before the first prefetch: opening a single shard is no pattern."""
    RECOVERY = 0.25
    """Allowance regained by each success, so that four used shards make up for one wasted."""

    def __init__(self, max_shards: int, budget: int) -> None:
        """Allow at most `max_shards` prefetched and unused shards, of `budget` bytes together."""
        self._max = max_shards
        self._budget = budget
        self._allowance = float(max_shards)
        self._recent: deque[bytes] = deque(maxlen=self.RECENT)
        self._opens = 0
        self._every_one = _Evidence()
        """For shards opened one after the other."""
        self._strided = _Evidence()
        """For every `_stride`-th shard being opened."""
        self._stride = 1
        self._waiting: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        """Prefetched shards, not yet used or wasted, with their sizes and the number of the open."""

    @property
    def access(self) -> Access:
        """How shards are opened, as far as known."""
        if len(self._recent) < self.FIRST_OPENS:
            return Access.UNDECIDED
        if self._every_one.access is Access.IN_ORDER:
            return Access.IN_ORDER
        return self._strided.access

    @property
    def stride(self) -> int:
        """How far from one shard to the next, when they are opened in order."""
        return 1 if self._every_one.access is Access.IN_ORDER else self._stride

    @property
    def allowance(self) -> int:
        """Shards that may be waiting at present."""
        return int(self._allowance)

    def opened(
        self, shard_name: bytes, names: Sequence[bytes], size_of: Callable[[bytes], int]
    ) -> list[bytes]:
        """Record that a shard was opened to read its members; return the shards to prefetch now.

        `names` are all shards of the directory, sorted; `size_of` returns how many bytes of one
        would have to be fetched.
        """
        place = _place(shard_name, names)
        if place is None:
            return []
        self.used(shard_name)
        if shard_name not in self._recent:
            self._learn(place, names)
            self._recent.append(shard_name)
            self._opens += 1
            for name, (_, since) in list(self._waiting.items()):
                if self._opens - since > self.PATIENCE:
                    self.wasted(name)
        if self.access is not Access.IN_ORDER:
            return []
        depth = max(1, self.allowance // max(1, self._readers(names)))
        return self._choose(names[place + self.stride :: self.stride][:depth], size_of)

    def used(self, name: bytes) -> None:
        """Record that a prefetched shard is read; no effect for other shards."""
        if self._waiting.pop(name, None) is not None:
            self._succeed()

    def wasted(self, name: bytes) -> None:
        """Record that a prefetched shard was dropped unread, or will never be read."""
        if self._waiting.pop(name, None) is not None:
            self._allowance = self._allowance / 2 if self._allowance >= 1 else 0.0

    def _succeed(self) -> None:
        self._allowance = min(self._allowance + self.RECOVERY, float(self._max))

    def _readers(self, names: Sequence[bytes]) -> int:
        """Return how many readers have separate parts, and share the allowance."""
        stride = self.stride
        recent = self._places(names)
        return sum(at - stride in recent and at + stride not in recent for at in recent)

    def _choose(self, following: Sequence[bytes], size_of: Callable[[bytes], int]) -> list[bytes]:
        chosen = []
        room = self._budget - sum(size for size, _ in self._waiting.values())
        for name in following:
            if name in self._waiting or name in self._recent:
                continue
            size = size_of(name)
            if len(self._waiting) >= self.allowance or size > room:
                break
            room -= size
            self._waiting[name] = size, self._opens
            chosen.append(name)
        return chosen

    def _places(self, names: Sequence[bytes]) -> set[int]:
        return {at for name in self._recent if (at := _place(name, names)) is not None}

    def _learn(self, place: int, names: Sequence[bytes]) -> None:
        """Compare an open with the recent ones, and adapt the stride."""
        recent = self._places(names)
        hit = self._weigh(self._every_one, 1, place, recent, len(names))
        hit |= self._weigh(self._strided, self._stride, place, recent, len(names))
        if hit:
            if not self.allowance:  # nothing was prefetched, but this shard would have been right
                self._succeed()
            return
        below = max((at for at in recent if at < place), default=None)
        if below is not None and self._strided.weight < _CERTAIN:
            # The evidence stays; otherwise random access would start over with each stride.
            self._stride = place - below

    def _weigh(
        self, evidence: _Evidence, stride: int, place: int, recent: set[int], count: int
    ) -> bool:
        """Return whether an open at `place` was to be expected with that stride, and count it."""
        expected = {at + step * stride for at in recent for step in range(1, self.REACH + 1)}
        expected.update(range(stride))  # where an epoch starts
        expected = {at for at in expected - recent if at < count}
        chance = len(expected) / (count - len(recent))
        hit = place in expected
        if hit:
            evidence.weigh(_REGULAR, chance)
        else:
            evidence.weigh(1 - _REGULAR, max(1 - chance, _LEAST_CHANCE))
        return hit


def _place(name: bytes, names: Sequence[bytes]) -> int | None:
    place = bisect_left(names, name)
    return place if place < len(names) and names[place] == name else None


MIB = 1 << 20

START_WINDOW = MIB
"""A few round trips of a disk or a LAN, and cheap to waste on a file that is only peeked at."""
NEAR_WINDOW = 32 * MIB
"""Largest window where bytes begin to come within 20 ms: half of it arrives at 800 MB/s meanwhile, and more
under way would only take memory that no processor's cache has."""
LARGE_READ = 512 * 1024
LARGE_START = 4 * MIB
"""The first window of a reader that begins with such a read, as cat and cp do; a look at a header is shorter. The kernel
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


GLANCE_MIN, GLANCE_MAX = 16 << 10, SMALL
"""Bytes of a first piece: the headers of a few samples, and little beside the latency, which it
measures."""
PIECE_MAX = 64 << 20
"""Bytes of the longest piece; it is streamed, and ends early where skipping becomes worthwhile."""
BREAK_EVEN_MIN = 2 * GLANCE_MIN
"""A member that is shorter lies mostly in the piece that has its header."""
BREAK_EVEN_MAX = PIECE_MAX
FITS = 0.9
"""Share of the cache that data may take to count as fitting: blocks and headers need some too."""
STEP_MIN, STEP_MAX = 4 << 10, 64 << 10
UNMEASURED = 1 << 20
"""The break-even until the link was measured, and the longest piece: 1 Gbit/s at 8 ms."""


def break_even(latency: float | None, rate: float | None, at_once: int = 1) -> int | None:
    """Return how many bytes of data take as long to stream as to skip; None if nobody knows.

    Args:
        latency: Seconds of a small request; None if unknown.
        rate: Bytes a second of all requests together; None if unknown.
        at_once: How many scans are under way: each waits for its own requests, but they share the rate.
    """
    if latency is None or rate is None:
        return None
    return int(min(max(latency * rate / max(1, at_once), BREAK_EVEN_MIN), BREAK_EVEN_MAX))


def fits(total: int, capacity: int) -> bool:
    """Return whether so much data would stay in a disk cache of this capacity."""
    return total <= FITS * capacity


class ScanPace:
    """The pieces in which one tar is read."""

    def __init__(self, size: int, length: int = 0) -> None:
        """Begin a tar of `size` bytes with a piece of `length`, if that is known from others like it."""
        self._size = size
        self.length = length
        """Of the next piece, if no bounds forbid it."""

    def next_piece(self, needed: int, even: int | None) -> ByteRange:
        """Return what to read next.

        Args:
            needed: The first byte that has to be looked at, or one shortly before.
            even: The break-even of now, if it is known. If not, the first pieces are the smallest:
                they measure the latency.
        """
        first = GLANCE_MIN if even is None else min(max(even // 8, GLANCE_MIN), GLANCE_MAX)
        most = UNMEASURED if even is None else PIECE_MAX
        self.length = min(max(self.length, first), most)
        return ByteRange(needed, min(needed + self.length, self._size))

    def observe(self, read: int, skippable: int) -> None:
        """Record a piece.

        Args:
            read: The bytes that were read of it, from its start on.
            skippable: How many of these were in stretches longer than the break-even that nobody
                looked at.
        """
        if too_long(read, skippable):
            self.length = 0
        elif skippable * 4 <= read:
            self.length *= 2


def step(length: int) -> int:
    """Return how many bytes of a piece of this length to look at before asking what is needed next.

    Small pieces are looked at closely, so that a single long member is noticed; in large ones
    64 KiB are close enough, and scanners are faster on runs of members.
    """
    return min(max(length // 16, STEP_MIN), STEP_MAX)


def too_long(read: int, skippable: int) -> bool:
    """Return whether so much of what was read could have been skipped that streaming should end."""
    return skippable * 2 > read
