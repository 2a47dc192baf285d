"""Runs the server: the listener, gunicorn around the application, a clean start and stop.

gunicorn runs one worker process with threads, which has all locks and caches. Its parent watches it;
if the parent is killed, the worker notices within a second and exits.
"""

import errno
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from shlex import quote
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.http.message import Message
from gunicorn.sock import TCP6Socket, TCPSocket
from gunicorn.workers.base import Worker

from aisfs.errors import ConfigError
from aisfs.server.app import make_app
from aisfs.server.messages import REPEATED, WsgiApp
from aisfs.server.same_site import SameSite
from aisfs.server.storage.objects import hold_directory
from aisfs.server.worker import StayingWorker

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

    Raises:
        ConfigError: the directory is missing or already served, or the port is in use.
    """

    def factory() -> WsgiApp:
        return SameSite(make_app(root, traps=traps), (host, *allow_hosts))

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
