"""Indexes as bytes: exact round trips, size per member, and whatever else the bytes may be."""

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.core.index import codec
from aisfs.core.index.builder import MemberIndexBuilder
from aisfs.core.index.codec import DamagedIndex, decode, encode
from aisfs.core.index.member_index import (
    EXECUTABLE,
    SPARSE,
    TRUNCATED,
    MemberIndex,
    MemberKind,
)
from tests.support.for_each import for_each
from tests.support.tars import GNU, base256, entry, long_name, pax, scan, shard

SECOND = 1_000_000_000


def everything(index: MemberIndex) -> tuple:
    """What every accessor says."""
    accessors = (
        index.name,
        index.kind,
        index.size,
        index.mtime_ns,
        index.executable,
        index.mode,
        index.truncated,
        index.sparse,
        index.content_row,
        index.link_target,
        index.data_range,
        index.span,
    )
    rows = [tuple(accessor(row) for accessor in accessors) for row in range(len(index))]
    whole = (index.object_size, index.warnings, list(index.skipped.items()), index.nbytes)
    columns = index.columns
    arrays = [columns.ends, columns.offsets, columns.leads, columns.sizes, columns.mtimes]
    return rows, whole, index.names(), index.flat, [(a.typecode, a) for a in arrays]


def assert_survives(index: MemberIndex) -> bytes:
    data = encode(index)
    again = decode(data)
    assert everything(again) == everything(index)
    assert repr(again) == repr(index)
    return data


