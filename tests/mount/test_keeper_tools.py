"""Commands know the two processes of a mount: the daemon, and the keeper that starts it again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisfs.fuse.mountpoint import what_keeps_busy
from aisfs.work.mounts import ABOUT, Keeper, State, daemons, keepers, read_counters
from tests.mount.content import fill
from tests.support.mounts import (
    COMMAND,
    Mount,
    aisfs,
    environment,
    eventually,
    is_mountpoint,
    mounted,
    python,
    run,
)
from tests.support.servers import running_server

pytestmark = pytest.mark.timeout(300)

EXPECTED = [
    r"this daemon goes on with the mount",
    r"ERROR aisfs\.",
    r"WARNING aisfs\.(stores|http|engine)",
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    (root / "x.txt").write_bytes(b"x")
    return root


@pytest.fixture
def waiting(tmp_path: Path, mountpoint: Path) -> Iterator[Mount]:
    """A mount whose daemon was killed, and cannot be started again since the cluster is away."""
    fill(tmp_path / "store" / "b", {"x.txt": b"x"})
    with running_server(tmp_path / "store") as server:
        away = server.endpoint
        options = ["--io-timeout", "1", "--cache-size", "0"]
        with mounted(
            "ais://b",
            mountpoint,
            endpoint=away,
            options=options,
            keeper=True,
            expected_log=EXPECTED,
        ) as mount:
            assert (mountpoint / "x.txt").read_bytes() == b"x"
            server.kill()
            os.kill(mount.daemon_now(), signal.SIGKILL)
            assert eventually(lambda: keepers()[str(mountpoint)] == Keeper(mount.keeper, True))
            yield mount


def listed(mount: Mount) -> dict[str, object]:
    found = json.loads(aisfs("status", "--json").stdout)["mounts"]
    return next(each for each in found if each["mountpoint"] == str(mount.path))


def test_both_are_found_by_their_command_lines(data: Path, mountpoint: Path) -> None:
    with mounted(str(data), mountpoint, keeper=True) as mount:
        assert daemons()[str(mountpoint)].pid == mount.pid
        keeper = Keeper(mount.keeper, restarting=False)  # it may still be starting
        assert eventually(lambda: keepers().get(str(mountpoint)) == keeper)
        told = json.loads(aisfs("status", "--json", mountpoint).stdout)["mount"]
        assert (told["pid"], told["keeper"], told["restarts"]) == (mount.pid, mount.keeper, 0)
        assert listed(mount)["pid"] == mount.pid


def test_each_restart_is_counted_and_told(data: Path, mountpoint: Path) -> None:
    with mounted(str(data), mountpoint, keeper=True, expected_log=EXPECTED) as mount:
        assert read_counters(mountpoint).value("aisfs_restarts_total") == 0
        for count in (1, 2):
            os.kill(mount.daemon_now(), signal.SIGKILL)
            assert read_counters(mountpoint).value("aisfs_restarts_total") == count
            told = json.loads(aisfs("status", "--json", mountpoint).stdout)
            assert told["mount"]["restarts"] == count
            assert f"(restart {count}): process " in told["warnings"][-1]["text"]
        said = aisfs("upgrade", mountpoint).stdout.decode()
        assert f" goes on as {mount.daemon_now()} " in said
        assert read_counters(mountpoint).value("aisfs_restarts_total") == 2


def test_as_the_first_process_of_a_container_it_leaves_no_zombie(
    data: Path, mountpoint: Path
) -> None:
    words = ["unshare", "--pid", "--fork", "--kill-child", *COMMAND]
    words += ["mount", "-f", "--cache-size", "0", str(data), str(mountpoint)]
    kept = environment({"AISFS_KEEPER": "yes"})
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, env=kept) as first:
        try:
            assert eventually(lambda: str(mountpoint) in keepers() and is_mountpoint(mountpoint))
            keeper = keepers()[str(mountpoint)].pid
            for _ in range(2):
                python("import os, sys; os.getxattr(sys.argv[1], sys.argv[2])", mountpoint, ABOUT)
                assert eventually(lambda: len(children(keeper)) == 1), "a zombie is left"
                os.kill(int(*children(keeper)), signal.SIGKILL)
            os.kill(keeper, signal.SIGTERM)
            assert first.wait(60) == 0
        finally:
            first.kill()  # and with it all in its namespace
    assert not is_mountpoint(mountpoint)


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_umount_waits_for_both(data: Path, mountpoint: Path) -> None:
    with mounted(str(data), mountpoint, keeper=True) as mount:
        done = aisfs("umount", mountpoint)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert not mount.living()
        assert not os.path.exists(f"/proc/{mount.keeper}")


def test_a_mount_that_waits_for_its_cluster_is_told_and_unmounted(waiting: Mount) -> None:
    assert listed(waiting)["state"] == State.RESTARTING
    done = aisfs("status")
    assert done.returncode == 7
    said = (
        f"{waiting.path}: its daemon has died, and another one cannot go on yet: its log says why"
    )
    assert said in done.stdout.decode()
    done = aisfs("status", waiting.path)
    assert done.returncode == 7
    assert b"its daemon has died, and another one cannot go on yet" in done.stderr
    assert b"another one cannot go on yet" in aisfs("doctor").stdout
    done = aisfs("umount", waiting.path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert not is_mountpoint(waiting.path)
    assert not os.path.exists(f"/proc/{waiting.keeper}")


def test_lazily_unmounted_its_readers_get_an_error(waiting: Mount) -> None:
    words = [sys.executable, "-c", "import os, sys; os.listdir(sys.argv[1])", str(waiting.path)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, env=environment()) as reader:
        assert eventually(lambda: "mnt" in Path(f"/proc/{reader.pid}/cmdline").read_text())
        done = aisfs("umount", "--lazy", waiting.path)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        os.kill(waiting.keeper, signal.SIGTERM)
        reader.wait(60)
    assert waiting.wait_until_gone()


def test_sigterm_unmounts_what_no_daemon_can(waiting: Mount) -> None:
    os.kill(waiting.keeper, signal.SIGTERM)
    assert waiting.wait_until_gone()


def test_nothing_of_ours_keeps_the_mount_busy(data: Path, mountpoint: Path) -> None:
    """Also where it was mounted from inside of the directory, as the command line says."""
    source = os.path.relpath(data, mountpoint)
    with mounted(source, mountpoint, keeper=True, cwd=mountpoint, expected_log=EXPECTED) as mount:
        os.kill(mount.daemon_now(), signal.SIGKILL)
        assert run("cat", mountpoint / "x.txt").stdout == b"x"
        assert mount.daemon_now() != mount.pid
        assert what_keeps_busy(mountpoint).startswith("no program")
