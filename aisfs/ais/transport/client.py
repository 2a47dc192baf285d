"""Send a request from a worker thread and give its reply: redirects, token, TLS, cutting.

Only this module and `aisfs.ais.transport.connection_set` import requests. It knows HTTP and what is particular about AIStore's use of
it, and nothing of what the requests mean.

Object requests go to a proxy, which redirects to the target that has the object. Redirects are
followed here and never remembered: targets change.

A GET holds its object's lock on the server until it is drained: every response is read to its end
or its connection closed before a call returns.

Everything here blocks; must not know trio.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.structures import CaseInsensitiveDict

from aisfs import __version__
from aisfs.ais.protocol import requests as wire
from aisfs.ais.protocol.errors import failure, is_of_restart
from aisfs.ais.transport.auth import Credentials
from aisfs.ais.transport.connection_set import ConnectionSet
from aisfs.ais.transport.counted_body import BodyDelivered, CountedBody
from aisfs.ais.transport.exchange import exchange
from aisfs.ais.transport.network import network, tls_options
from aisfs.ais.transport.readiness import Readiness
from aisfs.ais.transport.redirects import REDIRECTS, RedirectChain, is_target
from aisfs.ais.transport.replies import BoundedReply
from aisfs.config import ClusterSettings
from aisfs.errors import ProtocolError, Unavailable

_AGENT = f"aisfs/{__version__}"
_NO_PROXY = "is the endpoint a proxy of AIStore?"
_MOST_DRAINED = 64 * 1024
"""Bytes of an unwanted body read to keep its connection; a new connection is cheaper than more."""


class Body:
    """The reply to a successful request; its body is to be read while the request is open."""

    def __init__(self, response: requests.Response, subject: str) -> None:
        self.reply = _reply(response)
        self._response = response
        self._subject = subject

    def read_into(self, view: memoryview) -> int:
        """Read until `view` is full or the body ends; say how many bytes came."""
        # urllib3's own readinto copies; http.client's receives straight into the view. What
        # urllib3 misses of it is only its count of the length, which `_settle` does without.
        body = _bounded(self._response)
        done = 0
        with network(self._subject):
            while done < len(view) and (got := body.readinto(view[done:])):
                done += got
        return done

    def read(self, most: int, seconds: float | None) -> bytes:
        """Read all of it, which may be `most` bytes and take so many seconds.

        Raises:
            ProtocolError: it is longer.
        """
        with network(self._subject):
            content = _bounded(self._response).take(most + 1, seconds)
        if len(content) > most:
            raise ProtocolError(f"{self._subject}: an answer of more than {most} bytes")
        return content


class Transport:
    """Requests to one cluster. Any number of threads may use it, each with a line of its own."""

    def __init__(self, settings: ClusterSettings) -> None:
        """Read the token and the TLS settings; nothing is sent.

        Raises:
            NoEndpoint: nobody said where the cluster is.
            ConfigError: a file that the settings name is unusable.
        """
        self.endpoint = settings.require_endpoint()
        self._credentials = Credentials.load(settings)
        # requests takes "no timeout" as None, users write it as 0.
        self._timeouts: Any = (settings.connect_timeout or None, settings.read_timeout or None)
        self._deadline = settings.io_timeout or None
        self._tls = tls_options(settings)
        self.readiness = Readiness(self._credentials.authorization, self._timeouts[1])

    def __repr__(self) -> str:
        return f"<Transport {self.endpoint} {self._credentials!r}>"

    def fetch(self, line: ConnectionSet, request: wire.Request) -> wire.Reply:
        """Get the whole of a successful reply."""
        with self.open(line, request) as body:
            content = body.read(request.most_reply, self._deadline)
            return replace(body.reply, body=content)

    def ask(self, line: ConnectionSet, request: wire.Request) -> wire.Reply:
        """Get a reply of any status, its body left out."""
        response = self._send(line, request)
        return self._refusal(line, _reply(response, self._drain(response, request.subject)))

    def line(self) -> ConnectionSet:
        """Make a new set of connections."""
        readiness = self.readiness
        return ConnectionSet(self._timeouts[1], self.endpoint, readiness.admit, readiness.greet)

    def settle(self, line: ConnectionSet, subject: str) -> None:
        """Make sure that what the cluster does not have is nowhere: each target was asked.

        Raises:
            Unavailable: it may be somewhere.
        """
        if self.readiness.may_miss:
            connect = self._timeouts[0]
            with (
                self._watched(line, self.endpoint, subject),
                line.connection(self.endpoint, self._tls, connect) as connection,
            ):
                doubt = self.readiness.settle(connection, line.map_version)
            if doubt:
                raise Unavailable(f"{subject}: {doubt}")

    def upload(
        self, line: ConnectionSet, request: wire.Request, size: int, pieces: Iterator[memoryview]
    ) -> wire.Reply:
        """Send a request with a body of `size` bytes, once, and get the successful reply.

        The proxy is asked without the body where to send it: it would have to be sent again, and
        what cannot be sent again would silently become an empty object. Should whoever answers
        take the empty request for the whole, then its checksum is wrong, and nothing is written.

        Args:
            line: The connections to use.
            request: Its headers have the checksum of the body.
            size: Bytes in the body.
            pieces: The body; each piece is sent before the next one is asked for. What it raises
                comes out, and the server throws away what it has.

        Raises:
            BodyDelivered: the whole body went out, but no answer came back.
        """
        if not size:
            return self.fetch(line, request)
        if "Ais-Checksum-Value" not in request.headers:
            # Whoever would serve this must find that the body is missing.
            headers = {**request.headers, "Content-Length": str(size), "Connection": "close"}
            asked = replace(request, headers=headers)
        else:
            asked = request
        way = self._way_to_target(line, asked)
        body = CountedBody(pieces, size, line.lifeline)
        try:
            reply = self._exchange(line, request, way.url, way.authorization, body)
        except Unavailable as error:
            if body.sent == size:
                raise BodyDelivered(str(error)) from error
            raise
        if reply.status != 200:
            raise failure(request, reply)
        if body.sent < size:
            raise Unavailable(f"{request.subject}: taken before all of it was sent")
        return reply

    def _way_to_target(self, line: ConnectionSet, request: wire.Request) -> RedirectChain:
        """Ask the proxy where to send a body, without it; once more if the token is out of date."""
        authorization = self._credentials.authorization()
        way, reply = self._follow_to_target(line, request, authorization)
        if reply.status == 401 and (renewed := self._credentials.renew(authorization)):
            way, reply = self._follow_to_target(line, request, renewed)
        if reply.status == 200:
            raise ProtocolError(f"{request.subject}: taken without its content; {_NO_PROXY}")
        if reply.status not in REDIRECTS:
            raise failure(request, self._refusal(line, reply))
        return way

    def _follow_to_target(
        self, line: ConnectionSet, request: wire.Request, authorization: str | None
    ) -> tuple[RedirectChain, wire.Reply]:
        """Follow redirects until one leads to a target; return the way there and the last reply."""
        way = self._way(line, request, authorization)
        while True:
            reply = self._exchange(line, request, way.url, way.authorization)
            location = reply.headers.get("location")
            if reply.status not in REDIRECTS:
                return way, reply
            if not location:
                raise failure(request, reply)
            way.go(way.absolute(location))
            if is_target(way.url):
                return way, reply

    @contextmanager
    def open(self, line: ConnectionSet, request: wire.Request) -> Iterator[Body]:
        """Give a successful reply whose body is to be read in the block, wholly or not."""
        response = self._send(line, request)
        try:
            if response.status_code not in (200, 206):
                reply = _reply(response, self._drain(response, request.subject))
                raise failure(request, self._refusal(line, reply))
            yield Body(response, request.subject)
        finally:
            _settle(response)

    def _send(self, line: ConnectionSet, request: wire.Request) -> requests.Response:
        """Send a request, once more if its token turned out to be out of date."""
        authorization = self._credentials.authorization()
        response = self._follow(line, request, authorization)
        if response.status_code == 401:
            renewed = self._credentials.renew(authorization)
            if renewed:
                self._drain(response, request.subject)
                return self._follow(line, request, renewed)
        return response

    def _follow(
        self, line: ConnectionSet, request: wire.Request, authorization: str | None
    ) -> requests.Response:
        """Send a request and go where it is redirected to."""
        way = self._way(line, request, authorization)
        while True:
            response = self._transmit(line, request, way.url, way.authorization)
            location = response.headers.get("Location")
            if response.status_code not in REDIRECTS or not location:
                if way.arrived or response.status_code not in (200, 206):
                    return response
                _settle(response)
                raise ProtocolError(f"{request.subject}: nobody says where it is; {_NO_PROXY}")
            self._drain(response, request.subject)
            way.go(way.absolute(location))

    def _exchange(
        self,
        line: ConnectionSet,
        request: wire.Request,
        url: str,
        authorization: str | None,
        body: CountedBody | None = None,
    ) -> wire.Reply:
        """Send a request with a body, or without; its reply has no long body."""
        parts = urlsplit(url)
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        headers = self._headers(request, authorization)
        if body:
            headers["Content-Length"] = str(body.size)
        elif "Content-Length" not in headers:
            headers["Content-Length"] = "0"
        connect, silent = self._timeouts
        with self._watched(line, url, request.subject):
            if not body:
                line.lifeline.hold()
            try:
                with line.connection(url, self._tls, connect) as connection:
                    return exchange(
                        connection,
                        request.method,
                        target,
                        headers,
                        body or (),
                        timeout=silent + request.patience if silent else None,
                    )
            finally:
                line.lifeline.release()

    def _drain(self, response: requests.Response, subject: str) -> bytes:
        """Read the body of an unwanted response, the start of a long one, and be done with it."""
        try:
            with network(subject):
                return _bounded(response).take(_MOST_DRAINED, self._timeouts[1])
        finally:
            _settle(response)

    def _way(
        self, line: ConnectionSet, request: wire.Request, authorization: str | None
    ) -> RedirectChain:
        """Begin at the endpoint, if what it says can be believed."""
        if line.episode != self.readiness.episode:
            line.episode = self.readiness.episode
            line.disconnect(self.endpoint, self._tls)
        line.changes = request.method not in ("GET", "HEAD")
        if self.readiness.missed and line.changes:
            self.settle(line, request.subject)
        return RedirectChain(self.endpoint, request, authorization)

    @contextmanager
    def _watched(self, line: ConnectionSet, url: str, subject: str) -> Iterator[None]:
        """Send something to `url`: an endpoint that fails may have been started again."""
        try:
            with network(subject):
                yield
        except Unavailable:
            if url.startswith(self.endpoint):
                self.readiness.disturbed(line.episode)
            raise

    def _refusal(self, line: ConnectionSet, reply: wire.Reply) -> wire.Reply:
        """Look at a reply that may be a refusal: it may be a sign of a restart."""
        if is_of_restart(reply):
            self.readiness.disturbed(line.episode)
        return reply

    @staticmethod
    def _headers(request: wire.Request, authorization: str | None) -> dict[str, str]:
        headers = {**request.headers, "User-Agent": _AGENT, "Accept-Encoding": "identity"}
        if authorization:
            headers["Authorization"] = authorization
        return headers

    def _transmit(
        self, line: ConnectionSet, request: wire.Request, url: str, authorization: str | None
    ) -> requests.Response:
        # Prepared by hand and given to the adapter: a Session would rewrite paths, look for
        # passwords in ~/.netrc that replace the token, and collect cookies. It would also honour
        # HTTP_PROXY; a cluster redirects to the addresses of its targets, which proxies for the
        # web do not reach, so that is a loss to nobody.
        prepared = requests.PreparedRequest()
        prepared.method = request.method
        prepared.url = url
        prepared.headers = CaseInsensitiveDict(self._headers(request, authorization))
        if request.body:
            prepared.body = request.body
            prepared.headers["Content-Length"] = str(len(request.body))
        connect, silent = self._timeouts
        timeouts: Any = (connect, silent + request.patience if silent else None)
        with self._watched(line, url, request.subject):
            if request.method not in ("GET", "HEAD"):
                line.lifeline.hold()
            try:
                return line.send(prepared, stream=True, timeout=timeouts, **self._tls)
            finally:
                line.lifeline.release()


def _reply(response: requests.Response, body: bytes = b"") -> wire.Reply:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return wire.Reply(response.status_code, headers, body)


def _bounded(response: requests.Response) -> BoundedReply:
    raw: Any = response.raw
    bounded: BoundedReply = raw._fp
    return bounded


def _settle(response: requests.Response) -> None:
    """Keep the connection when the body was read to its end; close it otherwise."""
    raw: Any = response.raw
    if raw._fp.isclosed():
        raw.release_conn()
    else:
        raw.close()
