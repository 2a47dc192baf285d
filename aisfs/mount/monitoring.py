"""Monitoring of a mount: `/metrics` for Prometheus, `/healthz` for supervisors, and the daemon's account of itself.

Each of a few connections has a thread, so that a slow client holds up nobody; a connection is cut
after some seconds, or when it is the oldest and another one needs its place. The counters belong to the
trio thread, so that brings them up to date; the text is made here.
"""

import errno
import json
import logging
import logging.handlers
import os
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from ipaddress import ip_address
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import trio
from prometheus_client import make_wsgi_app

from aisfs.engine.dataset.shard_set import OpenProgress
from aisfs.errors import AisfsError, ConfigError
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.xattrs import ABOUT, HEALTH, UPGRADE
from aisfs.metrics import Metrics, Totals
from aisfs.mount.services import Services
from aisfs.mount.setup import MountSetup, is_local
from aisfs.settings import MonitoringSettings
from aisfs.stores.ais.transport import VERSION
from aisfs.stores.registry import direct_store
from aisfs.system.keeping import Keeping
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.threads import start_service_thread

PATIENCE_SECONDS = 2.0
"""How long the cluster may take; supervisors usually wait for less than ten seconds."""
KEPT_SECONDS = 5.0
"""How long an answer holds: however many ask, the cluster gets a small request in five seconds."""


class Health:
    """What a mount says when it is asked how it is. For the trio thread."""

    def __init__(self, metrics: Metrics, ping: Callable[[], Awaitable[None]] | None) -> None:
        """Take what asks the cluster for an answer, which is None if the mount needs no cluster."""
        self.metrics = metrics
        self.is_ready = False
        """Whether the mount is up."""
        self._ping = ping
        self._problem = ""
        self._until = float("-inf")

    async def problem(self) -> str:
        """Return what is wrong, in one line; empty if nothing is."""
        if not self.is_ready:
            return "the mount is not ready yet"
        if self._ping is not None and trio.current_time() >= self._until:
            self._problem = await self._ask(self._ping)
            self._until = trio.current_time() + KEPT_SECONDS
        return self._problem

    async def _ask(self, ping: Callable[[], Awaitable[None]]) -> str:
        with trio.move_on_after(PATIENCE_SECONDS):
            try:
                await ping()
            except AisfsError as error:
                return " ".join(str(error).split())
            return ""
        return f"the cluster did not answer within {PATIENCE_SECONDS:g} seconds"


log = logging.getLogger(__name__)

CONNECTIONS = 8
"""Connections at once: some Prometheus servers, a supervisor, a person."""
REQUEST_SECONDS = 10.0
"""How long a client has from its connection to the last byte of its answer; Prometheus waits as long for it."""
LOOK_SECONDS = 0.5
"""How often it is looked which connections are too old."""
PAUSE_SECONDS = 1.0
"""After a connection could not be accepted, for example for lack of descriptors."""

Environment = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]


