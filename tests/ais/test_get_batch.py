"""GetBatch: what is asked, what an answer is taken for, and that a wrong one never becomes content."""

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import unquote_to_bytes

import pytest
import xxhash

from aisfs.ais.client import AISClient
from aisfs.ais.get_batch import can_be_checked, get_batch, unpack
from aisfs.config import ClusterSettings
from aisfs.errors import BucketNotFound, ProtocolError, Unavailable, Unsupported
from aisfs.model import Bucket, ObjectInfo, Provider
from tests.ais.scripted_server import PROPS, ScriptedServer, error, reply, scripted_server

BUCKET = Bucket("b")
CONTENTS = {"a": b"one" * 100, "dir/b": b"", "é" * 60: b"three", "n" * 300: b"4" * 513}


def info_of(key: str, data: bytes) -> ObjectInfo:
    return ObjectInfo(key, len(data), "1", f"xxhash2:{xxhash.xxh64_hexdigest(data)}")


def wanted_of(contents: dict[str, bytes]) -> list[tuple[ObjectInfo, memoryview]]:
    return [(info_of(k, data), memoryview(bytearray(len(data)))) for k, data in contents.items()]


def tar_of(members: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def unpacked(archive: bytes) -> tuple[list[bool], list[bytes]]:
    wanted = wanted_of(CONTENTS)
    filled = unpack(io.BytesIO(archive).readinto, wanted, "objects")
    return filled, [bytes(buffer) for _, buffer in wanted]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_whole_objects_in_the_order_asked_for(form: int):
    filled, found = unpacked(tar_of(list(CONTENTS.items()), form))
    assert filled == [True] * len(CONTENTS)
    assert found == list(CONTENTS.values())


def test_what_is_missing_or_of_another_version_is_not_filled():
    others = {"__404__/a": b"", "dir/b": b"longer", "é" * 60: b"THREE", "n" * 300: b"4" * 513}
    filled, found = unpacked(tar_of(list(others.items())))
    assert filled == [False, False, False, True]
    assert found[3] == CONTENTS["n" * 300]


@pytest.mark.parametrize(
    "members",
    [
        list(reversed(CONTENTS.items())),
        [(f"b/{key}", data) for key, data in CONTENTS.items()],
    ],
    ids=["another order", "other names"],
)
def test_objects_of_other_names_are_an_error(members: list[tuple[str, bytes]]):
    with pytest.raises(ProtocolError, match="came instead of"):
        unpacked(tar_of(members))


@pytest.mark.parametrize("archive", [b"x" * 2000, bytes(10240), tar_of([])])
def test_no_tar_is_an_error(archive: bytes):
    with pytest.raises(ProtocolError, match="no tar"):
        unpacked(archive)


def test_an_answer_cut_anywhere_fills_what_came_whole():
    archive = tar_of(list(CONTENTS.items()))
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


@pytest.mark.parametrize(
    ("key", "checksum", "able"),
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


# Over the wire

Answer = Callable[[list[str]], bytes]


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[ScriptedServer, AISClient]]:
    """A cluster that redirects a GetBatch once and then gives this answer to the keys asked for."""

    def handle(seen, connection) -> None:
        if not seen.path.startswith("/v1/ml/moss/b"):
            connection.sendall(reply(200, {"Ais-Bucket-Props": PROPS}))
        elif "pid" not in seen.query:
            location = f"http://{seen.headers['host']}{seen.target}&pid=p1&utm=x"
            connection.sendall(reply(307, {"Location": location}))
        else:
            assert unquote_to_bytes(seen.path) == b"/v1/ml/moss/b"
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


@pytest.mark.parametrize(
    ("status", "details", "kind"),
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
    archive = tar_of(list(CONTENTS.items()))

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
