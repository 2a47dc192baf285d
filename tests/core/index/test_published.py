"""Published indexes: equal to a scan, small, and harmless whatever their bytes are."""

import hashlib
import itertools
import random
import struct
import tracemalloc
import zlib
from array import array
from dataclasses import dataclass
from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.archive.zip import ZipScanner
from aisfs.core.index import published
from aisfs.core.index.builder import MAX_NESTING, MAX_REASONS, MemberIndexBuilder
from aisfs.core.index.columns import MemberColumns, normalise
from aisfs.core.index.member_index import MemberIndex, MemberKind
from aisfs.core.index.published import (
    LabelColumn,
    ScanRules,
    decode_published,
    encode_published,
    most_bytes,
)
from aisfs.core.names.listing import Form, published_key, shard_of_published
from aisfs.core.views.sample_views import LabelScan
from aisfs.core.views.spec import LabelSource
from aisfs.core.views.tree import MembersView
from aisfs.errors import IndexOutdated, IndexRefused, ShardDamaged
from aisfs.model import ObjectInfo
from tests.core.index.test_codec import ODD, webdataset
from tests.core.views.test_labels import CLS
from tests.support.archives import make_zip
from tests.support.for_each import for_each
from tests.support.publishing import SCAN, everything, shard_of
from tests.support.tars import END, entry, shard

CI = settings.get_current_profile_name() != "search"
NAME = f"{CLS.source.name} {CLS.text}"


@dataclass(frozen=True)
class Case:
    """A shard, and its index by a scan."""

    info: ObjectInfo
    index: MemberIndex
    labels: dict[str, LabelColumn]

    @property
    def data(self) -> bytes:
        return encode_published(self.info, self.index, self.labels, SCAN)


def scan(data: bytes) -> Case:
    scanner = TarScanner(len(data), nesting=MAX_NESTING)
    labels = LabelScan(CLS, scanner.rows)
    scanner.feed(data)
    labels.feed(0, memoryview(data))
    index = scanner.finish()
    return Case(shard_of(index), index, {NAME: labels.finish(index)})


@cache
def cases() -> dict[str, Case]:
    inner = entry(b"a.cls", b"7") + entry(b"l", kind=b"2", target=b"a.cls") + END
    nested = entry(b"in.tar", inner) + entry(b"deep/in.tar", entry(b"x.tar", inner) + END)
    zipped = make_zip({f"s_{at:05}.cls": b"%d" % (at % 7) for at in range(40)} | {"d/": b""})
    scanner = ZipScanner(len(zipped))
    while (wanted := scanner.wanted) is not None:
        scanner.feed(zipped[wanted.start : wanted.stop])
    index = scanner.finish()
    samples = b"".join(
        entry(b"s_%05d.jpg" % at, b"x" * (37 * at % 700))
        + entry(b"s_%05d.cls" % at, b"%d" % (at % 9))
        for at in range(100)
    )
    return {
        "odd": scan(ODD + entry(b"odd.cls", b"cat") + END),
        "cut": scan(ODD + entry(b"cut", b"z" * 2000)[:-1024]),
        "nested": scan(nested + END),
        "samples": scan(samples + END),
        "zip": Case(shard_of(index), index, {}),
        "empty": scan(END),
        "long": scan(shard([f"{'d' * 70}/{at}" for at in range(50)])),
    }


# What comes back -------------------------------------------------------------------------------


@for_each("name", cases())
def test_members_and_labels_equal_those_of_a_scan(name):
    case = cases()[name]
    found = decode_published(case.data, case.info, SCAN)
    assert everything(found.index) == everything(case.index)
    assert (found.labels, found.scan) == (case.labels, SCAN)
    assert case.data == encode_published(case.info, found.index, found.labels, SCAN)


def test_a_member_takes_a_few_bytes():
    index = webdataset(20_000, extensions=("image.jpg", "cls"))
    rows = range(1, 20_000, 2)
    ids = [at * 7919 % 1000 for at in rows]
    order = list(dict.fromkeys(ids))
    column = LabelColumn(
        array("I", rows),
        array("I", [order.index(one) for one in ids]),
        [b"class %d" % one for one in order],
    )
    bare = encode_published(shard_of(index), index, {}, SCAN)
    full = encode_published(shard_of(index), index, {NAME: column}, SCAN)
    assert len(bare) < 6 * len(index)
    assert len(full) - len(bare) < 2 * len(rows) + 8 * len(order)


