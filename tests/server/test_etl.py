"""ETLs of the embedded server: what AIStore says of them, and what a client that knows no trap takes for data."""

import base64
import json
import os
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from aistore.sdk import Client
from aistore.sdk.errors import AISError
from aistore.sdk.etl import ETLConfig

from aisfs.errors import ConfigError
from aisfs.server.api.jobs.etl import parse_commands
from tests.support.for_each import for_each
from tests.support.servers import RunningServer, running_server, until

UPPER = "tr a-z A-Z"
ARGUMENTS = (
    """python3 -c 'import os; print(os.environ["AISFS_ETL_ARGS"], os.environ["AISFS_ETL_ENV"])'"""
)
REFUSES = "sh -c 'echo bad args >&2; exit 3'"
BREAKS_OFF = "sh -c 'cat; exit 3'"
DIES = "sh -c 'kill -9 $$'"
WAITS = "sh -c 'exec sleep 100'"
COMMANDS = {
    "upper-etl": UPPER,
    "reverse-etl": "rev",
    "arguments-etl": ARGUMENTS,
    "refuses-etl": REFUSES,
    "breaks-etl": BREAKS_OFF,
    "dies-etl": DIES,
    "waits-etl": WAITS,
    "nothing-etl": "cat",
    "endless-etl": "cat /dev/zero",
    "registry/image:1": ARGUMENTS,
}
BIG = b"a" * 5000


