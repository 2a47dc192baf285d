"""Web servers as buckets: a host is one, and the path of a URL is a key.

HTTP has no listings. The names in a directory are those of the server's own index of it, if it has
one, and sizes and versions are asked for file by file. Shards that the user named one by one need no
index: their names are all that is known of their directories.

Sends requests to web servers: redirects, secrets for the hosts they are for, what refusals mean.

Headers that some hosts want: tokens, cookies, passwords.

A host gets only what was given for it, also after a redirect. Nothing of it is shown anywhere.

Reads bytes of exactly one version of a file from where it lies on the web.

Must not know: requests, errnos.
"""

import logging
import re
import string
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Self
from urllib.parse import quote, urljoin, urlsplit

from cachetools import TTLCache

from aisfs import __version__
from aisfs.core.names.listing import INDEX_DIRECTORY
from aisfs.core.names.reach import Reach
from aisfs.core.names.urls import has_no_path, split_url, url_of
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    BucketNotFound,
    ConfigError,
    InvalidName,
    IsADirectory,
    NoRanges,
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
from aisfs.model import Bucket, Keys, ObjectInfo, Page, Provider
from aisfs.redaction import remember_header, shown
from aisfs.settings import ClusterSettings
from aisfs.stores.pipeline import Retrier, all_of
from aisfs.stores.port import Arrived, Count, ReadOnlyStore, Sink, uncounted
from aisfs.stores.web_pages import (
    Names,
    check_range,
    check_version,
    check_whole,
    conditions,
    described,
    names_in_index,
    names_in_multistatus,
)

_LINE = re.compile(
    r"(\S+)\s+([!#$%&'*+.^_`|~0-9A-Za-z-]+):\s*([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)"
)
_OURS = frozenset({"range", "if-match", "if-unmodified-since", "accept-encoding", "host", "connection", "content-length", "transfer-encoding"})  # fmt: skip
"""What requests themselves say."""
_PORTS = {"https": 443, "http": 80}


