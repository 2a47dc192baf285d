"""Runs blocking work in worker threads, each on a set of connections that it has to itself.

requests promises no thread safety, so a `ConnectionSet` serves one call at a time. Sets are handed out
last in, first out, so that few stay warm; they are not bound to threads, since trio's threads come
and go.

Must not know: requests, replies, what the work is.

A cancellation asks the call in its thread to end (`interrupt`), and then waits for it: a thread that is left behind
would still write into a buffer that its owner believes free.
"""

import contextvars
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
import trio
from requests.adapters import HTTPAdapter

from aisfs.errors import AisfsError, ConfigError, Unavailable
from aisfs.http.exchange import CancellableSockets, ProxyOf, WatchedConnection, no_proxy

_MAX_HOSTS = 256
"""Hosts one set keeps a connection to; more than any cluster's targets seen in practice."""


class ConnectionSet(HTTPAdapter):
    """Keep-alive connections to the hosts of a cluster, one to each, for one request at a time.

    As an adapter of requests it decides on certificates as requests does. It has no pools: each host
    has one connection, which is free when the request before has ended.
    """

    def __init__(
        self,
        endpoint: str,
        tls: dict[str, Any],
        timeouts: tuple[float | None, float | None],
        admit: Callable[[WatchedConnection], None],
        greet: Callable[[WatchedConnection], None],
        proxy_of: ProxyOf = no_proxy,
    ) -> None:
        """Connect to nothing yet.

        Args:
            endpoint: The proxy.
            tls: What requests takes as `verify` and `cert`.
            timeouts: Seconds for connecting, and seconds that a peer may take no byte of what is
                sent; None waits without end.
            admit: Called with each new connection to it, before anything else is sent.
            greet: Called so with new connections to others, before a change is sent there.
            proxy_of: Which proxy, of those that are no AIStore's, leads to a host.
        """
        first = _host_of(endpoint)

        def checked(connection: WatchedConnection) -> None:
            if connection.origin == first:
                admit(connection)
            elif self.changes:
                greet(connection)

        super().__init__()
        self._tls = tls
        self._proxy_of = proxy_of
        self._connect_timeout, send_timeout = timeouts
        self.sockets = CancellableSockets(send_timeout, checked)
        self.changes = False
        """Whether the request that is under way changes something."""
        self.episode = 0
        """In which the connection to the endpoint was made; see `Readiness`."""
        self.map_version = 0
        """Of the cluster's map that was known when the present work began."""
        self._connections: dict[str, WatchedConnection] = {}

    def connected(self, url: str) -> WatchedConnection:
        """Return the connection to the host of `url`, connected.

        Raises:
            OSError, HTTPException, AisfsError: it cannot be made.
        """
        origin = _origin(url)
        connection = self._connections.get(origin)
        if connection is None:
            while len(self._connections) >= _MAX_HOSTS:
                self._connections.pop(next(iter(self._connections))).close()
            connection = self._connections[origin] = self._make(url)
        if not connection.is_connected:  # the peer may have closed it since
            connection.close()
            try:
                connection.connect()
            except BaseException:
                connection.close()
                raise
        return connection

    def _make(self, url: str) -> WatchedConnection:
        prepared = requests.PreparedRequest()
        prepared.url = url
        host, options = self.build_connection_pool_key_attributes(prepared, **self._tls)
        proxy = self._proxy_of(url)
        tls = host["scheme"] == "https"
        if tls and proxy is not None and proxy.scheme == "https":
            raise ConfigError(
                f"{proxy} speaks TLS itself, which is of no use for https: write http://"
            )
        make: Callable[..., WatchedConnection] = self.sockets.https
        more: Mapping[str, Any] = options
        if not tls and (proxy is None or proxy.scheme == "http"):
            make, more = self.sockets.http, {}
        return make(*_host_of(url), timeout=self._connect_timeout, proxy=proxy, tls=tls, **more)

    def disconnect(self, url: str) -> None:
        """Close the connection to the host of `url`; the next request makes a new one."""
        if (connection := self._connections.get(_origin(url))) is not None:
            connection.close()

    def close(self) -> None:
        """Close all connections. Only when no request is under way."""
        self.sockets.rest()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        super().close()


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _host_of(url: str) -> tuple[str, int]:
    """Return host and port as a connection takes them."""
    parts = urlsplit(url)
    host = (parts.hostname or "").encode("idna").decode()
    return host, parts.port or (443 if parts.scheme == "https" else 80)


T = TypeVar("T")


async def run_interruptible(call: Callable[[], T], interrupt: Callable[[], None]) -> T:
    """Run `call` in a worker thread.

    Args:
        call: The blocking work.
        interrupt: Makes a `call` under way return soon, in any manner; it must not wait, and may
            come before `call` has begun.

    On a cancellation `interrupt` is called once; the thread has ended when Cancelled comes out.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    task = trio.lowlevel.current_task()
    token = trio.lowlevel.current_trio_token()
    context = contextvars.copy_context()
    cancelled: list[Callable[[], Any]] = []

    def deliver(result: Any) -> None:  # noqa: ANN401 - an outcome.Outcome[T]
        token.run_sync_soon(trio.lowlevel.reschedule, task, result)

    def abort(raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        cancelled.append(raise_cancel)
        interrupt()
        # The thread still runs; the task goes on when `deliver` says that it has ended.
        return trio.lowlevel.Abort.FAILED

    trio.lowlevel.start_thread_soon(lambda: context.run(call), deliver, "aisfs request")
    try:
        result: T = await trio.lowlevel.wait_task_rescheduled(abort)
    except Exception:
        # The call failed because it was interrupted: that failure is nobody's news.
        if cancelled:
            cancelled[0]()
        raise
    return result


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