def webdataset(
    count: int,
    *,
    extensions=("image.jpg", "cls"),
    often=1.0,
    seed: int = 1,
) -> MemberIndex:
    """Rows as the scan finds them in shards of webdataset's writer, pax times included."""
    state = seed

    def random(below: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % below

    names: list[bytes] = []
    sample = 0
    while len(names) < count:
        last = extensions if random(1000) < often * 1000 else extensions[:-1]
        names += [b"sample_%06d.%b" % (sample, extension.encode()) for extension in last]
        sample += 1
    del names[count:]
    sizes = [random(150_000) for _ in names]
    offsets, mtimes, position, now = [], [], 0, 17_000_000_000_000_000
    for size in sizes:
        position += 3 * 512
        offsets.append(position)
        position += -(-size // 512) * 512
        now += 200 + random(500)  # a float has seven digits after its dot
        mtimes.append(now * 100)
    rows = MemberIndexBuilder(position + 1024)
    rows.extend(names, offsets, [3] * count, sizes, mtimes, bytes(count))
    return rows.build()


# Round trips ---------------------------------------------------------------------------------

ODD = (
    entry(b"dir/", kind=b"5", mtime=0)
    + entry(b"dir/a.jpg", b"x" * 1000, mode=0o755)
    + entry(b"dir/b.jpg", kind=b"1", target=b"dir/a.jpg")
    + entry(b"dir/c.jpg", kind=b"2", target=b"a.jpg")
    + entry(b"pipe", kind=b"6")
    + entry(b"../climbs", b"x")
    + long_name(b"n" * 180)
    + entry(b"n" * 100, b"x", magic=GNU)
    + pax({b"mtime": b"-5.25", b"path": "é/".encode() + b"\xff"})
    + entry(b"short", b"y" * 513)
    + pax({b"GNU.sparse.size": b"5000", b"GNU.sparse.map": b"0,10", b"GNU.sparse.name": b"holes"})
    + entry(b"stored", b"1234567890")
    + entry(b"dir/a.jpg", b"again", mtime=base256(2**40, 12))
)


@for_each("count", [1, 2, 8191, 8192, 8193, 20_000])
def test_blocks_of_names_meet(count):
    assert_survives(webdataset(count, extensions=("image.jpg", "cls", "trimap.png"), often=0.5))


def test_offsets_need_not_be_those_of_a_tar():
    rows = MemberIndexBuilder(10_000)
    for at in range(300):
        rows.add(b"%d" % at, 31 * at + 7, 0, at, 0, 0)
    assert_survives(rows.build())


def test_times_from_the_epoch_on():
    rows = MemberIndexBuilder(10_000_000)
    for at in range(300):
        rows.add(b"%d" % at, 1024 * at + 512, 1, 1, at * at, 0)
    assert_survives(rows.build())


def test_warnings_may_hold_anything():
    rows = MemberIndexBuilder(0)
    rows.warn("of \udcff and é and \0")
    rows.skip("\udcff")
    assert_survives(rows.build())


_paths = st.one_of(
    st.from_regex(rb"[ab]{1,2}(/[ab.]{1,3}){0,2}", fullmatch=True),
    st.from_regex(rb"s_[0-9]{6}\.(jpg|cls)", fullmatch=True),
    st.binary(max_size=20),
    st.binary(min_size=1, max_size=1).map(lambda byte: byte * 300),
)
_large = st.integers(0, 2**63 - 1)
_numbers = st.one_of(st.integers(0, 3000), _large)
_times = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(0, 100).map(lambda at: (17 * 10**8 + at) * SECOND)
)


@st.composite
def _rows(draw) -> tuple:
    kind = draw(st.sampled_from([MemberKind.FILE] * 5 + list(MemberKind)))
    linked = kind in (MemberKind.SYMLINK, MemberKind.HARDLINK)
    holes = kind == MemberKind.FILE and draw(st.booleans())
    bits = draw(st.sampled_from([0, 0, EXECUTABLE, TRUNCATED, EXECUTABLE | TRUNCATED]))
    return (
        draw(_paths),
        draw(st.one_of(st.none(), _numbers)),
        draw(st.sampled_from([1, 1, 3, 3, 0xFFFF])),
        draw(_numbers),
        draw(_times),
        kind | bits | (SPARSE if holes else 0),
        draw(_paths) if linked else None,
        draw(st.one_of(_large, st.integers(2**63, 2**64 - 1))) if holes else None,
    )


@st.composite
def indexes(draw) -> MemberIndex:
    builder = MemberIndexBuilder(draw(_large))
    stop = 0
    for name, offset, lead, size, mtime, flags, target, stored_stop in draw(st.lists(_rows())):
        start = stop + 512 * lead if offset is None else offset
        if start >= 2**63:
            start = 0
        builder.add(name, start, lead, size, mtime, flags, target=target, stored_stop=stored_stop)
        stop = start + (size + 511 & -512)
    for message in draw(st.lists(st.text(), max_size=3)):
        builder.warn(message)
    for reason in draw(st.lists(st.sampled_from(["climbs", "device", "é"]), max_size=5)):
        builder.skip(reason)
    return builder.build()


def test_a_member_that_says_it_is_longer_than_any_object_survives():
    longest = entry(b"GNUSparseFile.0/holes", b"", magic=GNU, size=base256(2**63 - 1, 12))
    said = pax({b"GNU.sparse.size": b"5000", b"GNU.sparse.map": b"0,10", b"GNU.sparse.name": b"h"})
    index = scan(said + longest + bytes(1024))
    assert index.columns.stored_stops == {0: 2**63 - 1 + len(said) + 512}
    assert_survives(index)


@for_each("size", [2**63, 2**64 - 1, 2**64, 2**100])
def test_what_cannot_be_decoded_is_not_encoded(size):
    with pytest.raises(ValueError, match="cannot be stored"):
        encode(MemberIndexBuilder(size).build())


@given(indexes())
@settings(max_examples=300, deadline=None)
def test_any_index_survives(index):
    assert_survives(index)


# Size and speed ------------------------------------------------------------------------------


@for_each(
    "extensions, often",
    [
        (("image.jpg", "cls"), 1.0),
        (("image.jpg", "cls", "trimap.png"), 1.0),
        (("image.jpg", "cls", "trimap.png"), 0.5),
    ],
)
def test_regular_names_take_six_bytes_a_member(extensions, often):
    index = webdataset(30_000, extensions=extensions, often=often)
    assert len(encode(index)) <= 6 * len(index)


def test_members_all_alike_take_next_to_nothing():
    assert len(encode(scan(shard([f"{at:08}.jpg" for at in range(3000)], pax_times=False)))) < 3000


def test_too_many_members_are_not_encoded(monkeypatch):
    monkeypatch.setattr(codec, "MAX_INFLATED", 1000)
    with pytest.raises(ValueError, match="too many"):
        encode(webdataset(1000))
    monkeypatch.setattr(codec, "_MAX_ROWS", 999)
    with pytest.raises(ValueError, match="cannot be stored"):
        encode(webdataset(1000))


# Other bytes ---------------------------------------------------------------------------------

DATA = encode(scan(ODD + shard([f"sample_{at // 2:06}.{at % 2}" for at in range(100)])))


@for_each("data", [b"", b"AISX", bytes(100), b"PK\x03\x04" * 50, DATA + b"\0", DATA[1:], DATA * 2])
def test_foreign_bytes_are_damaged(data):
    with pytest.raises(DamagedIndex):
        decode(data)


def test_every_truncation_is_noticed():
    for stop in range(len(DATA)):
        with pytest.raises(DamagedIndex):
            decode(DATA[:stop])


def test_every_changed_byte_is_noticed():
    for at in range(len(DATA)):
        damaged = bytearray(DATA)
        damaged[at] ^= 0x41
        with pytest.raises(DamagedIndex):
            decode(damaged)


def sealed(raw: bytes, length: int) -> bytes:
    """Bytes whose checksum holds, whatever they say."""
    rest = struct.pack("<QI", length, 1) + zlib.compress(raw, 1)
    return struct.pack("<4sBI", b"AISX", 1, zlib.crc32(rest)) + rest


@for_each("stated", [0, 1, 99, 1 << 20, 1 << 31, 1 << 63])
def test_stated_length_must_be_the_real_one(stated):
    with pytest.raises(DamagedIndex):
        decode(sealed(bytes(100), stated))


def test_bomb_inflates_no_further_than_it_says():
    bomb = sealed(bytes(50_000_000), 1000)
    assert len(bomb) < 300_000
    with pytest.raises(DamagedIndex, match="length it states"):
        decode(bomb)
