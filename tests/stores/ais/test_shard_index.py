"""AIStore's shard index: bytes made by another encoder, and which of them may be believed."""

import io
import socket
import struct
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.core.index.member_index import MemberIndex
from aisfs.errors import NotFound
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.settings import ClusterSettings
from aisfs.stores.ais import shard_index
from aisfs.stores.ais.client import AISClient
from aisfs.stores.ais.requests import SYSTEM_BUCKET, shard_index_location, shard_of_index
from aisfs.stores.ais.shard_index import (
    decode_shard_index,
)
from tests.stores.ais.scripted_server import Seen, reply, scripted_server
from tests.support.for_each import for_each
from tests.support.servers import running_server
from tests.support.tars import BLOCK, END, GNU, entry, long_name, pax, scan, shard

CHECKSUM = "92f0de5a88a3c094"
MTIME = 1_700_000_000_000_000_000
MLCG32 = 1103515245


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def text(value: bytes) -> bytes:
    return uvarint(len(value)) + value


def payload(
    entries: list[tuple[bytes, int, int]],
    size: int,
    *,
    kind: bytes = b"xxhash2",
    checksum: bytes = CHECKSUM.encode(),
    count: int | None = None,
) -> bytes:
    head = text(kind) + text(checksum) + uvarint(size)
    body = b"".join(text(name) + uvarint(at) + uvarint(length) for name, at, length in entries)
    return head + uvarint(len(entries) if count is None else count) + body


def sealed(body: bytes, version: int = 1, kind: int = 0, hashed: int = 1) -> bytes:
    seed = MLCG32
    if version == 2:
        seed |= version << 32 | kind << 40 | hashed << 48
    stated = xxhash.xxh64(body, seed=seed).intdigest()
    return struct.pack(">BBBQ", version, kind, hashed, stated) + body


def as_aistore_does(data: bytes) -> list[tuple[bytes, int, int]]:
    """Regular members, the first of each name, at the header before the data, by name."""
    first: dict[bytes, tuple[int, int]] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        for info in tar:
            if info.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
                name = info.name.encode(errors="surrogateescape")
                first.setdefault(name, (info.offset_data - BLOCK, info.size))
    return [(name, *where) for name, where in sorted(first.items())]


def version_of(data: bytes, checksum: str = f"xxhash2:{CHECKSUM}") -> ObjectInfo:
    return ObjectInfo("a.tar", len(data), "1", checksum, MTIME)


def index_of(data: bytes, version: int = 1) -> MemberIndex | None:
    packed = sealed(payload(as_aistore_does(data), len(data)), version)
    return decode_shard_index(packed, version_of(data))


def shown(index: MemberIndex) -> list[tuple]:
    """All but what AIStore does not know: times and execute bits."""
    return [
        (
            index.name(row),
            index.kind(row),
            index.size(row),
            index.data_range(row),
            index.span(row),
            index.truncated(row),
            index.sparse(row),
        )
        for row in range(len(index))
    ]


def ustar(*members: bytes) -> bytes:
    return b"".join(members) + END


# Where it is ---------------------------------------------------------------------------------


@for_each(
    "bucket, key",
    [
        (Bucket("pets"), "ais/@#/pets/train/0.tar.idx"),
        (Bucket("pets", Provider.AWS), "aws/@#/pets/train/0.tar.idx"),
        (Bucket("pets", namespace="@uuid#space"), "ais/@uuid#space/pets/train/0.tar.idx"),
        (Bucket("pets", namespace="#space"), "ais/@#space/pets/train/0.tar.idx"),
        (Bucket("pets", namespace="@uuid"), "ais/@uuid#/pets/train/0.tar.idx"),
    ],
)
def test_location(bucket, key):
    assert shard_index_location(bucket, "train/0.tar") == (SYSTEM_BUCKET, key)
    assert str(SYSTEM_BUCKET) == "ais://.sys-shardidx"


# What it says --------------------------------------------------------------------------------


def test_golden_bytes():
    packed = bytes.fromhex(
        "01 00 01 0000000000000000"
        "07 78786861736832 10 39326630646535613838613363303934"  # xxhash2, its value
        "80 18"  # 3072 bytes
        "02"
        "05 622e6a7067 80 08 03"  # b.jpg, header at 1024, 3 bytes
        "05 612e6a7067 00 ac 02"  # a.jpg, header at 0, 300 bytes
    )
    body = packed[11:]
    packed = packed[:3] + xxhash.xxh64(body, seed=1103515245).digest() + body
    index = decode_shard_index(packed, ObjectInfo("a.tar", 3072, "1", f"xxhash2:{CHECKSUM}", MTIME))
    assert index is not None
    assert index.names() == [b"a.jpg", b"b.jpg"]
    assert [index.span(row).start for row in (0, 1)] == [0, 1024]
    assert [index.data_range(row).start for row in (0, 1)] == [512, 1536]
    assert [index.size(row) for row in (0, 1)] == [300, 3]
    assert [index.mtime_ns(row) for row in (0, 1)] == [MTIME, MTIME]
    assert [index.mode(row) for row in (0, 1)] == [0o444, 0o444]


