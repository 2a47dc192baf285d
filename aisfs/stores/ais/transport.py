"""Send a request from a worker thread and return its reply: redirects, the token, failures.

It knows HTTP and what is particular about AIStore's use of it, and nothing of what requests mean.

Object requests go to a proxy, which redirects to the target that has the object. Redirects are
followed here and never remembered: targets change.

A GET holds its object's lock on the server until it is drained: every reply is read to its end
or its connection closed before a call returns.

Everything here blocks; must not know trio.

Where a request may be redirected to, and whether the token goes along.

Slows uploads down to a limit that all of them share.
"""

import re
import string
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from urllib.parse import quote, urljoin, urlsplit

from aisfs import __version__
from aisfs.core.policy.link import TokenBucket
from aisfs.errors import ProtocolError, Unavailable, Unproven
from aisfs.http.connections import ConnectionSet
from aisfs.http.exchange import (
    BY_OPTION,
    BodyDelivered,
    CountedBody,
    Exchange,
    Proxy,
    Reply,
    network,
    parse_proxy,
    tls_options,
)
from aisfs.redaction import shown
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.auth import Credentials
from aisfs.stores.ais.readiness import Readiness
from aisfs.stores.ais.replies import failure, is_of_restart
from aisfs.stores.ais.requests import BATCHES, Request
from aisfs.stores.port import Arrived
from aisfs.system.locks import Rank, ranked_lock

REDIRECTS = frozenset({301, 302, 307, 308})
_MOST_TEXT = 300
"""Characters of a `Location` that are passed on."""
_MAX_HOPS = 3
"""Redirects in a row: AIStore needs one; a load balancer in front may add another."""
_TARGET_MARKS = (re.compile(r"[?&]pid="), re.compile(r"[?&]utm="))
"""What a proxy adds to the query when it redirects to a target."""
_SIGNATURE = re.compile(r"[?&]u=")


class RedirectChain:
    """The way of one request, from the endpoint on.

    Only the place and the query of a redirect are followed, with the path of the request: AIStore
    writes that anew in `Location`, with spaces for line breaks, which is the name of another object.
    That of a GetBatch names no object: it gets longer by the number of its job, and is followed.

    The token goes along to whatever host the endpoint itself names: that is the cluster. It stays
    behind when others redirect elsewhere, and when the way leaves https.
    """

    def __init__(self, endpoint: str, request: Request, authorization: str | None) -> None:
        """Begin at the endpoint."""
        self.url = self._origin = endpoint + request.target
        """Where to send the request now."""
        self.authorization = authorization
        """What to say there."""
        self._endpoint = endpoint
        self._path = request.path
        self._subject = request.subject
        self._is_transformed = "etl_name=" in request.query
        self._hops = 0

    def absolute(self, location: str) -> str:
        """Return the URL that the `Location` of a reply sends this request to.

        Raises:
            ProtocolError: that is nowhere, or no place for requests to AIStore.
        """
        # http.client gives the header's bytes as Latin-1; a URL has only ASCII.
        place = quote(location.encode("latin-1"), safe=string.punctuation)
        with suppress(ValueError):
            is_absolute = place.startswith(("http://", "https://"))
            target = place if is_absolute else urljoin(self.url, place)
            parts = urlsplit(target)
            # Impossible hosts and ports are told by asking for them.
            host = (parts.hostname or "").encode("idna")
            is_place = parts.scheme == "http" and host and parts.port != 0
            if self._is_to_transformer and is_place and not is_target(target):
                return target
            before, version, rest = parts.path.partition("/v1/")
            if parts.scheme in ("http", "https") and host and parts.port != 0 and version:
                # A name need not be escaped there: its question mark is not the last one.
                query = place[place.rfind("?") :] if "?" in place else ""
                there = f"/v1/{rest}"
                path = there if _is_job(self._path, there) else self._path
                return f"{parts.scheme}://{parts.netloc}{before}{path}{query}"
        raise ProtocolError(f"{self._subject}: redirected to {shown(place)[:_MOST_TEXT]!r}")

    @property
    def _is_to_transformer(self) -> bool:
        """Whether what comes next is no part of AIStore: a transformer that clients ask themselves (`hpull://`).

        What a proxy adds is only in the place of a target.
        """
        return self._is_transformed and is_target(self.url)

    def go(self, target: str) -> None:
        """Go where the request is redirected to.

        Raises:
            ProtocolError: that is in circles.
        """
        if self._is_to_transformer or not may_have_token(self._endpoint, self.url, target):
            self.authorization = None
        self.url = target
        self._hops += 1
        if self._hops > _MAX_HOPS:
            raise ProtocolError(
                f"{self._subject}: redirected in circles, from {self._origin} to {shown(target)[:_MOST_TEXT]}"
            )


