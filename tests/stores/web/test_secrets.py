"""Tokens and cookies go to the host that they were given for, and are shown nowhere."""

import socket
from urllib.parse import urlsplit

import pytest

from aisfs.core.names.reach import Reach
from aisfs.errors import AccessDenied, ConfigError, ProtocolError
from aisfs.http.exchange import Distance
from aisfs.model import Bucket, Provider
from aisfs.redaction import shown
from aisfs.settings import ClusterSettings
from aisfs.stores.pipeline import CallPipeline
from aisfs.stores.web import HostHeaders, WebStore, _next_url
from tests.stores.ais.scripted_server import Seen, reply, scripted_server
from tests.stores.web.mini_site import DATA, MiniSite, read, store_over
from tests.support.for_each import for_each

TOKEN = "s3cret-token-of-the-test"


def headers_file(tmp_path, *lines):
    path = tmp_path / "headers"
    path.write_text("\n".join(lines))
    return path


async def test_a_redirect_elsewhere_takes_no_secret_along(tmp_path):
    with scripted_server(MiniSite()) as storage:

        def front(seen: Seen, connection: socket.socket) -> bool:
            if seen.headers.get("authorization") != f"Bearer {TOKEN}":
                connection.sendall(reply(401))
            elif seen.path == "/k":
                connection.sendall(reply(302, {"Location": "/d/k"}))
            else:
                place = f"{storage.endpoint}/k?X-Signature=abc"
                connection.sendall(reply(307, {"Location": place}))
            return True

        with scripted_server(front) as server:
            bucket = Bucket(urlsplit(server.endpoint).netloc, Provider.HTTP)
            said = f"{bucket.name} Authorization: Bearer {TOKEN}", f"{bucket.name} Cookie: a=b; c=d"
            path = headers_file(tmp_path, "# mine", "", *said)
            store = CallPipeline(WebStore(ClusterSettings(http_headers=path)), deadline=10)
            info = await store.head(bucket, "k")
            assert await read(store, bucket, info) == DATA
            await store.aclose()
            assert {seen.headers["cookie"] for seen in server.seen} == {"a=b; c=d"}
            for without in (ClusterSettings(), ClusterSettings(http_headers=path, anonymous=True)):
                store = CallPipeline(WebStore(without), deadline=10)
                with pytest.raises(AccessDenied, match="--http-headers"):
                    await store.head(bucket, "k")
                await store.aclose()
        assert storage.seen
        for seen in storage.seen:
            assert not {"authorization", "cookie"} & seen.headers.keys()


@for_each(
    "location",
    ["ftp://h/x", "http://", "http://[", "javascript:x", "file:///etc/passwd", "http://h:0/"],
)
async def test_redirects_to_nowhere(location):
    def front(seen: Seen, connection: socket.socket) -> bool:
        connection.sendall(reply(302, {"Location": location}))
        return True

    async with store_over(front, deadline=3) as (store, bucket, _):
        with pytest.raises(ProtocolError, match="redirected"):
            await store.head(bucket, "k")


def test_a_redirect_never_leads_away_from_https():
    with pytest.raises(ProtocolError, match="away from https, to http://h/y"):
        _next_url("k", "https://h/x", "http://h/y?sig=1")
    assert _next_url("k", "https://h/x", "https://other/y") == "https://other/y"
    assert _next_url("k", "http://h/x", "https://h/x") == "https://h/x"


