"""Whether shards, and members inside a shard, are read in order, and what to fetch early if so.

Readers hardly ever go one by one: several have a part each, or worker w of n takes every n-th, and
their requests overtake each other. So an open is expected shortly behind one of the latest ones, and
what counts is how much more often that happens than it would by chance, since among few members,
or behind many readers, nearly everything is near (a sequential probability ratio test, Wald
1945). The evidence is capped, so that a changed habit shows soon.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from enum import Enum
from math import log

_REGULAR = 0.9
"""Share of opens that are expected when access is in order; the rest are readers that start anew."""
_CERTAIN = log(100)
"""Evidence to believe in order or disorder: one is a hundred times as likely as the other."""
_MOST = 1.5 * _CERTAIN
"""Evidence kept at most: a new habit has to outweigh this and then convince."""
_DECAY = 1.5
"""How fast longer gaps get rarer in order: slowly enough for one part of each sample, fast enough
to tell many readers in a small shard from chance."""
_DECAY_SUM = 2.3
"""Sum of n^-_DECAY for the gaps a reader may leave: makes them probabilities."""
_LEAST_CHANCE = 0.05
"""Chance of the unlikeliest event: one surprise shall not decide."""


class Access(Enum):
    """How something is read."""

    UNDECIDED = "undecided"
    IN_ORDER = "in order"
    RANDOM = "random"


class _Evidence:
    """Weighs order against disorder, one open at a time."""

    __slots__ = ("access", "weight")

    def __init__(self) -> None:
        self.weight = 0.0
        self.access = Access.UNDECIDED

    def weigh(self, in_order: float, by_chance: float) -> None:
        """Count an event that has these two probabilities."""
        change = log(in_order / max(by_chance, 1e-9))
        self.weight = min(max(self.weight + change, -_MOST), _MOST)
        if self.weight >= _CERTAIN:
            self.access = Access.IN_ORDER
        elif self.weight <= -_CERTAIN:
            self.access = Access.RANDOM


class MemberOrder:
    """How the members of one shard are opened."""

    READERS = 16
    """Readers told apart: the data loader workers of one machine."""
    GAP = 32
    """Rows behind a reader where its next open may be: four parts of a sample, or one part of a
    sample dealt to each of eight workers with four fields."""
    BACK = 8
    """Rows before a reader that may still come: parts of one sample are opened in any order."""
    FIRST_OPENS = 4
    """Opens before the first decision: a look at two or three members is no epoch."""

    def __init__(self, rows: int) -> None:
        """Know a shard of so many rows."""
        self._rows = max(rows, 1)
        self._opens = 0
        self._readers: list[int] = []
        """The row each reader is at; the one that moved last is the last."""
        self._reach: dict[int, int] = {}
        """For the row of a reader the last row that was pushed for it, whose reading nobody sees."""
        self._latest = -1
        self._evidence = _Evidence()

    @property
    def access(self) -> Access:
        """The decision as it stands."""
        return self._evidence.access if self._opens >= self.FIRST_OPENS else Access.UNDECIDED

    def observe(self, row: int) -> Access:
        """Tell that the member `row` was opened."""
        if row == self._latest:  # opened again: no news
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
        """Tell that members up to `last` were pushed for the reader that opened `row`.

        It is seen again at one that was left out, or behind the last.
        """
        if row in self._readers:
            self._reach[row] = last

    def _distance(self, reader: int, row: int) -> int:
        """Give how far a row is from where a reader may be: 0 inside what was pushed for it."""
        reach = self._reach.get(reader, reader)
        if row <= reader:
            return row - reader
        return max(row - reach, 0)

    def _weigh(self, distance: int | None) -> None:
        """Count an open so many rows from the nearest reader; None is out of reach of all."""
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
        """Chance that a row taken at random is not among the `covered` nearest of any reader."""
        return max(0.0, 1 - covered / self._rows) ** len(self._readers)


class ShardQueue:
    """Which shards of one directory to fetch before they are opened."""

    RECENT = 16
    """Latest opens that the next one is compared with: one of each worker."""
    REACH = 2
    """Strides behind a recent open where the next may be: workers overtake each other by one."""
    PATIENCE = 2 * RECENT
    """Opens of other shards after which a prefetched one counts as wasted."""
    FIRST_OPENS = 2
    """Opens before the first prefetch: opening one shard is a look at it."""
    RECOVERY = 0.25
    """Allowance gained back by each success, so that four good ones make up for one shard wasted."""

    def __init__(self, max_shards: int, budget: int) -> None:
        """Keep at most so many shards of so many bytes together fetched early and not yet used."""
        self._max = max_shards
        self._budget = budget
        self._allowance = float(max_shards)
        self._recent: deque[bytes] = deque(maxlen=self.RECENT)
        self._opens = 0
        self._every_one = _Evidence()
        """Of shards opened one after the other."""
        self._strided = _Evidence()
        """Of every `_stride`-th shard being opened."""
        self._stride = 1
        self._waiting: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        """Prefetched and neither used nor wasted so far, with their sizes and number of the open."""

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
        """Tell that a shard was opened for reading its contents; give those to prefetch now.

        `names` are all shards of the directory, sorted; `size_of` tells how many bytes one would
        have to be fetched.
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
        """Tell that a prefetched shard is read; harmless for any other."""
        if self._waiting.pop(name, None) is not None:
            self._succeed()

    def wasted(self, name: bytes) -> None:
        """Tell that a prefetched shard was dropped unread, or never will be read."""
        if self._waiting.pop(name, None) is not None:
            self._allowance = self._allowance / 2 if self._allowance >= 1 else 0.0

    def _succeed(self) -> None:
        self._allowance = min(self._allowance + self.RECOVERY, float(self._max))

    def _readers(self, names: Sequence[bytes]) -> int:
        """How many readers each have a part for themselves, and share the allowance."""
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
        """Weigh an open against the recent ones, and find the stride it shows."""
        recent = self._places(names)
        hit = self._weigh(self._every_one, 1, place, recent, len(names))
        hit |= self._weigh(self._strided, self._stride, place, recent, len(names))
        if hit:
            if not self.allowance:  # nothing is prefetched, yet this one would have been right
                self._succeed()
            return
        below = max((at for at in recent if at < place), default=None)
        if below is not None and self._strided.weight < _CERTAIN:
            # The evidence stays: else random access would have a fresh chance with each stride.
            self._stride = place - below

    def _weigh(
        self, evidence: _Evidence, stride: int, place: int, recent: set[int], count: int
    ) -> bool:
        """Say whether an open at `place` was to be expected with that stride, and count it."""
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
