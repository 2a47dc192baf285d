"""GetBatch: what is asked, what an answer is taken for, and that a wrong one never becomes content."""

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from urllib.parse import unquote_to_bytes

import pytest
import xxhash

from aisfs.errors import BucketNotFound, ProtocolError, Unavailable, Unsupported
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import (
    AISClient,
    can_be_checked,
    get_batch,
    get_ranges,
    unpack,
    unpack_ranges,
)
from tests.stores.ais.scripted_server import PROPS, ScriptedServer, error, reply, scripted_server
from tests.support.archives import make_tar
from tests.support.for_each import for_each

BUCKET = Bucket("b")
CONTENTS = {"a": b"one" * 100, "dir/b": b"", "é" * 60: b"three", "n" * 300: b"4" * 513}

tar_of = partial(make_tar, mtime=0)


def info_of(key: str, data: bytes) -> ObjectInfo:
    return ObjectInfo(key, len(data), "1", f"xxhash2:{xxhash.xxh64_hexdigest(data)}")


def wanted_of(contents: dict[str, bytes]) -> list[tuple[ObjectInfo, memoryview]]:
    return [(info_of(k, data), memoryview(bytearray(len(data)))) for k, data in contents.items()]


def unpacked(archive: bytes) -> tuple[list[bool], list[bytes]]:
    wanted = wanted_of(CONTENTS)
    filled = unpack(io.BytesIO(archive).readinto, wanted, "objects")
    return filled, [bytes(buffer) for _, buffer in wanted]


@for_each("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_whole_objects_in_the_order_asked_for(form: int):
    filled, found = unpacked(tar_of(CONTENTS, form))
    assert filled == [True] * len(CONTENTS)
    assert found == list(CONTENTS.values())


def test_what_is_missing_or_of_another_version_is_not_filled():
    others = {"__404__/a": b"", "dir/b": b"longer", "é" * 60: b"THREE", "n" * 300: b"4" * 513}
    filled, found = unpacked(tar_of(others))
    assert filled == [False, False, False, True]
    assert found[3] == CONTENTS["n" * 300]


@for_each(
    "members",
    [
        list(reversed(CONTENTS.items())),
        [(f"b/{key}", data) for key, data in CONTENTS.items()],
    ],
)
def test_objects_of_other_names_are_an_error(members: list[tuple[str, bytes]]):
    with pytest.raises(ProtocolError, match="came instead of"):
        unpacked(tar_of(members))


@for_each("archive", [b"x" * 2000, bytes(10240), tar_of([])])
def test_no_tar_is_an_error(archive: bytes):
    with pytest.raises(ProtocolError, match="no tar"):
        unpacked(archive)


def test_an_answer_cut_anywhere_fills_what_came_whole():
    archive = tar_of(CONTENTS)
    with pytest.raises(Unavailable):
        unpacked(archive[:700])
    most = 0
    for length in range(1024, len(archive), 100):
        filled, found = unpacked(archive[:length])
        assert filled == sorted(filled, reverse=True)
        for one, data, expected in zip(filled, found, CONTENTS.values(), strict=True):
            assert not one or data == expected
        most = max(most, sum(filled))
    assert most == len(CONTENTS)


@for_each(
    "key, checksum, able",
    [
        ("a", "xxhash2:00", True), ("a", "md5:00", True), ("a", "crc32c:00", True), ("a", "", False),
        ("a", "blake3:00", False), ("a\udcff", "md5:00", False), ("é", "md5:00", True),
    ],
)  # fmt: skip
def test_only_what_can_be_checked_is_asked_for(key: str, checksum: str, able: bool):
    assert can_be_checked(ObjectInfo(key, 1, "1", checksum)) == able


def test_the_request():
    request = get_batch(Bucket("b c", Provider.AWS, "#ns"), ["x y", "é"])
    assert (request.method, request.path) == ("GET", "/v1/ml/moss/b%20c")
    assert request.query == "provider=aws&namespace=%23ns"
    assert json.loads(request.body) == {
        "mime": ".tar", "in": [{"objname": "x y"}, {"objname": "é"}],
        "coer": True, "onob": True, "strm": True,
    }  # fmt: skip


def test_the_request_for_ranges():
    shard = ObjectInfo("d/s.tar", 9000, "1")
    wanted = [(shard, 512, memoryview(bytearray(3))), (shard, 0, memoryview(bytearray(9000)))]
    request = get_ranges(BUCKET, wanted)
    assert json.loads(request.body)["in"] == [
        {"objname": "d/s.tar", "start": 512, "length": 3},
        {"objname": "d/s.tar", "start": 0, "length": 9000},
    ]


SHARD = ObjectInfo("s.tar", 9000, "1", "xxhash2:00")
RANGES = [b"1", b"23" * 300, b"4"]


def wanted_ranges() -> list[tuple[ObjectInfo, int, memoryview]]:
    return [(SHARD, 1000 * at, memoryview(bytearray(len(d)))) for at, d in enumerate(RANGES)]


def unpacked_ranges(members: list[tuple[str, bytes]]) -> tuple[int, list[bytes]]:
    wanted = wanted_ranges()
    filled = unpack_ranges(io.BytesIO(tar_of(members)).readinto, wanted, "ranges")
    return filled, [bytes(buffer) for _, _, buffer in wanted[:filled]]


def test_ranges_in_the_order_asked_for():
    assert unpacked_ranges([("s.tar", data) for data in RANGES]) == (3, RANGES)


def test_ranges_up_to_one_that_is_missing():
    members = [("s.tar", RANGES[0]), ("__404__/s.tar", b""), ("s.tar", RANGES[2])]
    assert unpacked_ranges(members) == (1, RANGES[:1])
    assert unpacked_ranges(members[:1]) == (1, RANGES[:1])
    assert unpacked_ranges([]) == (0, [])  # as if one of them reached beyond its object


@for_each(
    "members",
    [
        [("s.tar", RANGES[0]), ("s.tar", RANGES[2]), ("s.tar", RANGES[1])],
        [("b/s.tar", data) for data in RANGES],
        [("s.tar", bytes(9000))] * 3,  # as servers answer that know no ranges
    ],
)
def test_other_ranges_are_an_error(members: list[tuple[str, bytes]]):
    with pytest.raises(ProtocolError, match="came instead of"):
        unpacked_ranges(members)


# Over the wire

Answer = Callable[[list[str]], bytes]


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[ScriptedServer, AISClient]]:
    """A cluster that redirects a GetBatch once and then gives this answer to the keys asked for."""

    def handle(seen, connection) -> None:
        if not seen.path.startswith("/v1/ml/moss/b"):
            connection.sendall(reply(200, {"Ais-Bucket-Props": PROPS}))
        elif "pid" not in seen.query:
            job = f"{seen.path}/gbt-a1/w1/3?{seen.target.partition('?')[2]}"
            location = f"http://{seen.headers['host']}{job}&pid=p1&utm=x"
            connection.sendall(reply(307, {"Location": location}))
        else:
            assert unquote_to_bytes(seen.path) == b"/v1/ml/moss/b/gbt-a1/w1/3"
            connection.sendall(answer([one["objname"] for one in json.loads(seen.body)["in"]]))

    with scripted_server(handle) as server:
        yield server, AISClient(ClusterSettings(endpoint=server.endpoint))


