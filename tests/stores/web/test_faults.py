"""Web servers that fail, lie or hang: no wrong byte, no hang, and an error that says what is wrong."""

import gzip
import socket

import pytest
import trio

from aisfs.errors import AisfsError, DeadlineExceeded, NotFound, ProtocolError, Stale, Unsupported
from tests.stores.ais.scripted_server import Seen, reply
from tests.stores.web.mini_site import DATA, DATE, MiniSite, read, store_over, stream
from tests.support.for_each import for_each

SECONDS = 20
"""Until something counts as hanging. Not a statement about speed."""


def times(count: int, spoil):
    """Spoil so many GETs."""
    left = [count]

    def before(seen: Seen, connection: socket.socket) -> bool | None:
        if seen.method != "GET" or not left[0]:
            return None
        left[0] -= 1
        return spoil(seen, connection)

    return before


def sends(data: bytes, *, close: bool = False):
    def spoil(seen: Seen, connection: socket.socket) -> bool:
        connection.sendall(data)
        return not close

    return spoil


def resets(seen: Seen, connection: socket.socket) -> bool:
    return False


def cuts(seen: Seen, connection: socket.socket) -> bool:
    whole = MiniSite().answer(seen)
    connection.sendall(whole[: len(whole) - 1000])
    return False


PASSING = {
    "reset": resets,
    "cut": cuts,
    "half a head": sends(b"HTTP/1.1 206 Partial", close=True),
    "500": sends(reply(500)),
    "502": sends(reply(502, {}, b"<html>bad gateway</html>")),
    "503": sends(reply(503, {"Retry-After": "0"})),
    "429": sends(reply(429)),
    "408": sends(reply(408)),
}


@for_each("name", PASSING)
async def test_passing_failures_are_invisible(name):
    site = MiniSite()
    async with store_over(site) as (store, bucket, _):
        info = await store.head(bucket, "k")
        for call in (read, stream):
            site.before = times(2, PASSING[name])
            assert await call(store, bucket, info) == DATA


async def test_who_wants_to_be_left_alone_for_too_long_is_not_asked_again():
    site = MiniSite()
    asked = []

    def before(seen: Seen, connection: socket.socket) -> bool | None:
        if seen.method == "GET":
            asked.append(seen)
            connection.sendall(reply(429, {"Retry-After": "30"}))
            return True
        return None

    async with store_over(site, deadline=20) as (store, bucket, _):
        info = await store.head(bucket, "k")
        site.before = before
        with trio.fail_after(SECONDS), pytest.raises(DeadlineExceeded, match="rate of requests"):
            await read(store, bucket, info)
    assert len(asked) == 1


def gives(status: int = 206, body: bytes = DATA[:100], **headers: str):
    """Answer with these headers, besides those of the version and of the range [0, 100)."""
    said = {"ETag": '"one"', "Content-Range": f"bytes 0-99/{len(DATA)}"}
    said |= {name.replace("_", "-"): value for name, value in headers.items()}
    return sends(reply(status, {name: value for name, value in said.items() if value}, body))


CHUNKED = {"Transfer_Encoding": "chunked", "Content_Length": "100"}


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


