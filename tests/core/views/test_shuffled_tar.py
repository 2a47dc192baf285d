"""Shuffled shards against Python's tarfile, which writes the sources and reads the outcome."""

import io
import tarfile
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.views.sample_lists import SeparateSamples, ShardSamples
from aisfs.core.views.samples import SPLITS
from aisfs.core.views.shuffled_tar import ShuffledShard, SourceTar, shuffled_shards
from aisfs.core.views.spec import Component, ShardSplit
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.settings import KeyRule
from tests.support.archives import make_tar
from tests.support.for_each import for_each
from tests.support.tars import END, entry, pax, sparse_header

BUCKET = Bucket("b")
EVEN = ShardSplit(None, None)
FORMATS = [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]

Members = list[tuple[str, bytes]]
KEYS = st.sampled_from(["a", "b", "d/a", "é", "n" * 90, "a~s0", "a~s1", "README"])
EXTENSIONS = st.lists(st.sampled_from([".jpg", ".seg.png", ".cls"]), min_size=1, unique=True)
SAMPLES = st.dictionaries(KEYS, EXTENSIONS, max_size=4)
CONTENTS = st.sampled_from([0, 1, 511, 512, 513, 1500])


@st.composite
def shards_of_samples(draw) -> list[tuple[int, Members]]:
    found = []
    for at in range(draw(st.integers(1, 4))):
        members = [
            (key + extension, f"{at}{key}{extension}".encode() * 200)
            for key, extensions in draw(SAMPLES).items()
            for extension in ([""] if key == "README" else extensions)
        ]
        cut = [(name, data[: draw(CONTENTS)]) for name, data in members]
        found.append((draw(st.sampled_from(FORMATS)), cut))
    return found


class Sources:
    """Shards in memory, and what is made of them."""

    def __init__(self, tars: Sequence[bytes], versions: Sequence[str] = ()) -> None:
        self.tars = {f"s{at}.tar": data for at, data in enumerate(tars)}
        self.sources = [
            SourceTar(
                BUCKET, ObjectInfo(key, len(data), versions[at] if versions else "1"), b"s%d" % at
            )
            for at, (key, data) in enumerate(self.tars.items())
        ]

    def shuffled(
        self,
        seed: int = 1,
        split: ShardSplit = EVEN,
        rule: KeyRule = KeyRule.WDS,
        require: tuple[Component, ...] = (),
    ) -> tuple[list[ShuffledShard], Counter[str]]:
        samples = []
        for data in self.tars.values():
            scanner = TarScanner(len(data))
            scanner.feed(data)
            samples.append(ShardSamples(scanner.finish(), rule, require))
        indexes = [one.index for one in samples]
        shards, exclusions = shuffled_shards(
            self.sources, indexes, SeparateSamples(samples), seed, split, rule
        )
        for one in samples:
            exclusions += one.skipped
        return shards, exclusions

    def read(self, shard: ShuffledShard, wanted: ByteRange) -> bytes:
        return b"".join(
            piece
            if isinstance(piece, bytes)
            else self.tars[piece.info.key][piece.range.start : piece.range.stop]
            for piece in shard.pieces(wanted)
        )

    def whole(self, shard: ShuffledShard) -> bytes:
        data = self.read(shard, ByteRange(0, shard.size))
        assert len(data) == shard.size
        return data

    def members(self, shard: ShuffledShard) -> Members:
        with tarfile.open(fileobj=io.BytesIO(self.whole(shard))) as tar:
            return [(member.name, tar.extractfile(member).read()) for member in tar]


def key_of(name: str, rule: KeyRule = KeyRule.WDS) -> bytes:
    return (SPLITS[rule](name.encode()) or (name.encode(), b""))[0]


def grouped(members: Members) -> list[tuple[bytes, ...]]:
    """The samples that a reader which goes by neighbours finds, without names."""
    return [
        tuple(data for _, data in group) for _, group in groupby(members, lambda m: key_of(m[0]))
    ]


@settings(deadline=None)
@given(shards_of_samples(), st.integers(0, 5), st.sampled_from([EVEN, ShardSplit(samples=2)]))
def test_every_sample_is_there_once_and_whole(
    given_shards: list[tuple[int, Members]], seed: int, split: ShardSplit
):
    sources = Sources([make_tar(members, form) for form, members in given_shards])
    shards, exclusions = sources.shuffled(seed, split)
    assert not exclusions
    expected = Counter(each for _, members in given_shards for each in grouped(members))
    found = [sources.members(shard) for shard in shards]
    assert Counter(each for members in found for each in grouped(members)) == expected
    for members in found:
        assert len(grouped(members)) == len({key_of(name) for name, _ in members})
        assert len(dict(members)) == len(members)
    counts = [len(grouped(members)) for members in found]
    if split.samples:
        assert all(count == split.samples for count in counts[:-1])
    else:
        assert len(counts) == min(expected.total(), len(given_shards))
        assert max(counts, default=0) - min(counts, default=0) <= 1


