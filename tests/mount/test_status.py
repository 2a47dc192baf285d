"""`aisfs status` shows the counters of a mount, and says in one line why it cannot."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.mount.test_mount_errors import MOUNTPOINT, one_line
from tests.mount.writable import writable
from tests.support.mounts import aisfs, eventually, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("status") / "store"
    fill(root / "b", {"x.txt": b"x" * 5000})
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
        assert found["mount"] == {
            "source": "ais://b",
            "endpoint": server.endpoint,
            "cache_dir": str(cache),
            "inodes": 2,
        }
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