def test_labels_of_several_rules_and_of_any_text():
    case = cases()["samples"]
    rule = f"{LabelSource.JSON.name} \udcff.é"
    odd = LabelColumn(array("I", [1, 3]), array("I", [0, 1]), [b"", b"\xff\0a"])
    data = encode_published(case.info, case.index, case.labels | {rule: odd}, SCAN)
    assert decode_published(data, case.info).labels == case.labels | {rule: odd}


@for_each(
    "key, place",
    [
        ("a.tar", ".aisfs-index/a.tar.idx"),
        ("d/e/a.tar", "d/e/.aisfs-index/a.tar.idx"),
        ("d/\udcff.idx", "d/.aisfs-index/\udcff.idx.idx"),
    ],
)
def test_keys(key, place):
    assert published_key(key) == place
    assert shard_of_published(place) == key


@for_each(
    "key",
    ["a.tar", "a.idx", "x/a.tar.idx", ".aisfs-index/.idx", ".aisfs-index/a", "d/.aisfs-index"],
)
def test_other_keys(key):
    assert shard_of_published(key) is None


# Which version ---------------------------------------------------------------------------------


def info(size=0, version="3", checksum="xxhash2:ab", mtime=5, key="d/a.tar") -> ObjectInfo:
    return ObjectInfo(key, size, version, checksum, mtime)


SECOND = 1_700_000_000_000_000_000
FILE = info(version=f"{SECOND + 5}-77", checksum="", mtime=SECOND + 5)
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"


@for_each(
    "then, now, good",
    [
        (info(), info(mtime=6), True),
        (info(), info(size=512), False),
        (info(), info(checksum="xxhash2:cd"), False),
        # A copy in another bucket, or on another machine.
        (info(), info(version="1", key="e/b.tar"), True),
        (info(), info(version=""), True),
        # Listings may state the bucket's type, or no checksum at all.
        (info(), info(checksum="md5:ab"), True),
        (info(), info(checksum=""), True),
        (info(checksum=""), info(), True),
        (info(checksum=""), info(version="4"), False),
        (info(checksum=""), info(checksum="", key="e/a.tar"), True),
        (info(checksum=""), info(checksum="", key="d/b.tar"), False),
        (info(), info(checksum="", version=""), False),
        # Files of a directory: time and inode number.
        (info(version="5-77", checksum=""), info(version="5-78", checksum=""), True),
        (info(version="5-7", checksum=""), info(version="6-7", checksum="", mtime=6), False),
        # An ETag, from a cloud and from its web server.
        (info(version="ab", checksum=""), info(version='"ab"', checksum=""), True),
        (info(version='"ab"', checksum=""), info(version="ab", checksum=""), True),
        (info(version="ab", checksum=""), info(version='"ac"', checksum=""), False),
        (info(version="5", checksum=""), info(version="", checksum="", mtime=0), False),
        # A directory, and the web server over it, which knows seconds.
        (FILE, info(version='"6a-b"', checksum="", mtime=SECOND), True),
        (FILE, info(version=DATE, checksum="", mtime=SECOND), True),
        (FILE, info(version=DATE, checksum="", mtime=SECOND, key="d/b.tar"), False),
        (FILE, info(size=512, version=DATE, checksum="", mtime=SECOND), False),
        (FILE, info(version=DATE, checksum="", mtime=SECOND + 10**9), False),
        (FILE, info(version='"6a-b"', checksum="", mtime=0), False),
        # The time of an object in a cloud is that of its upload, and a file's is known exactly.
        (FILE, info(version="6a-b", checksum="", mtime=SECOND), False),
        (FILE, info(version=f"{SECOND}-7", checksum="", mtime=SECOND), False),
        (info(version="7", checksum=""), info(version='"6a-b"', checksum="", mtime=0), False),
    ],
)  # fmt: skip
def test_an_index_is_of_one_version(then, now, good):
    data = encode_published(then, TarScanner(then.size).finish(), {}, ScanRules())
    if good:
        assert not len(decode_published(data, now).index)
    else:
        with pytest.raises(IndexRefused, match=r"another version|a shard of 0 bytes"):
            decode_published(data, now)


def test_what_nothing_identifies_is_not_published():
    with pytest.raises(ValueError, match="nothing distinguishes versions"):
        encode_published(info(version="", checksum=""), TarScanner(0).finish(), {}, ScanRules())


