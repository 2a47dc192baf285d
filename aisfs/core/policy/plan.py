"""The order in which files will be read, as somebody announced it, and where its readers are.

A plan is a sequence of inode numbers, 8 bytes each. What is about to be read is in a window: begun to be fetched, and not
read yet. Readers may go through it side by side, as the workers of a loader do, so a file may be read somewhat later than the
ones behind it. How much later, the reads show; what is further behind counts as read from the page cache, where no one sees it.

A file that is read and not in the window may be anybody's. Only when many in a row are not, the readers are looked for
elsewhere in the order: they may have begun in its middle, or have gone on to the next epoch early. A plan that nobody follows
ends.
"""

from array import array
from collections import deque

WINDOW_MAX = 8192
"""Files ahead of the readers, whatever their size."""
LOST_AFTER = 64
"""Reads in a row outside the window until the readers are looked for elsewhere: more than a few strangers, and few of an epoch."""
DROPPED_AFTER = 1024
"""Reads in a row that are nowhere in the plan until it ends."""
_SLACK = 64
"""How far behind the furthest reader a file still counts as ahead, if no reader is known to be later."""


class Plan:
    """One announced order, and the next ones behind it. Calls take microseconds, but for `locate`."""

    def __init__(self, name: str) -> None:
        """Start without an order."""
        self.name = name
        self.ahead_bytes = 0
        """Bytes of files in the window."""
        self.followed = 0
        """Files that were read from the window."""
        self.strays = 0
        """Reads outside the window since the last one in it."""
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

    @property
    def position(self) -> int:
        """How many files the furthest reader has passed."""
        return self._furthest

    @property
    def ended(self) -> bool:
        """Whether all of it was read."""
        return not self._window and all(len(order) == 0 for order in self._rest())

    def add(self, order: "array[int]") -> None:
        """Add what will be read after all that is known so far; `order` is of type `Q`."""
        self._orders.append(order)

    def take(self, most: int) -> list[int]:
        """Return the next numbers to fetch, `most` at most; `begin` tells which of them will be read."""
        while len(self._orders) > 1 and self._taken == len(self._orders[0]):
            self._base += len(self._orders.popleft())
            self._taken = 0
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

    def read(self, number: int) -> bool:
        """Record that a file was read; return whether it was in the window."""
        found = self._window.pop(number, None)
        if found is None:
            self.strays += 1
            return False
        place, size = found
        self.ahead_bytes -= size
        self.followed += 1
        self.strays = 0
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

    def locate(self, number: int) -> int | None:
        """Return where in the plan a number is, the latest order first. Takes a second for 50 million; for any thread."""
        orders = list(self._orders)
        base = self._base + sum(map(len, orders))
        for order in reversed(orders):
            base -= len(order)
            try:
                return base + order.index(number)
            except ValueError:
                continue
        return None

    def move_to(self, place: int) -> None:
        """Go on at a place that `locate` returned."""
        while len(self._orders) > 1 and place >= self._base + len(self._orders[0]):
            self._base += len(self._orders.popleft())
        self._taken = max(0, place - self._base)
        self._window.clear()
        self.ahead_bytes = self.strays = self._lag = 0
        self._furthest = place

    def _rest(self) -> list["array[int]"]:
        return [self._orders[0][self._taken :], *list(self._orders)[1:]] if self._orders else []
