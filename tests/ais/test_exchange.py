"""Replies as servers may send them, in whatever pieces they arrive."""

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from aisfs.ais.exchange import receive_reply, request_head, send_request

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, its = socket.socketpair()
    ours.settimeout(10)
    with ours, its:
        yield ours, its


def reply_to(ends, sent: bytes, step: int, *, close: bool = False):
    ours, its = ends

    def send() -> None:
        for start in range(0, len(sent), step):
            its.sendall(sent[start : start + step])
        if close:
            its.close()

    sender = threading.Thread(target=send)
    sender.start()
    try:
        return receive_reply(ours)
    finally:
        sender.join()


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize(
    ("sent", "body", "kept"),
    [
        (OK + b"Content-Length: 5\r\nA: x\r\na:  y \r\n\r\nhello", b"hello", True),
        (OK + b"Content-Length: 0\r\nA: x, y\r\n\r\n", b"", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"a: x, y\r\nContent-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 204 No Content\r\nA: x, y\r\n\r\n", b"", True),
        (OK + b"A: x, y\r\nConnection: Close\r\nContent-Length: 1\r\n\r\n!", b"!", False),
        (b"HTTP/1.0 200 OK\r\nA: x, y\r\nContent-Length: 1\r\n\r\n!", b"!", False),
        (OK + b"A: x, y\r\nTransfer-Encoding: chunked\r\n\r\n3;x=1\r\nabc\r\n1\r\nd\r\n0\r\nT: 1\r\n\r\n",
         b"abcd", True),
        (OK + b"A: x, y\r\nContent-Length: 0\r\n\r\nHTTP/1.1 400 unasked", b"", False),
    ],
)  # fmt: skip
def test_a_reply(ends, sent: bytes, body: bytes, kept: bool, step: int):
    reply, fit = reply_to(ends, sent, step)
    assert (reply.body, reply.headers["a"]) == (body, "x, y")
    if step >= len(sent) or b"unasked" not in sent:  # else it has not come yet
        assert fit is kept


def test_a_body_without_length_ends_with_the_connection(ends):
    reply, kept = reply_to(ends, OK + b"\r\nall of it", 4, close=True)
    assert (reply.body, kept) == (b"all of it", False)


def test_of_a_long_body_the_beginning_is_enough(ends):
    long = b"x" * 200_000
    head = OK + f"Content-Length: {len(long) + 1}\r\n\r\n".encode()
    reply, kept = reply_to(ends, head + long[:65536], 65536)
    assert (len(reply.body), kept) == (65536, False)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", http.client.RemoteDisconnected),
        (OK, http.client.IncompleteRead),
        (OK + b"Content-Length: 3\r\n\r\nab", http.client.IncompleteRead),
        (b"SSH-2.0-OpenSSH\r\n\r\n", http.client.BadStatusLine),
        (OK + b"Content-Length: -3\r\n\r\nabc", http.client.BadStatusLine),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", http.client.HTTPException),
        (OK + b"no header\r\n\r\n", http.client.BadStatusLine),
    ],
)
def test_what_is_no_reply(ends, sent: bytes, error: type[Exception]):
    with pytest.raises(error):
        reply_to(ends, sent, 1000, close=True)


def test_head_and_small_body_go_out_together(ends):
    ours, its = ends
    head = request_head("PUT", "/v1/objects/b/ü?x=%20", "h:80", {"Content-Length": "4"})
    assert send_request(ours, head, [memoryview(b"body")])
    assert its.recv(1000) == (
        b"PUT /v1/objects/b/%C3%BC?x=%20 HTTP/1.1\r\nHost: h:80\r\nContent-Length: 4\r\n\r\nbody"
    )


def test_who_refuses_the_rest_of_a_body_is_heard(ends):
    ours, its = ends
    its.sendall(b"HTTP/1.1 507 Full\r\nContent-Length: 0\r\n\r\n")
    its.shutdown(socket.SHUT_RD)
    pieces = [memoryview(b"x" * 100_000)] * 100
    assert not send_request(ours, b"PUT / HTTP/1.1\r\n\r\n", pieces)
    assert receive_reply(ours)[0].status == 507


def test_a_header_cannot_become_two():
    with pytest.raises(ValueError, match="line break"):
        request_head("PUT", "/", "h", {"A": "x\r\nB: y"})
