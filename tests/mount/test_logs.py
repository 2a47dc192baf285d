"""The log of a mount: where it goes, and what it says."""

import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.mount.cache_data import Dataset
from tests.support.mounts import Mount, aisfs, eventually, mounted
from tests.support.servers import RunningServer
from tests.support.tars import shard

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    (store / "b").mkdir(parents=True)
    (store / "b" / "x.txt").write_bytes(b"x" * 5000)
    (store / "b" / "s.tar").write_bytes(shard(["0.txt"], data=b"member"))
    return Dataset()


def lines(mount: Mount) -> list[dict[str, Any]]:
    return [json.loads(line) for line in mount.log_files[0].read_text().splitlines()]


def answered(mount: Mount, operation: str, subject: str) -> list[str]:
    return [
        line["answered_by"]
        for line in lines(mount)
        if (line.get("operation"), line.get("subject")) == (operation, subject)
        and "answered_by" in line
    ]


def test_debug_says_what_answered_each_request(
    fastpath: bool, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    options = ["--log-level", "debug", "--log-format", "json", "--cache-dir", str(tmp_path / "c")]
    for source in ("network", "disk cache"):
        with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
            assert (mount.path / "x.txt").read_bytes() == b"x" * 5000
            assert (mount.path / "s.tar.d" / "0.txt").read_bytes() == b"member"
            assert not (mount.path / "missing").exists()
            # A request is logged after it was answered.
            assert eventually(lambda: answered(mount, "lookup", "ais://b/missing"))
            assert eventually(lambda: answered(mount, "read", "ais://b/s.tar/0.txt"))
            assert eventually(lambda at=source: at in answered(mount, "read", "ais://b/x.txt"))
            for line in lines(mount):
                assert datetime.fromisoformat(line["time"]).utcoffset() == timedelta(0)
                assert line["level"] in ("debug", "info")
                assert line["logger"].startswith("aisfs.")
                assert line["message"]
                assert line.get("seconds", 0) >= 0
            assert any(line["message"].startswith("mounted ais://b on ") for line in lines(mount))


def test_a_log_that_logrotate_moves_is_begun_anew(server: RunningServer, mountpoint: Path):
    options = ["--log-level", "debug"]
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        log = mount.log_files[0]
        moved = log.rename(log.with_suffix(".1"))
        before = moved.read_text()
        assert not (mount.path / "first-after").exists()
        assert eventually(lambda: log.exists() and "lookup of ais://b/" in log.read_text())
        assert moved.read_text() == before
        assert log.stat().st_mode & 0o777 == 0o600
        log.unlink()
        assert not (mount.path / "second-after").exists()
        assert eventually(log.exists)


@pytest.mark.skipif(os.path.exists("/dev/log"), reason="the system takes the log")
def test_a_daemon_that_nobody_gave_a_log_has_one_and_says_where(
    server: RunningServer, mountpoint: Path, tmp_path: Path
):
    state = tmp_path / "state"
    words = ["mount", "ais://b", str(mountpoint), "--endpoint", server.endpoint]
    env = {"XDG_STATE_HOME": str(state), "AISFS_LOG_FILE": ""}
    try:
        done = aisfs(*words, env=env)
        assert (done.returncode, done.stdout) == (0, b"")
        (log,) = (state / "aisfs" / "log").iterdir()
        assert done.stderr.decode() == f"aisfs: the log of {mountpoint} is {log}\n"
        assert log.stat().st_mode & 0o777 == 0o600
        assert log.parent.stat().st_mode & 0o777 == 0o700
        assert f"mounted ais://b on {mountpoint}" in log.read_text()
    finally:
        aisfs("umount", mountpoint)
    assert eventually(lambda: f"unmounted {mountpoint}" in log.read_text())
    try:
        assert aisfs(*words, env=env).stderr == b"", "it was said before"
    finally:
        aisfs("umount", mountpoint)
    state.rename(tmp_path / "before")
    state.write_text("no directory")
    try:
        done = aisfs(*words, env=env)
        assert done.returncode == 0
        said = done.stderr.decode()
        assert said.startswith("aisfs: warning: there will be no log: ")
        assert said.endswith("; --log-file FILE names a place\n")
        assert (mountpoint / "x.txt").stat().st_size == 5000
    finally:
        aisfs("umount", mountpoint)


@pytest.mark.parametrize(("seconds", "named"), [("0.000001", True), ("0", False)])
def test_slow_requests(seconds: str, named: bool, server: RunningServer, mountpoint: Path):
    options = ["--slow-request", seconds]
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        assert (mount.path / "x.txt").read_bytes()
        for request in ("read", "read_range"):
            text = f"slow request: {request} of ais://b/x.txt took"
            assert eventually(lambda: (text in mount.log()) == named)  # noqa: B023
        assert "DEBUG" not in mount.log()
