import json

import msgspec
import pytest

from aisfs.errors import (
    AccessDenied,
    BucketNotFound,
    InvalidName,
    NotFound,
    OutOfSpace,
    ProtocolError,
    Stale,
    Unavailable,
    Unsupported,
)
from aisfs.http.exchange import Reply
from aisfs.model import Bucket, ObjectInfo, Page, Provider
from aisfs.stores.ais import replies, requests
from aisfs.stores.ais.replies import failure, refuses_props
from aisfs.stores.ais.requests import BucketFacts, Request
from tests.support.for_each import for_each

PETS = Bucket("pets")
FACTS = BucketFacts(1_700_000_000_000_000_000, "xxhash2")
CREATED = 1_700_000_000_000_000_000


# Requests


def test_list_page_request():
    request = requests.list_page(PETS, "train/", "train/a", 100)
    assert request == Request(
        "GET",
        "/v1/buckets/pets",
        "provider=ais",
        "ais://pets/train/",
        {"Content-Type": "application/json", "Accept": "application/msgpack"},
        b'{"action": "list", "name": "", "value": {"uuid": "", "props": '
        b'"name,size,version,checksum,custom", "prefix": "train/", "continuation_token": "train/a", '
        b'"flags": "2048", "pagesize": 100}}',
        most_reply=32 << 20,
    )


def test_list_page_sends_names_that_are_not_utf8_as_their_bytes():
    body = requests.list_page(PETS, "a\udcff/", "a\udcff/\udcfe", 0).body
    assert b'"a\xff/"' in body
    assert b'"a\xff/\xfe"' in body


def test_list_page_of_half_a_name_refused():
    with pytest.raises(InvalidName):
        requests.list_page(PETS, "train", "", 0)


def test_list_buckets_request():
    assert requests.list_buckets(Provider.AWS) == Request(
        "GET",
        "/v1/buckets",
        "provider=aws",
        "buckets of s3://",
        {"Content-Type": "application/json"},
        b'{"action": "list", "name": "", "value": null}',
        most_reply=4 << 20,
    )
    assert requests.list_buckets(None).target == "/v1/buckets"


def test_head_request_with_namespace():
    bucket = Bucket("b", Provider.AIS, "@rem1#ns")
    request = requests.head_object(bucket, "k")
    assert request.target == (
        "/v1/objects/b/k?provider=ais&namespace=%40rem1%23ns&latest-ver=true"
        "&props=checksum%2Cversion%2Ccustom"
    )
    for elsewhere in (Bucket("b", Provider.AIS, "#ns"), Bucket("b", Provider.AWS), Bucket("b")):
        assert "latest" not in requests.head_object(elsewhere, "k").target
    assert (
        requests.head_bucket(bucket).target == "/v1/buckets/b?provider=ais&namespace=%40rem1%23ns"
    )


def test_range_request():
    request = requests.get_range(PETS, "a b", 5, 10)
    assert (request.target, request.headers) == (
        "/v1/objects/pets/a%20b?provider=ais",
        {"Range": "bytes=5-9"},
    )


@for_each("start, stop", [(0, 0), (5, 5), (6, 5), (-1, 3)])
def test_degenerate_range_never_built(start, stop):
    with pytest.raises(ValueError, match="empty"):
        requests.get_range(PETS, "a", start, stop)


@for_each(
    "key, path",
    [
        ("dir/a.jpg", "dir/a.jpg"),
        ("100%", "100%25"),
        ("%41", "%2541"),
        ("a?b#c", "a%3Fb%23c"),
        ("a+b c", "a%2Bb%20c"),
        ("ü", "%C3%BC"),
        ("\udcff", "%FF"),
        ("a\nb", "a%0Ab"),
        ("~a-_.", "~a-_."),
        ("...", "..."),
        ("x//y", "x//y"),
        ("a:b@c,d;e=f&g!$'()*[]", "a%3Ab%40c%2Cd%3Be%3Df%26g%21%24%27%28%29%2A%5B%5D"),
    ],
)
def test_path_quoting(key, path):
    assert requests.get_object(PETS, key).path == f"/v1/objects/pets/{path}"