LIES = {
    "range behind": (gives(Content_Range=f"bytes 1-100/{len(DATA)}"), ProtocolError),
    "short range": (gives(Content_Range=f"bytes 0-49/{len(DATA)}"), ProtocolError),
    "no range": (gives(Content_Range=""), ProtocolError),
    "nonsense for a range": (gives(Content_Range="bytes 0-99/lots"), ProtocolError),
    "many ranges": (gives(Content_Range="", Content_Type="multipart/byteranges; boundary=x"), ProtocolError),
    "other total": (gives(Content_Range=f"bytes 0-99/{len(DATA) + 1}"), Stale),
    "too long": (gives(body=DATA[:101]), ProtocolError),
    "too short": (gives(body=DATA[:99]), ProtocolError),
    "two lengths": (gives(Content_Length="100, 200"), ProtocolError),
    "other version": (gives(ETag='"two"'), Stale),
    "weak version": (gives(ETag='W/"one"'), Stale),
    "no version": (gives(ETag=""), ProtocolError),
    "412": (gives(412), Stale),
    "gzip": (gives(body=gzip.compress(DATA[:100]), Content_Encoding="gzip"), Unsupported),
    "gzip whole": (gives(200, gzip.compress(DATA), Content_Range="", Content_Encoding="gzip"), Unsupported),
    "gzip without a total": (gives(Content_Range="bytes 0-99/*", Content_Encoding="gzip"), Unsupported),
    "gzip in chunks": (gives(body=chunked(gzip.compress(DATA[:100])), Content_Encoding="gzip", **CHUNKED), Unsupported),
    "br": (gives(body=DATA[:99], Content_Encoding="br"), Unsupported),
    "other whole": (gives(200, DATA, Content_Range="", ETag='"two"'), Stale),
    "page in place of the file": (gives(200, b"<html>log in", Content_Range="", ETag=""), ProtocolError),
    "longer whole": (gives(200, DATA + b"1", Content_Range=""), Stale),
    "404": (gives(404), NotFound),
    "410": (gives(410), NotFound),
    "204": (gives(204, b"", Content_Range=""), ProtocolError),
    "304": (gives(304, b"", Content_Range=""), ProtocolError),
}  # fmt: skip


@for_each("name", LIES)
async def test_lies_are_refused(name):
    spoil, kind = LIES[name]
    site = MiniSite()
    async with store_over(site, deadline=5) as (store, bucket, _):
        info = await store.head(bucket, "k")
        site.before = times(10**6, spoil)
        with trio.fail_after(SECONDS), pytest.raises(AisfsError) as caught:
            await read(store, bucket, info, 0, 100)
        assert type(caught.value) is kind, caught.value
        assert "/k" in str(caught.value)
        site.before = lambda seen, connection: None
        assert await read(store, bucket, info, 0, 100) == DATA[:100]


async def test_what_is_stored_compressed_is_the_file():
    """Apache's AddEncoding, and uploads of s3cmd: curl and wget save the bytes as they are."""
    site = MiniSite(gzip.compress(DATA))
    site.headers["Content-Encoding"] = "x-gzip"
    async with store_over(site) as (store, bucket, _):
        info = await store.head(bucket, "k")
        assert info.size == len(site.data)
        assert await read(store, bucket, info, 5, 100) == site.data[5:100]
        assert await read(store, bucket, info) == await stream(store, bucket, info) == site.data


async def test_a_tag_that_changes_in_the_middle_of_a_file():
    """Whoever ignores If-Match is caught, too."""
    site = MiniSite()
    other = bytes(reversed(DATA))
    async with store_over(site) as (store, bucket, _):
        for ignores in (False, True):
            site.data, site.headers = DATA, {"ETag": '"one"'}
            info = await store.head(bucket, "k")
            assert await read(store, bucket, info, 0, 5000) == DATA[:5000]

            def before(seen: Seen, connection: socket.socket) -> None:
                if ignores:  # noqa: B023
                    seen.headers.pop("if-match", None)

            site.data, site.headers, site.before = other, {"ETag": '"two"'}, before
            for call in (read, stream):
                with pytest.raises(Stale):
                    await call(store, bucket, info)
            fresh = await store.head(bucket, "k")
            assert not fresh.same_content(info)
            assert await stream(store, bucket, fresh) == other


async def test_without_a_tag_the_date_is_the_version():
    site = MiniSite()
    site.headers = {"ETag": 'W/"weak"', "Last-Modified": DATE}
    async with store_over(site) as (store, bucket, server):
        info = await store.head(bucket, "k")
        assert info.version == DATE
        assert await read(store, bucket, info, 5, 10) == DATA[5:10]
        assert server.seen[-1].headers["if-unmodified-since"] == DATE
        site.headers = {"Last-Modified": DATE.replace("05:00", "05:01")}
        with pytest.raises(Stale):
            await read(store, bucket, info, 5, 10)


