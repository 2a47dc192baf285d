"""Every command that takes a source reaches its store by the same options."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.datasets import encode, sample
from tests.support.clouds import s3_environment
from tests.support.http_proxy import http_proxy
from tests.support.mounts import aisfs
from tests.support.servers import RunningServer, running_server
from tests.support.web_servers import WebServer, nginx

pytestmark = pytest.mark.mount

NOWHERE = {"AIS_ENDPOINT": "http://127.0.0.1:1", "AWS_EC2_METADATA_DISABLED": "true"}
COMMANDS: dict[str, tuple[list[str], str]] = {
    "ls": (["ls", "{source}"], r"x-0\.tar"),
    "inspect": (["inspect", "{source}", "--cache-size", "0"], r"samples +8"),
    "index": (
        ["index", "{source}", "--publish-to", "{new}", "--cache-dir", "{new}-cache"],
        r"2 shards: 2 indexes published",
    ),
    "warm": (["warm", "{source}", "--cache-dir", "{new}"], r"2 shards, 0 objects"),
    "doctor": (["doctor", "{source}", "--cache-dir", "{new}"], r"ok +source "),
    "pack": (["pack", "{source}", "{new}/p-{{00..}}.tar"], r"2 samples: 1 shard written"),
    "unpack": (["unpack", "{source}", "{new}"], r"16 files of 2 shards"),
}
"""What is typed for a source, and what is printed then."""


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def run(command: str, source: str, new: Path, *options: str | Path, **env: str) -> str:
    words, expected = COMMANDS[command]
    words = [word.format(source=source, new=new) for word in words]
    done = aisfs(*words, *options, env={**NOWHERE, **env})
    said = done.stdout.decode()
    return "" if re.search(expected, said) else said + done.stderr.decode()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("s3")
    fill(root / "pets")
    with running_server(root, traps=False) as server:
        yield server


def fill(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(2):
        (folder / f"x-{number}.tar").write_bytes(
            encode(sample(f"s{number}-{n}", n, b"\xff\xd8\xff") for n in range(4))
        )


def test_direct(command: str, s3: RunningServer, tmp_path: Path):
    env, source = s3_environment(f"{s3.endpoint}/s3"), "s3://pets/x-{0..1}.tar"
    quick = [] if command == "doctor" else ["--io-timeout", "1"]
    assert run(command, source, tmp_path / "without", *quick, **env)
    assert not run(command, source, tmp_path / "new", "--direct", **env)


def test_anonymous(command: str, s3: RunningServer, tmp_path: Path):
    env = {"AWS_ENDPOINT_URL": f"{s3.endpoint}/s3", "AWS_REGION": "us-east-1"}
    source = "s3+direct://pets/x-{0..1}.tar"
    said = run(command, source, tmp_path / "without", **env)
    assert "credentials" in said, said
    assert not run(command, source, tmp_path / "new", "--anonymous", **env)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    root = tmp_path_factory.mktemp("guarded")
    fill(root)
    refuse = 'if ($http_authorization != "Bearer s3cret") { return 403; }'
    with nginx(root, more=refuse) as server:
        yield server


def test_http_headers(command: str, guarded: WebServer, tmp_path: Path):
    headers = tmp_path / "headers"
    headers.write_text(f"{guarded.url.removeprefix('http://')} Authorization: Bearer s3cret\n")
    headers.chmod(0o600)
    source = f"{guarded.url}/x-{{0..1}}.tar"
    said = run(command, source, tmp_path / "without")
    assert "403" in said, said
    assert not run(command, source, tmp_path / "new", "--http-headers", headers)


def test_proxy(command: str, guarded: WebServer, tmp_path: Path):
    headers = tmp_path / "headers"
    headers.write_text("data.invalid Authorization: Bearer s3cret\n")
    headers.chmod(0o600)
    host, _, port = guarded.url.removeprefix("http://").partition(":")
    source, options = "http://data.invalid/x-{0..1}.tar", ["--http-headers", headers]
    quick = [] if command == "doctor" else ["--io-timeout", "1"]
    assert run(command, source, tmp_path / "without", *options, *quick)
    with http_proxy(hosts={"data.invalid": (host, int(port))}) as proxy:
        assert not run(command, source, tmp_path / "new", *options, "--proxy", proxy.url)
        assert proxy.seen
