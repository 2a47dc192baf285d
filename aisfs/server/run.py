"""Runs the server: the listener, gunicorn around the application, a clean start and stop.

gunicorn runs one worker process with threads, which has all locks and caches. Its parent watches it;
if the parent is killed, the worker notices within a second and exits. The worker is changed in three ways:

- A thread stays with a connection while its requests follow each other closely. gunicorn returns a
  connection to its main thread after each reply and dispatches it again for the next request: four
  wake-ups, which cost as much as storing a small object.
- A connection has no thread until all headers of its request have arrived, so that any number of silent
  clients cannot block others.
- At SIGTERM it ends once no request is under way: gunicorn waits for idle connections, too.

Requests that a web page of another site makes a browser send are refused. A browser on the same machine can
reach a server on loopback. A page from elsewhere may post to it (the browser then sends the page's site as
`Origin`), or resolve its own name to 127.0.0.1 and read the replies too (DNS rebinding; the browser then sends
that site as `Host`).
"""

import errno
import ipaddress
import json
import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.http.message import Message
from gunicorn.sock import TCP6Socket, TCPSocket
from gunicorn.workers.base import Worker
from gunicorn.workers.gthread import _DEFER, TConn, ThreadWorker

from aisfs.errors import ConfigError
from aisfs.server.api.jobs.etl import parse_commands
from aisfs.server.app import make_app
from aisfs.server.messages import REPEATED, Environ, StartResponse, WsgiApp
from aisfs.server.storage.objects import hold_directory

STAY_SECONDS = 0.01
"""How long a thread waits for the next request: longer than a client needs between two files."""
MOST_HEADERS = 64 << 10
"""Most bytes of headers to wait for; gunicorn refuses longer ones."""


class StayingWorker(ThreadWorker):  # type: ignore[misc]
    """A worker of whose threads at most half wait; the others are free for new connections."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - gunicorn's own signature
        super().__init__(*args, **kwargs)
        self._may_wait = threading.Semaphore(max(self.cfg.threads // 2, 1))
        self._serving = set[TConn]()

    def handle_exit(self, sig: int, frame: object) -> None:
        """End, at once if nothing is under way."""
        super().handle_exit(sig, frame)
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if not self.alive and not self._serving:
            os._exit(0)

    def handle(self, conn: TConn) -> object:
        """Serve a request and those that follow it; see `ThreadWorker`."""
        if not _headers_are_there(conn):
            conn.data_ready = True
            return _DEFER
        self._serving.add(conn)
        try:
            return self._serve(conn)
        finally:
            self._serving.discard(conn)
            self._end_if_idle()

    def _serve(self, conn: TConn) -> object:
        kept = super().handle(conn)
        while kept is True and self._next_came(conn) and _headers_are_there(conn):
            kept = super().handle(conn)
        return kept

    def _next_came(self, conn: TConn) -> bool:
        if not self.alive or conn.parser.unreader.buf.getvalue():
            return False  # gunicorn handles both
        if not self._may_wait.acquire(blocking=False):
            return False
        try:
            poll = select.poll()
            poll.register(conn.sock, select.POLLIN)
            return bool(poll.poll(STAY_SECONDS * 1000))
        finally:
            self._may_wait.release()


def _has_ended(conn: TConn) -> bool:
    """Return whether the client sends no more: the connection is readable for good then."""
    poll = select.poll()
    poll.register(conn.sock, select.POLLRDHUP)
    return bool(poll.poll(0))


def _headers_are_there(conn: TConn) -> bool:
    """Return whether a thread can read all headers of the next request without waiting.

    If not, set the connection to become readable only when more has arrived.
    """
    if conn.initialized and conn.parser.unreader.buf.getvalue():
        return True
    try:
        came = conn.sock.recv(MOST_HEADERS, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True  # gunicorn will close it
    whole = not came or b"\r\n\r\n" in came or len(came) == MOST_HEADERS or _has_ended(conn)
    conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 if whole else len(came) + 1)
    return whole


class SameSite:
    """Middleware that accepts only certain names of this machine, and no pages of other sites."""

    def __init__(self, app: WsgiApp, names: Iterable[str]) -> None:
        """Guard `app`; besides addresses and `localhost`, the host may be one of `names`."""
        self._app = app
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request, or refuse it."""
        host, origin = environ.get("HTTP_HOST", ""), environ.get("HTTP_ORIGIN", "")
        if host and not self._is_ours(f"//{host}"):
            return _refuse(start_response, f"Host {host!r} is not a name of this server")
        if origin and not self._is_ours(origin):
            return _refuse(start_response, f"a page of {origin!r} may not use this server")
        return self._app(environ, start_response)

    def _is_ours(self, url: str) -> bool:
        try:
            name = (urlsplit(url).hostname or "").rstrip(".")
        except ValueError:
            return False
        return name in self._names or _is_address(name)


def _is_address(name: str) -> bool:
    # No other site can have an address as its name, so DNS rebinding does not lead here.
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refuse(start_response: StartResponse, reason: str) -> Iterable[bytes]:
    message = f"{reason}; to permit it: aisfs serve --allow-host NAME"
    body = json.dumps({"message": message, "status": 403}).encode() + b"\n"
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response("403 Forbidden", [*headers, ("Connection", "close")])
    return [body]


log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75
"""How long idle connections stay open; clients such as aisfs keep theirs for the next read."""
STOP_SECONDS = 1
"""How long requests in flight may take to finish after SIGTERM."""
BACKLOG = 1024
_CUSTOM = "AIS-CUSTOM-MD"
THREADS = 128
"""Most concurrent requests. A request whose body does not arrive occupies a thread, so there are more
than two cores need; unused threads are never started."""


