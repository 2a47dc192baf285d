import contextlib
import json
import logging
import socket
import threading
import time
from pathlib import Path

import pytest
import trio

from aisfs.errors import (
    AccessDenied,
    ConfigError,
    DeadlineExceeded,
    NotFound,
    ProtocolError,
    Stale,
    Unavailable,
)
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from aisfs.stores.ais.transport import may_have_token
from aisfs.stores.pipeline import CallPipeline
from aisfs.stores.port import BytesContent, Upload
from tests.stores.ais.scripted_server import (
    PROPS,
    MiniCluster,
    connected,
    error,
    reply,
    scripted_server,
)
from tests.support.for_each import for_each

B = Bucket("b")
DATA = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture(autouse=True)
def no_token_around(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AIS_AUTHN_TOKEN", "AIS_AUTHN_TOKEN_FILE", "AIS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


def request_threads():
    return [t for t in threading.enumerate() if t.name == "aisfs request"]


async def read(client, info, start, stop):
    buffer = bytearray(stop - start)
    await client.read_range(B, info, start, memoryview(buffer))
    return bytes(buffer)


async def test_reads_and_keeps_its_connections():
    cluster = MiniCluster({"k": DATA})
    async with connected(cluster) as (client, server):
        info = await client.head(B, "k")
        assert (info.size, info.version) == (len(DATA), "1")
        assert info.mtime_ns == 1_700_000_000_000_000_000
        for start, stop in [(0, 1), (100, 70_000), (len(DATA) - 1, len(DATA)), (0, len(DATA))]:
            assert await read(client, info, start, stop) == DATA[start:stop]
        pieces = []
        await client.stream(B, info, lambda piece: pieces.append(bytes(piece)))
        assert b"".join(pieces) == DATA
        # Proxy and target are one host here, so one connection did for everything.
        assert repr(client).endswith("busy=0 idle=1>>")
        assert [seen.method for seen in server.seen].count("HEAD") == 3  # props once, object twice
        assert not any("range" in s.headers and s.headers["range"] == "bytes=" for s in server.seen)


@for_each(
    "key",
    ["a b", "100%", "%41", "a+b", "q?x=1&y#f", "ü/日本", "~x", "[a]", "x//y", "a\nb", "'\"<>"],
)
async def test_what_is_sent_is_what_was_built(key):
    cluster = MiniCluster({key: b"x" * 10})
    async with connected(cluster) as (client, server):
        info = await client.head(B, key)
        assert await read(client, info, 0, 10) == b"x" * 10
        paths = {seen.path for seen in server.seen if "/objects/" in seen.path}
        assert len(paths) == 1
        assert paths.pop().isascii()


@for_each("key", ["a+b", "a\nb", "a\rb\n", "a%41b", "a?b=c", "a#b?c"])
async def test_a_redirect_does_not_change_the_name(key):
    """AIStore writes the path of `Location` anew: that is another object, or none."""
    written = key.replace("\n", " ").replace("\r", " ")
    cluster = MiniCluster({written.replace("+", " "): b"wrong!", key: b"right"})

    def before(seen, connection):
        if "pid" not in seen.query and "/objects/" in seen.path:
            query = seen.target.rpartition("?")[2]
            location = f"http://{seen.headers['host']}/v1/objects/b/{written}?{query}&pid=p"
            connection.sendall(reply(301, {"Location": location}))
            return True
        return None

    cluster.before = before
    async with connected(cluster) as (client, server):
        info = await client.head(B, key)
        assert info.size == 5
        assert await read(client, info, 0, 5) == b"right"
        marked = [seen.query for seen in server.seen if "pid" in seen.query]
        assert all(query["provider"] == ["ais"] for query in marked)


async def test_a_redirect_to_a_login_page_is_no_answer():
    """Asked there for the object, it would say that there is none."""

    def handler(seen, connection):
        connection.sendall(reply(302, {"Location": "/login?next=/v1/objects/b/k"}))

    async with connected(handler) as (client, server):
        with pytest.raises(ProtocolError, match="redirected to '/login"):
            await client.head(Bucket("b"), "k")
        assert len(server.seen) == 1


async def test_stale():
    cluster = MiniCluster({"k": DATA})
    async with connected(cluster) as (client, _):
        info = await client.head(B, "k")
        cluster.version = "2"
        with pytest.raises(Stale):
            await read(client, info, 0, 5)
        with pytest.raises(Stale):
            await client.stream(B, info, lambda piece: None)
        assert (await client.head(B, "k")).mtime_ns == info.mtime_ns + 1_000_000_000


async def test_unpermitted_bucket_properties_cost_only_the_times():
    cluster = MiniCluster({"k": b"12345"})

    def before(seen, connection):
        if seen.method == "HEAD" and "/buckets/" in seen.path:
            connection.sendall(reply(403, error(403, "", "no BckHEAD")[0]))
            return True
        return None

    cluster.before = before
    async with connected(cluster) as (client, _):
        assert (await client.head(B, "k")).mtime_ns == 0
        assert (await client.list_page(B, "")).objects == [ObjectInfo("k", 5)]


async def test_head_of_an_old_server():
    cluster = MiniCluster({"k": b""})

    def before(seen, connection):
        if "props" in seen.query:
            connection.sendall(reply(400, error(400, "", "invalid object prop")[0]))
            return True
        if seen.method == "HEAD" and "pid" in seen.query:
            empty = b"Ais-Checksum-Type: xxhash2\r\nAis-Checksum-Value: ef46db3751d8e999\r\n"
            connection.sendall(b"HTTP/1.1 200 OK\r\nAis-Version: 3\r\n" + empty + b"\r\n")
            return True
        return None

    cluster.before = before
    async with connected(cluster) as (client, server):
        for _ in range(2):
            info = await client.head(B, "k")
            assert (info.size, info.version) == (0, "3")
        assert len([seen for seen in server.seen if "props" in seen.query]) == 1


@for_each("said", [b"", b"Content-Length: 0\r\n"])
@for_each("content", [b"", b"12345"])
async def test_the_size_of_a_head_without_length_is_asked_for(said, content):
    """Some gateways leave it out; that is no empty object."""
    cluster = MiniCluster({"k": content})

    def before(seen, connection):
        if "pid" not in seen.query or "/objects/" not in seen.path:
            return None
        if seen.method == "HEAD":
            marks = b"Ais-Version: 1\r\nAis-Checksum-Type: xxhash2\r\nAis-Checksum-Value: ff\r\n"
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + marks + said + b"\r\n")
            return True
        if not content:
            connection.sendall(reply(416, {"Content-Range": "bytes */0"}))
            return True
        return None

    cluster.before = before
    async with connected(cluster) as (client, server):
        assert (await client.head(B, "k")).size == len(content)
        assert server.seen[-1].headers["range"] == "bytes=0-0"


