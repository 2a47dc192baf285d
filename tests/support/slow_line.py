"""A line to a server that sends so many bytes a second and no more; what comes back is not slowed down."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

_PIECE = 16 << 10
"""Small, so that requests on other connections get through."""


class SlowLine:
    """The line, for any number of connections at once."""

    def __init__(self, server: str, bytes_a_second: float) -> None:
        place = urlsplit(server)
        self._server = (place.hostname or "", place.port or 80)
        self._rate = bytes_a_second
        self.is_dead = False
        """Whether nothing gets through any more."""
        self.dead_from: int | None = None
        """How many bytes of a connection get through."""
        self._free = 0.0
        self._lock = threading.Lock()
        self._listener = socket.socket()
        # Otherwise the kernel takes some megabytes at once.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        self._open: list[socket.socket] = [self._listener]
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}{place.path}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Break all connections."""
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                threading.Thread(target=self._send, args=(client, server), daemon=True).start()
                threading.Thread(target=self._reply, args=(server, client), daemon=True).start()

    def _send(self, client: socket.socket, server: socket.socket) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while piece := client.recv(_PIECE):
                self._wait(len(piece))
                sent += len(piece)
                while self.is_dead or (self.dead_from is not None and sent > self.dead_from):
                    time.sleep(0.02)
                server.sendall(piece)
            server.shutdown(socket.SHUT_WR)

    def _wait(self, size: int) -> None:
        """Wait for the turn of a piece."""
        with self._lock:
            self._free = max(self._free, time.monotonic()) + size / self._rate
            until = self._free
        time.sleep(max(0.0, until - time.monotonic()))

    def _reply(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := server.recv(_PIECE):
                while self.is_dead:
                    time.sleep(0.02)
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)


@contextmanager
def slow_line(server: str, bytes_a_second: float) -> Iterator[SlowLine]:
    """Give a line to a server until the block ends."""
    line = SlowLine(server, bytes_a_second)
    try:
        yield line
    finally:
        line.close()
