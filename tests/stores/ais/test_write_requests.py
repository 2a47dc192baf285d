"""Requests that change objects: what is sent, and what can never be."""

import json

import pytest

from aisfs.errors import InvalidName
from aisfs.http.exchange import Reply
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.stores.ais import requests
from aisfs.stores.ais.replies import labelled
from aisfs.stores.ais.requests import BucketFacts, Request
from aisfs.stores.port import BytesContent, checksum_of
from aisfs.stores.posix_metadata import encode_custom, stamp_of
from tests.support.for_each import for_each

PETS = Bucket("pets")
FACTS = BucketFacts(1_700_000_000_000_000_000, "xxhash2")
SELECTORS = [
    b"",
    b'{"action":"delete-listrange","value":{"objnames":[]}}',
    b'{"action":"delete-listrange","value":{"template":""}}',
    b'{"action":"delete-listrange","value":null}',
    b'{"action":"delete-listrange","value":{"template":"train/"}}',
    b'{"action":"evict-listrange","name":"k","value":null}',
]


@for_each("method", ["DELETE", "POST", "PUT", "PATCH"])
@for_each(
    "path", ["/v1/buckets/pets", "/v1/objects/pets", "/v1/objects/pets/", "/v1/cluster", "/s3/pets"]
)
@for_each("body", SELECTORS)
def test_requests_that_could_change_more_than_one_object_cannot_be_made(method, path, body):
    with pytest.raises(ValueError, match="more than one object"):
        Request(method, path, "", "pets", {}, body)


@for_each("body", SELECTORS[1:])
def test_selectors_are_refused_on_objects_too(body):
    with pytest.raises(ValueError, match="selector"):
        Request("DELETE", "/v1/objects/pets/k", "", "pets", {}, body)


@for_each("key", ["", "/", "a/", ".", "..", "a/../b", "a\0b", "\ud800"])
def test_every_change_names_an_object(key):
    info = ObjectInfo(key, 1)
    for make in (
        lambda: requests.put_object(PETS, key),
        lambda: requests.delete_object(PETS, key),
        lambda: requests.copy_object(PETS, info, PETS, "to"),
        lambda: requests.patch_custom(PETS, key, "x"),
        lambda: requests.start_parts(PETS, key),
        lambda: requests.put_part(PETS, key, "id", 1),
        lambda: requests.complete_parts(PETS, key, "id", [1]),
        lambda: requests.abort_parts(PETS, key, "id"),
    ):
        with pytest.raises(InvalidName):
            make()


def test_put():
    request = requests.put_object(PETS, "a b", checksum="xxhash2:0123456789abcdef", custom="abc")
    assert (request.method, request.target) == ("PUT", "/v1/objects/pets/a%20b?provider=ais")
    assert request.headers == {
        "Ais-Checksum-Type": "xxhash2",
        "Ais-Checksum-Value": "0123456789abcdef",
        "Ais-Custom-Md": "aisfs=abc",
    }


def test_copy():
    to = Bucket("b", Provider.AIS, "@uuid#ns")
    request = requests.copy_object(PETS, ObjectInfo("k", 10**9), to, "dir/ü +&")
    assert request.query == ("provider=ais&object_to=ais%2F%40uuid%23ns%2Fb%2Fdir%2F%C3%BC+%2B%26")
    assert request.patience == 20
    plain = requests.copy_object(PETS, ObjectInfo("k", 0), PETS, "l\udcff")
    assert plain.query == "provider=ais&object_to=ais%2F%40%23%2Fpets%2Fl%FF"


def test_complete():
    request = requests.complete_parts(PETS, "k", "id", [5, 3])
    assert json.loads(request.body) == {
        "action": "mpt-complete",
        "value": [{"part-number": 1, "etag": ""}, {"part-number": 2, "etag": ""}],
    }


def test_reply_of_a_put():
    headers = {"ais-version": "7", "ais-checksum-type": "xxhash2", "ais-checksum-value": "abcd"}
    info = requests.parse_written(Reply(200, headers), PETS, "k", 5, FACTS)
    assert info == ObjectInfo("k", 5, "7", "xxhash2:abcd", FACTS.created_ns + 6 * 10**9)
    assert requests.parse_written(Reply(200, {"content-length": "0"}), PETS, "k", 5, FACTS) is None


@for_each("join", ["mtime=5, aisfs={}, z=1", "[mtime:5 aisfs:{} z:1]", "aisfs={}"])
def test_custom_metadata_among_that_of_others(join):
    info = ObjectInfo("k", 5, "7", "xxhash2:abcd")
    text = join.format(encode_custom({"mode": "0600"}, stamp_of(info)))
    assert requests.with_custom(info, text).custom == {"mode": "0600"}
    for other in (ObjectInfo("k", 6, "7", "xxhash2:abcd"), ObjectInfo("k", 5, "7", "xxhash2:ab")):
        assert requests.with_custom(other, text).custom == {}


@for_each("text", ["", "aisfs=", "aisfs=x", "aisfs=bm9uc2Vuc2U", "naisfs=W10", "a"])
def test_custom_metadata_that_is_not_ours(text):
    assert requests.with_custom(ObjectInfo("k", 5, "7"), text).custom == {}


def test_types_of_checksums_in_listings():
    assert labelled("xxhash2", "e19b0149") == "crc32c:e19b0149"
    assert labelled("xxhash2", "92f0de5a88a3c094") == "xxhash2:92f0de5a88a3c094"
    assert labelled("xxhash", "92f0de5a88a3c094") == "xxhash:92f0de5a88a3c094"
    assert labelled("md5", "92f0de5a88a3c094") == "xxhash2:92f0de5a88a3c094"
    assert labelled("new-type", "e19b0149") == "new-type:e19b0149"
    assert labelled("none", "e19b0149") == "crc32c:e19b0149"
    assert labelled("none", "e19b") == ""
    assert labelled("", "e19b0149") == ""
    assert labelled("xxhash2", "") == ""


@for_each(
    "kind, value",
    [
        # As AIStore 5.0 gave them.
        ("crc32c", "e19b0149"),
        ("xxhash2", "ef46db3751d8e999"),
        ("md5", "d41d8cd98f00b204e9800998ecf8427e"),
    ],
)
def test_checksums(kind, value):
    data = b"first second" if kind == "crc32c" else b""
    assert checksum_of(BytesContent(data), kind) == f"{kind}:{value}"


def test_a_bucket_is_destroyed_by_its_name_alone():
    request = requests.destroy_bucket(PETS)
    assert (request.method, request.path) == ("DELETE", "/v1/buckets/pets")
    assert json.loads(request.body) == {"action": "destroy-bck", "name": "", "value": None}
    for method, path in (
        ("DELETE", "/v1/buckets/"),
        ("DELETE", "/v1/buckets"),
        ("DELETE", "/v1/buckets/pets/a"),
        ("DELETE", "/v1/objects/pets"),
        ("POST", "/v1/buckets/pets"),
    ):
        with pytest.raises(ValueError, match="more than one object"):
            Request(method, path, "", "pets", {}, request.body)
