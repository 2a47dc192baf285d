"""Headers too long to be held: what counts in them is found, as in shorter ones, and the rest is skipped."""

import io
import tarfile
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.core.archive import tar_scanner as scanners
from aisfs.core.archive.tar import sparse_segments
from aisfs.core.archive.tar_scanner import MAX_META, TarScanner
from tests.core.archive.test_scanner import MIXED, everything, names
from tests.support.tars import BLOCK, END, entry, header, long_name, pad, pax, records, scan

LONG = MAX_META + 1
FILLER = (b"comment", b"x" * LONG)


@pytest.mark.parametrize("kind", [b"x", b"X", b"g"])
@pytest.mark.parametrize("piece", [0, 700, 1 << 16])
def test_records_before_and_behind_a_long_one_count(kind: bytes, piece: int):
    said = [
        (b"mtime", b"1.5"),
        FILLER,
        (b"path", b"long/name"),
        (b"a" * 40_000, b"1"),
        (b"mtime", b"2.5"),
    ]
    data = entry(b"p", records(said), kind=kind) + entry(b"a", b"12") + entry(b"b", b"") + END
    index = scan(data, piece)
    both = [b"long/name"] * 2 if kind == b"g" else [b"long/name", b"b"]
    assert names(index) == both
    assert index.mtime_ns(0) == 2_500_000_000
    assert (
        index.span(0).start == (0 if kind != b"g" else LONG + 40_000 + 1000 & -BLOCK)
        or kind == b"g"
    )
    assert not index.warnings


@pytest.mark.parametrize("make", [
    lambda: long_name(b"n" * LONG),
    lambda: pax({b"path": b"n" * LONG}),
    lambda: pax({b"path": b"d/" * LONG}),
])  # fmt: skip
def test_names_that_are_too_long_are_counted(make):
    index = scan(make() + entry(b"a", b"12") + entry(b"b", b"") + END, 1 << 16)
    assert names(index)[-1] == b"b"
    assert len(index) + sum(index.skipped.values()) == 2
    assert not index.warnings


@pytest.mark.parametrize("bad", [b"99999999 nonsense", b"12 no-equals\n", b"xx y=z\n", b"0 a=b\n"])
def test_malformed_records_are_told_and_cost_no_member(bad: bytes):
    payload = records([(b"path", b"good"), FILLER]) + bad
    index = scan(entry(b"p", payload, kind=b"x") + entry(b"a", b"") + entry(b"b", b"") + END)
    assert names(index) == [b"good", b"b"]
    assert "malformed" in index.warnings[0]


@given(MIXED, st.lists(st.integers(1, 3000), max_size=20), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_header_gives_the_same_when_it_is_read_so(parts, cuts, ignore_zeros):
    data = b"".join(parts)
    whole = everything(scan(data, ignore_zeros=ignore_zeros))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanners, "MAX_META", 0)
        scanner, position = TarScanner(len(data), ignore_zeros=ignore_zeros), 0
        for cut in [*cuts, len(data)]:
            scanner.feed(data[position : position + cut])
            position += cut
        assert everything(scanner.finish()) == whole


@pytest.mark.parametrize("record", [b"7 a=bc\n", b"12 path=abc\n", b"14 mtime=12.5\n"])
def test_memory_is_bounded(record: bytes, monkeypatch: pytest.MonkeyPatch):
    most = MAX_META // 8  # each record costs some 20 us of tracemalloc
    monkeypatch.setattr(scanners, "MAX_META", most)
    count = 5 * most // 4 // len(record) // 512
    scanner = TarScanner(1 << 40)
    size = count * 512 * len(record)
    tracemalloc.start()
    try:
        scanner.feed(header(b"p", size=size, kind=b"x"))
        for _ in range(count):
            scanner.feed(record * 512)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most // 2
    scanner.feed(bytes(-size % BLOCK) + entry(b"a", b"") + entry(b"b", b""))
    assert names(scanner.rows.build())[-1] == b"b"


def test_what_is_skipped_is_not_wanted():
    scanner = TarScanner(1 << 40)
    payload = records([FILLER, (b"path", b"n")])
    data = entry(b"p", payload, kind=b"x") + entry(b"a", b"")
    scanner.feed(data[: BLOCK + 20_000])
    assert scanner.needed > LONG - 1000
    scanner.seek(scanner.needed)
    scanner.feed(data[scanner.needed :])
    assert names(scanner.rows.build()) == [b"n"]


def test_a_sparse_member_with_a_long_header():
    said = [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), FILLER,
            (b"GNU.sparse.name", b"s"), (b"GNU.sparse.realsize", b"1000")]  # fmt: skip
    data = entry(b"p", records(said), kind=b"x") + entry(b"x", pad(b"1\n100\n5\n") + b"hello") + END
    index = scan(data)
    assert names(index) == [b"s"]
    span = index.span(0)
    (segment,) = sparse_segments(data[span.start : span.stop], 1000) or ()
    assert (segment.offset, segment.length) == (100, 5)
    assert data[span.start + segment.stored :][:5] == b"hello"


def test_as_tarfile_reads_it():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, said in (("1", {}), ("2", {"SCHILY.xattr.user.x": "y" * 3_000_000}), ("3", {})):
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = 2, said
            tar.addfile(info, io.BytesIO(b"a\n"))
    index = scan(out.getvalue(), 1 << 16)
    assert names(index) == [b"1", b"2", b"3"]
    assert index.read_range(1, 0, 2) != index.read_range(2, 0, 2)
