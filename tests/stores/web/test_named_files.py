"""Shards that are named one by one need no index; what else is asked for does."""

import pytest

from aisfs.core.names.sources import parse_sources
from aisfs.errors import NotFound
from aisfs.model import Bucket, Provider
from aisfs.settings import ClusterSettings
from aisfs.stores.registry import named_files
from aisfs.stores.web import WebStore
from tests.support.for_each import for_each
from tests.support.web_servers import nginx

H = Bucket("h", Provider.HTTPS)


@for_each(
    "words, named",
    [
        (["https://h/d/x-{0..1}.tar"], ["d/x-0.tar", "d/x-1.tar"]),
        (["https://h/x.tar", "https://h/d/y.tar"], ["x.tar", "d/y.tar"]),
        (["https://h/d/*.tar"], []),
        (["https://h/d/x.tar", "https://h/d/y-*.tar"], []),
        (["https://h/d/x.tar", "https://h/"], []),
        (["https://h/d/x.tar", "https://h/d/deep/*.tar"], ["d/x.tar"]),
        (["https://h/d/x.tar", "https://h/d/list.json"], []),
        (["https://h/e/x.tar", "https://h/d/list.json"], ["e/x.tar"]),
        (["s3+direct://b/x.tar"], []),
    ],
)
def test_which_files_are_all_of_their_directories(words, named):
    source = parse_sources(words, is_directory=lambda _: False, view=True)
    assert [key for _, key in named_files(source)] == named


async def test_a_directory_has_the_files_that_were_named(tmp_path):
    for name in ("x-0.tar", "x-1.tar", "hidden.tar"):
        (tmp_path / name).write_bytes(b"1")
    with nginx(tmp_path, autoindex=False) as server:
        bucket = Bucket(server.url.partition("://")[2], Provider.HTTP)
        named = [(bucket, f"x-{number}.tar") for number in range(3)]
        store = WebStore(ClusterSettings(), buckets=[bucket], named=named)
        page = await store.list_page(bucket, "")
        assert [info.key for info in page.objects] == ["x-0.tar", "x-1.tar"]
        assert (page.directories, page.next_token) == ([], "")
        keys = await store.first_keys(bucket, "", 1)
        assert (keys.found, keys.complete) == (["x-0.tar"], False)
        with pytest.raises(NotFound):
            await store.head(bucket, "x-2.tar")
        await store.aclose()
        assert "GET" not in server.log()


async def test_a_long_directory_has_pages(tmp_path):
    names = [f"{number:04}" for number in range(1100)]
    for name in names:
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "deep").mkdir()
    with nginx(tmp_path, form="json") as server:
        bucket = Bucket(server.url.partition("://")[2], Provider.HTTP)
        store = WebStore(ClusterSettings(), buckets=[bucket])
        first = await store.list_page(bucket, "")
        assert (len(first.objects), first.directories) == (1000, ["deep/"])
        rest = await store.list_page(bucket, "", token=first.next_token)
        assert [info.key for info in first.objects + rest.objects] == names
        assert (rest.directories, rest.next_token) == ([], "")
        await store.aclose()