@for_each("key", ["", ".", "..", "a/../b", "a/.", "./a", "a\0b", "\ud800"])
def test_names_that_would_be_rewritten_refused(key):
    with pytest.raises(InvalidName):
        requests.get_object(PETS, key)


# Listings

MSGPACK_PAGE = msgspec.msgpack.encode(
    {
        "UUID": "d0HAy-6u_l",
        "ContinuationToken": "a/sub/",
        "Entries": [
            {"n": "a/0"},
            {"n": "a/1", "cs": "92f0de5a88a3c094", "v": "3", "s": 100, "f": 64},
            {"n": "a/sub/", "f": 256},
        ],
        "Flags": 0,
    }
)
JSON_PAGE = (
    b'{"uuid":"d0HAy-6u_l","continuation_token":"a/sub/","entries":[{"name":"a/0"},'
    b'{"name":"a/1","checksum":"92f0de5a88a3c094","version":"3","size":"100","flags":64},'
    b'{"name":"a/sub/","flags":256}],"flags":0}\n'
)
PAGE = Page(
    [
        ObjectInfo("a/0", 0, "", "", CREATED),
        ObjectInfo("a/1", 100, "3", "xxhash2:92f0de5a88a3c094", CREATED + 2_000_000_000),
    ],
    ["a/sub/"],
    "a/1",  # not the cluster's, behind which names may be missing
)


@for_each(
    "kind, body",
    [
        ("application/msgpack", MSGPACK_PAGE),
        ("application/json; charset=utf-8", JSON_PAGE),
        ("", JSON_PAGE),
    ],
)
def test_page(kind, body):
    reply = Reply(200, {"content-type": kind}, body)
    assert replies.parse_page(reply, PETS, "a/", FACTS) == PAGE


@for_each(
    "reply",
    [
        Reply(200, {}, b'{"uuid":"x","continuation_token":"","entries":null,"flags":0}'),
        Reply(200, {"content-type": "application/msgpack"}, b"\x81\xa7Entries\xc0"),
    ],
)
def test_empty_page(reply):
    assert replies.parse_page(reply, PETS, "a/", FACTS) == Page([], [], "")


def test_components_that_aistore_refuses_or_drops_are_not_asked_for():
    names = ["a/x.", "a/.", "a/..", "a//", "a/./", "a/b/", "a/.../"]
    entries = [{"name": name, "flags": 256 if name.endswith("/") else 0} for name in names]
    reply = Reply(200, {}, json.dumps({"entries": entries}).encode())
    page = replies.parse_page(reply, Bucket("b", Provider.AWS), "a/", BucketFacts())
    assert page.names == ["a/x.", "a/b/", "a/.../"]
    assert page.unusable == ["a/.", "a/..", "a/./", "a//"]


def test_page_with_names_that_are_not_utf8():
    packed = (
        b"\x82\xb1ContinuationToken\xa3\xc3\xbcb\xa7Entries\x92"
        b"\x82\xa1n\xa2a\xff\xa1s\x05\x81\xa1n\xd9\x03\xc3\xbcb"
    )
    page = Page([ObjectInfo("a\udcff", 5), ObjectInfo("üb", 0)], [], "üb")
    reply = Reply(200, {"content-type": "application/msgpack"}, packed)
    assert replies.parse_page(reply, PETS, "", BucketFacts()) == page
    text = (
        b'{"continuation_token":"\xc3\xbcb","entries":[{"name":"a\xff","size":"5"},'
        b'{"name":"\xc3\xbcb"}]}'
    )
    reply = Reply(200, {"content-type": "application/json"}, text)
    assert replies.parse_page(reply, PETS, "", BucketFacts()) == page


def test_listing_that_stands_still():
    with pytest.raises(ProtocolError, match="stands still"):
        replies.parse_page(Reply(200, {}, JSON_PAGE), PETS, "a/", FACTS, after="a/sub/")


