"""Tars of joined samples against Python's tarfile, which writes the sources and reads the outcome."""

from collections import Counter
from itertools import groupby

from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.views.join import Column, join_samples
from aisfs.core.views.sample_lists import CUT_OFF, TogetherSamples
from aisfs.core.views.shuffled_tar import ShuffledShard, shuffled_shards
from aisfs.core.views.spec import ShardSplit
from aisfs.settings import Join, KeyRule
from tests.core.views.test_shuffled_tar import EVEN, FORMATS, Members, Sources, key_of
from tests.support.archives import make_tar

KEYS = ["a", "b", "d/a", "é", "n" * 90, "c", "e"]
KEYED = st.lists(st.sampled_from(KEYS), unique=True)
CONTENTS = st.sampled_from([0, 1, 512, 700])


@st.composite
def sources_of_parts(draw) -> list[tuple[int, int, Members]]:
    """Shards with their source: of source 0 with images, of source 1 with labels."""
    found = []
    for source, extension in enumerate((".jpg", ".cls")):
        keys = draw(KEYED)
        cut = draw(st.integers(0, len(keys)))
        for own in (keys[:cut], keys[cut:]):
            members = [(k + extension, f"{k}{extension}".encode() * draw(CONTENTS)) for k in own]
            found.append((source, draw(st.sampled_from(FORMATS)), members))
    return found


def joined(
    sources: Sources,
    of: list[int],
    seed: int | None = None,
    split: ShardSplit = EVEN,
    rule: KeyRule = KeyRule.WDS,
    join: Join = Join.INNER,
) -> tuple[list[ShuffledShard], Counter[str]]:
    columns = []
    for source, data in zip(of, sources.tars.values(), strict=True):
        scanner = TarScanner(len(data))
        scanner.feed(data)
        columns.append(Column(source, scanner.finish()))
    samples = join_samples(columns, 2, rule, (), join)
    indexes = [column.members for column in columns]
    shards, exclusions = shuffled_shards(
        sources.sources, indexes, TogetherSamples(samples), seed, split, rule
    )
    return shards, exclusions + samples.skipped


@settings(deadline=None)
@given(sources_of_parts(), st.sampled_from(Join), st.sampled_from([None, 0, 3]))
def test_the_parts_of_a_sample_are_neighbours_in_the_order_of_the_first_source(
    parts: list[tuple[int, int, Members]], join: Join, seed: int | None
):
    sources = Sources([make_tar(members, form) for _, form, members in parts])
    shards, exclusions = joined(sources, [source for source, _, _ in parts], seed, join=join)
    images, labels = (
        {name.rpartition(".")[0]: (name, data) for at, _, m in parts for name, data in m if at == s}
        for s in (0, 1)
    )
    keys = [key for key in images if key in labels]
    if join is Join.OUTER:
        keys = [*images, *(key for key in labels if key not in images)]
    expected = {k: [each[k] for each in (images, labels) if k in each] for k in keys}
    found = [sources.members(shard) for shard in shards]
    grouped = [
        (key, list(members))
        for one in found
        for key, members in groupby(one, lambda member: key_of(member[0]).decode())
    ]
    assert dict(grouped) == expected
    assert len(grouped) == len(expected)
    assert exclusions == Counter({"unjoined sample": len({*images, *labels}) - len(keys)}) or (
        not exclusions and len(keys) == len({*images, *labels})
    )
    homes = [[n.rpartition(".")[0] for n, _ in m] for _, _, m in parts]
    own = [[key for key in home if key in expected] for home in homes]
    first = {key: at for at, home in reversed(list(enumerate(own))) for key in home}
    if seed is None:
        assert [key for key, _ in grouped] == keys
        assert len(shards) == len(set(first.values()))
        for members in found:
            assert len({first[key_of(name).decode()] for name, _ in members}) == 1


def test_limits_hold_for_joined_samples():
    images = make_tar([(f"{n}.jpg", b"x" * 700) for n in range(7)])
    labels = make_tar([(f"{n}.cls", b"x") for n in reversed(range(7))])
    sources = Sources([images, labels])
    shards, _ = joined(sources, [0, 1], split=ShardSplit(samples=3))
    assert [len(sources.members(shard)) for shard in shards] == [6, 6, 2]
    again, _ = joined(sources, [0, 1], split=ShardSplit(samples=3))
    assert [shard.digest for shard in again] == [shard.digest for shard in shards]


def test_a_part_moves_to_the_directory_of_the_first():
    images = make_tar([("train/a.jpg", b"image"), ("b.jpg", b"other")])
    labels = make_tar([("labels/b.cls", b"1"), ("labels/a.cls", b"2")])
    sources = Sources([images, labels])
    (shard,), exclusions = joined(sources, [0, 1], rule=KeyRule.BASENAME)
    assert not exclusions
    assert sources.members(shard) == [
        ("train/a.jpg", b"image"), ("train/a.cls", b"2"), ("b.jpg", b"other"), ("b.cls", b"1"),
    ]  # fmt: skip


def test_a_sample_with_a_part_that_is_cut_off_is_left_out():
    images = make_tar([("a.jpg", b"x" * 600), ("b.jpg", b"x" * 600)])
    labels = make_tar([("a.cls", b"1"), ("b.cls", b"2" * 2000)])
    sources = Sources([images, labels[: labels.index(b"2" * 2000) + 700]])
    (shard,), exclusions = joined(sources, [0, 1])
    assert sources.members(shard) == [("a.jpg", b"x" * 600), ("a.cls", b"1")]
    assert exclusions == {CUT_OFF: 1}