class HostHeaders:
    """The headers for each host."""

    def __init__(self, headers: Mapping[str, Mapping[str, str]]) -> None:
        """Take headers by host, `HOST` or `HOST:PORT`; each value is a secret from now on."""
        self._headers = {host.lower(): dict(named) for host, named in headers.items()}
        for named in self._headers.values():
            for name, value in named.items():
                remember_header(name, value)

    def __repr__(self) -> str:
        return f"<HostHeaders for {', '.join(self._headers) or 'no host'}>"

    @classmethod
    def load(cls, path: Path | None) -> Self:
        """Read a file of lines `HOST NAME: VALUE`; empty lines and those with `#` in front are left out.

        Raises:
            ConfigError: it cannot be read, or a line is none. No line is repeated.
        """
        found: dict[str, dict[str, str]] = {}
        for number, line in enumerate(_lines(path), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            parts = _LINE.fullmatch(line.strip())
            where = f"--http-headers {path}, line {number}"
            if parts is None or "/" in parts[1]:
                raise ConfigError(f"{where}: not of the form `HOST NAME: VALUE`")
            if parts[2].lower() in _OURS:
                raise ConfigError(f"{where}: {parts[2]} is a header that aisfs sends itself")
            found.setdefault(parts[1], {})[parts[2]] = parts[3]
        return cls(found)

    def of(self, url: str) -> Mapping[str, str]:
        """Return what to say to the host of a URL."""
        parts = urlsplit(url)
        if not self._headers or not parts.hostname:
            return {}
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        usual = _PORTS.get(parts.scheme)
        port = parts.port or usual
        named = self._headers.get(f"{host}:{port}")
        if named is None and port == usual:
            named = self._headers.get(host)
        return named or {}


def _lines(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        return path.read_text("ascii").splitlines()
    except OSError as error:
        raise ConfigError(f"--http-headers {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"--http-headers {path}: only ASCII can be a header") from None


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


_PIECE = 1 << 20
"""Bytes given to a sink at once; as the client of AIStore does."""
_WHOLE_MOST = 4 << 20
"""Bytes of a file that is read whole for any range of it, where the server knows no ranges: about what is
read ahead of a reader anyway."""


def read_range(
    client: WebClient,
    connections: ConnectionSet,
    url: str,
    subject: str,
    expected: ObjectInfo,
    start: int,
    buffer: memoryview,
    arrived: Arrived | None = None,
) -> None:
    """Fill `buffer` with the bytes from `start` on.

    Args:
        client: Sends the request.
        connections: The connections to use.
        url: Where the file is.
        subject: The start of messages.
        expected: The version; without one, only the size is compared.
        start: Where to begin.
        buffer: To be filled; lies within the file.
        arrived: As the port has it.

    Raises:
        NoRanges: the server sends the file only whole, and it is not small.
        AisfsError: as the port has it.
    """
    stop = start + len(buffer)
    headers = {"Range": f"bytes={start}-{stop - 1}", **conditions(expected)}
    with client.open(connections, "GET", url, subject, headers) as reply:
        if reply.head.status == 206:
            check_version(subject, expected, reply.head)
            check_range(subject, expected, start, stop, reply.head)
            _fill(subject, reply, buffer, arrived)
            return
        check_whole(subject, expected, reply.head)
        if len(buffer) == expected.size:
            _fill(subject, reply, buffer)
            _check_end(subject, expected, reply)
            return
        if expected.size > _WHOLE_MOST:
            raise NoRanges(f"{subject}: the server sends files only whole")
        content = memoryview(bytearray(expected.size))
        _fill(subject, reply, content)
        _check_end(subject, expected, reply)
        buffer[:] = content[start:stop]


def stream(
    client: WebClient,
    connections: ConnectionSet,
    url: str,
    subject: str,
    expected: ObjectInfo,
    sink: Sink,
) -> None:
    """Send the whole file to `sink`; arguments and errors as for `read_range`."""
    with client.open(
        connections, "GET", url, subject, conditions(expected), accepted=(200,)
    ) as reply:
        check_whole(subject, expected, reply.head)
        piece = memoryview(bytearray(min(_PIECE, expected.size + 1)))
        done = 0
        while got := reply.read_into(piece[: expected.size - done + 1]):
            done += got
            if done > expected.size:
                raise Stale(f"{subject}: longer than its {expected.size} bytes")
            sink(piece[:got])
    if done < expected.size:
        raise _cut_short(subject, done, expected.size)


def _fill(
    subject: str, reply: WebReply, buffer: memoryview, arrived: Arrived | None = None
) -> None:
    got = reply.read_into(buffer, arrived)
    if got < len(buffer):
        raise _cut_short(subject, got, len(buffer))


def _check_end(subject: str, expected: ObjectInfo, reply: WebReply) -> None:
    if reply.read_into(memoryview(bytearray(1))):
        raise Stale(f"{subject}: longer than its {expected.size} bytes")


def _cut_short(subject: str, got: int, wanted: int) -> Unavailable:
    return Unavailable(f"{subject}: the connection ended after {got} of {wanted} bytes")


log = logging.getLogger(__name__)

_MOST_INDEX = 128 << 20
"""Bytes of an index page: half a million names with their sizes and dates."""
_PAGE = 1000
"""Names of one page of a listing: what is asked for one by one within the time that a call may take."""
_LISTINGS = 8
"""Of large directories at once, whose names are kept until their last page."""
_SECONDS_KEPT = 300.0
"""Until the names of a listing that was given up are forgotten; a page takes no longer than a call may."""
_MOST_LOOKED_INTO = 1000
"""Directories in which something is looked for that may be anywhere below a directory."""
_NO_INDEX = "/"
"""Token of the page behind the first one of a directory whose names are not to be had; no file's name."""
_ACCEPT = {"Accept": "application/json, text/html;q=0.9, */*;q=0.1"}
"""caddy has its index as JSON, too."""
_PROPFIND = {"Depth": "1", "Content-Length": "0"}
_NO_HEAD = (400, 403, 405, 501)
"""How a server that does not know HEAD may refuse it."""
_NO_INDEX_HERE = (400, 403, 404, 405, 406, 501)
"""How a server may refuse to list a directory."""


class WebStore(ReadOnlyStore):
    """Files of web servers."""

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        buckets: Iterable[Bucket] = (),
        named: Iterable[tuple[Bucket, str]] = (),
        count: Count = uncounted,
        reach: Reach | None = None,
    ) -> None:
        """Read the TLS settings; nothing is sent.

        Args:
            settings: How to connect.
            buckets: The hosts that are known to be of use.
            named: Files that were named one by one. A directory with any of them is taken to have
                no others.
            count: Told of each request.
            reach: Where redirects may lead, if that is limited.

        Raises:
            ConfigError: a file that the settings name is unusable.
        """
        self._client = WebClient(settings, count=count, reach=reach)
        self._buckets = sorted(buckets)
        self._at_once = settings.max_connections
        self._retrier = Retrier(deadline=settings.io_timeout)
        self._named: dict[tuple[Bucket, str], list[str]] = {}
        for bucket, key in named:
            directory = (bucket, key[: key.rfind("/") + 1])
            self._named.setdefault(directory, []).append(key)
        self._rest: TTLCache[tuple[Bucket, str], list[str]] = TTLCache(_LISTINGS, _SECONDS_KEPT)
        """The names in directories of which not all pages were asked for yet."""
        self._without_head: set[Bucket] = set()
        self._without_propfind: set[Bucket] = set()

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """Return the hosts that are known to be of use."""
        return [bucket for bucket in self._buckets if provider in (None, bucket.provider)]

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        """List the next names of a directory, in their order."""
        _check(bucket, prefix)
        if has_no_path(prefix):
            return Page([], [], "")
        begins = token in ("", _NO_INDEX)
        files = None if begins else self._rest.get((bucket, prefix))
        directories: list[str] = []
        if files is None:
            try:
                names = await self._names(bucket, prefix)
            except Unsupported as error:
                if token == _NO_INDEX:
                    raise
                # The directory counts as a large one: its names are looked up one by one.
                log.info("%s", error)
                return Page([], [], _NO_INDEX)
            files = sorted(names.files)
            directories = [f"{prefix}{name}/" for name in names.directories] if begins else []
        first = 0 if begins else bisect_right(files, token)
        now = files[first : first + _PAGE]
        infos, more = await self._describe(bucket, prefix, now)
        if first + _PAGE < len(files):
            self._rest[bucket, prefix] = files
            return Page(infos, sorted(directories + more), now[-1])
        self._rest.pop((bucket, prefix), None)
        return Page(infos, sorted(directories + more), "")

    async def first_keys(
        self, bucket: Bucket, prefix: str, most: int, *, sure: bool = False
    ) -> Keys:
        """Return `most` keys at most of files below the directory `prefix`."""
        _check(bucket, prefix)
        if has_no_path(prefix):
            return Keys([], complete=True)
        named = (key for (host, _), keys in self._named.items() if host == bucket for key in keys)
        if not prefix and (some := [*islice(named, self._at_once)]):
            there: list[str] = []
            for key in some:  # at once an error if the server cannot be asked
                with suppress(NotFound):
                    there.append((await self.head(bucket, key)).key)
                if len(there) == most:
                    break
            return Keys(there, complete=False)
        found: list[str] = []
        folders, looked = [prefix], 0
        while folders and len(found) <= most and looked < _MOST_LOOKED_INTO:
            folder, looked = folders.pop(), looked + 1
            names = await self._names_below(bucket, folder)
            found += sorted(folder + name for name in names.files)
            folders += sorted(f"{folder}{name}/" for name in names.directories)
        return Keys(found[:most], len(found) <= most and not folders)

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """Ask the server for the version of a file."""
        _check(bucket)
        subject = f"{bucket}/{key}"
        if not key or key.endswith("/") or has_no_path(f"{key}/"):
            raise NotFound(f"{subject}: no name of a file")
        try:
            return await self._client.pool.run(subject, partial(self._head, bucket, key))
        except IsADirectory as error:
            raise NotFound(str(error)) from error

    async def read_range(
        self,
        bucket: Bucket,
        expected: ObjectInfo,
        start: int,
        buffer: memoryview,
        arrived: Arrived | None = None,
    ) -> None:
        """Fill `buffer` with the bytes from `start` on of exactly the version `expected`."""
        if not 0 <= start < start + len(buffer) <= expected.size:
            raise ValueError(f"{len(buffer)} bytes from {start} on of {expected.size}")
        _check(bucket)
        subject, url = f"{bucket}/{expected.key}", url_of(bucket, expected.key)

        def work(connections: ConnectionSet) -> None:
            read_range(self._client, connections, url, subject, expected, start, buffer, arrived)

        await self._client.pool.run(subject, work)

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """Send the whole file, version `expected`, to `sink` as the bytes arrive."""
        _check(bucket)
        subject, url = f"{bucket}/{expected.key}", url_of(bucket, expected.key)

        def work(connections: ConnectionSet) -> None:
            stream(self._client, connections, url, subject, expected, sink)

        await self._client.pool.run(subject, work)

    async def aclose(self) -> None:
        """Close all connections, make the calls in progress fail, and wait until they have."""
        await self._client.pool.aclose()

    # Names ---------------------------------------------------------------------------------------

    async def _names(self, bucket: Bucket, prefix: str) -> Names:
        """Return the names in a directory.

        Raises:
            NotFound: there is no such directory.
            Unsupported: there is no index of it.
        """
        if (named := self._named.get((bucket, prefix))) is not None:
            return Names({key[len(prefix) :] for key in named})
        subject = f"{bucket}/{prefix}"
        if (bucket, prefix.removesuffix(f"{INDEX_DIRECTORY}/")) in self._named:
            raise Unsupported(f"{subject}: the files beside it were named one by one")
        return await self._client.pool.run(subject, partial(self._index, bucket, prefix))

    async def _names_below(self, bucket: Bucket, prefix: str) -> Names:
        """Likewise, but there is nothing in what is missing, or in a file that is called like a directory."""
        try:
            return await self._names(bucket, prefix)
        except NotFound:
            return Names()
        except Unsupported:
            if prefix:
                try:
                    await self.head(bucket, prefix.removesuffix("/"))
                except NotFound:
                    pass
                else:
                    return Names()
            raise

    async def _describe(
        self, bucket: Bucket, prefix: str, names: Sequence[str]
    ) -> tuple[list[ObjectInfo], list[str]]:
        """Ask for the versions of files; return those that are there, and what is a directory."""
        found: dict[str, ObjectInfo] = {}
        directories: list[str] = []

        async def one(key: str) -> None:
            subject = f"{bucket}/{key}"
            attempt = partial(self._client.pool.run, subject, partial(self._head, bucket, key))
            try:
                found[key] = await self._retrier.run(subject, attempt)
            except IsADirectory:
                directories.append(f"{key}/")
            except NotFound:  # gone since, or a link that leads nowhere
                log.info("%s: named by the index, but not there", subject)

        keys = [prefix + name for name in names]
        jobs: list[Callable[[], Awaitable[None]]] = [partial(one, key) for key in keys]
        await all_of(jobs, self._at_once)
        return [found[key] for key in keys if key in found], directories

    # In worker threads ---------------------------------------------------------------------------

    def _index(self, bucket: Bucket, prefix: str, connections: ConnectionSet) -> Names:
        subject, url = f"{bucket}/{prefix}", url_of(bucket, prefix)
        listing = partial(self._client.open, connections, kind="list")
        with listing("GET", url, subject, _ACCEPT, accepted=(200, *_NO_INDEX_HERE)) as reply:
            status = reply.head.status
            names = None
            if status == 200:
                names = names_in_index(reply.url, reply.read(_MOST_INDEX))
        if names is None and status == 404 and prefix:
            raise NotFound(f"{subject}: no such directory")
        if names is None and bucket not in self._without_propfind:
            accepted = (207, *_NO_INDEX_HERE)
            with listing("PROPFIND", url, subject, _PROPFIND, accepted=accepted) as reply:
                if reply.head.status == 207:
                    return names_in_multistatus(reply.url, reply.read(_MOST_INDEX))
            self._without_propfind.add(bucket)
        if names is None:
            why = "its page is none that a server makes" if status == 200 else f"HTTP {status}"
            if status == 400:
                why += ", as where a client certificate is missing"
            raise Unsupported(
                f"{subject}: the server has no index of this directory ({why}): name the files,"
                " with braces such as x-{000..099}.tar or in a list file"
            )
        return names

    def _head(self, bucket: Bucket, key: str, connections: ConnectionSet) -> ObjectInfo:
        subject, url = f"{bucket}/{key}", url_of(bucket, key)
        if bucket not in self._without_head:
            with self._client.open(
                connections, "HEAD", url, subject, accepted=(200, *_NO_HEAD), kind="head"
            ) as reply:
                head = reply.head
            if head.status == 200 and "content-length" in head.headers:
                return described(subject, key, head)
        first = {"Range": "bytes=0-0"}
        with self._client.open(
            connections, "GET", url, subject, first, accepted=(200, 206, 416)
        ) as reply:
            head = reply.head
        if head.status == 416 and head.headers.get("content-range") == "bytes */0":
            head = type(head)(200, {**head.headers, "content-length": "0"})
        info = described(subject, key, head)
        self._without_head.add(bucket)
        return info


def _check(bucket: Bucket, prefix: str = "") -> None:
    if not bucket.provider.is_web:
        raise BucketNotFound(f"{bucket}: no web server")
    if prefix and not prefix.endswith("/"):
        raise InvalidName(f"{bucket}/{prefix}: a directory prefix ends in '/'")