async def test_the_message_goes_along_with_the_redirect():
    contents = {"a": b"1", "b": b"22", "c": b"333"}

    def answer(keys: list[str]) -> bytes:
        return reply(200, {}, tar_of([(key, contents[key]) for key in keys]))

    with serving(answer) as (server, client):
        wanted = wanted_of(contents)
        wanted[1] = (ObjectInfo("b", 2, "1"), wanted[1][1])  # of no known checksum
        assert await client.read_many(BUCKET, wanted) == [True, False, True]
        assert [bytes(buffer) for _, buffer in wanted] == [b"1", b"\0\0", b"333"]
        assert await client.read_many(BUCKET, wanted[1:2]) == [False]
        assert sum("moss" in seen.target for seen in server.seen) == 2
        await client.aclose()


@for_each(
    "status, details, kind",
    [
        (400, ("", "invalid request URI: 'GET /v1/ml/moss/b'"), Unsupported),
        (404, ("", "404 page not found"), Unsupported),
        (405, ("", "Method Not Allowed"), Unsupported),
        (501, ("ErrUnsupp", "not supported"), Unsupported),
        (404, ("ErrBckNotFound", "bucket does not exist"), BucketNotFound),
        (429, ("ErrRateLimitFrontend", "Too Many Requests"), Unavailable),
        (503, ("", ""), Unavailable),
    ],
)
async def test_refusals(status: int, details: tuple[str, str], kind: type[Exception]):
    with serving(lambda keys: reply(status, *error(status, *details))) as (_, client):
        with pytest.raises(kind):
            await client.read_many(BUCKET, wanted_of(CONTENTS))
        await client.aclose()


async def test_an_answer_that_breaks_off():
    archive = tar_of(CONTENTS)

    def answer(keys: list[str]) -> bytes:
        return reply(
            200, {"Content-Length": str(len(archive)), "Connection": "close"}, archive[:1500]
        )

    with serving(answer) as (server, client):
        server.handler = _closing(server.handler)
        wanted = wanted_of(CONTENTS)
        assert await client.read_many(BUCKET, wanted) == [True, False, False, False]
        assert bytes(wanted[0][1]) == CONTENTS["a"]
        await client.aclose()


def _closing(handler):
    def handle(seen, connection) -> bool:
        handler(seen, connection)
        return "pid" not in seen.query

    return handle


@for_each("now, filled", [("1", True), ("2", False)])
async def test_ranges_count_only_while_the_object_is_the_same_version(now: str, filled: bool):
    def answer(keys: list[str]) -> bytes:
        assert keys == ["s.tar"] * 3
        return reply(200, {}, tar_of([("s.tar", data) for data in RANGES]))

    with serving(answer) as (server, client):
        handle = server.handler

        def with_head(seen, connection) -> None:
            if seen.method == "HEAD" and seen.path == "/v1/objects/b/s.tar":
                connection.sendall(reply(200, {"Content-Length": "9000", "Ais-Version": now}))
            else:
                handle(seen, connection)

        server.handler = with_head
        wanted = wanted_ranges()
        assert await client.read_ranges(BUCKET, wanted) == [filled] * 3
        assert sum(seen.path == "/v1/objects/b/s.tar" for seen in server.seen) == 1
        await client.aclose()