@settings(deadline=None)
@given(shards_of_samples(), st.data())
def test_any_range_equals_that_of_the_whole(given_shards: list[tuple[int, Members]], data):
    sources = Sources([make_tar(members, form) for form, members in given_shards])
    for shard in sources.shuffled()[0]:
        whole = sources.whole(shard)
        start = data.draw(st.integers(0, shard.size))
        wanted = ByteRange(start, start + data.draw(st.integers(1, 3000)))
        assert sources.read(shard, wanted) == whole[wanted.start : wanted.stop]
        contents = [piece for piece in shard.pieces(wanted) if not isinstance(piece, bytes)]
        assert list(shard.contents(wanted)) == contents
        assert shard.size % 10240 == 0


def numbered(shards: int, samples: int, size: int = 600) -> list[Members]:
    return [
        [
            (f"{shard}{sample:03}.{extension}", bytes([sample]) * size)
            for sample in range(samples)
            for extension in ("jpg", "cls")
        ]
        for shard in range(shards)
    ]


def test_the_seed_decides_and_samples_are_mixed():
    sources = Sources([make_tar(members) for members in numbered(4, 50)])
    one, again, other = (sources.shuffled(seed)[0] for seed in (3, 3, 4))
    assert [shard.digest for shard in one] == [shard.digest for shard in again]
    assert list(map(sources.whole, one)) == list(map(sources.whole, again))
    assert not {shard.digest for shard in one} & {shard.digest for shard in other}
    for shard in one:
        members = sources.members(shard)
        assert {name[0] for name, _ in members} == set("0123")
        assert [name for name, _ in members] != sorted(name for name, _ in members)
        assert all(key_of(jpg) == key_of(cls) for (jpg, _), (cls, _) in pairs(members))


def pairs(members: Members) -> list[tuple[tuple[str, bytes], tuple[str, bytes]]]:
    return list(zip(members[::2], members[1::2], strict=True))


def test_the_order_is_the_same_for_ever():
    sources = Sources([make_tar(members) for members in numbered(2, 4)])
    found = [[name for name, _ in sources.members(shard)[::2]] for shard in sources.shuffled(1)[0]]
    assert found == [
        ["0000.jpg", "0002.jpg", "0003.jpg", "1002.jpg"],
        ["1003.jpg", "1000.jpg", "1001.jpg", "0001.jpg"],
    ]


@settings(deadline=None)
@given(st.integers(1, 30_000), st.integers(0, 3))
def test_a_size_is_a_limit_unless_one_sample_is_larger(size: int, seed: int):
    sources = Sources([make_tar(members) for members in numbered(2, 5)])
    shards, _ = sources.shuffled(seed, ShardSplit(None, size))
    for shard in shards:
        assert shard.size <= size or len(sources.members(shard)) == 2
    assert sum(len(sources.members(shard)) for shard in shards) == 20


def test_headers_are_copied_and_those_of_other_names_made():
    name = "x" * 120 + ".jpg"
    tars = [
        make_tar([("a.jpg", b"1"), (name, b"2")], tarfile.GNU_FORMAT, mtime=7, mode=0o640),
        make_tar([("a.jpg", b"3"), ("a.seg.png", b"4")], mtime=8.5, mode=0o640),
    ]
    sources = Sources(tars)
    shards, exclusions = sources.shuffled(2, ShardSplit(samples=9))
    assert not exclusions
    with tarfile.open(fileobj=io.BytesIO(sources.whole(shards[0]))) as tar:
        found = {tar.extractfile(m).read(): (m.name, m.mode, m.mtime) for m in tar}
    first = found[b"1"][0] == "a.jpg"
    assert found[b"2"] == (name, 0o640, 7)
    if first:
        assert found[b"1"] == ("a.jpg", 0o640, 7)
        assert found[b"3"] == ("a~s1.jpg", 0o444, 8)
        assert found[b"4"] == ("a~s1.seg.png", 0o444, 8)
    else:
        assert found[b"1"] == ("a~s0.jpg", 0o444, 7)
        assert found[b"3"] == ("a.jpg", 0o640, 8.5)
        assert found[b"4"] == ("a.seg.png", 0o640, 8.5)


