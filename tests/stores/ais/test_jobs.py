"""Requests about jobs, and what several targets say of them."""

import json
from typing import Any

import pytest

from aisfs.errors import (
    AlreadyExists,
    BucketNotFound,
    ConfigError,
    JobNotFound,
    ProtocolError,
    Unavailable,
    Unsupported,
)
from aisfs.http.exchange import Reply
from aisfs.model import Bucket, Provider
from aisfs.stores.ais import jobs as job_requests
from aisfs.stores.ais.jobs import JobState, parse_job_id, parse_jobs, parse_sort, parse_sorts
from aisfs.stores.ais.replies import failure
from aisfs.stores.ais.requests import Request
from tests.support.for_each import for_each

NEVER = "0001-01-01T00:00:00Z"
BUCKET = {"name": "b", "provider": "ais", "namespace": {"uuid": "", "name": ""}}
SORT = job_requests.SortRequest(
    source=Bucket("b"),
    target=Bucket("c", Provider.AIS, "@u#n"),
    template="s-{00..18}",
    output="t-{000..999}",
    shard_size=1000,
    kind="shuffle",
    seed="3",
    description="d",
)


def reply(value: object, status: int = 200) -> Reply:
    return Reply(status, {}, json.dumps(value).encode())


def test_the_specification_of_a_sort():
    request = job_requests.start_sort(SORT)
    assert (request.method, request.path, request.query) == ("POST", "/v1/sort", "")
    assert json.loads(request.body) == {
        "description": "d",
        "input_bck": BUCKET,
        "output_bck": {"name": "c", "provider": "ais", "namespace": {"uuid": "u", "name": "n"}},
        "input_format": {"template": "s-{00..18}"},
        "input_extension": ".tar",
        "output_format": "t-{000..999}",
        "output_extension": ".tar",
        "output_shard_size": "1000",
        "algorithm": {
            "kind": "shuffle",
            "decreasing": False,
            "seed": "3",
            "extension": "",
            "content_key_type": "",
        },
        "dsorter_type": "dsort_general",
        "Config": {"missing_shards": "abort", "duplicated_records": "warn"},
    }


def test_requests_name_one_job():
    abort = job_requests.abort_sort("srt-abc")
    assert (abort.method, abort.target) == ("DELETE", "/v1/sort/abort?uuid=srt-abc")
    stop = job_requests.stop_job("gabc")
    assert (stop.method, stop.path) == ("PUT", "/v1/cluster")
    assert json.loads(stop.body)["value"] == {"ID": "gabc"}
    index = job_requests.index_shards(Bucket("b"), "p/")
    assert (index.method, index.target) == ("POST", "/v1/buckets/b?provider=ais")
    assert json.loads(index.body)["value"] == {"prefix": "p/"}
    for wrong in ("", "a/b", "a b", "../x", "x" * 100, "a&uuid=b"):
        with pytest.raises(ConfigError):
            job_requests.stop_job(wrong)


@for_each(
    "method, path, query, body",
    [
        ("DELETE", "/v1/sort/abort", "uuid=", {}),
        ("DELETE", "/v1/sort", "uuid=x", {}),
        ("PUT", "/v1/cluster", "", {"action": "stop", "value": {"Kind": "dsort"}}),
        ("PUT", "/v1/cluster", "", {"action": "stop", "value": {"ID": ""}}),
        ("PUT", "/v1/cluster", "", {"action": "shutdown", "value": {"ID": "x"}}),
        ("POST", "/v1/buckets/b", "", {"action": "move-bck"}),
        ("DELETE", "/v1/buckets/b", "", {"action": "index-shard"}),
    ],
)
def test_nothing_else_can_be_sent(method: str, path: str, query: str, body: dict[str, Any]):
    with pytest.raises(ValueError, match="more than one object"):
        Request(method, path, query, "x", body=json.dumps(body).encode())


def sort_info(**changes: Any) -> dict[str, Any]:
    metrics = {
        "local_extraction": {"finished": True, "total_count": "10", "extracted_count": "4"},
        "meta_sorting": {"finished": True},
        "shard_creation": {"running": True, "to_create": "6", "created_count": "2"},
        "description": "d",
    }
    return {
        "id": "srt-x",
        "src-bck": BUCKET,
        "dst-bck": BUCKET | {"name": "out"},
        "started_time": "2026-11-23T10:00:00.123456789Z",
        "finish_time": NEVER,
        "loc-objs": "4",
        "Metrics": metrics,
        "aborted": False,
        "archived": False,
    } | changes


