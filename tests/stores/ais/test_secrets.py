"""Whatever a server says: no token in an error, a log line or an attribute."""

import base64
import io
import json
import logging
import os
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import trio

from aisfs.errors import AisfsError
from aisfs.model import Bucket, ObjectInfo
from aisfs.redaction import shown
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from aisfs.stores.port import BytesContent, Upload
from aisfs.system.logs import FORMAT, _Printable
from tests.stores.ais.scripted_server import QUESTIONS, MiniCluster, reply, scripted_server
from tests.support.mounts import mounted

B = Bucket("b")


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


OWN = "opaque-0f3b/c9+d2"
JWT = f"{part({'alg': 'HS256'})}.{part({'sub': 'me'})}.c2lnbmF0dXJlLW9mLW1pbmU"
OTHER = "b3RoZXI6cGFzc3dvcmQ="
SECRETS = (OWN, JWT, OTHER, JWT[:20], JWT.split(".")[1], JWT.split(".")[2], OWN[:9])
SAID = f'invalid "Authorization": expired: {JWT} {OWN}; Authorization: Basic {OTHER}'
IN_HEADER = f"{JWT} {OWN} Basic {OTHER}"
LONG = "x" * 280 + OWN
CUT = "x" * 290 + OWN
"""Longer than what is passed on, which ends within the token."""

LOCATIONS = [f"ftp://h/{JWT}{OWN}", f"http://h:x/{OWN}?{JWT}", f"/login?t={JWT}&b=Basic%20{OTHER}"]


def answers():
    """Replies with secrets wherever a server can put something."""
    statuses = (200, 206, 400, 401, 404, 416, 500, 503)
    for status in statuses:
        codes = ["ErrMv", "errInvalidPath", "ErrBckNotFound"] if status in (400, 404, 500) else []
        texts = [("", LONG), ("", CUT), (IN_HEADER, SAID), *((code, SAID) for code in codes)]
        for code, text in texts:
            said = json.dumps({"tcode": code, "message": text})
            yield reply(status, {"Hdr-Error": said}, said.encode())
    yield from (reply(307, {"Location": place}) for place in LOCATIONS)
    yield b"HTTP/1.1 200\r\n" + IN_HEADER.encode() + b"\r\n\r\n"
    yield IN_HEADER.encode() + b"\r\n\r\n"
    yield f"HTTP/1.1 {IN_HEADER}\r\n\r\n".encode()
    for name in ("Content-Range", "Content-Length", "Content-Encoding", "Ais-Version",
                 "Ais-Checksum-Value", "Ais-Checksum-Type", "Transfer-Encoding"):  # fmt: skip
        for status in (200, 206):
            fine = {"Content-Range": "bytes 0-4/5", "Ais-Version": "1"}
            yield reply(status, {**fine, name: IN_HEADER}, b"12345")
    kind = {"Content-Type": "application/msgpack"}
    entry = {"n": "k", "s": 5, "v": "1"}
    for value in (IN_HEADER, {"Entries": IN_HEADER}, {"Entries": [{**entry, "s": IN_HEADER}]},
                  {"ContinuationToken": JWT + OWN}):  # fmt: skip
        yield reply(200, kind, msgspec.msgpack.encode(value))
        yield reply(200, {"Content-Type": "application/json"}, json.dumps(value).encode())
    yield reply(200, {}, (IN_HEADER + "\0").ljust(1024, "\0").encode())


async def every_call(client):
    info = ObjectInfo("k", 5, "1", "xxhash2:0123456789abcdef")
    buffer = memoryview(bytearray(5))
    content = BytesContent(b"12345")
    calls = [
        lambda: client.list_buckets(),
        lambda: client.list_page(B, ""),
        lambda: client.list_page(B, "", token=JWT + OWN),
        lambda: client.head(B, "k"),
        lambda: client.read_range(B, info, 0, buffer),
        lambda: client.read_range(B, ObjectInfo("k", 9, "1"), 0, buffer),
        lambda: client.stream(B, info, lambda piece: None),
        lambda: client.read_many(B, [(info, buffer)]),
        lambda: client.read_ranges(B, [(info, 0, buffer)]),
        lambda: client.upload(Upload(B, "k", content)),
        lambda: client.upload(Upload(B, "k", BytesContent(b""))),
        lambda: client.begin_upload(B, "k"),
        lambda: client.remove(B, "k"),
        lambda: client.set_custom(B, info, {"a": "b"}),
    ]
    errors = []
    for call in calls:
        try:
            with trio.move_on_after(20):
                await call()
        except AisfsError as error:
            errors.append(error)
    return errors


@pytest.fixture
def lines(monkeypatch):
    """What the log would hold."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Printable(FORMAT))
    logging.getLogger().addHandler(handler)
    logging.getLogger("aisfs").setLevel(logging.DEBUG)
    yield stream
    logging.getLogger().removeHandler(handler)
    logging.getLogger("aisfs").setLevel(logging.NOTSET)


@pytest.mark.parametrize("said", ["to requests", "and of buckets", "and of readiness"])
async def test_no_error_tells_a_secret(lines, said):
    """`said`: where; what is asked before the request itself may have good answers."""
    cluster = MiniCluster({"k": b"12345"})
    answer = b""

    def before(seen, connection):
        if seen.path in QUESTIONS and said != "and of readiness":
            return None
        if seen.method == "HEAD" and "/buckets/" in seen.path and said == "to requests":
            return None
        connection.sendall(answer)
        return False

    cluster.before = before
    told = 0
    for answer in list(answers())[:: 1 if said == "to requests" else 2]:
        with scripted_server(cluster) as server:
            settings = ClusterSettings(
                endpoint=server.endpoint, token=OWN, io_timeout=1, read_timeout=1
            )
            client = AISClient(settings)
            for error in await every_call(client):
                told += 1
                log = logging.getLogger("aisfs.test")
                log.warning("failed: %s", error, exc_info=error)
                assert not any(secret in str(error) + repr(error) for secret in SECRETS), answer
                assert str(error).isprintable()
            await client.aclose()
    assert told > 300
    assert not any(secret in lines.getvalue() for secret in SECRETS)
    assert "[struck out]" in lines.getvalue()


def test_what_is_no_secret_stays():
    text = "ais://b/k: the cluster wants a valid token; basically, eyJ is how they begin"
    assert shown(text) == text


@pytest.mark.mount
def test_no_attribute_tells_a_secret(tmp_path: Path):
    cluster = MiniCluster({"k": b"12345"})

    def before(seen, connection):
        if seen.method != "GET" or "/buckets/" not in seen.path:
            return None
        entries = [{"name": "k", "size": "5", "version": JWT, "checksum": OWN}]
        body = json.dumps({"uuid": "u", "continuation_token": "", "entries": entries}).encode()
        connection.sendall(reply(200, {"Content-Type": "application/json"}, body))
        return True

    cluster.before = before
    expected = ["changed"]
    with (
        scripted_server(cluster) as server,
        mounted(
            "ais://b",
            tmp_path,
            options=["--list-xattrs"],
            endpoint=server.endpoint,
            env={"AIS_AUTHN_TOKEN": OWN},
            expected_log=expected,
        ) as mount,
    ):
        file = tmp_path / "k"
        values = [os.getxattr(file, name).decode() for name in os.listxattr(file)]
        with suppress(OSError):  # what is read has another version
            file.read_bytes()
        assert "changed" in mount.log()
        assert "[struck out]" in "".join(values)
        assert not any(secret in "".join(values) + mount.log() for secret in SECRETS)