def test_an_index_is_of_one_kind_of_scan(monkeypatch):
    for name, nested in (("samples", False), ("nested", True)):
        case = cases()[name]
        deep = case.data
        assert decode_published(deep, case.info, SCAN)
        # Where no member is named like a tar, nothing depends on how deep tars are opened.
        if nested:
            with pytest.raises(IndexRefused, match="--recursive"):
                decode_published(deep, case.info, ScanRules())
        else:
            assert decode_published(deep, case.info, ScanRules())
        with pytest.raises(IndexRefused, match="--ignore-zeros"):
            decode_published(deep, case.info, ScanRules(True, MAX_NESTING))
    monkeypatch.setattr(published, "SCAN_RULES", published.SCAN_RULES + 1)
    with pytest.raises(IndexRefused, match="another version of aisfs"):
        decode_published(deep, case.info, SCAN)


# Damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cases())
def test_every_changed_byte_and_every_truncation_is_noticed(name):
    case = cases()[name]
    for at in range(len(case.data)):
        damaged = bytearray(case.data)
        damaged[at] ^= 0x41
        for bad in (damaged, case.data[:at]):
            with pytest.raises(IndexRefused):
                decode_published(bad, case.info, SCAN)


def sealed(parts: list[bytes]) -> bytes:
    """Bytes whose checksum holds, whatever they say."""
    data = b"".join(parts)
    return data + hashlib.sha256(data).digest()


def rewritten(case: Case, members: bytes, labels: list[bytes], **changes) -> bytes:
    """The index of a case with other sections, and with a header that fits them."""
    start = published._START
    magic, layout, length = start.unpack_from(case.data)
    header = msgspec.msgpack.decode(case.data[start.size : start.size + length])
    header[6] = len(members)
    header[7] = [[rule, len(data)] for (rule, _), data in zip(header[7], labels, strict=True)]
    for at, value in changes.items():
        header[int(at[1:])] = value
    raw = msgspec.msgpack.encode(header)
    return sealed([start.pack(magic, layout, len(raw)), raw, members, *labels])


def sections(case: Case) -> tuple[bytes, list[bytes]]:
    start = published._START
    _, _, length = start.unpack_from(case.data)
    at = start.size + length
    header = msgspec.msgpack.decode(case.data[start.size : at])
    found = []
    for size in (header[6], *(size for _, size in header[7])):
        found.append(case.data[at : at + size])
        at += size
    return found[0], found[1:]


def resealed_members(section: bytes, change) -> bytes:
    raw = bytearray(zlib.decompress(section[21:]))
    described = struct.unpack_from("<QI", section, 9)[1]
    change(raw, described)
    rest = struct.pack("<QI", len(raw), described) + zlib.compress(raw, 1)
    return struct.pack("<4sBI", b"AISX", 1, zlib.crc32(rest)) + rest


def resealed_labels(section: bytes, change) -> bytes:
    raw = bytearray(zlib.decompress(section[8:]))
    described = struct.unpack_from("<II", section)[1]
    change(raw, described)
    return struct.pack("<II", len(raw), described) + zlib.compress(raw, 1)


