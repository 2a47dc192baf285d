"""The scan of a zip's directory, against the standard library's own reader."""

import io
import os
import shutil
import struct
import subprocess
import zipfile
import zlib
from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aisfs.core.archive.zip import ZipScanner
from aisfs.core.index.codec import decode, encode
from aisfs.core.index.member_index import MemberKind
from aisfs.core.index.zip_columns import LOCAL_HEADER, Packing, data_offset
from aisfs.core.names.listing import DEFLATED, Form, form_of_content, form_of_name
from aisfs.core.views.tree import MembersView
from tests.support.for_each import for_each
from tests.support.publishing import every_scan_is_published  # noqa: F401 - for all tests


def scan(data: bytes, encoding: str = ""):
    scanner = ZipScanner(len(data), encoding)
    for _ in range(10_000):
        wanted = scanner.wanted
        if wanted is None:
            return scanner.finish()
        assert 0 <= wanted.start < wanted.stop <= len(data)
        scanner.feed(data[wanted.start : wanted.stop])
    raise AssertionError("the scan does not end")


def content(data: bytes, index, row: int) -> bytes:
    """What a reader makes of the columns."""
    stored = index.stored(row)
    start = stored.start + data_offset(data[stored.start : stored.start + LOCAL_HEADER])
    raw = data[start : start + stored.stored]
    found = zlib.decompress(raw, -15) if stored.method == DEFLATED else raw
    assert (len(found), zlib.crc32(found)) == (stored.size, stored.crc)
    return found


def archive(members, *, method=zipfile.ZIP_STORED, before=b"", comment=b"", zip64=False) -> bytes:
    buffer = io.BytesIO()
    buffer.write(before)
    with zipfile.ZipFile(buffer, "a" if before else "w", method) as file:
        file.comment = comment
        for name, body in members:
            with file.open(zipfile.ZipInfo(name), "w", force_zip64=zip64) as member:
                member._zinfo.compress_type = method
                member.write(body)
    return buffer.getvalue()


def plain(members, method=zipfile.ZIP_DEFLATED, **options) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method, **options) as file:
        for name, body in members:
            file.writestr(name, body)
    return buffer.getvalue()


NAMES = st.text(
    st.characters(blacklist_characters="\0/\\", blacklist_categories=["Cs"]),
    min_size=1,
    max_size=12,
).filter(lambda name: name not in (".", ".."))


@given(
    st.dictionaries(NAMES, st.binary(max_size=300), max_size=20),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    # zipfile itself takes the record's signature within a comment for the record.
    st.binary(max_size=50).filter(lambda comment: b"PK\5\6" not in comment),
)
@example({"ä": b"1", "a": b""}, zipfile.ZIP_DEFLATED, b"a comment")
def test_members_are_those_that_zipfile_finds(members, method, comment):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        file.comment = comment
        for name, body in members.items():
            file.writestr(name, body)
    data = buffer.getvalue()
    index = scan(data)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        expected = {info.filename.encode(): file.read(info) for info in file.infolist()}
    assert {index.name(row): content(data, index, row) for row in range(len(index))} == expected
    assert not index.warnings
    assert index.form is Form.ZIP


@given(st.binary(max_size=400))
def test_any_bytes_make_an_index(data):
    scan(data)


@given(st.data())
def test_damaged_bytes_make_an_index(data):
    good = bytearray(plain([(f"{n}.txt", bytes([n]) * n) for n in range(30)]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(good) - 1))
        good[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    index = scan(bytes(good[cut:]))
    for row in range(len(index)):
        span = index.data_range(row)
        assert span.start >= 0
        assert index.truncated(row) or span.stop <= index.object_size
    MembersView(index)


def test_bytes_before_the_archive_and_a_long_comment():
    data = b"#!/bin/sh\n" * 50 + plain([("a", b"x" * 100)])
    index = scan(data)
    assert content(data, index, 0) == b"x" * 100
    data = archive([("a", b"y")], comment=b"c" * 65535)
    assert content(data, scan(data), 0) == b"y"


def test_zip64():
    data = archive([("a", b"1"), ("b", b"22")], zip64=True)
    index = scan(data)
    assert [content(data, index, row) for row in range(2)] == [b"1", b"22"]
    many = plain([(f"{n}", b"") for n in range(66_000)], zipfile.ZIP_STORED)
    index = scan(many)
    assert len(index) == 66_000
    assert not index.warnings


def test_zip64_offsets_and_sizes():
    """A directory as of a zip of 10 GiB, without the 10 GiB."""
    size, offset = 5 << 30, 6 << 30
    extra = struct.pack("<HHQQQ", 1, 24, size, size, offset)
    entry = struct.pack(
        "<4sBBHHHHHIIIHHHHHII", b"PK\x01\x02", 45, 3, 45, 0, 0, 0, 33, 7, 2**32 - 1, 2**32 - 1,
        1, len(extra), 0, 0, 0, 0, 2**32 - 1,
    ) + b"a" + extra  # fmt: skip
    at = 12 << 30
    end64 = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, len(entry), at)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, at + len(entry), 1)
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, len(entry), 2**32 - 1, 0)
    tail = entry + end64 + locator + end
    scanner = ZipScanner(at + len(tail))
    wanted = scanner.wanted
    scanner.feed(bytes(at + len(tail) - wanted.start - len(tail)) + tail)
    assert scanner.wanted is None
    index = scanner.finish()
    assert not index.warnings
    assert (index.size(0), index.stored(0).start, index.stored(0).crc) == (size, offset, 7)