@for_each("content", [b"", b"new content"])
async def test_the_latest_version_of_what_is_elsewhere(content):
    """AIStore goes on serving its copy, until a GET asks for the latest version."""
    cluster = MiniCluster({"k": b"old"})

    def before(seen, connection):
        if seen.query.get("latest-ver") == ["true"] and "pid" in seen.query:
            assert seen.method == "GET"
            cluster.objects["k"], cluster.version = content, "2"
            if not content:
                connection.sendall(reply(416, {"Content-Range": "bytes */0"}))
                return True
        return None

    cluster.before = before
    remote = Bucket("b", Provider.AWS)
    async with connected(cluster) as (client, server):
        assert (await client.head(remote, "k")).size == 3
        assert (await client.head(remote, "k", latest=True)).size == len(content)
        asked = len(server.seen)
        await client.head(B, "k", latest=True)
        assert not any("latest-ver" in seen.target for seen in server.seen[asked:])
        del cluster.objects["k"]
        cluster.before = None
        with pytest.raises(NotFound):
            await client.head(remote, "k", latest=True)


# Tokens


async def test_renewed_token_after_401(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    token_file = tmp_path / "token"
    token_file.write_text('{"token": "old-s3cret"}')
    cluster = MiniCluster({"k": b"12345"})

    def before(seen, connection):
        if seen.headers.get("authorization") != "Bearer new-s3cret":
            headers, body = error(401, "", "token expired")
            connection.sendall(reply(401, headers, b"" if seen.method == "HEAD" else body))
            return True
        return None

    cluster.before = before
    async with connected(cluster, authn_token_file=token_file) as (client, server):
        with pytest.raises(AccessDenied):
            await client.list_page(B, "")
        assert len(server.seen) == 1  # neither repeated nor gone on with
        token_file.write_text('{"token": "new-s3cret"}')
        assert len((await client.list_page(B, "")).objects) == 1
        info = await client.head(B, "k")
        assert await read(client, info, 0, 5) == b"12345"
        # The target of the redirect got it too.
        assert all("authorization" in seen.headers for seen in server.seen)
    assert "s3cret" not in caplog.text + repr(client)


async def test_token_stays_with_the_cluster():
    """The proxy's own redirect counts as the cluster; where that host sends us further does not."""
    elsewhere = MiniCluster({"k": b"12345"})
    with scripted_server(elsewhere) as third, scripted_server(lambda s, c: None) as second:

        def hop(seen, connection):
            location = f"{third.endpoint}{seen.target}&pid=p"
            connection.sendall(reply(307, {"Location": location}))

        second.handler = hop

        def before(seen, connection):
            if "/objects/" in seen.path:
                connection.sendall(reply(307, {"Location": second.endpoint + seen.target}))
                return True
            return None

        first = MiniCluster({})
        first.before = before
        async with connected(first, token="t") as (client, _):
            assert (await client.head(B, "k")).size == 5
        assert second.seen[0].headers["authorization"] == "Bearer t"
        assert "authorization" not in third.seen[0].headers


async def test_token_of_an_upload_stays_with_the_cluster():
    """The one redirect decides that leads to the host, not the first one and the last."""

    def redirects_to(endpoint, marks=""):
        def handler(seen, connection):
            if seen.path == "/v1/buckets/b":
                connection.sendall(reply(200, {"Ais-Bucket-Props": PROPS}))
            else:
                location = {"Location": endpoint() + seen.target + marks}
                connection.sendall(reply(307, location))

        return handler

    def refuses(seen, connection):
        connection.sendall(reply(403))

    with (
        scripted_server(refuses) as third,
        scripted_server(redirects_to(lambda: third.endpoint, "&pid=p&utm=x")) as second,
    ):
        first = redirects_to(lambda: second.endpoint)
        async with connected(first, token="t") as (client, _):
            with pytest.raises(AccessDenied):
                await client.upload(Upload(B, "k", BytesContent(b"12345")))
        assert second.seen[0].headers["authorization"] == "Bearer t"
        assert third.seen[0].body == b"12345"
        assert "authorization" not in third.seen[0].headers


def test_token_never_leaves_https():
    proxy, target = "https://p:1/v1", "http://t:2/v1"
    assert not may_have_token("https://p:1", proxy, target)
    assert may_have_token("https://p:1", proxy, "https://t:2/v1")
    assert may_have_token("http://p:1", "http://p:1/v1", "http://t:2/v1")


async def test_redirect_in_circles():
    def handler(seen, connection):
        connection.sendall(reply(307, {"Location": f"http://{seen.headers['host']}{seen.target}"}))

    async with connected(handler) as (client, server):
        with pytest.raises(ProtocolError, match="circles"):
            await client.list_buckets()
        assert len(server.seen) == 4


@for_each("marks", ["", "?pid=p&utm=1"])
@for_each(
    "place",
    [
        "file:///etc/passwd",
        "gopher://[bad",
        "//[bad",
        "http://[bad/x",
        "http://h:port/x",
        "http://h:99999/x",
        "http://",
        "http:///x",
        "http://a..b/x",
        "http://" + "a" * 70 + "/x",
    ],
)
async def test_redirect_to_nonsense(place, marks):
    """It is an error that somebody thought of, also where a target is named."""

    def handler(seen, connection):
        connection.sendall(reply(307, {"Location": place + marks}))

    async with connected(handler) as (client, _):
        with pytest.raises(ProtocolError):
            await client.list_buckets(Provider.AIS)
        with pytest.raises(ProtocolError):
            await read(client, ObjectInfo("k", 10, "1"), 0, 10)
        with pytest.raises(ProtocolError):
            await client.remove(B, "k")


# Faults


async def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = AISClient(ClusterSettings(endpoint=f"http://127.0.0.1:{port}"))
    with pytest.raises(Unavailable, match="refused"):
        await client.list_buckets()
    await client.aclose()


@for_each("closing", [{}, {"Connection": "close"}])
async def test_truncated_body(closing):
    cluster = MiniCluster({"k": DATA})
    cuts = [1, 2]

    def before(seen, connection):
        if seen.method == "GET" and "pid" in seen.query and cuts:
            cuts.pop()
            whole = cluster.answer(seen).replace(b"\r\n", b"\r\nX: y\r\n", 1)
            if closing:
                whole = whole.replace(b"X: y", b"Connection: close", 1)
            connection.sendall(whole[: len(whole) - 100])
            return False
        return None

    cluster.before = before
    async with connected(cluster) as (client, _):
        info = await client.head(B, "k")
        with pytest.raises(Unavailable) as caught:
            await read(client, info, 0, 300_000)
        assert caught.value.transient
        # A stream goes on where it was cut.
        pieces = []
        store = CallPipeline(client, deadline=10)
        await store.stream(B, info, lambda piece: pieces.append(bytes(piece)))
        assert b"".join(pieces) == DATA


async def test_stall_times_out():
    cluster = MiniCluster({"k": DATA})
    async with connected(cluster, read_timeout=0.2) as (client, server):
        info = await client.head(B, "k")
        cluster.before = lambda seen, connection: server.stall(connection)
        with pytest.raises(Unavailable, match="in time"):
            await read(client, info, 0, 10)
        store = CallPipeline(client, deadline=0.7)
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="in time"):
            await read(store, info, 0, 10)
        assert time.monotonic() - started < 3


