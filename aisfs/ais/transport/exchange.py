"""One request and its reply over a connection, with no more work than http.client makes of it.

What requests and urllib3 add to each request costs more than sending and storing a small file.
Connecting, TLS and what is said about both stays theirs (`aisfs.ais.transport.client`).

Must not know: pools, redirects, tokens, what requests mean.
"""

import socket
import string
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse
from typing import cast
from urllib.parse import quote

from aisfs.ais.protocol.requests import Reply
from aisfs.ais.transport.replies import BoundedReply

SMALL = 64 << 10
"""Bytes of a body that are worth a copy in memory, so that they are read once."""
_MOST_BODY = 64 << 10
"""Bytes of a reply's body that are read unless more are wanted."""
_IN_TARGET = "".join(set(string.punctuation) - set('"<>\\^`{|}'))


def exchange(
    connection: HTTPConnection,
    method: str,
    target: str,
    headers: Mapping[str, str],
    pieces: Iterable[memoryview] = (),
    *,
    timeout: float | None,
    most_body: int = _MOST_BODY,
) -> Reply:
    """Send a request over a connected connection and receive its reply, without all of a long body.

    A server that refuses the rest of a body and closes has answered: its reply is read all the same.
    The connection is closed when it is not fit for another request.

    Args:
        connection: What to use; its replies are `BoundedReply`.
        method: Of the request.
        target: Path and query.
        headers: All but Host.
        pieces: The body, as long as its header says.
        timeout: Seconds until the reply has a head, and then until its body is whole; None waits
            for ever.
        most_body: Bytes of the reply's body that are read; for more the connection is given up.

    Raises:
        HTTPException, OSError: there is no reply, or it is none.
    """
    sock = connection.sock
    # Head and small body in one packet; the server would be woken up for each of them.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    connection.putrequest(method, quote(target, safe=_IN_TARGET), skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    whole = False
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.endheaders()
        for piece in pieces:
            connection.send(piece)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        whole = True
    sock.settimeout(timeout)
    # urllib3's would be wrapped once more.
    response = cast("BoundedReply", HTTPConnection.getresponse(connection))
    try:
        body = response.take(most_body, timeout)
        whole = whole and response.isclosed()  # which it is when it was read to its end
    finally:
        response.close()
    if not whole:
        connection.close()
    return Reply(response.status, _joined(response), body)


def _joined(response: HTTPResponse) -> dict[str, str]:
    """Give the headers by names in lower case; what comes twice is one list."""
    headers: dict[str, str] = {}
    for name, value in response.getheaders():
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
