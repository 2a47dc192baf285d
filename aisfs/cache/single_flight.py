"""One fetch per key at a time, shared by all callers.

The first caller for a key starts the fetch as a task of the service nursery, and waits for it like
every later caller. So a caller that is cancelled does not disturb the others. A failure is raised in
all callers that wait, and is then forgotten: the next caller starts again.
"""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from aisfs.errors import Unavailable, untraced
from aisfs.system.logs import request_log

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class _Flight(Generic[ValueT]):
    __slots__ = ("answerers", "done", "error", "scope", "value", "waiting")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.scope = trio.CancelScope()
        self.waiting = 0
        self.answerers = request_log.noted()
        self.value: list[ValueT] = []
        self.error: Exception | None = None


class SingleFlight(Generic[KeyT, ValueT]):
    """Shares the results of fetches that are under way."""

    def __init__(self, nursery: trio.Nursery, *, wanted_only: bool = False) -> None:
        """Run fetches in `nursery`; with `wanted_only` a fetch ends when its last caller is cancelled."""
        self._nursery = nursery
        self._wanted_only = wanted_only
        self._flights: dict[KeyT, _Flight[ValueT]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def detach(self) -> None:
        """Let the next caller for any key start anew; those who wait get what they wait for."""
        self._flights.clear()

    async def fetch(self, key: KeyT, work: Callable[[], Awaitable[ValueT]]) -> ValueT:
        """Return what `work` returns, or join the flight already under way for `key`.

        Raises:
            Exception: whatever `work` raised; each waiter gets a copy of the error.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight()
            self._nursery.start_soon(self._run, key, flight, work)
        flight.waiting += 1
        try:
            await flight.done.wait()
        finally:
            flight.waiting -= 1
            if self._wanted_only and not flight.waiting and not flight.done.is_set():
                flight.scope.cancel()
                self._forget(key, flight)
        request_log.note(*flight.answerers)
        if flight.error is not None:
            raise untraced(flight.error)
        return flight.value[0]

    async def _run(
        self, key: KeyT, flight: _Flight[ValueT], work: Callable[[], Awaitable[ValueT]]
    ) -> None:
        try:
            with flight.scope:
                flight.value.append(await work())
        except Exception as error:  # noqa: BLE001 - raised in all callers that wait
            flight.error = untraced(error)
        finally:
            self._forget(key, flight)
            if not flight.value and flight.error is None:
                flight.error = Unavailable("the mount is going away")
            flight.done.set()

    def _forget(self, key: KeyT, flight: _Flight[ValueT]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
