"""`aisfs etl` as processes against the embedded server."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from aisfs.errors import AlreadyExists, ConfigError, JobFailed, JobNotFound, Unsupported
from aisfs.http.exchange import Reply
from aisfs.model import Bucket
from aisfs.stores.ais import requests
from aisfs.stores.ais.etls import etl_path, start_transform
from aisfs.stores.ais.replies import failure
from aisfs.work.etl import read_definitions
from tests.commands.test_jobs import running
from tests.support.for_each import for_each
from tests.support.servers import RunningServer, running_server, until

ETLS = {
    "upper-etl": "tr a-z A-Z",
    "refuses-etl": "sh -c 'echo bad args >&2; exit 3'",
    "arguments-etl": """python3 -c 'import os; print(os.environ["AISFS_ETL_ARGS"])'""",
    "odd/image": "tr a-z A-Z",
}


def serving(root: Path, **more: Any) -> Any:
    (root / "b/in").mkdir(parents=True)
    for number in range(3):
        (root / f"b/in/{number}.txt").write_bytes(b"text")
    return running_server(root, **more)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("etl") / "served"
    with serving(root, etls=ETLS) as server:
        yield server
        assert "Traceback" not in server.log()


def etl(server: RunningServer, *words: str, code: int = 0) -> str:
    """Give what a command prints; where it fails, its one line of an error."""
    with running(server, "etl", *words) as command:
        out, err = command.end(code)
    if code:
        assert err.startswith("aisfs: ")
        return err.splitlines()[-1]
    return out


def test_define_stop_start_and_delete(server: RunningServer, tmp_path: Path) -> None:
    listed = etl(server, "list").splitlines()
    assert [line.split()[:2] for line in listed[1:]] == [
        ["arguments-etl", "Running"],
        ["refuses-etl", "Running"],
        ["upper-etl", "Running"],
    ]
    definition = {"name": "mine-etl", "runtime": {"image": "odd/image"}, "obj_timeout": "5s"}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(definition))
    assert etl(server, "init", str(file)) == "mine-etl runs\n"
    assert "there is an ETL of this name" in etl(server, "init", str(file), code=1)
    file.write_text(json.dumps({**definition, "name": "new-etl", "runtime": {"image": "no"}}))
    assert "its transformer did not start" in etl(server, "init", str(file), code=1)
    file.write_text(json.dumps({**definition, "name": "short"}))
    assert "refuses this definition" in etl(server, "init", str(file), code=2)

    assert '"obj_timeout": "5s"' in etl(server, "show", "mine-etl")
    assert "it runs already" in etl(server, "start", "mine-etl", code=1)
    assert etl(server, "stop", "mine-etl") == "mine-etl is stopped\n"
    shown = json.loads(etl(server, "show", "mine-etl", "--json"))
    assert (shown["stage"], shown["definition"]) == ("Aborted", {})
    run = ("run", "mine-etl", "ais://b/in/", "ais://new")
    assert "aisfs etl start mine-etl" in etl(server, *run, code=1)
    assert etl(server, "start", "mine-etl") == "mine-etl runs\n"
    assert etl(server, "delete", "mine-etl") == "mine-etl is deleted\n"
    for words in (["show"], ["stop"], ["logs"]):
        assert "none of this name" in (said := etl(server, *words, "mine-etl", code=1)) or (
            "no such ETL" in said
        )
    assert "is not the name of an ETL" in etl(server, "show", "Mine", code=2)


SPEC = """\
# as of the ais CLI's documentation
name: first-etl
runtime:
  image: odd/image
  command: ["server", "--port", "8000"]
  env:
    - {name: SIZE, value: 64}
communication: hpush
argument: fqn
init_timeout: 5m
obj_timeout: 45s
support_direct_put: true
resources:
  requests: {memory: 256Mi, cpu: 1}
