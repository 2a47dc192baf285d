"""Joined samples against a model of dictionaries, and the views that show them."""

from array import array
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import LabelColumn
from aisfs.core.views.join import REPEATED, UNJOINED, Column, JoinedSamples, join_samples
from aisfs.core.views.merged import DUPLICATE, folder_names_of_columns
from aisfs.core.views.sample_views import NO_LABEL, UNCLEAR_IMAGE, SampleFolders, labelled_joined
from aisfs.core.views.samples import HIDDEN, INCOMPLETE, SPLITS, has_component, split_name
from aisfs.core.views.spec import PICTURES, Component, LabelRule, LabelSource, ViewSpec
from aisfs.settings import Join, KeyRule, View
from tests.core.views.test_samples import index_of
from tests.support.for_each import for_each

CLS = Component((b"cls",))
JPG = Component((b"jpg",))
NAMES = st.sampled_from(
    ["a.jpg", "a.cls", "a.JPG", "a.seg.jpg", "d/a.jpg", "d/a.cls", "b.jpg", "b.cls", "c.txt",
     "README", ".hidden", "__meta__/x.json", "b/a.jpg", "link@"]
)  # fmt: skip
SOURCES = st.lists(st.lists(st.lists(NAMES, max_size=5), min_size=1, max_size=3), max_size=3)
Parts = dict[bytes, list[tuple[int, int]]]


def columns_of(sources: list[list[list[str]]]) -> list[Column]:
    indexes: dict[tuple[str, ...], MemberIndex] = {}
    return [
        Column(at, indexes.setdefault(tuple(names), index_of(*names)))
        for at, shards in enumerate(sources)
        for names in shards
    ]


def model(
    sources: list[list[list[str]]], rule: KeyRule, require: list[Component], join: Join
) -> tuple[Parts, Counter[str]]:
    """Join as one would with dictionaries and no regard to cost."""
    parts: Parts = {}
    extensions: dict[bytes, set[bytes]] = {}
    own: list[set[bytes]] = [set() for _ in sources]
    skipped: Counter[str] = Counter()
    for shard, (source, index) in enumerate(columns_of(sources)):
        last = {name: row for row, name in enumerate(index.names())}
        fresh: dict[bytes, set[bytes]] = {}
        for row, name in enumerate(index.names()):
            found = split_name(name, SPLITS[rule])
            if name == b"link":
                skipped["link"] += 1
            elif isinstance(found, str):
                skipped[found] += 1
            elif last[name] != row:
                skipped[DUPLICATE] += 1
            else:
                key, extension = found[0], found[1].lower()
                own[source].add(key)
                if extension in extensions.get(key, ()):
                    skipped[REPEATED] += 1
                else:
                    parts.setdefault(key, []).append((shard, row))
                    fresh.setdefault(key, set()).add(extension)
        for key, found in fresh.items():
            extensions.setdefault(key, set()).update(found)
    if join is Join.INNER:
        joint = {key: where for key, where in parts.items() if all(key in keys for keys in own)}
        skipped[UNJOINED] += len(parts) - len(joint)
        parts = joint
    whole = {
        k: p for k, p in parts.items() if all(has_component(c, extensions[k]) for c in require)
    }
    skipped[INCOMPLETE] += len(parts) - len(whole)
    return whole, +skipped


def listed(joined: JoinedSamples) -> Parts:
    return {
        joined.key(sample): [(joined.shards[at], joined.rows[at]) for at in joined.parts(sample)]
        for sample in range(len(joined))
    }


@given(
    SOURCES,
    st.sampled_from(KeyRule),
    st.lists(st.sampled_from([CLS, JPG]), max_size=2),
    st.sampled_from(Join),
)
def test_joined_as_dictionaries_would(
    sources: list[list[list[str]]], rule: KeyRule, require: list[Component], join: Join
):
    joined = join_samples(columns_of(sources), len(sources), rule, tuple(require), join)
    expected, skipped = model(sources, rule, require, join)
    assert listed(joined) == expected
    assert list(listed(joined)) == list(expected), "in the order of the first source"
    assert joined.skipped == skipped
    homes = joined.homes()
    assert [shard for shard, samples in homes for _ in samples] == [
        where[0][0] for where in expected.values()
    ]
    assert [sample for _, samples in homes for sample in samples] == list(range(len(expected)))
    for shard, rows in enumerate(joined.rows_by_shard()):
        assert list(rows) == sorted(r for p in expected.values() for s, r in p if s == shard)
        together = [{s for s, _ in where} for where in expected.values()]
        beside = set().union(*(each for each in together if shard in each))
        assert joined.beside(shard) == beside - {shard}


def test_more_extensions_than_a_mask_has_bits():
    many = [f"a.x{n}" for n in range(100)]
    columns = columns_of([[many], [["a.x63", "a.x99", "a.X5", "a.other"]]])
    joined = join_samples(columns, 2, KeyRule.WDS, (), Join.INNER)
    assert len(joined.parts(0)) == 101
    assert joined.skipped == {REPEATED: 3}
    assert joined.repeated == {b"x63": 1, b"x99": 1, b"x5": 1}


def test_a_source_without_shards_has_no_samples():
    columns = columns_of([[["a.jpg"]]])
    assert len(join_samples(columns, 2, KeyRule.WDS, (), Join.INNER)) == 0
    joined = join_samples(columns, 2, KeyRule.WDS, (), Join.OUTER)
    assert joined.found == [(1, b"a"), (0, b"")]
    assert len(joined) == 1