@for_each("version", [1, 2])
@for_each(
    "data",
    [
        shard([f"sample_{at // 2:06}.{'jpg' if at % 2 else 'cls'}" for at in range(200)]),
        shard([f"train/{at}.jpg" for at in range(200)], pax_times=False),
        shard(["x" * 60 + f"/{at}/" + "y" * 90 for at in range(5)]),
        ustar(entry(b"a", b""), entry(b"b", b"x" * 512), entry(b"c", b"x" * 513)),
        ustar(entry(b"./a", b"1"), entry(b"./b", b"2")),
        ustar(entry(b"a", b"1"), long_name(b"n" * 400), entry(b"n" * 100, b"2", magic=GNU)),
        ustar(entry(b"\xff", b"1")),
    ],
)
def test_same_tree_as_our_scan_but_for_times(data, version):
    index = index_of(data, version)
    assert index is not None
    assert shown(index) == shown(scan(data))
    assert not index.warnings
    assert not index.skipped


def test_climbing_names_are_hidden_as_by_the_scan():
    data = ustar(entry(b"../up", b"1"), entry(b"a/../../b", b"2"), entry(b"ok", b"3"))
    index = index_of(data)
    assert index.names() == [b"ok"]
    assert index.skipped == scan(data).skipped == {"climbs": 2}


@for_each(
    "data",
    [
        ustar(),
        ustar(entry(b"d/", kind=b"5"), entry(b"d/a", b"1")),
        ustar(entry(b"a", b"1"), entry(b"l", kind=b"2", target=b"a"), entry(b"b", b"2")),
        ustar(entry(b"a", b"1"), entry(b"l", kind=b"1", target=b"a"), entry(b"b", b"2")),
        ustar(entry(b"a", b"1"), entry(b"b", b"2"), entry(b"l", kind=b"2", target=b"a")),
        ustar(entry(b"a", b"1"), entry(b"b", b"2"), entry(b"a", b"3")),
        ustar(entry(b"a", b"1"), entry(b"a", b""), entry(b"b", b"2")),
        ustar(entry(b"a", b"1"), entry(b"c", b"x", kind=b"7"), entry(b"b", b"2")),
        ustar(entry(b"a", b"1"), pax({b"mtime": b"1.5"}), entry(b"b", b"2")),
        ustar(pax({b"comment": b"x"}, kind=b"g"), entry(b"a", b"1"), entry(b"b", b"2")),
        entry(b"a", b"1"),
        entry(b"a", b"1") + bytes(512),
        ustar(entry(b"a", b"1")) + bytes(9000),
    ],
)
def test_shards_it_may_not_tell_all_of_are_to_be_scanned(data):
    assert index_of(data) is None


def test_pax_sparse_member_is_to_be_scanned():
    holes = {b"GNU.sparse.size": b"5000", b"GNU.sparse.map": b"0,10", b"GNU.sparse.name": b"h"}
    for before, after in [(b"", b""), (b"", entry(b"b", b"1")), (entry(b"a", b"1"), b"")]:
        data = ustar(before + pax(holes) + entry(b"stored", b"1234567890") + after)
        assert index_of(data) is None


# What is not believed ------------------------------------------------------------------------

SHARD = shard([f"{at:04}.jpg" for at in range(20)])
ENTRIES = as_aistore_does(SHARD)


@for_each(
    "expected",
    [
        ObjectInfo("a.tar", len(SHARD) + 512, "1", f"xxhash2:{CHECKSUM}"),
        ObjectInfo("a.tar", len(SHARD), "1", "xxhash2:92f0de5a88a3c095"),
        ObjectInfo("a.tar", len(SHARD), "1"),
        ObjectInfo("a.tar", len(SHARD), "1", "xxhash2:\udcff"),
    ],
)
def test_stale(expected):
    packed = sealed(payload(ENTRIES, len(SHARD)))
    assert decode_shard_index(packed, version_of(SHARD)) is not None
    assert decode_shard_index(packed, expected) is None


