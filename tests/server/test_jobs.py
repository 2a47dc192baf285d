"""Jobs of the embedded server: they run after their start was answered, and end as AIStore's do."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.archives import make_tar
from tests.support.for_each import for_each
from tests.support.servers import RunningServer, running_server, until

DEADLINE = 60.0
GONE = 410


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    (folder / "b").mkdir(parents=True)
    return folder


@pytest.fixture
def server(root: Path) -> Iterator[RunningServer]:
    with running_server(root) as running:
        yield running
        assert "Traceback" not in running.log()


def shard(names: list[str], **contents: bytes) -> bytes:
    return make_tar(
        (name, contents.get(name.rpartition(".")[2], name.encode() * 100)) for name in names
    )


def put(http: requests.Session, server: RunningServer, key: str, data: bytes) -> None:
    http.put(f"{server.endpoint}/v1/objects/b/{key}", data=data).raise_for_status()


def spec(**changes: Any) -> dict[str, Any]:
    return {
        "input_bck": {"name": "b"},
        "output_bck": {"name": "out"},
        "input_format": {"template": "in-{0..2}"},
        "output_format": "s-{0..9}",
        "input_extension": ".tar",
        "output_extension": ".tar",
        "output_shard_size": "2KB",
        "dsorter_type": "dsort_general",
    } | changes


class Sorting:
    """dSort as a client sees it."""

    def __init__(self, server: RunningServer, http: requests.Session) -> None:
        self.server, self.http = server, http
        self.url = f"{server.endpoint}/v1/sort"

    def start(self, **changes: Any) -> str:
        reply = self.http.post(self.url, json=spec(**changes))
        assert reply.ok, reply.text
        assert reply.text.startswith("srt-")
        return reply.text

    def info(self, uuid: str) -> dict[str, Any]:
        reply = self.http.get(self.url, params={"uuid": uuid})
        assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
        (found,) = reply.json().values()
        return found

    def end(self, uuid: str) -> dict[str, Any]:
        return until(lambda: (found := self.info(uuid))["archived"] and found)

    def order(self, **changes: Any) -> list[list[str]]:
        """Give the members of each shard that a job has made."""
        done = self.end(self.start(output_format="o-{0..9}", **changes))
        assert not done["aborted"], done["Metrics"]
        return [self.names(f"o-{n}.tar") for n in range(int(self.created(done)))]

    def names(self, key: str, bucket: str = "out") -> list[str]:
        got = self.http.get(f"{self.server.endpoint}/v1/objects/{bucket}/{key}")
        got.raise_for_status()
        with tarfile.open(fileobj=io.BytesIO(got.content)) as tar:
            for member in tar:
                assert tar.extractfile(member).read()
            return tar.getnames()

    @staticmethod
    def created(info: dict[str, Any]) -> str:
        return info["Metrics"]["shard_creation"]["created_count"]


@pytest.fixture
def sorting(server: RunningServer, http: requests.Session) -> Sorting:
    return Sorting(server, http)


def test_the_orders_of_a_sort(sorting: Sorting) -> None:
    for number, label in enumerate((b"20", b"3", b"100")):
        put(sorting.http, sorting.server, f"in-{number}.tar", shard([f"k{number}.cls"], cls=label))
    one = {"output_shard_size": "1"}

    def by(kind: str, **more: Any) -> str:
        shards = sorting.order(algorithm={"kind": kind, **more}, **one)
        return "".join(name[1] for names in shards for name in names)

    content = {"extension": ".cls"}
    assert by("content", content_key_type="int", **content) == "102"
    assert by("content", content_key_type="string", **content) == "201"
    assert by("content", content_key_type="int", decreasing=True, **content) == "201"
    assert by("md5") == "012"
    assert by("alphanumeric", decreasing=True) == "210"
    assert by("none") == "012"
    assert by("shuffle", seed="7") == by("shuffle", seed="7")
    assert sorted(by("shuffle")) == ["0", "1", "2"]
    listed = {"input_format": {"objnames": ["in-2.tar", "in-0.tar"]}}
    assert sorting.order(algorithm={"kind": "none"}, **listed, **one) == [["k2.cls"], ["k0.cls"]]
    # A prefix is accepted, and sorts nothing.
    assert sorting.order(input_format={"template": "in-"}) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"output_format": "s-{0..0}", "output_shard_size": "1"}, "exceeds expected number"),
        ({"Config": {"missing_shards": "abort"}}, "does not exist"),
        ({"Config": {"duplicated_records": "abort"}}, "is duplicated"),
        ({"algorithm": {"kind": "content", "extension": ".no", "content_key_type": "int"}}, "key"),
        (
            {"algorithm": {"kind": "content", "extension": ".cls", "content_key_type": "int"}},
            "invalid syntax",
        ),
        ({"input_format": {"objnames": ["damaged.tar"]}}, "failed to extract"),
    ],
)
def test_a_sort_that_fails_says_so_in_its_state(
    sorting: Sorting, changes: dict[str, Any], reason: str
) -> None:
    names = ["a.txt", "a.txt", "b.txt", "a.cls", "b.cls"]
    put(sorting.http, sorting.server, "in-0.tar", shard(names, cls=b"7\n"))
    put(sorting.http, sorting.server, "damaged.tar", b"no tar" * 1000)
    done = sorting.end(sorting.start(**changes))
    assert done["aborted"]
    assert reason in done["Metrics"]["errors"][0]
    assert sorting.created(done) == "0"


@for_each(
    "changes",
    [
        {"output_format": "s"},
        {"output_shard_size": "big"},
        {"algorithm": {"kind": "odd"}},
        {"algorithm": {"kind": "shuffle", "seed": "x"}},
        {"algorithm": {"kind": "content", "extension": "cls", "content_key_type": "int"}},
        {"Config": {"missing_shards": "explode"}},
    ],
)
def test_a_specification_that_cannot_be_is_refused_with_a_reason(
    sorting: Sorting, changes: dict[str, Any]
) -> None:
    refused = sorting.http.post(sorting.url, json=spec(**changes))
    assert refused.status_code == 400
    assert "[dsort] parse-spec: invalid" in refused.json()["message"]


# Shard indexes -------------------------------------------------------------------------------


class Indexing:
    """The job `index-shard` as a client sees it."""

    def __init__(self, server: RunningServer, http: requests.Session) -> None:
        self.server, self.http = server, http

    def start(self, **value: Any) -> requests.Response:
        message = {"action": "index-shard", "value": value}
        return self.http.post(f"{self.server.endpoint}/v1/buckets/b", json=message)

    def run(self, **value: Any) -> dict[str, Any]:
        started = self.start(**value)
        assert started.ok, started.text
        return until(lambda: (found := self.snap(started.text))["is_idle"] and found)

    def snap(self, uuid: str) -> dict[str, Any]:
        ((found,),) = self.ask("qryxstats", ID=uuid).json().values()
        return found

    def ask(self, what: str, **message: Any) -> requests.Response:
        return self.http.get(f"{self.server.endpoint}/v1/cluster?what={what}", json=message)

    def stop(self, **value: Any) -> int:
        message = {"action": "stop", "value": value}
        return self.http.put(f"{self.server.endpoint}/v1/cluster", json=message).status_code

    def index(self, key: str) -> Path:
        return self.server.root / ".sys-shardidx" / "ais" / "@#" / "b" / f"{key}.idx"


def test_a_sort_is_listed_while_it_runs_and_removed_only_when_it_has_ended(
    sorting: Sorting,
) -> None:
    for number in range(2):
        put(sorting.http, sorting.server, f"in-{number}.tar", shard([f"{number}.txt"]))
    sorting.server.hold_jobs(1)
    uuid = sorting.start(description="by name")
    until(lambda: sorting.info(uuid)["loc-objs"] == "1")
    half = sorting.info(uuid)
    assert half["Metrics"]["local_extraction"]["running"]
    assert half["finish_time"].startswith("0001-01-01")
    listed = sorting.http.get(sorting.url, params={"only_active": "true"}).json()
    assert [each["id"] for each in listed] == [uuid]
    busy = sorting.http.delete(sorting.url, params={"uuid": uuid})
    assert busy.status_code == 400
    assert "still in progress" in busy.json()["message"]
    sorting.server.hold_jobs(None)
    assert sorting.end(uuid)["Metrics"]["description"] == "by name"
    assert sorting.http.get(sorting.url, params={"only_active": "true"}).json() == []
    assert sorting.http.delete(f"{sorting.url}/abort?uuid={uuid}").status_code == GONE
    assert sorting.http.delete(sorting.url, params={"uuid": uuid}).status_code == 200
    assert sorting.http.get(sorting.url, params={"uuid": uuid}).status_code == 404
    unknown = sorting.http.delete(f"{sorting.url}/abort", params={"uuid": "srt-nosuchid1"})
    assert (unknown.status_code, unknown.json()["tcode"]) == (404, "ErrNotFound")


def test_a_sort_is_refused_with_a_reason(sorting: Sorting) -> None:
    for changes, status in (
        ({"input_bck": {}}, 400),
        ({"input_bck": {"name": "none"}}, 404),
        ({"dsorter_type": ""}, 400),
        ({"input_extension": ".zip"}, 501),
    ):
        assert sorting.http.post(sorting.url, json=spec(**changes)).status_code == status


@pytest.fixture
def indexing(server: RunningServer, http: requests.Session) -> Indexing:
    return Indexing(server, http)


def test_an_index_is_renewed_if_it_is_verified_and_goes_with_its_shard(indexing: Indexing) -> None:
    http, server = indexing.http, indexing.server
    for key in ("p/a.tar", "p/b.tar", "q/c.tar"):
        put(http, server, key, shard(["a.txt"]))
    put(http, server, "p/damaged.tar", b"no tar" * 1000)
    put(http, server, "p/note.txt", b"text")
    done = indexing.run(prefix="p/")
    assert done["ctlmsg"] == "prefix:p/, skip-nontar:1, index:2, errs:1"
    assert "p/damaged.tar" in done["err"]
    assert not indexing.index("q/c.tar").exists()
    put(http, server, "p/b.tar", shard(["other.txt"]))
    stale = indexing.index("p/b.tar").read_bytes()
    assert indexing.run(**{"skip-verify": True})["ctlmsg"].startswith(
        "skip-verify:true, skip-nontar:1, skip-indexed:2, index:1"
    )
    assert indexing.index("p/b.tar").read_bytes() == stale
    assert "skip-indexed:2, re-stale:1" in indexing.run()["ctlmsg"]
    assert indexing.index("p/b.tar").read_bytes() != stale
    http.delete(f"{server.endpoint}/v1/objects/b/p/b.tar").raise_for_status()
    assert not indexing.index("p/b.tar").exists()


def test_a_job_is_followed_and_stopped(indexing: Indexing) -> None:
    for number in range(4):
        put(indexing.http, indexing.server, f"{number}.tar", shard(["a.txt"]))
    indexing.server.hold_jobs(1)
    uuid = indexing.start().text
    until(lambda: indexing.snap(uuid)["stats"]["loc-objs"] == "1")
    assert indexing.snap(uuid)["end-time"].startswith("0001-01-01")
    status = indexing.ask("status", ID=uuid)
    assert status.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert status.json() == {
        "kind": "index-shard",
        "uuid": uuid,
        "err": "",
        "end_time": 0,
        "aborted": False,
    }
    assert indexing.ask("running_all").json() == [f"index-shard[{uuid}]"]
    refused = indexing.start(prefix="1")
    assert (refused.status_code, refused.json()["tcode"]) == (400, "ErrFailedTo")
    assert "abort it first" in refused.json()["message"]
    # Of an id that is unknown, nothing is said; one that can be none is refused.
    assert indexing.stop(ID="Unknown12") == 200
    assert indexing.stop(ID="-") == 400
    assert indexing.stop() == 400
    assert indexing.stop(Kind="nonsense") == 400
    assert indexing.stop(ID=uuid) == 200
    done = until(lambda: (found := indexing.snap(uuid))["is_idle"] and found)
    assert done["aborted"]
    assert done["abort-err"]
    assert indexing.ask("status", ID=uuid).json()["aborted"]
    assert len(list(indexing.index("").parent.rglob("*.idx"))) == 1
    assert indexing.ask("qryxstats", ID="Unknown12").status_code == 404
    assert indexing.ask("qryxstats", ID="-").status_code == 400
    assert indexing.ask("qryxstats", Kind="nonsense").status_code == 400
    ((snap,),) = indexing.ask("qryxstats", Kind="shard-index").json().values()
    assert snap["id"] == uuid
    assert indexing.ask("qryxstats", Kind="shard-index", show_active=True).json().popitem()[1] == []


def test_a_shard_that_is_read_is_skipped(indexing: Indexing) -> None:
    put(indexing.http, indexing.server, "a.tar", shard(["a.txt"], txt=bytes(50_000_000)))
    url = f"{indexing.server.endpoint}/v1/objects/b/a.tar"
    with indexing.http.get(url, stream=True) as reading:
        next(reading.iter_content(1))
        done = indexing.run()
        assert done["ctlmsg"] == "skip-busy:1, errs:1"
        assert "busy" in done["err"]
