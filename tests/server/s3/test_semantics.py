"""The S3 API in detail: conditions, ranges, checksums, chunks, parts, copies and errors."""

import base64
import hashlib
import os
import socket
import zlib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from crc32c import crc32c

from tests.server.s3.asking import Ask, asking, base64_of, md5
from tests.support.servers import RunningServer, running_server

MIB = 1 << 20
PART = b"p" * (5 * MIB)


def checksum(kind: str, data: bytes) -> str:
    digests = {
        "crc32": lambda: zlib.crc32(data).to_bytes(4, "big"),
        "crc32c": lambda: crc32c(data).to_bytes(4, "big"),
        "sha1": lambda: hashlib.sha1(data).digest(),
        "sha256": lambda: hashlib.sha256(data).digest(),
        # The check value of the catalogue of CRCs, of "123456789".
        "crc64nvme": lambda: bytes.fromhex("ae8b14860a799888"),
    }
    return base64_of(digests[kind]())


# With AIStore's own API


def test_both_apis_see_the_same_objects(server: RunningServer, ask: Ask) -> None:
    native = f"{server.endpoint}/v1/objects/b/dir/o"
    put = ask("PUT", "/b/dir/o", b"by s3", {"x-amz-meta-Who": "me"})
    reply = requests.get(native)
    assert reply.content == b"by s3"
    assert reply.headers["Ais-Custom-Md"] == "x-amz-meta-who=me"
    assert ask("HEAD", "/b/dir/o").headers["ETag"] == put.headers["ETag"]

    assert requests.put(native, data=b"by aistore").status_code == 200
    found = ask("GET", "/b/dir/o")
    assert (found.status, found.content) == (200, b"by aistore")
    assert found.headers["ETag"] != put.headers["ETag"]
    assert ask("GET", "/b", list_type="2").texts("Contents/Key") == ["dir/o"]
    assert ask("DELETE", "/b/dir/o").status == 204
    assert requests.get(native).status_code == 404
    assert ask("PUT", "/made").status == 200
    assert requests.head(f"{server.endpoint}/v1/buckets/made").status_code == 200


def test_a_put_of_s3_replaces_all_metadata_of_s3(server: RunningServer, ask: Ask) -> None:
    requests.put(
        f"{server.endpoint}/v1/objects/b/o", data=b"1", headers={"Ais-Custom-Md": "mine=kept"}
    )
    headers = {"x-amz-meta-a": "1", "Content-Type": "text/plain", "Cache-Control": "no-store"}
    ask("PUT", "/b/o", b"2", headers)
    assert ask("GET", "/b/o").headers["Cache-Control"] == "no-store"
    ask("PUT", "/b/o", b"3", {"x-amz-meta-b": "ü".encode().decode("latin-1")})
    found = ask("GET", "/b/o").headers
    assert found["Content-Type"] == "application/octet-stream"
    assert "Cache-Control" not in found
    assert "x-amz-meta-a" not in found
    assert found["x-amz-meta-b"].encode("latin-1").decode() == "ü"
    custom = requests.get(f"{server.endpoint}/v1/objects/b/o").headers["Ais-Custom-Md"]
    assert "mine=kept" in custom


def test_the_etag_of_parts_does_not_outlive_them(server: RunningServer, ask: Ask) -> None:
    upload(ask, "o", b"first")
    assert ask("HEAD", "/b/o").headers["ETag"].endswith('-1"')
    requests.put(f"{server.endpoint}/v1/objects/b/o", data=b"second")
    assert not ask("HEAD", "/b/o").headers["ETag"].endswith('-1"')
    name = requests.post(f"{server.endpoint}/v1/objects/b/o", json={"action": "mpt-upload"}).text
    url = f"{server.endpoint}/v1/objects/b/o?uploadId={name}"
    requests.put(f"{url}&partNumber=1", data=b"third")
    done = requests.post(url, json={"action": "mpt-complete", "value": [{"part-number": 1}]})
    assert done.status_code == 200
    assert not ask("HEAD", "/b/o").headers["ETag"].endswith('-1"')


# Reading


