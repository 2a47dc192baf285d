"""The plan of `aisfs pack`: groups, shards, bytes, names."""

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.core.views import packing
from aisfs.core.views.packing import File, Layout, ShardNames, samples_of, shards_of
from aisfs.errors import ConfigError
from aisfs.work.pack import ShardContent
from tests.support.for_each import for_each

NAMES = st.lists(
    st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1),
    min_size=1,
    max_size=3,
).map(lambda parts: "/".join(parts).encode())
FILES = st.dictionaries(NAMES, st.binary(max_size=1200), min_size=1, max_size=12)


def read_nothing(file: File, at: int, view: memoryview) -> None:
    """Generated files bring their content."""
    raise AssertionError(file)


@settings(deadline=None, max_examples=50)
@given(FILES, st.integers(1, 4), st.integers(1, 9000), st.integers(7, 1500))
def test_shards_are_tars_of_the_files(contents, max_count, max_size, step):
    files = [File(name, len(data), data) for name, data in contents.items()]
    samples = samples_of(files, packing.key_wds)
    shards = shards_of(samples, max_count, max_size)
    found = {}
    for shard in shards:
        content = ShardContent(read_nothing, shard)
        data = bytearray(content.size)
        for start in range(0, len(data), step):
            content.read_into(start, memoryview(data)[start : start + step])
        whole = bytearray(content.size)
        content.read_into(0, memoryview(whole))
        assert data == whole
        assert shard.samples <= max_count
        assert shard.samples == 1 or len(data) <= max_size
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            names = [member.name.encode() for member in tar]
            found |= {m.name.encode(): tar.extractfile(m).read() for m in tar.getmembers()}
        assert names == [file.name for file in shard.files]
        assert data.endswith(bytes(1024))
    assert found == contents


@given(FILES)
def test_samples_stay_together(contents):
    files = [File(name, len(data), data) for name, data in contents.items()]
    for rule in packing.KEY_RULES.values():
        samples = samples_of(files, rule)
        assert len({sample.key for sample in samples}) == len(samples)
        assert sorted(f.name for s in samples for f in s.files) == sorted(contents)
        for sample in samples:
            assert {rule(file.name) for file in sample.files} == {sample.key}


@for_each(
    "name, wds, last_dot, basename",
    [
        (b"a/b.tar.gz", b"a/b", b"a/b.tar", b"b"),
        (b"a.b/c", b"a.b/c", b"a.b/c", b"c"),
        (b"a.b/c.d", b"a.b/c", b"a.b/c", b"c"),
        (b".hidden", b".hidden", b".hidden", b".hidden"),
        (b"x.", b"x", b"x", b"x"),
    ],
)
def test_key_rules(name, wds, last_dot, basename):
    keys = [packing.KEY_RULES[rule](name) for rule in ("wds", "last-dot", "basename")]
    assert keys == [wds, last_dot, basename]


def test_classes_are_numbered_as_image_folder_does():
    files = [
        File(name, 1, b"x") for name in (b"dog/1.jpg", b"cat/2.jpg", b"cat/1.jpg", b"eel/1.jpg")
    ]
    samples = samples_of(files, packing.key_wds)
    labelled = packing.with_classes(samples, b"cls", packing.class_names_of(samples))
    told = {f.name: f.content for s in labelled for f in s.files if f.name.endswith(b".cls")}
    assert told == {
        b"cat/1.cls": b"0",
        b"cat/2.cls": b"0",
        b"dog/1.cls": b"1",
        b"eel/1.cls": b"2",
    }


@for_each("names", [[b"top.jpg"], [b"a/1.jpg", b"a/1.cls"]])
def test_trees_without_classes_are_refused(names):
    samples = samples_of([File(name, 0, b"") for name in names], packing.key_wds)
    with pytest.raises(ConfigError):
        packing.with_classes(samples, b"cls", packing.class_names_of(samples))


def test_shuffling_is_decided_by_the_seed():
    samples = samples_of([File(b"%d.x" % n, 0, b"") for n in range(100)], packing.key_wds)
    assert packing.shuffled(samples, 1) == packing.shuffled(samples, 1)
    assert packing.shuffled(samples, 1) != packing.shuffled(samples, 2)
    assert sorted(s.key for s in packing.shuffled(samples, 1)) == [s.key for s in samples]


def test_an_empty_layout_is_an_empty_tar():
    assert Layout().size == 1024


@for_each(
    "text, names",
    [
        ("a/train-{000000..}.tar", ["a/train-000000.tar", "a/train-000001.tar"]),
        ("t-{8..11}.tar", ["t-8.tar", "t-9.tar", "t-10.tar", "t-11.tar"]),
        ("t-{098..101}x.tar", ["t-098x.tar", "t-099x.tar", "t-100x.tar", "t-101x.tar"]),
        ("one.tar", ["one.tar"]),
    ],
)
def test_names_of_shards(text, names):
    parsed = ShardNames.parse(text)
    assert [parsed.name(index) for index in range(len(names))] == names
    assert [parsed.index(name) for name in names] == list(range(len(names)))
    assert str(parsed) == text
    for other in ("", "x.tar", names[0] + "x", names[0].replace("0.tar", "00.tar") + "0"):
        assert parsed.index(other) is None
    if ".." not in text or not text.endswith("..}.tar"):
        with pytest.raises(ConfigError, match=f"only {len(names)} names"):
            parsed.name(len(names))


@for_each(
    "text", ["x", "x.tgz", "{a,b}.tar", "{0..1}{0..1}.tar", "{5..4}.tar", "{}.tar", "{0...tar"]
)
def test_names_that_are_refused(text):
    with pytest.raises(ConfigError):
        ShardNames.parse(text)
