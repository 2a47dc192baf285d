"""What can be typed as SOURCE."""

from pathlib import Path

import pytest
from braceexpand import braceexpand

from aisfs.core.names import sources
from aisfs.core.names.sources import (
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
    without_aistore,
)
from aisfs.errors import ConfigError
from aisfs.model import Bucket, Provider
from tests.support.for_each import for_each


@for_each(
    "text, source",
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
        ("s3+direct://b/p", BucketSource(Bucket("b", Provider.S3), "p/")),
        ("gs+direct://b", BucketSource(Bucket("b", Provider.GS), "")),
        ("az+direct://acc/con", BucketSource(Bucket("acc/con", Provider.AZ), "")),
        ("az+direct://acc/con/p/q/", BucketSource(Bucket("acc/con", Provider.AZ), "p/q/")),
        ("https://h:8/a%20b/", BucketSource(Bucket("h:8", Provider.HTTPS), "a b/")),
        ("http://[::1]:8", BucketSource(Bucket("[::1]:8", Provider.HTTP), "")),
        ("hf://datasets/o/n/p", BucketSource(Bucket("datasets/o/n", Provider.HF), "p/")),
        ("hf://datasets/o/n@v1.0", BucketSource(Bucket("datasets/o/n@v1.0", Provider.HF), "")),
        ("hf://o/n/p", BucketSource(Bucket("o/n", Provider.HF), "p/")),
        ("sftp://me@h/p", BucketSource(Bucket("sftp://me@h", Provider.FSSPEC), "p/")),
        ("oc+direct://b", BucketSource(Bucket("oci://b", Provider.FSSPEC), "")),
    ],
)
def test_sources(text, source):
    assert parse_source(text) == source


@for_each(
    "text",
    ["ais://", "ais:///x", "ais://@u#/", "ais://b!/x", "ais://b/../x", "ais://b/a//b", "s3+direct://b!",
     "az+direct://acc", "az+direct://A/con", "hf://datasets/o", "hf://o", "https:///x", "https://h!/x",
     "sftp://me:secret@h/x", "https://me:secret@h/x", "https://h/x.tar?sig=secret", "https://h/#secret",
     "simplecache::s3://b/x", "FTP://x"],
)  # fmt: skip
def test_what_cannot_be_a_source_is_named(text):
    with pytest.raises(ConfigError, match="://") as raised:
        parse_source(text)
    assert "secret" not in str(raised.value)


@for_each(
    "text, found",
    [
        ("s3+direct://b/p/x-{0..1}.tar", ["s3+direct://b/p/x-0.tar", "s3+direct://b/p/x-1.tar"]),
        (
            "az+direct://acc/c{a,b}0/*.tar",
            ["az+direct://acc/ca0/*.tar", "az+direct://acc/cb0/*.tar"],
        ),
        ("https://h/a%20b/x-{0..1}.tar", ["https://h/a b/x-0.tar", "https://h/a b/x-1.tar"]),
        ("hf://datasets/o/n@r/d/*.tar", ["hf://datasets/o/n@r/d/*.tar"]),
        ("oci://b@space/x.tar", ["oc://@space/b/x.tar"]),
        ("sftp://h/d/**/x.tar", ["sftp://h/d/**/x.tar"]),
    ],
)
def test_shards_without_aistore(text, found):
    assert patterns(text) == found


@for_each(
    "text, found",
    [
        ("ais://a/x.tar::ais://b/y-{0..1}.tar",
         ["ais://a/x.tar", "ais://b/y-0.tar", "ais://b/y-1.tar"]),
        ("ais://a/d::ais://b/e", ["ais://a/d/", "ais://b/e/"]),
        ("http://[::1]:8/a.tar::http://[fe80::1]/{b,c}/[x].tar",
         ["http://[::1]:8/a.tar", "http://[fe80::1]/b/[x].tar", "http://[fe80::1]/c/[x].tar"]),
        ("x.tar::d/y.tar", ["x.tar", "d/y.tar"]),
        ("kept::x.tar", ["kept::x.tar"]),
    ],
)  # fmt: skip
def test_several_sources_in_one_word(text, found):
    assert patterns(text, is_file="kept::x.tar".__eq__) == found


def test_a_local_file_of_any_name_is_a_shard():
    files = {"plain", "d/odd.bin"}
    assert patterns("plain", is_file=files.__contains__) == ["plain"]
    assert patterns("d/odd.bin", "plain", is_file=files.__contains__) == ["d/odd.bin", "plain"]
    assert parsed("other", is_file=files.__contains__) == DirectorySource(Path("other"))
    assert patterns("d/A.TAR", "B.Tgz") == ["d/A.TAR", "B.Tgz"]
    assert patterns("ais://b/X.Tgz") == ["ais://b/X.Tgz"]


def test_buckets_of_clouds_without_aistore():
    source = parsed("s3://a/x.tar", "gs://b/*.tar", "az://con/x.tar", "oc://o@ns/x.tar")
    assert isinstance(source, DatasetSource)
    assert [str(b) for b in without_aistore(source, "acc").buckets] == [
        "s3+direct://a", "gs+direct://b", "az+direct://acc/con", "oci://o@ns",
    ]  # fmt: skip
    assert without_aistore(BucketSource(PETS, "")) == BucketSource(PETS, "")
    with pytest.raises(ConfigError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        without_aistore(parse_source("az://con"))


PETS = Bucket("pets")


def parsed(*words: str, directories: tuple[str, ...] = (), **options) -> Source:
    return parse_sources(words, is_directory=directories.__contains__, **options)


def patterns(*words: str, **options) -> list[str]:
    source = parsed(*words, **options)
    assert isinstance(source, DatasetSource)
    return [str(pattern) for word in source.words for pattern in word.patterns]


@for_each(
    "words, source",
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


@for_each(
    "word, found",
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


@for_each(
    "words, message",
    [
        (("ais://pets/x.tar", "./y.tar"), "not both"),
        (("ais://pets/{0..9.tar", "x.tar"), "braces do not match"),
        (("ais://pets/{0..2000000}.tar",), "more than 1,000,000"),
        (("ais://pets/{0..999999999999999}.tar",), "more than 1,000,000"),  # each in memory first
        (("ais://pets/{" + "{a..z}" * 30 + ",x}.tar",), "more than 1,000,000"),
        (("ais://pets/" + "{" * 9999 + "a,b" + "}" * 9999,), "braces do not match"),
        (("ais://pe*/x.tar",), "no pattern"),
        (("f_p://{a,b}/x.tar",), "unknown provider"),
        (("https://h/x.tar?sig=s3cret",), "^https://h/x.tar: a URL with"),
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
        parse_list("l", ["a.tar\n", "f_p://b\n"], None, is_directory=lambda _: False)


def test_local_directories_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    source = absolute(parsed("x.tar", "a/../b/*.tar"))
    assert [pattern.directory for word in source.words for pattern in word.patterns] == [
        f"{tmp_path}/", f"{tmp_path}/b/",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("x", 1),
        ("{x}", 1),
        ("{7..-7..5}{b,,c}", 9),
        ("{a..e..2}{A..c}", 87),
        (r"\{0..9\}{a,b}\\{0..9}", 20),
        ("{x{1..3},{a,b}{c,d},y}z", 8),
    ],
)
def test_braces_are_counted_as_they_are_expanded(text: str, count: int):
    assert sources._count_expansions(text) == len(list(braceexpand(text))) == count
