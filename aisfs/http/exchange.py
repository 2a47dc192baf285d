"""One request over one connection, and its reply as it arrives: the only way messages go.

requests chooses certificates and urllib3 connects (`aisfs.http.connections`), but the messages are http.client's: what the other
two add to each request costs more than sending and storing a small file (docs/adr/0026).

- **Replies** have a bound on all that the server decides: time, bytes, and form. http.client takes headers that break off for
  complete ones, ignores what follows a line that is no header, and reads interim replies without end. Any of
  this could make a reply look like another one.
- **Bodies of requests** are counted as they go out: after a failure it matters whether all of one went.
- **Sockets** can be shut down from outside while a thread waits on them, since a wait in `recv` cannot be cancelled.
  `CancellableSockets` belongs to one set of connections that one request at a time uses; `abort` ends whatever waits
  on them: connecting, the TLS handshake, sending, receiving. Only a name lookup is out of reach. Each socket in use is
  kept as a duplicate: urllib3 wraps, detaches and closes its own in the thread meanwhile, and a descriptor number
  closed there may already mean another file here.
- **Peers**: TLS settings, how far away they are, what failures of connections mean, and the proxy that a request goes
  through, as requests decides it by HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY (AIStore's proxies are endpoints).

Must not know: which connection, redirects, tokens, what requests mean.
"""

import contextlib
import http.client
import io
import os
import re
import socket
import ssl
import string
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache, partial
from http.client import HTTPException, HTTPResponse, IncompleteRead
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, unquote, urlsplit

from requests.adapters import DEFAULT_CA_BUNDLE_PATH
from requests.auth import _basic_auth_str
from requests.utils import get_environ_proxies, select_proxy
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from aisfs.errors import AccessDenied, AisfsError, ConfigError, Unavailable
from aisfs.redaction import remember_url, shown
from aisfs.settings import ClusterSettings
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.threads import any_thread

_MOST_HEAD = 256 << 10
"""Bytes before the body, interim replies included. The longest that AIStore sends, a bucket's
properties or custom metadata, are some KiB."""
_ALERT = b"\x15\x03"
"""How an alert of TLS begins."""
_LONG = 64 << 10
"""Bytes to read from which all are waited for at once."""
_READ_PIECE = 64 << 10
"""Bytes read at once; what is announced is no reason to make room for it."""

# Other control characters could end a line for some readers, or reach a terminal. But AIStore writes those
# in the name of an object as they are, where only what comes before and after the name is of use.
_STATUS = re.compile(rb"[^\x00-\x08\x0b-\x1f\x7f]*\r?\n")
_HEADER = re.compile(rb"(?:[!-9;-~]+:[^\x00-\x08\x0b-\x1f\x7f]*|(?i:Location):[^\x00\r\n]*)\r?\n")


class SpeaksTls(HTTPException):
    """A server that wants TLS was spoken to without."""

    def __init__(self) -> None:
        super().__init__("the server speaks TLS: use https://")


