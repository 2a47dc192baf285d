"""Serves `/metrics` for Prometheus and `/healthz` for supervisors.

One thread answers one request after the other: those who ask are few and patient. What is counted
belongs to the trio thread, so that brings the counters up to date; the text is made here.
"""

import errno
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import trio
from prometheus_client import make_wsgi_app

from aisfs.app.monitoring.health import Health
from aisfs.config import MonitoringSettings
from aisfs.errors import ConfigError
from aisfs.process.threads import start_service_thread

log = logging.getLogger(__name__)

SILENCE_SECONDS = 5.0
"""How long a client may be silent while others wait for their turn."""
PAUSE_SECONDS = 1.0
"""After a connection could not be accepted, for example for lack of descriptors."""

Environment = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]


class _Handler(WSGIRequestHandler):
    """Reads one request; leaves nothing on stderr."""

    timeout = SILENCE_SECONDS

    def log_message(self, format: str, *args: object) -> None:
        log.debug("metrics: %s", format % args)


class MetricsServer(WSGIServer):
    """Listens from its construction on; answers in a thread between `start` and `stop`."""

    def __init__(self, address: tuple[str, int]) -> None:
        """Listen on a host and a port; port 0 takes a free one.

        Raises:
            OSError: another program has the port, or the host is not one of this machine.
        """
        host, port = address
        family, _, _, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.address_family = family
        self._closing = threading.Event()
        self._asking: socket.socket | None = None
        """Whose request is being answered."""
        self._thread: threading.Thread | None = None
        super().__init__((str(place[0]), int(place[1])), _Handler)

    @property
    def url(self) -> str:
        """Where the counters are."""
        host, port = self.socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def start(self, health: Health, token: trio.lowlevel.TrioToken) -> None:
        """Begin to answer."""
        self.set_app(_Application(health, token))
        self._thread = start_service_thread("aisfs metrics", self._answer_all)

    def stop(self) -> None:
        """End the thread, and with it a request under way. Waits, so not for the trio thread."""
        self._closing.set()
        for each in (self.socket, self._asking):
            if each is not None:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join()

    def _answer_all(self) -> None:
        while not self._closing.is_set():
            self.handle_request()

    # what the servers of Python's library call ---------------------------------------------------

    def server_bind(self) -> None:
        """Bind, without asking the DNS for our own name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        try:
            self._asking, address = super().get_request()
        except OSError:
            self._closing.wait(PAUSE_SECONDS)
            raise
        if self._closing.is_set():  # checked after setting, so that `stop` or this sees it
            self._asking.close()
            raise OSError(errno.ECONNABORTED, "the mount ends")
        return self._asking, address

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as in the library
        """Close a connection."""
        self._asking = None
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Note that a client left, or was silent for too long."""
        log.debug("metrics: a request ended early")


class _Application:
    """Answers requests. In the thread of the server."""

    def __init__(self, health: Health, token: trio.lowlevel.TrioToken) -> None:
        self._health = health
        self._token = token
        self._metrics = make_wsgi_app(health.metrics.registry)

    def __call__(self, environ: Environment, start: StartResponse) -> Iterable[bytes]:
        try:
            match environ["PATH_INFO"]:
                case "/metrics":
                    trio.from_thread.run_sync(self._health.metrics.update, trio_token=self._token)
                    found: Iterable[bytes] = self._metrics(environ, start)
                    return found
                case "/healthz":
                    return self._healthz(environ, start)
            return _say(start, "404 Not Found", "there are /metrics and /healthz")
        except (trio.RunFinishedError, trio.Cancelled):
            return _say(start, "503 Service Unavailable", "the mount has ended")
        except Exception:
            log.exception("a request for metrics failed: this is a bug in aisfs, please report it")
            return _say(start, "500 Internal Server Error", "see the log")

    def _healthz(self, environ: Environment, start: StartResponse) -> list[bytes]:
        if environ["REQUEST_METHOD"] != "GET":
            return _say(start, "405 Method Not Allowed", "use GET")
        problem = trio.from_thread.run(self._health.problem, trio_token=self._token)
        if problem:
            return _say(start, "503 Service Unavailable", problem)
        return _say(start, "200 OK", "ok")


def _say(start: StartResponse, status: str, text: str) -> list[bytes]:
    body = f"{text}\n".encode(errors="replace")
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    start(status, headers)
    return [body]


@contextmanager
def listen(settings: MonitoringSettings) -> Iterator[MetricsServer | None]:
    """Listen where the settings say; None if nowhere.

    Raises:
        ConfigError: nothing can listen there.
    """
    address = settings.listen_on
    if address is None:
        yield None
        return
    try:
        server = MetricsServer(address)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--metrics-addr {settings.metrics_addr}: {_reason(error)}") from error
    with server:
        yield server


def _reason(error: OSError | UnicodeError) -> str:
    match error:
        case socket.gaierror() | UnicodeError():
            return "no such host"
        case OSError(errno=errno.EADDRINUSE):
            return "another program listens there; give another port, or 0 for a free one"
        case OSError(errno=errno.EADDRNOTAVAIL):
            return "the host is not this machine"
        case OSError(errno=int(number)):
            return os.strerror(number)
    return str(error)


@asynccontextmanager
async def serve_metrics(server: MetricsServer | None, health: Health) -> AsyncIterator[None]:
    """Answer requests for the counters and the health of a mount until the block ends."""
    if server is None:
        yield
        return
    health.metrics.listening.labels(server.url).set(1)
    server.start(health, trio.lowlevel.current_trio_token())
    log.info("metrics at %s", server.url)
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(server.stop)