@pytest.mark.parametrize(
    ("asked", "status", "content"),
    [
        ("bytes=2-4", 206, b"234"),
        ("bytes=7-", 206, b"789"),
        ("bytes=-2", 206, b"89"),
        ("bytes=8-100", 206, b"89"),
        ("bytes=10-", 416, None),
        ("bytes=0-1,3-4", 416, None),
    ],
)
def test_ranges(ask: Ask, root: Path, asked: str, status: int, content: bytes | None) -> None:
    (root / "b" / "o").write_bytes(b"0123456789")
    found = ask("GET", "/b/o", headers={"Range": asked})
    assert found.status == status
    if content is None:
        assert found.code in ("InvalidRange", "NotImplemented")
    else:
        assert found.content == content
        assert found.headers["Content-Range"].endswith("/10")


def test_replies_can_have_other_headers(ask: Ask) -> None:
    ask("PUT", "/b/o", b"x", {"Content-Type": "text/plain", "Cache-Control": "no-store"})
    other = {"response_content_type": "image/png", "response_cache_control": "private"}
    found = ask("GET", "/b/o", response_content_disposition="inline", **other).headers
    assert found["Content-Type"] == "image/png"
    assert found["Cache-Control"] == "private"
    assert found["Content-Disposition"] == "inline"


def test_an_empty_object_has_no_range(ask: Ask, root: Path) -> None:
    (root / "b" / "o").touch()
    assert ask("GET", "/b/o").status == 200
    assert ask("GET", "/b/o", headers={"Range": "bytes=-5"}).code == "InvalidRange"


def test_conditions_of_reading(ask: Ask, root: Path) -> None:
    (root / "b" / "o").write_bytes(b"x")
    os.utime(root / "b" / "o", (1_700_000_000, 1_700_000_000))
    tag = ask("HEAD", "/b/o").headers["ETag"]
    before, after = "Tue, 14 Nov 2023 22:13:19 GMT", "Tue, 14 Nov 2023 22:13:20 GMT"
    for headers, status in [
        ({"If-Match": tag}, 200),
        ({"If-Match": '"other"'}, 412),
        ({"If-Match": "*"}, 200),
        ({"If-None-Match": tag}, 304),
        ({"If-None-Match": f'"other", {tag}'}, 304),
        ({"If-None-Match": '"other"'}, 200),
        ({"If-Modified-Since": after}, 304),
        ({"If-Modified-Since": before}, 200),
        ({"If-Unmodified-Since": before}, 412),
        ({"If-Unmodified-Since": after}, 200),
        ({"If-Match": tag, "If-Unmodified-Since": before}, 200),
        ({"If-None-Match": '"other"', "If-Modified-Since": after}, 200),
    ]:
        for method in ("GET", "HEAD"):
            found = ask(method, "/b/o", headers=headers)
            assert (headers, found.status) == (headers, status)
            if status == 304:
                assert found.content == b""
                assert found.headers["ETag"] == tag


# Writing


def test_conditions_of_writing(ask: Ask) -> None:
    assert ask("PUT", "/b/o", b"0", {"If-Match": '"any"'}).code == "NoSuchKey"
    assert ask("PUT", "/b/o", b"1", {"If-None-Match": "*"}).status == 200
    tag = ask("HEAD", "/b/o").headers["ETag"]
    assert ask("PUT", "/b/o", b"2", {"If-None-Match": "*"}).code == "PreconditionFailed"
    assert ask("PUT", "/b/o", b"3", {"If-None-Match": tag}).code == "NotImplemented"
    assert ask("PUT", "/b/o", b"4", {"If-Match": '"other"'}).status == 412
    assert ask("GET", "/b/o").content == b"1"
    assert ask("PUT", "/b/o", b"5", {"If-Match": tag}).status == 200
    assert ask("PUT", "/b/o", b"6", {"If-Match": tag}).status == 412
    copy = {"x-amz-copy-source": "/b/o", "If-None-Match": "*"}
    assert ask("PUT", "/b/copy", headers=copy).status == 200
    assert ask("PUT", "/b/copy", headers=copy).status == 412
    assert ask("GET", "/b/o").content == b"5"


