"""Sends requests to web servers: redirects, secrets for the hosts they are for, what refusals mean.

Everything here blocks; must not know trio.
"""

import string
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from urllib.parse import quote, urljoin, urlsplit

from aisfs import __version__
from aisfs.core.names.reach import Reach
from aisfs.core.names.urls import split_url
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    ConfigError,
    IsADirectory,
    NotFound,
    ProtocolError,
    Stale,
    Unavailable,
    Unsupported,
)
from aisfs.http.connections import ConnectionPool, ConnectionSet
from aisfs.http.exchange import (
    PROXY_PASSWORD,
    Distance,
    Exchange,
    Reply,
    WatchedConnection,
    distance_by_name,
    distance_of,
    environment_proxy,
    network,
    speaks_tls,
    tls_options,
)
from aisfs.redaction import shown
from aisfs.settings import ClusterSettings
from aisfs.store.port import Arrived, Count, uncounted
from aisfs.store.web.host_headers import HostHeaders

_AGENT = f"aisfs/{__version__}"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HOPS_MOST = 6
"""Redirects in a row: to https, to another host, a new name of a repository, its storage."""
_MOST_DRAINED = 64 << 10
"""Bytes of an unwanted body read to keep its connection; a new connection is cheaper than more."""
_MOST_TEXT = 300
"""Characters of a URL or a body that are passed on."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})

_MEANINGS: dict[int, tuple[type[AisfsError], str]] = {
    400: (
        ProtocolError,
        "the server does not understand the request, or wants a client certificate",
    ),
    401: (AccessDenied, "the server wants to know who asks: see --http-headers"),
    403: (AccessDenied, "the server does not permit this"),
    404: (NotFound, "no such file"),
    407: (AccessDenied, f"the proxy {PROXY_PASSWORD}"),
    405: (Unsupported, "the server does not know this kind of request"),
    408: (Unavailable, "the server gave up waiting"),
    410: (NotFound, "gone from the server"),
    412: (Stale, "the file changed"),
    416: (Stale, "shorter on the server than it was"),
    425: (Unavailable, "the server wants to be asked later"),
    429: (Unavailable, "the server limits the rate of requests"),
    501: (Unsupported, "the server does not know this kind of request"),
}
_PASSING = frozenset({500, 502, 503, 504})


class WebReply:
    """A reply whose body is to be read while the request is open."""

    def __init__(self, url: str, sent: Exchange, subject: str, seconds: float | None) -> None:
        self.url = url
        """Where it came from, after all redirects."""
        self.head = sent.head
        self._sent = sent
        self._subject = subject
        self._seconds = seconds

    def read_into(self, view: memoryview, arrived: Arrived | None = None) -> int:
        """Read until `view` is full or the body ends; return how many bytes came."""
        with network(self._subject):
            return self._sent.read_into(view, arrived)

    def read(self, most: int) -> bytes:
        """Read all of it, which may be `most` bytes.

        Raises:
            ProtocolError: it is longer.
        """
        with network(self._subject):
            content = self._sent.take(most + 1, self._seconds)
        if len(content) > most:
            raise ProtocolError(f"{self._subject}: an answer of more than {most} bytes")
        return content


class WebClient:
    """Requests to any hosts."""

    def __init__(
        self,
        settings: ClusterSettings,
        secrets: HostHeaders | None = None,
        count: Count = uncounted,
        reach: Reach | None = None,
    ) -> None:
        """Read the TLS settings; nothing is sent.

        Args:
            settings: Timeouts, TLS and connections.
            secrets: Headers for some hosts; by default those of the settings.
            count: Told of each request, those that were redirected too.
            reach: Where redirects may lead; None for any host that is not nearer than the one
                that redirects.

        Raises:
            ConfigError: a file that the settings name is unusable.
        """
        # Sockets take "no timeout" as None, users write it as 0.
        self._timeouts = settings.connect_timeout or None, settings.read_timeout or None
        self._deadline = settings.io_timeout
        self._count = count
        self._reach = reach
        self._tls = tls_options(settings)
        headers = None if settings.anonymous else settings.http_headers
        self._secrets = HostHeaders.load(headers) if secrets is None else secrets
        self._without_tls: set[str] = set()
        """Hosts, with their ports, that have understood a request, or a greeting of TLS not."""
        self.pool = ConnectionPool(self._connections, settings.max_connections)

    def _connections(self) -> ConnectionSet:
        nothing = _ask_nothing
        return ConnectionSet("", self._tls, self._timeouts, nothing, nothing, environment_proxy)

    @contextmanager
    def open(
        self,
        connections: ConnectionSet,
        method: str,
        url: str,
        subject: str,
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        accepted: tuple[int, ...] = (200, 206),
        kind: str = "get",
    ) -> Iterator[WebReply]:
        """Yield a reply whose body is to be read in the block, wholly or not.

        Args:
            connections: The connections to use.
            method: Of HTTP.
            url: Where to.
            subject: The start of messages.
            headers: Besides those that every request has.
            accepted: Statuses that are answers.
            kind: The class as which requests are counted.

        Raises:
            IsADirectory: the server redirects to the same name with a slash.
            AisfsError: the reply has none of the `accepted` statuses.
        """
        url, sent = self._follow(connections, method, url, subject, headers, kind)
        try:
            status = sent.head.status
            if status != 400:
                self._without_tls.add(urlsplit(url).netloc)
            elif status not in accepted or kind == "list":  # some say so to a HEAD alone
                self._check_scheme(url, subject)
            if status not in accepted:
                raise _failure(subject, self._drain(sent, subject))
            yield WebReply(url, sent, subject, self._deadline)
        finally:
            sent.end()

    def _follow(
        self,
        connections: ConnectionSet,
        method: str,
        url: str,
        subject: str,
        headers: Mapping[str, str],
        kind: str,
    ) -> tuple[str, Exchange]:
        """Send a request and go where it is redirected to."""
        far = Distance.MACHINE
        for _ in range(_HOPS_MOST):
            self._count(kind, 1)
            sent, far = self._transmit(connections, method, url, subject, headers, far)
            location = sent.head.headers.get("location")
            if sent.head.status not in _REDIRECTS or not location:
                return url, sent
            self._drain(sent, subject)
            url = _next_url(subject, url, location)
            self._check_reach(subject, url)
        raise ProtocolError(f"{subject}: redirected in circles, to {_where(url)}")

    def _transmit(
        self,
        connections: ConnectionSet,
        method: str,
        url: str,
        subject: str,
        headers: Mapping[str, str],
        least: Distance,
    ) -> tuple[Exchange, Distance]:
        """Send a request to a peer that is no nearer than `least`; return how far it is, too."""
        parts = urlsplit(url)
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        # Identity: a range of a compressed body is a range of other bytes.
        said = {"User-Agent": _AGENT, "Accept-Encoding": "identity", **headers}
        said |= self._secrets.of(url)
        try:
            with network(subject):
                connection = connections.connected(url)
                far = _distance(connection)
                if far >= least:
                    sent = Exchange(connection, method, target, said, timeout=self._timeouts[1])
                    return sent, far
            raise ProtocolError(
                f"{subject}: redirected to {_where(url)}, which is nearer to this machine than the"
                " server: name that place itself, if it is meant"
            )
        except Unavailable as error:
            if isinstance(error.__cause__, ConnectionResetError):
                self._check_scheme(url, subject)
            raise

    def _check_reach(self, subject: str, url: str) -> None:
        """Refuse to be redirected to a host that may not be named.

        Raises:
            AccessDenied: it is such a host.
        """
        if self._reach is None:
            return
        place = urlsplit(url)
        try:
            self._reach.check("it", split_url(f"{place.scheme}://{place.netloc}")[0])
        except ConfigError as error:
            raise AccessDenied(f"{subject}: redirected to {_where(url)}: {error}") from error

    def _check_scheme(self, url: str, subject: str) -> None:
        """Find out whether a server that gives no answer wants TLS.

        Raises:
            ConfigError: it does.
        """
        place = urlsplit(url)
        if environment_proxy(url) is not None:
            return
        if place.scheme == "http" and place.netloc not in self._without_tls:
            if speaks_tls(url):
                raise ConfigError(f"{subject}: the server speaks TLS: use https://")
            self._without_tls.add(place.netloc)

    def _drain(self, sent: Exchange, subject: str) -> Reply:
        """Return a reply with its body, the start of a long one, and be done with it."""
        with network(subject):
            return sent.take_all(_MOST_DRAINED, self._timeouts[1])


def _distance(connection: WatchedConnection) -> Distance:
    if connection.proxy_used is not None:
        return distance_by_name(connection.origin[0])
    return distance_of(connection.sock)


def _ask_nothing(connection: object) -> None:
    """Take a new connection as it is."""


def _next_url(subject: str, url: str, location: str) -> str:
    # http.client gives the header's bytes as Latin-1; a URL has only ASCII.
    with suppress(ValueError):
        place = urljoin(url, quote(location.encode("latin-1"), safe=string.punctuation))
        before, after = urlsplit(url), urlsplit(place)
        # Impossible hosts and ports are told by asking for them.
        host = (after.hostname or "").encode("idna")
        if after.scheme in ("http", "https") and host and after.port != 0:
            if before.scheme == "https" and after.scheme == "http":
                raise ProtocolError(f"{subject}: redirected away from https, to {_where(place)}")
            if after.path == f"{before.path}/":
                raise IsADirectory(f"{subject}: a directory of the server")
            return place
    raise ProtocolError(f"{subject}: redirected to {shown(location)[:_MOST_TEXT]!r}")


def _where(url: str) -> str:
    """Return a URL without its query, which is often a signature."""
    return shown(url.partition("?")[0])[:_MOST_TEXT]


def _failure(subject: str, reply: Reply) -> AisfsError:
    status = reply.status
    if status in _MEANINGS:
        kind, text = _MEANINGS[status]
    elif status in _PASSING:
        kind, text = Unavailable, "the server, or one in front of it, failed or is overloaded"
    elif status in (200, 206):
        kind, text = ProtocolError, "the server sent something else than was asked for"
    else:
        kind, text = ProtocolError, "an answer that makes no sense"
    error = kind(f"{subject}: {text} (HTTP {status})")
    if isinstance(error, Unavailable):
        error.pause = _retry_after(reply.headers)
    return error


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return how many seconds the server wants to be left alone; 0 if it does not say."""
    said = headers.get("retry-after", "").strip()
    if said.isdecimal() and len(said) < 10:
        return float(said)
    with suppress(ValueError, TypeError, OverflowError):
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    return 0.0
