"""What can be typed as SOURCE."""

from pathlib import Path

import pytest

from aisfs.core.namespace.sources import (
    BucketSource,
    DatasetSource,
    DirectorySource,
    Everything,
    ShardPattern,
    Source,
    absolute,
    parse_list,
    parse_source,
    parse_sources,
)
from aisfs.errors import ConfigError
from aisfs.model import Bucket, Provider


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (None, Everything()),
        ("ais://pets", BucketSource(Bucket("pets"), "")),
        ("ais://pets/", BucketSource(Bucket("pets"), "")),
        ("ais://pets/train", BucketSource(Bucket("pets"), "train/")),
        ("ais://pets/train/a/", BucketSource(Bucket("pets"), "train/a/")),
        ("s3://b", BucketSource(Bucket("b", Provider.AWS), "")),
        ("gs://b", BucketSource(Bucket("b", Provider.GCP), "")),
        ("ais://b@remote#", BucketSource(Bucket("b", Provider.AIS, "@remote#"), "")),
        ("ais://@remote#/b/p", BucketSource(Bucket("b", Provider.AIS, "@remote#"), "p/")),
        ("./dir", DirectorySource(Path("dir"))),
    ],
)
def test_sources(text, source):
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    ["ftp://x", "ais://", "ais:///x", "ais://@u#/", "ais://b!/x", "ais://b/../x", "ais://b/a//b"],
)
def test_what_cannot_be_a_source_is_named(text):
    with pytest.raises(ConfigError, match="://"):
        parse_source(text)


PETS = Bucket("pets")


def parsed(*words: str, directories: tuple[str, ...] = (), **options) -> Source:
    return parse_sources(words, is_directory=directories.__contains__, **options)


def patterns(*words: str, **options) -> list[str]:
    source = parsed(*words, **options)
    assert isinstance(source, DatasetSource)
    return [str(pattern) for word in source.words for pattern in word.patterns]


@pytest.mark.parametrize(
    ("words", "source"),
    [
        ((), Everything()),
        (("ais://pets",), BucketSource(PETS, "")),
        (("ais://pets/train/",), BucketSource(PETS, "train/")),
        (("ais://pets/x.tar/",), BucketSource(PETS, "x.tar/")),
        (("ais://samples.tar",), BucketSource(Bucket("samples.tar"), "")),
        (("./dir",), DirectorySource(Path("dir"))),
        (("./x[1].tar",), DirectorySource(Path("x[1].tar"))),
    ],
)
def test_plain_sources_are_no_datasets(words, source):
    assert parsed(*words, directories=("./x[1].tar",)) == source


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("ais://pets/a/s-{00..02}.tar", [f"ais://pets/a/s-0{n}.tar" for n in range(3)]),
        ("ais://pets/{a,b}/x.tar", ["ais://pets/a/x.tar", "ais://pets/b/x.tar"]),
        ("ais://{pets,cats}/x.tar", ["ais://pets/x.tar", "ais://cats/x.tar"]),
        ("ais://pets/{train,val}", ["ais://pets/train/", "ais://pets/val/"]),
        ("ais://pets/x.tar", ["ais://pets/x.tar"]),
        ("ais://pets/a/*/x-*.tar", ["ais://pets/a/*/x-*.tar"]),
        ("./s-{8..10..2}.tar", ["./s-8.tar", "./s-10.tar"]),
        ("a\\{1\\}.tar", ["a{1}.tar"]),
    ],
)
def test_braces_and_globs(word, found):
    assert patterns(word) == found


def test_where_a_pattern_is_cut():
    source = parsed("ais://pets/a/b*/x-*.tar", "ais://pets/c/x.tar", "ais://pets/d")
    assert [pattern for word in source.words for pattern in word.patterns] == [
        ShardPattern(PETS, "a/", "b*/x-*.tar"),
        ShardPattern(PETS, "c/", "x.tar"),
        ShardPattern(PETS, "d/", ""),
    ]


def test_view_makes_any_source_a_dataset():
    assert patterns("ais://pets", view=True) == ["ais://pets/"]
    assert patterns("ais://pets/train", view=True) == ["ais://pets/train/"]
    assert patterns("./d", view=True, directories=("./d",)) == ["./d/"]
    with pytest.raises(ConfigError, match="--view needs a SOURCE"):
        parsed(view=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ais://pets/x.tar", "./y.tar"), "not both"),
        (("ais://pets/{0..9.tar", "x.tar"), "braces do not match"),
        (("ais://pets/{0..2000000}.tar",), "more than 1,000,000"),
        (("ais://pe*/x.tar",), "no pattern"),
        (("ftp://{a,b}/x.tar",), "unknown provider"),
        (("ais://pets/x.tar", ""), "cannot be empty"),
    ],
)
def test_words_that_make_no_dataset_are_named(words, message):
    with pytest.raises(ConfigError, match=message):
        parsed(*words)


def test_list_files():
    lines = ["# shards\n", "\n", "a-{0..1}.tar\n", "ais://cats/b.tar\r\n"]
    word = parse_list("l", lines, "ais://pets/d/", is_directory=lambda _: False)
    assert list(map(str, word.patterns)) == [
        "ais://pets/d/a-0.tar", "ais://pets/d/a-1.tar", "ais://cats/b.tar",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="l names no source"):
        parse_list("l", ["\n"], None, is_directory=lambda _: False)
    with pytest.raises(ConfigError, match=r"l, line 2: .*unknown provider"):
        parse_list("l", ["a.tar\n", "ftp://b\n"], None, is_directory=lambda _: False)


def test_local_directories_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    source = absolute(parsed("x.tar", "a/../b/*.tar"))
    assert [pattern.directory for word in source.words for pattern in word.patterns] == [
        f"{tmp_path}/", f"{tmp_path}/b/",
    ]  # fmt: skip