@pytest.mark.parametrize("kind", ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"])
def test_a_checksum_is_verified(ask: Ask, root: Path, kind: str) -> None:
    data, name = b"123456789", f"x-amz-checksum-{kind}"
    right = {name: checksum(kind, data)}
    put = ask("PUT", "/b/o", data, right)
    assert (put.status, put.headers[name]) == (200, right[name])
    assert ask("PUT", "/b/o", b"987654321", right).code == "BadDigest"
    assert ask("PUT", "/b/o", data, {name: "c2hvcnQ="}).status == 400
    assert (root / "b" / "o").read_bytes() == data


def test_other_digests_are_verified_too(ask: Ask, root: Path) -> None:
    digest = base64_of(bytes.fromhex(md5(b"x")))
    assert ask("PUT", "/b/o", b"x", {"Content-MD5": digest}).status == 200
    assert ask("PUT", "/b/o", b"y", {"Content-MD5": digest}).code == "BadDigest"
    assert ask("PUT", "/b/o", b"y", {"Content-MD5": "bm9uZQ=="}).code == "InvalidDigest"
    payload = {"x-amz-content-sha256": hashlib.sha256(b"x").hexdigest()}
    assert ask("PUT", "/b/o", b"y", payload).code == "XAmzContentSHA256Mismatch"
    assert ask("PUT", "/b/o", b"y", {"x-amz-checksum-md4": "eA=="}).code == "InvalidRequest"
    assert (root / "b" / "o").read_bytes() == b"x"


def chunked(*pieces: bytes, trailer: bytes = b"", signature: bytes = b"") -> bytes:
    """Return a body in `aws-chunked`."""
    lines = [b"%x%s\r\n%s\r\n" % (len(piece), signature, piece) for piece in pieces]
    return b"".join(lines) + b"0" + signature + b"\r\n" + trailer + b"\r\n"


def streamed(length: int, trailer: str = "") -> dict[str, str]:
    kind = "STREAMING-UNSIGNED-PAYLOAD-TRAILER" if trailer else "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    headers = {"x-amz-content-sha256": kind, "x-amz-decoded-content-length": str(length)}
    headers["Content-Encoding"] = "aws-chunked"
    return headers | ({"x-amz-trailer": trailer} if trailer else {})


def test_aws_chunks_are_decoded(ask: Ask, root: Path) -> None:
    data = os.urandom(200_000)
    name = "x-amz-checksum-crc32"
    right = f"{name}:{checksum('crc32', data)}\r\n".encode()
    body = chunked(data[:7], data[7:70_000], data[70_000:], trailer=right)
    assert ask("PUT", "/b/o", body, streamed(len(data), name)).status == 200
    found = ask("GET", "/b/o")
    assert found.content == data
    assert "Content-Encoding" not in found.headers
    body = chunked(data, signature=b";chunk-signature=" + b"0" * 64)
    signed = streamed(len(data)) | {"Content-Encoding": "aws-chunked,gzip"}
    assert ask("PUT", "/b/signed", body, signed).status == 200
    assert (root / "b" / "signed").read_bytes() == data
    assert ask("HEAD", "/b/signed").headers["Content-Encoding"] == "gzip"
    pieces = iter([chunked(data, trailer=right)])  # `Transfer-Encoding: chunked` around it
    assert ask("PUT", "/b/both", pieces, streamed(len(data), name)).status == 200
    assert (root / "b" / "both").read_bytes() == data


@pytest.mark.parametrize(
    ("body", "length", "trailer"),
    [
        (chunked(b"abc"), 4, ""),
        (b"3\r\nabcd\r\n0\r\n\r\n", 3, ""),
        (b"x\r\nabc\r\n0\r\n\r\n", 3, ""),
        (b"-3\r\nabc\r\n0\r\n\r\n", 3, ""),
        (b"3\r\nabc\r\n", 3, ""),
        (b"3\r\nab", 3, ""),
        (b"0" * 10_000, 3, ""),
        (chunked(b"abc") + b"more", 3, ""),
        (chunked(b"abc"), 3, "x-amz-checksum-crc32"),
        (chunked(b"abc", trailer=b"x-amz-checksum-crc32:AAAAAA==\r\n"), 3, "x-amz-checksum-crc32"),
        (chunked(b"abc", trailer=b"nonsense\r\n"), 3, "x-amz-checksum-crc32"),
        (chunked(b"abc"), 3, "x-amz-other"),
    ],
)
def test_broken_chunks_are_refused(
    ask: Ask, root: Path, body: bytes, length: int, trailer: str
) -> None:
    assert ask("PUT", "/b/o", body, streamed(length, trailer)).status == 400
    assert not (root / "b" / "o").exists()


def test_a_body_needs_a_length(server: RunningServer, root: Path) -> None:
    url = urlsplit(server.endpoint)
    with socket.create_connection((url.hostname, url.port), timeout=30) as sock:
        sock.sendall(b"PUT /s3/b/o HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        reply = b"".join(iter(lambda: sock.recv(4096), b""))
    assert b" 411 " in reply
    assert b"<Code>MissingContentLength</Code>" in reply
    assert not (root / "b" / "o").exists()


def test_nothing_that_was_asked_for_is_left_undone(ask: Ask, root: Path) -> None:
    for header, value in (
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-tagging", "a=b"),
        ("x-amz-object-lock-mode", "COMPLIANCE"),
        ("x-amz-write-offset-bytes", "5"),
    ):
        assert ask("PUT", "/b/o", b"x", {header: value}).code == "NotImplemented"
    assert not (root / "b" / "o").exists()


def test_refused_bodies_do_not_disturb_what_follows(ask: Ask) -> None:
    for _ in range(3):  # over one connection
        assert ask("PUT", "/none/o", bytes(8 * MIB)).code == "NoSuchBucket"
        assert ask("PUT", "/b/../o", bytes(MIB)).status in (400, 404)
    assert ask("PUT", "/b/o", b"x").status == 200


def test_user_metadata_has_a_limit(ask: Ask) -> None:
    assert ask("PUT", "/b/o", b"", {"x-amz-meta-a": "1" * 2047}).status == 200
    assert ask("PUT", "/b/o", b"", {"x-amz-meta-a": "1" * 2048}).code == "MetadataTooLarge"


# Parts


def begin(ask: Ask, key: str, headers: dict[str, str] | None = None) -> str:
    return ask("POST", f"/b/{key}?uploads", headers=headers).root.findtext("UploadId", "")


def part(ask: Ask, key: str, name: str, number: int, data: bytes) -> str:
    reply = ask("PUT", f"/b/{key}", data, partNumber=str(number), uploadId=name)
    assert reply.status == 200
    return reply.headers["ETag"]


def complete(ask: Ask, key: str, name: str, parts: list[tuple[int, str]], **headers: str):
    listed = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>" for number, tag in parts
    )
    body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>"
    return ask("POST", f"/b/{key}", body, headers, uploadId=name)


def upload(ask: Ask, key: str, *parts: bytes) -> str:
    name = begin(ask, key)
    tags = [(n, part(ask, key, name, n, data)) for n, data in enumerate(parts, 1)]
    return complete(ask, key, name, tags).root.findtext("ETag", "")


def test_an_object_of_parts(ask: Ask, root: Path) -> None:
    name = begin(ask, "o", {"Content-Type": "text/plain", "x-amz-meta-a": "1"})
    last = part(ask, "o", name, 9, b"end")  # any numbers, in any order
    lost = part(ask, "o", name, 5, b"not listed")
    first = part(ask, "o", name, 2, b"q" * len(PART))
    first = part(ask, "o", name, 2, PART)  # the later one counts
    assert first == f'"{md5(PART)}"'
    assert ask("GET", "/b", uploads="").texts("Upload/UploadId") == [name]
    page = ask("GET", "/b/o", uploadId=name, max_parts="2")
    assert page.texts("Part/PartNumber") == ["2", "5"]
    assert page.texts("IsTruncated") == ["true"]
    rest = ask("GET", "/b/o", uploadId=name, part_number_marker="5")
    assert rest.texts("Part/ETag") == [last]
    assert lost in page.texts("Part/ETag")

    done = complete(ask, "o", name, [(2, first), (9, last)])
    digests = bytes.fromhex(md5(PART)) + bytes.fromhex(md5(b"end"))
    assert done.root.findtext("ETag") == f'"{md5(digests)}-2"'
    assert (root / "b" / "o").read_bytes() == PART + b"end"
    found = ask("HEAD", "/b/o").headers
    assert found["ETag"] == f'"{md5(digests)}-2"'
    assert (found["Content-Type"], found["x-amz-meta-a"]) == ("text/plain", "1")
    assert ask("GET", "/b").texts("Contents/ETag") == [f'"{md5(digests)}-2"']
    assert complete(ask, "o", name, [(2, first)]).code == "NoSuchUpload"


def test_parts_have_rules(ask: Ask, root: Path) -> None:
    name = begin(ask, "o")
    small, big = part(ask, "o", name, 1, b"small"), part(ask, "o", name, 2, PART)
    assert complete(ask, "o", name, [(1, small), (2, big)]).code == "EntityTooSmall"
    assert complete(ask, "o", name, [(2, big), (1, small)]).code == "InvalidPartOrder"
    assert complete(ask, "o", name, [(2, big), (2, big)]).code == "InvalidPartOrder"
    assert complete(ask, "o", name, [(1, big)]).code == "InvalidPart"
    assert complete(ask, "o", name, [(3, big)]).code == "InvalidPart"
    assert complete(ask, "o", name, []).code == "MalformedXML"
    for number in ("0", "10001", "x", "-1"):
        reply = ask("PUT", "/b/o", b"x", partNumber=number, uploadId=name)
        assert (number, reply.code) == (number, "InvalidArgument")
    bad = {"x-amz-checksum-crc32": checksum("crc32", b"other")}
    assert ask("PUT", "/b/o", b"x", bad, partNumber="2", uploadId=name).code == "BadDigest"
    assert complete(ask, "other", name, [(2, big)]).code == "NoSuchUpload"
    assert not (root / "b" / "o").exists()
    (root / "b" / "o").write_bytes(b"here")
    failed = complete(ask, "o", name, [(2, big)], **{"If-None-Match": "*"})
    assert failed.code == "PreconditionFailed"
    assert complete(ask, "o", name, [(2, big)]).status == 200  # which did not end the upload
    assert (root / "b" / "o").read_bytes() == PART


@pytest.mark.parametrize("kind", ["crc32", "sha256"])
def test_checksums_of_parts_and_of_the_whole(ask: Ask, root: Path, kind: str) -> None:
    name, header = begin(ask, "o"), f"x-amz-checksum-{kind}"
    sums = {1: checksum(kind, PART), 2: checksum(kind, b"end")}
    tags = {}
    for number, data in ((1, PART), (2, b"end")):
        query = {"partNumber": str(number), "uploadId": name}
        reply = ask("PUT", "/b/o", data, {header: sums[number]}, **query)
        assert reply.headers[header] == sums[number]
        tags[number] = reply.headers["ETag"]
    element = f"Checksum{kind.upper()}"
    listed = ask("GET", "/b/o", uploadId=name)
    assert listed.texts(f"Part/{element}") == [sums[1], sums[2]]

    def end(second: str, **headers: str):
        parts = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>{tags[n]}</ETag>"
            f"<{element}>{value}</{element}></Part>"
            for n, value in ((1, sums[1]), (2, second))
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>"
        return ask("POST", "/b/o", body, headers, uploadId=name)

    of_parts = checksum(kind, b"".join(base64.b64decode(value) for value in sums.values()))
    assert end(sums[1]).code == "InvalidPart"
    assert end(sums[2], **{header: sums[1]}).code == "BadDigest"
    assert end(sums[2], **{header: f"{sums[1]}-2"}).code == "BadDigest"
    assert end(sums[2], **{header: f"{of_parts}-3"}).code == "BadDigest"
    assert end(sums[2], **{"x-amz-mp-object-size": "1"}).code == "InvalidRequest"
    assert not (root / "b" / "o").exists()
    whole = checksum(kind, PART + b"end") if kind == "crc32" else f"{of_parts}-2"
    size = {"x-amz-mp-object-size": str(len(PART) + 3)}
    assert end(sums[2], **{header: whole}, **size).status == 200
    assert (root / "b" / "o").read_bytes() == PART + b"end"


def test_an_upload_is_aborted(ask: Ask, root: Path) -> None:
    name = begin(ask, "o")
    tag = part(ask, "o", name, 1, b"x")
    assert ask("DELETE", "/b/o", uploadId=name).status == 204
    assert ask("DELETE", "/b/o", uploadId=name).code == "NoSuchUpload"
    assert complete(ask, "o", name, [(1, tag)]).code == "NoSuchUpload"
    assert ask("GET", "/b", uploads="").texts("Upload") == []
    assert not (root / "b" / "o").exists()


def test_parts_are_copied(ask: Ask, root: Path) -> None:
    (root / "b" / "from").write_bytes(PART + b"0123456789")
    name = begin(ask, "o")

    def copy(number: int, asked: str):
        headers = {"x-amz-copy-source": "/b/from", "x-amz-copy-source-range": asked}
        return ask("PUT", "/b/o", None, headers, partNumber=str(number), uploadId=name)

    tags = []
    for number, asked in (
        (1, f"bytes=0-{len(PART) - 1}"),
        (2, f"bytes={len(PART)}-{len(PART) + 3}"),
    ):
        tags.append((number, copy(number, asked).root.findtext("ETag", "")))
    assert copy(3, "bytes=0-99999999").code == "InvalidRange"
    assert copy(3, "bytes=-3").code == "InvalidArgument"
    assert complete(ask, "o", name, tags).status == 200
    assert (root / "b" / "o").read_bytes() == PART + b"0123"


# Copies and deletes


def test_copies_keep_or_replace_metadata(ask: Ask, root: Path) -> None:
    ask("PUT", "/b/o", b"x", {"x-amz-meta-a": "1", "Content-Type": "text/plain"})
    source = {"x-amz-copy-source": "b/o"}
    assert ask("PUT", "/b/same", headers=source | {"x-amz-meta-a": "2"}).status == 200
    assert ask("HEAD", "/b/same").headers["x-amz-meta-a"] == "1"
    replaced = source | {"x-amz-metadata-directive": "REPLACE", "x-amz-meta-b": "2"}
    done = ask("PUT", "/b/o", headers=replaced)
    found = ask("HEAD", "/b/o").headers
    assert done.root.findtext("ETag") == found["ETag"]
    assert found["x-amz-meta-b"] == "2"
    assert "x-amz-meta-a" not in found
    assert found["Content-Type"] == "application/octet-stream"
    assert (root / "b" / "o").read_bytes() == b"x"
    assert ask("PUT", "/b/o", headers=source).code == "InvalidRequest"
    assert ask("PUT", "/b/c", headers={"x-amz-copy-source": "b/none"}).code == "NoSuchKey"
    assert ask("PUT", "/b/c", headers={"x-amz-copy-source": "none/o"}).code == "NoSuchBucket"
    assert ask("PUT", "/b/c", headers={"x-amz-copy-source": "b"}).code == "InvalidArgument"
    assert ask("PUT", "/b/c", headers={"x-amz-copy-source": "b/../b/o"}).status == 400
    stale = source | {"x-amz-copy-source-if-match": '"other"'}
    assert ask("PUT", "/b/c", headers=stale).code == "PreconditionFailed"
    assert not (root / "b" / "c").exists()


def test_many_are_deleted_at_once(ask: Ask, root: Path) -> None:
    for name in ("a&b", "c", "d"):
        (root / "b" / name).touch()
    objects = "<Object><Key>a&amp;b</Key></Object><Object><Key>none</Key></Object>"
    wrong = "<Object><Key>../c</Key></Object>"
    body = f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{objects}{wrong}</Delete>'
    done = ask("POST", "/b?delete", body)
    assert done.texts("Deleted/Key") == ["a&b", "none"]
    assert done.texts("Error/Key") == ["../c"]
    quiet = "<Delete><Quiet>true</Quiet><Object><Key>c</Key></Object></Delete>"
    bad = {"Content-MD5": base64_of(bytes(16))}
    assert ask("POST", "/b?delete", quiet, bad).code == "BadDigest"
    assert (root / "b" / "c").exists()
    assert ask("POST", "/b?delete", quiet).texts("Deleted/Key") == []
    assert sorted(os.listdir(root / "b")) == ["d"]
    version = "<Delete><Object><Key>d</Key><VersionId>1</VersionId></Object></Delete>"
    assert ask("POST", "/b?delete", version).code == "NotImplemented"
    assert (root / "b" / "d").exists()
    many = "<Object><Key>x</Key></Object>" * 1001
    assert ask("POST", "/b?delete", f"<Delete>{many}</Delete>").code == "MalformedXML"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<Delete>",
        b"<Delete/>",
        b"<Other><Object><Key>d</Key></Object></Other>",
        b"<Delete><Object><Key></Key></Object></Delete>",
        b'<!DOCTYPE x [<!ENTITY a "d">]><Delete><Object><Key>&a;</Key></Object></Delete>',
        '<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE x [<!ENTITY a "d">]><Delete><Object>'
        "<Key>&a;</Key></Object></Delete>".encode("utf-16"),
        b"<Delete>" + b" " * (5 << 20) + b"</Delete>",
    ],
)
def test_bad_documents_are_refused(ask: Ask, root: Path, body: bytes) -> None:
    (root / "b" / "d").touch()
    assert ask("POST", "/b?delete", body).code in ("MalformedXML", "MaxMessageLengthExceeded")
    assert (root / "b" / "d").exists()


