"""The scan of a tar: the odd-archive matrix, damage, and the properties that hold for any bytes."""

import contextlib
import hashlib
import io
import subprocess
import tarfile
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.core.archive.tar import segments_of, sparse_segments
from aisfs.core.archive.tar_scanner import MAX_HEADER, MAX_META, TarScanner
from aisfs.core.index.member_index import MAX_LEAD, MemberIndex, MemberKind
from aisfs.errors import ShardDamaged
from tests.support.for_each import for_each
from tests.support.publishing import every_scan_is_published  # noqa: F401 - for all tests
from tests.support.tars import (
    BLOCK,
    END,
    GNU,
    V7,
    base256,
    entry,
    header,
    known,
    long_name,
    octal,
    pad,
    pax,
    records,
    scan,
    shard,
    sparse_header,
    with_checksum,
)


def rows(index: MemberIndex) -> list[tuple]:
    return [
        (
            index.name(row),
            index.kind(row),
            index.data_range(row),
            index.span(row),
            index.size(row),
            index.mtime_ns(row),
            index.mode(row),
            index.link_target(row),
            index.content_row(row),
            index.truncated(row),
            index.sparse(row),
        )
        for row in range(len(index))
    ]


def everything(index: MemberIndex) -> tuple:
    return rows(index), index.warnings, dict(index.skipped)


def names(index: MemberIndex) -> list[bytes]:
    return index.names()


def content(data: bytes, index: MemberIndex, row: int) -> bytes:
    if not index.sparse(row):
        found = index.read_range(row, 0, index.size(row))
        return data[found.start : found.stop]
    span = index.span(row)
    stored = data[span.start : span.stop]
    segments = sparse_segments(stored, index.size(row))
    assert segments is not None
    return read_sparse(stored, segments, 0, index.size(row))


def read_sparse(stored: bytes, segments, offset: int, length: int) -> bytes:
    out = bytearray(length)
    for part in segments_of(segments, offset, length):
        start = part.offset - offset
        out[start : start + part.length] = stored[part.stored : part.stored + part.length]
    return bytes(out)


def assert_as_tarfile(data: bytes, *, sparse: bool = False, **options) -> MemberIndex:
    """Compare names, places, sizes and contents of regular members with the standard library.

    Of sparse members it takes names and offsets from elsewhere, hence neither is compared.
    """
    index = scan(data, **options)
    expected = known(data, **options)
    files = [row for row in range(len(index)) if index.kind(row) == MemberKind.FILE]
    if not sparse:
        assert [index.name(row) for row in files] == [member.name for member in expected]
    for row, member in zip(files, expected, strict=True):
        assert index.size(row) == member.size
        if not sparse:
            assert index.data_range(row).start == member.offset
        digest = hashlib.sha256(content(data, index, row)).hexdigest()
        assert digest == hashlib.sha256(member.content).hexdigest()
    return index


# The odd-archive matrix ----------------------------------------------------------------------


NAME = b"\xe4\xf6\xfc"


@for_each(
    "data, expected",
    [
        # The prefix of ustar joins the name; a name of 100 bytes needs no NUL.
        (entry(b"b.jpg", b"data", prefix=b"a" * 120 + b"/dir"), [b"a" * 120 + b"/dir/b.jpg"]),
        (entry(b"%0100d" % 1, b"x") * 2, [b"%0100d" % 1] * 2),
        # Checksums of signed bytes; names are any bytes.
        (entry(NAME, b"x", signed=True) + entry(NAME + b"2", b"y", signed=True), [NAME, NAME + b"2"]),
        *[(entry(n, b"x"), [n]) for n in (b"\xff\xfe.jpg", b"new\nline", b"back\\slash", b" blank ", b"~")],
        # "Contiguous" files, empty files, and a tar, which is a file like any other.
        (entry(b"c", b"data", kind=b"7") * 2, [b"c", b"c"]),
        (entry(b"0", b"") + entry(b"1", b"") + entry(b"2", b""), [b"0", b"1", b"2"]),
        (entry(b"a.tar", entry(b"inner", b"x") + END), [b"a.tar"]),
    ],
)  # fmt: skip
def test_members_are_as_tarfile_reads_them(data, expected):
    found = assert_as_tarfile(entry(b"first", b"1") + data + entry(b"last", b"") + END)
    assert names(found) == [b"first", *expected, b"last"]