class BoundedReply(HTTPResponse):
    """A reply whose head is whole and comes within the time that the server may be silent."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(sock, *args, **kwargs)
        self._incoming = _Incoming(sock, self.fp.detach(), sock.gettimeout())
        self.fp = io.BufferedReader(self._incoming)

    def begin(self) -> None:
        """Read status and headers.

        Raises:
            HTTPException, OSError: they are not those of a reply, or do not come to an end.
        """
        stream = self.fp
        self.fp = _Head(stream)  # type: ignore[assignment]
        try:
            super().begin()
        finally:
            if self.fp is not None:  # it is where that was no reply
                self.fp = stream
        if self.status == 400 and not self.headers:
            raise SpeaksTls  # Go's answer then; all others of it have headers
        self._incoming.allow(None)

    def take(self, most: int, seconds: float | None) -> bytes:
        """Read the body, of a longer one the first `most` bytes, within `seconds`.

        Raises:
            HTTPException, OSError: it breaks off, or takes longer.
        """
        self._incoming.allow(seconds)
        content = bytearray()
        piece = memoryview(bytearray(min(_READ_PIECE, most)))
        # `read` would make room for what a chunk announces, and reads without end a negative one.
        while got := self.readinto(piece[: most - len(content)]):
            content += piece[:got]
        if self.length and len(content) < most:
            raise IncompleteRead(bytes(content), self.length)
        return bytes(content)


class _Incoming(io.RawIOBase):
    """The bytes of a connection, up to a moment."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase, seconds: float | None) -> None:
        self._socket = sock
        self._raw = raw
        self._plain = type(sock) is socket.socket
        self._blocking = False
        self._deadline: float | None = None
        self.allow(seconds)

    def allow(self, seconds: float | None) -> None:
        """Allow what comes next so many seconds; None sets no end."""
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, view: Any) -> int | None:  # noqa: ANN401 - a writable buffer
        # The socket's own timeout bounds each call; a server that trickles never meets that.
        got: int | None
        if self._plain and self._deadline is None and len(view) >= _LONG:
            got = self._receive_all(view)
        else:
            got = self._raw.readinto(view)
        if got is None:  # within the socket's timeout, which the kernel keeps now
            raise TimeoutError("timed out")
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise TimeoutError("the reply comes too slowly")
        return got

    def _receive_all(self, view: Any) -> int | None:  # noqa: ANN401
        """Fill `view` in one call, unless the peer closes, or is silent for as long as it may be.

        Python waits and reads by turns, both of which let go of the interpreter's lock and take it again.
        So a long body that comes in 20 pieces would wait 40 times for the thread that has the lock.
        """
        if not self._blocking:
            seconds = self._socket.gettimeout() or 0.0
            timeval = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
            self._socket.settimeout(None)  # the next request sets it again
            self._blocking = True
        with suppress(BlockingIOError):
            return self._socket.recv_into(view, 0, socket.MSG_WAITALL)
        return None

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Head:
    """Hands the lines before the body to http.client."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._left = _MOST_HEAD
        self._form = _STATUS

    def readline(self, limit: int) -> bytes:
        line = self._stream.readline(min(limit, self._left))
        self._left -= len(line)
        if not line.endswith(b"\n"):
            if not line and self._left == _MOST_HEAD:
                return line  # closed before any answer, which http.client tells
            if line.startswith(_ALERT):
                raise SpeaksTls
            if self._left and len(line) < limit:
                raise ConnectionResetError("the connection ended within the head of a reply")
            raise HTTPException("the head of the reply is too long")
        if line in (b"\r\n", b"\n"):
            self._form = _STATUS  # after an interim reply
        elif line.startswith(_ALERT):
            raise SpeaksTls
        elif not self._form.fullmatch(line):
            raise HTTPException("the head of the reply has a line that is not a header")
        else:
            self._form = _HEADER
        return line

    def close(self) -> None:
        """Close the connection's side of it, as http.client does when there is no status."""
        self._stream.close()


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply; header names are in lower case, repeated headers joined by `, `."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


SMALL = 64 << 10
"""Bytes of a body that are worth a copy in memory, so that they are read once."""
_SENT_PIECE = 1 << 20
"""Bytes received at first where somebody may wait for them: one READ of the kernel."""
_IN_TARGET = "".join(set(string.punctuation) - set('"<>\\^`{|}'))