def test_directory_markers_of_clouds_are_directories():
    body = b'{"entries":[{"name":"d/","size":"0"},{"name":"d/e/"},{"name":"d/e/","flags":256}]}'
    page = replies.parse_page(Reply(200, {}, body), PETS, "d/", FACTS)
    assert page == Page([], ["d/e/"], "")


def test_cloud_times_come_from_custom_metadata():
    body = (
        b'{"entries":[{"name":"k","version":"7","custom-md":'
        b'"[ETag:abc LastModified:2024-01-02T03:04:05Z source:aws]"}]}'
    )
    bucket = Bucket("b", Provider.AWS)
    page = replies.parse_page(Reply(200, {}, body), bucket, "", FACTS)
    assert page.objects[0].mtime_ns == 1_704_164_645_000_000_000
    headers = {
        "ais-custom-md": "ETag=abc, LastModified=Tue, 02 Jan 2024 03:04:05 GMT, source=aws",
        "content-length": "1",
    }
    info = requests.parse_object(Reply(200, headers), bucket, "k", FACTS)
    assert info.mtime_ns == 1_704_164_645_000_000_000


@for_each(
    "body",
    [b"", b"<html>", b"[]", b'{"entries":[{"size":"1"}]}', b'{"entries":[{"name":"\xff"'],
)
@for_each("kind", ["application/msgpack", "application/json"])
def test_unreadable_listing(kind, body):
    with pytest.raises(ProtocolError, match="ais://pets/d/: the listing is unreadable"):
        replies.parse_page(Reply(200, {"content-type": kind}, body), PETS, "d/", FACTS)


def test_buckets():
    body = (
        b'[{"name":"rb","provider":"ais","namespace":{"uuid":"rem1","name":""}},'
        b'{"name":"z","provider":"aws","namespace":{"uuid":"","name":""}},'
        b'{"name":"old","provider":"ht"},{"name":"a","provider":"ais"},'
        b'{"name":"n","provider":"ais","namespace":{"uuid":"","name":"ns"}}]'
    )
    assert replies.parse_buckets(Reply(200, {}, body)) == [
        Bucket("a"),
        Bucket("n", Provider.AIS, "@#ns"),
        Bucket("rb", Provider.AIS, "@rem1#"),
        Bucket("z", Provider.AWS),
    ]
    assert replies.parse_buckets(Reply(200, {}, b"null")) == []
    with pytest.raises(ProtocolError):
        replies.parse_buckets(Reply(200, {}, b"<html>"))


# Single objects

BUCKET_PROPS = (
    '{"provider":"ais","checksum":{"type":"xxhash2","validate_cold_get":false,'
    '"enable_read_range":true},"access":"18446744073709551615","created":"1795224024593828335"}'
)


def test_bucket_without_checksums():
    text = '{"checksum":{"type":"none"}}'
    facts = requests.parse_bucket_facts(Reply(200, {"ais-bucket-props": text}))
    assert facts == BucketFacts(keeps_checksums=False)


def test_bucket_facts():
    reply = Reply(200, {"ais-bucket-props": BUCKET_PROPS})
    assert requests.parse_bucket_facts(reply) == BucketFacts(1795224024593828335, "xxhash2", True)


@for_each("text", ["", "{}", "<html>", '{"created":"x"}', '{"checksum":{"type":7}}'])
def test_bucket_facts_unknown(text):
    assert requests.parse_bucket_facts(Reply(200, {"ais-bucket-props": text})) == BucketFacts()
    assert requests.parse_bucket_facts(Reply(200, {})) == BucketFacts()


def test_object():
    headers = {
        "ais-present": "true",
        "content-length": "100",
        "ais-version": "2",
        "ais-checksum-type": "md5",
        "ais-checksum-value": "abc",
    }
    info = ObjectInfo("k", 100, "2", "md5:abc", CREATED + 1_000_000_000)
    assert requests.parse_object(Reply(200, headers), PETS, "k", FACTS) == info


