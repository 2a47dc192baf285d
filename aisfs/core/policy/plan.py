"""The order in which files will be read, as somebody announced it, and where its readers are.

A plan is a sequence of inode numbers, 8 bytes each. What is about to be read is in a window: begun to be fetched, and not
read yet. Readers may go through it side by side, as the workers of a loader do, so a file may be read somewhat later than the
ones behind it. How much later, the reads show; what is further behind counts as read from the page cache, where no one sees it.

A file that is read and not in the window may be anybody's. If many are not, the readers are looked for elsewhere in
the order: they may have begun in its middle, or have gone on to the next epoch early. They are only found where many of what was
read lately lie close together, since another job may read the same files in an order of its own. A plan ends if reads outside of it
outnumber twice those in it.
"""

from array import array
from collections import deque
from collections.abc import Iterator

WINDOW_MAX = 8192
"""Files ahead of the readers, whatever their size."""
LOST_AFTER = 64
"""How many more reads outside the window than in it have the readers looked for: more than a few strangers, and few of an epoch."""
_FOUND_BY = 16
"""How many of these lie close together where the readers are."""
_CLOSE = 256
"""How close: a plan has readers side by side, and some that were seen late. In a small order less, where any are close by chance."""
DROPPED_AFTER = 1024
"""How many more reads outside the plan than twice those in it end it."""
ORDERS_MAX = 3
"""Orders of one plan: the one that is being read, and the next ones. More come in place of the oldest."""
_SLACK = 64
"""How far behind the furthest reader a file still counts as ahead, if no reader is known to be later."""
_SEARCHED = 1 << 15
"""Numbers that are gone through at once, in less than a millisecond: other threads stand still meanwhile."""


class Plan:
    """One announced order, and the next ones behind it. Calls take microseconds, but for `locate`."""

    def __init__(self, name: str) -> None:
        """Start without an order."""
        self.name = name
        self.ahead_bytes = 0
        """Bytes of files in the window."""
        self.followed = 0
        """Files that were read from the window."""
        self.followers = 0
        """Twice the reads in the window less those outside of all plans, lately."""
        self._strays: deque[int] = deque(maxlen=LOST_AFTER)
        """The last reads outside of all plans, less one for each in the window."""
        self._orders: deque[array[int]] = deque()
        self._base = 0
        """How many files the orders had that are over."""
        self._taken = 0
        """How many files of the first order are in the window, or were."""
        self._window: dict[int, tuple[int, int]] = {}
        """By number: place in the plan, and size. In the order of the places."""
        self._furthest = 0
        self._lag = 0
        """How many places behind the furthest reader another one was lately."""

    def __len__(self) -> int:
        return self._base + sum(map(len, self._orders))

    def __contains__(self, number: int) -> bool:
        """Whether a file that was taken may still be read."""
        return number in self._window

    @property
    def position(self) -> int:
        """How many files the furthest reader has passed."""
        return self._furthest

    @property
    def ended(self) -> bool:
        """Whether all of it was read."""
        return not self._window and self.taken

    @property
    def taken(self) -> bool:
        """Whether all of it was taken."""
        return sum(map(len, self._orders)) == self._taken

    def add(self, order: "array[int]") -> None:
        """Add what will be read after all that is known so far; `order` is of type `Q`."""
        self._orders.append(order)
        if len(self._orders) > ORDERS_MAX:
            self._next_order()

    def _next_order(self) -> None:
        self._base += len(self._orders.popleft())
        self._taken = 0

    def take(self, most: int) -> list[int]:
        """Return the next numbers to fetch, `most` at most; for each of them, `begin` or `skip` is called."""
        while len(self._orders) > 1 and self._taken == len(self._orders[0]):
            self._next_order()
        most = min(most, WINDOW_MAX - len(self._window))
        if not self._orders or most <= 0:
            return []
        found = self._orders[0][self._taken : self._taken + most]
        for place, number in enumerate(found, self._base + self._taken):
            self._window.setdefault(number, (place, 0))
        self._taken += len(found)
        return found.tolist()

    def begin(self, number: int, size: int) -> None:
        """Record that a file of the window is being fetched, of so many bytes."""
        place, before = self._window.get(number, (0, size))
        if before != size:
            self._window[number] = place, size
            self.ahead_bytes += size - before

    def skip(self, number: int) -> None:
        """Record that nothing is to be fetched of a file of the window."""
        _, size = self._window.pop(number, (0, 0))
        self.ahead_bytes -= size

    def read(self, number: int) -> bool:
        """Record that a file was read; return whether it was in the window."""
        found = self._window.pop(number, None)
        if found is None:
            return False
        place, size = found
        self.ahead_bytes -= size
        self.followed += 1
        self.followers = min(self.followers + 2, DROPPED_AFTER)
        if self._strays:  # not all of them: by chance, other readers meet the window, too
            self._strays.popleft()
        self._lag = max(self._furthest - place, self._lag - (self._lag >> 10))
        if place >= self._furthest:
            self._furthest = place + 1
            self._retire(self._furthest - 2 * self._lag - _SLACK)
        return True

    def _retire(self, before: int) -> None:
        while self._window:
            number = next(iter(self._window))
            place, size = self._window[number]
            if place >= before:
                return
            del self._window[number]
            self.ahead_bytes -= size

    def stray(self, number: int) -> bool:
        """Record that a file was read that is in the window of no plan; return whether the readers are to be looked for."""
        self.followers -= 1
        self._strays.append(number)
        return len(self._strays) == LOST_AFTER

    @property
    def lost(self) -> bool:
        """Whether nobody seems to follow it."""
        return self.followers <= -DROPPED_AFTER

    def search(self) -> Iterator[int | None]:
        """Look for the readers: yield None every now and then, at last where they are in the plan, if they are there."""
        strays = list(self._strays)
        self._strays.clear()
        wanted, base = strays[-1], self._base
        for order in list(self._orders):
            for start in range(0, len(order), _SEARCHED):
                yield None
                try:
                    at = order.index(wanted, start, start + _SEARCHED)
                except ValueError:
                    continue
                close = min(_CLOSE, len(order) // 16 + 1)
                near = set(order[max(0, at - close) : at + close])
                if sum(number in near for number in strays) >= _FOUND_BY:
                    yield base + at
                    return
            base += len(order)

    def move_to(self, place: int) -> None:
        """Go on at a place that `search` has found."""
        while len(self._orders) > 1 and place >= self._base + len(self._orders[0]):
            self._next_order()
        self._taken = max(0, place - self._base)
        self._window.clear()
        self.ahead_bytes = self._lag = 0
        self._furthest = place