class _Handler(WSGIRequestHandler):
    """Reads one request; leaves nothing on stderr."""

    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: object) -> None:
        log.debug("metrics: %s", format % args)


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Listens from its construction on; answers in threads between `start` and `stop`."""

    def __init__(self, address: tuple[str, int], *, shared: bool = False) -> None:
        """Listen on a host and a port; port 0 takes a free one.

        `shared` takes a port over from the daemon before, which may still listen.

        Raises:
            OSError: another program has the port, or the host is not one of this machine.
        """
        host, port = address
        family, _, _, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.address_family = family
        self._hosts = frozenset({"localhost", host.lower(), socket.gethostname().lower()})
        self._shared = shared
        self._closing = threading.Event()
        self._lock = ranked_lock(Rank.METRICS_CONNECTIONS)
        self._since: dict[socket.socket, float] = {}
        """When each connection was accepted, the oldest first."""
        self._thread: threading.Thread | None = None
        super().__init__((str(place[0]), int(place[1])), _Handler)

    @property
    def url(self) -> str:
        """Where the counters are."""
        host, port = self.socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def start(self, health: Health, token: trio.lowlevel.TrioToken) -> None:
        """Begin to answer."""
        self.set_app(_Application(health, token, self._hosts))
        self._thread = start_service_thread("aisfs metrics", self._answer_all)

    def stop(self) -> None:
        """End all threads, and with them requests under way. Waits, so not for the trio thread."""
        self._closing.set()
        self.shutdown()
        self._cut(float("inf"))
        if self._thread is not None:
            self._thread.join()
        self.server_close()  # waits for the threads of the requests

    def _answer_all(self) -> None:
        self.serve_forever(LOOK_SECONDS)

    def _cut(self, before: float, but: int = 0) -> None:
        """End connections that were accepted before a moment, and the oldest ones of more than `but`."""
        with self._lock:
            count = len(self._since)
            for at, (connection, since) in enumerate(self._since.items()):
                if since < before or (but and at < count - but):
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    # what the servers of Python's library call ---------------------------------------------------

    def server_bind(self) -> None:
        """Bind, without asking the DNS for our own name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._shared:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.socket.bind(self.server_address)
        # Only now, so that no other mount shares it unasked.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def service_actions(self) -> None:
        """Look at the connections every now and then."""
        self._cut(time.monotonic() - REQUEST_SECONDS)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection, which takes the place of the oldest one if there are too many."""
        try:
            connection, address = super().get_request()
        except OSError:
            self._closing.wait(PAUSE_SECONDS)
            raise
        with self._lock:
            self._since[connection] = time.monotonic()
        self._cut(float("-inf"), but=CONNECTIONS)
        return connection, address

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as in the library
        """Close a connection."""
        with self._lock:
            self._since.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Note that a client left, or was too slow."""
        log.debug("metrics: a request ended early")


_NOT_OURS = (
    "ask by address, by the name of this machine, or by the name in --metrics-addr NAME:PORT"
)
"""A web page can lead a browser here by a name of its own (DNS rebinding), and may read the answer then."""


class _Application:
    """Answers requests. In the threads of the server."""

    def __init__(
        self, health: Health, token: trio.lowlevel.TrioToken, hosts: frozenset[str]
    ) -> None:
        self._health = health
        self._token = token
        self._hosts = hosts
        self._metrics = make_wsgi_app(health.metrics.registry)

    def __call__(self, environ: Environment, start: StartResponse) -> Iterable[bytes]:
        try:
            if not self._means_us(environ.get("HTTP_HOST", "")):
                return _say(start, "403 Forbidden", _NOT_OURS)
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

    def _means_us(self, host: str) -> bool:
        """Return whether this is an address or a name of ours; a browser sends what it was led by."""
        if not host:
            return True
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        with suppress(ValueError):
            return bool(ip_address(name))
        return name in self._hosts

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
def listen(settings: MonitoringSettings, *, shared: bool = False) -> Iterator[MetricsServer | None]:
    """Listen where the settings say; None if nowhere. `shared` as of `MetricsServer`.

    Raises:
        ConfigError: nothing can listen there.
    """
    address = settings.listen_on
    if address is None:
        yield None
        return
    try:
        server = MetricsServer(address, shared=shared)
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


SAMPLE_SECONDS = 5.0
WINDOWS = {"last_10_seconds": 10.0, "last_minute": 60.0}
"""The period of the rates. A younger mount gives them since its start."""


class _Sample(NamedTuple):
    time: float
    totals: Totals


