"""Replies that do not end, break off in the wrong place, or are none: from a hostile server."""

import contextlib
import itertools
import time

import pytest
import trio

from aisfs.errors import AisfsError, ConfigError, DeadlineExceeded, ProtocolError, Unavailable
from aisfs.model import Bucket
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from aisfs.stores.pipeline import CallPipeline
from aisfs.stores.port import BytesContent, Upload
from tests.stores.ais.scripted_server import QUESTIONS, MiniCluster, reply, scripted_server
from tests.support.for_each import for_each

B = Bucket("b")
OK = b"HTTP/1.1 200 OK\r\n"
LISTING = b"Content-Type: application/json\r\n"
HUNG = 30
"""Seconds after which a call counts as hung."""


@contextlib.asynccontextmanager
async def connected(cluster, **options):
    with scripted_server(cluster) as server:
        client = AISClient(ClusterSettings(endpoint=server.endpoint, **options))
        try:
            with trio.fail_after(HUNG):
                yield client, server
        finally:
            await client.aclose()


def answering(answer, times=-1, method="GET"):
    """A cluster that answers so to requests of this method, so many times."""
    cluster = MiniCluster({"k": b"12345"})
    left = [times]

    def before(seen, connection):
        facts = seen.method == "HEAD" and "/buckets/" in seen.path
        if seen.method != method or facts or left[0] == 0 or seen.path in QUESTIONS:
            return None
        left[0] -= 1
        for piece in [answer] if isinstance(answer, bytes) else answer():
            connection.sendall(piece)
        return False

    cluster.before = before
    return cluster


def endless(first, *pieces):
    return lambda: itertools.chain([first], itertools.cycle(pieces))


def trickling(first, piece):
    def pieces():
        yield first
        while True:
            time.sleep(0.05)
            yield piece

    return pieces