@pytest.fixture(params=[True, False], ids=["traps", "kind"])
def traps(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def served(root: Path, **more: Any) -> Any:
    (root / "served/b").mkdir(parents=True)
    for key, content in {"h1": b"hello etl\n", "big": BIG, "empty": b"", "c:a": b"x\n"}.items():
        (root / "served/b" / key).write_bytes(content)
    return running_server(root / "served", **{"etls": COMMANDS, **more})


@pytest.fixture
def server(tmp_path: Path, traps: bool) -> Iterator[RunningServer]:
    with served(tmp_path, traps=traps) as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture
def trapped(tmp_path: Path) -> Iterator[RunningServer]:
    with served(tmp_path, traps=True) as running:
        yield running
        assert "Traceback" not in running.log()


class Tool:
    """Requests about ETLs."""

    def __init__(self, server: RunningServer, http: requests.Session) -> None:
        self.http, self.base = http, f"{server.endpoint}/v1"

    def read(self, key: str, name: str, **more: Any) -> requests.Response:
        query = {"etl_name": name, **more.pop("params", {})}
        return self.http.get(f"{self.base}/objects/b/{key}", params=query, **more)

    def init(self, name: str, image: str, **more: Any) -> requests.Response:
        message = {"name": name, "runtime": {"image": image}, **more}
        return self.http.put(f"{self.base}/etl", json=message)

    def ask(self, path: str, method: str = "GET") -> requests.Response:
        return self.http.request(method, f"{self.base}/etl{path}")

    def listed(self) -> dict[str, dict[str, Any]]:
        return {each["id"]: each for each in self.ask("").json()}

    def job(self, to: str, **value: Any) -> dict[str, Any]:
        query = {"bck_to": f"ais/@#/{to}/"}
        message = {"action": "etl-bck", "value": value}
        started = self.http.post(f"{self.base}/buckets/b", params=query, json=message)
        assert started.ok, started.text

        def ended() -> dict[str, Any] | None:
            asked = {"id": started.text}
            found = self.http.get(f"{self.base}/cluster?what=qryxstats", json=asked).json()
            (snap,) = next(iter(found.values()))
            return None if snap["end-time"].startswith("0001") else snap

        return until(ended)


def refused(reply: requests.Response) -> tuple[int, str, str]:
    return reply.status_code, reply.json().get("tcode", ""), reply.json()["message"]


@pytest.fixture
def tool(trapped: RunningServer, http: requests.Session) -> Tool:
    return Tool(trapped, http)


NOT_BUILT = "cannot use ETL in a build without ETL support - operation not supported"


def test_a_build_without_etls(tmp_path: Path, http: requests.Session, traps: bool) -> None:
    with served(tmp_path, traps=traps, etls={}) as server:
        tool = Tool(server, http)
        is_none = (501, "ErrUnsupp", NOT_BUILT)
        assert refused(tool.ask("")) == is_none
        assert refused(tool.init("upper-etl", "x")) == is_none
        for key in ("h1", "missing"):
            reply = tool.read(key, "upper-etl")
            assert refused(reply) == is_none
            assert reply.json()["node"].startswith("t[")
            assert reply.json()["url_path"] == f"/v1/objects/b/{key}"
            assert [each.status_code for each in reply.history] == [301]
        to = {"etl_name": "upper-etl", "object_to": "ais/@#/b/new"}
        assert refused(http.put(f"{tool.base}/objects/b/h1", params=to)) == is_none
        message = {"action": "etl-bck", "value": {"id": "upper-etl"}}
        query = {"bck_to": "ais/@#/new/"}
        reply = http.post(f"{tool.base}/buckets/b", params=query, json=message)
        assert refused(reply) == is_none
        # No name is a plain GET.
        assert "Ais-Version" in tool.read("h1", "").headers


def test_reads(server: RunningServer, http: requests.Session, traps: bool) -> None:
    tool = Tool(server, http)
    small = tool.read("h1", "upper-etl", headers={"Range": "bytes=2-3"})
    assert (small.status_code, small.content) == (200, b"HELLO ETL\n")
    assert small.headers["Content-Length"] == "10"
    assert small.headers["Content-Type"] == "text/plain; charset=utf-8"
    big = tool.read("big", "upper-etl", params={"archpath": "x"})
    assert big.content == BIG.upper()
    assert ("Content-Length" in big.headers) is not traps
    assert (big.headers.get("Transfer-Encoding") == "chunked") is traps
    for reply in (small, big):
        assert not [name for name in reply.headers if name.lower().startswith("ais-")]
        assert not {"Etag", "Last-Modified", "Accept-Ranges"} & reply.headers.keys()
    empty = tool.read("empty", "upper-etl")
    assert (empty.status_code, empty.headers["Content-Length"]) == (200, "0")
    query = {"etl_args": '{"a":1}'}
    assert tool.read("h1", "arguments-etl", params=query).text == '{"a":1} {}\n'
    chain = {"etl_pipeline": "reverse-etl,upper-etl"}
    assert tool.read("h1", "upper-etl", params=chain).text == "LTE OLLEH\n"
    s3 = tool.http.get(tool.base.replace("/v1", "/s3/b/h1?etl_name=upper-etl"))
    assert s3.content == b"HELLO ETL\n"
    assert tool.listed()["upper-etl"]["obj_count"] == 5


def test_errors_of_reads(server: RunningServer, http: requests.Session) -> None:
    tool = Tool(server, http)
    gone = 't[{}]: {} does not exist - try starting new ETL with "{}/v1/etl/init" endpoint'
    reply = tool.read("h1", "unknown-etl")
    node = reply.json()["node"].removeprefix("t[").removesuffix("]")
    assert refused(reply) == (404, "", gone.format(node, "unknown-etl", server.endpoint))
    # The name is not decoded.
    raw = tool.http.get(f"{tool.base}/objects/b/h1?etl_name=upper%2Fetl")
    assert refused(raw) == (404, "", gone.format(node, "upper%2Fetl", server.endpoint))
    missing = refused(tool.read("missing", "upper-etl"))
    assert missing == (404, "ErrNotFound", f"t[{node}]: ais://b/missing does not exist")
    assert refused(tool.read("h1", "refuses-etl")) == (500, "", "ETL error: bad args\n")
    query = {"etl_pipeline": "zzz-etl"}
    unknown = refused(tool.read("h1", "upper-etl", params=query))
    text = f'[t[{node}],etl="zzz-etl"] entry not found in the target'
    assert unknown == (400, "ErrETL", text)
    errors = tool.ask("/refuses-etl").json()["obj_errors"]
    assert errors == [{"obj_name": "ais://b/h1", "msg": "ETL error: bad args\n", "ecode": 500}]
    (logs,) = tool.ask("/refuses-etl/logs").json()
    assert base64.b64decode(logs["logs"]) == b"bad args\n"
    # A transformer that dies takes its ETL along.
    status, tcode, text = refused(tool.read("h1", "dies-etl"))
    assert (status, tcode) == (400, "Error")
    assert text.startswith("Put ")
    assert text.endswith(": EOF")
    assert tool.listed()["dies-etl"]["stage"] == "Aborted"
    assert tool.read("h1", "dies-etl").status_code == 404


def test_time_that_is_over_before_the_first_byte(tool: Tool) -> None:
    tool.init("short-etl", "waits-etl", obj_timeout="100ms").raise_for_status()
    status, tcode, text = refused(tool.read("h1", "short-etl"))
    assert (status, tcode) == (400, "Error")
    assert "(Client.Timeout exceeded while awaiting headers)" in text


def test_managing(tool: Tool) -> None:
    first = tool.listed()["upper-etl"]
    assert first["stage"] == "Running"
    assert first["xaction_id"].startswith("etl-")
    assert tool.ask("/upper-etl/health").json()[0]["health_status"] == "Running"
    text = 'invalid action "can\'t start ETL[upper-etl] during Running stage"'
    assert refused(tool.ask("/upper-etl/start", "POST")) == (400, "", text)
    for _ in range(2):
        assert tool.ask("/upper-etl/stop", "POST").status_code == 200
        assert tool.listed()["upper-etl"]["stage"] == "Aborted"
        assert tool.ask("/upper-etl").status_code == 404
    started = tool.ask("/upper-etl/start", "POST")
    assert started.text == tool.listed()["upper-etl"]["xaction_id"] != first["xaction_id"]
    text = 'invalid action "invalid operation: frob"'
    assert refused(tool.ask("/upper-etl/frob", "POST")) == (400, "", text)
    assert tool.ask("/upper-etl", "DELETE").status_code == 200
    status, tcode, text = refused(tool.ask("/upper-etl"))
    assert (status, tcode) == (404, "ErrNotFound")
    assert text.endswith("]: etl job upper-etl does not exist")
    assert tool.ask("/upper-etl", "PATCH").status_code == 405


def test_definitions(tool: Tool) -> None:
    env = {"image": "registry/image:1", "env": [{"name": "LD_PRELOAD", "value": "x"}]}
    sent = {"name": "new-etl", "communication": "hpush://", "obj_timeout": "1m30s", "runtime": env}
    assert tool.http.put(f"{tool.base}/etl", json=sent).text.startswith("etl-")
    assert tool.ask("/new-etl").json()["init_msg"] == {**sent, "resources": {}}
    assert tool.read("h1", "new-etl").text == ' {"LD_PRELOAD": "x"}\n'
    status, tcode, text = refused(tool.init("new-etl", "upper-etl"))
    assert (status, tcode, text.endswith("etl job new-etl already exists")) == (409, "", True)
    pod = base64.b64encode(b"spec:\n  containers:\n  - image: upper-etl\n    name: x\n").decode()
    old = tool.http.put(f"{tool.base}/etl", json={"name": "old-etl", "spec": pod})
    assert old.ok, old.text
    assert tool.read("h1", "old-etl").content == b"HELLO ETL\n"
    # A failed start leaves an entry.
    assert refused(tool.init("failed-etl", "no/such/image"))[:2] == (400, "ErrETL")
    assert tool.listed()["failed-etl"]["stage"] == "Aborted"
    assert refused(tool.ask("/failed-etl/start", "POST"))[:2] == (400, "ErrETL")


@for_each(
    "change, reason",
    [
        ({"name": "short"}, "is too short"),
        ({"name": "x" * 33}, "is too long"),
        ({"name": "under_scores"}, "can only contain [a-z0-9-]"),
        ({"communication": "hpush"}, 'unknown comm-type "hpush"'),
        ({"runtime": {}}, "runtime.image must be specified"),
        ({"obj_timeout": "soon"}, 'invalid duration "soon"'),
        ({"runtime": 3}, "Expected `object`"),
    ],
)
def test_definitions_that_are_wrong(tool: Tool, change: dict[str, Any], reason: str) -> None:
    message = {"name": "right-etl", "runtime": {"image": "upper-etl"}, **change}
    status, tcode, text = refused(tool.http.put(f"{tool.base}/etl", json=message))
    assert (status, tcode) == (400, "")
    assert text.startswith("invalid etl.InitMsg: ETLSpecMsg error: ")
    assert reason in text


def test_copies_of_objects(tool: Tool) -> None:
    def copied(name: str) -> requests.Response:
        to = {"etl_name": name, "object_to": f"ais/@#/b/new-{name}", "etl_args": "7"}
        return tool.http.put(f"{tool.base}/objects/b/h1", params=to)

    assert copied("arguments-etl").status_code == 200
    new = tool.http.get(f"{tool.base}/objects/b/new-arguments-etl")
    assert new.text == "7 {}\n"
    assert "Ais-Version" not in new.headers
    assert new.headers["Ais-Checksum-Value"]
    assert refused(copied("refuses-etl")) == (500, "", "ETL error: bad args\n")
    assert refused(copied("unknown-etl")) == (400, "", "ETL unknown-etl doesn't exist")
    assert tool.http.get(f"{tool.base}/objects/b/new-refuses-etl").status_code == 404


def test_copies_of_buckets(tool: Tool, trapped: RunningServer) -> None:
    for name in ("p/a.jpg", "p/b.png"):
        tool.http.put(f"{tool.base}/objects/b/{name}", data=b"x").raise_for_status()
    renamed = {"prefix": "p/", "prepend": "x-", "ext": {"jpg": "txt"}}
    done = tool.job("new", id="upper-etl", **renamed)
    assert (done["stats"]["loc-objs"], done["err"]) == ("2", "")
    assert sorted(os.listdir(trapped.root / "new/x-p")) == ["a.txt", "b.png"]
    got = tool.http.get(f"{tool.base}/objects/new/x-p/a.txt")
    assert (got.content, got.headers["Ais-Version"]) == (b"X", "1")
    failed = tool.job("other", id="refuses-etl", coer=True)
    assert failed["err"].startswith("ais://b/")
    assert (failed["aborted"], failed["stats"]["loc-objs"]) == (False, "0")
    asked = {"uuid": failed["id"]}
    found = tool.http.get(f"{tool.base}/etl/refuses-etl", params=asked).json()
    assert len(found["obj_errors"]) == 6
    assert tool.job("third", id="refuses-etl")["aborted"]
    message = {"action": "etl-bck", "value": {"id": "unknown-etl"}}
    reply = tool.http.post(f"{tool.base}/buckets/b?bck_to=ais/@%23/new/", json=message)
    assert refused(reply) == (404, "", "ETL unknown-etl doesn't exist")
    selected = {"id": "upper-etl", "tobck": {"name": "new"}, "objnames": ["h1"]}
    message = {"action": "etl-listrange", "value": selected}
    assert tool.http.post(f"{tool.base}/buckets/b", json=message).ok
    until(lambda: (trapped.root / "new/h1").exists())


# Traps ----------------------------------------------------------------------------------------


def appended(content: bytes) -> dict[str, Any]:
    """Give the error at the end of what came with 200."""
    assert content.endswith(b"}\n")
    return dict(json.loads(content[content.rindex(b'{"') :]))


def test_e1_an_error_is_appended_to_the_content(trapped: RunningServer, http: requests.Session):
    reply = Tool(trapped, http).read("big", "breaks-etl")
    assert reply.status_code == 200
    assert reply.content.startswith(BIG)  # and a client that knows nothing takes all of it
    error = appended(reply.content)
    assert (error["status"], error["message"]) == (400, "unexpected EOF")
    assert error["url_path"] == "/v1/objects/b/big"
    assert Tool(trapped, http).ask("/breaks-etl").json()["obj_errors"][0]["ecode"] == 400


def test_e1_a_pod_that_dies_in_between(trapped: RunningServer, http: requests.Session):
    tool = Tool(trapped, http)
    with tool.read("h1", "endless-etl", stream=True) as reply:
        assert reply.status_code == 200
        pieces = reply.iter_content(1 << 20)
        assert next(pieces)
        tool.ask("/endless-etl/stop", "POST").raise_for_status()
        *_, last = pieces
    assert appended(last[-500:])["message"] == "unexpected EOF"


def test_without_traps_an_error_is_an_error(tmp_path: Path, http: requests.Session) -> None:
    with served(tmp_path, traps=False) as server:
        assert refused(Tool(server, http).read("big", "breaks-etl")) == (500, "", "ETL error: ")


RECORDED = (
    rb'\0{"tcode":"timeoutError","message":"context deadline exceeded \(Client.Timeout or context '
    rb'cancellation while reading body\)","method":"GET","url_path":"/v1/objects/b/large",'
    rb'"remote_addr":"127.0.0.1:\d+","caller":"","node":"t\[\w+\]","status":400}\n$'
)


def test_e2_the_time_ends_when_the_client_has_read_all(
    trapped: RunningServer, http: requests.Session
) -> None:
    tool = Tool(trapped, http)
    (trapped.root / "b/large").write_bytes(bytes(64 << 20))
    tool.init("slow-etl", "nothing-etl", obj_timeout="1s").raise_for_status()
    with tool.read("large", "slow-etl", stream=True) as reply:
        assert reply.status_code == 200
        time.sleep(1.5)
        content = b"".join(reply.iter_content(1 << 20))
    assert len(content) < 64 << 20
    assert re.search(RECORDED, content[-500:])


@for_each("key", ["q?x", "q#x"])
def test_e3_of_an_odd_name_nothing_is_transformed(
    trapped: RunningServer, http: requests.Session, key: str
) -> None:
    tool, name = Tool(trapped, http), key.replace("?", "%3F").replace("#", "%23")
    (trapped.root / "b" / key).write_bytes(b"content")
    reply = tool.read(name, "upper-etl")
    assert (reply.status_code, reply.content) == (200, b"")
    tool.init("pulled-etl", "upper-etl", communication="hpull://")
    assert tool.read(name, "pulled-etl").content == b"CONTENT"


def test_e3_a_percent_sign(trapped: RunningServer, http: requests.Session) -> None:
    (trapped.root / "b/q%zz").write_bytes(b"content")
    status, _, text = refused(Tool(trapped, http).read("q%25zz", "upper-etl"))
    assert (status, text.rpartition(": ")[2]) == (400, 'invalid URL escape "%zz"')


def test_e4_head_describes_the_source(trapped: RunningServer, http: requests.Session) -> None:
    url = f"{trapped.endpoint}/v1/objects/b/h1"
    for name in ("arguments-etl", "unknown-etl"):
        found = http.head(url, params={"etl_name": name}, allow_redirects=True)
        assert found.headers["Content-Length"] == "10"
        assert "Ais-Version" in found.headers
    assert len(Tool(trapped, http).read("h1", "arguments-etl").content) != 10


def test_e5_two_results_of_one_version_may_differ(tmp_path: Path, http: requests.Session) -> None:
    with served(tmp_path, etls={"random-etl": "head -c 3000 /dev/urandom"}) as server:
        tool = Tool(server, http)
        assert tool.read("h1", "random-etl").content != tool.read("h1", "random-etl").content


def test_e6_a_stopped_etl_looks_like_a_missing_object(
    trapped: RunningServer, http: requests.Session
) -> None:
    tool = Tool(trapped, http)
    tool.ask("/upper-etl/stop", "POST").raise_for_status()
    stopped = tool.read("h1", "upper-etl")
    missing = http.get(f"{tool.base}/objects/b/missing")
    assert stopped.status_code == missing.status_code == 404
    assert "tcode" not in stopped.json()
    assert missing.json()["tcode"] == "ErrNotFound"
    tool.ask("/upper-etl/start", "POST").raise_for_status()
    assert tool.read("h1", "upper-etl").ok


def test_the_pod_must_not_see_the_token(tmp_path: Path, http: requests.Session) -> None:
    with served(tmp_path, token="secret") as server:
        tool = Tool(server, http)
        http.headers["Authorization"] = "Bearer secret"
        init = tool.init("pulled-etl", "arguments-etl", communication="hpull://")
        init.raise_for_status()
        reply = tool.read("h1", "pulled-etl", params={"etl_args": "a b"})
        assert (reply.status_code, reply.text) == (200, "a b {}\n")
        assert [each.status_code for each in reply.history] == [301, 307]
        assert not reply.url.startswith(server.endpoint)
        assert "ais%2F@%23%2Fb%2Fh1?" in reply.url
        assert "token_leaked" not in server.requests()
        # urllib sends it on to any host.
        url = f"{tool.base}/objects/b/h1?etl_name=pulled-etl"
        request = urllib.request.Request(url, headers={"Authorization": "Bearer secret"})
        urllib.request.urlopen(request).close()
        assert server.requests()["token_leaked"] == 1
        pod = reply.url
        assert http.get(pod, headers={"Host": "elsewhere.example"}).status_code == 403
        tool.ask("/pulled-etl/stop", "POST").raise_for_status()
        assert refused(tool.read("h1", "pulled-etl"))[0] == 404

        def is_closed() -> bool:
            try:
                return not http.get(pod).ok
            except requests.ConnectionError:
                return True

        until(is_closed)


# Others ---------------------------------------------------------------------------------------


def test_the_sdk(trapped: RunningServer) -> None:
    client = Client(trapped.endpoint)
    etl = client.etl("upper-etl")
    assert "upper-etl" in {each.id for each in client.cluster().list_etls()}
    assert etl.view().init_msg.runtime.image == "upper-etl"
    thing = client.bucket("b").object("h1")
    assert thing.get_reader(etl=ETLConfig("upper-etl")).read_all() == b"HELLO ETL\n"
    config = ETLConfig("arguments-etl", {"a": 1})
    assert thing.get_reader(etl=config).read_all() == b'{"a":1} {}\n'
    chain = etl >> client.etl("reverse-etl")
    assert thing.get_reader(etl=ETLConfig(chain)).read_all() == b"LTE OLLEH\n"
    own = client.etl("sdk-etl")
    own.init("registry/image:1", comm_type="hpull", LEVEL="3")
    assert thing.get_reader(etl=ETLConfig("sdk-etl")).read_all() == b' {"LEVEL": "3"}\n'
    own.stop()
    with pytest.raises(AISError):
        thing.get_reader(etl=ETLConfig("sdk-etl")).read_all()
    own.delete()
    assert "sdk-etl" not in {each.id for each in client.cluster().list_etls(stages=["Aborted"])}


@for_each(
    "word, reason",
    [
        ("upper-etl", "write NAME=COMMAND"),
        ("upper-etl=", "write NAME=COMMAND"),
        ("upper-etl=no-such-program x", "there is no program no-such-program"),
        ("upper-etl=tr 'a", "No closing quotation"),
    ],
)
def test_commands_that_cannot_be_run(word: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_commands([word])
