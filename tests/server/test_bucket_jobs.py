"""What buckets do as a whole on the embedded server: copies that are dry runs, renames, summaries."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from aistore.sdk import Client

from tests.support.for_each import for_each
from tests.support.servers import RunningServer, running_server, until

DEADLINE = 60.0
OBJECTS = {"a": 10, "dir/b": 300, "dir/c": 2000}
"""Keys with their sizes."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    (tmp_path / "served").mkdir()
    with running_server(tmp_path / "served", faulty=True) as running:
        create = {"action": "create-bck", "value": {"checksum": {"type": "md5"}}}
        requests.post(f"{running.endpoint}/v1/buckets/b", json=create).raise_for_status()
        for key, size in OBJECTS.items():
            url = f"{running.endpoint}/v1/objects/b/{key}"
            requests.put(url, data=b"x" * size).raise_for_status()
        yield running
        assert "Traceback" not in running.log()


class Buckets:
    """A client of buckets."""

    def __init__(self, server: RunningServer, http: requests.Session) -> None:
        self._server, self._http = server, http

    def act(
        self, action: str, to: str = "", value: Any = None, method: str = "POST", name: str = "b"
    ) -> requests.Response:
        query = {"bck_to": to if "/" in to else f"ais/@#/{to}/"} if to else {}
        url = f"{self._server.endpoint}/v1/buckets/{name}"
        return self._http.request(
            method, url, params=query, json={"action": action, "value": value}
        )

    def names(self) -> list[str]:
        return [b["name"] for b in self._http.get(f"{self._server.endpoint}/v1/buckets").json()]

    def keys(self, name: str) -> list[str]:
        listed = self.act("list", value={}, method="GET", name=name).json()
        return [entry["name"] for entry in listed["entries"] or []]

    def head(self, path: str, **query: str) -> requests.Response:
        return self._http.head(f"{self._server.endpoint}/v1/buckets/{path}", params=query)

    def job(self, uuid: str) -> dict[str, Any]:
        """What the target tells of a job."""
        url = f"{self._server.endpoint}/v1/cluster"
        reply = self._http.get(url, params={"what": "qryxstats"}, json={"id": uuid})
        ((found,),) = reply.json().values()
        return dict(found)

    def end(self, uuid: str) -> dict[str, Any]:
        return until(lambda: (found := self.job(uuid))["is_idle"] and found)


@pytest.fixture
def buckets(server: RunningServer, http: requests.Session) -> Buckets:
    return Buckets(server, http)


def counts(job: dict[str, Any]) -> tuple[str, str]:
    return job["stats"]["loc-objs"], job["stats"]["loc-bytes"]


# Copies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["copy-bck", "copy-listrange"])
def test_a_dry_run_copies_nothing_and_counts(buckets: Buckets, action: str) -> None:
    value = {"dry_run": True, "tobck": {"name": "new", "provider": "ais"}}
    reply = buckets.act(action, "new", value)
    assert reply.status_code == 200
    assert buckets.names() == ["b"]
    assert counts(buckets.job(reply.text)) == ("3", "2310")
    reply = buckets.act(action, "new", {**value, "dry_run": False})
    assert buckets.keys("new") == sorted(OBJECTS)
    assert counts(buckets.job(reply.text)) == ("3", "2310")
    old, new = (json.loads(buckets.head(n).headers["Ais-Bucket-Props"]) for n in ("b", "new"))
    assert int(old.pop("created")) < int(new.pop("created"))
    assert old == new
    assert new["checksum"]["type"] == "md5"


