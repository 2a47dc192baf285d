"""What AIStore does and the embedded server does not is 501; what AIStore refuses is refused as it does."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from aisfs.server.storage.objects import Storage
from aisfs.server.storage.records import Record
from aisfs.server.storage.traps import Kindness
from tests.support.for_each import for_each
from tests.support.servers import RunningServer, running_server


@pytest.fixture(params=[False, True], ids=["kind", "traps"])
def traps(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def server(tmp_path: Path, traps: bool) -> Iterator[RunningServer]:
    (tmp_path / "served/b").mkdir(parents=True)
    with running_server(tmp_path / "served", traps=traps) as running:
        yield running
        assert "Traceback" not in running.log()


def answer(reply: requests.Response) -> tuple[int, str]:
    return reply.status_code, reply.json().get("tcode", "")


UNSUPPORTED = [
    ("GET", "daemon?what=log", None),
    ("GET", "daemon?what=sysinfo", None),
    ("GET", "cluster?what=cluster_config", None),
    ("POST", "objects/b", "promote"),
    ("POST", "objects/b/o", "promote"),
    ("POST", "buckets/b", "make-n-copies"),
    ("POST", "buckets/b", "ec-encode"),
    ("POST", "buckets/b", "rechunk"),
    ("POST", "buckets/b", "etl-bck"),
    ("POST", "buckets/b", "create-inventory"),
    ("GET", "buckets/b", "show-inventory"),
    ("GET", "buckets/b", "summary-shard"),
    ("DELETE", "buckets/b", "destroy-inventory"),
    ("PUT", "cluster", "start"),
    ("PUT", "cluster", "set-config"),
    ("PUT", "daemon", "set-config"),
    ("POST", "download", None),
    ("GET", "etl", None),
]


@for_each("method, path, action", UNSUPPORTED)
def test_what_is_not_offered_is_501(
    server: RunningServer, http: requests.Session, method: str, path: str, action: str | None
) -> None:
    message = {"action": action, "name": "/var/lib/ais/promote/x", "value": {}} if action else None
    reply = http.request(method, f"{server.endpoint}/v1/{path}", json=message)
    assert answer(reply) == (501, "ErrUnsupp")


def test_only_a_server_with_traps_attaches_clusters(tmp_path: Path, http: requests.Session) -> None:
    """It would ask any URL for anybody."""
    with running_server(tmp_path, traps=False) as server:
        reply = http.put(f"{server.endpoint}/v1/cluster/attach?what=remote")
        assert answer(reply) == (501, "ErrUnsupp")


def test_the_log_of_a_node_is_501_by_way_of_the_proxy(
    server: RunningServer, http: requests.Session
) -> None:
    node = http.get(f"{server.endpoint}/v1/daemon?what=smap").json()["proxy_si"]["daemon_id"]
    url = f"{server.endpoint}/v1/reverse/daemon?what=log"
    assert answer(http.get(url, headers={"Ais-Node-Id": node})) == (501, "ErrUnsupp")


@for_each(
    "method, path, action, refusal",
    [
        ("GET", "daemon?what=nosuch", None, (400, "")),
        ("GET", "cluster?what=log", None, (400, "")),
        ("POST", "buckets/b", "nosuch", (400, "")),
        ("DELETE", "buckets/b", "make-n-copies", (400, "")),
        ("PUT", "cluster", "nosuch", (400, "")),
        ("POST", "objects/b/o", "nosuch", (400, "")),
        ("POST", "objects/b", "rename-obj", (400, "")),
        ("POST", "objects/none", "promote", (404, "ErrBckNotFound")),
        ("POST", "objects/b", "blob-download", (400, "ErrNotRemoteBck")),
        ("POST", "objects/b/o", "blob-download", (400, "ErrNotRemoteBck")),
    ],
)
def test_what_aistore_refuses_is_no_501(
    server: RunningServer,
    http: requests.Session,
    method: str,
    path: str,
    action: str | None,
    refusal: tuple[int, str],
) -> None:
    message = {"action": action, "name": "o", "value": {}} if action else None
    reply = http.request(method, f"{server.endpoint}/v1/{path}", json=message)
    assert answer(reply) == refusal


# Uploads in parts


class Upload:
    """An upload in parts, as a client sees it."""

    def __init__(self, server: RunningServer, http: requests.Session) -> None:
        self._http, self.url = http, f"{server.endpoint}/v1/objects/b/o"
        self.query = {"uploadId": http.post(self.url, json={"action": "mpt-upload"}).text}

    def part(self, number: int, data: Any) -> requests.Response:
        query = {**self.query, "partNumber": str(number)}
        return self._http.put(self.url, params=query, data=data)

    def complete(self, *numbers: int) -> requests.Response:
        listed = [{"part-number": number, "etag": ""} for number in numbers]
        message = {"action": "mpt-complete", "value": listed}
        return self._http.post(self.url, params=self.query, json=message)

    def abort(self) -> requests.Response:
        return self._http.delete(self.url, params=self.query, json={"action": "mpt-abort"})


@pytest.fixture
def upload(server: RunningServer, http: requests.Session) -> Upload:
    return Upload(server, http)


@pytest.mark.parametrize("end", ["abort", "complete"])
def test_an_upload_that_has_ended_is_404(upload: Upload, end: str) -> None:
    assert upload.part(1, b"x").status_code == 200
    ended = upload.abort() if end == "abort" else upload.complete(1)
    assert ended.status_code == 200
    assert answer(upload.complete(1)) == (404, "ErrNotFound")
    assert answer(upload.part(1, b"x")) == (404, "ErrNotFound")
    assert upload.abort().status_code == 404


@pytest.mark.parametrize(("data", "size"), [(b"", 0), (iter([b"x"]), -1)], ids=["empty", "chunked"])
def test_a_part_of_no_stated_length_is_refused(
    upload: Upload, http: requests.Session, data: Any, size: int
) -> None:
    assert upload.part(1, b"one").status_code == 200
    if size < 0:  # a body that is sent once goes to the target
        redirect = http.put(
            upload.url, params={**upload.query, "partNumber": "2"}, allow_redirects=False
        )
        refused = http.put(redirect.headers["Location"], data=data)
    else:
        refused = upload.part(2, data)
    assert answer(refused) == (400, "")
    assert refused.json()["message"] == f"ais://b/o: put-part invalid size ({size})"
    assert upload.complete(1).status_code == 200
    assert http.get(upload.url).content == b"one"


def test_an_empty_part_in_place_of_another_destroys_that(
    upload: Upload, http: requests.Session, traps: bool
) -> None:
    """AIStore has opened the file of the part when it looks at the length, and removes it then."""
    for number in (1, 2):
        assert upload.part(number, b"12345").status_code == 200
    assert upload.part(2, b"").status_code == 400
    assert upload.complete(1, 2).status_code == 200
    assert http.head(upload.url, allow_redirects=True).headers["Content-Length"] == "10"
    rest = http.get(upload.url, headers={"Range": "bytes=5-9"})
    assert rest.status_code == (404 if traps else 206)


# Directories that go away


def test_a_directory_that_goes_away_is_no_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The DELETE of its last object removes it, whenever that may be."""
    storage = Storage(tmp_path, Kindness())
    storage.create("b", {})
    bucket, left = storage.bucket("b"), 20
    real = os.mkdir

    def mkdir(path: Any, mode: int = 0o777, **place: Any) -> None:
        nonlocal left
        real(path, mode, **place)
        if left and path.endswith(b"e"):
            left -= 1
            os.rmdir(path)
            raise FileExistsError(path)  # another one had made it, and removed it

    monkeypatch.setattr(os, "mkdir", mkdir)
    with storage.work_file() as work:
        work.write_bytes(b"x")
        with storage.locks.writing(("b", b"d/e/o")):
            storage.commit(bucket, b"d/e/o", work, Record(version="1"), None)
    assert (tmp_path / "b/d/e/o").read_bytes() == b"x"
    storage.close()
