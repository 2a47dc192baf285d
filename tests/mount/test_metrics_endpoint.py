"""`--metrics-addr`: a mount tells Prometheus what it does, and supervisors how it is."""

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aisfs import __version__
from aisfs.errors import ConfigError
from aisfs.mount.monitoring import KEPT_SECONDS
from aisfs.settings import MonitoringSettings
from tests.docs.documents import ROOT
from tests.mount.content import fill
from tests.support.mounts import Mount, MountFailedError, aisfs, eventually, mounted
from tests.support.servers import RunningServer, running_server

MONITORING = ROOT / "docs" / "monitoring"
CONTENT = os.urandom(3 << 20)
USAGE = 2
PATIENCE = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("metrics") / "store"
    fill(root / "b", {"x.bin": CONTENT, "y.bin": CONTENT[:5000]})
    with running_server(root) as server:
        yield server


def ask(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=PATIENCE) as reply:
            return reply.status, reply.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def where(mount: Mount) -> str:
    """The address of the counters, from `aisfs status`, without its path."""
    done = aisfs("status", mount.path, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    url = json.loads(done.stdout)["mount"]["metrics"]
    assert url in mount.log()
    return url.removesuffix("/metrics")


def scrape(base: str) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """All samples by name and labels."""
    status, text = ask(f"{base}/metrics")
    assert status == 200
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            labels = frozenset(sample.labels.items())
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def total(samples: dict[frozenset[tuple[str, str]], float], **labels: str) -> float:
    wanted = set(labels.items())
    return sum(value for given, value in samples.items() if wanted <= given)


def reads_are_timed(samples: dict[str, dict[frozenset[tuple[str, str]], float]]) -> bool:
    """Whether each read that was counted was timed, too, which is done after its reply."""
    timed = total(samples["aisfs_operation_seconds_count"], operation="read")
    return timed == total(samples["aisfs_operations_total"], operation="read") > 0


def names(text: str) -> set[str]:
    """All names that samples can have, those of metrics without samples as yet included."""
    found = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE):
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {name + suffix for suffix in suffixes}
    return found


@pytest.mark.mount
@pytest.mark.parametrize("fast", [True, False], ids=["fast path", "pyfuse3"])
def test_what_a_mount_tells(server: RunningServer, mountpoint: Path, tmp_path: Path, fast: bool):
    options = [
        "--metrics-addr",
        ":0",
        "--cache-dir",
        str(tmp_path / "cache"),
        "--cache-size",
        "20MiB",
    ]
    with mounted(
        "ais://b", mountpoint, endpoint=server.endpoint, options=options, fastpath=fast
    ) as mount:
        base = where(mount)
        assert base.startswith("http://127.0.0.1:")
        assert ask(f"{base}/healthz") == (200, "ok\n")
        assert ask(f"{base}/")[0] == 404
        before = scrape(base)
        assert total(before["aisfs_build_info"], version=__version__) == 1
        assert total(before["process_resident_memory_bytes"]) > 1 << 20
        assert total(before["process_start_time_seconds"]) > 1e9
        assert (mount.path / "x.bin").read_bytes() == CONTENT
        with pytest.raises(OSError, match="Read-only"):
            (mount.path / "x.bin").write_bytes(b"y")
        assert eventually(lambda: reads_are_timed(scrape(base)), PATIENCE)
        after = scrape(base)
        assert total(after["aisfs_read_bytes_total"]) >= len(CONTENT)
        assert total(after["aisfs_fetched_bytes_total"]) == len(CONTENT)
        reads = total(after["aisfs_operations_total"], operation="read")
        assert reads > total(before["aisfs_operations_total"], operation="read")
        assert total(after["aisfs_operation_seconds_bucket"], operation="read", le="+Inf") == reads
        assert total(after["aisfs_operation_seconds_sum"], operation="read") > 0
        assert total(after["aisfs_store_request_seconds_count"], call="read_range") >= 1
    with mounted(
        "ais://b", mountpoint, endpoint=server.endpoint, options=options, fastpath=fast
    ) as mount:
        base = where(mount)
        assert (mount.path / "x.bin").read_bytes() == CONTENT
        again = scrape(base)
        read = again["aisfs_read_bytes_total"]
        assert total(read, source="disk") > 0
        assert total(read, source="disk") + total(read, source="memory") >= len(CONTENT)
        assert total(read, source="network") == 0
        assert total(again["aisfs_cache_hits"]) > 0
        scraped = names(ask(f"{base}/metrics")[1])
    for query in queries():
        assert set(re.findall(r"\b(?:aisfs|process)_\w+", query)) <= scraped, query
    with pytest.raises(OSError, match="refused"):
        urlopen(f"{base}/metrics", timeout=PATIENCE)


def queries() -> list[str]:
    """The queries of the dashboard and of the alert rules."""
    board = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    targets = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    rules = re.findall(r"^ +expr: (.*)$", (MONITORING / "alerts.yml").read_text(), re.MULTILINE)
    variables = [each["definition"] for each in board["templating"]["list"] if "definition" in each]
    assert len(targets) > 20
    assert len(rules) == (MONITORING / "alerts.yml").read_text().count("- alert: ")
    return targets + rules + variables