@for_each("closing", [False, True])
async def test_cancelled_call_ends_at_once(closing):
    """In the middle of a body, on a connection that the server may have said it will close."""
    cluster = MiniCluster({"k": DATA})
    async with connected(cluster, read_timeout=0) as (client, server):
        info = await client.head(B, "k")

        def before(seen, connection):
            if "range" in seen.headers and "pid" in seen.query:
                whole = cluster.answer(seen)
                if closing:
                    whole = whole.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
                connection.sendall(whole[:2000])
                return server.stall(connection)
            return None

        cluster.before = before
        buffer = bytearray(100_000)
        started = time.monotonic()
        with trio.move_on_after(0.3) as scope:
            await client.read_range(B, info, 0, memoryview(buffer))
        assert scope.cancelled_caught
        assert time.monotonic() - started < 1.3
        assert request_threads() == []
        # The server's side is free again as well, and so is the client's.
        assert await trio.to_thread.run_sync(server.closed_by_client.wait, 2)
        cluster.before = None
        before_more = bytes(buffer)
        assert await read(client, info, 0, 10) == DATA[:10]
        assert buffer == before_more  # nobody writes to it any more


async def test_a_server_in_the_middle_of_a_body_is_free_after_a_cancellation():
    """AIStore holds the lock of an object until its body was taken or the connection is gone."""
    data = bytes(64 << 20)
    cluster = MiniCluster({"k": data})
    ended, reading, go_on = threading.Event(), threading.Event(), threading.Event()

    def before(seen, connection):
        if seen.method == "GET" and "pid" in seen.query:
            with contextlib.suppress(OSError):
                connection.sendall(cluster.answer(seen))
            ended.set()
            return False
        return None

    def sink(piece):
        reading.set()
        go_on.wait(30)

    cluster.before = before
    async with connected(cluster, read_timeout=0) as (client, _), trio.open_nursery() as nursery:
        info = await client.head(B, "k")
        nursery.start_soon(client.stream, B, info, sink)
        assert await trio.to_thread.run_sync(reading.wait, 30)
        await trio.sleep(0.3)  # in which the server fills the socket's buffers
        assert not ended.is_set()
        nursery.cancel_scope.cancel()
        threading.Timer(0.3, go_on.set).start()
    assert await trio.to_thread.run_sync(ended.wait, 30)