def assert_harmless(case: Case, data: bytes) -> None:
    """Check that bytes are refused, or that what they say stays within the shard."""
    try:
        found = decode_published(data, case.info, SCAN)
    except IndexRefused:
        return
    index = found.index
    size = index.object_size
    if not index.form.compressed:
        assert size == case.info.size
    assert len(index) <= max(1, size // 46)
    for row, name in enumerate(index.names()):
        assert normalise(name) == name
        assert 0 <= index.content_row(row) < len(index)
        target = index.link_target(row)
        assert not target.startswith(b"/")
        if index.kind(row) is MemberKind.DIRECTORY:
            assert index.size(row) == 0
        if index.form is not Form.ZIP and not index.truncated(row):
            span = index.span(row)
            assert 0 <= span.start <= span.stop <= size
        try:
            read = index.read_range(row, 0, 1 << 62)
        except ShardDamaged:
            continue
        assert 0 <= read.start <= size or not len(read)
        if not index.truncated(row):
            assert read.stop <= size or not len(read)
    for column in found.labels.values():
        assert all(0 < index.size(row) <= 1 << 20 for row in column.by_row())
    view = MembersView(index)
    assert list(view.directory(0)) is not None


@st.composite
def mutants(draw) -> tuple[Case, bytes]:
    """An index, somewhat changed."""
    case = cases()[draw(st.sampled_from(sorted(cases())))]
    kind = draw(st.sampled_from(["bytes", "sealed", "members", "members", "members", "labels"]))
    members, labels = sections(case)

    def change(raw: bytearray, described: int) -> None:
        for _ in range(draw(st.integers(1, 3))):
            if not raw:
                return
            # Most of what can go wrong is in descriptions and headers.
            last = draw(st.sampled_from([min(40, len(raw)), described, len(raw)])) - 1
            at = draw(st.integers(0, max(0, min(last, len(raw) - 1))))
            how = draw(st.sampled_from(["set", "set", "flip", "cut", "twice"]))
            if how == "set":
                raw[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, draw(st.integers(0, 255))]))
            elif how == "flip":
                raw[at] ^= 1 << draw(st.integers(0, 7))
            elif how == "cut":
                del raw[at : at + draw(st.integers(1, 9))]
            else:
                raw[at:at] = raw[at : at + draw(st.integers(1, 9))]

    if kind in ("bytes", "sealed"):
        raw = bytearray(case.data if kind == "bytes" else case.data[:-32])
        change(raw, 60)
        return case, bytes(raw) if kind == "bytes" else sealed([bytes(raw)])
    if kind == "members" or not labels:
        return case, rewritten(case, resealed_members(members, change), labels)
    return case, rewritten(case, members, [resealed_labels(labels[0], change), *labels[1:]])


def changeable(case) -> MemberIndex:
    """Return an index with columns of its own; those of alike shards are shared otherwise."""
    index = decode_published(case.data, case.info).index
    index.columns = index.columns.packed(None)
    return index


@given(mutants())
@settings(max_examples=400 if CI else 10_000, deadline=None)
def test_mutants_are_refused_or_harmless(mutant):
    assert_harmless(*mutant)


@given(st.integers(0, 2**32), st.sampled_from(["flags", "sizes", "offsets", "leads", "mtimes"]),
       st.integers(0, 2**64 - 1), st.sampled_from(sorted(cases())))  # fmt: skip
@settings(max_examples=200 if CI else 10_000, deadline=None)
def test_liars_are_refused_or_harmless(at, which, value, name):
    """One number of one member is a lie, and all checksums hold."""
    case = cases()[name]
    if not len(case.index):
        return
    again = changeable(case)
    column = getattr(again.columns, which)
    row = at % len(again)
    if which == "flags":
        flags = bytearray(column)
        flags[row] = value % 256
        again.columns.flags = bytes(flags)
    else:
        bits = 8 * column.itemsize
        column[row] = value % 2 ** (bits - 1) >> value % bits
    try:
        members = published.encode(again)
    except (ValueError, OverflowError):
        return
    assert_harmless(case, rewritten(case, members, sections(case)[1]))


# Lies ------------------------------------------------------------------------------------------


def lie(change, name="samples", **header) -> str:
    """Return why an index is refused that says something untrue."""
    case = cases()[name]
    again = changeable(case)
    changed = change(again) or again
    data = rewritten(case, published.encode(changed), sections(case)[1], **header)
    with pytest.raises(IndexRefused) as refused:
        decode_published(data, case.info, SCAN)
    return str(refused.value)


def test_lies_are_refused_with_the_reason():
    def outside(index):
        index.columns.sizes[len(index) - 1] = 1 << 40

    def overlap(index):
        index.columns.sizes[0] = 5000

    def climbing(index):
        index.columns.names = index.columns.names.replace(b"s_00007.jpg", b"../../x.jpg")

    def cycle(index):
        (row,) = index.columns.targets
        index.columns.targets[row] = b"../../.."
        index.columns.sizes[row] = 8

    assert lie(outside) == "data lies behind the end of the shard"
    assert "overlaps" in lie(overlap)
    assert lie(climbing) == "member 14 has an impossible name"
    assert "a link leads out of the shard" in lie(cycle, "odd")
    assert lie(lambda _: None, h1=published.SCAN_RULES + 1).startswith("it was made by another")
    assert "members cannot be in the shard" in lie(lambda _: None, h5=10**6)
    assert "too many" in lie(lambda _: None, h5=199)
    assert "does not have the members" in lie(lambda _: None, h4=3)