def walk(view: SampleFolders, path: bytes = b"") -> list[tuple[str, int, int]]:
    assert view.ready(path) or path.count(b"/") == 0
    view.prepare(path)
    number = view.resolve(path)
    assert number is not None
    found = []
    for position in range(view.count(number)):
        child = view.child(number, position)
        assert view.find(number, child.name) == child
        below = path + b"/" + child.name if path else child.name
        if child.directory is not None:
            found += walk(view, below)
            assert view.resolve(below) == child.directory
        else:
            found.append((below.decode(), child.shard, child.row))
    assert view.find(number, b"none") is None
    return found


def folders(sources: list[list[list[str]]], join: Join) -> SampleFolders:
    columns = columns_of(sources)
    joined = join_samples(columns, len(sources), KeyRule.WDS, (), join)
    names = [b"s%d" % at for at in range(len(columns))]
    return SampleFolders(names, [column.members for column in columns], joined)


def test_a_folder_for_each_sample_of_the_first_source():
    images = [["a.jpg", "d/b.jpg"], ["c.jpg", "e.jpg"]]
    labels = [["e.cls", "d/b.cls", "x.cls", "a.cls"]]
    view = folders([images, labels], Join.INNER)
    assert walk(view) == [
        ("s0/a/a.jpg", 0, 0), ("s0/a/a.cls", 2, 3), ("s0/d/b/b.jpg", 0, 1), ("s0/d/b/b.cls", 2, 1),
        ("s1/e/e.jpg", 1, 1), ("s1/e/e.cls", 2, 0),
    ]  # fmt: skip
    assert view.resolve(b"s2") is None
    assert view.resolve(b"") == 0
    assert not folders([images, labels], Join.INNER).ready(b"s1/e")
    outer = walk(folders([images, labels], Join.OUTER))
    assert ("s1/c/c.jpg", 1, 0) in outer
    assert outer[-1] == ("s2/x/x.cls", 2, 2)


@given(SOURCES, st.sampled_from(Join))
def test_folders_show_every_joined_part_once(sources: list[list[list[str]]], join: Join):
    view = folders(sources, join)
    expected, _ = model(sources, KeyRule.WDS, [], join)
    shown = walk(view)
    assert len({path for path, _, _ in shown}) == len(shown)
    assert sorted((shard, row) for _, shard, row in shown) == sorted(
        part for where in expected.values() for part in where
    )


def test_a_folder_counts_what_has_no_place_in_it():
    columns = columns_of([[["x/a.jpg", "y/a.jpg"]], [["a.cls"]]])
    joined = join_samples(columns, 2, KeyRule.BASENAME, (), Join.INNER)
    view = SampleFolders([b"s0", b"s1"], [column.members for column in columns], joined)
    assert walk(view) == [("s0/a/a.jpg", 0, 1), ("s0/a/a.cls", 1, 0)]
    assert view.skipped_in(b"s0") == {DUPLICATE: 1}
    assert view.skipped_in(b"s0/a") == {}


def labels(sources: list[list[list[str]]], said: list[dict[int, bytes]], **options):
    columns = columns_of(sources)
    joined = join_samples(columns, len(sources), KeyRule.WDS, (), Join.OUTER)
    kept = []
    for each in said:
        table = list(each.values())
        kept.append(LabelColumn(array("I", each), array("I", range(len(table))), table))
    indexes = [column.members for column in columns]
    spec = ViewSpec(View.CLASS, join=Join.OUTER, **options)
    found, skipped = labelled_joined(joined, indexes, spec, kept, {b"b": b"from a table"})
    return [
        [(row, one.table[at]) for row, at in zip(one.rows, one.ids, strict=True)] for one in found
    ], skipped


def test_labels_from_the_shard_that_has_them():
    sources = [[["b.jpg", "a.jpg"], ["c.jpg", "c.png", "d.image.jpg", "d.thumb.jpg"]],
               [["a.cls", "d.cls"], ["b.cls"]]]  # fmt: skip
    found, skipped = labels(sources, [{}, {}, {0: b"0", 1: b"1"}, {0: b"2"}])
    assert found == [[(0, b"2"), (1, b"0")], [], [], []]
    assert skipped == {NO_LABEL: 1, UNCLEAR_IMAGE: 1}
    every, skipped = labels(
        sources, [{}, {}, {0: b"0", 1: b"1"}, {0: b"2"}], image=PICTURES, all_images=True
    )
    assert every == [[(0, b"2"), (1, b"0")], [(2, b"1"), (3, b"1")], [], []]
    assert skipped == {NO_LABEL: 2}
    table = LabelRule(LabelSource.TABLE, "x")
    found, skipped = labels(sources, [{}] * 4, label=table)
    assert found == [[(0, b"from a table")], [], [], []]
    assert skipped == {NO_LABEL: 2, UNCLEAR_IMAGE: 1}


def test_a_blank_label_is_no_missing_one():
    _, skipped = labels([[["a.jpg"]], [["a.cls"]]], [{}, {0: b""}])
    assert skipped == {"bad label": 1}


def test_hidden_members_are_counted_in_every_source():
    joined = join_samples(columns_of([[[".x"]], [[".y"]]]), 2, KeyRule.WDS, (), Join.OUTER)
    assert joined.skipped == {HIDDEN: 2}


@for_each(
    "sources, names",
    [
        ([[("i", "x-0.tar")], [("l", "x-0.tar")]], [b"x-0", b"l~x-0"]),
        ([[("i", "x.tar")], [("l", "y.tar")]], [b"x", b"y"]),
        ([[("i", "a/x.tar"), ("i", "b/x.tar")], [("l", "x.tar")]], [b"a~x", b"b~x", b"l~x"]),
        ([[("i", "x.tar")], [("i", "x.tgz"), ("l", "x")]], [b"x", b"i~x~2", b"l~x"]),
    ],
)
def test_shards_of_the_first_source_keep_their_names(sources, names):
    assert folder_names_of_columns(sources) == names