# Buckets and errors


def test_buckets(ask: Ask, root: Path) -> None:
    settings = "<CreateBucketConfiguration><LocationConstraint>eu</LocationConstraint>"
    assert ask("PUT", "/new", settings + "</CreateBucketConfiguration>").status == 200
    assert ask("PUT", "/new").code == "BucketAlreadyOwnedByYou"
    assert ask("PUT", "/not ok").status == 400
    assert ask("GET", "").texts("Buckets/Bucket/Name") == ["b", "new"]
    assert ask("GET", "/new", location="").root.tag == "LocationConstraint"
    (root / "new" / "o").touch()
    assert ask("DELETE", "/new").code == "BucketNotEmpty"
    (root / "new" / "o").unlink()
    assert ask("DELETE", "/new").status == 204
    assert ask("HEAD", "/new").status == 404
    assert ask("GET", "/new").code == "NoSuchBucket"
    assert ask("GET", "/new/o").code == "NoSuchBucket"
    assert ask("DELETE", "").code == "MethodNotAllowed"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/b/none", 404, "NoSuchKey"),
        ("GET", "/b/dir", 404, "NoSuchKey"),
        ("GET", "/b/dir/", 404, "NoSuchKey"),
        ("GET", "/b/a//b", 400, "InvalidRequest"),
        ("PUT", "/b/dir/", 400, "InvalidRequest"),
        ("PUT", "/b/%2e%2e/x", 400, "InvalidRequest"),
        ("GET", "/b/dir/o?acl", 501, "NotImplemented"),
        ("GET", "/b/dir/o?partNumber=1", 501, "NotImplemented"),
        ("GET", "/b/dir/o?versionId=1", 501, "NotImplemented"),
        ("GET", "/b?policy", 501, "NotImplemented"),
        ("PUT", "/b?versioning", 501, "NotImplemented"),
        ("PATCH", "/b/dir/o", 405, "MethodNotAllowed"),
        ("POST", "/b/dir/o", 405, "MethodNotAllowed"),
    ],
)
def test_errors_have_codes(
    ask: Ask, root: Path, method: str, path: str, status: int, code: str
) -> None:
    (root / "b" / "dir").mkdir()
    (root / "b" / "dir" / "o").touch()
    found = ask(method, path, b"" if method == "PUT" else None)
    assert (found.status, found.code) == (status, code)