class Exchange:
    """A request that was sent, and its reply, whose head has come.

    A server that refuses the rest of a body and closes has answered: its reply is read all the same.
    `end` must be called, or `take_all`; until then the connection takes no other request.
    """

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        headers: Mapping[str, str],
        pieces: Iterable[memoryview] = (),
        *,
        timeout: float | None,
    ) -> None:
        """Send the request and receive the head of its reply.

        Args:
            connection: What to use, connected; its replies are `BoundedReply`.
            method: Of the request.
            target: Path and query.
            headers: All but Host.
            pieces: The body, as long as its header says.
            timeout: Seconds until the head of the reply is whole; None waits without end.

        Raises:
            HTTPException, OSError: there is no reply, or it is none. The connection is closed.
        """
        self._connection = connection
        self._sent = False
        try:
            self._send(method, target, headers, pieces)
            sock = connection.sock
            sock.settimeout(timeout)
            # urllib3's would be wrapped once more.
            self._reply = cast("BoundedReply", http.client.HTTPConnection.getresponse(connection))
        except BaseException:
            connection.close()
            raise
        self.head = Reply(self._reply.status, _joined(self._reply))
        """The reply without its body."""

    def _send(
        self, method: str, target: str, headers: Mapping[str, str], pieces: Iterable[memoryview]
    ) -> None:
        connection, sock = self._connection, self._connection.sock
        # Head and small body in one packet; the server would be woken up for each of them. A request
        # without a body goes out as one anyway, and setting an option keeps Python's lock.
        corked = "content-length" in map(str.lower, headers)
        if corked:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        connection.putrequest(method, quote(target, safe=_IN_TARGET), skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.endheaders()
            for piece in pieces:
                connection.send(piece)
            if corked:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
            self._sent = True

    def read_into(self, view: memoryview, arrived: Callable[[int], int] | None = None) -> int:
        """Read until `view` is full or the body ends; return how many bytes came.

        With `arrived`, which is told after each piece how many have come so far, and returns how long
        the next one should be.
        """
        done, most = 0, len(view) if arrived is None else _SENT_PIECE
        while done < len(view) and (got := self._reply.readinto(view[done : done + most])):
            done += got
            if arrived is not None:
                most = arrived(done)
        return done

    def take(self, most: int, seconds: float | None) -> bytes:
        """Read the body, of a longer one the first `most` bytes, within `seconds`."""
        return self._reply.take(most, seconds)

    def take_all(self, most: int, seconds: float | None) -> Reply:
        """Return the reply with its body, of a longer one the first `most` bytes, and end."""
        try:
            return replace(self.head, body=self.take(most, seconds))
        finally:
            self.end()

    def end(self) -> None:
        """Keep the connection if all of request and reply went over it; close it otherwise."""
        whole = self._sent and self._reply.isclosed()  # which it is when it was read to its end
        self._reply.close()
        if not whole:
            self._connection.close()


def _joined(response: HTTPResponse) -> dict[str, str]:
    """Return the headers by names in lower case; what comes twice is one list."""
    headers: dict[str, str] = {}
    for name, value in response.getheaders():
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


BY_OPTION = "--proxy"
BY_ENVIRONMENT = "the environment, or --proxy"


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that forwards requests, and makes tunnels for TLS."""

    scheme: str
    host: str
    port: int
    authorization: str
    """Value of `Proxy-Authorization`; empty for none."""
    named_by: str
    """`BY_OPTION` or `BY_ENVIRONMENT`."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"the proxy {self.scheme}://{host}:{self.port} (from {self.named_by})"


ProxyOf = Callable[[str], Proxy | None]
"""Returns the proxy for a URL; None for none."""


def no_proxy(url: str) -> None:
    """Go through no proxy."""


def environment_proxy(url: str) -> Proxy | None:
    """Return the proxy that the environment names for a URL.

    Raises:
        ConfigError: what it names is no proxy.
    """
    found = select_proxy(url, get_environ_proxies(url))
    return parse_proxy(found, BY_ENVIRONMENT) if found else None


def through_proxy(url: str) -> str:
    """Return the words of an error which say that a library went through a proxy; empty if it did not."""
    found = select_proxy(url, get_environ_proxies(url))
    if not found:
        return ""
    remember_url(found)
    return f" through the proxy {found.rpartition('@')[2]} (from {BY_ENVIRONMENT})"


def parse_proxy(text: str, named_by: str) -> Proxy:
    """Return a proxy by its URL; without a scheme it is http.

    Raises:
        ConfigError: it is no URL of a proxy.
    """
    text = text.strip()
    remember_url(text)
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host = (parts.hostname or "").encode("idna").decode()
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, host, port = urlsplit(""), "", 0
    if not host or parts.scheme not in ("http", "https"):
        place = text.rpartition("@")[2]
        raise ConfigError(
            f"the proxy {place} (from {named_by}) is no HTTP proxy such as http://host:3128"
        )
    authorization = ""
    if parts.username:
        user, password = unquote(parts.username), unquote(parts.password or "")
        authorization = _basic_auth_str(user, password)
    return Proxy(parts.scheme, host, port, authorization, named_by)


_OTHER_NAME = frozenset({62, 64})
"""What OpenSSL says of a certificate for another host, and for another address."""
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
_NO_CERTIFICATE = frozenset({"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE"})

PROXY_PASSWORD = "wants a name and a password: put NAME:PASSWORD@ in front of its host"
_PROBE_SECONDS = 3.0
"""For a handshake that only shows why another request failed."""
_MOST_TEXT = 300
"""Characters of what a library says that are passed on."""


class Distance(IntEnum):
    """How far away a peer is, judged by its address."""

    MACHINE = 0
    """This one, or what it alone sees: metadata services have addresses of the link."""
    NETWORK = 1
    """A private network."""
    WORLD = 2


@lru_cache(maxsize=1024)
def distance(peer: str, own: str) -> Distance:
    """Return how far a peer is, by its address and that which this machine has towards it."""
    address = ip_address(peer.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    if peer == own or address.is_loopback or address.is_link_local or address.is_unspecified:
        return Distance.MACHINE
    return Distance.WORLD if address.is_global else Distance.NETWORK


def distance_by_name(host: str) -> Distance:
    """Return how far away a host is that a proxy looks up, judged by its name."""
    if host == "localhost" or host.endswith(".localhost"):
        return Distance.MACHINE
    try:
        return distance(host, "")
    except ValueError:
        return Distance.WORLD


def distance_of(sock: socket.socket) -> Distance:
    """Return how far the peer of a connected socket is.

    Raises:
        OSError: it is connected no more.
    """
    return distance(sock.getpeername()[0], sock.getsockname()[0])


class WrongHost(OSError):
    """A trusted certificate of another host, which the text names."""


class ProxyFailed(OSError):
    """No connection to a proxy, or none through it."""

    def __init__(self, proxy: Proxy, what: str, error: OSError) -> None:
        super().__init__(f"{proxy} {what}: {error.strerror or error}")
        self.proxy = proxy
        self.wants_password = " failed: 407 " in str(error)


def tls_options(settings: ClusterSettings) -> dict[str, Any]:
    """Return the `verify` and `cert` that requests takes as TLS settings.

    Raises:
        ConfigError: they are unusable.
    """
    for path in (settings.client_ca, settings.client_cert, settings.client_key):
        if path and not path.exists():
            raise ConfigError(f"{path}: no such file, but the TLS settings name it")
    if settings.client_ca and not settings.skip_verify_crt:
        check_authorities(settings.client_ca)
    if settings.client_key and not settings.client_cert:
        raise ConfigError("AIS_CRT_KEY needs AIS_CRT")
    cert: Any = str(settings.client_cert) if settings.client_cert else None
    if settings.client_cert:
        _check_key(settings)
    if cert and settings.client_key:
        cert = (cert, str(settings.client_key))
    # The bundle that requests brings along, not that of the system, is what it trusts by default.
    trusted = str(settings.client_ca or DEFAULT_CA_BUNDLE_PATH)
    return {"verify": False if settings.skip_verify_crt else trusted, "cert": cert}


def check_authorities(file: Path) -> None:
    """Make sure that a file, or a directory, has certificates to trust.

    Raises:
        ConfigError: it has none.
    """
    if file.is_dir():
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except ssl.SSLError as error:
        try:
            holds_key = b"PRIVATE KEY" in file.read_bytes()
        except OSError:
            holds_key = False
        but = ", but a private key: name the certificate of the authority" if holds_key else ""
        raise ConfigError(f"--client-ca {file}: that file holds no certificate{but}") from error
    except OSError as error:
        raise ConfigError(f"--client-ca {file}: {error.strerror}") from error


def _check_key(settings: ClusterSettings) -> None:
    cert, key = settings.client_cert, settings.client_key
    assert cert
    try:
        # An empty password, so that nobody is asked for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password="")
    except OSError as error:
        if key:
            why = f"AIS_CRT and AIS_CRT_KEY ({cert}, {key}) are no certificate and its key"
        else:
            why = f"AIS_CRT ({cert}) holds no certificate with its key: name the key in AIS_CRT_KEY"
        raise ConfigError(f"{why} ({error.strerror or error})") from error


def say_whose(error: ssl.SSLCertVerificationError, address: tuple[str, int], ca: Any) -> None:  # noqa: ANN401 - as requests has it
    """Find out whose certificate it is that is not that of the host.

    Raises:
        WrongHost: it is trusted but for the name.
    """
    if error.verify_code not in _OTHER_NAME:
        return
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    try:
        # A failed handshake shows no certificate: this one is over before anything is sent.
        with (
            socket.create_connection(address, _PROBE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=address[0]) as sock,
        ):
            shown: Any = sock.getpeercert() or {}
            names = [name for _, name in shown.get("subjectAltName", ())]
    except (OSError, ValueError):
        names = []
    whose = " or ".join(names) or "another host"
    raise WrongHost(f"the certificate is for {whose}, not {address[0]}") from error


def speaks_tls(url: str) -> bool:
    """Return whether a server that was spoken to without TLS wants it; its certificate is not checked."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    place = urlsplit(url)
    host = place.hostname or ""
    try:
        with (
            socket.create_connection((host, place.port or 80), _PROBE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except ssl.SSLError as error:
        return error.reason in _NO_CERTIFICATE
    except (OSError, ValueError):
        return False


def other_scheme(url: str) -> str | None:
    """Return what is wrong with the scheme of a URL whose host gave no answer; None if that is not why."""
    if not url.startswith("https://"):
        return "the server speaks TLS: use https://" if speaks_tls(url) else None
    if _speaks_http(url) and not speaks_tls(url):  # some servers with TLS answer without, too
        return "the server does not speak TLS: use http://"
    return None


def _speaks_http(url: str) -> bool:
    """Return whether a server answers without TLS."""
    place = urlsplit(url)
    host, port = place.hostname or "", place.port or 443
    try:
        with socket.create_connection((host, port), _PROBE_SECONDS) as sock:
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return sock.recv(5, socket.MSG_WAITALL) == b"HTTP/"
    except (OSError, ValueError):
        return False


@contextmanager
def network(subject: str) -> Iterator[None]:
    """Turn what the libraries below raise into our errors. No sink is called in the block."""
    try:
        yield
    except (HTTPError, http.client.HTTPException, OSError) as error:
        raise _failure(subject, error) from error


def _failure(subject: str, error: Exception) -> AisfsError:
    if (wrong := _setting(error)) is not None:
        return ConfigError(f"{subject}: {wrong}")
    if isinstance(error, ProxyFailed):
        if error.wants_password:
            return AccessDenied(f"{subject}: {error.proxy} {PROXY_PASSWORD}")
        return Unavailable(f"{subject}: {_brief(error)}")
    if isinstance(error, TimeoutError):
        return Unavailable(f"{subject}: no answer in time ({_brief(error)})")
    return Unavailable(f"{subject}: the connection failed ({_brief(error)})")


def _brief(cause: BaseException) -> str:
    """Return what it says, which may be what the server said, as a part of a line."""
    return " ".join(shown(str(cause)).split())[:_MOST_TEXT]


def _setting(cause: BaseException) -> str | None:
    """Return which setting is wrong, if that is why."""
    if isinstance(cause, WrongHost):
        return f"{cause}: use a name it is for in the endpoint, or add this one to it"
    if isinstance(cause, SpeaksTls):
        return str(cause)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"the certificate is not trusted ({cause.verify_message}): name its CA in AIS_CLIENT_CA"
        )
    if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
        return "the server does not speak TLS: use http://"
    if isinstance(cause, ssl.SSLError) and cause.reason in _NO_CERTIFICATE:
        return "the server wants a client certificate: name it in AIS_CRT and AIS_CRT_KEY"
    return None


_RESET = struct.pack("ii", 1, 0)
"""Linger for no time: what was not sent or read yet is thrown away with the connection."""


class CancellableSockets:
    """The sockets of some connections, and the means to shut them all down."""

    def __init__(
        self,
        send_timeout: float | None = None,
        admit: "Callable[[WatchedConnection], None]" = lambda connection: None,
    ) -> None:
        """Begin without sockets.

        Args:
            send_timeout: Seconds that a peer may take no byte of what is sent; None waits without
                end. urllib3 itself would give a body the time that connecting may take.
            admit: Called with each new connection before anything else is sent; it may talk over
                its socket, and refuse it by an exception.
        """
        self.send_timeout = send_timeout
        self.admit = admit
        self._lock = ranked_lock(Rank.SOCKETS)
        self._twins: dict[HTTPConnection, socket.socket] = {}
        self._aborted = False
        self._holding = False
        self.http = partial(WatchedConnection, sockets=self)
        self.https = partial(_HTTPS, sockets=self)

    @property
    def is_aborted(self) -> bool:
        """Whether `abort` was called; the connections are of no more use."""
        return self._aborted

    def watch(self, connection: HTTPConnection, sock: socket.socket) -> None:
        """Take a socket into account before it connects, or is used again.

        Raises:
            ConnectionAbortedError: `abort` was called.
        """
        with self._lock:
            if self._aborted:
                raise ConnectionAbortedError("given up")
            old = self._twins.pop(connection, None)
            # `dup` is not for sockets with TLS, and would make a blocking call of it.
            twin = os.dup(sock.fileno())
            self._twins[connection] = socket.socket(sock.family, sock.type, sock.proto, twin)
        if old:
            old.close()

    def watches(self, connection: HTTPConnection) -> bool:
        """Return whether the socket of a connection is taken into account."""
        return connection in self._twins

    @any_thread
    def abort(self) -> None:
        """Make every call that waits on one of the sockets return now."""
        with self._lock:
            self._aborted = True
            if self._holding:
                return
            for twin in self._twins.values():
                with contextlib.suppress(OSError):
                    # Closing shall reset the connection. A socket that was shut down opens its
                    # window no more: a server in the middle of a body would wait for a minute, and
                    # AIStore holds the object's lock as long, so that nobody can write it.
                    twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    twin.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Protect what is under way from `abort`, until `release`.

        A change that the server has been sent whole will happen. If its caller gave up waiting
        and changed the object again, the earlier change could overtake the later one.

        Raises:
            ConnectionAbortedError: `abort` was called before.
        """
        with self._lock:
            if self._aborted:
                raise ConnectionAbortedError("given up")
            self._holding = True

    def release(self) -> None:
        """End the protection by `hold`."""
        with self._lock:
            self._holding = False

    def rest(self) -> None:
        """Forget the sockets, so that each has one descriptor. Only when no request is under way."""
        with self._lock:
            twins, self._twins = self._twins, {}
        for twin in twins.values():
            twin.close()


class ForwardedConnection(http.client.HTTPConnection):
    """A connection whose requests a proxy may pass on, and whose replies are bounded."""

    response_class = BoundedReply
    forwarding = ""
    """How a URL begins that the proxy is asked for; empty where the peer need not know the host."""
    authorization = ""
    """Value of `Proxy-Authorization`; empty for none."""

    def putrequest(
        self, method: str, url: str, skip_host: bool = False, skip_accept_encoding: bool = False
    ) -> None:
        """Begin a request."""
        super().putrequest(method, self.forwarding + url, skip_host, skip_accept_encoding)
        if self.authorization:
            self.putheader("Proxy-Authorization", self.authorization)


class WatchedConnection(ForwardedConnection, HTTPConnection):
    """A connection whose socket is watched from before it connects."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        sockets: CancellableSockets,
        proxy: Proxy | None = None,
        tls: bool = False,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Connect to nothing yet.

        Args:
            host: For whom the requests are.
            port: Likewise.
            sockets: What watches.
            proxy: What to connect to instead; it passes the requests on, or makes a tunnel to a host
                with TLS.
            tls: Whether the host speaks TLS.
            kwargs: As urllib3 has them.
        """
        place = (host, port) if proxy is None else (proxy.host, proxy.port)
        super().__init__(*place, **kwargs)
        self._sockets = sockets
        self.proxy_used = proxy
        self.origin = host, port
        """For whom the requests are; `address` is what is connected to."""
        self.address = place
        """As it is looked up; `host` is without a dot at its end."""
        self._tunneled = proxy is not None and tls
        if proxy is not None and not tls:
            name = f"[{host}]" if ":" in host else host
            self.forwarding = f"http://{name}" if port == 80 else f"http://{name}:{port}"
            self.authorization = proxy.authorization

    def beside(self) -> "ForwardedConnection":
        """Return a connection over the same socket, for a request apart from those of this one."""
        own = ForwardedConnection(*self.origin)
        own.forwarding, own.authorization = self.forwarding, self.authorization
        own.sock = self.sock
        return own

    def connect(self) -> None:
        """Connect to a peer that is fit to be asked."""
        if self._tunneled and self.proxy_used is not None:  # urllib3 forgets it with each close
            said = self.proxy_used.authorization
            headers = {"Proxy-Authorization": said} if said else {}
            self.set_tunnel(*self.origin, headers, scheme=self.proxy_used.scheme)
        try:
            super().connect()
        except ssl.SSLError:
            raise
        except OSError as error:
            if self.proxy_used is None or isinstance(error, ProxyFailed):
                raise
            raise ProxyFailed(self.proxy_used, "makes no connection", error) from error
        try:
            self._sockets.admit(self)
        except BaseException:
            self.close()
            raise
        if self.sock is None:  # a peer that closes after each reply was asked and is fit
            super().connect()

    def send(self, data: Any) -> None:  # noqa: ANN401 - http.client's own signature
        """Send a part of a request."""
        if self.sock is not None:
            if not self._sockets.watches(self):
                self._sockets.watch(self, self.sock)
            self.sock.settimeout(self._sockets.send_timeout)
        super().send(data)

    def _new_conn(self) -> socket.socket:
        # Private to urllib3 by its name, but the only place where a socket can be watched before it
        # connects; urllib3's own variants for other kinds of sockets replace it as well.
        failed: OSError = OSError("no address")
        try:
            addresses = socket.getaddrinfo(*self.address, type=socket.SOCK_STREAM)
        except OSError as error:
            addresses, failed = [], error
        for family, kind, protocol, _, address in addresses:
            sock = socket.socket(family, kind, protocol)
            try:
                self._sockets.watch(self, sock)
                for option in self.socket_options or ():
                    sock.setsockopt(*option)
                # urllib3 has resolved its own default by now: a number or None.
                sock.settimeout(self.timeout)
                sock.connect(address)
            except OSError as error:
                sock.close()
                failed = error
            else:
                return sock
        if isinstance(failed, TimeoutError):
            failed = TimeoutError(f"no connection within {self.timeout} s")
        if self.proxy_used is not None:
            raise ProxyFailed(self.proxy_used, "does not answer", failed) from failed
        raise failed


class _HTTPS(WatchedConnection, HTTPSConnection):
    def connect(self) -> None:
        """Connect, or say whose certificate the host shows."""
        try:
            super().connect()
        except ssl.SSLCertVerificationError as error:
            if self.proxy_used is None:
                say_whose(error, self.address, self.ca_certs)
            raise


class BodyDelivered(Unavailable):
    """It is unknown whether it was done: the whole body went out, but no answer came back."""


class CountedBody:
    """The pieces of a body, and how many bytes of it were handed out before the piece in hand."""

    def __init__(
        self, pieces: Iterator[memoryview], size: int, sockets: CancellableSockets
    ) -> None:
        """Hand out `pieces` of `size` bytes in all; `sockets` hold from the last one on."""
        self._pieces = pieces
        self.size = size
        self._sockets = sockets
        self.sent = 0

    def __iter__(self) -> Iterator[memoryview]:
        for piece in self._pieces:
            if self.sent + len(piece) == self.size:
                self._sockets.hold()
            yield piece
            self.sent += len(piece)
