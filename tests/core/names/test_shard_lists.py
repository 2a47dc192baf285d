"""Lists of shards as JSON, as wids writes them."""

import json

import pytest

from aisfs.core.names.sources import ListedShard, encode_shard_list, is_shard_list, parse_shard_list
from aisfs.errors import ConfigError
from tests.support.for_each import for_each


def shards(listed: object, **options: str) -> list[str]:
    options = {"directory": "ais://b/train/", **options}
    return [str(p) for p in parse_shard_list("l", json.dumps(listed).encode(), **options)]


@for_each(
    "url, place, found",
    [
        ("a.tar", "ais://b/train/", "ais://b/train/a.tar"),
        ("./a.tar", "ais://b/train", "ais://b/train/a.tar"),
        ("../x/a.tar", "ais://b/train/", "ais://b/x/a.tar"),
        ("../../../a.tar", "ais://b/train/", "ais://b/a.tar"),
        ("a{1,2}.tar", "ais://b", "ais://b/a{1,2}.tar"),
        ("a.tar", "ais://@u#n/b/d", "ais://@u#n/b/d/a.tar"),
        ("s3://c/d/a.tar", "ais://b/train/", "s3://c/d/a.tar"),
        ("/data/a.tar", "ais://b", "/data/a.tar"),
        ("file:///data/a.tar", "ais://b", "/data/a.tar"),
        ("a.tar", "", "a.tar"),
        ("a.tar", "/", "/a.tar"),
        ("d/../a.tar", "here", "here/a.tar"),
    ],
)
def test_urls_are_relative_to_the_list(url: str, place: str, found: str):
    assert shards({"shardlist": [{"url": url}]}, directory=place) == [found]


def test_a_base_wins_over_the_directory_and_an_argument_over_both():
    listed = {
        "base": "s3://c/x",
        "shardlist": [{"url": "a.tar"}],
        "datasets": [{"base": "deeper", "shardlist": [{"url": "b.tar", "nsamples": 3}]}],
    }
    assert shards(listed) == ["s3://c/x/a.tar", "ais://b/train/deeper/b.tar"]
    assert shards(listed, base="/here") == ["/here/a.tar", "/here/b.tar"]


@for_each(
    "listed, reason",
    [
        ([], "l is not a wids shard list"),
        ({"shardlist": [{}]}, "missing required field `url`"),
        ({"shardlist": [{"url": ""}]}, "length >= 1"),
        ({"shardlist": []}, "names no shard"),
        ({"shardlist": [{"url": "f_p://h/a.tar"}]}, "l, shard 1: f_p://: unknown provider"),
        ({"wids_version": 2, "shardlist": [{"url": "a"}]}, "only version 1"),
        ({"datasets": [{"source_url": "x.json"}]}, "leads to another list: give x.json"),
    ],
)
def test_what_is_no_list_is_named(listed: object, reason: str):
    with pytest.raises(ConfigError, match=reason):
        shards(listed)


def test_a_list_is_told_from_lines():
    assert is_shard_list("-", b' {"shardlist": []}')
    assert is_shard_list("x.json", b"anything")
    for lines in (b"{a,b}/x.tar\n", b"", b"x.tar", b'{"a","b"}.tar', b"{\xff}", b"{}x"):
        assert not is_shard_list("list.txt", lines)


def test_what_is_written_is_read():
    listed = [ListedShard("a.tar", 3, 10240), ListedShard("d/\u00fc.tar", 0, 1)]
    data = encode_shard_list(listed)
    assert json.loads(data) == {
        "__kind__": "wids-shard-index-v1",
        "wids_version": 1,
        "shardlist": [
            {"url": "a.tar", "nsamples": 3, "filesize": 10240},
            {"url": "d/\u00fc.tar", "nsamples": 0, "filesize": 1},
        ],
    }
    assert [str(p) for p in parse_shard_list("l", data, directory="x")] == [
        "x/a.tar",
        "x/d/\u00fc.tar",
    ]