def test_gnu_magic_has_no_prefix():
    times = bytes(345 - 345) + octal(1, 12) + octal(2, 12)
    block = header(b"plain", size=4, magic=GNU, rest=times + bytes(BLOCK - 345 - len(times)))
    assert names(scan(block + pad(b"data") + END)) == [b"plain"]


def test_gnu_long_names_and_links():
    path, target = b"d/" + b"n" * 200, b"d/" + b"t" * 150
    data = (
        entry(target[:100], b"1", magic=GNU)
        + long_name(target)
        + entry(target[:100], b"content", magic=GNU)
        + long_name(target, b"K")
        + long_name(path)
        + entry(path[:100], kind=b"1", target=target[:100], magic=GNU)
        + END
    )
    index = scan(data)
    assert names(index) == [target[:100], target, path]
    assert index.content_row(2) == 1
    assert content(data, index, 2) == b"content"


def test_pax_path_size_and_mtime():
    body = b"y" * 1000
    data = (
        pax({b"path": "ü/é".encode(), b"size": b"1000", b"mtime": b"1700000000.123456789"})
        + header(b"short", size=0)
        + pad(body)
        + entry(b"next", b"z")
        + END
    )
    index = scan(data)
    assert names(index) == ["ü/é".encode(), b"next"]
    assert content(data, index, 0) == body
    assert index.mtime_ns(0) == 1_700_000_000_123_456_789
    assert index.span(0).start == 0


@for_each(
    "text, expected",
    [
        (b"0", 0),
        (b"12.5", 12_500_000_000),
        (b"-1.5", -1_500_000_000),
        (b"1700000000.9999999999", 1_700_000_000_999_999_999),
        (b"0" * 40 + b"12.5", 12_500_000_000),
        (b"99999999999", 2**63 - 1),
    ],
)
def test_pax_mtime_is_exact(text, expected):
    data = (pax({b"mtime": text}) + entry(b"a", b"x")) * 3 + END
    index = scan(data)
    assert [index.mtime_ns(row) for row in range(3)] == [expected] * 3
    assert not index.warnings


