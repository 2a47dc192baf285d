"""Runs blocking work in worker threads, each on a set of connections that it has to itself.

requests promises no thread safety, so a `ConnectionSet` serves one call at a time. Sets are handed out
last in, first out, so that few stay warm; they are not bound to threads, since trio's threads come
and go.

Must not know: requests, replies, what the work is.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio

from aisfs.connections.connection_set import ConnectionSet
from aisfs.connections.interruptible_thread import run_interruptible
from aisfs.errors import AisfsError, Unavailable

T = TypeVar("T")


class ConnectionPool:
    """Sets of connections, as many as calls at once."""

    def __init__(self, make: Callable[[], ConnectionSet], most: int) -> None:
        """Connect to nothing yet.

        Args:
            make: Returns a new set.
            most: Calls at once; others wait for their turn.
        """
        self._make = make
        self._limiter = trio.CapacityLimiter(most)
        self._idle: list[ConnectionSet] = []
        self._busy: set[ConnectionSet] = set()
        self._all_returned = trio.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"<ConnectionPool busy={len(self._busy)} idle={len(self._idle)}>"

    async def run(self, subject: str, work: Callable[[ConnectionSet], T]) -> T:
        """Run `work` in a thread, on connections of its own; a cancellation aborts them."""
        try:
            self._limiter.acquire_nowait()  # saves a turn of all tasks, where there is room
        except trio.WouldBlock:
            await self._limiter.acquire()
        try:
            if self._closed:
                raise _closed(subject)
            connections = self._idle.pop() if self._idle else self._make()
            self._busy.add(connections)
            try:
                return await run_interruptible(
                    partial(work, connections), connections.sockets.abort
                )
            except Unavailable as error:
                if self._closed:
                    raise _closed(subject) from error
                raise
            finally:
                self._take_back(connections)
        finally:
            self._limiter.release()

    def _take_back(self, connections: ConnectionSet) -> None:
        self._busy.discard(connections)
        if self._closed or connections.sockets.is_aborted:
            connections.close()
        else:
            connections.sockets.rest()
            self._idle.append(connections)
        if self._closed and not self._busy:
            self._all_returned.set()

    async def aclose(self) -> None:
        """Close all connections, make the calls in progress fail, and wait until they have."""
        self._closed = True
        for connections in self._idle:
            connections.close()
        self._idle.clear()
        for connections in self._busy:
            connections.sockets.abort()
        if self._busy:
            await self._all_returned.wait()


def _closed(subject: str) -> AisfsError:
    error = Unavailable(f"{subject}: the client was closed")
    error.transient = False  # this very instance will never succeed
    return error