async def test_cancelled_while_connecting():
    # A full backlog: the third connection is never answered.
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(2):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = AISClient(ClusterSettings(endpoint=endpoint, connect_timeout=0, read_timeout=0))
        started = time.monotonic()
        with trio.move_on_after(0.3) as scope:
            await client.list_buckets()
        assert scope.cancelled_caught
        assert time.monotonic() - started < 1.3
        await client.aclose()


async def test_closing_ends_calls_in_progress():
    cluster = MiniCluster({"k": DATA})
    async with connected(cluster, read_timeout=0) as (client, server):
        info = await client.head(B, "k")
        cluster.before = lambda seen, connection: server.stall(connection)
        errors = []

        async def call():
            try:
                await read(client, info, 0, 10)
            except Unavailable as error:
                errors.append(error)

        with trio.fail_after(2):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(call)
                await trio.sleep(0.2)
                await client.aclose()
        assert [error.transient for error in errors] == [False] * 3
        with pytest.raises(Unavailable, match="closed"):
            await client.head(B, "k")


async def test_failing_sink_drops_the_connection():
    cluster = MiniCluster({"k": DATA * 8})
    async with connected(cluster) as (client, _):
        info = await client.head(B, "k")

        def sink(piece):
            raise OSError("no space on the cache's disk")

        with pytest.raises(OSError, match="no space"):
            await client.stream(B, info, sink)
        assert await read(client, info, 0, 10) == DATA[:10]