def test_a_job_that_may_get_more_of_the_same_work_is_idle_and_not_over(
    buckets: Buckets, server: RunningServer
) -> None:
    for action, value in (
        ("copy-listrange", {"objnames": ["a"], "tobck": {"name": "new", "provider": "ais"}}),
        ("archive", {"objnames": ["a"], "archname": "x.tar"}),
    ):
        method = "PUT" if action == "archive" else "POST"
        uuid = buckets.act(action, "new" * (method == "POST"), value, method).text
        job = buckets.job(uuid)
        assert (job["is_idle"], job["end-time"]) == (True, "0001-01-01T00:00:00Z")
        url = f"{server.endpoint}/v1/cluster"
        status = requests.get(url, params={"what": "status"}, json={"id": uuid}, timeout=60)
        assert status.status_code == 404
        stop = {"action": "stop", "value": {"id": uuid}}
        requests.put(url, json=stop, timeout=60).raise_for_status()
        job = buckets.job(uuid)
        assert job["aborted"]
        assert job["end-time"] != "0001-01-01T00:00:00Z"


def test_get_batch_has_a_job_for_each_bucket(server: RunningServer) -> None:
    client = Client(server.endpoint)

    def fetch() -> None:
        batch = client.batch(objects=["a"], bucket=client.bucket("b"))
        assert [content for _, content in batch.get()] == [b"x" * 10]

    def jobs() -> list[Any]:
        return client.job(job_kind="get-batch").get_details().list_snapshots()

    assert jobs() == []
    fetch()
    fetch()
    (job,) = jobs()
    assert (job.kind, job.is_idle, job.stats.objects) == ("get-batch", True, 2)
    client.job(job.id).abort()
    assert not client.job(job.id, job_kind="get-batch").wait(timeout=30).success
    fetch()
    assert len(jobs()) == 2


def test_parts_that_cannot_be_completed_are_named_as_aistore_names_them(
    server: RunningServer,
) -> None:
    url = f"{server.endpoint}/v1/objects/b/parts"
    begun = requests.post(url, json={"action": "mpt-upload"}, timeout=60).text
    for parts, text in (
        ([], "no chunks"),
        ([1, 1], "partial completion is not allowed: requested 2 parts, have 1"),
    ):
        value = [{"part-number": number, "etag": ""} for number in parts]
        reply = requests.post(
            url,
            params={"uploadId": begun},
            json={"action": "mpt-complete", "value": value},
            timeout=60,
        )
        assert reply.status_code == 400
        assert text in reply.json()["message"]


def answered(server: RunningServer, request: str, body: bytes = b"") -> bytes:
    """What comes back on a connection; the body is sent once the server asks for it."""
    host, _, port = server.endpoint.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(request.encode())
        came = b""
        while piece := client.recv(65536):
            came += piece
            if came == b"HTTP/1.1 100 Continue\r\n\r\n":
                client.sendall(body)
        return came


def test_nobody_is_asked_for_a_body_before_a_redirect(server: RunningServer) -> None:
    head = "Host: 127.0.0.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n"
    came = answered(server, f"PUT /v1/objects/b/new HTTP/1.1\r\n{head}\r\n")
    assert came.startswith(b"HTTP/1.1 307 ")
    assert b"100 Continue" not in came
    (location,) = [
        line.removeprefix("Location: ")
        for line in came.decode().split("\r\n")
        if line.startswith("Location: ")
    ]
    target = location.removeprefix(server.endpoint)
    close = f"{head}Connection: close\r\n"
    came = answered(server, f"PUT {target} HTTP/1.1\r\n{close}\r\n", b"hello")
    assert came.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
    assert requests.get(f"{server.endpoint}/v1/objects/b/new", timeout=60).content == b"hello"
    action = b'{"action": "create-bck"}'
    head = f"Host: 127.0.0.1\r\nContent-Length: {len(action)}\r\nExpect: 100-continue\r\n"
    came = answered(server, f"POST /v1/buckets/made HTTP/1.1\r\n{head}\r\n", action)
    assert came.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")


# Renames ------------------------------------------------------------------------------------


