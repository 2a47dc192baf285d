"""Which names an index has, and which pages are none.

The files in `pages/` are what these servers sent for one directory with odd names.
"""

from pathlib import Path

import pytest

from aisfs.errors import ProtocolError
from aisfs.model import Bucket, Provider
from aisfs.settings import ClusterSettings
from aisfs.stores import web as store_module
from aisfs.stores.port import pages_of
from aisfs.stores.web import WebStore
from aisfs.stores.web_pages import Names, names_in_index, names_in_multistatus
from tests.support.for_each import for_each
from tests.support.web_servers import nginx

PAGES = Path(__file__).parent / "pages"
URL = "http://h:1/a%20b/d/"
PLAIN = {" a b ", "100%", "%41", "a+b", "a?b=c", "a#b", "'\"&<>", "x" * 80, "a:b", "plain.tar"}
UTF8 = {"ü", "日本"}
RAW, DOTS = {"raw\udcff"}, {"..."}


@for_each(
    "page, url, files",
    [
        ("apache-fancy.html", "http://h/d/", PLAIN | UTF8 | RAW | DOTS),
        ("apache-table.html", "http://h/html/d/", PLAIN | UTF8 | RAW | DOTS),
        ("apache-plain.html", "http://h/plain/d/", PLAIN | UTF8 | RAW | DOTS),
        ("lighttpd.html", "http://h/d/", PLAIN | UTF8 | RAW),
        ("caddy.json", "http://h/d/", PLAIN | UTF8 | RAW | DOTS),
    ],
)
def test_indexes_of_servers(page, url, files):
    assert names_in_index(url, (PAGES / page).read_bytes()) == Names(files, {"sub"})


def test_webdav():
    body = (PAGES / "apache-dav.xml").read_bytes()
    found = names_in_multistatus("http://h/dav/d/", body)
    assert found.directories == {"sub"}
    assert found.files - RAW == PLAIN | UTF8 | DOTS


def page(*links: str, title: str = "Index of /a b/d/", end: str = "</html>") -> bytes:
    body = "".join(f'<a href="{link}">x</a>' for link in links)
    return f"<html><title>{title}</title><body>{body}</body>{end}".encode()


@for_each(
    "link",
    [
        "../", "./", "..", ".", "/", "/a%20b/", "?C=N;O=D", "#top", "http://other/a%20b/d/x", "//other/x", "mailto:me@h",
        "https://h:1/a%20b/d/x", "http://h:2/a%20b/d/x", "sub/deep", "/a%20b/dd", "%2e%2e/", "x/../..", "javascript:x()",
        "http://[/", "http://h:1/a%20b/d/",
    ],
)  # fmt: skip
def test_other_links_are_no_names(link):
    assert names_in_index(URL, page("real", link)) == Names({"real"}, set())


@for_each(
    "link, name",
    [
        ("x", "x"), ("./x", "x"), ("/a%20b/d/x", "x"), ("http://h:1/a%20b/d/x", "x"), ("../d/x", "x"), ("%78", "x"),
        ("a%26b", "a&b"), ("a&amp;b", "a&b"), ("%25", "%"), ("%3F", "?"), ("a%0Ab", "a\nb"), ("%FF", "\udcff"), ("ü", "ü"),
    ],
)  # fmt: skip
def test_ways_to_write_a_name(link, name):
    assert names_in_index(URL, page(link)) == Names({name}, set())
    assert names_in_index(URL, page(f"{link}/")) == Names(set(), {name})


@for_each("title", ["My data", "", "Index of my data", "Welcome", "An index of /a b/d/", "404"])
def test_a_page_by_hand_is_no_index(title):
    assert names_in_index(URL, page("x.tar", title=title)) is None


@for_each("body", [b"", b"<html>", b"x.tar\ny.tar\n", b'{"name": "x"}', b'["x"]', b'[{"a": 1}]'])
def test_other_content_is_no_index(body):
    assert names_in_index(URL, body) is None


@for_each(
    "body",
    [
        page("x", end=""),
        page("x?y=1"),
        b'[{"name": "x", "type": "file"}',
        b'[{"name": "x/y", "type": "file"}]',
        b'[{"name": "", "type": "file"}]',
        b'[{"url": "../x", "is_dir": false}]',
        b"[" * 100_000,
    ],
)
def test_a_broken_index_is_an_error(body):
    with pytest.raises(ProtocolError):
        names_in_index(URL, body)


def test_pipes_are_left_out_and_an_empty_directory_is_empty():
    body = b'[{"name": "p", "type": "other"}, {"name": "f", "type": "file"}]'
    assert names_in_index(URL, body) == Names({"f"}, set())
    assert names_in_index(URL, b"[]") == Names()
    assert names_in_index(URL, page("../")) == Names()


def multistatus(*hrefs: str) -> bytes:
    responses = "".join(
        f"<D:response><D:href>{href}</D:href><D:propstat/></D:response>" for href in hrefs
    )
    return (
        f'<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">{responses}</D:multistatus>'.encode()
    )


def test_hrefs_of_webdav():
    body = multistatus("/a%20b/d/", "/a%20b/d/x", "http://h:1/a%20b/d/y", "/a%20b/d/s/")
    assert names_in_multistatus(URL, body) == Names({"x", "y"}, {"s"})


@for_each(
    "body",
    [
        b"", b"<html></html>", b"<D:multistatus", multistatus(), multistatus("/a%20b/d/x"),
        multistatus("/a%20b/d/", "/a%20b/d/x/y"), multistatus("/a%20b/d/", "/etc/passwd"),
    ],
)  # fmt: skip
def test_broken_answers_of_webdav(body):
    with pytest.raises(ProtocolError):
        names_in_multistatus(URL, body)


async def test_the_index_of_a_large_directory_is_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store_module, "_PAGE", 10)
    for number in range(45):
        (tmp_path / f"{number:02}").write_bytes(b"")
    (tmp_path / "sub").mkdir()
    with nginx(tmp_path) as server:
        bucket = Bucket(server.url.removeprefix("http://"), Provider.HTTP)
        store = WebStore(ClusterSettings(), buckets=[bucket])
        pages = [page async for page in pages_of(store, bucket, "")]
        assert [len(page.objects) for page in pages] == [10, 10, 10, 10, 5]
        assert [name for page in pages for name in page.directories] == ["sub/"]
        assert server.log().count('"GET / ') == 1
        (tmp_path / "99").write_bytes(b"")
        assert "99" in [info.key async for p in pages_of(store, bucket, "") for info in p.objects]
        # One that is continued later, as by a mount that forgot the names, fetches it anew.
        first = await store.list_page(bucket, "")
        store._rest.clear()
        again = await store.list_page(bucket, "", token=first.next_token)
        assert [info.key for info in again.objects] == [f"{number:02}" for number in range(10, 20)]
        await store.aclose()
