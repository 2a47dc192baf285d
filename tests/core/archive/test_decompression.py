"""Compressed files piece by piece, and the scan of a tar whose length nobody knows yet."""

import io
import random
import shutil
import subprocess
import zipfile
import zlib

import pytest
from backports import zstd
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aisfs.core.archive.decompression import Inflater, open_codec, read_piece
from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.names.listing import Form, form_of_content
from aisfs.errors import ArchiveTooLarge, Stale
from tests.support.archives import COMPRESSIONS, lz4_legacy, make_tar, text, xz_with_dictionary
from tests.support.for_each import for_each

FORMS = {
    Form.TAR_GZ: "tgz",
    Form.TAR_BZ2: "tar.bz2",
    Form.TAR_XZ: "tar.xz",
    Form.TAR_ZST: "tar.zst",
    Form.TAR_LZ4: "tar.lz4",
}
UNKNOWN = 1 << 40


class Dripping(io.RawIOBase):
    """A file that gives its bytes in pieces of some size, as a network does."""

    def __init__(self, data: bytes, size: int) -> None:
        self._left = memoryview(data)
        self._size = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        length = min(len(buffer), len(self._left), self._size)
        buffer[:length] = self._left[:length]
        self._left = self._left[length:]
        return length


def drain(codec, size: int = 4096) -> tuple[bytes, str]:
    """All that a codec gives, and what is wrong behind it."""
    buffer, found = memoryview(bytearray(size)), b""
    while True:
        piece = read_piece(codec, buffer)
        found += bytes(buffer[: piece.length])
        if piece.length < size:
            return found, piece.damage


@pytest.mark.parametrize("form", FORMS)
@given(
    parts=st.lists(st.binary(max_size=3000), min_size=1, max_size=3),
    step=st.integers(1, 5000),
    size=st.integers(1, 5000),
)
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.differing_executors])
def test_several_streams_are_one_content(form, parts, step, size):
    data = b"".join(map(COMPRESSIONS[FORMS[form]], parts))
    assert drain(open_codec(form, Dripping(data, step)), size) == (b"".join(parts), "")
    assert form_of_content(data) is form


@given(
    parts=st.lists(st.tuples(st.sampled_from("lms"), st.binary(max_size=3000)), max_size=4),
    step=st.integers(1, 5000),
    size=st.integers(1, 5000),
)
@settings(deadline=None, max_examples=50)
def test_lz4_legacy_frames_alone_and_before_others(parts, step, size):
    """The program `lz4` reads all of them, in any order; the package cannot leave its own frames."""
    parts = [("l", b"first"), *sorted(parts, key=lambda part: part[0] != "l")]
    skipped = b"\x5f\x2a\x4d\x18\x03\0\0\0abc"
    packers = {"l": lambda p: lz4_legacy(p, 1000), "m": COMPRESSIONS["tar.lz4"]}
    data = b"".join(packers.get(kind, lambda _: skipped)(part) for kind, part in parts)
    content = b"".join(part for kind, part in parts if kind != "s")
    assert drain(open_codec(Form.TAR_LZ4, Dripping(data, step)), size) == (content, "")
    assert form_of_content(data) is Form.TAR_LZ4


def test_lz4_legacy_blocks_may_be_large_and_may_not_compress():
    data = random.Random(1).randbytes((8 << 20) + 5)
    packed = lz4_legacy(data)
    assert len(packed) > len(data)
    assert drain(open_codec(Form.TAR_LZ4, Dripping(packed, 1 << 20)), 1 << 20) == (data, "")


@pytest.mark.skipif(not shutil.which("lz4"), reason="the program lz4 is not installed")
def test_lz4_legacy_frames_of_the_program():
    data = text(9 << 20)
    packed = subprocess.run(["lz4", "-l", "-c"], input=data, capture_output=True, check=True).stdout
    assert packed[:4] == lz4_legacy(b"")
    assert drain(open_codec(Form.TAR_LZ4, Dripping(packed, 1 << 20)), 1 << 20) == (data, "")


