"""Reading by the S3 API in detail: ranges, errors, and what AIStore's differs in."""

from pathlib import Path
from urllib.parse import urlsplit

import requests

from tests.server.s3.asking import Ask, asking
from tests.support.for_each import for_each
from tests.support.servers import RunningServer, running_server

MIB = 1 << 20
MARKS = "pid=p&utm=1"
"""What a proxy adds to a request that it redirects."""


def test_both_apis_see_the_same_objects(server: RunningServer, ask: Ask) -> None:
    native = f"{server.endpoint}/v1/objects/b/dir/o"
    assert requests.put(native, data=b"old").status_code == 200
    old = ask("HEAD", "/b/dir/o").headers["ETag"]
    assert requests.put(native, data=b"by aistore").status_code == 200
    found = ask("GET", "/b/dir/o", headers={"If-Match": old})  # which AIStore ignores
    assert (found.status, found.content) == (200, b"by aistore")
    assert found.headers["ETag"] != old
    page = ask("GET", "/b", list_type="2")
    assert page.texts("Contents/Key") == ["dir/o"]
    assert page.texts("Contents/ETag") == [found.headers["ETag"]]


@for_each(
    "asked, status, content",
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


def test_an_empty_object_has_no_range(ask: Ask, root: Path) -> None:
    (root / "b" / "o").touch()
    assert ask("GET", "/b/o").status == 200
    assert ask("GET", "/b/o", headers={"Range": "bytes=-5"}).code == "InvalidRange"


def test_nothing_is_written(ask: Ask, root: Path) -> None:
    (root / "b" / "o").write_bytes(b"x")
    for method, path in (("PUT", "/b/o"), ("DELETE", "/b/o"), ("POST", "/b?delete"), ("PUT", "/n")):
        assert ask(method, path, bytes(8 * MIB)).code == "NotImplemented"  # over one connection
    assert (root / "b" / "o").read_bytes() == b"x"
    assert not (root / "n").exists()


def test_an_upload_in_parts_comes_to_nothing(ask: Ask, root: Path) -> None:
    name = ask("POST", "/b/o?uploads").root.findtext("UploadId", "")
    assert ask("PUT", f"/b/o?partNumber=1&uploadId={name}", b"x").code == "NotImplemented"
    assert ask("DELETE", f"/b/o?uploadId={name}").status == 204
    assert ask("DELETE", f"/b/o?uploadId={name}").status == 404
    assert not (root / "b" / "o").exists()


def test_buckets(ask: Ask, root: Path) -> None:
    (root / "other").mkdir()
    assert ask("GET", "").texts("Buckets/Bucket/Name") == ["b", "other"]
    assert ask("GET", "/b", location="").root.tag == "LocationConstraint"
    assert ask("HEAD", "/b").status == 200
    assert ask("HEAD", "/new").status == 404
    assert ask("GET", "/new").code == "NoSuchBucket"
    assert ask("GET", "/new/o").code == "NoSuchBucket"


@for_each(
    "path, status, code",
    [
        ("/b/none", 404, "NoSuchKey"),
        ("/b/dir", 404, "NoSuchKey"),
        ("/b/dir/", 404, "NoSuchKey"),
        ("/b/a//b", 400, "InvalidRequest"),
        ("/b/dir/o?acl", 501, "NotImplemented"),
        ("/b/dir/o?partNumber=1", 501, "NotImplemented"),
        ("/b/dir/o?versionId=1", 501, "NotImplemented"),
        ("/b?policy", 501, "NotImplemented"),
    ],
)
def test_errors_have_codes(ask: Ask, root: Path, path: str, status: int, code: str) -> None:
    (root / "b" / "dir").mkdir(exist_ok=True)
    (root / "b" / "dir" / "o").touch()
    found = ask("GET", path)
    assert (found.status, found.code) == (status, code)


# As AIStore


def test_aistore_redirects(root: Path) -> None:
    (root / "b" / "d").mkdir()
    (root / "b" / "d" / "o").write_text("x")
    with running_server(root, traps=True) as server, asking(server) as ask:
        for method in ("GET", "PUT", "DELETE"):
            moved = ask(method, "/b/d/o")
            assert (moved.status, moved.code) == (307, "TemporaryRedirect")
            assert moved.root.findtext("Endpoint", "").endswith("/s3/b")
            assert urlsplit(moved.headers["Location"]).path == "/s3/b/d/o"
        assert ask("GET", f"/b/d/o?{MARKS}").content == b"x"
        assert ask("GET", "/b", list_type="2").texts("Contents/ETag") == [""]


def test_aistore_finds_directories_where_it_looks_for_objects(root: Path) -> None:
    """On one of its two disks."""
    names = [f"d{number}" for number in range(24)]
    for name in names:
        (root / "b" / name).mkdir()
        (root / "b" / name / "x").touch()
    with running_server(root, traps=True) as server, asking(server) as ask:
        heads = {name: ask("HEAD", f"/b/{name}?{MARKS}").status for name in names}
        assert set(heads.values()) == {400, 404}
        for name, head in heads.items():
            got = ask("GET", f"/b/{name}?{MARKS}")
            expected = (404, "NoSuchKey") if head == 404 else (500, "ErrLmetaNotFound")
            assert (got.status, got.code) == expected
            assert ask("GET", f"/b/{name}/x?{MARKS}").status == 200


def test_aistore_redirects_to_the_name_before_a_question_mark(root: Path) -> None:
    with running_server(root, traps=True) as server, asking(server) as ask:
        moved = urlsplit(ask("DELETE", "/b/q%3Fx").headers["Location"])
        assert moved.path == "/s3/b/q"
        assert moved.query.startswith("x&pid=")