def test_what_targets_say_of_a_sort_is_put_together():
    metrics = sort_info()["Metrics"]
    reading = metrics | {
        "local_extraction": {"running": True, "total_count": "10", "extracted_count": "1"},
        "shard_creation": {},
        "warnings": ["w\x1b[31m"],
    }
    found = parse_sort(reply({"t1": sort_info(), "t2": sort_info(Metrics=reading)}), "srt-x")
    assert (found.state, found.step, found.done, found.total) == (
        *(JobState.RUNNING, "writing shards", 2, 6),
    )
    assert found.counts["shards"] == 5
    assert (found.source, found.target) == ("ais://b", "ais://out")
    assert found.warnings[0].startswith("w")
    assert found.warnings[0].isprintable()
    one = parse_sort(reply({"t2": sort_info(Metrics=reading)}), "srt-x")
    assert (one.step, one.done, one.total) == ("reading shards", 1, 10)
    # It is over once all of them have put it away, and was stopped if any of them was.
    half = {"t1": sort_info(archived=True, aborted=True), "t2": sort_info()}
    assert parse_sort(reply(half), "srt-x").state is JobState.RUNNING
    both = {"t1": sort_info(archived=True, aborted=True), "t2": sort_info(archived=True)}
    over = parse_sort(reply(both), "srt-x")
    assert (over.state, over.over, over.failed) == (JobState.ABORTED, True, True)
    assert parse_sorts(reply([sort_info(Metrics=None)]))[0].id == "srt-x"
    assert parse_sorts(reply(None)) == []


@for_each("value", [[], {}])
def test_a_build_without_sorts_knows_no_job(value: object):
    with pytest.raises(JobNotFound):
        parse_sort(reply(value), "srt-x")


def test_what_targets_say_of_other_jobs_is_put_together():
    def snap(**changes: Any) -> dict[str, Any]:
        return {
            "id": "j1",
            "kind": "index-shard",
            "start-time": "2026-11-23T10:00:00+01:00",
            "end-time": "2026-11-23T10:00:05.5+01:00",
            "bck": BUCKET,
            "ctlmsg": "prefix:p/, index:3, skip-indexed:1",
            "stats": {"loc-objs": "3", "loc-bytes": "300"},
        } | changes

    running = snap(**{"end-time": NEVER, "ctlmsg": "index:1, errs:1", "err": "bad\nnews"})
    (found,) = parse_jobs(reply({"t1": [snap()], "t2": [running], "t3": None}), "jobs")
    assert found.state is JobState.RUNNING
    assert found.ended is None
    assert found.counts == {"index": 4, "skip-indexed": 1, "errs": 1}
    assert (found.done, found.size, found.source, found.target) == (6, 600, "ais://b", "")
    assert found.errors == ("bad news",)
    (ended,) = parse_jobs(reply({"t1": [snap()], "t2": [snap(aborted=True)]}), "jobs")
    assert ended.state is JobState.ABORTED
    assert ended.ended.isoformat() == "2026-11-23T10:00:05.500000+01:00"
    idle = snap(is_idle=True, **{"end-time": NEVER})
    assert parse_jobs(reply({"t1": [idle]}), "jobs")[0].state is JobState.IDLE
    assert parse_jobs(reply({"t1": []}), "jobs") == []


@for_each("body", [b"", b"[1]", b"{", b'{"t": [{"id": 7}]}', b'"x"'])
def test_answers_that_make_no_sense(body: bytes):
    with pytest.raises(ProtocolError):
        parse_jobs(Reply(200, {}, body), "jobs")
    for wrong in (b"", b"two words", b"<html>", b"x" * 200):
        with pytest.raises(ProtocolError):
            parse_job_id(Reply(200, {}, wrong), "x")
    assert parse_job_id(Reply(200, {}, b"srt-abc\n"), "x") == "srt-abc"


def refusal(request: Request, status: int, message: str, tcode: str = "") -> Exception:
    details = {"tcode": tcode, "message": message, "url_path": request.path, "status": status}
    return failure(request, reply(details, status))


def test_what_refusals_mean():
    start, index = job_requests.start_sort(SORT), job_requests.index_shards(Bucket("b"), "")
    stop, jobs = job_requests.stop_job("gabc"), job_requests.describe_jobs(kind="index-shard")
    sort = job_requests.describe_sort("srt-x")
    assert isinstance(failure(start, Reply(501, {}, b"dsort not enabled\n")), Unsupported)
    cases = [
        (index, 400, 'invalid action "index-shard"', "", Unsupported),
        (jobs, 400, 'invalid xaction (job) kind "index-shard"', "", Unsupported),
        (index, 400, "failed to start: already running prefix", "ErrFailedTo", AlreadyExists),
        (index, 404, "bucket does not exist", "ErrBckNotFound", BucketNotFound),
        (start, 404, "bucket does not exist", "ErrBckNotFound", BucketNotFound),
        (sort, 404, "[dsort] srt-x does not exist", "", JobNotFound),
        (jobs, 404, "xaction not found", "ErrXactNotFound", JobNotFound),
        (job_requests.abort_sort("srt-x"), 410, "already archived", "", JobNotFound),
        (stop, 503, "starting", "", Unavailable),
    ]
    for request, status, message, tcode, kind in cases:
        assert type(refusal(request, status, message, tcode)) is kind, message
