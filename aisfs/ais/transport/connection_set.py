"""A set of keep-alive connections, one to each host of a cluster, for one request at a time.

Must not know: redirects, tokens, what requests mean, trio.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from aisfs.ais.transport.cancellable_sockets import CancellableSockets

_MAX_HOSTS = 256
"""Hosts one line keeps a connection to; more than any cluster's targets seen in practice."""


class ConnectionSet(HTTPAdapter):
    """Keep-alive connections to the hosts of a cluster, one to each, for one request at a time."""

    def __init__(
        self,
        send_timeout: float | None,
        endpoint: str,
        admit: Callable[[HTTPConnection], None],
        greet: Callable[[HTTPConnection], None],
    ) -> None:
        """Connect to nothing yet.

        Args:
            send_timeout: Seconds that a peer may take no byte of what is sent; None waits for ever.
            endpoint: The proxy.
            admit: Called with each new connection to it, before anything else is sent.
            greet: Called so with new connections to others, before a change is sent there.
        """
        proxy = _host_of(endpoint)

        def checked(connection: HTTPConnection) -> None:
            if (connection.host, connection.port) == proxy:
                admit(connection)
            elif self.changes:
                greet(connection)

        self.lifeline = CancellableSockets(send_timeout, checked)
        self.changes = False
        """Whether the request that is under way changes something."""
        self.episode = 0
        """In which the connection to the endpoint was made; see `Readiness`."""
        self.map_version = 0
        """Of the cluster's map that was known when the work on this line began."""
        self._pools: dict[str, Any] = {}
        super().__init__(pool_connections=_MAX_HOSTS, pool_maxsize=1)

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - requests' own signature
        """Give urllib3's pool for a host, made to use connections that can be cut."""
        pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
        pool.ConnectionCls = getattr(self.lifeline, pool.scheme)
        return pool

    @contextmanager
    def connection(self, url: str, tls: dict[str, Any], timeout: float | None) -> Iterator[Any]:
        """Lend the connection to the host of `url`, connected; it is closed when the block fails."""
        pool = self._pool(url, tls)
        connection = pool._get_conn()
        try:
            if connection.sock is None:
                connection.timeout = timeout
                connection.connect()
            yield connection
        except BaseException:
            connection.close()
            raise
        finally:
            pool._put_conn(connection)

    def disconnect(self, url: str, tls: dict[str, Any]) -> None:
        """Close the connection to the host of `url`; the next request makes a new one."""
        pool = self._pool(url, tls)
        connection = pool._get_conn()
        connection.close()
        pool._put_conn(connection)

    def _pool(self, url: str, tls: dict[str, Any]) -> Any:  # noqa: ANN401 - urllib3's pool
        """Give the pool of a host; which one that is costs requests as much as sending to it."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if (pool := self._pools.get(origin)) is None:
            while len(self._pools) >= _MAX_HOSTS:
                del self._pools[next(iter(self._pools))]
            prepared = requests.PreparedRequest()
            prepared.url = url
            pool = self.get_connection_with_tls_context(prepared, tls["verify"], cert=tls["cert"])
            self.cert_verify(pool, url, tls["verify"], tls["cert"])  # type: ignore[no-untyped-call]
            self._pools[origin] = pool
        return pool

    def close(self) -> None:
        """Close all connections. Only when no request is under way."""
        self._pools.clear()
        super().close()
        self.lifeline.close()


def _host_of(endpoint: str) -> tuple[str, int]:
    """Give host and port as urllib3 has them."""
    parts = urlsplit(endpoint)
    host = (parts.hostname or "").encode("idna").decode()
    return host, parts.port or (443 if parts.scheme == "https" else 80)