@for_each(
    "end, damage",
    [
        (b"\x05", "it ends within a legacy block"),
        (b"\x05\0\0\0abcd", "it ends within a legacy block"),
        (b"\0\0\0\0", "a legacy block of 0 bytes"),
        (b"\xff\xff\xff\xff", "a legacy block of 4294967295 bytes"),
        (b"\x04\0\0\0\xff\xff\xff\xff", "Decompression failed"),
    ],
)
def test_damaged_lz4_legacy_frames(end, damage):
    found, said = drain(open_codec(Form.TAR_LZ4, Dripping(lz4_legacy(b"before") + end, 100)))
    assert found == b"before"
    assert damage in said


WHOLE = text(50_000)
PACKED = {form: COMPRESSIONS[name](WHOLE) for form, name in FORMS.items()}


def zst(data: bytes, window_log: int) -> bytes:
    options = {zstd.CompressionParameter.window_log: window_log}
    compressor = zstd.ZstdCompressor(options=options)
    return compressor.compress(data) + compressor.flush()  # of unknown length: the window counts


@for_each(
    "form, modest, greedy",
    [
        (
            Form.TAR_XZ,
            xz_with_dictionary(b"x" * 5000, 1 << 26),
            xz_with_dictionary(b"x" * 5000, 2**32 - 1),
        ),
        (
            Form.TAR_XZ,
            xz_with_dictionary(b"x" * 5000, 1 << 26),
            xz_with_dictionary(b"x" * 5000, 1 << 28),
        ),
        (Form.TAR_ZST, zst(b"x" * 5000, 27), zst(b"x" * 5000, 28)),
    ],
)
def test_what_takes_too_much_memory_is_refused_even_behind_what_does_not(form, modest, greedy):
    assert drain(open_codec(form, Dripping(modest, 1000))) == (b"x" * 5000, "")
    for data in (greedy, modest + greedy):
        with pytest.raises(ArchiveTooLarge, match="128 MiB of memory"):
            drain(open_codec(form, Dripping(data, 1000)))


@pytest.mark.parametrize("form", FORMS)
@given(st.data())
@settings(deadline=None, max_examples=30)
def test_what_is_cut_off_gives_what_lies_before(form, data):
    cut = data.draw(st.integers(1, len(PACKED[form]) - 1))
    found, damage = drain(open_codec(form, Dripping(PACKED[form][:cut], 1000)))
    assert WHOLE.startswith(found)
    assert damage


@pytest.mark.parametrize("form", FORMS)
@given(st.data())
@settings(deadline=None, max_examples=30)
def test_damaged_bytes_end_in_words(form, data):
    damaged = bytearray(PACKED[form])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    found, _ = drain(open_codec(form, Dripping(bytes(damaged), 1000)))
    assert len(found) <= 4 * len(WHOLE)


@for_each("form", FORMS)
def test_no_piece_is_larger_than_asked_for(form):
    bomb = COMPRESSIONS[FORMS[form]](bytes(64 << 20))
    buffer = memoryview(bytearray(1 << 20))
    codec = open_codec(form, Dripping(bomb, 1 << 20))
    for _ in range(4):
        assert read_piece(codec, buffer) == (1 << 20, "")


