"""Detection of whether shards, and members in a shard, are read in order, and what to prefetch then.

Readers are rarely strictly sequential: several have a part each, or worker w of n takes every n-th, and
their requests overtake each other. So an open is expected shortly after one of the latest ones, and the
evidence is how much more often that happens than by chance, because among few members, or with many
readers, almost everything is near (a sequential probability ratio test, Wald 1945). The evidence is
capped, so that a changed pattern shows soon.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from enum import Enum
from math import log

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