@pytest.mark.parametrize(
    ("first", "then", "follows"),
    [
        (Distance.WORLD, Distance.WORLD, True),
        (Distance.WORLD, Distance.NETWORK, False),
        (Distance.WORLD, Distance.MACHINE, False),
        (Distance.NETWORK, Distance.WORLD, True),
        (Distance.NETWORK, Distance.NETWORK, True),
        (Distance.NETWORK, Distance.MACHINE, False),
        (Distance.MACHINE, Distance.MACHINE, True),
    ],
)
async def test_a_redirect_leads_no_nearer_to_this_machine(first, then, follows, monkeypatch):
    with scripted_server(MiniSite()) as inner:

        def front(seen: Seen, connection: socket.socket) -> bool:
            connection.sendall(reply(302, {"Location": f"{inner.endpoint}/k?secret=x"}))
            return True

        async with store_over(front, deadline=3) as (store, bucket, _):
            port = urlsplit(f"http://{bucket.name}").port
            monkeypatch.setattr(
                "aisfs.stores.web.distance_of",
                lambda sock: first if sock.getpeername()[1] == port else then,
            )
            if follows:
                assert (await store.head(bucket, "k")).size == len(DATA)
                return
            with pytest.raises(ProtocolError, match="nearer to this machine") as caught:
                await store.head(bucket, "k")
        assert "secret" not in str(caught.value)
        assert not inner.seen


@for_each("hosts, follows", [((), False), (("inner",), True)])
async def test_a_redirect_leads_only_where_a_tenant_may_go(hosts, follows):
    with scripted_server(MiniSite()) as inner:
        inner_host = urlsplit(inner.endpoint).netloc

        def front(seen: Seen, connection: socket.socket) -> bool:
            connection.sendall(reply(302, {"Location": f"{inner.endpoint}/k"}))
            return True

        with scripted_server(front) as server:
            bucket = Bucket(urlsplit(server.endpoint).netloc, Provider.HTTP)
            permitted = [bucket.name, *(inner_host for _ in hosts)]
            reach = Reach.of_tenant(["http"], permitted)
            store = CallPipeline(WebStore(ClusterSettings(), reach=reach), deadline=3)
            if follows:
                assert (await store.head(bucket, "k")).size == len(DATA)
            else:
                with pytest.raises(AccessDenied, match=f"the host {inner_host} is not permitted"):
                    await store.head(bucket, "k")
            await store.aclose()
        assert bool(inner.seen) is follows


async def test_redirects_in_circles():
    def front(seen: Seen, connection: socket.socket) -> bool:
        connection.sendall(reply(302, {"Location": "/l" if seen.path == "/k" else "/k"}))
        return True

    async with store_over(front, deadline=3) as (store, bucket, _):
        with pytest.raises(ProtocolError, match="circles"):
            await store.head(bucket, "k")


def test_which_host_gets_what(tmp_path):
    path = headers_file(tmp_path, "h A: 1", "h:8 A: 2", "[::1]:9 A: 3", "H2.example A: 4")
    headers = HostHeaders.load(path)
    for url, value in (
        ("https://h/x", "1"), ("http://h/x", "1"), ("https://h:443/", "1"), ("http://h:8/", "2"), ("http://[::1]:9/", "3"),
        ("https://h2.EXAMPLE/", "4"), ("https://h:9/", None), ("https://x.h/", None), ("https://hh/", None),
        ("https://evil/h", None), ("https://h@evil/", None), ("http://[::1]/", None),
    ):  # fmt: skip
        assert headers.of(url).get("A") == value, url


@pytest.mark.parametrize(
    "line", ["h", "h A", "h A:", f"h Author ization: {TOKEN}", f"https://h/ A: {TOKEN}", f"h Range: {TOKEN}", f"h A: {TOKEN}\x7f"]
)  # fmt: skip
def test_lines_that_are_none_are_not_repeated(tmp_path, line):
    with pytest.raises(ConfigError, match="line 2") as caught:
        HostHeaders.load(headers_file(tmp_path, "h A: fine", line))
    assert TOKEN not in str(caught.value)


def test_secrets_are_struck_out(tmp_path):
    HostHeaders.load(
        headers_file(tmp_path, f"h X-Key: {TOKEN}", "h Authorization: Token 0123456789abc")
    )
    assert TOKEN not in shown(f"the server says {TOKEN} is wrong")
    assert "0123456789abc" not in shown("no such key 0123456789abc")
    assert TOKEN not in repr(HostHeaders.load(headers_file(tmp_path, f"h A: {TOKEN}")))