async def test_a_file_without_version_has_none():
    site = MiniSite()
    site.headers = {}
    async with store_over(site) as (store, bucket, server):
        info = await store.head(bucket, "k")
        assert (info.version, info.size, info.mtime_ns) == ("", len(DATA), 0)
        assert await read(store, bucket, info, 5, 10) == DATA[5:10]
        assert not {"if-match", "if-unmodified-since"} & server.seen[-1].headers.keys()


@for_each("status", [400, 403, 405, 501])
async def test_without_head_the_first_byte_is_asked_for(status):
    site = MiniSite()

    def before(seen: Seen, connection: socket.socket) -> bool | None:
        if seen.method != "HEAD":
            return None
        connection.sendall(reply(status))
        return True

    site.before = before
    async with store_over(site) as (store, bucket, _):
        info = await store.head(bucket, "k")
        assert (info.size, info.version) == (len(DATA), '"one"')
        with pytest.raises(NotFound):
            await store.head(bucket, "no")


async def test_a_hanging_server_is_given_up():
    site = MiniSite()
    async with store_over(site, deadline=1, read_timeout=0) as (store, bucket, server):
        info = await store.head(bucket, "k")
        site.before = lambda seen, connection: server.stall(connection)
        for call in (
            store.head(bucket, "k"),
            read(store, bucket, info),
            store.list_page(bucket, ""),
        ):
            with trio.fail_after(SECONDS), pytest.raises(DeadlineExceeded):
                await call


async def test_a_listing_that_fails_in_the_middle_is_an_error():
    """One file of the index cannot be asked for: the listing is not short."""
    page = b'<title>Index of /d/</title><a href="k">k</a><a href="l">l</a></html>'

    def site(seen: Seen, connection: socket.socket) -> bool:
        if seen.path == "/d/":
            connection.sendall(reply(200, {}, page))
        elif seen.path == "/d/l":
            connection.sendall(reply(403))
        else:
            connection.sendall(MiniSite().answer(seen))
        return True

    async with store_over(site, deadline=2) as (store, bucket, _):
        with pytest.raises(AisfsError, match="/d/l: the server does not permit"):
            await store.list_page(bucket, "d/")


async def test_what_leads_to_a_slash_is_a_directory_and_what_leads_nowhere_is_nothing():
    page = (
        b'<title>Index of /d/</title><a href="k"></a><a href="sub"></a><a href="gone"></a></html>'
    )

    def site(seen: Seen, connection: socket.socket) -> bool:
        if seen.path == "/d/":
            connection.sendall(reply(200, {}, page))
        elif seen.path == "/d/sub":
            connection.sendall(reply(301, {"Location": "/d/sub/"}))
        else:
            connection.sendall(MiniSite().answer(seen))
        return True

    async with store_over(site) as (store, bucket, _):
        found = await store.list_page(bucket, "d/")
        assert ([info.key for info in found.objects], found.directories) == (["d/k"], ["d/sub/"])
        with pytest.raises(NotFound):
            await store.head(bucket, "d/sub")


async def test_a_page_by_hand_is_no_listing_but_its_names_can_be_looked_up():
    site = MiniSite()

    def before(seen: Seen, connection: socket.socket) -> bool | None:
        if seen.path != "/d/":
            return None
        connection.sendall(
            reply(200, {}, b'<title>My files</title><a href="k">k</a></html>')
            if seen.method == "GET"
            else reply(405)
        )
        return True

    site.before = before
    async with store_over(site) as (store, bucket, _):
        first = await store.list_page(bucket, "d/")
        assert first.next_token
        assert not first.names
        with pytest.raises(Unsupported, match=r"no index of this directory.*braces"):
            await store.list_page(bucket, "d/", token=first.next_token)
        assert (await store.head(bucket, "d/k")).size == len(DATA)