@for_each("rule", KeyRule)
def test_samples_of_one_key_stay_two_by_every_rule(rule: KeyRule):
    sources = Sources([make_tar([("d/a.seg.png", b"%d" % at)]) for at in range(3)])
    shards, exclusions = sources.shuffled(1, ShardSplit(samples=9), rule)
    names = [name for name, _ in sources.members(shards[0])]
    assert len({key_of(name, rule) for name in names}) == 3
    assert all(name.startswith("d/a") and name.endswith(".seg.png") for name in names)
    assert not exclusions


def test_members_of_one_key_that_lie_apart_come_together_and_the_last_of_one_name_wins():
    members = [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"3"), ("a.jpg", b"4")]
    sources = Sources([make_tar(members)])
    shards, exclusions = sources.shuffled()
    assert sorted(grouped(sources.members(shards[0]))) == [(b"2",), (b"3", b"4")]
    assert exclusions == {"duplicate": 1}


def test_what_is_no_member_of_a_sample_is_left_out():
    members = [("a.jpg", b"1"), (".hidden", b""), ("__meta__.json", b"{}"), ("b.jpg", b"2")]
    sources = Sources([make_tar([*members, ("c.cls", b"3")])])
    shards, exclusions = sources.shuffled(require=(Component((b"jpg",)),))
    assert sorted(sources.members(shards[0])) == [("a.jpg", b"1"), ("b.jpg", b"2")]
    assert exclusions == {"hidden": 1, "metadata": 1, "incomplete sample": 1}
    links = entry(b"a.jpg", b"1") + entry(b"l.jpg", kind=b"2", target=b"a.jpg") + END
    shards, exclusions = Sources([links]).shuffled()
    assert exclusions == {"link": 1}


def test_a_hardlink_is_a_copy_with_a_header_of_its_own():
    tar = entry(b"a.jpg", b"one") + entry(b"b.jpg", kind=b"1", target=b"a.jpg") + END
    sources = Sources([tar])
    shards, exclusions = sources.shuffled()
    assert sorted(sources.members(shards[0])) == [("a.jpg", b"one"), ("b.jpg", b"one")]
    assert not exclusions


def test_a_sample_that_is_cut_off_is_left_out():
    tar = (entry(b"a.jpg", b"1") + entry(b"b.jpg", b"2" * 2000))[: 3 * 512 + 700]
    sources = Sources([tar])
    shards, exclusions = sources.shuffled()
    assert sources.members(shards[0]) == [("a.jpg", b"1")]
    assert exclusions == {"cut off sample": 1}


def test_a_tar_without_padding_at_its_end_is_padded():
    tar = (entry(b"a.jpg", b"1") + entry(b"b.jpg", b"22"))[: 3 * 512 + 2]
    sources = Sources([tar])
    shards, exclusions = sources.shuffled()
    assert sorted(sources.members(shards[0])) == [("a.jpg", b"1"), ("b.jpg", b"22")]
    assert not exclusions


def test_global_headers_stay_behind():
    tar = pax({b"mtime": b"5"}, b"g") + entry(b"a.jpg", b"1") + entry(b"b.jpg", b"2") + END
    sources = Sources([tar])
    with tarfile.open(fileobj=io.BytesIO(sources.whole(sources.shuffled()[0][0]))) as read:
        assert sorted(member.name for member in read) == ["a.jpg", "b.jpg"]
        assert not read.pax_headers


def test_a_name_that_would_be_too_long_is_left_out():
    sources = Sources([make_tar([("n" * 250 + ".jpg", b"1")]) for _ in range(2)])
    shards, exclusions = sources.shuffled(1, ShardSplit(samples=2))
    assert [len(sources.members(shard)) for shard in shards] == [1]
    assert exclusions == {"clash": 1}


def test_a_sparse_member_is_copied_and_left_out_where_it_would_need_another_name():
    sparse = sparse_header(b"a.bin", [(512, 512)], 512, 4096) + b"data" * 128
    sources = Sources([sparse + END, make_tar([("b.jpg", b"1")])])
    shards, exclusions = sources.shuffled(1, ShardSplit(samples=9))
    assert dict(sources.members(shards[0]))["a.bin"] == bytes(512) + b"data" * 128 + bytes(3072)
    assert not exclusions
    sources = Sources([sparse + END] * 2)
    shards, exclusions = sources.shuffled(1, ShardSplit(samples=9))
    assert [name for name, _ in sources.members(shards[0])] == ["a.bin"]
    assert exclusions == {"sparse sample": 1}


def test_another_version_of_a_source_is_another_shard():
    tars = [make_tar(members) for members in numbered(2, 5)]
    before = Sources(tars, ["1", "1"]).shuffled()[0]
    after = Sources(tars, ["1", "2"]).shuffled()[0]
    assert before[0].digest != after[0].digest