---
name: second-etl
runtime: {image: odd/image}
---
"""


def test_definitions_in_yaml(server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    assert etl(server, "init", str(file)) == "first-etl runs\nsecond-etl runs\n"
    shown = json.loads(etl(server, "show", "first-etl", "--json"))["definition"]
    assert (shown["communication"], shown["obj_timeout"]) == ("hpush://", "45s")
    assert shown["runtime"]["env"] == [{"name": "SIZE", "value": "64"}]
    for name in ("first-etl", "second-etl"):
        etl(server, "delete", name)


def test_a_file_as_aistore_gets_it(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    first, second = read_definitions(file)
    assert first["support_direct_put"] is True
    assert first["resources"] == {"requests": {"memory": "256Mi", "cpu": "1"}}
    assert second == {"name": "second-etl", "runtime": {"image": "odd/image"}}
    file.write_text(json.dumps(first))
    assert read_definitions(file) == [first]


NAMED = "name: some-etl\nruntime: {image: x}\n"


@for_each(
    "name, text, said",
    [
        ("a.yaml", "", "is empty"),
        ("a.yaml", "- name: x", "Expected `object`, got `array`"),
        ("a.yaml", "just words", "Expected `object`, got `str`"),
        ("a.yaml", "name: [", "neither JSON nor YAML"),
        ("a.yaml", "a: 1\n\tb", "neither JSON nor YAML"),
        ("a.yaml", "a: !!python/object/apply:os.getcwd []", "unknown field `a`"),
        ("a.json", "name: x", "is not JSON"),
        ("a", '{"name": ', "is not JSON"),
        ("a.yaml", "runtime: {image: x}", "missing required field `name`"),
        ("a.yaml", "name: some-etl", "missing required field `runtime`"),
        ("a.yaml", "name: some-etl\nruntime: {command: [x]}", "missing required field `image`"),
        ("a.yaml", NAMED + "obj_timout: 5s", "unknown field `obj_timout`"),
        ("a.yaml", NAMED + "obj_timeout: 5", "at `$.obj_timeout`"),
        ("a.json", '{"name": "a", "runtime": {"image": "x"}, "init_timeout": 5}', "init_timeout"),
        ("a.yaml", NAMED + "support_direct_put: maybe", "at `$.support_direct_put`"),
        ("a.yaml", "name: some-etl\nruntime: {image: x, command: run it}", "`$.runtime.command`"),
        ("a.yaml", "name: some-etl\nruntime: {image: x, env: {SIZE: 64}}", "`$.runtime.env`"),
        ("a.yaml", "name: some-etl\nruntime: {image: x, envs: []}", "unknown field `envs`"),
        ("a.yaml", "kind: Pod", "is a Pod"),
    ],
)  # fmt: skip
def test_files_that_define_nothing(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_definitions(tmp_path / name)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="No such file"):
        read_definitions(tmp_path / "none")


def test_yaml_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "a.yaml").write_text(NAMED)
    with pytest.raises(ConfigError, match="needs PyYAML"):
        read_definitions(tmp_path / "a.yaml")
    (tmp_path / "a.json").write_text('{"name": "a", "runtime": {"image": "x"}}')
    assert read_definitions(tmp_path / "a.json")[0]["name"] == "a"


def test_transform_a_prefix(server: RunningServer) -> None:
    out = etl(server, "run", "upper-etl", "ais://b/in/", "ais://out/x-")
    assert out == "3 objects transformed to ais://out/x-\n"
    folder = server.root / "out/x-in"
    assert sorted(os.listdir(folder)) == ["0.txt", "1.txt", "2.txt"]
    assert (folder / "0.txt").read_bytes() == b"TEXT"


def test_transform_an_object(server: RunningServer) -> None:
    words = ("run", "arguments-etl", "ais://b/in/0.txt")
    out = etl(server, *words, "ais://b/one/", "--args", '{"a": 1}')
    assert out == "transformed to ais://b/one/0.txt\n"
    assert (server.root / "b/one/0.txt").read_bytes() == b'{"a": 1}\n'


def test_what_fails_is_an_error(server: RunningServer) -> None:
    said = etl(server, "run", "refuses-etl", "ais://b/in/0.txt", "ais://b/two", code=1)
    assert "the transformation failed (HTTP 500: ETL error: bad args)" in said
    assert not (server.root / "b/two").exists()
    said = etl(server, "run", "refuses-etl", "ais://b/in/", "ais://out", code=1)
    assert "0 of 3 were transformed: ais://b/in/0.txt: ETL error: bad args" in said
    assert "ais://b/in/0.txt: ETL error: bad args (HTTP 500)" in etl(server, "show", "refuses-etl")
    assert ": bad args" in etl(server, "logs", "refuses-etl")
    said = etl(server, "run", "upper-etl", "ais://b/in", "ais://out", code=5)
    assert "for all objects below it, write ais://b/in/" in said
    assert "no such object" in etl(server, "run", "upper-etl", "ais://b/no/", "ais://out", code=5)
    assert "none of this name" in etl(server, "run", "no-etl", "ais://b/in/", "ais://out", code=1)


@for_each(
    "words, said",
    [
        (["b/in/", "ais://out"], "write ais://BUCKET"),
        (["ais://b/in/", "ais://b/out/"], "go to another bucket"),
        (["ais://b/in/", "ais://out", "--args", "x"], "for single objects only"),
        (["ais://b/x", "ais://b/x"], "needs another name"),
        (["ais://b/x", "ais://b/50%"], "loses what is copied"),
        (["https://host/x", "ais://b/y"], "only AIStore has ETLs"),
    ],
)
def test_what_makes_no_sense(server: RunningServer, words: list[str], said: str) -> None:
    assert said in etl(server, "run", "upper-etl", *words, code=2)


def test_names_of_which_nothing_would_be_transformed(server: RunningServer) -> None:
    (server.root / "odd").mkdir()
    (server.root / "odd/50%").write_bytes(b"text")
    said = etl(server, "run", "upper-etl", "ais://odd", "ais://out", code=1)
    assert "AIStore transforms nothing of a name with `?`, `#` or `%`" in said


def test_ctrl_c_stops_the_job(server: RunningServer) -> None:
    server.hold_jobs(1)
    words = ("etl", "run", "upper-etl", "ais://b/in/", "ais://stopped")
    with running(server, *words) as command:
        until(server.waiting_jobs)
        command.process.send_signal(signal.SIGINT)
        _, err = command.end(130)
    server.hold_jobs(None)
    assert "1 object transformed to ais://stopped, and stay" in err


def test_a_cluster_without_etls(tmp_path: Path) -> None:
    words: list[Sequence[str]] = [
        ("list",),
        ("show", "upper-etl"),
        ("run", "upper-etl", "ais://b/in/", "ais://out"),
        ("run", "upper-etl", "ais://b/missing", "ais://out/x"),
    ]
    with serving(tmp_path / "served") as server:
        for command in words:
            assert "the cluster is built without ETLs" in etl(server, *command, code=1)


def test_a_server_whose_transformer_cannot_be_run(server: RunningServer, tmp_path: Path) -> None:
    with running(server, "serve", str(tmp_path), "--etl", "lost-etl=no-such-program") as command:
        _, err = command.end(2)
    assert err == "aisfs: --etl lost-etl=no-such-program: there is no program no-such-program\n"


def test_what_refusals_mean() -> None:
    bucket = Bucket("b")
    one = requests.transform_object(bucket, "k", "upper-etl", "", bucket, "new")
    read = requests.Request("GET", "/v1/objects/b/k", "provider=ais&etl_name=upper-etl", "x")
    stopped = 't[x]: upper-etl does not exist - try starting new ETL with "…" endpoint'
    many = start_transform("upper-etl", bucket, "", Bucket("out"), "")
    ask = requests.Request("GET", etl_path("upper-etl"), "", "x")
    kubernetes = "the operation requires Kubernetes"
    cases = [
        (ask, 400, kubernetes, Unsupported),
        (one, 400, kubernetes, Unsupported),
        (many, 501, "cannot use ETL in a build without ETL support - …", Unsupported),
        (ask, 400, "k8s client is not initialized (non-Kubernetes …)", Unsupported),
        (ask, 404, "p[x]: etl job upper-etl does not exist", JobNotFound),
        (many, 404, "ETL upper-etl doesn't exist", JobNotFound),
        (one, 400, "ETL upper-etl doesn't exist", JobNotFound),
        (read, 404, stopped, JobNotFound),
        (read, 400, '[t[x],etl="zzz-etl"] entry not found in the target', JobNotFound),
        (read, 404, "ETL error: no such page", JobFailed),
        (one, 500, "ETL error: connection refused", JobFailed),
        (ask, 409, "p[x]: etl job upper-etl already exists", AlreadyExists),
        (ask, 400, "invalid etl.InitMsg: …", ConfigError),
    ]
    for request, status, message, kind in cases:
        body = json.dumps({"message": message, "url_path": request.path, "status": status})
        assert type(failure(request, Reply(status, {}, body.encode()))) is kind, message


@for_each("method, path", [("DELETE", ""), ("POST", "/x/frob"), ("DELETE", "/"), ("PUT", "/x")])
def test_only_single_etls_are_changed(method: str, path: str) -> None:
    with pytest.raises(ValueError, match="could change more"):
        requests.Request(method, f"/v1/etl{path}", "", "x")