def test_directory_is_read_in_a_few_ranges():
    data = plain([(f"{n:06}.jpg", b"x" * 50) for n in range(60_000)], zipfile.ZIP_STORED)
    scanner, ranges = ZipScanner(len(data)), []
    while scanner.wanted is not None:
        ranges.append(scanner.wanted)
        scanner.feed(data[scanner.wanted.start : scanner.wanted.stop])
    index = scanner.finish()
    assert len(index) == 60_000
    assert len(ranges) <= 3
    assert sum(map(len, ranges)) < len(data) * 2 // 3
    assert content(data, index, 59_999) == b"x" * 50


def test_hostile_names_do_not_climb():
    data = plain([("../up", b"1"), ("/abs", b"2"), ("./a/../b", b"3"), ("a//c", b"4")])
    index = scan(data)
    assert [index.name(row) for row in range(len(index))] == [b"abs", b"b", b"a/c"]
    assert dict(index.skipped) == {"climbs": 1}


def test_what_is_left_out_is_counted():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("ok", b"1")
        link = zipfile.ZipInfo("link")
        link.create_system = 3
        link.external_attr = 0o120777 << 16
        file.writestr(link, b"ok")
        file.writestr("b", b"2" * 100, zipfile.ZIP_BZIP2)
        file.mkdir("dir")
    data = bytearray(buffer.getvalue())
    data[data.rindex(b"PK\x01\x02", 0, data.rindex(b"dir/")) - 47 + 10] = 97  # that of "b"
    index = scan(bytes(data))
    assert dict(index.skipped) == {"symbolic link in a zip": 1, "compression method 97": 1}
    assert [(index.name(row), index.kind(row)) for row in range(len(index))] == [
        (b"ok", MemberKind.FILE),
        (b"dir", MemberKind.DIRECTORY),
    ]


def test_encrypted_members_are_left_out():
    data = bytearray(plain([("secret", b"1"), ("open", b"2")]))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    index = scan(bytes(data))
    assert dict(index.skipped) == {"encrypted": 1}
    assert [index.name(row) for row in range(len(index))] == [b"open"]


def test_rows_are_in_the_order_of_the_data():
    data = plain([("a", b"1"), ("b", b"22"), ("c", b"333")])
    first = data.index(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", first + 4)
    swapped = data[:first] + data[second : 2 * second - first] + data[first:second]
    swapped += data[2 * second - first :]
    index = scan(swapped)
    assert [index.name(row) for row in range(3)] == [b"a", b"b", b"c"]
    assert [content(swapped, index, row) for row in range(3)] == [b"1", b"22", b"333"]


def test_cut_off_zip_says_so():
    data = plain([("a", b"1")])
    index = scan(data[:-1])
    assert not len(index)
    assert "cut off" in index.warnings[0]


def field(kind: int, data: bytes) -> bytes:
    return struct.pack("<HH", kind, len(data)) + data


OLD = field(0x5855, struct.pack("<ii", 5, 1_600_000_001))
"""As macOS writes it: times of access and of modification."""


@for_each(
    "extra, seconds",
    [
        (OLD, 1_600_000_001),
        (field(0x5855, struct.pack("<iiHH", 5, -7, 501, 20)), -7),
        (field(0x5855, struct.pack("<i", 5)), 1_680_674_828),
        (OLD + field(0x5455, struct.pack("<Bi", 1, 1_500_000_001)), 1_500_000_001),
        (OLD + field(0x5455, struct.pack("<Bi", 2, 1_500_000_001)), 1_600_000_001),
    ],
)
def test_times_of_extra_fields(extra, seconds):
    info = zipfile.ZipInfo("a", (2023, 4, 5, 6, 7, 8))
    info.extra = extra
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(info, b"")
    assert scan(buffer.getvalue()).mtime_ns(0) == seconds * 10**9


@pytest.mark.skipif(not shutil.which("unzip"), reason="unzip is not installed")
def test_times_of_macos_are_those_that_unzip_sets(tmp_path):
    local = field(0x5855, struct.pack("<iiHH", 5, 1_600_000_001, 501, 20))
    info = zipfile.ZipInfo("a", (2020, 9, 13, 5, 26, 42))
    info.create_system, info.external_attr, info.extra = 3, 0o100644 << 16, local
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr(info, b"")
    command = ["unzip", "-q", tmp_path / "x.zip", "-d", tmp_path]
    subprocess.run(command, check=True, env={**os.environ, "TZ": "America/New_York"})
    seconds = (tmp_path / "a").stat().st_mtime_ns
    assert scan((tmp_path / "x.zip").read_bytes()).mtime_ns(0) == seconds


@given(st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 2**40)), max_size=5))
def test_stored_form_of_the_index(rows):
    data = plain([(f"{n}-{tag.hex()}", tag) for n, (tag, _) in enumerate(rows)])
    index = scan(data)
    again = decode(encode(index))
    assert again.form is Form.ZIP
    assert [again.stored(row) for row in range(len(again))] == [
        index.stored(row) for row in range(len(index))
    ]