async def test_limit_of_connections():
    cluster = MiniCluster({"k": DATA})
    at_once = [0, 0]

    def before(seen, connection):
        if "range" not in seen.headers or "pid" not in seen.query:
            return
        at_once[0] += 1
        at_once[1] = max(at_once)
        time.sleep(0.02)
        at_once[0] -= 1
        return

    cluster.before = before
    async with connected(cluster, max_connections=3) as (client, _):
        info = await client.head(B, "k")
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(read, client, info, 0, 10)
        assert at_once[1] <= 3


# Settings


@for_each(
    "options, text",
    [
        ({}, "AIS_ENDPOINT"),
        ({"endpoint": "https://h", "client_ca": Path("/no/ca")}, "/no/ca"),
        ({"endpoint": "https://h", "client_cert": Path("/no/crt")}, "/no/crt"),
    ],
)
def test_unusable_settings(options, text):
    with pytest.raises(ConfigError, match=text):
        AISClient(ClusterSettings(**options))


def test_netrc_and_proxies_are_not_for_clusters(monkeypatch, tmp_path):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")

    async def main():
        cluster = MiniCluster({})
        cluster.before = lambda seen, connection: connection.sendall(reply(200, body=b"[]")) or True
        async with connected(cluster, token="t") as (client, server):
            assert await client.list_buckets() == []
            assert server.seen[0].headers["authorization"] == "Bearer t"

    trio.run(main)


@for_each("provider", list(Provider)[:2])
async def test_pages_that_may_lose_names_are_not_all_keys(provider):
    cluster, bucket = MiniCluster({}), Bucket("b", provider)

    def in_two_pages(seen, connection):
        if seen.path != "/v1/buckets/b" or seen.method != "GET":
            return None
        first = not json.loads(seen.body)["value"]["continuation_token"]
        page = {"entries": [{"name": "a" if first else "b"}], "continuation_token": "a" * first}
        headers = {"Content-Type": "application/json"}
        connection.sendall(reply(200, headers, json.dumps(page).encode()))
        return True

    cluster.before = in_two_pages
    async with connected(cluster) as (client, _):
        keys = await client.first_keys(bucket, "", 10)
        assert keys.found == ["a", "b"]
        assert keys.complete == (provider is not Provider.AIS)


async def test_a_success_before_all_was_sent_is_none():
    """As that of a gateway that answers by itself."""

    def answer_early(listener):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1)
                    connection.sendall(reply(200, {"Ais-Version": "1"}))
                    time.sleep(0.3)  # the client has filled all buffers, and waits

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        host, port = listener.getsockname()

        def away(seen, connection):
            if seen.path == "/v1/buckets/b":
                connection.sendall(reply(200, {"Ais-Bucket-Props": PROPS}))
            elif seen.path.startswith("/v1/objects/"):
                place = f"http://{host}:{port}{seen.target}&pid=p&utm=1"
                connection.sendall(reply(307, {"Location": place}))
            else:
                connection.sendall(reply(200))
            return True

        thread = threading.Thread(target=answer_early, args=(listener,))
        thread.start()
        try:
            async with connected(away, part_size="1GiB") as (client, _):
                with pytest.raises(Unavailable):
                    await client.upload(Upload(B, "k", BytesContent(bytes(32 << 20))))
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
