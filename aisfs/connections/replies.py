"""A reply as it arrives, with a bound on all that the server decides: time, bytes, and form.

http.client takes headers that break off for all of them, leaves out what follows a line that is no
header, and reads interim replies without end. Any of this could make a reply look like another one.

Must not know: what replies mean.
"""

import io
import re
import socket
import struct
import time
from contextlib import suppress
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import Any

_MOST_HEAD = 256 << 10
"""Bytes before the body, interim replies included. The longest that AIStore sends, a bucket's
properties or custom metadata, are some KiB."""
_ALERT = b"\x15\x03"
"""How an alert of TLS begins."""
_LONG = 64 << 10
"""Bytes to read from which all are waited for at once."""
_PIECE = 64 << 10
"""Bytes read at once; what is announced is no reason to make room for it."""

# Other control characters could end a line for some readers, or reach a terminal. But AIStore writes those
# in the name of an object as they are, where only what comes before and after the name is of use.
_STATUS = re.compile(rb"[^\x00-\x08\x0b-\x1f\x7f]*\r?\n")
_HEADER = re.compile(rb"(?:[!-9;-~]+:[^\x00-\x08\x0b-\x1f\x7f]*|(?i:Location):[^\x00\r\n]*)\r?\n")


class SpeaksTls(HTTPException):
    """A server that wants TLS was spoken to without."""

    def __init__(self) -> None:
        super().__init__("the server speaks TLS: use https://")


class BoundedReply(HTTPResponse):
    """A reply whose head is whole and comes within the time that the server may be silent."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(sock, *args, **kwargs)
        self._incoming = _Incoming(sock, self.fp.detach(), sock.gettimeout())
        self.fp = io.BufferedReader(self._incoming)

    def begin(self) -> None:
        """Read status and headers.

        Raises:
            HTTPException, OSError: they are not those of a reply, or do not come to an end.
        """
        stream = self.fp
        self.fp = _Head(stream)  # type: ignore[assignment]
        try:
            super().begin()
        finally:
            if self.fp is not None:  # it is where that was no reply
                self.fp = stream
        if self.status == 400 and not self.headers:
            raise SpeaksTls  # Go's answer then; all others of it have headers
        self._incoming.allow(None)

    def take(self, most: int, seconds: float | None) -> bytes:
        """Read the body, of a longer one the first `most` bytes, within `seconds`.

        Raises:
            HTTPException, OSError: it breaks off, or takes longer.
        """
        self._incoming.allow(seconds)
        content = bytearray()
        piece = memoryview(bytearray(min(_PIECE, most)))
        # `read` would make room for what a chunk announces, and reads without end a negative one.
        while got := self.readinto(piece[: most - len(content)]):
            content += piece[:got]
        if self.length and len(content) < most:
            raise IncompleteRead(bytes(content), self.length)
        return bytes(content)


class _Incoming(io.RawIOBase):
    """The bytes of a connection, up to a moment."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase, seconds: float | None) -> None:
        self._socket = sock
        self._raw = raw
        self._plain = type(sock) is socket.socket
        self._blocking = False
        self._deadline: float | None = None
        self.allow(seconds)

    def allow(self, seconds: float | None) -> None:
        """Allow what comes next so many seconds; None sets no end."""
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, view: Any) -> int | None:  # noqa: ANN401 - a writable buffer
        # The socket's own timeout bounds each call; a server that trickles never meets that.
        got: int | None
        if self._plain and self._deadline is None and len(view) >= _LONG:
            got = self._receive_all(view)
        else:
            got = self._raw.readinto(view)
        if got is None:  # within the socket's timeout, which the kernel keeps now
            raise TimeoutError("timed out")
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise TimeoutError("the reply trickles in")
        return got

    def _receive_all(self, view: Any) -> int | None:  # noqa: ANN401
        """Fill `view` in one call, unless the peer closes, or is silent for as long as it may be.

        Python waits and reads by turns, both of which let go of the interpreter's lock and take it again.
        So a long body that comes in 20 pieces would wait 40 times for whoever has the lock.
        """
        if not self._blocking:
            seconds = self._socket.gettimeout() or 0.0
            timeval = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
            self._socket.settimeout(None)  # the next request sets it again
            self._blocking = True
        with suppress(BlockingIOError):
            return self._socket.recv_into(view, 0, socket.MSG_WAITALL)
        return None

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Head:
    """Hands the lines before the body to http.client."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._left = _MOST_HEAD
        self._form = _STATUS

    def readline(self, limit: int) -> bytes:
        line = self._stream.readline(min(limit, self._left))
        self._left -= len(line)
        if not line.endswith(b"\n"):
            if not line and self._left == _MOST_HEAD:
                return line  # closed before any answer, which http.client tells
            if line.startswith(_ALERT):
                raise SpeaksTls
            if self._left and len(line) < limit:
                raise ConnectionResetError("the connection ended within the head of a reply")
            raise HTTPException("the head of the reply is too long")
        if line in (b"\r\n", b"\n"):
            self._form = _STATUS  # after an interim reply
        elif line.startswith(_ALERT):
            raise SpeaksTls
        elif not self._form.fullmatch(line):
            raise HTTPException("the head of the reply holds what is no header")
        else:
            self._form = _HEADER
        return line

    def close(self) -> None:
        """Close the connection's side of it, as http.client does when there is no status."""
        self._stream.close()
