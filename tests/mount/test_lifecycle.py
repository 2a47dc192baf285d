"""Mounting returns when ready; umount, signals and even kill -9 leave a place to mount again."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.mount.content import fill, payload
from tests.support.mounts import (
    COMMAND,
    aisfs,
    daemons,
    environment,
    eventually,
    is_mountpoint,
    mounted,
    run,
    succeed,
)
from tests.support.servers import RunningServer, running_server
from tests.support.tars import END, entry

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("lifecycle") / "store"
    fill(root / "b", {"x.txt": b"x", "big.bin": payload(4 << 20)})
    with running_server(root) as server:
        yield server


def test_the_mount_is_ready_when_the_command_returns(server: RunningServer, mountpoint: Path):
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
        assert sorted(os.listdir(mount.path)) == ["big.bin", "x.txt"]
        assert len(mount.pids) == 1


def test_the_command_says_nothing_and_keeps_no_pipe(server: RunningServer, mountpoint: Path):
    """`$(aisfs mount …)` would hang for as long as the daemon holds the pipe."""
    command = [*COMMAND, "mount", "ais://b", str(mountpoint), "--endpoint", server.endpoint]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True,
            env=environment({"AISFS_LOG_FILE": os.devnull, "AISFS_KEEPER": "yes"}), timeout=60,
            check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert is_mountpoint(mountpoint)
        pids = daemons(mountpoint)
        assert len(pids) == 2, "the daemon and its keeper"
        for pid in pids:
            assert os.getsid(pid) != os.getsid(0), "it still belongs to the caller's session"
            assert os.readlink(f"/proc/{pid}/cwd") == "/", "it keeps a directory busy"
    finally:
        done = aisfs("umount", mountpoint)
    assert (done.returncode, done.stderr) == (0, b"")
    assert eventually(lambda: not daemons(mountpoint))


def test_umount(server: RunningServer, mountpoint: Path):
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
        done = aisfs("umount", mount.path)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert not mount.is_mounted()
        assert mount.wait_until_gone()
    assert os.listdir(mountpoint) == []


@pytest.mark.parametrize("options", [(), ("--writable",), ("--no-fastpath",)])
def test_the_daemon_has_ended_when_umount_returns(
    server: RunningServer, mountpoint: Path, options: tuple[str, ...], tmp_path: Path
):
    """The disk of its cache can be unmounted, and the next mount can have its directories."""
    for _ in range(3):
        with mounted("ais://b", mountpoint, options=options, endpoint=server.endpoint) as mount:
            assert (mount.path / "x.txt").read_bytes() == b"x"
            succeed(*COMMAND, "umount", mount.path)
            assert mount.living() == []


def test_umount_with_the_tools_of_the_system(server: RunningServer, mountpoint: Path):
    for command in (["fusermount3", "-u"], ["umount"]):
        with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
            succeed(*command, mount.path)
            assert mount.wait_until_gone()


def test_mounting_again_and_again(server: RunningServer, mountpoint: Path):
    for _ in range(3):
        with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
            assert (mount.path / "x.txt").read_bytes() == b"x"


def test_umount_of_what_is_not_mounted(mountpoint: Path):
    for path in (mountpoint, mountpoint / "nowhere"):
        done = aisfs("umount", path)
        assert done.returncode == 7
        assert done.stderr.startswith(b"aisfs: ")
        assert done.stderr.count(b"\n") == 1
        assert b"is not a mountpoint" in done.stderr


def test_umount_of_what_is_not_ours(mountpoint: Path):
    succeed("mount", "-t", "tmpfs", "none", mountpoint)
    try:
        for path in (mountpoint, Path("/proc")):
            done = aisfs("umount", path)
            assert (done.returncode, done.stdout) == (7, b"")
            assert done.stderr.endswith(b", not of aisfs\n")
        assert is_mountpoint(mountpoint)
    finally:
        succeed("umount", mountpoint)


@pytest.mark.parametrize("path", ["fusermount3", "mount(2)"])
def test_a_busy_mount_names_who_uses_it(
    server: RunningServer, mountpoint: Path, path: str, tmp_path: Path
):
    with ExitStack() as stack:
        mount = stack.enter_context(mounted("ais://b", mountpoint, endpoint=server.endpoint))
        users = []
        for where in ({"cwd": mount.path}, {"pass_fds": [os.open(mount.path / "x.txt", 0)]}):
            # They wait for the end of their input.
            user = stack.enter_context(subprocess.Popen(["cat"], stdin=subprocess.PIPE, **where))
            users.append(user)
            for descriptor in where.get("pass_fds", ()):
                os.close(descriptor)
        env = {} if path == "fusermount3" else {"PATH": str(tmp_path)}  # root needs none
        done = aisfs("umount", mount.path, env=env)
        assert (done.returncode, done.stdout) == (7, b"")
        (line,) = done.stderr.decode().splitlines()
        for user in users:
            assert f"process {user.pid} (cat)" in line
        assert f"aisfs umount --lazy {mountpoint}" in line
        assert str(mount.pid) not in line.split()
        for user in users:
            user.communicate()
        done = aisfs("umount", mount.path, env=env)
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_mount_below_keeps_a_mount_busy(tmp_path: Path, mountpoint: Path):
    (tmp_path / "source" / "inner").mkdir(parents=True)
    with mounted(str(tmp_path / "source"), mountpoint) as mount:
        succeed("mount", "-t", "tmpfs", "none", mountpoint / "inner")
        try:
            done = aisfs("umount", mount.path)
            assert done.returncode == 7
            assert f"{mountpoint}/inner is mounted below it" in done.stderr.decode()
        finally:
            succeed("umount", mountpoint / "inner")


def test_umount_by_a_link(server: RunningServer, mountpoint: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(mountpoint)
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
        assert aisfs("umount", tmp_path / "link").returncode == 0
        assert mount.wait_until_gone()


def test_lazy_umount_of_a_daemon_that_stands_still(
    server: RunningServer, mountpoint: Path, tmp_path: Path
):
    (tmp_path / "other").symlink_to(mountpoint)
    (tmp_path / "link").symlink_to("other")
    options = ["--attr-ttl", "0", "--list-ttl", "0"]
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        os.kill(mount.pid, signal.SIGSTOP)
        try:
            done = aisfs("umount", "-z", tmp_path / "link", timeout=20)
            assert (done.returncode, done.stderr) == (0, b"")
            assert not mount.is_mounted()
        finally:
            os.kill(mount.pid, signal.SIGCONT)
        assert mount.wait_until_gone()


def test_umount_while_a_file_is_open(server: RunningServer, mountpoint: Path):
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
        with open(mount.path / "x.txt", "rb") as file:
            done = aisfs("umount", mount.path)
            assert done.returncode == 7
            assert done.stderr.startswith(b"aisfs: ")
            assert done.stderr.count(b"\n") == 1
            assert mount.is_mounted()
            assert file.read() == b"x"
        assert (mount.path / "x.txt").read_bytes() == b"x"


def test_lazy_umount_while_a_file_is_open(server: RunningServer, mountpoint: Path):
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
        with open(mount.path / "big.bin", "rb", buffering=0) as file:
            assert file.read(1000) == payload(4 << 20)[:1000]
            done = aisfs("umount", mount.path, "--lazy")
            assert (done.returncode, done.stderr) == (0, b"")
            assert not mount.is_mounted()
            assert os.listdir(mountpoint) == []
            assert file.readall() == payload(4 << 20)[1000:]
        assert mount.wait_until_gone(), "the daemon stays after the last file was closed"


def test_a_daemon_that_ends_late_leaves_the_next_mount_alone(
    server: RunningServer, mountpoint: Path
):
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
        file = os.open(mount.path / "x.txt", os.O_RDONLY)
        assert aisfs("umount", mount.path, "--lazy").returncode == 0
        with mounted("ais://b", mountpoint, endpoint=server.endpoint, foreground=True) as following:
            os.close(file)
            assert eventually(lambda: not mount.living())
            assert following.is_mounted()
            assert (following.path / "x.txt").read_bytes() == b"x"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
@pytest.mark.parametrize("foreground", [False, True], ids=["daemon", "foreground"])
def test_signals(number: signal.Signals, foreground: bool, server: RunningServer, mountpoint: Path):
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, foreground=foreground) as mount:
        assert (mount.path / "x.txt").read_bytes() == b"x"
        os.kill(mount.pid, number)
        assert mount.wait_until_gone()
        if mount.process is not None:
            assert mount.process.wait(10) == 0
    assert os.listdir(mountpoint) == []


def test_nohup_keeps_a_mount(server: RunningServer, mountpoint: Path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with mounted("ais://b", mountpoint, endpoint=server.endpoint, foreground=True) as mount:
            os.kill(mount.pid, signal.SIGHUP)
            assert (mount.path / "x.txt").read_bytes() == b"x"
            assert mount.living()
            assert mount.is_mounted()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_while_a_file_is_open(server: RunningServer, mountpoint: Path):
    """The daemon must go although the place is busy; the reader gets an error, not a hang."""
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
        fd = os.open(mount.path / "big.bin", os.O_RDONLY)
        try:
            assert len(os.read(fd, 1000)) == 1000
            os.kill(mount.pid, signal.SIGTERM)
            assert eventually(lambda: not mount.is_mounted())
        finally:
            with suppress(OSError):  # the daemon may be gone before it hears of the close
                os.close(fd)
        assert mount.wait_until_gone()


def test_a_signal_amid_reads(server: RunningServer, mountpoint: Path):
    script = 'while cat "$1/big.bin" >/dev/null 2>&1; do :; done'
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
        threads = [
            threading.Thread(target=run, args=("sh", "-c", script, "sh", str(mount.path)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        succeed("cat", mount.path / "big.bin")
        os.kill(mount.pid, signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert mount.wait_until_gone()


def test_after_kill_9_the_next_mount_recovers_the_place(server: RunningServer, mountpoint: Path):
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as dead:
        os.kill(dead.pid, signal.SIGKILL)
        assert eventually(lambda: not dead.living())
        assert run("stat", mountpoint, timeout=20).returncode in (0, 1)  # answers either way
        with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
            assert sorted(os.listdir(mount.path)) == ["big.bin", "x.txt"]
            assert mount.pid != dead.pid
        assert not is_mountpoint(mountpoint), "the dead mount is still below"


def test_umount_after_kill_9(server: RunningServer, mountpoint: Path):
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
        os.kill(mount.pid, signal.SIGKILL)
        assert eventually(lambda: not mount.living())
        if mount.is_mounted():
            done = aisfs("umount", mount.path)
            assert (done.returncode, done.stderr) == (0, b"")
        assert not mount.is_mounted()
    assert os.listdir(mountpoint) == []


def test_two_mounts_of_one_bucket(server: RunningServer, tmp_path: Path):
    places = [tmp_path.resolve() / name for name in ("one", "two")]
    for place in places:
        place.mkdir()
    with (
        mounted("ais://b", places[0], endpoint=server.endpoint) as one,
        mounted("ais://b", places[1], endpoint=server.endpoint) as two,
    ):
        assert (one.path / "x.txt").read_bytes() == (two.path / "x.txt").read_bytes() == b"x"
        assert aisfs("umount", one.path).returncode == 0
        assert (two.path / "big.bin").read_bytes() == payload(4 << 20)


def test_the_foreground_log_goes_to_stderr(server: RunningServer, mountpoint: Path):
    command = [*COMMAND, "mount", "--foreground", "--log-level", "info", "ais://b", str(mountpoint)]
    with open(mountpoint.parent / "stderr", "wb") as stderr:
        process = subprocess.Popen(
            [*command, "--endpoint", server.endpoint], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=stderr, env=environment(),
        )  # fmt: skip
    try:
        assert eventually(lambda: is_mountpoint(mountpoint) or process.poll() is not None, 60)
        assert succeed("cat", mountpoint / "x.txt", timeout=30) == b"x"
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(20)
        run("fusermount3", "-uz", mountpoint)
    log = (mountpoint.parent / "stderr").read_text()
    assert log.strip()
    assert "Traceback" not in log
    assert str(mountpoint) in log


def test_the_log_file_has_what_the_level_asks_for(server: RunningServer, mountpoint: Path):
    sizes = {}
    for level in ("debug", "info", "error"):
        options = ("--log-level", level)
        with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
            (mount.path / "x.txt").read_bytes()
            os.path.exists(mount.path / "missing")
            succeed("ls", "-l", mount.path)
            with suppress(OSError):
                os.getxattr(mount.path, "user.ais.none")
            sizes[level] = len(mount.log())
    assert sizes["debug"] > sizes["info"] > sizes["error"] == 0


EPOCH = """
import os, sys
for shard in sys.argv[1:]:
    for member in os.listdir(shard):
        fd = os.open(f"{shard}/{member}", os.O_RDONLY)
        os.read(fd, 4096)
        os.close(fd)