EMPTY = {"ais-checksum-type": "xxhash2", "ais-checksum-value": "ef46db3751d8e999"}
SOME = {"ais-checksum-type": "md5", "ais-checksum-value": "900150983cd24fb0d6963f7d28e17f72"}


@for_each(
    "headers, lacks",
    [
        (EMPTY, False),  # as old servers say of empty objects
        ({**EMPTY, "content-length": "0"}, False),
        ({**SOME, "content-length": "3"}, False),
        ({"content-length": "0"}, False),
        ({}, True),
        ({"ais-version": "1"}, True),
        (SOME, True),
        ({**SOME, "content-length": "0"}, True),
    ],
)
def test_a_size_is_zero_only_with_proof(headers, lacks):
    assert requests.lacks_size(Reply(200, headers), FACTS) is lacks


GET_FIRST = requests.get_range(PETS, "k", 0, 1)


@for_each(
    "first, size",
    [
        (Reply(206, {"content-range": "bytes 0-0/100", "content-length": "1"}), 100),
        (Reply(416, {"content-range": "bytes */0"}), 0),
        (Reply(416, {}), 0),
        (Reply(200, {"content-length": "100"}), 100),  # ranges are not for everybody
        (Reply(200, {"content-length": "0"}), 0),
    ],
)
def test_a_size_from_the_first_byte(first, size):
    whole = requests.with_size(Reply(200, {"ais-version": "1"}), first, GET_FIRST)
    info = requests.parse_object(whole, PETS, "k", FACTS)
    assert (info.size, info.version) == (size, "1")


@for_each(
    "first, kind",
    [
        (Reply(200, {}), ProtocolError),
        (Reply(206, {}), ProtocolError),
        (Reply(206, {"content-range": "bytes 0-0/*"}), ProtocolError),
        (Reply(206, {"content-range": "bytes 0-0/" + "9" * 5000}), ProtocolError),
        (Reply(416, {"content-range": "bytes */5"}), ProtocolError),
        (Reply(206, {"content-range": "bytes 0-0/9", "ais-version": "2"}), Unavailable),
    ],
)
def test_no_size_from_the_first_byte(first, kind):
    def described():
        whole = requests.with_size(Reply(200, {"ais-version": "1"}), first, GET_FIRST)
        return requests.parse_object(whole, PETS, "k", FACTS)

    with pytest.raises(kind):
        described()


@for_each("length", ["-1", "1_0", " 5", "5, 5", "9" * 5000, "9" * 19, "0x5", "\u0665"])
def test_what_is_no_length(length):
    with pytest.raises(ProtocolError, match="a length of"):
        requests.parse_object(Reply(200, {"content-length": length}), PETS, "k", FACTS)


@for_each("version", ["", "abc", "2147483648", "0", "9" * 5000])
def test_versions_that_count_nothing_leave_the_creation_time(version):
    info = requests.parse_object(Reply(200, {"ais-version": version}), PETS, "k", FACTS)
    assert info.mtime_ns == CREATED


# Content

EXPECTED = ObjectInfo("k", 100, "2", "xxhash2:abc")
GOOD = {
    "content-range": "bytes 10-19/100",
    "content-length": "10",
    "ais-version": "2",
    "ais-checksum-type": "xxhash2",
    "ais-checksum-value": "abc",
}


@for_each(
    "change",
    [
        {},
        {"ais-version": ""},
        {"ais-checksum-value": ""},
        {"ais-checksum-type": "md5"},  # the bucket's type was changed after this object
    ],
)
def test_expected_content(change):
    requests.check_content(Reply(206, {**GOOD, **change}), PETS, EXPECTED, FACTS, 10, 20)


@for_each(
    "change",
    [{"content-range": "bytes 10-19/101"}, {"ais-version": "3"}, {"ais-checksum-value": "abd"}],
)
def test_other_version_is_stale(change):
    with pytest.raises(Stale, match="ais://pets/k: changed"):
        requests.check_content(Reply(206, {**GOOD, **change}), PETS, EXPECTED, FACTS, 10, 20)