def test_global_header_is_hidden_and_applies_to_all_that_follow():
    data = (
        entry(b"before", b"")
        + pax({b"comment": b"git", b"mtime": b"5"}, b"g")
        + entry(b"a", b"")
        + pax({b"mtime": b"7"})
        + entry(b"b", b"")
        + pax({b"mtime": b""}, b"g")
        + entry(b"c", b"", mtime=9)
        + END
    )
    index = scan(data)
    assert names(index) == [b"before", b"a", b"b", b"c"]
    assert [index.mtime_ns(row) // 10**9 for row in range(4)] == [1_700_000_000, 5, 7, 9]
    assert not index.warnings


def test_base_256_size_of_a_9_gib_member():
    size = 9 << 30
    block = header(b"big", size=base256(size, 12))
    after = entry(b"after", b"x") + END
    scanner = TarScanner(BLOCK + size + len(after))
    scanner.feed(block)
    assert scanner.needed == BLOCK + size
    scanner.seek(scanner.needed)
    scanner.feed(after)
    assert scanner.done
    index = scanner.finish()
    assert names(index) == [b"big", b"after"]
    assert index.size(0) == size
    assert not index.warnings


def test_base_256_mtime_before_the_epoch():
    data = entry(b"old", b"", mtime=(-5).to_bytes(12, "big", signed=True)) + END
    assert scan(data).mtime_ns(0) == -5_000_000_000


@for_each("field", [b"         12 ", b"        12\0 ", b"12\0garbage  ", b"000000000012"])
def test_sizes_as_old_tars_write_them(field):
    data = (entry(b"a", b"0123456789", size=field) + entry(b"b", b"")) * 2 + END
    index = scan(data)
    assert names(index) == [b"a", b"b"] * 2
    assert index.size(0) == index.size(2) == 10


def test_v7_without_magic_and_directories_by_slash():
    data = (
        entry(b"dir/", b"", magic=V7, kind=b"\0", size=77)
        + entry(b"dir/file", b"data", magic=V7, kind=b"\0")
        + END
    )
    index = scan(data)
    assert names(index) == [b"dir", b"dir/file"]
    assert [index.kind(row) for row in range(2)] == [MemberKind.DIRECTORY, MemberKind.FILE]
    assert content(data, index, 1) == b"data"


def test_empty_file_named_like_a_directory_is_one_on_either_way():
    data = entry(b"a", b"x") + entry(b"dir/", b"") + entry(b"file/", b"x") + END
    index = scan(data)
    assert [index.kind(row) for row in range(3)] == [
        MemberKind.FILE,
        MemberKind.DIRECTORY,
        MemberKind.FILE,
    ]


def test_links_fifo_and_devices():
    data = (
        entry(b"file", b"data", mode=0o4755)
        + entry(b"hard", kind=b"1", target=b"file", size=4)
        + entry(b"soft", kind=b"2", target=b"file")
        + entry(b"char", kind=b"3")
        + entry(b"block", kind=b"4")
        + entry(b"fifo", kind=b"6")
        + entry(b"last", b"x")
        + END
    )
    index = scan(data)
    assert names(index) == [b"file", b"hard", b"soft", b"last"]
    assert [index.kind(row).name for row in range(4)] == ["FILE", "HARDLINK", "SYMLINK", "FILE"]
    assert index.skipped == {"device": 3}
    assert index.mode(0) == 0o555
    assert index.mode(3) == 0o444
    assert index.executable(1)
    assert index.data_range(1) == index.data_range(0)
    assert index.link_target(2) == b"file"
    assert index.size(2) == 4


@for_each("kind", [b"A", b"N", b"V", b"Z", b"\xff"])
def test_unknown_type_is_skipped_with_its_payload(kind):
    data = entry(b"a", b"") + entry(b"v", b"p" * 700, kind=kind) + entry(b"b", b"") + END
    index = scan(data)
    assert names(index) == [b"a", b"b"]
    assert index.skipped == {"unknown type": 1}


def test_gnu_directory_with_payload():
    data = entry(b"d/", b"Ya\0\0", kind=b"D") + entry(b"d/a", b"1") + END
    index = scan(data)
    assert names(index) == [b"d", b"d/a"]
    assert index.kind(0) == MemberKind.DIRECTORY


def test_leading_dot_slash_as_tar_of_a_directory_writes_it(tmp_path):
    (tmp_path / "src/sub").mkdir(parents=True)
    for name in ("a", "b.jpg", "sub/c", ".hidden"):
        (tmp_path / "src" / name).write_text(name)
    subprocess.run(["tar", "cf", tmp_path / "x.tar", "-C", tmp_path / "src", "."], check=True)
    index = scan((tmp_path / "x.tar").read_bytes())
    assert sorted(names(index)) == [b"", b".hidden", b"a", b"b.jpg", b"sub", b"sub/c"]


def test_names_are_brought_inside_or_hidden():
    stored = [b"/abs/a", b"../up/b", b"a/../../c", b"./d", b"e//f", b"x/../y", b".", b"/..", b""]
    data = b"".join(entry(name, b"1") for name in stored) + END
    index = scan(data)
    assert names(index) == [b"abs/a", b"d", b"e/f", b"y"]
    assert index.skipped == {"climbs": 3, "bad name": 2}


# The end of the archive ----------------------------------------------------------------------


@for_each("end", [b"", bytes(512), bytes(100), END, bytes(10240)])
def test_any_end_is_good(end):
    index = scan(entry(b"a", b"x") + entry(b"b", b"y") + end)
    assert names(index) == [b"a", b"b"]
    assert not index.warnings


@for_each("size", [0, 1024, 10240, 100_000])
def test_empty_object_and_zeros_are_an_empty_shard(size):
    index = scan(bytes(size))
    assert len(index) == 0
    assert not index.warnings


@for_each("zeros", [1, 2, 20])
def test_what_follows_zeros_is_told_or_read(zeros):
    first, second = entry(b"a", b"x"), entry(b"b", b"y") + entry(b"c", b"z") + END
    data = first + bytes(zeros * BLOCK) + second
    index = scan(data)
    assert names(index) == [b"a"]
    assert str(len(first)) in index.warnings[0]
    assert "--ignore-zeros" in index.warnings[0]
    index = assert_as_tarfile(data, ignore_zeros=True)
    assert names(index) == [b"a", b"b", b"c"]
    assert not index.warnings


def test_the_look_past_the_end_is_bounded():
    scanner = TarScanner(1 << 40)
    scanner.feed(entry(b"a", b"x") + bytes(1 << 17))
    assert scanner.done


@for_each("ignore_zeros", [False, True])
def test_trailing_garbage_is_ignored(ignore_zeros):
    data = entry(b"a", b"x") + END + b"garbage" * 300
    index = scan(data, ignore_zeros=ignore_zeros)
    assert names(index) == [b"a"]
    assert not index.warnings


# Damage --------------------------------------------------------------------------------------


@for_each("shape", [b"".join, lambda parts: b"".join(pax({b"mtime": b"1.5"}) + p for p in parts)])
def test_truncated_inside_data(shape):
    whole = shape([entry(b"%d" % at, b"x" * 2000) for at in range(3)])
    data = whole[:-1500]
    index = scan(data)
    assert names(index) == [b"0", b"1", b"2"]
    assert [index.truncated(row) for row in range(3)] == [False, False, True]
    assert "truncated" in index.warnings[0]
    assert index.size(2) == 2000
    assert len(index.read_range(1, 0, 5000)) == 2000
    present = index.read_range(2, 0, 500)
    assert data[present.start : present.stop] == b"x" * 500
    with pytest.raises(ShardDamaged, match="'2'"):
        index.read_range(2, 0, 2000)


def test_missing_padding_is_no_damage():
    index = scan((entry(b"a", b"x") + entry(b"b", b"y" * 600))[: 2 * BLOCK + BLOCK + 600])
    assert names(index) == [b"a", b"b"]
    assert not index.warnings


@for_each("cut", [1, 300, 511])
@for_each("last", [entry(b"c", b"z"), pax({b"path": b"p" * 600})])
def test_truncated_in_a_header(cut, last):
    data = entry(b"a", b"x") + entry(b"b", b"y") + last[: len(last) - BLOCK - BLOCK + cut]
    index = scan(data)
    assert names(index) == [b"a", b"b"]
    assert index.warnings == ("truncated in the header at byte 2048",)


@for_each("end", [b"", END])
def test_pax_header_without_a_member(end):
    index = scan(entry(b"a", b"x") + pax({b"path": b"b"}) + end)
    assert names(index) == [b"a"]
    assert "no member" in index.warnings[0]


@for_each("times", [1, 2, 5])
def test_bad_checksum_in_a_later_header_is_not_silent(times):
    good = b"".join(entry(b"%d" % at, b"x") for at in range(times))
    bad = bytearray(entry(b"bad", b"y"))
    bad[0] ^= 1
    index = scan(good + bad + entry(b"after", b"z") + END)
    assert len(index) == times
    assert str(len(good)) in index.warnings[0]


@for_each("data", [b"\x1f\x8b" * 400, b"short", b"\xff" * 5000, bytes(512) + b"x" * 512])
def test_not_a_tar(data):
    index = scan(data)
    assert len(index) == 0
    assert index.warnings[0].startswith("not a tar")
    assert ("like a tar.gz: --magic" in index.warnings[0]) == data.startswith(b"\x1f\x8b")


def test_a_tar_that_begins_with_damage_is_not_like_another_archive():
    index = scan(b"damage" + entry(b"a", b"x")[6:] + END)
    assert index.warnings == ("not a tar: it does not start with a tar header",)


@for_each(
    "size", [b"not a number", b"0o17\0       ", b"-0000000100\0", base256(2**70, 12), b"\xff" * 12]
)
def test_invalid_sizes_end_the_scan(size):
    index = scan(entry(b"a", b"") + header(b"bad", size=size) + entry(b"b", b"") + END)
    assert names(index) == [b"a"]
    assert "no valid size" in index.warnings[0]


@for_each("kind", [b"x", b"g", b"L", b"K", b"X"])
def test_headers_without_end_are_skipped_with_their_member(kind):
    data = entry(b"a", b"") + header(b"meta", size=MAX_HEADER + 1, kind=kind)
    rest = entry(b"b", b"12") + entry(b"c", b"3") + END
    after = len(data) + MAX_HEADER + BLOCK
    scanner = TarScanner(after + len(rest))
    scanner.feed(data)
    assert scanner.needed == after
    scanner.seek(after)
    scanner.feed(rest)
    index = scanner.finish()
    common = kind == b"g"
    assert names(index) == ([b"a", b"b", b"c"] if common else [b"a", b"c"])
    assert index.skipped == ({} if common else {"headers over 32 MiB": 1})
    (warning,) = index.warnings
    assert "skipped" in warning
    assert f"byte {512 if common else after}" in warning


def test_many_headers_cost_their_member_only():
    many = entry(b"x", b"x" * BLOCK, kind=b"x") * (MAX_LEAD // 2 + 1)
    index = scan(many + entry(b"a", b"") + entry(b"b", b"") + END, 1 << 16)
    assert names(index) == [b"b"]
    assert index.skipped == {"headers over 32 MiB": 1}


def test_malformed_pax_record_is_told():
    payload = records([(b"path", b"good")]) + b"99999 nonsense"
    data = entry(b"p", payload, kind=b"x") + entry(b"a", b"") + END
    index = scan(data)
    assert names(index) == [b"good"]
    assert "malformed" in index.warnings[0]


def test_missing_bytes_are_told():
    scanner = TarScanner(10_000)
    scanner.feed(entry(b"a", b"x"))
    index = scanner.finish()
    assert names(index) == [b"a"]
    assert index.warnings == ("the scan stopped at byte 1024 of 10000",)


def test_warnings_are_bounded():
    bad = entry(b"p", b"nonsense", kind=b"x") + entry(b"a", b"")
    assert len(scan(bad * 100).warnings) == 20


def test_too_many_headers_before_a_member():
    extension = bytes(504) + b"\1" + bytes(7)
    block = sparse_header(b"s", [(0, 1)], 1, 1, extended=True)
    index = scan(entry(b"a", b"") + block + extension * 66_000 + bytes(1024))
    assert names(index) == [b"a"]
    assert index.warnings


# Sparse members ------------------------------------------------------------------------------


def holes_and_data(count: int) -> tuple[list[tuple[int, int]], bytes]:
    pairs = [(at * 4096 + 512, 700) for at in range(count)]
    return pairs, bytes(at % 251 for at in range(700 * count))


@pytest.mark.parametrize("form", ["gnu", "oldgnu", "0.0", "0.1", "1.0"])
@pytest.mark.parametrize("segments", [0, 1, 3, 4, 30, 120])
def test_sparse_files_written_by_gnu_tar(tmp_path, form, segments):
    source = tmp_path / ("s" * 120)
    with source.open("wb") as file:
        for at in range(segments):
            file.seek(at * 16384 + 8192)
            file.write(bytes([at % 250 + 1]) * 4096)
        file.truncate(segments * 16384 + 50_000)
    (tmp_path / "after").write_text("after")
    options = (
        [f"--format={form}"] if "." not in form else ["--format=posix", f"--sparse-version={form}"]
    )
    command = [
        "tar",
        "cf",
        tmp_path / "x.tar",
        "--sparse",
        *options,
        "-C",
        tmp_path,
        source.name,
        "after",
    ]
    subprocess.run(command, check=True)
    data = (tmp_path / "x.tar").read_bytes()
    index = assert_as_tarfile(data, sparse=True)
    assert names(index) == [source.name.encode(), b"after"]
    assert not index.warnings
    if segments:
        assert index.sparse(0)
        assert everything(scan(data, 512)) == everything(index)


@for_each("count", [1, 4, 5, 25, 26, 60])
def test_old_sparse_headers_with_extension_blocks(count):
    pairs, stored = holes_and_data(count)
    real = count * 4096 + 9999
    blocks = sparse_header(b"s", pairs[:4], len(stored), real, extended=count > 4)
    rest = pairs[4:]
    while rest:
        block = b"".join(octal(a, 12) + octal(b, 12) for a, b in rest[:21]).ljust(504, b"\0")
        rest = rest[21:]
        blocks += (block + bytes([bool(rest)])).ljust(BLOCK, b"\0")
    data = entry(b"a", b"x") + blocks + pad(stored) + entry(b"b", b"y") + END
    index = assert_as_tarfile(data)
    assert names(index) == [b"a", b"s", b"b"]
    assert index.data_range(1).stop - index.data_range(1).start == len(stored)


def test_ranges_of_a_sparse_member_are_those_of_the_whole():
    pairs, stored = holes_and_data(4)
    data = sparse_header(b"s", pairs, len(stored), 20_000) + pad(stored) + END
    whole = known(data)[0].content
    index = scan(data)
    span = index.span(0)
    segments = sparse_segments(data[span.start : span.stop], 20_000)
    assert segments is not None
    for offset in range(0, 20_000, 333):
        for length in (1, 100, 5000):
            stop = min(20_000, offset + length)
            assert read_sparse(data, segments, offset, stop - offset) == whole[offset:stop]


def test_a_map_is_read_from_as_little_as_holds_it():
    lines = b"2\n0\n5\n100\n5\n".ljust(BLOCK, b"\0")
    major = {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.realsize": b"105"}
    data = pax({**major, b"GNU.sparse.name": b"real"}) + entry(b"x", lines + b"helloworld") + END
    index = scan(data)
    assert names(index) == [b"real"]
    assert index.size(0) == 105
    assert content(data, index, 0) == b"hello" + bytes(95) + b"world"
    span = data[index.span(0).start : index.span(0).stop]
    assert sparse_segments(span[: 3 * BLOCK + 5], 105) is None
    assert sparse_segments(span[: 4 * BLOCK], 105) == sparse_segments(span, 105)


@for_each(
    "text",
    [b"x\n", b"2\n0\n5\n3\n5\n", b"1\n0\n999\n", b"1\n-1\n5\n", b"999999999\n0\n", b"9" * 600],
)
def test_damaged_maps_are_refused(text):
    major = {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.realsize": b"105"}
    data = pax(major) + entry(b"x", pad(text) + b"helloworld") + END
    index = scan(data)
    with pytest.raises(ShardDamaged):
        content(data, index, 0)


_V10 = {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.realsize": b"105"}
_V01 = {b"GNU.sparse.size": b"105", b"GNU.sparse.numblocks": b"1", b"GNU.sparse.map": b"100,5"}
_V00 = [(b"GNU.sparse.size", b"105"), (b"GNU.sparse.numblocks", b"1"),
        (b"GNU.sparse.offset", b"100"), (b"GNU.sparse.numbytes", b"5")]  # fmt: skip


def _sparse_tar(said) -> bytes:
    """A tar with the member "disk" of 105 bytes, five of them "hello" at the end, and another one."""
    data = b"hello" if isinstance(said, list) or b"GNU.sparse.map" in said else _MAP + b"hello"
    named = [*(said if isinstance(said, list) else said.items()), (b"GNU.sparse.name", b"disk")]
    return pax(named) + entry(b"GNUSparseFile.0/disk", data) + entry(b"after", b"1") + END


_MAP = pad(b"1\n100\n5\n")


@for_each("said", [
    _V10, _V01, _V00,
    {**_V10, b"GNU.sparse.major": b"01"},
    {key: value for key, value in _V10.items() if key != b"GNU.sparse.minor"},
    {b"GNU.sparse.major": b"0", b"GNU.sparse.minor": b"1", **_V01},
])  # fmt: skip
def test_sparse_headers_in_all_spellings(said):
    data = _sparse_tar(said)
    index = scan(data)
    assert (names(index), index.warnings) == ([b"disk", b"after"], ())
    assert content(data, index, 0) == bytes(100) + b"hello"


@for_each("said", [
    {**_V10, b"GNU.sparse.realsize": b"51z"},
    {**_V10, b"GNU.sparse.realsize": b"-5"},
    {**_V10, b"GNU.sparse.realsize": b"1" * 20},
    {**_V10, b"GNU.sparse.realsize": b""},
    {key: value for key, value in _V10.items() if key != b"GNU.sparse.realsize"},
    {**_V10, b"GNU.sparse.major": b"one"},
    {**_V10, b"GNU.sparse.major": b"2"},
    {**_V10, b"GNU.sparse.minor": b"1"},
    {**_V01, b"GNU.sparse.size": b"0x69"},
    {**_V01, b"GNU.sparse.map": b"100,five"},
    {**_V01, b"GNU.sparse.map": b"100,,5"},
    {**_V01, b"GNU.sparse.numblocks": b"+1"},
    [*_V00[:2], (b"GNU.sparse.offset", b"1e2"), *_V00[3:], *_V00[2:]],
])  # fmt: skip
def test_sparse_headers_without_numbers_cost_the_member_only(said):
    index = scan(_sparse_tar(said))
    assert names(index) == [b"after"]
    assert index.skipped == {"an unknown or malformed sparse header": 1}
    (warning,) = index.warnings
    assert "is skipped" in warning


@for_each("place", ["size", "map", "extension"])
def test_old_sparse_headers_without_numbers_cost_the_member_only(place):
    extension = octal(20, 12) + (b"five" if place == "extension" else octal(5, 12)).ljust(12)
    block = sparse_header(b"disk", [(0, 5)], 10, 105, extended=True)
    at = {"size": 483, "map": 398}.get(place)
    if at:
        block = with_checksum(block[:at] + b"no number\0\0\0" + block[at + 12 :])
    data = block + extension.ljust(BLOCK, b"\0") + pad(b"hellohello") + entry(b"after") + END
    index = scan(data)
    assert names(index) == [b"after"]
    assert index.skipped == {"an unknown or malformed sparse header": 1}
    assert "is skipped" in index.warnings[0]


def test_a_long_sparse_map_in_a_long_header_is_cut_only_for_the_scan():
    count = 90_000
    where = b",".join(b"%08d,%03d" % (2 * at, 1) for at in range(count))
    said = {b"GNU.sparse.size": b"%d" % (2 * count), b"GNU.sparse.map": where}
    index = scan(pax(said) + entry(b"disk", b"x" * count) + END)
    assert len(where) > MAX_META
    assert (names(index), index.warnings) == ([b"disk"], ())


@given(st.binary(max_size=3000), st.integers(0, 5000))
@settings(deadline=None)
def test_any_bytes_as_a_map_only_ever_raise_shard_damaged(junk, size):
    for head in (
        junk,
        pax({b"GNU.sparse.major": b"1"}) + header(b"x") + junk,
        pax({b"GNU.sparse.map": junk[:200]}) + header(b"x"),
        with_checksum((junk + bytes(BLOCK))[:156] + b"S" + (bytes(400) + junk)[-355:]) + junk,
    ):
        with contextlib.suppress(ShardDamaged):
            sparse_segments(head, size)


# Feeding -------------------------------------------------------------------------------------


def test_payload_need_not_be_fed():
    data = b"".join(entry(b"%d" % at, b"x" * 100_000) for at in range(20)) + END
    scanner = TarScanner(len(data))
    fed = 0
    while not scanner.done:
        at = scanner.needed
        scanner.seek(at)
        scanner.feed(memoryview(data)[at : at + 1536])
        fed += 1536
    assert everything(scanner.finish()) == everything(scan(data))
    assert fed < 20 * 2000 + 4096


def test_seek_back_and_overlap_change_nothing():
    data = shard(f"{at:03d}.jpg" for at in range(20))
    scanner = TarScanner(len(data))
    for start in range(0, len(data), 700):
        scanner.seek(min(scanner.needed, max(0, start - 300)))
        scanner.feed(data[min(scanner.needed, max(0, start - 300)) : start + 700])
    assert everything(scanner.finish()) == everything(scan(data))


def test_bytes_past_the_object_are_ignored():
    data = entry(b"a", b"x")
    assert len(scan(data + entry(b"b", b"y") + END, size=len(data))) == 1


# Properties ----------------------------------------------------------------------------------

NAMES = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=12),
    st.sampled_from(["sample_000001.image.jpg", "a/b/c.cls", "x" * 150, "d" * 90 + "/" + "e" * 90]),
).filter(lambda name: (name not in (".", "..") and len(name.encode()) < 120) or "/" in name)
MEMBERS = st.lists(
    st.tuples(
        NAMES,
        st.binary(max_size=700),
        st.one_of(st.integers(0, 2**33 - 1), st.floats(0, 2e9)),
        st.sampled_from([0o644, 0o755, 0o444]),
    ),
    max_size=12,
)
FORMATS = st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])


def written(members, form) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, body, mtime, mode in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(body), mtime, mode
            if form == tarfile.USTAR_FORMAT and len(name.encode()) > 90:
                info.name = "short"
            tar.addfile(info, io.BytesIO(body))
    return out.getvalue()


@given(MEMBERS, FORMATS)
@settings(deadline=None)
def test_generated_tars_are_as_tarfile_sees_them(members, form):
    data = written(members, form)
    index = assert_as_tarfile(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for row, info in enumerate(tar):
            assert index.mtime_ns(row) == pytest.approx(info.mtime * 1e9, abs=1000)
            assert index.executable(row) == bool(info.mode & 0o111)
            assert index.span(row).start == info.offset
    assert not index.warnings
    assert not index.skipped


MIXED = st.lists(
    st.sampled_from(
        [
            entry(b"a.jpg", b"x" * 600),
            entry(b"b.jpg", b"y", mode=0o755, mtime=7),
            entry(b"./c", b""),
            entry(b"d/", kind=b"5"),
            entry(b"old", b"zz", magic=GNU),
            entry(b"hl", kind=b"1", target=b"a.jpg"),
            entry(b"sl", kind=b"2", target=b"b.jpg"),
            entry(b"up", b"q", prefix=b"pre/fix"),
            pax({b"mtime": b"1700000000.1234567"}) + entry(b"e.cls", b"1"),
            pax({b"mtime": b"1700000000.123456"}) + entry(b"f.cls", b"22"),
            pax({b"mtime": b"17.5"}) + entry(b"g.cls", b"22"),
            pax({b"mtime": b"17.x"}) + entry(b"k.cls", b"22"),
            pax({b"mtime": b"17000000xx.123456"}) + entry(b"l.cls", b"22"),
            pax({b"mtime": b"5", b"path": b"lost"}) + pax({b"mtime": b"6"}) + entry(b"m", b""),
            pax({b"mtime": b"1700000000.1234567"})[:-491] + b"x" * 491 + entry(b"h", b"22"),
            pax({b"atime": b"1"}) + entry(b"i", b""),
            pax({b"path": b"../climb"}) + entry(b"j", b"data"),
            pax({b"comment": b"c"}, b"g"),
            long_name(b"n" * 130) + entry(b"n" * 100, b"long"),
            sparse_header(b"s", [(0, 5)], 5, 100) + pad(b"hello"),
            entry(b"dev", kind=b"3"),
            bytes(BLOCK),
        ]
    ),
    max_size=25,
)


@given(MIXED, st.lists(st.integers(1, 3000), max_size=40), st.booleans(), st.integers(0, 2000))
@settings(max_examples=200, deadline=None)
def test_any_split_of_the_bytes_gives_the_same_index(parts, cuts, ignore_zeros, missing):
    data = b"".join(parts)
    data = data[: len(data) - missing] if missing < 1000 else data
    whole = everything(scan(data, ignore_zeros=ignore_zeros))
    scanner = TarScanner(len(data), ignore_zeros=ignore_zeros)
    position = 0
    for cut in [*cuts, len(data)]:
        scanner.feed(memoryview(data)[position : position + cut])
        position += cut
    assert everything(scanner.finish()) == whole
    assert everything(scan(data, 512, ignore_zeros=ignore_zeros)) == whole


def test_hot_loop_hands_over_in_windows():
    data = b"".join(entry(b"%06d" % at, b"") for at in range(5000)) + END
    index = scan(data)
    assert names(index) == [b"%06d" % at for at in range(5000)]


@given(st.binary(max_size=4000), st.booleans())
@settings(deadline=None)
def test_garbage_never_raises(junk, ignore_zeros):
    for data in (junk, entry(b"a", b"x") + junk, pax({b"path": b"p"}) + junk, bytes(512) + junk):
        scan(data, ignore_zeros=ignore_zeros)


@given(
    st.lists(st.tuples(st.integers(100, 511), st.binary(min_size=1, max_size=12)), max_size=6),
    st.sampled_from(list(b"\x000123456789xXgLKSDVZ")),
)
@settings(max_examples=200, deadline=None)
def test_junk_in_headers_with_right_checksums_never_raises(changes, kind):
    block = bytearray(header(b"name", size=100, kind=bytes([kind])))
    for at, junk in changes:
        block[at : at + len(junk)] = junk
    hostile = with_checksum(bytes(block[:512]))
    data = entry(b"a", b"x") + hostile + bytes(range(256)) * 8 + entry(b"b", b"y") + END
    assert everything(scan(data)) == everything(scan(data, 300))


SAMPLE = (
    shard(["a.jpg", "b/c.cls", "n" * 130], data=b"data")[: 9 * BLOCK]
    + sparse_header(b"s", [(0, 5)], 5, 100)
    + pad(b"hello")
    + entry(b"sl", kind=b"2", target=b"a.jpg")
    + END
)


@given(st.integers(0, len(SAMPLE) - 1), st.integers(1, 255))
@settings(max_examples=300, deadline=None)
def test_a_changed_byte_never_raises(at, flip):
    data = bytearray(SAMPLE)
    data[at] ^= flip
    index = scan(bytes(data))
    assert index.names() == scan(bytes(data), 100).names()


def test_memory_does_not_grow_with_the_payload():
    piece = bytes(1 << 20)
    scanner = TarScanner((1 << 36) + 1024)
    scanner.feed(header(b"big", size=base256(1 << 36, 12)))
    tracemalloc.start()
    try:
        for _ in range(64):
            scanner.feed(piece)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