def test_bombs_are_not_inflated():
    case = cases()["samples"]
    members, labels = sections(case)

    def swell(raw: bytearray, _: int) -> None:
        raw += bytes(200 << 20)

    big = resealed_members(members, swell)
    assert len(big) < 1 << 20
    with pytest.raises(IndexRefused, match="cannot inflate"):
        decode_published(rewritten(case, big, labels), case.info)
    big = resealed_labels(labels[0], swell)
    with pytest.raises(IndexRefused, match="cannot inflate"):
        decode_published(rewritten(case, members, [big]), case.info)


def test_an_index_is_not_much_longer_than_its_shard():
    assert most_bytes(info(size=0)) < 1 << 20
    assert most_bytes(info(size=1 << 20)) < 2 << 20
    assert most_bytes(info(size=1 << 50)) <= 256 << 20


def test_versions_of_a_bucket_that_was_made_again():
    """Its indexes are still in the bucket of indexes, and AIStore counts versions from 1 again."""
    index, rules = scan(entry(b"a", b"1") + END).index, SCAN
    made, again = (ObjectInfo("s.tar", index.object_size, "1", mtime_ns=at) for at in (10, 20))
    data = encode_published(made, index, {}, rules, renewable=True)
    assert decode_published(data, made, rules, renewable=True)
    with pytest.raises(IndexOutdated, match="another version"):
        decode_published(data, again, rules, renewable=True)
    beside = encode_published(made, index, {}, rules)
    with pytest.raises(IndexOutdated, match="another version"):
        decode_published(beside, made, rules, renewable=True)
    # A checksum says it all, and so does a version that is no count.
    for told in ({"checksum": "xxhash2:01"}, {"version": "1795224024593828335"}):
        shard = structs.replace(made, **told)
        data = encode_published(shard, index, {}, rules, renewable=True)
        assert decode_published(data, structs.replace(shard, mtime_ns=20), rules, renewable=True)


# Bombs -----------------------------------------------------------------------------------------

A_BYTE = 8 << 10
"""Bytes of memory that a byte of an index may take at most."""
FREE = 4 << 20


def peak_of(data: bytes, shard: ObjectInfo) -> tuple[int, str]:
    """Decode; return the memory that it took, and why it was refused."""
    refused = ""
    tracemalloc.start()
    try:
        decode_published(data, shard)
    except IndexRefused as error:
        refused = str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak, refused


def described(section: bytes, change) -> bytes:
    """The section of the members with another description."""
    raw = zlib.decompress(section[21:])
    length = struct.unpack_from("<QI", section, 9)[1]
    said = msgspec.msgpack.decode(raw[:length])
    change(said)
    description = msgspec.msgpack.encode(said)
    raw = description + raw[length:]
    rest = struct.pack("<QI", len(raw), len(description)) + zlib.compress(raw, 9)
    return struct.pack("<4sBI", b"AISX", 1, zlib.crc32(rest)) + rest


