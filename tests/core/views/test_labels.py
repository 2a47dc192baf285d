"""Labels out of contents that stream by, as columns, as bytes and back."""

import codecs
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.index import published
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import LabelColumn, decode_published, encode_published
from aisfs.core.views.merged import MergedView
from aisfs.core.views.sample_views import (
    UNUSABLE,
    LabelScan,
    class_namer,
    class_names,
    labelled_samples,
    parse_table,
    place_images,
    read_label,
)
from aisfs.core.views.spec import LabelRule, LabelSource, ViewSpec, parse_view
from aisfs.errors import ConfigError, IndexRefused
from aisfs.settings import View, ViewSettings
from tests.support.archives import make_tar
from tests.support.for_each import for_each
from tests.support.publishing import SCAN, shard_of

CLS = LabelRule(LabelSource.CONTENT, "cls")


def scan(content: bytes, cuts: list[int], rule: LabelRule = CLS) -> tuple[MemberIndex, LabelColumn]:
    scanner = TarScanner(len(content))
    labels = LabelScan(rule, scanner.rows)
    places = sorted({0, len(content), *(cut % (len(content) + 1) for cut in cuts)})
    for start, stop in pairwise(places):
        piece = memoryview(content)[start:stop]
        scanner.feed(piece)
        labels.feed(start, piece)
    index = scanner.finish()
    return index, labels.finish(index)


def encoded(index: MemberIndex, column: LabelColumn) -> bytes:
    return encode_published(shard_of(index), index, {"cls": column}, SCAN)


def decoded(data: bytes, index: MemberIndex) -> LabelColumn:
    """What a mount reads that has kept this itself."""
    return decode_published(data, shard_of(index), SCAN, trusted=True).labels["cls"]


MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(["a.cls", "b.CLS", "b.jpg", "c.cls", "c.cls.jpg", "d/e.cls"]),
        st.binary(max_size=1200),
    ),
    max_size=8,
)


@given(MEMBERS, st.lists(st.integers(0, 1 << 16), max_size=8))
def test_labels_do_not_depend_on_how_the_bytes_are_cut(members, cuts):
    index, column = scan(make_tar(members), cuts)
    assert column.by_row() == {
        row: data.strip()
        for row, (name, data) in enumerate(members)
        if name.lower().endswith(".cls") and data
    }
    assert decoded(encoded(index, column), index) == column


def test_labels_that_could_not_be_decoded_are_not_encoded(monkeypatch):
    index, column = scan(make_tar([(f"{at}.cls", b"%099d" % at) for at in range(100)]), [])
    monkeypatch.setattr(published, "CONTENT_MAX", 99)
    assert decoded(encoded(index, column), index) == column
    monkeypatch.setattr(published, "CONTENT_MAX", 98)
    with pytest.raises(ValueError, match="cannot be published"):
        encoded(index, column)


@given(MEMBERS)
def test_skipping_contents_nobody_wants_reads_the_same_labels(members):
    content = make_tar(members)
    scanner = TarScanner(len(content))
    labels = LabelScan(CLS, scanner.rows)
    while True:
        start = min(scanner.needed, scanner.needed if labels.needed is None else labels.needed)
        if start >= len(content):
            break
        piece = memoryview(content)[start : start + 700]
        scanner.seek(start)
        scanner.feed(piece)
        labels.feed(start, piece)
    index = scanner.finish()
    assert labels.finish(index).by_row() == scan(content, [])[1].by_row()


def test_a_label_that_is_cut_off_is_none():
    content = make_tar([("a.cls", b"1"), ("b.cls", b"x" * 600)])
    index, column = scan(content[: 2048 + 1024 + 1024], [])
    assert column.by_row() == {0: b"1"}
    assert index.warnings


@given(st.binary(max_size=60), st.integers(0, 59), st.integers(1, 255))
def test_damage_of_what_is_kept_is_noticed(junk: bytes, at: int, flip: int):
    index, column = scan(make_tar([("a.cls", b"1"), ("b.cls", b"2")]), [])
    data = bytearray(encoded(index, column))
    data[at % len(data)] ^= flip
    for damaged in (bytes(data), junk):
        with pytest.raises(IndexRefused):
            decoded(damaged, index)
    with pytest.raises(IndexRefused):
        decoded(encoded(index, column), scan(make_tar([("c", bytes(20_000))]), [])[0])


@for_each(
    "path, value, label",
    [
        ("a", {"a": "cat"}, b"cat"),
        ("a", {"a": 7}, b"7"),
        ("a.b.1", {"a": {"b": [1, "x"]}}, b"x"),
        ("a", {"a": True}, UNUSABLE),
        ("a", {"a": None}, UNUSABLE),
        ("a", {"a": 1.5}, UNUSABLE),
        ("a", {"b": 1}, UNUSABLE),
        ("a.b", {"a": 3}, UNUSABLE),
        ("a.x", {"a": [1]}, UNUSABLE),
        ("a", [], UNUSABLE),
    ],
)
def test_labels_in_json(path, value, label):
    rule = LabelRule(LabelSource.JSON, path)
    assert read_label(rule, json.dumps(value).encode()) == label