"""


def guardians(mountpoint: Path) -> int:
    found = run("pgrep", "-f", "-c", "--", f"^sh -c .* aisfs-guardian .* {mountpoint} ")
    return int(found.stdout)


def test_readers_are_freed_when_the_daemon_is_killed(
    tmp_path: Path, mountpoint: Path, fastpath: bool
):
    """Now and then the kill meets a thread that stores a page which the reader waits for."""
    member = b"".join(entry(b"%05d" % row, bytes(1000)) for row in range(5000)) + END
    fill(tmp_path / "store" / "b", {f"{n}.tar": member for n in range(8)})
    with running_server(tmp_path / "store") as server:
        for number in range(3):
            with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
                assert guardians(mountpoint) == fastpath
                shards = [str(mount.path / f"{n}.tar.d") for n in range(8)]
                reader = subprocess.Popen(
                    [sys.executable, "-c", EPOCH, *shards], stderr=subprocess.DEVNULL
                )
                with suppress(subprocess.TimeoutExpired):
                    reader.wait(0.3 + 0.2 * number)
                os.kill(mount.pid, signal.SIGKILL)
                reader.wait(20)
                assert eventually(lambda: not guardians(mountpoint))
                with pytest.raises(OSError, match="not connected"):
                    os.statvfs(mountpoint)
                assert aisfs("umount", mountpoint).returncode == 0