def serve(
    root: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    allow_hosts: Iterable[str] = (),
    ready: Callable[[int], None] | None = None,
    threads: int = THREADS,
    traps: bool = False,
    etls: Iterable[str] = (),
) -> None:
    """Serve a directory until SIGTERM or SIGINT; blocks, and needs the main thread.

    Args:
        root: one folder per bucket; objects are the files below it.
        host: address to listen on; there is no authentication.
        port: 0 takes a free one.
        allow_hosts: other names of this machine that clients may use, besides `localhost`.
        ready: called with the real port once connections are accepted.
        threads: requests served at the same time.
        traps: lose data and names as a real AIStore does; see `aisfs.server.storage.traps`.
        etls: `NAME=COMMAND` of each transformer; see `aisfs.server.api.jobs.etl`. Without any, it is a build without ETLs.

    Raises:
        ConfigError: the directory is missing or already served, the port is in use, or a transformer cannot be run.
    """
    commands = parse_commands(etls) or None

    def factory() -> WsgiApp:
        return SameSite(make_app(root, traps=traps, etls=commands), (host, *allow_hosts))

    serve_app(factory, root, host=host, port=port, ready=ready, threads=threads)


def serve_app(
    factory: Callable[[], WsgiApp],
    root: Path,
    *,
    host: str,
    port: int,
    ready: Callable[[int], None] | None = None,
    threads: int = THREADS,
) -> None:
    """Do what `serve` does for an application made by `factory` in the worker process."""
    if not root.exists():
        raise ConfigError(f"{root}: no such directory; make it: mkdir -p {quote(str(root))}")
    if not root.is_dir():
        raise ConfigError(f"{root} is not a directory that can be served")
    listener = _listen(host, port)
    try:
        lock = hold_directory(root)
    except ConfigError:
        listener.close()
        raise
    real_port: int = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host

    def announce() -> None:
        log.info("serving %s at http://%s:%d", root, shown, real_port)
        if not _is_loopback(host):
            log.warning(
                "%s is not a loopback address: anyone who can reach port %d can read and change "
                "everything in %s; there is no authentication",
                host,
                real_port,
                root,
            )
        if ready is not None:
            ready(real_port)

    try:
        _Gunicorn(factory, listener, announce, threads).run()
    except SystemExit as end:  # gunicorn ends so
        if end.code not in (0, None):
            raise ConfigError(f"the server of {root} could not start or died") from None
    finally:
        os.close(lock)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit this. Without it the second part of a small reply would wait
        # for the client's delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "the port is taken" if taken else str(error)
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}") from error
    return listener


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Gunicorn(BaseApplication):  # type: ignore[misc]
    def __init__(
        self,
        factory: Callable[[], WsgiApp],
        listener: socket.socket,
        announce: Callable[[], None],
        threads: int,
    ) -> None:
        self._factory = factory
        self._listener = listener
        self._announce = announce
        self._threads = threads
        super().__init__()

    def load_config(self) -> None:
        """Set all options here; neither files nor the environment can change them."""
        settings: dict[str, Any] = {
            "backlog": BACKLOG,
            "workers": 1,
            "worker_class": StayingWorker,
            "threads": self._threads,
            "worker_connections": 1000 + self._threads,
            "keepalive": KEEP_ALIVE_SECONDS,
            "graceful_timeout": STOP_SECONDS,
            # A suspended laptop or a busy machine is no reason to kill the worker.
            "timeout": 0,
            "limit_request_line": 0,
            "limit_request_field_size": 0,
            "loglevel": "warning",
            "control_socket_disable": True,
            "when_ready": self._when_ready,
            "pre_request": _keep_apart,
            "header_map": "dangerous",  # made safe by `_keep_apart`
            "worker_exit": _leave,
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> WsgiApp:
        """Make the application; gunicorn calls this in the worker."""
        return self._factory()

    def run(self) -> None:
        """Run until a signal ends it; leaves with SystemExit."""
        arbiter = Arbiter(self)
        kind = TCP6Socket if self._listener.family == socket.AF_INET6 else TCPSocket
        address = self._listener.getsockname()
        # Our own listener, because gunicorn would retry for seconds and exit if the port is in use.
        arbiter.LISTENERS = [kind(address, self.cfg, arbiter.log, fd=self._listener.detach())]
        arbiter.run()

    def _when_ready(self, arbiter: Arbiter) -> None:
        # For gunicorn a hang-up means "reload"; here it means that the terminal is gone.
        signal.signal(signal.SIGHUP, lambda *_: os.kill(arbiter.pid, signal.SIGTERM))
        self._announce()


def _keep_apart(worker: Worker, request: Message) -> None:
    """Keep apart what WSGI would not: repeated `Ais-Custom-Md` lines, `_` and `-` in names, and what waits
    for `100 Continue`, which is for the application to send.

    Other names with `_` are left out, as gunicorn does by default: they could pass for those with `-`.
    """
    custom, others = [], []
    for name, value in request.headers:
        if name == _CUSTOM:
            custom.append(value)
        elif "_" not in name:
            others.append((name, value))
    request.headers = [*others, (_CUSTOM, REPEATED.join(custom))] if custom else others
    if request._expected_100_continue:  # gunicorn would ask for the body before a redirect, too
        request._expected_100_continue = False
        if "utm=" not in request.query:  # nobody knows whether the body comes after a redirect
            request.headers.append(("CONNECTION", "close"))
    else:
        request.headers = [pair for pair in request.headers if pair[0] != "EXPECT"]


def _leave(arbiter: Arbiter, worker: Worker) -> None:
    """End the worker at once: threads that still feed a slow client must not keep it alive."""
    os._exit(0)