def _is_job(path: str, there: str) -> bool:
    """Return whether a GetBatch is redirected to its job on the target that does it."""
    return path.startswith(f"{BATCHES}/") and there.startswith(f"{path}/gbt-")


def is_target(url: str) -> bool:
    """Return whether a redirect of a proxy leads to the target that is to do the work."""
    return all(mark.search(url) for mark in _TARGET_MARKS)


def is_signed(url: str) -> bool:
    """Return whether a redirect holds only for a body of the length that was announced to the proxy."""
    return bool(_SIGNATURE.search(url))


def may_have_token(endpoint: str, current: str, target: str) -> bool:
    """Return whether what was sent to `current` with the token may be sent so to `target`."""
    if current.startswith(f"{endpoint}/") and target.startswith(f"{endpoint}/"):
        return True
    old, new = urlsplit(current), urlsplit(target)
    if old.scheme == "https" and new.scheme == "http":
        return False
    cluster = {urlsplit(endpoint).netloc, old.netloc}
    return old.netloc == urlsplit(endpoint).netloc or new.netloc in cluster


_LOOK_SECONDS = 0.1
"""How often a waiting thread looks whether its request was cancelled."""


class UploadPace:
    """Hands out the pieces of bodies when they may be sent. For the threads that send."""

    def __init__(self, rate: int) -> None:
        """Let `rate` bytes go in a second."""
        self._lock = ranked_lock(Rank.UPLOAD_PACE)
        self._bucket = TokenBucket(rate)

    def paced(
        self, pieces: Iterator[memoryview], is_aborted: Callable[[], bool]
    ) -> Iterator[memoryview]:
        """Yield each piece when it may be sent, or at once if the request is aborted."""
        for piece in pieces:
            self._wait(len(piece), is_aborted)
            yield piece

    def _wait(self, size: int, is_aborted: Callable[[], bool]) -> None:
        now = time.monotonic()
        with self._lock:
            until = now + self._bucket.take(size, now)
        while (left := until - time.monotonic()) > 0:
            if is_aborted():
                with self._lock:
                    self._bucket.give_back(size)
                return
            time.sleep(min(left, _LOOK_SECONDS))  # noqa: TID251 - a thread of one request


VERSION = __version__
_AGENT = f"aisfs/{VERSION}"
_NO_PROXY = "is the endpoint a proxy of AIStore?"
_MOST_DRAINED = 64 * 1024
"""Bytes of an unwanted body read to keep its connection; a new connection is cheaper than more."""


class Body:
    """The reply to a successful request; its body is to be read while the request is open."""

    def __init__(self, sent: Exchange, subject: str) -> None:
        self.reply = sent.head
        self._sent = sent
        self._subject = subject

    def read_into(self, view: memoryview, arrived: Arrived | None = None) -> int:
        """Read until `view` is full or the body ends; return how many bytes came."""
        with network(self._subject):
            return self._sent.read_into(view, arrived)

    def read(self, most: int, seconds: float | None) -> bytes:
        """Read all of it, which may be `most` bytes and take so many seconds.

        Raises:
            ProtocolError: it is longer.
        """
        with network(self._subject):
            content = self._sent.take(most + 1, seconds)
        if len(content) > most:
            raise ProtocolError(f"{self._subject}: an answer of more than {most} bytes")
        return content