@for_each("kind, checksum", [(b"none", b""), (b"", b""), (b"md5", b"")])
def test_index_without_a_checksum_could_be_of_any_version(kind, checksum):
    packed = sealed(payload(ENTRIES, len(SHARD), kind=kind, checksum=checksum))
    assert decode_shard_index(packed, version_of(SHARD)) is None
    assert decode_shard_index(packed, version_of(SHARD, "")) is None


def test_type_of_the_checksum_may_be_told_wrongly_by_listings():
    packed = sealed(payload(ENTRIES, len(SHARD), kind=b"xxhash"))
    assert decode_shard_index(packed, version_of(SHARD)) is not None


@for_each(
    "packed",
    [
        b"",
        bytes(11),
        sealed(payload(ENTRIES, len(SHARD)), version=3),
        sealed(payload(ENTRIES, len(SHARD)), kind=1),
        sealed(payload(ENTRIES, len(SHARD)), hashed=2),
        sealed(b""),
        sealed(payload(ENTRIES, len(SHARD)) + b"\0"),
        sealed(payload(ENTRIES, len(SHARD))[:-1]),
        sealed(payload(ENTRIES, len(SHARD), count=2**60)),
        sealed(payload(ENTRIES, len(SHARD), count=len(ENTRIES) + 1)),
        sealed(payload([*ENTRIES, (b"x", 2**62, 2**62)], len(SHARD))),
        sealed(payload([*ENTRIES, ENTRIES[0]], len(SHARD))),
        sealed(payload([(b"x", 100, 100)], len(SHARD))),
        sealed(payload([(b"x", 0, 2**70)], len(SHARD))),
        sealed(payload([], len(SHARD)) + b"\x80" * 100),
    ],
)
def test_nonsense(packed):
    assert decode_shard_index(packed, version_of(SHARD)) is None


def test_version_2_covers_its_preamble():
    packed = sealed(payload(ENTRIES, len(SHARD)), version=2)
    assert decode_shard_index(packed, version_of(SHARD)) is not None
    assert decode_shard_index(b"\x01" + packed[1:], version_of(SHARD)) is None


def test_changed_bytes_are_noticed():
    packed = sealed(payload(ENTRIES, len(SHARD)))
    for at in range(len(packed)):
        damaged = bytearray(packed)
        damaged[at] ^= 0x21
        assert decode_shard_index(bytes(damaged), version_of(SHARD)) is None
        assert decode_shard_index(packed[:at], version_of(SHARD)) is None


