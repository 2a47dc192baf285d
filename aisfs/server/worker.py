"""gunicorn's worker, changed in three ways.

A thread stays with a connection while its requests follow each other closely. gunicorn returns a
connection to its main thread after each reply and dispatches it again for the next request: four
wake-ups, which cost as much as storing a small object.

A connection has no thread until all headers of its request have arrived, so that any number of silent
clients cannot block others.

At SIGTERM it ends once no request is under way: gunicorn waits for idle connections, too.
"""

import os
import select
import socket
import threading
from typing import Any

from gunicorn.workers.gthread import _DEFER, TConn, ThreadWorker

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
