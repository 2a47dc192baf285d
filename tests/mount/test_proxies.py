"""HTTP proxies: those of the environment lead to the web, the hub and clouds, `--proxy` to AIStore, too."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from aisfs.commands.options import Exit
from tests.mount.datasets import sample, tree, write_shard
from tests.support.clouds import moto
from tests.support.http_proxy import HttpProxy, http_proxy
from tests.support.hub import running_hub
from tests.support.mounts import aisfs, mounted
from tests.support.servers import RunningServer, running_server
from tests.support.web_servers import WebServer, make_certificate, nginx

pytestmark = pytest.mark.mount

PASSWORD = "reader:hunter2-of-the-proxy"
DEAD = "http://127.0.0.1:9"
CLASSES = {"0/s0.jpg", "1/s1.jpg"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site")
    root.chmod(0o755)
    write_shard(root / "x.tar", [sample(f"s{n}", n, b"\xff\xd8\xff") for n in range(2)])
    (root / "a.txt").write_bytes(b"read through it")
    return root


@pytest.fixture(scope="module")
def server(site: Path) -> Iterator[WebServer]:
    with nginx(site) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("cluster")
    (root / "pets").mkdir()
    (root / "pets" / "a.txt").write_bytes(b"of the cluster")
    with running_server(root) as server:
        yield server


def place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


@pytest.fixture
def proxy(server: WebServer) -> Iterator[HttpProxy]:
    with http_proxy(PASSWORD, {"data.invalid": place(server.url)}) as proxy:
        yield proxy


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_a_web_server_that_only_the_proxy_knows(variable: str, proxy: HttpProxy, mountpoint: Path):
    env = {variable: proxy.with_password}
    with mounted("http://data.invalid/", mountpoint, env=env) as mount:
        assert sorted(os.listdir(mount.path)) == ["a.txt", "x.tar"]
        assert (mount.path / "a.txt").read_bytes() == b"read through it"
        assert "GET http://data.invalid/a.txt" in proxy.seen
        assert "hunter2" not in mount.log()
    with mounted(
        "http://data.invalid/x.tar", mountpoint, options=["--view", "class"], env=env
    ) as mount:
        assert set(tree(mount.path)) == CLASSES


def test_a_tunnel_for_tls(site: Path, mountpoint: Path, tmp_path: Path):
    certificate = make_certificate(tmp_path)
    with (
        nginx(site, certificate=certificate) as server,
        http_proxy(PASSWORD) as proxy,
        mounted(
            f"{server.url}/",
            mountpoint,
            env={"HTTPS_PROXY": proxy.with_password, "AIS_CLIENT_CA": str(certificate[0])},
        ) as mount,
    ):
        assert (mount.path / "a.txt").read_bytes() == b"read through it"
        host = server.url.removeprefix("https://")
        assert set(proxy.seen) == {f"CONNECT {host}"}


def test_a_redirect_to_what_the_proxy_has_near_it_is_refused(tmp_path: Path):
    """Servers elsewhere have no reason to send anybody to a metadata service."""
    redirects = "} location /go/ { return 302 http://169.254.169.254/latest/;"
    with (
        nginx(tmp_path, more=redirects) as server,
        http_proxy(hosts={"data.invalid": place(server.url)}) as proxy,
    ):
        done = aisfs("ls", "http://data.invalid/go/", env={"HTTP_PROXY": proxy.url})
        assert done.returncode != Exit.OK
        assert b"which is nearer to this machine than the server" in done.stderr, done.stderr
        assert not any("169.254" in request for request in proxy.seen)


def test_a_proxy_with_tls_for_tls(mountpoint: Path):
    done = aisfs(
        "mount", "https://data.invalid/", mountpoint, env={"HTTPS_PROXY": "https://127.0.0.1:9"}
    )
    assert (done.returncode, done.stderr.count(b"\n")) == (Exit.USAGE, 1), done.stderr
    assert b"the proxy https://127.0.0.1:9 (from the environment" in done.stderr


def test_hosts_without_a_proxy(server: WebServer, mountpoint: Path):
    env = {"HTTP_PROXY": DEAD, "NO_PROXY": "other.invalid,127.0.0.1"}
    with mounted(f"{server.url}/", mountpoint, env=env) as mount:
        assert (mount.path / "a.txt").read_bytes() == b"read through it"


def test_the_hub_through_a_proxy(mountpoint: Path):
    with running_hub() as hub, http_proxy() as proxy:
        hub.files["a.txt"] = b"of the hub"
        env = {"HF_ENDPOINT": hub.url, "HTTP_PROXY": proxy.url}
        with mounted("hf://datasets/own/pets/", mountpoint, env=env) as mount:
            assert (mount.path / "a.txt").read_bytes() == b"of the hub"
        assert f"GET {hub.url}/api/datasets/own/pets" in "\n".join(proxy.seen)
        assert any("/resolve/" in request for request in proxy.seen), proxy.seen


def test_a_cluster_needs_the_option(cluster: RunningServer, mountpoint: Path):
    """The environment's proxies are for the web, and often cannot reach a cluster."""
    with http_proxy(PASSWORD) as proxy:
        env = {"HTTP_PROXY": DEAD, "ALL_PROXY": DEAD}
        with mounted("ais://pets", mountpoint, endpoint=cluster.endpoint, env=env) as mount:
            assert (mount.path / "a.txt").read_bytes() == b"of the cluster"
        options = ["--proxy", proxy.with_password, "--writable"]
        far = "http://ais.invalid:8080"
        proxy.hosts = {"ais.invalid": place(cluster.endpoint)}
        with mounted("ais://pets", mountpoint, endpoint=far, options=options, env=env) as mount:
            assert (mount.path / "a.txt").read_bytes() == b"of the cluster"
            (mount.path / "b.txt").write_bytes(b"written through it")
            (mount.path / "b.txt").rename(mount.path / "c.txt")
            assert "hunter2" not in mount.log()
    assert (cluster.root / "pets" / "c.txt").read_bytes() == b"written through it"
    assert any(request.startswith(f"GET {far}/v1/objects/pets/a.txt") for request in proxy.seen)
    assert any(request.startswith("PUT ") for request in proxy.seen)


