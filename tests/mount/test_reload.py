"""SIGHUP: the configuration files are read again, and the mount stays."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.mount.cache_data import Dataset
from tests.support.mounts import aisfs, daemons, eventually, is_mountpoint
from tests.support.servers import RunningServer

pytestmark = pytest.mark.mount

TTLS = "attr-ttl = {0}\nlist-ttl = {0}\nnegative-ttl = {0}"


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    (store / "b").mkdir(parents=True)
    (store / "b" / "x.txt").write_bytes(b"x")
    return Dataset()


@pytest.fixture
def profile(server: RunningServer, mountpoint: Path, tmp_path: Path):
    """What writes the profile, what mounts it, and what reloads it."""
    config = tmp_path / "config.toml"
    log = tmp_path / "log"

    def write(*lines: str) -> None:
        head = [f'endpoint = "{server.endpoint}"', "[profiles.p]", 'source = "ais://b"']
        config.write_text("\n".join([*head, *lines]) + "\n")

    def mount(*words: str) -> int:
        words = (
            "mount",
            "@p",
            str(mountpoint),
            "--config",
            config.name,
            "--cache-size",
            "0",
            *words,
        )
        done = aisfs(*words, env={"AISFS_LOG_FILE": ""}, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, b"")
        (pid,) = daemons(mountpoint)
        return pid

    yield write, mount, log
    aisfs("umount", "--lazy", mountpoint)
    assert eventually(lambda: not daemons(mountpoint))


def test_sighup_reloads_log_and_times_to_live(
    profile, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    write, mount, log = profile
    write(TTLS.format(600), f'log-file = "{log}"', "read-ahead-max = 0")
    pid = mount("--log-level", "info", "--max-connections", "7")
    assert os.listdir(mountpoint) == ["x.txt"]
    for name in ("one", "two"):
        (server.root / "b" / name).write_bytes(b"new")
    assert not (mountpoint / "one").exists()

    other = tmp_path / "other"
    text = [TTLS.format(0.1), f'log-file = "{other}"', 'log-level = "error"', "max-connections = 5"]
    write(*text, "read-ahead-max = 5000000")
    os.kill(pid, signal.SIGHUP)
    assert eventually(lambda: other.exists() and "read-ahead-max" in other.read_text())
    said = other.read_text()
    assert "INFO aisfs.commands.mount_start: the configuration was reloaded" in said
    where = re.escape(f"{tmp_path / 'config.toml'}, line 10")
    assert re.search(rf"WARNING .* {where}: read-ahead-max cannot change until", said)
    assert "max-connections" not in said, "what was typed wins"
    assert eventually((mountpoint / "two").exists)
    status = aisfs("status", "--json", mountpoint).stdout.decode()
    assert "read-ahead-max cannot change" in status, "warnings are still kept"

    for broken, complaint in (
        ("list-ttl = -5", r"line 4: --list-ttl: .*-5"),
        ("list-tl = 5", r"line 4: unknown option 'list-tl'; did you mean list-ttl"),
        ("list-ttl = = 5", r"line 4"),
    ):
        write(broken)
        before = len(other.read_text())
        os.kill(pid, signal.SIGHUP)
        assert eventually(lambda at=before: len(other.read_text()) > at)
        said = other.read_text()[before:]
        assert "ERROR" in said
        assert re.search(rf"the configuration was not reloaded: .*config.toml.*{complaint}", said)
    assert is_mountpoint(mountpoint)
    assert (mountpoint / "x.txt").read_bytes() == b"x"
    assert daemons(mountpoint) == [pid]


def test_sighup_changes_the_level(profile, mountpoint: Path):
    write, mount, log = profile
    write(f'log-file = "{log}"', 'log-level = "error"')
    pid = mount()
    assert (mountpoint / "x.txt").read_bytes() == b"x"
    assert log.read_text() == ""
    write(f'log-file = "{log}"', 'log-level = "debug"')
    os.kill(pid, signal.SIGHUP)
    assert eventually(lambda: "was reloaded" in log.read_text())
    assert not (mountpoint / "missing").exists()
    assert eventually(lambda: "lookup of ais://b/missing took" in log.read_text())