class Changing(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        raise Stale("it changed")


@for_each("form", FORMS)
def test_errors_of_the_file_below_are_not_damage(form):
    with pytest.raises(Stale):
        read_piece(open_codec(form, Changing()), memoryview(bytearray(100)))


def packed_member(content: bytes, method: int) -> bytes:
    """The bytes of the only member of a zip."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        file.writestr(zipfile.ZipInfo("a"), content, method)
        (member,) = file.infolist()
    start = 30 + len("a")
    return out.getvalue()[start : start + member.compress_size]


@pytest.mark.parametrize("method", [8, 12, 14])
@given(st.binary(max_size=3000), st.integers(1, 3000), st.integers(1, 3000))
@settings(deadline=None, max_examples=50)
def test_inflater(method, content, step, size):
    raw = packed_member(content, method)
    crc = zlib.crc32(content)

    def inflated(length, crc):
        return drain(Inflater(Dripping(raw, step), method, length, crc), size)

    assert inflated(len(content), crc) == (content, "")
    if content:
        found, damage = inflated(len(content), crc ^ 1)
        assert "checksum" in damage
        assert content.startswith(found)
        assert len(found) < len(content)
    found, damage = inflated(len(content) + 1, crc)
    assert (found, "1 bytes too soon" in damage) == (content, True)


def test_a_dictionary_that_is_larger_than_its_content_takes_no_memory():
    raw = bytearray(packed_member(b"x" * 5000, 14))
    raw[5:9] = b"\xff" * 4
    assert drain(Inflater(Dripping(bytes(raw), 100), 14, 5000, zlib.crc32(b"x" * 5000)))[1] == ""
    with pytest.raises(ArchiveTooLarge, match="128 MiB of memory"):
        drain(Inflater(Dripping(bytes(raw), 100), 14, 1 << 30, 0))
    raw[4] = 225
    _, damage = drain(Inflater(Dripping(bytes(raw), 100), 14, 5000, 0))
    assert "properties" in damage


TAR = make_tar({f"{n}.txt": text(700 * n, n) for n in range(6)} | {"a" * 150: b"long"})


@given(st.integers(0, len(TAR)), st.integers(100, 9000))
@example(0, 512)
@example(len(TAR), 512)
@settings(deadline=None)
def test_length_that_is_told_at_the_end_changes_nothing(size, step):
    known, unknown = TarScanner(size), TarScanner(UNKNOWN)
    for scanner in (known, unknown):
        for start in range(0, size, step):
            scanner.feed(TAR[start : min(start + step, size)])
    unknown.end_at(size)
    expected, found = known.finish(), unknown.finish()
    assert found.names() == expected.names()
    assert found.columns.flags == expected.columns.flags
    assert found.object_size == expected.object_size == size
    assert found.warnings == expected.warnings


PADDED = [form for form in FORMS if form is not Form.TAR_BZ2]
"""The forms whose files say what follows: bzip2 ignores anything."""


@pytest.mark.parametrize("form", FORMS)
@given(zeros=st.integers(1, 70_000), step=st.integers(1, 5000), size=st.integers(1, 60_000))
@settings(deadline=None, max_examples=20)
def test_zeros_behind_the_last_stream_are_no_damage(form, zeros, step, size):
    data = PACKED[form] + bytes(zeros)
    assert drain(open_codec(form, Dripping(data, step)), size) == (WHOLE, "")


@for_each("form", PADDED)
@for_each("zeros", [0, 512])
def test_anything_else_behind_the_last_stream_is_damage(form, zeros):
    data = PACKED[form] + bytes(zeros) + b"garbage" * 10
    found, damage = drain(open_codec(form, Dripping(data, 1000)))
    assert found == WHOLE
    assert damage


@pytest.mark.skipif(not shutil.which("xz"), reason="the program xz is not installed")
@pytest.mark.parametrize("zeros", [4, 3])
def test_zeros_between_streams_of_xz_are_as_for_xz(zeros):
    one = COMPRESSIONS["tar.xz"](b"one")
    data = one + bytes(zeros) + one
    said = subprocess.run(["xz", "-dc"], input=data, capture_output=True, check=False)
    found, damage = drain(open_codec(Form.TAR_XZ, Dripping(data, 7)))
    assert (found, bool(damage)) == (said.stdout, said.returncode != 0)


@pytest.mark.skipif(not shutil.which("zstd"), reason="the program zstd is not installed")
def test_frames_that_zstd_skips():
    skipped = b"\x5a\x2a\x4d\x18\x03\0\0\0abc"
    one = COMPRESSIONS["tar.zst"](b"one")
    for data in (one + skipped + one, skipped + one, one + skipped + bytes(512)):
        said = subprocess.run(
            ["zstd", "-dc"], input=data.rstrip(b"\0"), capture_output=True, check=True
        )
        assert drain(open_codec(Form.TAR_ZST, Dripping(data, 7))) == (said.stdout, "")