def test_huge_name_is_no_lead_that_fits():
    name = b"n" * (40 << 20)
    data_at = 512 + -(-(len(name) + 100) // 512) * 512
    packed = sealed(payload([(name, data_at, 0)], data_at + 1536))
    expected = ObjectInfo("a.tar", data_at + 1536, "1", f"xxhash2:{CHECKSUM}")
    assert decode_shard_index(packed, expected) is None


def test_longest(monkeypatch):
    packed = sealed(payload(ENTRIES, len(SHARD)))
    monkeypatch.setattr(shard_index, "MAX_BYTES", len(packed) - 1)
    assert decode_shard_index(packed, version_of(SHARD)) is None


@given(st.binary(max_size=200), st.sampled_from([1, 2]))
def test_any_sealed_bytes(body, version):
    decode_shard_index(sealed(body, version), version_of(SHARD))
    decode_shard_index(sealed(payload([], 512) + body, version), ObjectInfo("a", 512, "", CHECKSUM))


_entries = st.lists(
    st.tuples(
        st.binary(max_size=120),
        st.one_of(st.integers(0, 20).map(lambda at: at * 512), st.integers(0, 2**64)),
        st.one_of(st.integers(0, 600), st.integers(0, 2**64)),
    ),
    max_size=5,
)


@given(_entries, st.integers(0, 20))
@settings(max_examples=300)
def test_any_entries_lie_inside_the_shard(entries, blocks):
    size = 512 * blocks
    expected = ObjectInfo("a", size, "", f"xxhash2:{CHECKSUM}")
    index = decode_shard_index(sealed(payload(entries, size)), expected)
    if index is None:
        return
    for row in range(len(index)):
        span = index.span(row)
        assert 0 <= span.start < span.stop <= size


_members = st.sampled_from(
    [
        lambda name: entry(name, b"x" * 700),
        lambda name: entry(name, b""),
        lambda name: pax({b"mtime": b"17.5"}) + entry(name, b"x" * 700),
        lambda name: entry(name, kind=b"2", target=b"0"),
        lambda name: entry(b"0", kind=b"0"),
        lambda name: entry(name, kind=b"5"),
        lambda name: pax({b"path": b"p" * 101 + name}) + entry(name, b"x"),
    ]
)


@given(st.lists(_members, min_size=1, max_size=3), st.integers(1, 6))
@settings(max_examples=300, deadline=None)
def test_what_is_believed_is_what_a_scan_finds(makers, rounds):
    made = [make for _ in range(rounds) for make in makers]
    data = ustar(*(make(b"%d" % at) for at, make in enumerate(made)))
    index = index_of(data)
    if index is None:
        return
    scanned = scan(data)
    found = {(name, size, place) for name, _, size, place, *_ in shown(scanned)}
    believed = [(name, size, place) for name, _, size, place, *_ in shown(index)]
    assert found.issuperset(believed)
    if len(index) < len(made) and index.span(0).start == 0:
        # The known exceptions: what hides in the end's padding, or in pairs before every file.
        hidden = len(made) - len(index)
        assert hidden * BLOCK < 10240 + 1024 or hidden == 2 * len(index)
    else:
        assert shown(index) == shown(scanned)


def test_which_shard_an_index_is_of():
    for bucket in (
        Bucket("b"),
        Bucket("b", Provider.AIS, "@uuid#"),
        Bucket("b", Provider.AIS, "@uuid#name"),
        Bucket("b", Provider.AWS),
    ):
        for key in ("x.tar", "d/e/x.tar", "a.idx", "\udcff.tar"):
            assert shard_of_index(*shard_index_location(bucket, key)) == (bucket, key)
    for bucket, key in (
        (SYSTEM_BUCKET, "ais/@#/b/x.tar"),
        (SYSTEM_BUCKET, "ais/@#/b.idx"),
        (SYSTEM_BUCKET, "nobody/@#/b/x.tar.idx"),
        (Bucket("b"), "ais/@#/b/x.tar.idx"),
    ):
        assert shard_of_index(bucket, key) is None


def with_indexes(root: Path) -> list[str]:
    """Make shards, and put in the place of the index of each its name."""
    shards = [f"d/s{n} +&?%41.tar" for n in range(12)]
    (root / "b" / "d").mkdir(parents=True)
    for key in shards:
        (root / "b" / key).write_bytes(b"the shard of that name" * 10)
        place, name = shard_index_location(Bucket("b"), key)
        index = root / place.name / name
        index.parent.mkdir(parents=True, exist_ok=True)
        index.write_bytes(key.encode())
    return shards


async def read_index(client: AISClient, shard: str) -> bytes:
    place, name = shard_index_location(Bucket("b"), shard)
    info = await client.head(place, name)
    buffer = bytearray(info.size)
    await client.read_range(place, info, 0, memoryview(buffer))
    return bytes(buffer)


@pytest.mark.parametrize("count", [1, 3])
async def test_every_index_is_found_with_its_shard(count: int, tmp_path: Path):
    """By their own names two of three are not there."""
    shards = with_indexes(tmp_path)
    with running_server(tmp_path, targets=count) as server:
        client = AISClient(ClusterSettings(endpoint=server.endpoint))
        for key in shards:
            assert await read_index(client, key) == key.encode()
        with pytest.raises(NotFound):
            await read_index(client, "d/none.tar")
        await client.aclose()


@pytest.mark.parametrize("options", [{"signs": True}, {"token": "t"}])
@pytest.mark.parametrize("count", [1, 3])
async def test_where_targets_are_closed_an_index_is_found_where_its_name_says_or_not_at_all(
    count: int, options: dict[str, Any], tmp_path: Path
):
    shards = with_indexes(tmp_path)
    with running_server(tmp_path, targets=count, **options) as server:
        client = AISClient(ClusterSettings(endpoint=server.endpoint, token=options.get("token")))
        found = []
        for key in shards:
            with suppress(NotFound):
                assert await read_index(client, key) == key.encode()
                found.append(key)
        await client.aclose()
    assert found == shards if count == 1 else 0 < len(found) < len(shards)


async def test_the_shard_is_never_taken_for_its_index():
    """A server that redirects nobody answers with the shard that was asked for."""

    def answer(seen: Seen, connection: socket.socket) -> bool:
        body = b"index" if ".idx" in seen.path else b"shard"
        headers = {"Ais-Version": "1", "Content-Length": "5"}
        connection.sendall(reply(200, headers, b"" if seen.method == "HEAD" else body))
        return True

    with scripted_server(answer) as server:
        client = AISClient(ClusterSettings(endpoint=server.endpoint))
        assert await read_index(client, "x.tar") == b"index"
        await client.aclose()
