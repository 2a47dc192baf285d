"""One request and one reply as values, between WSGI and the handlers, and counts of the requests."""

import json
import os
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from gunicorn.http.errors import ParseException

from aisfs.server.failures import Failure, Headers

Environ = dict[str, Any]
StartResponse = Callable[..., object]
WsgiApp = Callable[[Environ, StartResponse], Iterable[bytes]]

PIECE = 1 << 20
"""Bytes per read of a body: large enough that Python's part of a copy disappears."""
SILENT_SECONDS = 60.0
"""A client that sends no byte of a body for this long is dropped, which frees its thread."""
REPEATED = "\n"
"""Separates repeated `Ais-Custom-Md` lines; a header value cannot contain it (see run.py)."""
_HOST = re.compile(r"[A-Za-z0-9.\-_\[\]:]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_RAW = re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ESCAPED = re.compile(r"%(0[1-8BC]|0[EF]|1[0-9A-F]|7F)")
"""Those of `_RAW`, as they are escaped here."""


class ShortBody(Exception):
    """The client closed before its whole body had arrived; `Request.body` adds what was received."""

    received = b""


@dataclass(slots=True)
class Reply:
    """The reply to a request: at most one of `body` (whole), `file` and `stream` is used."""

    status: int = 200
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    file: "HeldFile | None" = None
    stream: Iterator[bytes] | None = None


class Request:
    """A request, with the parts that AIStore reads from it."""

    def __init__(self, environ: Environ) -> None:
        self.environ = environ
        self.method: str = environ["REQUEST_METHOD"]
        self.raw_path: bytes = environ["PATH_INFO"].encode("latin-1")

    @cached_property
    def path(self) -> str:
        """The decoded path; bytes that are not UTF-8 are lone surrogates."""
        return self.raw_path.decode("utf-8", "surrogateescape")

    @cached_property
    def query(self) -> dict[str, str]:
        """The query; the first of repeated parameters counts, as in Go."""
        pairs = parse_qsl(
            self.environ.get("QUERY_STRING", ""), keep_blank_values=True, errors="surrogateescape"
        )
        return dict(reversed(pairs))

    @property
    def marked(self) -> bool:
        """Whether a proxy has redirected this request to a target."""
        return "pid" in self.query and "utm" in self.query

    @property
    def base_url(self) -> str:
        """The URL of this server as the client sees it."""
        host = self.environ.get("HTTP_HOST", "")
        if not _HOST.fullmatch(host):
            host = f"{self.environ['SERVER_NAME']}:{self.environ['SERVER_PORT']}"
        elif host.rpartition(":")[2].endswith("]") or ":" not in host:
            host = f"{host}:{self.environ['SERVER_PORT']}"
        return f"http://{host}"

    def header(self, name: str) -> str:
        """Return a header as text; empty when it is absent."""
        value: str = self.environ.get("HTTP_" + name.upper().replace("-", "_"), "")
        return value

    @property
    def remote(self) -> str:
        """`address:port` of the client."""
        return f"{self.environ.get('REMOTE_ADDR', '')}:{self.environ.get('REMOTE_PORT', '0')}"

    @property
    def length(self) -> int:
        """The announced length of the body; 0 without an announcement."""
        return int(self.environ.get("CONTENT_LENGTH") or 0)

    def set_timeout(self, seconds: float) -> None:
        """Limit how long any further transfer on the client's connection may stall."""
        if (sock := self.environ.get("gunicorn.socket")) is not None:
            sock.settimeout(seconds)

    def pieces(self) -> Iterator[bytes]:
        """Yield the body piece by piece.

        Raises:
            ShortBody: the client stopped before the announced end.
        """
        stream, expected = self.environ["wsgi.input"], self.environ.get("CONTENT_LENGTH")
        if not expected and "HTTP_TRANSFER_ENCODING" not in self.environ:
            return
        self.set_timeout(SILENT_SECONDS)
        self._ask_for_body()
        got = 0
        while True:
            try:
                piece: bytes = stream.read(PIECE)
            except (OSError, ParseException) as error:
                raise ShortBody(str(error)) from error
            if not piece:
                break
            got += len(piece)
            yield piece
        if expected and got != int(expected):
            raise ShortBody(f"{got} of {expected} bytes")

    def _ask_for_body(self) -> None:
        """Tell a client that waits for it to send the body: not one that is redirected."""
        sock = self.environ.get("gunicorn.socket")
        if sock is not None and self.environ.pop("HTTP_EXPECT", "").lower() == "100-continue":
            with suppress(OSError):  # reading will say so
                sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    def body(self, limit: int = 64 << 20) -> bytes:
        """Return the whole body, which has at most `limit` bytes."""
        data = bytearray()
        try:
            for piece in self.pieces():
                data += piece
                if len(data) > limit:
                    raise Failure(400, "request body is too large")
        except ShortBody as short:
            short.received = bytes(data)
            raise
        return bytes(data)

    def drain(self) -> None:
        """Read the body to its end and discard it."""
        for _ in self.pieces():
            pass

    def action(self) -> dict[str, Any]:
        """Return the action message in the body.

        Raises:
            Failure: 400 when it is not a JSON object, or its action is no text.
        """
        text = self.body()
        try:
            found = json.loads(text.decode(errors="surrogateescape"))  # names may be any bytes
        except (ValueError, RecursionError) as error:
            what = str(error) if text else "EOF"
            message = f"failed to unmarshal [*apc.ActMsg] ({self.method}), err: {what}"
            raise Failure(400, f"{{role}}[{{node}}]: {message}") from error
        if not isinstance(found, dict) or not isinstance(found.get("action", ""), str):
            raise Failure(400, f"failed to unmarshal [*apc.ActMsg] ({self.method})")
        return found


def send(reply: Reply, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """Pass a reply to the WSGI server."""
    phrase = HTTPStatus(reply.status).phrase
    headers = [(name, _header_text(value)) for name, value in reply.headers]
    if reply.file is None and reply.stream is None and environ["REQUEST_METHOD"] != "HEAD":
        headers.append(("Content-Length", str(len(reply.body))))
    write = start_response(f"{reply.status} {phrase}", headers)
    if _RAW.search(dict(reply.headers).get("Location", "")):
        _unescape_location(write)
    if environ["REQUEST_METHOD"] == "HEAD":
        return []
    if reply.file is not None:
        wrapper: Callable[[HeldFile, int], Iterable[bytes]] = environ["wsgi.file_wrapper"]
        return wrapper(reply.file, PIECE)
    return reply.stream if reply.stream is not None else [reply.body]


def _unescape_location(write: object) -> None:
    """Send control characters in `Location` raw, as AIStore does; gunicorn takes none from an application."""
    found = getattr(getattr(write, "__self__", None), "headers", [])
    for at, (name, value) in enumerate(found):
        if name == "Location":
            found[at] = name, _ESCAPED.sub(lambda code: chr(int(code[1], 16)), value)


def _header_text(value: str) -> str:
    if value.isascii() and value.isprintable():
        return value
    raw = value.encode("utf-8", "surrogateescape").decode("latin-1")
    return _CONTROL.sub(lambda found: f"%{ord(found[0]):02X}", raw)


def json_reply(value: object, kind: str = "application/json") -> Reply:
    """Return a reply with a JSON document, which AIStore sometimes sends as text."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return Reply(headers=[("Content-Type", f"{kind}; charset=utf-8")], body=body)


def text_reply(text: str, status: int = 200) -> Reply:
    """Return a reply in plain text, as Go's `http.Error` and the job ids are sent."""
    return Reply(status, [("Content-Type", "text/plain; charset=utf-8")], text.encode())


def error_reply(failure: Failure, request: Request, node_id: str) -> Reply:
    """Return AIStore's error document; the reply to a HEAD carries it in a header."""
    role = failure.node or ("t" if request.marked else "p")
    document = {
        **({"tcode": failure.tcode} if failure.tcode else {}),
        "message": _as_go(failure.message.replace("{node}", node_id).replace("{role}", role)),
        "method": failure.method or request.method,
        "url_path": _as_go(failure.path or request.path),
        "remote_addr": request.remote,
        "caller": "",
        "node": f"{role}[{node_id}]",
        "status": failure.status,
    }
    headers = [
        *failure.headers,
        ("Content-Type", "application/json"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    text = json.dumps(document, separators=(",", ":"))
    if request.method == "HEAD":
        return Reply(failure.status, [*headers, ("Hdr-Error", text)])
    return Reply(failure.status, headers, text.encode() + b"\n")


def _as_go(text: str) -> str:
    """Replace bytes that are not UTF-8, as Go does: JSON must not contain surrogates."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def base36(number: int) -> str:
    """Return a non-negative number in base 36."""
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
        if not number:
            return digits


class HeldFile:
    """A part of an open file that is being sent."""

    def __init__(self, fd: int, offset: int, length: int, sock: socket.socket | None) -> None:
        self._held = ExitStack()
        self._fd = fd
        self._end = offset + length
        self._sock = sock
        os.lseek(fd, offset, os.SEEK_SET)

    def hold(self, resources: ExitStack) -> None:
        """Take over what has to stay open and locked until the reply is sent."""
        self._held = resources.pop_all()
        self._held.callback(self._hang_up_if_cut)

    def fileno(self) -> int:
        """Return the descriptor; its position is the first byte to send."""
        return self._fd

    def read(self, size: int = -1, /) -> bytes:
        """Read at most `size` bytes, never past the end of the part."""
        left = self._end - os.lseek(self._fd, 0, os.SEEK_CUR)
        return os.read(self._fd, left if size < 0 else min(size, left)) if left > 0 else b""

    def seek(self, offset: int, /) -> None:
        """Set the position; `socket.sendfile` does so before falling back to `send`."""
        os.lseek(self._fd, offset, os.SEEK_SET)

    def close(self) -> None:
        """Close the file and release its lock; the WSGI server calls this however the reply ended."""
        self._held.close()

    def _hang_up_if_cut(self) -> None:
        """Drop the connection if the file was truncated: the client would wait for the rest."""
        if self._sock is not None and os.fstat(self._fd).st_size < self._end:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)


class Counters:
    """Counts by kind; the kinds are listed in `aisfs.server.app`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, kind: str, number: int = 1) -> None:
        """Count one more request, or so many bytes."""
        with self._lock:
            self._counts[kind] += number

    def snapshot(self) -> dict[str, int]:
        """Return all counts that are not zero."""
        with self._lock:
            return dict(self._counts)
