"""Middleware that makes the server as slow as one far away, for `bench/`.

The delay models the round trip of each request, the bandwidth the link that all replies share. The
start of a TCP connection and its growing window are not modelled.
"""

import threading
import time
from collections.abc import Iterable, Iterator

from aisfs.server.messages import Environ, StartResponse, WsgiApp

PIECE = 64 << 10
"""Bytes sent at once: small enough that replies on one link interleave."""
_CREDIT_SECONDS = 0.01
"""How much of its time a sender that woke too late may catch up."""


class Link:
    """A link with a bandwidth in bytes per second, which senders wait for."""

    def __init__(self, bandwidth: float) -> None:
        self._bandwidth = bandwidth
        self._free = 0.0
        self._lock = threading.Lock()

    def pass_on(self, size: int) -> None:
        """Wait until the link has carried these bytes and all earlier ones."""
        with self._lock:
            start = max(self._free, time.monotonic() - _CREDIT_SECONDS)
            self._free = start + size / self._bandwidth
            wait = self._free - time.monotonic()
        if wait > 0:
            time.sleep(wait)


class Pace:
    """The middleware; paths below `/-/` are never slowed down."""

    def __init__(self, app: WsgiApp, delay: float, link: Link | None) -> None:
        self._app = app
        self._delay = delay
        self._link = link

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request, slowly."""
        if environ["PATH_INFO"].startswith("/-/"):
            return self._app(environ, start_response)
        if self._delay:
            time.sleep(self._delay)
        reply = self._app(environ, start_response)
        # Without a limit the reply is unchanged, so that files are still sent by sendfile.
        return reply if self._link is None else _Slowed(reply, self._link)


class _Slowed:
    """A reply that passes through a link; closes what it wraps."""

    def __init__(self, reply: Iterable[bytes], link: Link) -> None:
        self._reply = reply
        self._link = link

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._reply:
            view = memoryview(piece)
            for at in range(0, len(view), PIECE):
                part = bytes(view[at : at + PIECE])
                self._link.pass_on(len(part))
                yield part

    def close(self) -> None:
        """Close the file and release its lock, however the reply ended."""
        close = getattr(self._reply, "close", None)
        if close is not None:
            close()


def paced(app: WsgiApp, *, delay: float = 0.0, bandwidth: float | None = None) -> WsgiApp:
    """Return an application that is slowed down.

    Args:
        app: the application.
        delay: seconds before each request is handled.
        bandwidth: bytes per second of all replies together; None is no limit.

    Returns:
        The application itself when there is nothing to slow down.
    """
    if delay <= 0 and bandwidth is None:
        return app
    return Pace(app, delay, Link(bandwidth) if bandwidth is not None else None)