class About:
    """What the daemon says of itself. For the trio thread."""

    def __init__(
        self, metrics: Metrics, health: Health, *, writable: bool, keeping: Keeping | None = None
    ) -> None:
        """Begin with the process that calls this."""
        self._keeping = keeping
        self._metrics = metrics
        self._health = health
        self._writable = writable
        self._started = time.monotonic()
        self._samples: deque[_Sample] = deque()

    @property
    def reports(self) -> Mapping[bytes, Callable[[], Awaitable[bytes]]]:
        """The extended attributes of the root that this answers."""
        return {ABOUT: self._describe, HEALTH: self._check, UPGRADE: self._upgrade}

    async def sample(self) -> None:
        """Remember every few seconds what was done until then."""
        longest = max(WINDOWS.values())
        while True:
            now = self._sample()
            self._samples.append(now)
            while len(self._samples) > 1 and self._samples[1].time <= now.time - longest:
                self._samples.popleft()
            await trio.sleep(SAMPLE_SECONDS)

    async def _describe(self) -> bytes:
        about = {
            "pid": os.getpid(),
            "uptime_seconds": int(time.monotonic() - self._started),
            "version": VERSION,
            "writable": self._writable,
            "log": log_destination(),
            "rates": {name: self._rates(seconds) for name, seconds in WINDOWS.items()},
        }
        if self._keeping is not None:
            takeover = self._keeping.takeover
            about |= {
                "keeper": self._keeping.keeper,
                "restarts": takeover.restarts if takeover is not None else 0,
            }
            if self._keeping.refused:
                about["upgrade_refused"] = self._keeping.refused
        return json.dumps(about, ensure_ascii=False).encode()

    async def _upgrade(self) -> bytes:
        """Begin with an upgrade; return the keeper's number, or nothing if this mount has none."""
        if self._keeping is None:
            return b""
        self._keeping.upgrade()
        return str(self._keeping.keeper).encode()

    async def _check(self) -> bytes:
        return (await self._health.problem()).encode()

    def _sample(self) -> _Sample:
        return _Sample(time.monotonic(), self._metrics.totals())

    def _rates(self, seconds: float) -> dict[str, float]:
        """Return how much was done in a second, over the last so many."""
        now = self._sample()
        since = next(
            (s for s in reversed(self._samples) if s.time <= now.time - seconds),
            self._samples[0] if self._samples else now,
        )
        passed = max(now.time - since.time, 1.0)
        done = zip(Totals._fields, now.totals, since.totals, strict=True)
        return {name: round((after - before) / passed, 1) for name, after, before in done}


def log_destination() -> str:
    """Return where log lines of this process go, as set up in `aisfs.system.logs`."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            return handler.baseFilename
        if isinstance(handler, logging.handlers.SysLogHandler):
            return f"the system's log ({handler.address})"
    return "stderr or nowhere"


def describe(
    setup: MountSetup, services: Services, filesystem: FileSystem, progress: OpenProgress
) -> None:
    """Show in the counters what is mounted, and how full its cache is."""
    metrics, blocks, staging = services.metrics, services.blocks, services.staging
    metrics.show_version(VERSION)
    apart = is_local(setup.source) or direct_store(setup.source)
    endpoint = "" if apart else setup.cluster.shown_endpoint
    directory = "" if blocks is None else str(setup.cache.cache_dir)
    names = (str(setup.source), endpoint, directory)
    metrics.mount.labels(*(os.fsencode(n).decode(errors="replace") for n in names)).set(1)

    def update() -> None:
        metrics.inodes.set(len(filesystem.inodes))
        metrics.shards_to_open.set(progress.shards or 0)
        metrics.shards_opened.set(progress.opened)
        metrics.opened_files.set(progress.files)
        if staging is not None:
            metrics.staging_limit.set(staging.limit)
            metrics.staging_used.set(staging.used)
        if blocks is not None:
            counts = blocks.counts()
            metrics.cache_limit.set(blocks.limit)
            metrics.cache_used.set(counts.used)
            metrics.cache_hits.set(counts.hits)
            metrics.cache_misses.set(counts.misses)
            metrics.cache_evictions.set(counts.evictions)
            metrics.cache_rejected.set(counts.rejected)

    metrics.before_text.append(update)