# As AIStore


def test_aistore_redirects_and_loses(root: Path) -> None:
    (root / "b" / "d").mkdir()
    (root / "b" / "d" / "o").write_text("x")
    with running_server(root, traps=True) as server, asking(server) as ask:
        moved = ask("GET", "/b/d/o")
        assert (moved.status, moved.code) == (307, "TemporaryRedirect")
        assert moved.root.findtext("Endpoint", "").endswith("/s3/b")
        at_target = urlsplit(moved.headers["Location"])
        assert at_target.path == "/s3/b/d/o"
        marks = "pid=p&utm=1"
        assert ask("GET", f"/b/d/o?{marks}").content == b"x"
        assert ask("DELETE", f"/b/none?{marks}").code == "NoSuchKey"
        assert ask("GET", "/b", list_type="2").texts("Contents/ETag") == [""]
        name = ask("POST", f"/b/o?uploads&{marks}").root.findtext("UploadId", "")
        for data in (b"once", b"again"):
            query = f"partNumber=1&uploadId={name}&{marks}"
            tag = ask("PUT", f"/b/o?{query}", data).headers["ETag"]
        body = f"<Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{body}</CompleteMultipartUpload>"
        lost = ask("POST", f"/b/o?uploadId={name}&{marks}", body)
        assert lost.status == 404
        assert ask("DELETE", "/b").status == 204  # with all that was in it
    assert not (root / "b").exists()