@for_each("status", [200, 206])
def test_bytes_of_no_known_version_are_not_believed(status):
    """As a gateway's own page, or its cache, would come."""
    headers = {"content-length": "100", "content-range": "bytes 0-99/100"}
    reply = Reply(status, headers)
    with pytest.raises(Unavailable, match="which version"):
        requests.check_content(reply, PETS, EXPECTED, FACTS, 0, 100)
    # Whether it says what is known is what counts.
    only_version = ObjectInfo("k", 100, "2")
    marked = Reply(status, {**headers, "ais-checksum-value": "abc"})
    with pytest.raises(Unavailable):
        requests.check_content(marked, PETS, only_version, FACTS, 0, 100)
    requests.check_content(reply, PETS, ObjectInfo("k", 100), FACTS, 0, 100)


@for_each("text", ["", "bytes */100", "bytes 0-9/100", "bytes 10-18/100"])
def test_other_range_is_no_answer(text):
    without = {name: value for name, value in GOOD.items() if name != "content-length"}
    for headers in (GOOD, without):  # what comes without a length is counted only later
        reply = Reply(206, {**headers, "content-range": text})
        with pytest.raises(ProtocolError):
            requests.check_content(reply, PETS, EXPECTED, FACTS, 10, 20)


@for_each("length", ["9", "11", "x"])
def test_a_body_of_another_length_than_its_range_is_no_answer(length):
    reply = Reply(206, {**GOOD, "content-length": length})
    with pytest.raises(ProtocolError):
        requests.check_content(reply, PETS, EXPECTED, FACTS, 10, 20)


def test_a_length_is_not_needed():
    reply = Reply(206, {name: text for name, text in GOOD.items() if name != "content-length"})
    requests.check_content(reply, PETS, EXPECTED, FACTS, 10, 20)


@for_each("status", [200, 206])
def test_bytes_that_somebody_compressed_are_no_answer(status):
    reply = Reply(status, {**GOOD, "content-range": "bytes 0-99/100", "content-encoding": "gzip"})
    del reply.headers["content-length"]
    with pytest.raises(ProtocolError, match="gzip"):
        requests.check_content(reply, PETS, EXPECTED, FACTS, 0, 100)
    reply.headers["content-encoding"] = "identity"
    requests.check_content(reply, PETS, EXPECTED, FACTS, 0, 100)


def test_checksums_of_ranges_are_not_those_of_objects():
    facts = BucketFacts(0, "xxhash2", checksum_of_ranges=True)
    requests.check_content(
        Reply(206, {**GOOD, "ais-checksum-value": "x"}), PETS, EXPECTED, facts, 10, 20
    )
    headers = {"content-length": "100", "ais-checksum-value": "x"}
    with pytest.raises(Stale):
        requests.check_content(Reply(200, headers), PETS, EXPECTED, facts, 0, 100)


def test_whole_object_only_for_the_whole_range():
    whole = {"content-length": "100", "ais-version": "2"}
    requests.check_content(Reply(200, whole), PETS, EXPECTED, FACTS, 0, 100)
    requests.check_content(Reply(200, {"ais-version": "2"}), PETS, EXPECTED, FACTS, 0, 100)
    with pytest.raises(ProtocolError):
        requests.check_content(Reply(200, whole), PETS, EXPECTED, FACTS, 0, 99)
    reply = Reply(200, {**whole, "content-length": "99"})
    with pytest.raises(Stale):
        requests.check_content(reply, PETS, EXPECTED, FACTS, 0, 100)


# Failures

GET = requests.get_object(PETS, "k")
HEAD = requests.head_object(PETS, "k")
LIST = requests.list_page(PETS, "", "", 0)


def _said(tcode: str, message: str = "it says so") -> bytes:
    return json.dumps({"tcode": tcode, "message": message, "status": 0}).encode()


