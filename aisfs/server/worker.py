"""gunicorn's worker, whose threads stay with a connection while its requests follow each other closely.

gunicorn hands a connection back to its main thread after each reply and gets it from there for the
next request: four wake-ups, which cost as much as storing a small object.
"""

import select
import threading
from typing import Any

from gunicorn.workers.gthread import TConn, ThreadWorker

STAY_SECONDS = 0.01
"""How long a thread waits for the next request: longer than a client takes from file to file."""


class StayingWorker(ThreadWorker):  # type: ignore[misc]
    """Half of the threads at most wait; the others are free for whoever comes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - gunicorn's own signature
        super().__init__(*args, **kwargs)
        self._may_wait = threading.Semaphore(max(self.cfg.threads // 2, 1))

    def handle(self, conn: TConn) -> object:
        """Serve the request that came, and those that follow it; see `ThreadWorker`."""
        kept = super().handle(conn)
        while kept is True and self._next_came(conn):
            kept = super().handle(conn)
        return kept

    def _next_came(self, conn: TConn) -> bool:
        if not self.alive or conn.parser.unreader.buf.getvalue():
            return False  # gunicorn looks after both
        if not self._may_wait.acquire(blocking=False):
            return False
        try:
            poll = select.poll()
            poll.register(conn.sock, select.POLLIN)
            return bool(poll.poll(STAY_SECONDS * 1000))
        finally:
            self._may_wait.release()