def test_aistore_ignores_conditions_and_metadata(root: Path) -> None:
    with running_server(root, traps=True) as server, asking(server) as ask:
        marks = "pid=p&utm=1"
        headers = {"If-None-Match": "*", "x-amz-meta-mine": "kept?"}
        for data in (b"one", b"two"):
            assert ask("PUT", f"/b/o?{marks}", data, headers=headers).status == 200
        for method in ("GET", "HEAD"):
            for name in ("If-Match", "If-Unmodified-Since"):
                headers = {name: "Tue, 24 Nov 2020 09:36:22 GMT" if "Since" in name else '"other"'}
                found = ask(method, f"/b/o?{marks}", headers=headers)
                assert found.status == 200
                assert "x-amz-meta-mine" not in found.headers
        copied = {"x-amz-copy-source": "b/o", "x-amz-copy-source-if-match": '"other"'}
        assert ask("PUT", f"/b/c?{marks}", headers=copied).status == 200
        missing = ask("PUT", f"/b/c?{marks}", headers={"x-amz-copy-source": "b/none"})
        assert (missing.status, missing.code) == (400, "ErrNotFound")
    assert (root / "b" / "o").read_bytes() == b"two"


def test_aistore_finds_directories_where_it_looks_for_objects(root: Path) -> None:
    """On one of its two disks."""
    names = [f"d{number}" for number in range(24)]
    for name in names:
        (root / "b" / name).mkdir()
        (root / "b" / name / "x").touch()
    with running_server(root, traps=True) as server, asking(server) as ask:
        marks = "pid=p&utm=1"
        heads = {name: ask("HEAD", f"/b/{name}?{marks}").status for name in names}
        assert set(heads.values()) == {400, 404}
        for name, head in heads.items():
            got = ask("GET", f"/b/{name}?{marks}")
            deleted = ask("DELETE", f"/b/{name}?{marks}").status
            put = ask("PUT", f"/b/{name}?{marks}", b"1")
            if head == 404:
                assert (got.status, got.code, deleted, put.status) == (404, "NoSuchKey", 404, 200)
            else:
                assert (got.status, got.code, deleted) == (500, "ErrLmetaNotFound", 204)
                assert (put.status, put.code) == (400, "ErrMv")
            assert ask("GET", f"/b/{name}/x?{marks}").status == 200


def test_aistore_redirects_to_the_name_before_a_question_mark(root: Path) -> None:
    with running_server(root, traps=True) as server, asking(server) as ask:
        moved = urlsplit(ask("DELETE", "/b/q%3Fx").headers["Location"])
        assert moved.path == "/s3/b/q"
        assert moved.query.startswith("x&pid=")
