"""Replies that are small, or look so, and would break who decodes them."""

import base64
import json

import msgspec
import pytest

from aisfs.errors import AisfsError, ProtocolError
from aisfs.http.exchange import Reply
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.stores.ais import replies, requests
from aisfs.stores.ais.replies import failure
from aisfs.stores.ais.requests import BucketFacts
from aisfs.stores.posix_metadata import decode_custom
from tests.support.for_each import for_each

B = Bucket("b")
FACTS = BucketFacts(1, "xxhash2")
MSGPACK = {"content-type": "application/msgpack"}
JSON = {"content-type": "application/json"}
DEEP = 100_000
DIGITS = "9" * 5000


def page(headers, body):
    return replies.parse_page(Reply(200, headers, body), B, "", FACTS)


@for_each(
    "headers, body",
    [
        (MSGPACK, b"\x91" * DEEP),
        (MSGPACK, b"\x82\xa1x" + b"\x91" * DEEP + b"\xc0\xa7Entries\x90"),
        (MSGPACK, b"\x81\xa7Entries\x91\x81\xa1n" + b"\x91" * DEEP + b"\xa1\xff"),
        (MSGPACK, b"\x81\xa7Entries\x91\x82\xa1n\xa1\xff\xa1m" + b"\x91" * 500 + b"\xc0"),
        (MSGPACK, b"\x81\xa7Entries\xdd\xff\xff\xff\xff"),
        (JSON, b"[" * DEEP),
        (JSON, b'{"x": ' + b"[" * DEEP),
        (JSON, b'{"x": "\xff", "y":' + b"[" * DEEP),
        (JSON, b'{"entries": [{"name": "a\xff", "size": ' + DIGITS.encode() + b"}]}"),
    ],
)
def test_a_listing_that_is_a_bomb(headers, body):
    with pytest.raises(ProtocolError):
        page(headers, body)
    with pytest.raises(ProtocolError):
        replies.parse_buckets(Reply(200, headers, body))


@for_each("size", [-1, 2**62, 2**64 - 1])
@for_each("name", ["a", "a\udcff"])
def test_sizes_that_none_can_have(size, name):
    entry = {"name": name, "size": str(size)}
    body = json.dumps({"entries": [entry]}, ensure_ascii=False).encode(errors="surrogateescape")
    with pytest.raises(ProtocolError):
        page(JSON, body)
    raw = b"\xa1n" + bytes([0xA0 + len(name)]) + name.encode(errors="surrogateescape")
    packed = b"\x81\xa7Entries\x91\x82" + raw + b"\xa1s" + msgspec.msgpack.encode(size)
    with pytest.raises(ProtocolError):
        page(MSGPACK, packed)


def test_more_names_than_a_page_has():
    entries = [{"n": "a"}] * 200_001
    with pytest.raises(ProtocolError, match="more than"):
        page(MSGPACK, msgspec.msgpack.encode({"Entries": entries}))
    with pytest.raises(ProtocolError, match="more than"):
        page(JSON, json.dumps({"entries": [{"name": "a"}] * 200_001}).encode())


def test_versions_of_thousands_of_digits():
    entries = [{"n": "a", "v": DIGITS, "s": 1}]
    (info,) = page(MSGPACK, msgspec.msgpack.encode({"Entries": entries})).objects
    assert info.mtime_ns == FACTS.created_ns
    expected = ObjectInfo("a", 1, DIGITS)
    reply = Reply(200, {"content-length": "1", "ais-version": "1"})
    with pytest.raises(AisfsError) as caught:
        requests.check_content(reply, B, expected, FACTS, 0, 1)
    assert len(str(caught.value)) < 600


@for_each(
    "text",
    ["9" * 19, DIGITS, '{"created":' + "[" * DEEP, '{"created":"' + DIGITS + '"}', "[" * DEEP],
)
def test_properties_of_a_bucket_that_are_a_bomb(text):
    text = text if text.startswith(("{", "[")) else f'{{"created":"{text}"}}'
    facts = requests.parse_bucket_facts(Reply(200, {"ais-bucket-props": text}))
    assert facts.created_ns == 0


@for_each(
    "said",
    [
        "LastModified:9999-12-31T23:59:59Z",
        "LastModified:0001-01-01T00:00:00+23:59",
        "LastModified:9999-12-31T23:59:59-23:59",
        "LastModified:Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
    ],
)
def test_times_that_no_file_can_have(said):
    info = requests.parse_object(
        Reply(200, {"content-length": "1", "ais-custom-md": said}),
        Bucket("b", Provider.AWS), "k", FACTS,
    )  # fmt: skip
    assert info.mtime_ns == 0


def test_errors_and_metadata_that_are_bombs():
    request = requests.get_object(B, "k")
    for body in (b"[" * DEEP, b'{"message":' + b"[" * DEEP):
        assert "HTTP 500" in str(failure(request, Reply(500, {}, body)))
    bomb = base64.urlsafe_b64encode(b"[" * DEEP).decode()
    assert not decode_custom(bomb, ObjectInfo("k", 1, "1"))
