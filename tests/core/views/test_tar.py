"""Virtual shards against Python's tarfile, which writes the same objects and reads ours back."""

import io
import tarfile

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.views.samples import SPLITS
from aisfs.core.views.shuffled_tar import (
    LooseShard,
    VirtualShard,
    loose_shards,
    member_header,
    member_size,
    tar_size,
)
from aisfs.core.views.spec import Component, ShardSplit
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.settings import KeyRule
from tests.support.archives import make_tar
from tests.support.for_each import for_each

BUCKET = Bucket("b")
LETTERS = st.sampled_from("ab.é\udcff-_")
PARTS = st.text(LETTERS, min_size=1, max_size=4) | st.sampled_from(["n" * 99, "n" * 100, "n" * 101])
KEYS = st.lists(PARTS.filter(lambda part: part not in (".", "..")), min_size=1, max_size=3).map(
    "/".join
)
CONTENTS = st.dictionaries(KEYS, st.binary(max_size=1100), min_size=1, max_size=8)


def content(key: str, contents: dict[str, bytes]) -> bytes:
    return contents[key]


def objects_of(contents: dict[str, bytes], prefix: str = "") -> list[ObjectInfo]:
    return [ObjectInfo(prefix + key, len(data), "1") for key, data in contents.items()]


def read(shard: VirtualShard, contents: dict[str, bytes], wanted: ByteRange) -> bytes:
    return b"".join(
        piece
        if isinstance(piece, bytes)
        else contents[piece.info.key][piece.range.start : piece.range.stop]
        for piece in shard.pieces(wanted)
    )


def whole(shard: VirtualShard, contents: dict[str, bytes]) -> bytes:
    return read(shard, contents, ByteRange(0, shard.size))


def members(tar_bytes: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(tar_bytes)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


@given(CONTENTS)
def test_the_bytes_are_those_that_tarfile_writes(contents: dict[str, bytes]):
    expected = make_tar(contents, mtime=0, mode=0o444)
    shard = LooseShard(BUCKET, objects_of(contents), 0)
    assert shard.size == len(expected)
    assert whole(shard, contents) == expected
    assert members(whole(shard, contents)) == contents


@given(CONTENTS, st.data())
def test_any_range_is_that_of_the_whole(contents: dict[str, bytes], data: st.DataObject):
    shard = LooseShard(BUCKET, objects_of(contents), 0)
    everything = whole(shard, contents)
    start = data.draw(st.integers(0, shard.size - 1))
    stop = data.draw(st.integers(start + 1, shard.size + 1000))
    assert read(shard, contents, ByteRange(start, stop)) == everything[start:stop]
    pieces = shard.pieces(ByteRange(start, stop))
    fetched = [piece for piece in pieces if not isinstance(piece, bytes)]
    assert list(shard.contents(ByteRange(start, stop))) == fetched


@given(CONTENTS, st.integers(1, 4), st.sampled_from(KeyRule), st.randoms())
def test_samples_stay_whole_and_every_object_is_there_once(
    contents: dict[str, bytes], count: int, rule: KeyRule, random
):
    objects = objects_of(contents)
    split = ShardSplit(samples=count)
    shards, exclusions = loose_shards(BUCKET, objects, 0, split, rule)
    found = [list(members(whole(shard, contents))) for shard in shards]
    names = [name for shard in found for name in shard]
    assert len(set(names)) == len(names) == len(objects) - sum(exclusions.values())
    keys = [
        {(SPLITS[rule](os_bytes(name)) or (last(name, rule), b""))[0] for name in shard}
        for shard in found
    ]
    assert sum(map(len, keys)) == len(set().union(*keys))
    assert all(len(some) == count for some in keys[:-1])
    random.shuffle(objects)
    again, _ = loose_shards(BUCKET, objects, 0, split, rule)
    assert [shard.digest for shard in again] == [shard.digest for shard in shards]


def os_bytes(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def last(name: str, rule: KeyRule) -> bytes:
    return os_bytes(name.rpartition("/")[2] if rule is KeyRule.BASENAME else name)


@given(CONTENTS, st.integers(1, 40_000))
def test_a_size_is_a_limit_unless_one_sample_is_larger(contents: dict[str, bytes], size: int):
    shards, _ = loose_shards(
        BUCKET, objects_of(contents), 0, ShardSplit(None, size), KeyRule.LAST_DOT
    )
    for shard, following in zip(shards, [*shards, None][1:], strict=True):
        inside = members(whole(shard, contents))
        keys = {name.rpartition(".")[0] or name for name in inside}
        assert shard.size <= size or len(keys) == 1
        if following is not None:
            first = next(iter(members(whole(following, contents))))
            both = tar_size(
                sum(member_size(name, len(contents[name])) for name in [*inside, first])
            )
            assert both > size or len(members(whole(following, contents))) > 1


def test_a_size_of_more_than_a_header_holds():
    size = 8**11
    header = member_header("a.bin", size)
    assert len(header) == 1536
    assert member_size("a.bin", size) == 1536 + size
    assert tarfile.TarInfo.frombuf(header[1024:], "utf-8", "strict").name == "a.bin"
    assert b" size=8589934592\n" in header
    assert member_size("a.bin", size - 1) == 512 + size


def test_names_are_below_the_source_and_samples_lie_together():
    contents = {
        "p/a.jpg": b"1", "p/a.d/b.jpg": b"2", "p/a.cls": b"3", "p/.hidden": b"4",
        "p/__meta__.json": b"5", "p/c.jpg": b"6",
    }  # fmt: skip
    require = (Component((b"jpg",)), Component((b"cls",)))
    shards, exclusions = loose_shards(BUCKET, objects_of(contents), 2, ShardSplit())
    assert [list(members(whole(shard, contents))) for shard in shards] == [
        ["a.cls", "a.jpg", "a.d/b.jpg", "c.jpg"]
    ]
    assert exclusions == {"hidden": 1, "metadata": 1}
    shards, exclusions = loose_shards(
        BUCKET, objects_of(contents), 2, ShardSplit(), KeyRule.WDS, require
    )
    assert members(whole(shards[0], contents)) == {"a.cls": b"3", "a.jpg": b"1"}
    assert exclusions == {"hidden": 1, "metadata": 1, "incomplete sample": 2}


@for_each("change", [{"version": "2"}, {"checksum": "md5:1"}, {"size": 8}])
def test_another_version_is_another_shard(change: dict[str, object]):
    before = {"key": "a.jpg", "size": 7, "version": "1"}
    one, other = ObjectInfo(**before), ObjectInfo(**(before | change))
    assert LooseShard(BUCKET, [one], 0).digest != LooseShard(BUCKET, [other], 0).digest
    assert LooseShard(BUCKET, [one], 0).digest == LooseShard(BUCKET, [one], 0).digest
