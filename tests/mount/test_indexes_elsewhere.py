"""Published indexes without AIStore: on clouds, web servers and the hub no shard is read to list samples."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aisfs.commands.options import Exit
from tests.mount.datasets import sample, tree, write_shard
from tests.support.clouds import S3, moto, s3_environment
from tests.support.hub import running_hub
from tests.support.mounts import aisfs, mounted
from tests.support.servers import RunningServer, running_server
from tests.support.web_servers import WebServer, nginx, python_server

pytestmark = pytest.mark.mount

SHARDS, EACH = 12, 5
BRACES = f"x-{{000..{SHARDS - 1:03}}}.tar"
IMAGE = b"\xff\xd8\xff" + bytes(3000)
DENIED = "location ~ /\\.(?!aisfs-index/x-) { return 403; }"
"""Many sites refuse whatever begins with a dot; this one has no index of that directory either."""

SERVERS: dict[str, Callable[[Path], object]] = {
    "index": nginx,
    "no index": lambda root: nginx(root, autoindex=False),
    "no index of indexes": lambda root: nginx(root, more=DENIED),
    "python": python_server,
}
GETS = re.compile(r'"GET \S*?(x-\d\d\d\.tar) HTTP')


def write(folder: Path, number: int, first: bytes = b"") -> Path:
    samples = [sample(f"{number:03}-{at}", at % 3, first + IMAGE) for at in range(EACH)]
    return write_shard(folder / f"x-{number:03}.tar", samples)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    root = tmp_path / "site"
    for number in range(SHARDS):
        write(root / "data", number)
    return root


def seen(source: str, mountpoint: Path, cache: Path, *options: str, **more) -> dict[str, int]:
    """Return the files of a class view on a machine of its own, with their sizes."""
    options = ("--view", "class", "--cache-dir", str(cache), *options)
    with mounted(source, mountpoint, options=options, **more) as mount:
        return {name: (mount.path / name).stat().st_size for name in tree(mount.path)}


def index(*words: str | Path, **more: object) -> str:
    done = aisfs("index", *words, **more)
    assert done.returncode == Exit.OK, done.stderr
    return done.stdout.decode().splitlines()[-1]


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, site: Path) -> Iterator[WebServer]:
    with SERVERS[request.param](site) as server:
        yield server


def sources(server: WebServer) -> list[str]:
    """Return what names the shards: also the directory, where the server has an index of it."""
    has_index = "no index" not in aisfs("ls", f"{server.url}/data/").stderr.decode()
    return [f"{server.url}/data/{BRACES}", *([f"{server.url}/data/"] if has_index else [])]


def test_what_was_published_in_the_directory_of_a_web_server(
    server: WebServer, site: Path, mountpoint: Path, tmp_path: Path
):
    every = seen(str(site / "data"), mountpoint, tmp_path / "local", "--no-published-index")
    assert len(every) == SHARDS * EACH
    said = index("--publish", site / "data", "--cache-dir", tmp_path / "local")
    assert said == f"{SHARDS} shards: {SHARDS} indexes published, 0 were current"
    for source in sources(server):
        before = len(server.log())
        assert seen(source, mountpoint, tmp_path / f"machine-{before}") == every
        assert not GETS.findall(server.log()[before:]), "a shard was read"

    # One shard becomes another of the same size; only that one is read.
    written = (site / "data" / "x-003.tar").stat()
    changed = write(site / "data", 3, b"\1")
    os.truncate(changed, written.st_size)
    os.utime(changed, ns=(written.st_atime_ns, written.st_mtime_ns + 10**9))
    for source in sources(server):
        before = len(server.log())
        seen(source, mountpoint, tmp_path / f"machine-{before}", expected_log=["not used"])
        assert set(GETS.findall(server.log()[before:])) == {"x-003.tar"}


def test_what_is_not_published_costs_only_its_scan(site: Path, mountpoint: Path, tmp_path: Path):
    index("--publish", site / "data", "--cache-dir", tmp_path / "local")
    (site / "data" / ".aisfs-index" / "x-007.tar.idx").unlink()
    (site / "data" / ".aisfs-index" / "x-008.tar.idx").write_bytes(b"AISFSIDX of nothing")
    with nginx(site, autoindex=False) as server:
        found = seen(
            f"{server.url}/data/{BRACES}", mountpoint, tmp_path / "far", expected_log=["not used"]
        )
        assert len(found) == SHARDS * EACH
        assert set(GETS.findall(server.log())) == {"x-007.tar", "x-008.tar"}
        assert server.log().count("HEAD /data/.aisfs-index/x-007.tar.idx") == 1


def test_indexes_of_what_can_only_be_read(site: Path, mountpoint: Path, tmp_path: Path):
    """They are made over HTTP, for the ETags of the server, and brought beside the shards."""
    local = ["--cache-dir", str(tmp_path / "local")]
    with nginx(site) as server:
        source = f"{server.url}/data/{BRACES}"
        refused = aisfs("index", "--publish", source, *local)
        assert (refused.returncode, refused.stdout) == (Exit.USAGE, b"")
        assert b"--publish-to DIR" in refused.stderr
        made = tmp_path / "made"
        dry = index("--publish-to", made, "--dry-run", source, *local)
        assert dry == f"{SHARDS} shards: {SHARDS} indexes would be published, 0 were current"
        assert not made.exists()
        said = index("--publish-to", made, source, *local)
        assert said == f"{SHARDS} shards: {SHARDS} indexes published, 0 were current"
        assert index("--check", "--publish-to", made, source, *local).startswith(
            f"{SHARDS} shards: {SHARDS} indexes are current"
        )
        assert tree(made) == [f".aisfs-index/x-{n:03}.tar.idx" for n in range(SHARDS)]
        shutil.copytree(made, site / "data", dirs_exist_ok=True)
        assert index("--check", source, *local).endswith("0 are not")
        every = seen(source, mountpoint, tmp_path / "one", "--no-published-index")
        before = len(server.log())
        assert seen(source, mountpoint, tmp_path / "two") == every
        assert not GETS.findall(server.log()[before:])


def test_the_hub(site: Path, mountpoint: Path, tmp_path: Path):
    """An index of one commit is good in the next one, which has the indexes too."""
    source, made = "hf://datasets/own/pets/data/*.tar", tmp_path / "made"
    with running_hub() as hub:
        env = {"HF_ENDPOINT": hub.url}
        hub.files |= {f"data/{path.name}": path.read_bytes() for path in (site / "data").iterdir()}
        index("--publish-to", made, source, "--cache-dir", tmp_path / "local", env=env)
        every = seen(source, mountpoint, tmp_path / "one", env=env)
        hub.files |= {f"data/{name}": (made / name).read_bytes() for name in tree(made)}
        hub.seen.clear()
        assert seen(source, mountpoint, tmp_path / "two", env=env) == every
        assert len(every) == SHARDS * EACH
        fetched = [line for line in hub.seen if "/resolve/" in line]
        assert len(fetched) == SHARDS
        assert all(line.endswith(".idx") for line in fetched)


def test_clouds(site: Path, mountpoint: Path, tmp_path: Path):
    """Also over the URLs of the bucket, whose ETags are the same."""
    (tmp_path / "proxy").mkdir()
    with (
        moto() as s3,
        running_server(tmp_path / "proxy", faulty=True, forward=s3.url) as proxy,
    ):
        s3.make_bucket("pets")
        for shard in (site / "data").iterdir():
            s3.put("pets", f"data/{shard.name}", shard.read_bytes())
        use_indexes_of_a_cloud(s3, proxy, site, mountpoint, tmp_path)


def use_indexes_of_a_cloud(
    s3: S3, proxy: RunningServer, site: Path, mountpoint: Path, tmp_path: Path
) -> None:
    env = s3_environment(proxy.endpoint)
    source = f"s3+direct://pets/data/{BRACES}"
    every = seen(source, mountpoint, tmp_path / "one", env=env)
    assert len(every) == SHARDS * EACH
    index("--publish", source, "--cache-dir", tmp_path / "local", env=env)
    indexes, size = 0, (site / "data" / "x-000.tar").stat().st_size
    for shard in sorted((site / "data").iterdir()):
        name = f"data/.aisfs-index/{shard.name}.idx"
        indexes += len(s3.get("pets", name) or b"")
        for key in (name, f"data/{shard.name}"):
            s3.publish("pets", key)
    for machine, url in (("two", source), ("three", f"{proxy.endpoint}/pets/data/{BRACES}")):
        before = proxy.requests()["get_bytes"]
        assert seen(url, mountpoint, tmp_path / machine, env=env) == every
        assert 0 < proxy.requests()["get_bytes"] - before < indexes + size // 2, "a shard was read"
    # Another object of the same size and name.
    s3.put("pets", "data/x-003.tar", write(site / "data", 3, b"\1").read_bytes()[:size])
    before = proxy.requests()["get_bytes"]
    seen(source, mountpoint, tmp_path / "four", env=env, expected_log=["not used"])
    assert proxy.requests()["get_bytes"] - before > EACH * 1000