@pytest.mark.mount
def test_health(mountpoint: Path, tmp_path: Path):
    fill(tmp_path / "store" / "b", {"y.bin": CONTENT[:5000]})
    with running_server(tmp_path / "store") as server:
        options = ["--metrics-addr", "0"]
        with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
            base = where(mount)
            before, started = server.requests(), time.monotonic()
            assert all(ask(f"{base}/healthz") == (200, "ok\n") for _ in range(100))
            asked = server.requests()["health"] - before.get("health", 0)
            # One in five seconds, perhaps with another one on a new connection.
            assert asked <= 2 * (1 + (time.monotonic() - started) / KEPT_SECONDS)
            server.kill()
            assert eventually(lambda: ask(f"{base}/healthz")[0] == 503, PATIENCE)
            status, text = ask(f"{base}/healthz")
            assert status == 503
            assert text.count("\n") == 1
            assert mount.is_mounted()
            assert ask(f"{base}/metrics")[0] == 200


@pytest.mark.mount
def test_a_silent_client_holds_up_neither_the_others_nor_the_end(mountpoint: Path, tmp_path: Path):
    (tmp_path / "source").mkdir()
    options = ["--metrics-addr", "127.0.0.1:0"]
    with mounted(str(tmp_path / "source"), mountpoint, options=options) as mount:
        base = where(mount)
        address = ("127.0.0.1", int(base.rpartition(":")[2]))
        with socket.create_connection(address) as silent:
            silent.sendall(b"GET /metrics HTT")
            assert ask(f"{base}/healthz") == (200, "ok\n")  # a local directory needs no cluster
            with socket.create_connection(address) as another:
                another.sendall(b"GET ")
                subprocess.run(["fusermount3", "-u", mount.path], check=True, timeout=PATIENCE)
                assert mount.wait_until_gone(PATIENCE)


def dribble(connection: socket.socket) -> bool:
    """Send another byte of a request that never ends; return whether the server has hung up."""
    try:
        connection.sendall(b"x")
        connection.settimeout(0.5)
        return connection.recv(100) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.mount
def test_slow_clients_hold_up_nobody_and_are_cut(mountpoint: Path, tmp_path: Path):
    (tmp_path / "source").mkdir()
    with (
        mounted(str(tmp_path / "source"), mountpoint, options=["--metrics-addr", "0"]) as mount,
        ExitStack() as stack,
    ):
        base = where(mount)
        address = ("127.0.0.1", int(base.rpartition(":")[2]))
        slow = [stack.enter_context(socket.create_connection(address)) for _ in range(50)]
        for connection in slow:
            with suppress(OSError):  # it made room already
                connection.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert ask(f"{base}/healthz") == (200, "ok\n")
        assert ask(f"{base}/metrics")[0] == 200
        last = slow[-1]
        assert not dribble(last)
        assert eventually(lambda: dribble(last), PATIENCE)
        threads = len(os.listdir(f"/proc/{mount.pid}/task"))
        assert threads < 50


@pytest.mark.mount
def test_pages_cannot_lead_a_browser_to_the_counters(mountpoint: Path, tmp_path: Path):
    """A name of somebody else may resolve to our address."""
    (tmp_path / "source").mkdir()
    options = ["--metrics-addr", "localhost:0"]
    with mounted(str(tmp_path / "source"), mountpoint, options=options) as mount:
        port = where(mount).rpartition(":")[2]

        def status(host: str | None) -> int:
            lines = ["GET /metrics HTTP/1.0"] + ([] if host is None else [f"Host: {host}"])
            with socket.create_connection(("localhost", int(port))) as connection:
                connection.sendall("\r\n".join([*lines, "", ""]).encode())
                return int(connection.makefile("rb").readline().split()[1])

        good = ["127.0.0.1", f"127.0.0.1:{port}", f"[::1]:{port}", f"LocalHost:{port}", "10.1.2.3"]
        for host in (None, *good, socket.gethostname()):
            assert status(host) == 200, host
        bad = ["evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil",
               "[", "127.0.0.1@evil.example:80"]  # fmt: skip
        for host in bad:
            assert status(host) == 403, host


@pytest.mark.mount
def test_addresses_that_cannot_be(mountpoint: Path, tmp_path: Path):
    (tmp_path / "source").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = {
            str(port): "another program listens there",
            "192.0.2.1:0": "the host is not this machine",
            "no..host:0": "no such host",
            "70000": "HOST:PORT",
            "127.0.0.1": "HOST:PORT",
        }
        for address, said in refused.items():
            with (
                pytest.raises(MountFailedError) as caught,
                mounted(str(tmp_path / "source"), mountpoint, options=["--metrics-addr", address]),
            ):
                pass
            assert caught.value.returncode == USAGE
            line = caught.value.stderr.strip()
            assert line.startswith("aisfs: --metrics-addr")
            assert said in line
            assert "\n" not in line


def test_addresses():
    for given, expected in {
        "9105": ("127.0.0.1", 9105),
        ":9105": ("127.0.0.1", 9105),
        "0.0.0.0:9105": ("0.0.0.0", 9105),
        "[::1]:9105": ("::1", 9105),
        "node7:0": ("node7", 0),
    }.items():
        assert MonitoringSettings.load({"metrics_addr": given}).listen_on == expected
    assert MonitoringSettings.load({}).listen_on is None
    for bad in ("", "host", "host:", "::1:80", "http://host:80", "host:70000", "host:-1"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            MonitoringSettings.load({"metrics_addr": bad})