def _said_by_old_servers(message: str) -> bytes:
    """As of golden.json: without a code, but with all the other fields."""
    others = {"method": "GET", "url_path": "/v1/objects/pets/k", "caller": "", "node": "t[x]"}
    return json.dumps({"message": message, **others, "status": 404}).encode()


@for_each(
    "request_, status, body, kind, transient",
    [
        (GET, 401, _said("", "token required"), AccessDenied, False),
        (GET, 403, _said(""), AccessDenied, False),
        (GET, 404, _said("ErrNotFound"), NotFound, False),
        (GET, 404, _said("ErrBckNotFound"), BucketNotFound, False),
        (GET, 404, _said("ErrRemoteBckNotFound"), BucketNotFound, False),
        (GET, 400, _said("ErrBckNotFound"), BucketNotFound, False),
        (HEAD, 404, _said_by_old_servers("k does not exist"), NotFound, False),
        (GET, 404, _said("PathError", "chunk does not exist"), ProtocolError, False),
        (GET, 404, b"<html><h1>404 Not Found</h1></html>", ProtocolError, False),
        (
            GET,
            404,
            b'{"message":"no Route matched with those values","status":404}',
            ProtocolError,
            False,
        ),
        (HEAD, 404, b"", ProtocolError, False),
        (LIST, 404, b"", ProtocolError, False),
        (LIST, 404, b"404 page not found", ProtocolError, False),
        (GET, 409, _said(""), Unavailable, True),
        (HEAD, 409, b"", ProtocolError, False),
        (HEAD, 410, _said("ErrNotFound"), NotFound, False),
        (GET, 410, b"<html>", ProtocolError, False),
        (GET, 416, _said("ErrRangeNotSatisfiable"), Stale, False),
        (GET, 429, _said("ErrRateLimitFrontend"), Unavailable, True),
        (GET, 503, b"", Unavailable, True),
        (GET, 500, b"", Unavailable, True),
        (GET, 502, b"<html>", Unavailable, True),
        (GET, 500, _said("ErrLmetaNotFound"), NotFound, False),
        (GET, 500, _said("ErrBadCksum"), ProtocolError, False),
        (GET, 500, _said("", "dial tcp: connection refused"), Unavailable, True),
        (GET, 500, _said("", "nil pointer"), ProtocolError, False),
        (GET, 501, _said("ErrUnsupp"), Unsupported, False),
        (GET, 507, _said("ErrCapExceeded"), OutOfSpace, False),
        (GET, 400, _said("errInvalidPath"), InvalidName, False),
        (LIST, 400, _said("ErrInvalidBackendProvider"), Unsupported, False),
        (GET, 400, _said("", "bad"), ProtocolError, False),
        (GET, 405, b"Method Not Allowed", ProtocolError, False),
        (GET, 302, b"", ProtocolError, False),
    ],
)
def test_failure(request_, status, body, kind, transient):
    error = failure(request_, Reply(status, {}, body))
    assert (type(error), error.transient) == (kind, transient)
    assert str(error).startswith(request_.subject)


def test_failure_of_a_head_is_in_its_header():
    message = '{"tcode":"ErrBckNotFound","message":"bucket \xff\xc3\xbc","status":404}'
    error = failure(HEAD, Reply(404, {"hdr-error": message}))
    assert type(error) is BucketNotFound
    assert "bucket �ü" in str(error)


def test_failure_text_is_short_and_printable():
    error = failure(GET, Reply(404, {}, _said("", "a\x1b[31m" + "b" * 1000)))
    assert len(str(error)) < 400
    assert str(error).isprintable()


def test_refused_props_are_no_other_bad_request():
    said = '{"message":"unknown object prop \\"x\\""}'
    assert refuses_props(Reply(400, {"hdr-error": said}))
    bad_name = '{"tcode":"errInvalidPath","message":"invalid path prop/../x"}'
    assert not refuses_props(Reply(400, {"hdr-error": bad_name}))
    assert not refuses_props(Reply(404, {"hdr-error": said}))