class Transport:
    """Requests to one cluster; each thread that uses it brings a `ConnectionSet` of its own."""

    def __init__(self, settings: ClusterSettings) -> None:
        """Read the token and the TLS settings; nothing is sent.

        Raises:
            NoEndpoint: the settings do not say where the cluster is.
            ConfigError: a file that the settings name is unusable.
        """
        self.endpoint = settings.require_endpoint()
        self._credentials = Credentials.load(settings)
        # Sockets take "no timeout" as None, users write it as 0.
        self._timeouts = settings.connect_timeout or None, settings.read_timeout or None
        self._deadline = settings.io_timeout or None
        self._tls = tls_options(settings)
        self._proxy = parse_proxy(settings.proxy, BY_OPTION) if settings.proxy else None
        self._announces = False
        """Redirects are signed, with the length of the body: the proxy has to know it. That costs a
        connection each, since a proxy that waits for the body cannot be asked anything else."""
        self._pace = UploadPace(settings.upload_limit) if settings.upload_limit else None
        self.readiness = Readiness(self._credentials.authorization, self._timeouts[1])

    def __repr__(self) -> str:
        return f"<Transport {self.endpoint} {self._credentials!r}>"

    def fetch(self, connections: ConnectionSet, request: Request) -> Reply:
        """Send a request and return the whole of a successful reply."""
        with self.open(connections, request) as body:
            content = body.read(request.most_reply, self._deadline)
            return replace(body.reply, body=content)

    def ask(self, connections: ConnectionSet, request: Request) -> Reply:
        """Send a request and return a reply of any status, of a long body the beginning."""
        _, sent = self._send(connections, request)
        return self._refusal(connections, self._drain(connections, sent, request.subject))

    def connections(self) -> ConnectionSet:
        """Return a new set of connections."""
        timeouts, readiness = self._timeouts, self.readiness
        return ConnectionSet(
            self.endpoint,
            self._tls,
            timeouts,
            readiness.admit,
            readiness.greet,
            self._proxy_of,
        )

    def _proxy_of(self, url: str) -> Proxy | None:
        """Return the proxy of --proxy: the environment's are for the world, and AIStore is near."""
        return self._proxy

    def settle(self, connections: ConnectionSet, subject: str, *, listed: str = "") -> None:
        """Make sure that what the cluster does not have is nowhere: each target was asked.

        Args:
            connections: The connections to use.
            subject: What it is about, in messages.
            listed: A bucket whose listing said that nothing is missing in it. Of a cluster with one target that is enough.

        Raises:
            Unproven: it may be somewhere.
        """
        if self.readiness.may_miss or not listed:
            doubt = self._doubt(connections, subject)
            if doubt:
                raise Unproven(f"{subject}: {doubt}")
        if listed:
            self.readiness.calmed(listed)

    def keeps_map(self, connections: ConnectionSet, subject: str, *, age: float = 0.0) -> bool:
        """Return whether no targets join or leave, by a map that is at most `age` seconds old."""
        return self.readiness.age <= age or self._doubt(connections, subject, age) is None

    def _doubt(
        self, connections: ConnectionSet, subject: str, age: float = 0.0
    ) -> Unavailable | None:
        """Ask for the map, unless the connection that is made for it begins with that; see `Readiness.settle`."""
        with self._watched(connections, self.endpoint, subject):
            connection = connections.connected(self.endpoint)
            try:
                return self.readiness.settle(connection, connections.map_version, age)
            except BaseException:
                connection.close()
                raise

    def upload(
        self, connections: ConnectionSet, request: Request, size: int, pieces: Iterator[memoryview]
    ) -> Reply:
        """Send a request with a body of `size` bytes, once, and get the successful reply.

        The proxy is asked without the body where to send it: it would have to be sent again, and
        what cannot be sent again would silently become an empty object. Should whoever answers
        take the empty request for the whole, then its checksum is wrong, and nothing is written.

        Args:
            connections: The connections to use.
            request: Its headers have the checksum of the body.
            size: Bytes in the body.
            pieces: The body; each piece is sent before the next one is asked for. What it raises
                comes out, and the server throws away what it has.

        Raises:
            BodyDelivered: the whole body went out, but no answer came back.
        """
        if not size:
            return self.fetch(connections, request)
        headers = {**request.headers, "Content-Length": str(size), "Connection": "close"}
        announced = replace(request, headers=headers)
        # Whoever would serve this must find that the body is missing.
        is_announced = self._announces or "Ais-Checksum-Value" not in request.headers
        asked = announced if is_announced else request
        way, sent = self._send(connections, asked, up_to_target=True)
        if is_signed(way.url) and not is_announced:
            self._announces = True
            way, sent = self._send(connections, announced, up_to_target=True)
        if not is_target(way.url):
            reply = self._refusal(connections, self._drain(connections, sent, request.subject))
            if reply.status == 200:
                raise ProtocolError(f"{request.subject}: taken without its content; {_NO_PROXY}")
            raise failure(request, reply)
        if self._pace is not None:
            pieces = self._pace.paced(pieces, lambda: connections.sockets.is_aborted)
        body = CountedBody(pieces, size, connections.sockets)
        try:
            sent = self._transmit(connections, request, way, body)
            reply = self._drain(connections, sent, request.subject)
        except Unavailable as error:
            if body.sent == size:
                raise BodyDelivered(str(error)) from error
            raise
        if reply.status != 200:
            raise failure(request, reply)
        if body.sent < size:
            raise Unavailable(f"{request.subject}: taken before all of it was sent")
        return reply

    @contextmanager
    def open(self, connections: ConnectionSet, request: Request) -> Iterator[Body]:
        """Yield a successful reply whose body is to be read in the block, wholly or not."""
        _, sent = self._send(connections, request)
        try:
            if sent.head.status not in (200, 206):
                raise failure(
                    request,
                    self._refusal(connections, self._drain(connections, sent, request.subject)),
                )
            yield Body(sent, request.subject)
        finally:
            sent.end()
            # Not before: the body may name what was made, which a caller that gave up must remove.
            connections.sockets.release()

    def _send(
        self, connections: ConnectionSet, request: Request, *, up_to_target: bool = False
    ) -> tuple[RedirectChain, Exchange]:
        """Send a request, once more if its token turned out to be out of date; see `_follow`."""
        authorization = self._credentials.authorization()
        way, sent = self._follow(connections, request, authorization, up_to_target)
        if sent.head.status == 401 and (renewed := self._credentials.renew(authorization)):
            self._drain(connections, sent, request.subject)
            return self._follow(connections, request, renewed, up_to_target)
        return way, sent

    def _follow(
        self,
        connections: ConnectionSet,
        request: Request,
        authorization: str | None,
        up_to_target: bool,
    ) -> tuple[RedirectChain, Exchange]:
        """Send a request and go where it is redirected to.

        Returns:
            The way there, and what came back at its end. If it goes `up_to_target` only, the target
            was not asked: what came back is the redirect to it, which is drained.
        """
        if request.beside and (found := self._at_neighbour(connections, request, authorization)):
            return found
        way = self._way(connections, request, authorization)
        while True:
            sent = self._transmit(connections, request, way)
            location = sent.head.headers.get("location")
            if sent.head.status not in REDIRECTS or not location:
                return way, sent
            self._drain(connections, sent, request.subject)
            way.go(way.absolute(location))
            if up_to_target and is_target(way.url):
                return way, sent

    def _at_neighbour(
        self, connections: ConnectionSet, request: Request, authorization: str | None
    ) -> tuple[RedirectChain, Exchange] | None:
        """Ask the target of the other object that this one is kept with; None if it is not read there.

        A redirect holds for the name that was asked for and no other. But AIStore lets a target be read
        without one, as long as it needs no tokens and signs nothing.
        """
        path, _, query = request.beside.partition("?")
        other = replace(request, path=path, query=query, beside="")
        way, sent = self._follow(connections, other, authorization, up_to_target=True)
        if is_target(way.url):
            way.go(way.url.partition("/v1/")[0] + request.target)
            sent = self._transmit(connections, request, way)
            if sent.head.status in (200, 206):
                return way, sent
        self._drain(connections, sent, request.subject)
        return None

    def _transmit(
        self,
        connections: ConnectionSet,
        request: Request,
        way: RedirectChain,
        body: CountedBody | None = None,
    ) -> Exchange:
        """Send a request to where its way has led to."""
        parts = urlsplit(way.url)
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        headers = {**request.headers, "User-Agent": _AGENT, "Accept-Encoding": "identity"}
        if way.authorization:
            headers["Authorization"] = way.authorization
        pieces: Iterable[memoryview] = ()
        if body is not None:
            headers["Content-Length"], pieces = str(body.size), body
        elif request.body:
            headers["Content-Length"], pieces = str(len(request.body)), [memoryview(request.body)]
        elif request.changes:
            headers.setdefault("Content-Length", "0")
        silent = self._timeouts[1]
        timeout = silent + request.patience if silent else None
        with self._watched(connections, way.url, request.subject):
            if request.changes and body is None:
                connections.sockets.hold()
            try:
                connection = connections.connected(way.url)
                return Exchange(
                    connection, request.method, target, headers, pieces, timeout=timeout
                )
            except BaseException:
                connections.sockets.release()
                raise

    def _drain(self, connections: ConnectionSet, sent: Exchange, subject: str) -> Reply:
        """Return a reply with its body, the start of a long one, and be done with it."""
        try:
            with network(subject):
                return sent.take_all(_MOST_DRAINED, self._timeouts[1])
        finally:
            connections.sockets.release()

    def _way(
        self, connections: ConnectionSet, request: Request, authorization: str | None
    ) -> RedirectChain:
        """Begin at the endpoint, if what it says can be believed."""
        if connections.episode != self.readiness.episode:
            connections.episode = self.readiness.episode
            connections.disconnect(self.endpoint)
        connections.changes = request.changes
        if self.readiness.missed and connections.changes:
            self.settle(connections, request.subject)
        return RedirectChain(self.endpoint, request, authorization)

    @contextmanager
    def _watched(self, connections: ConnectionSet, url: str, subject: str) -> Iterator[None]:
        """Send something to `url`: an endpoint that fails may have been started again."""
        try:
            with network(subject):
                yield
        except Unavailable:
            if url.startswith(self.endpoint):
                self.readiness.disturbed(connections.episode)
            raise

    def _refusal(self, connections: ConnectionSet, reply: Reply) -> Reply:
        """Look at a reply that may be a refusal: it may be a sign of a restart."""
        if is_of_restart(reply):
            self.readiness.disturbed(connections.episode)
        return reply
