"""A set of keep-alive connections, one to each host of a cluster, for one request at a time.

Must not know: redirects, tokens, what requests mean, trio.
"""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from aisfs.connections.cancellable_sockets import CancellableSockets, WatchedConnection
from aisfs.connections.proxies import ProxyOf, no_proxy
from aisfs.errors import ConfigError

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
