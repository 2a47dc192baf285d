"""One request over a connection, and its reply as it arrives: the only way messages go.

requests chooses certificates and urllib3 connects (`aisfs.connections.connection_set`), but the
messages are http.client's: what the others add to each request costs more than sending and storing a
small file (docs/adr/0026).

Must not know: which connection, redirects, tokens, what requests mean.
"""

import socket
import string
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from typing import cast
from urllib.parse import quote

from aisfs.connections.replies import BoundedReply
from aisfs.connections.reply import Reply

SMALL = 64 << 10
"""Bytes of a body that are worth a copy in memory, so that they are read once."""
_PIECE = 1 << 20
"""Bytes received at first where somebody may wait for them: one READ of the kernel."""
_IN_TARGET = "".join(set(string.punctuation) - set('"<>\\^`{|}'))


class Exchange:
    """A request that was sent, and its reply, whose head has come.

    A server that refuses the rest of a body and closes has answered: its reply is read all the same.
    `end` must be called, or `take_all`; until then the connection takes no other request.
    """

    def __init__(
        self,
        connection: HTTPConnection,
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
            self._reply = cast("BoundedReply", HTTPConnection.getresponse(connection))
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
        done, most = 0, len(view) if arrived is None else _PIECE
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