@given(st.binary(max_size=50))
def test_no_content_raises(content: bytes):
    read_label(LabelRule(LabelSource.JSON, "a.0"), content)
    assert read_label(LabelRule(LabelSource.JSON, "a"), b"[" * 100_000) == UNUSABLE


@for_each(
    "labels, classes, names",
    [
        ({b"0", b"9", b"10"}, None, {b"0": b"00", b"9": b"09", b"10": b"10"}),
        ({b"1", b"01"}, None, {b"1": b"1", b"01": b"1"}),
        ({b"-1", b"10"}, None, {b"-1": b"-01", b"10": b"10"}),
        ({b"cat", b"1"}, None, {b"cat": b"cat", b"1": b"1"}),
        ({b"a/b", b"..", b"ok"}, None, {b"a/b": None, b"..": None, b"ok": b"ok"}),
        ({b"0", b"2", b"-1", b"y", b"z"}, (b"x", b"y"),
         {b"0": b"x", b"2": None, b"-1": None, b"y": b"y", b"z": None}),
    ],
)  # fmt: skip
def test_names_of_classes(labels, classes, names):
    assert class_names(labels, classes) == names


@given(st.sets(st.integers(0, 10**6), min_size=1))
def test_integer_labels_sort_as_numbers(numbers: set[int]):
    names = class_names({str(n).encode() for n in numbers}, None)
    ordered = sorted(numbers)
    assert sorted(names.values()) == [names[str(n).encode()] for n in ordered]


@for_each(
    "text, table",
    [
        ("a,1\nb,2\n", {b"a": b"1", b"b": b"2"}),
        ("key,label\na,1\n", {b"a": b"1"}),
        ("label,x,filename\n1,z,a.jpg\n", {b"a.jpg": b"1"}),
        ('\ufeff"a,b",c d\r\n\r\nshort\n', {b"a,b": b"c d"}),
        (
            "a.jpg\tred, small\nb.jpg\tblue, big\n",
            {b"a.jpg": b"red, small", b"b.jpg": b"blue, big"},
        ),
        ("image;x;label\r\na,1.jpg;z;cat\r\n", {b"a,1.jpg": b"cat"}),
        ('"a;b",1\n', {b"a;b": b"1"}),
        ("a,1;2\n", {b"a": b"1;2"}),
    ],
)
def test_tables(text: str, table: dict[bytes, bytes]):
    assert parse_table("t", text.encode()) == table


def test_a_table_as_excel_saves_unicode_text():
    assert parse_table("t", "key\tlabel\r\nä\tcat\r\n".encode("utf-16")) == {"ä".encode(): b"cat"}


@for_each(
    "content, label",
    [
        ("7\r\n".encode("utf-8-sig"), b"7"),
        ("kätzchen\n".encode("utf-16"), "kätzchen".encode()),
        (codecs.BOM_UTF16_BE + "cat".encode("utf-16-be"), b"cat"),
        (b"\xff\xfeodd", b"\xff\xfeodd"),
        (b"\xef\xbb\xbf", b""),
    ],
)
def test_labels_with_a_byte_order_mark(content: bytes, label: bytes):
    assert read_label(LabelRule(LabelSource.CONTENT, "cls"), content) == label


def test_what_is_no_table():
    for text in (b"", b"one column\n"):
        with pytest.raises(ConfigError, match="csv:t"):
            parse_table("t", text)


@for_each(
    "options",
    [
        {"view": "class", "label": "json:"},
        {"view": "class", "label": "what:x"},
        {"view": "class", "label": ""},
        {"view": "class", "image": "jpg;;png"},
        {"view": "samples", "require": "a/b"},
        {"view": "samples", "label": "cls"},
        {"view": "flat", "image": "jpg"},
        {"key_rule": "wds"},
    ],
)
def test_options_that_make_no_sense(options: dict[str, str]):
    with pytest.raises(ConfigError, match=r"--(label|image|require|key-rule)"):
        parse_view(ViewSettings.load(options))


@for_each("lines", [[], [b"a", b"a"], [b"a/b"], [b"a", b"", b"b"], [b".."]])
def test_class_names_that_cannot_be(lines: list[bytes]):
    with pytest.raises(ConfigError, match="--classes"):
        parse_view(ViewSettings.load({"view": "class"}), lines)


def test_memory_of_a_class_view_is_bounded_and_linear():
    """80 bytes for each member beyond names: indexes, columns of the view, what a rebuild keeps."""
    spec = ViewSpec(View.CLASS)
    costs = []
    for shards in (5, 10):
        placed, kept, names, members = [], 0, 0, 0
        for number in range(shards):
            pairs = [(f"{number:03}{n:06}", n % 100) for n in range(1000)]
            files = [(f"{k}.{e}", b"%d" % c) for k, c in pairs for e in ("cls", "jpg")]
            index, column = scan(make_tar(files), [])
            found = labelled_samples(index, spec, column, None)
            own, _ = place_images(
                b"s%d" % number, index, found, spec, class_names(found.table, None)
            )
            placed.append(own)
            kept += index.nbytes + 8 * len(found.rows)
            names += sum(map(len, index.names()))
            members += len(index)
        view = MergedView(placed, class_namer(spec))
        assert view.files == shards * 1000
        costs.append((view.nbytes + kept - names) / members)
    assert max(costs) <= 80
    assert costs[1] <= costs[0] * 1.05