def test_packing_of_other_lengths_is_refused():
    with pytest.raises(ValueError, match="one length"):
        Packing.from_bytes(b"\0", b"", array("I", [1]).tobytes())


@for_each(
    "name, form",
    [
        (b"x.tar", Form.TAR),
        (b"x.tgz", Form.TAR_GZ),
        (b"x.tar.gz", Form.TAR_GZ),
        (b"x.tar.zst", Form.TAR_ZST),
        (b"x.zip", Form.ZIP),
        (b"x.gz", None),
        (b".tar", None),
        (b".tar.gz", None),
        (b"x.TAR", None),
    ],
)
def test_forms_by_name(name, form):
    assert form_of_name(name) is form


def test_forms_by_content():
    assert form_of_content(plain([("a", b"1")])) is Form.ZIP
    assert form_of_content(plain([])) is Form.ZIP
    assert form_of_content(b"") is None


# Names ---------------------------------------------------------------------------------------


def zip_of(*entries: zipfile.ZipInfo) -> bytes:
    """A zip of empty members, whose names go in as they are spelled in Latin-1."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for entry in entries:
            file.writestr(entry, b"")
    data = buffer.getvalue()
    for entry in entries:  # zipfile would write UTF-8 and say so
        marked = entry.filename.encode()
        assert len(marked) == len(entry.filename)
        data = data.replace(marked, entry.filename.translate(_RAW).encode("latin-1"))
    return data


_RAW = {ord(letter): 0x80 + at for at, letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ")}
"""Stand-ins for bytes that are not ASCII: "B" is 0x81."""


def entry(name: str, system: int = 0, attributes: int = 0, extra: bytes = b"") -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr, info.extra = system, attributes, extra
    return info


def unicode_path(name: str, of: bytes, version: int = 1) -> bytes:
    said = struct.pack("<BI", version, zlib.crc32(of)) + name.encode()
    return struct.pack("<HH", 0x7075, len(said)) + said


def test_backslashes_of_dos_separate_directories():
    index = scan(zip_of(
        entry("cat\\1.jpg"), entry("dog\\"), entry("cow", attributes=0x10), entry("cat/a\\b"),
        entry("unix\\1.jpg", system=3),
    ))  # fmt: skip
    kinds = {index.name(row): index.kind(row) for row in range(len(index))}
    assert kinds == {
        b"cat/1.jpg": MemberKind.FILE,
        b"dog": MemberKind.DIRECTORY,
        b"cow": MemberKind.DIRECTORY,
        b"cat/a\\b": MemberKind.FILE,  # as for unzip, which looks for any slash first
        b"unix\\1.jpg": MemberKind.FILE,
    }


@for_each("encoding", ["", "cp932"])
def test_the_unicode_path_field_names_a_member(encoding):
    raw = b"\x81.jpg"
    name = unicode_path("дом\\ü.jpg", raw)
    stale = unicode_path("old.jpg", b"other.jpg")
    index = scan(zip_of(entry("B.jpg", extra=name)), encoding)
    assert index.names() == ["дом/ü.jpg".encode()]
    for extra in (stale, unicode_path("new.jpg", raw, version=2), name[:6]):
        assert scan(zip_of(entry("B.jpg", extra=extra))).names() == ["ü.jpg".encode()]
    renamed = scan(zip_of(entry("plain.jpg", extra=unicode_path("ä.jpg", b"plain.jpg"))))
    assert renamed.names() == ["ä.jpg".encode()]


def test_an_encoding_counts_where_a_name_has_no_mark():
    word = b"\x83\x5c.jpg"  # its second byte is a backslash
    data = zip_of(entry("D\\.jpg"), entry("C.jpg"))
    assert word in data
    assert scan(data).names() == ["â/.jpg".encode(), "é.jpg".encode()]
    assert scan(data, "cp932").names() == ["ソ.jpg".encode(), "é.jpg".encode()]
    marked = plain([("ä.jpg", b"")])
    assert scan(marked, "cp932").names() == ["ä.jpg".encode()]


@for_each("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_methods_are_members(method):
    index = scan(plain([("a", b"x" * 100)], method))
    assert index.names() == [b"a"]
    assert index.stored(0).method == method