def test_a_bucket_is_renamed_by_the_real_sdk(
    server: RunningServer, buckets: Buckets, http: requests.Session
) -> None:
    bucket = Client(server.endpoint).bucket("b")
    buckets.end(bucket.rename("new"))
    assert buckets.names() == ["new"]
    assert buckets.keys("new") == sorted(OBJECTS)
    assert bucket.object("dir/b").get_reader().read_all() == b"x" * 300
    head = http.head(f"{server.endpoint}/v1/objects/new/dir/b", allow_redirects=True)
    assert head.headers["Ais-Checksum-Type"] == "md5"


def test_the_old_bucket_is_there_until_the_job_ends(
    server: RunningServer, buckets: Buckets, http: requests.Session
) -> None:
    server.hold_jobs()
    uuid = buckets.act("move-bck", "new").text
    until(server.waiting_jobs)
    assert buckets.names() == ["b", "new"]
    assert (buckets.keys("b"), buckets.keys("new")) == (sorted(OBJECTS), [])
    again = buckets.act("move-bck", "other")
    assert (again.status_code, again.json()["tcode"]) == (409, "ErrLimitedCoexistence")
    http.put(f"{server.endpoint}/v1/objects/new/late", data=b"x").raise_for_status()
    http.put(f"{server.endpoint}/v1/objects/b/lost", data=b"x").raise_for_status()
    server.hold_jobs(None)
    job = buckets.end(uuid)
    assert (job["kind"], job["src-bck"]["name"], job["dst-bck"]["name"]) == ("move-bck", "b", "new")
    assert counts(job) == ("3", "2310")
    assert buckets.names() == ["new"]
    assert buckets.keys("new") == sorted([*OBJECTS, "late"])  # and what came to "b" is gone with it


def test_a_rename_that_is_stopped_leaves_the_old_bucket(
    server: RunningServer, buckets: Buckets, http: requests.Session
) -> None:
    server.hold_jobs(1)
    uuid = buckets.act("move-bck", "new").text
    until(server.waiting_jobs)
    stop = {"action": "stop", "value": {"id": uuid}}
    http.put(f"{server.endpoint}/v1/cluster", json=stop).raise_for_status()
    assert buckets.end(uuid)["aborted"]
    until(lambda: buckets.names() == ["b"])
    assert buckets.keys("b") == sorted(OBJECTS)


@for_each(
    "action, name, to, value, status, text",
    [
        ("copy-bck", "b", "b", {}, 400, 'cannot copy-bck bucket "ais://b" onto itself'),
        ("copy-bck", "b", "", {}, 400, 'missing "bck_to" query parameter'),
        ("copy-bck", "b", "a b", {"dry_run": True}, 400, "bucket name is invalid"),
        ("copy-bck", "b", "new", {"dry_run": "yes"}, 400, "dry_run must be true or false"),
        ("copy-bck", "b", "new", {"synchronize": True}, 501, "copy-bck with synchronize - operation"),
        ("copy-bck", "b", "new", {"non-recurs": True}, 501, "copy-bck with non-recurs - operation"),
        ("copy-bck", "b", "aws/@#/new/", None, 501, "another backend or namespace"),
        ("copy-bck", "b", "ais/@other#/new/", None, 501, "another backend or namespace"),
        ("move-bck", "b", "aws/@#/new/", None, 501, "another backend or namespace"),
        ("move-bck", "b", "ais/@other#/new/", None, 501, "another backend or namespace"),
        ("move-bck", "b", "b", None, 400, 'cannot rename bucket "ais://b" to itself ("ais://b")'),
        ("move-bck", "b", "taken", None, 409, 'bucket "ais://taken" already exists'),
        ("move-bck", "b", "", None, 400, 'missing "bck_to" query parameter'),
        ("move-bck", "b", "a b", None, 400, "bucket name is invalid"),
        ("move-bck", "none", "new", None, 404, 'bucket "ais://none" does not exist'),
    ],
)  # fmt: skip
def test_copies_and_renames_are_refused_with_a_reason(
    buckets: Buckets, action: str, name: str, to: str, value: Any, status: int, text: str
) -> None:
    buckets.act("create-bck", name="taken")  # which only the first row does
    reply = buckets.act(action, to, value, name=name)
    assert reply.status_code == status
    assert text in reply.json()["message"]
    assert buckets.names() == ["b", "taken"]


