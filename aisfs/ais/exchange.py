"""One request and its reply over a connected socket, with no more work than that takes.

What requests, urllib3 and http.client do for each request costs more than sending and storing a small
file. Connecting, TLS and what is said about both stays theirs (`aisfs.ais.transport`).

Must not know: pools, redirects, tokens, what requests mean.
"""

import http.client
import socket
import string
from collections.abc import Iterable, Mapping
from contextlib import suppress
from urllib.parse import quote

from aisfs.ais.wire import Reply

SMALL = 64 << 10
"""Bytes of a body that go out in one piece with the head; copying them costs less than a packet."""
_MOST_HEAD = 256 << 10
"""Bytes of a reply's head; servers send some hundred, and custom metadata of a few thousand."""
_MOST_BODY = 64 << 10
"""Bytes of a reply's body that are read; for more of them the connection is given up."""
_RECEIVED = 64 << 10
_END = b"\r\n\r\n"
_IN_TARGET = "".join(set(string.punctuation) - set('"<>\\^`{|}'))


def request_head(method: str, target: str, host: str, headers: Mapping[str, str]) -> bytes:
    """Give all of a request before its body.

    Raises:
        ValueError: a header would become two.
    """
    lines = [f"{method} {quote(target, safe=_IN_TARGET)} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join(lines).encode("latin-1")
    if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
        raise ValueError(f"{method} {target}: a line break in a header")
    return head + _END


def send_request(sock: socket.socket, head: bytes, pieces: Iterable[memoryview]) -> bool:
    """Send a request; says whether all of it went out, or the server has closed before that.

    One that refuses the rest of a body has answered, so the reply is to be read all the same.
    """
    with suppress(BrokenPipeError, ConnectionResetError):
        for piece in pieces:
            if head and len(piece) <= SMALL:
                sock.sendall(head + piece)
            else:
                if head:
                    sock.sendall(head)
                sock.sendall(piece)
            head = b""
        if head:
            sock.sendall(head)
        return True
    return False


def receive_reply(sock: socket.socket) -> tuple[Reply, bool]:
    """Receive a reply; says too whether the connection is fit for another request.

    Raises:
        HTTPException: this is no reply, or not all of it.
    """
    incoming = _Incoming(sock)
    while True:
        version, status, headers = _parsed(incoming.head())
        if status >= 200 or status == 101:
            break
    if status in (204, 304):
        body, whole = b"", True
    elif "transfer-encoding" in headers:
        body, whole = incoming.chunks()
    elif "content-length" in headers:
        body, whole = incoming.body(_length(headers["content-length"]))
    else:
        body, whole = incoming.rest(), False
    kept = version >= 1 and "close" not in headers.get("connection", "").lower()
    return Reply(status, headers, body), kept and whole and incoming.empty


class _Incoming:
    """What comes in, taken apart."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""

    @property
    def empty(self) -> bool:
        """Whether all that came was taken."""
        return not self._buffer

    def head(self) -> bytes:
        """Take everything up to an empty line."""
        while (end := self._buffer.find(_END)) < 0:
            if len(self._buffer) > _MOST_HEAD:
                raise http.client.LineTooLong("head")
            if not self._more():
                if self._buffer:
                    raise http.client.IncompleteRead(self._buffer)
                raise http.client.RemoteDisconnected("closed without a reply")
        return self._take(end + len(_END))[:end]

    def body(self, length: int) -> tuple[bytes, bool]:
        """Take so many bytes, or the first of them; says whether it is all."""
        wanted = min(length, _MOST_BODY)
        return self._exactly(wanted), wanted == length

    def chunks(self) -> tuple[bytes, bool]:
        """Take the chunks, or the first of them; says whether it is all."""
        body = b""
        while len(body) <= _MOST_BODY:
            size = _chunk_size(self._line())
            if size <= 0:
                while self._line():
                    pass  # a trailer
                return body, True
            if size > _MOST_BODY:
                return body, False
            body += self._exactly(size)
            self._line()
        return body, False

    def rest(self) -> bytes:
        """Take what comes until the connection is closed, but not all of a long body."""
        while len(self._buffer) < _MOST_BODY and self._more():
            pass
        return self._take(len(self._buffer))

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _MOST_HEAD or not self._more():
                raise http.client.IncompleteRead(self._buffer)
        return self._take(end + 2)[:end]

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if not self._more():
                raise http.client.IncompleteRead(self._buffer, size - len(self._buffer))
        return self._take(size)

    def _take(self, size: int) -> bytes:
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _more(self) -> bool:
        got = self._sock.recv(_RECEIVED)
        self._buffer += got
        return bool(got)


def _parsed(head: bytes) -> tuple[int, int, dict[str, str]]:
    """Give the minor version, the status, and the headers by names in lower case."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise http.client.BadStatusLine(first[:100])
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise http.client.BadStatusLine(line[:100])
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return int(version[7:] == "1"), int(rest[:3]), headers


def _chunk_size(line: bytes) -> int:
    text = line.partition(b";")[0].strip()
    try:
        return int(text, 16)
    except ValueError:
        raise http.client.BadStatusLine(f"size of a chunk: {text[:100]!r}") from None


def _length(text: str) -> int:
    if not text.isdecimal():
        raise http.client.BadStatusLine(f"Content-Length: {text[:100]}")
    return int(text)
