"""What the dispatcher hands to the trio thread, to be answered to the device from there."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

AskedT = TypeVar("AskedT")


class Inbox(Generic[AskedT]):
    """Requests on their way from one thread to the other; waking it costs more than most of them."""

    def __init__(
        self, serve: Callable[[trio.Nursery, AskedT], None], refuse: Callable[[AskedT], None]
    ) -> None:
        """Begin, in the trio thread, without requests.

        Args:
            serve: Told of each request in the trio thread; what must wait gets a task in the nursery.
            refuse: Told of each one when the mount is going away, in either thread.
        """
        self._serve = serve
        self._refuse = refuse
        self._token = trio.lowlevel.current_trio_token()
        self._asked: deque[AskedT] = deque()
        self._woken = False
        self._nursery: trio.Nursery | None = None

    def open(self, nursery: trio.Nursery) -> None:
        """Begin to take requests; their tasks run in `nursery`."""
        self._nursery = nursery

    def close(self) -> None:
        """Take no more; those under way go on."""
        self._nursery = None

    @property
    def closed(self) -> bool:
        """Whether requests are refused."""
        return self._nursery is None

    def put(self, asked: AskedT) -> None:
        """Add a request; `tell` delivers it. In the dispatcher."""
        self._asked.append(asked)

    def tell(self) -> None:
        """Wake the trio thread, so that it does what was put in. For the dispatcher."""
        if self._asked and not self._woken:  # else it has not begun to look, and will find it too
            self._woken = True
            try:
                self._token.run_sync_soon(self.take)
            except trio.RunFinishedError:
                self._woken = False
                while self._asked:
                    self._refuse(self._asked.popleft())

    def take(self) -> None:
        """Do what was put in so far. In the trio thread."""
        self._woken = False
        while self._asked:
            asked = self._asked.popleft()
            if self._nursery is None:
                self._refuse(asked)
            else:
                self._serve(self._nursery, asked)