@for_each(
    "head",
    [
        OK + b"Ais-Version: 1\r\nContent-Le",
        OK + b"Ais-Version: 1\r\n",
        OK,
        b"HTTP/1.1 200 O",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
async def test_a_head_that_breaks_off_is_no_reply(head):
    async with connected(answering(head, method="HEAD")) as (client, _):
        with pytest.raises(Unavailable):
            await client.head(B, "k")
    async with connected(answering(head, 1, "HEAD")) as (client, _):
        assert (await CallPipeline(client, deadline=20).head(B, "k")).size == 5
    async with connected(answering(head + LISTING if head == OK else head, 1)) as (client, _):
        page = await CallPipeline(client, deadline=20).list_page(B, "")
        assert [info.key for info in page.objects] == ["k"]


@for_each(
    "head",
    [
        OK + b"Ais-Version: 1\r\nno header at all\r\nContent-Length: 5\r\n\r\n",
        OK + b"Ais-Version: 1\r\n continued\r\nContent-Length: 5\r\n\r\n",
        OK + b"Ais-Version: 1\rContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
        OK + b"Ais-Version: \x1b[31m\r\nContent-Length: 5\r\n\r\n",
        OK + b"Ais-Version: 1\0\r\nContent-Length: 5\r\n\r\n",
        OK + b"Location: /v1/\0\r\nContent-Length: 5\r\n\r\n",
        OK + b"Location: /v1/\rContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 \x1b[31mOK\r\nContent-Length: 5\r\n\r\n",
        b"\x1b]0;title\x07\r\n\r\n",
        OK + b"A: b\r\n" * 101 + b"\r\n",
    ],
)
async def test_a_head_of_something_else_is_no_reply(head):
    for method in ("HEAD", "GET"):
        async with connected(answering(head, method=method)) as (client, _):
            with pytest.raises(Unavailable) as caught:
                await (client.head(B, "k") if method == "HEAD" else client.list_page(B, ""))
            assert str(caught.value).isprintable()


@for_each("code", [*range(1, 10), 11, 12, *range(14, 32), 127, 0x85])
async def test_a_control_character_in_a_location_is_one_of_the_name(code):
    """As AIStore writes it; of the place only host and query count."""
    key = f"a{chr(code)}b"
    cluster = MiniCluster({key: b"12345"})

    def redirect(seen, connection):
        if "/v1/objects/" not in seen.path or "pid" in seen.query:
            return None
        name, host = key.encode("latin-1"), seen.headers["host"].encode()
        place = b"http://" + host + b"/v1/objects/b/" + name + b"?provider=ais&pid=p1&utm=x"
        head = b"HTTP/1.1 307 Temporary Redirect\r\nContent-Length: 0\r\nlocation: "
        connection.sendall(head + place + b"\r\n\r\n")
        return True

    cluster.before = redirect
    async with connected(cluster) as (client, _):
        assert (await client.head(B, key)).size == 5


@for_each(
    "answer",
    [
        endless(OK, b"A: " + b"x" * 10_000 + b"\r\n"),
        endless(OK + b"A: ", b"x" * 10_000),
        endless(b"HTTP/1.1 200 ", b"x" * 10_000),
        endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        trickling(OK + b"A: ", b"x"),
        trickling(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
@for_each("method", ["GET", "PUT"])
async def test_a_head_without_end_ends(answer, method):
    async with connected(answering(answer, method=method), read_timeout=0.5) as (client, _):
        content = BytesContent(b"12345")
        with pytest.raises(Unavailable):
            await (
                client.list_page(B, "")
                if method == "GET"
                else client.upload(Upload(B, "k", content))
            )


@for_each(
    "answer",
    [
        endless(OK + LISTING + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65538),
        endless(OK + LISTING + b"Content-Length: 99999999999999\r\n\r\n", b" " * 65536),
        endless(OK + LISTING + b"Connection: close\r\n\r\n", b" " * 65536),
        endless(OK + LISTING + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n", b" " * 65536),
    ],
)
async def test_a_listing_without_end_ends(answer):
    async with connected(answering(answer)) as (client, _):
        with pytest.raises(AisfsError):
            await client.list_page(B, "")


async def test_a_list_of_buckets_without_end_ends():
    head = OK + LISTING + b"Connection: close\r\n\r\n["
    async with connected(answering(endless(head, b" " * 65536))) as (client, _):
        with pytest.raises(ProtocolError, match="more than"):
            await client.list_buckets()


@for_each("retried", [False, True])
async def test_a_body_that_trickles_ends_with_the_deadline(retried):
    head = OK + LISTING + b"Connection: close\r\n\r\n"
    async with connected(answering(trickling(head, b" ")), io_timeout=1) as (client, _):
        store = CallPipeline(client, deadline=1) if retried else client
        with pytest.raises(DeadlineExceeded if retried else Unavailable):
            await store.list_page(B, "")


@for_each("status", [b"404 Not Found", b"500 Oops", b"307 Go"])
async def test_an_error_without_end_ends(status):
    head = b"HTTP/1.1 " + status + b"\r\nConnection: close\r\n\r\n"
    for answer in (endless(head, b" " * 65536), trickling(head, b" ")):
        async with connected(answering(answer), read_timeout=0.5) as (client, _):
            with pytest.raises(AisfsError):
                await client.list_page(B, "")


async def test_tls_that_was_not_asked_for_is_told():
    """Go answers so, and others with an alert."""
    go = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
    for answer in (go, b"\x15\x03\x03\x00\x02\x02\x28"):
        async with connected(answering(answer, method="HEAD")) as (client, _):
            with pytest.raises(ConfigError, match="speaks TLS: use https://"):
                await client.head(B, "k")
        async with connected(answering(answer)) as (client, _):
            with pytest.raises(ConfigError, match="speaks TLS: use https://"):
                await client.list_page(B, "")


async def test_a_reply_to_the_last_byte_is_whole():
    body = b'{"entries": null}'
    whole = reply(200, {"Content-Type": "application/json"}, body)
    chunked = OK + LISTING + b"Transfer-Encoding: chunked\r\n\r\n11\r\n" + body + b"\r\n0\r\n\r\n"
    for answer in (whole, chunked, b"HTTP/1.1 100 Continue\r\n\r\n" + whole):
        async with connected(answering(answer)) as (client, _):
            assert (await client.list_page(B, "")).objects == []