# Summaries ----------------------------------------------------------------------------------


def test_summaries_by_the_real_sdk(server: RunningServer) -> None:
    bucket = Client(server.endpoint).bucket("b")
    found = bucket.summary()
    assert (found["name"], found["provider"], found["is_present"]) == ("b", "ais", False)
    assert found["ObjCount"] == {"obj_count_present": "3", "obj_count_remote": "0"}
    assert found["ObjSize"] == {"obj_min_size": 10, "obj_avg_size": 770, "obj_max_size": 2000}
    sizes = {name: int(size) for name, size in found["TotalSize"].items()}
    assert (sizes["size_all_present_objs"], sizes["size_all_remote_objs"]) == (2310, 0)
    assert 2310 < sizes["size_on_disk"] < sizes["total_disks_size"]
    below = bucket.summary(prefix="dir/")
    assert below["ObjCount"]["obj_count_present"] == "2"
    assert below["ObjSize"]["obj_min_size"] == 300
    properties, summed = bucket.info(prefix="dir/")
    assert json.loads(properties)["checksum"]["type"] == "md5"
    assert (summed["ObjCount"], summed["is_present"]) == (below["ObjCount"], True)


def test_a_summary_tells_what_was_counted_so_far(server: RunningServer, buckets: Buckets) -> None:
    server.hold_jobs(2)
    started = buckets.act("summary-bck", value={}, method="GET")
    head = buckets.head("b", bsumm_remote="false")
    assert (started.status_code, head.status_code) == (202, 202)
    assert "Ais-Bucket-Props" in head.headers
    ids = started.text, head.headers["Ais-Xaction-Id"]
    until(lambda: server.waiting_jobs() == 2)
    partial = buckets.act("summary-bck", value={"uuid": ids[0]}, method="GET")
    assert partial.status_code == 206
    assert partial.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert buckets.head("b", bsumm_remote="false", uuid=ids[1]).status_code == 206
    server.hold_jobs(None)

    def whole() -> bool:
        asked = buckets.act("summary-bck", value={"uuid": ids[0]}, method="GET")
        summed = buckets.head("b", bsumm_remote="false", uuid=ids[1])
        if {asked.status_code, summed.status_code} != {200}:
            return False
        documents = asked.json()[0], json.loads(summed.headers["Ais-Bucket-Summ"])
        assert [d["ObjCount"]["obj_count_present"] for d in documents] == ["3", "3"]
        return True

    until(whole)
    assert buckets.job(ids[0])["kind"] == "summary-bck"


def test_a_summary_of_all_buckets(buckets: Buckets) -> None:
    buckets.act("create-bck", name="empty").raise_for_status()
    uuid = buckets.act("summary-bck", value={}, method="GET", name="").text
    buckets.end(uuid)
    found = buckets.act("summary-bck", value={"uuid": uuid}, method="GET", name="").json()
    counted = {each["name"]: each["ObjCount"]["obj_count_present"] for each in found}
    assert counted == {"b": "3", "empty": "0"}
    assert found[1]["ObjSize"] == {"obj_min_size": 0, "obj_avg_size": 0, "obj_max_size": 0}


def test_summaries_that_are_not_there(buckets: Buckets) -> None:
    for uuid, status in (("unknown12", 404), ("?", 400)):
        asked = buckets.act("summary-bck", value={"uuid": uuid}, method="GET")
        assert asked.status_code == buckets.head("b", bsumm_remote="0", uuid=uuid).status_code
        assert (asked.status_code, uuid in asked.json()["message"]) == (status, True)
    assert buckets.act("summary-bck", value={}, method="GET", name="none").status_code == 404
    assert buckets.head("none", bsumm_remote="false").status_code == 404
    refused = buckets.head("b/dir")
    assert refused.status_code == 400
    assert "expecting just the bucket name" in refused.headers["Hdr-Error"]