def test_the_option_is_for_every_store(server: WebServer, proxy: HttpProxy):
    with moto() as s3:
        bucket = s3.make_bucket()
        s3.put(bucket, "b.txt", b"b")
        environment = {**s3.environment, "HTTP_PROXY": DEAD}
        for source, name, env in (
            ("http://data.invalid/", b"a.txt", {"HTTP_PROXY": DEAD}),
            (s3.source(bucket), b"b.txt", environment),
        ):
            done = aisfs("ls", source, "--proxy", proxy.with_password, env=env)
            assert name in done.stdout, done.stderr
        assert any(request.startswith(f"GET {s3.url}/{bucket}") for request in proxy.seen)


SOURCES = {
    "http://data.invalid/": {},
    "https://data.invalid/x.tar": {},
    "hf://datasets/own/pets/": {"HF_ENDPOINT": "https://hub.invalid"},
    "s3+direct://pets/": {"AWS_ENDPOINT_URL": "http://s3.invalid", "AWS_REGION": "us-east-1"},
    "gs+direct://pets/": {},
    "az+direct://account/pets/": {},
    "ais://pets": {"AIS_ENDPOINT": "http://ais.invalid:8080"},
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_dead_proxy_is_named(source: str, mountpoint: Path):
    words = ["mount", source, mountpoint, "--io-timeout", "3", "--anonymous"]
    if source.startswith("ais:"):
        words += ["--proxy", DEAD]
    env = {"HTTP_PROXY": DEAD, "HTTPS_PROXY": DEAD, **SOURCES[source]}
    done = aisfs(*words, env=env)
    assert (done.returncode, done.stderr.count(b"\n")) == (Exit.UNREACHABLE, 1), done.stderr
    assert f"the proxy {DEAD}".encode() in done.stderr
    assert b"refused" in done.stderr


def test_a_password_that_is_missing(proxy: HttpProxy, cluster: RunningServer):
    for words, env in (
        (["http://data.invalid/"], {"HTTP_PROXY": proxy.url}),
        (["https://data.invalid/"], {"HTTPS_PROXY": proxy.url}),
        (["s3+direct://b"], {**SOURCES["s3+direct://pets/"], "HTTP_PROXY": proxy.url}),
        (["ais://pets", "--endpoint", cluster.endpoint, "--proxy", proxy.url], {}),
    ):
        done = aisfs("ls", "--anonymous", "--io-timeout", "3", *words, env=env)
        assert done.returncode == Exit.DENIED, done.stderr
        assert b"wants a name and a password" in done.stderr, done.stderr


@pytest.mark.parametrize("value", ["socks5://127.0.0.1:1080", "http://[::1", "http://h:99999"])
def test_what_is_no_proxy(value: str, server: WebServer, cluster: RunningServer):
    for words, env, named in (
        ([f"{server.url}/"], {"HTTP_PROXY": value}, "(from the environment"),
        ([f"{server.url}/"], {"AISFS_PROXY": value}, "AISFS_PROXY: "),
        (["ais://pets", "--endpoint", cluster.endpoint, "--proxy", value], {}, "--proxy: "),
    ):
        done = aisfs("ls", *words, env=env)
        said = done.stderr.decode()
        assert (done.returncode, said.count("\n")) == (Exit.USAGE, 1), said
        assert named in said
        assert value in said
