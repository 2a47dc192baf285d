"""One request and its reply over a connection that is kept, or is not."""

import http.client
import random
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection

import pytest

from aisfs.http.exchange import BoundedReply, Exchange, _Incoming

OK = b"HTTP/1.1 200 OK\r\n"


class Ends:
    """A connection, and the socket of its server."""

    def __init__(self, connection: HTTPConnection, server: socket.socket) -> None:
        self.connection = connection
        self.server = server

    def exchange(self, reply: bytes, *, close: bool = False, **request):
        def serve() -> None:
            self.server.sendall(reply)
            if close:
                self.server.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            asked = {"method": "PUT", "target": "/x", "headers": {"Content-Length": "0"}} | request
            return Exchange(self.connection, **asked, timeout=10).take_all(65536, 10)
        finally:
            thread.join()

    @property
    def kept(self) -> bool:
        return self.connection.sock is not None


@pytest.fixture
def ends() -> Iterator[Ends]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = HTTPConnection(*listener.getsockname())
        connection.response_class = BoundedReply
        connection.connect()
        server, _ = listener.accept()
        with server:
            yield Ends(connection, server)
        connection.close()


@pytest.mark.parametrize(
    ("sent", "body", "kept"),
    [
        (OK + b"Content-Length: 5\r\nA: x\r\na:  y\r\n\r\nhello", b"hello", True),
        (OK + b"Content-Length: 0\r\nA: x, y\r\n\r\n", b"", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"a: x, y\r\nContent-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 204 No Content\r\nA: x, y\r\n\r\n", b"", True),
        (OK + b"A: x, y\r\nConnection: Close\r\nContent-Length: 1\r\n\r\n!", b"!", False),
        (b"HTTP/1.0 200 OK\r\nA: x, y\r\nContent-Length: 1\r\n\r\n!", b"!", False),
    ],
)  # fmt: skip
def test_a_reply(ends: Ends, sent: bytes, body: bytes, kept: bool):
    reply = ends.exchange(sent)
    assert (reply.body, reply.headers["a"]) == (body, "x, y")
    assert ends.kept is kept


def test_a_kept_connection_takes_the_next_request(ends: Ends):
    for number in range(3):
        reply = ends.exchange(OK + b"Content-Length: 1\r\n\r\n%d" % number)
        assert reply.body == b"%d" % number
    assert ends.kept


def test_of_a_long_body_the_beginning_is_enough(ends: Ends):
    long = b"x" * 200_000
    reply = ends.exchange(OK + f"Content-Length: {len(long)}\r\n\r\n".encode() + long)
    assert (len(reply.body), ends.kept) == (65536, False)


@pytest.mark.parametrize(
    "sent", [b"", OK + b"Content-Length: 3\r\n\r\nab", b"SSH-2.0-OpenSSH\r\n\r\n"]
)
def test_what_is_no_reply(ends: Ends, sent: bytes):
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        ends.exchange(sent, close=True)


def test_head_and_body_as_they_were_given(ends: Ends):
    ends.exchange(
        OK + b"Content-Length: 0\r\n\r\n",
        target="/v1/objects/b/ü?x=%20",
        headers={"Content-Length": "4"},
        pieces=[memoryview(b"body")],
    )
    head, _, body = ends.server.recv(1000).partition(b"\r\n\r\n")
    assert body == b"body"
    assert head.startswith(b"PUT /v1/objects/b/%C3%BC?x=%20 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert head.endswith(b"\r\nContent-Length: 4")


def test_who_refuses_the_rest_of_a_body_is_heard(ends: Ends):
    ends.server.shutdown(socket.SHUT_RD)
    reply = ends.exchange(
        b"HTTP/1.1 507 Full\r\nContent-Length: 0\r\n\r\n",
        close=True,
        headers={"Content-Length": str(10_000_000)},
        pieces=(memoryview(b"x" * 100_000) for _ in range(100)),
    )
    assert (reply.status, ends.kept) == (507, False)


def test_a_header_cannot_become_two(ends: Ends):
    with pytest.raises(ValueError, match="header"):
        Exchange(ends.connection, "PUT", "/", {"A": "x\r\nB: y"}, timeout=10)


@contextmanager
def sending(pieces: Iterable[bytes], to: socket.socket) -> Iterator[None]:
    """Send the pieces, a moment apart, while the block runs."""

    def serve() -> None:
        for piece in pieces:
            to.sendall(piece)
            time.sleep(0.002)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_long_body_is_received_by_few_calls_and_exactly(ends: Ends, monkeypatch):
    """Each call waits for the interpreter's lock, twice, where others use it."""
    calls = []
    receive = _Incoming.readinto
    monkeypatch.setattr(
        _Incoming, "readinto", lambda self, view: calls.append(len(view)) or receive(self, view)
    )
    body = random.Random(1).randbytes(4 << 20)
    pieces = [body[at : at + (64 << 10)] for at in range(0, len(body), 64 << 10)]
    head = OK + b"Content-Length: %d\r\n\r\n" % len(body)
    for after in (b"first", b"second"):
        with sending([head, *pieces], ends.server):
            exchange = Exchange(ends.connection, "GET", "/x", {}, timeout=10)
            room = memoryview(bytearray(len(body) + 10))
            assert exchange.read_into(room) == len(body)
            exchange.end()
        assert room[: len(body)] == body
        assert ends.kept, "nothing of the next reply was read"
        reply = ends.exchange(OK + b"Content-Length: %d\r\n\r\n%s" % (len(after), after))
        assert reply.body == after
    assert len(calls) < len(pieces) / 2


@pytest.mark.parametrize("came", [0, 100, 1 << 20])
def test_a_server_that_falls_silent_in_a_long_body_is_given_up(ends: Ends, came: int):
    with sending([OK + b"Content-Length: %d\r\n\r\n" % (4 << 20), bytes(came)], ends.server):
        exchange = Exchange(ends.connection, "GET", "/x", {}, timeout=0.3)
        with pytest.raises(TimeoutError):
            exchange.read_into(memoryview(bytearray(4 << 20)))
        exchange.end()
    assert not ends.kept


def test_a_long_body_that_breaks_off_is_short(ends: Ends):
    with sending([OK + b"Content-Length: %d\r\n\r\n" % (4 << 20), bytes(1 << 20)], ends.server):
        exchange = Exchange(ends.connection, "GET", "/x", {}, timeout=10)
        threading.Timer(0.1, ends.server.shutdown, [socket.SHUT_WR]).start()
        assert exchange.read_into(memoryview(bytearray(4 << 20))) == 1 << 20
        exchange.end()