WARNINGS, SKIPPED, JUMPS, TARGETS, CONTENTS, STOPS = 2, 3, 7, 8, 9, 10
MANY = 1 << 18
FILLED = {
    "warnings": lambda said: said.__setitem__(WARNINGS, [b""] * MANY),
    "many long warnings": lambda said: said.__setitem__(WARNINGS, [b"x" * 4000] * 21),
    "skipped": lambda said: said.__setitem__(SKIPPED, [[b"%d" % at, 1] for at in range(MANY // 8)]),
    "jumps": lambda said: said.__setitem__(JUMPS, dict.fromkeys(range(MANY), 1)),
    "targets": lambda said: said.__setitem__(TARGETS, dict.fromkeys(range(MANY), b"x")),
    "contents": lambda said: said.__setitem__(CONTENTS, dict.fromkeys(range(MANY), 0)),
    "stops": lambda said: said.__setitem__(STOPS, dict.fromkeys(range(MANY), 2**64 - 1)),
}


@pytest.mark.parametrize("what", FILLED)
@pytest.mark.parametrize("rows", [None, MANY])
def test_descriptions_that_swell_are_refused_cheaply(what, rows):
    case = cases()["samples"]
    members, labels = sections(case)
    bomb = described(members, FILLED[what])
    changes = {} if rows is None else {"h5": rows}
    data = rewritten(case, bomb, labels, **changes)
    peak, refused = peak_of(data, case.info)
    assert refused
    assert peak < FREE + A_BYTE * len(data)


@for_each(
    "form, size", zip([form for form in Form if form.compressed], itertools.cycle([0, 100, 5000]))
)
def test_a_small_compressed_shard_has_few_members(form, size):
    """However many the index says, and however short it is."""
    rows = 400_000
    columns = MemberColumns()
    columns.names, columns.ends = b"a" * rows, array("I", range(1, rows + 1))
    columns.offsets = array("Q", range(512, 512 * rows + 1, 512))
    columns.leads, columns.sizes = array("H", [1]) * rows, array("Q", [0]) * rows
    columns.mtimes, columns.flags = array("q", [0]) * rows, bytes(rows)
    index = MemberIndex(columns, 512 * rows, (), {}, form=form)
    shard = info(size=size)
    with pytest.raises(ValueError, match=r"cannot be in the shard|cannot inflate"):
        encode_published(shard, index, {}, ScanRules())
    start = encode_published(shard, MemberIndex(MemberColumns(), 0, (), {}, form=form), {}, SCAN)
    noise = random.Random(1).randbytes(20_000)
    members = published.encode(index) + noise  # so long that so many might be in it
    case = Case(shard, index, {})
    length = published._START.unpack_from(start)[2]
    header = msgspec.msgpack.decode(start[published._START.size : published._START.size + length])
    header[5:7] = [rows, len(members)]
    raw = msgspec.msgpack.encode(header)
    magic, layout, _ = published._START.unpack_from(start)
    data = sealed([published._START.pack(magic, layout, len(raw)), raw, members])
    peak, refused = peak_of(data, case.info)
    assert f"{rows} members cannot be in the shard" in refused
    assert peak < 1 << 20


def test_a_compressed_shard_is_not_endless():
    for form, most in ((Form.TAR_GZ, 1032), (Form.TAR_LZ4, 256), (Form.TAR_XZ, 1 << 16)):
        for over in (0, 1):
            content = (1 << 20) + most * 1000 + over
            index = MemberIndex(MemberColumns(), content, (), {}, form=form)
            if over:
                with pytest.raises(ValueError, match="cannot decompress"):
                    encode_published(info(size=1000), index, {}, SCAN)
            else:
                data = encode_published(info(size=1000), index, {}, SCAN)
                assert decode_published(data, info(size=1000)).index.object_size == content


@given(st.integers(0, 60_000), st.sampled_from(["a", "%d", "%06d.jpg", "d/%05d.%d"]),
       st.integers(0, 3), st.integers(0, 5), st.booleans())  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_memory_is_in_proportion_to_the_bytes(rows, pattern, blocks, rules, swollen):
    """Columns of equal values and names that are alike take next to nothing, and become much."""
    names = [(pattern % ((at,) * pattern.count("%"))).encode() for at in range(rows)]
    columns, step = MemberColumns(), 512 * (1 + blocks)
    columns.names = b"".join(names)
    columns.ends = array("I", itertools.accumulate(map(len, names)))
    columns.offsets = array("Q", range(512, 512 + step * rows, step)) if rows else array("Q")
    columns.leads, columns.sizes = array("H", [1]) * rows, array("Q", [512 * blocks]) * rows
    columns.mtimes, columns.flags = array("q", [7]) * rows, bytes(rows)
    shard = info(size=step * rows + 1024)
    index = MemberIndex(columns, shard.size, (), {})
    column = LabelColumn(array("I", range(rows)), array("I", [0]) * rows, [b"one"])
    labels = {f"CLS {at}": column for at in range(rules)} if rows and blocks else {}
    try:
        data = encode_published(shard, index, labels, ScanRules())
    except ValueError:
        return  # no scan publishes this
    if swollen:
        data = sealed([data[:-32] + b"x"])
    peak, _ = peak_of(data, shard)
    assert peak < FREE + A_BYTE * len(data)


def test_many_rules_that_say_the_same_are_refused():
    rows = 5_000
    index = webdataset(rows)
    column = LabelColumn(array("I", range(0, rows, 1)), array("I", [0]) * rows, [b"one"])
    shard = shard_of(index)
    few = {f"CLS {at}": column for at in range(8)}
    assert len(decode_published(encode_published(shard, index, few, SCAN), shard).labels) == 8
    with pytest.raises(ValueError, match="more labels than members"):
        encode_published(shard, index, few | {"CLS 8": column}, SCAN)


def test_reasons_why_members_are_not_shown_are_few():
    rows = MemberIndexBuilder(0)
    for at in range(1000):
        rows.skip(f"compression method {at}")
    found = rows.build().skipped
    assert len(found) == MAX_REASONS + 1
    assert sum(found.values()) == 1000
