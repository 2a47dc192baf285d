"""`aisfs status` shows the counters of a mount, and says in one line why it cannot."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisfs import __version__
from aisfs.work.mounts import ABOUT, Asker
from tests.mount.content import fill
from tests.mount.test_mount_errors import MOUNTPOINT, one_line
from tests.mount.writable import writable
from tests.support.mounts import (
    COMMAND,
    aisfs,
    environment,
    eventually,
    mounted,
    run,
    start_aisfs,
)
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount
LONG = "long-" * 30
"""More than a line of a terminal."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("status") / "store"
    fill(root / "b", {"x.txt": b"x" * 5000, f"{LONG}/y.txt": b"y"})
    with running_server(root) as server:
        yield server


def status(mountpoint: Path, *options: str) -> dict[str, dict[str, object]]:
    done = aisfs("status", mountpoint, "--json", *options)
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_counters_of_a_mount(server: RunningServer, mountpoint: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    options = ["--cache-dir", str(cache), "--cache-size", "20MiB"]
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        before = status(mount.path)
        assert (mount.path / "x.txt").read_bytes() == b"x" * 5000
        with pytest.raises(OSError, match="Read-only"):
            (mount.path / "x.txt").write_bytes(b"y")
        found = status(mount.path)
        told = found["mount"]
        assert told.pop("uptime_seconds") >= 0
        assert told == {
            "source": "ais://b",
            "endpoint": server.endpoint,
            "cache_dir": str(cache),
            "inodes": 2,
            "pid": mount.pid,
            "version": __version__,
            "writable": False,
            "log": str(mount.log_files[0]),
            "cluster": "reachable",
        }
        assert found["cache"]["hit_percent"] == 0
        for window in ("last_10_seconds", "last_minute"):
            rates = found["rates"][window]
            assert rates["operations"] > 0
            assert rates["served_bytes"] > 0
            assert rates["fetched_bytes"] > 0
        assert 15 << 20 < found["cache"]["limit_bytes"] <= 20 << 20
        assert found["cache"]["fetched_bytes"] == 5000
        assert found["requests"]["read"] >= 1
        assert found["requests"]["getxattr"] > before["requests"].get("getxattr", 0)
        assert found["store_calls"]["read_range"] == 1
        assert "push" not in found


def test_table_has_what_json_has(server: RunningServer, mountpoint: Path):
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
        (mount.path / "x.txt").read_bytes()
        done = aisfs("status", mount.path, "--fastpath-stats")
        assert (done.returncode, done.stderr) == (0, b"")
        words = done.stdout.decode().split()
        for word in ("ais://b", server.endpoint, "lookup", "read", "answers", "push", "wasted"):
            assert word in words


@pytest.mark.parametrize(
    "words", [["--no-fastpath"], ["-o", "no_fastpath"], ["--no-lane"], ["-o", "no_lane"]], ids=str
)
def test_old_names_of_the_fast_path(server: RunningServer, mountpoint: Path, words: list[str]):
    with mounted(
        "ais://b", mountpoint, endpoint=server.endpoint, options=words, fastpath=True
    ) as mount:
        (mount.path / "x.txt").read_bytes()
        for option in ("--fastpath-stats", "--lane-stats"):
            answers = status(mount.path, option)["answers"]
            assert "read pyfuse3" in answers
            assert not [who for who in answers if who.endswith(" lane")]


def test_an_upload_under_way(tmp_path: Path):
    content = bytes(3 << 20)
    with writable(tmp_path, faulty=True) as place:
        assert place.server is not None
        # Nothing of the body is read for a while; more of it than the sockets take is still to come.
        stall = {"action": "stall", "seconds": 5.0, "stage": "headers", "times": 1}
        place.server.faults([{**stall, "match": {"method": "PUT", "marked": True}}])
        writer = threading.Thread(target=(place.path / "f").write_bytes, args=[content])
        writer.start()
        assert eventually(
            lambda: (
                status(place.path).get("uploads", {}).get("ais://b/f", {}).get("size_bytes")
                == len(content)
            )
        )
        writer.join()
        found = status(place.path)
        assert "uploads" not in found
        assert found["writing"]["sent_bytes"] == len(content)
        assert found["writing"]["staged_bytes"] == 0


def listed(place: Path) -> dict[str, object]:
    """What `aisfs status` says of one of all mounts of this machine."""
    done = aisfs("status", "--json")
    assert done.stderr == b""
    (found,) = [m for m in json.loads(done.stdout)["mounts"] if m["mountpoint"] == str(place)]
    assert isinstance(found, dict)
    if found["state"] != "serving":
        assert done.returncode == MOUNTPOINT
    return found


def test_all_mounts_and_one_that_is_stopped(server: RunningServer, mountpoint: Path):
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
        assert eventually(lambda: listed(mount.path)["state"] == "serving")
        found = listed(mount.path)
        assert found.pop("uptime_seconds") >= 0
        assert set(found.pop("rates")) == {"last_10_seconds", "last_minute"}
        assert found == {
            "mountpoint": str(mount.path),
            "source": "ais://b",
            "state": "serving",
            "pid": mount.pid,
            "version": __version__,
            "writable": False,
            "busy": False,
        }
        os.kill(mount.pid, signal.SIGSTOP)
        try:
            assert eventually(lambda: listed(mount.path)["state"] == "stopped")
            done = aisfs("status", mount.path)
            assert done.returncode == MOUNTPOINT
            assert "no answer within 10 seconds" in one_line(done.stderr)
        finally:
            os.kill(mount.pid, signal.SIGCONT)
        assert eventually(lambda: listed(mount.path)["state"] == "serving")


def test_which_mount_is_busy_is_listed_in_a_line_each(server: RunningServer, tmp_path: Path):
    busy, idle = tmp_path.resolve() / "busy", tmp_path.resolve() / "idle"
    for place in (busy, idle):
        place.mkdir()
    where = {"endpoint": server.endpoint}
    with mounted(f"ais://b/{LONG}/", busy, **where), mounted("ais://b", idle, **where):
        (busy / "y.txt").read_bytes()
        assert eventually(lambda: listed(busy)["busy"])
        assert not listed(idle)["busy"]
        done = aisfs("status")
        heading, *rows = done.stdout.decode().splitlines()
        assert heading.split() == [
            "mountpoint", "source", "state", "served/s", "fetched/s", "sent/s", "requests/s", "pid", "uptime",
            "version", "access",
        ]  # fmt: skip
        (row,) = [row for row in rows if row.startswith(f"{busy} ")]
        assert row.split()[1:3] == [f"ais://b/{LONG}/", "busy"]
        assert all(line == line.rstrip() for line in (heading, *rows))
        table = aisfs("status", busy).stdout.decode().splitlines()
        assert sum(LONG in line for line in table) == 1, "nor is what it shows of one mount wrapped"


@pytest.fixture
def silent(server: RunningServer, tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A mount whose daemon does not answer and cannot be found by its command line, and the daemon."""
    place = tmp_path.resolve() / "silent"
    place.mkdir()
    words = ("mount", "--endpoint", server.endpoint, "--log-file", "log", "ais://b", "silent")
    done = run(*COMMAND, *words, cwd=tmp_path)
    assert done.returncode == 0
    assert eventually(lambda: listed(place)["pid"])
    pid = int(str(listed(place)["pid"]))
    os.kill(pid, signal.SIGSTOP)
    yield place, pid
    os.kill(pid, signal.SIGCONT)
    assert aisfs("umount", place).returncode == 0


def test_a_mount_that_hangs_is_asked_once_and_not_waited_for(
    server: RunningServer, mountpoint: Path, silent: tuple[Path, int]
):
    place, pid = silent
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount, Asker() as asker:
        places = [place, mount.path]
        assert asker.ask(places[:1], ABOUT, 0.5) == [None]
        for _ in range(3):  # as long as it takes, and yet it returns
            hanging, other = asker.ask(places, ABOUT, None)
            assert (hanging, type(other)) == (None, bytes)
        assert listed(place)["state"] == "hanging"
        assert "if it hangs, detach it with: aisfs umount --lazy" in aisfs("status").stdout.decode()
        os.kill(pid, signal.SIGCONT)
        assert eventually(lambda: isinstance(asker.ask(places[:1], ABOUT, 0.5)[0], bytes))


def test_a_cluster_that_is_gone(tmp_path: Path, mountpoint: Path):
    fill(tmp_path / "store" / "b", {"x": b"x"})
    with (
        running_server(tmp_path / "store") as server,
        mounted("ais://b", mountpoint, endpoint=server.endpoint, expected_log=[".*"]) as mount,
    ):
        server.kill()
        assert eventually(lambda: status(mount.path)["mount"]["cluster"] != "reachable")


def test_watching_until_ctrl_c(server: RunningServer, mountpoint: Path, tmp_path: Path):
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
        for number, words in enumerate(
            (["top", "--interval", "0.2"], ["status", "--watch", "0.2"])
        ):
            said = tmp_path / str(number)
            with said.open("wb") as output:
                process = start_aisfs(*words, str(mount.path), output=output, env=environment())
            assert eventually(lambda said=said: said.read_text().count("last minute") >= 2)
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(60) == 130
            assert "Traceback" not in said.read_text()


def test_no_mount(tmp_path: Path):
    for place in (tmp_path, tmp_path / "missing"):
        done = aisfs("status", place)
        assert done.returncode == MOUNTPOINT
        assert "is not a mountpoint" in one_line(done.stderr)


def test_mount_of_something_else():
    done = aisfs("status", "/proc")
    assert done.returncode == MOUNTPOINT
    assert "not of aisfs" in one_line(done.stderr)


def test_daemon_that_died(server: RunningServer, mountpoint: Path):
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
        os.kill(mount.pid, signal.SIGKILL)
        assert eventually(lambda: not mount.living())
        done = aisfs("status", mount.path)
        assert done.returncode == MOUNTPOINT
        assert "aisfs umount" in one_line(done.stderr)
