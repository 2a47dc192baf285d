"""Sockets that can be shut down from outside while a thread waits on them.

A thread in `recv` cannot be cancelled, but shutting its socket down makes the call return at once.
A `CancellableSockets` belongs to one set of connections that one request at a time uses; `abort` ends
whatever waits on them: connecting, the TLS handshake, sending, receiving. Only a name lookup is out
of reach.

Each socket in use is kept as a duplicate: urllib3 wraps, detaches and closes its own in the thread
meanwhile, and a descriptor number closed there may already mean another file here.

Must not know: what is sent, trio.
"""

import contextlib
import http.client
import os
import socket
import ssl
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection

from aisfs.connections.network import ProxyFailed, say_whose
from aisfs.connections.proxies import Proxy
from aisfs.connections.replies import BoundedReply
from aisfs.process.locks import Rank, ranked_lock
from aisfs.process.threads import any_thread

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
    """How a URL begins that the proxy is asked for; empty where the peer is not told the host."""
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
