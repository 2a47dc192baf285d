"""Signals that a program handles change nothing for it; those that end it also end its waits."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.support import mounts
from tests.support.mounts import environment, eventually, is_mountpoint, succeed
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

FILES = 400
BYTES = 300_000
# Calls the C library, since Python itself repeats some calls that fail with EINTR.
UNDER_A_TIMER = """
import ctypes, errno, os, signal, sys
from collections import Counter

libc = ctypes.CDLL(None, use_errno=True)
room = ctypes.create_string_buffer(1 << 20)
failures = Counter()

def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0 and ctypes.get_errno() != errno.ENODATA:
        failures[name, errno.errorcode[ctypes.get_errno()]] += 1

rung = []
signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for name in sorted(os.listdir(sys.argv[1])):
    path = os.path.join(sys.argv[1], name).encode()
    call("access", path, os.R_OK)
    call("statfs", path, room)
    call("getxattr", path, b"user.other", room, 100)
    fd = libc.open(path, os.O_RDONLY)
    call("pread", fd, room, len(room), ctypes.c_long(0))
    call("close", fd)
signal.setitimer(signal.ITIMER_REAL, 0)
assert len(rung) > 10
print(dict(failures))
"""
# Has two threads, and handles some signals in the one that waits.
WAITING = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.SIG_DFL)
for number in map(int, sys.argv[2:]):
    signal.signal(number, lambda *_: None)
    signal.siginterrupt(number, True)
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("looks", flush=True)
os.stat(sys.argv[1])
print("found", flush=True)
os._exit(0)
"""
HANDLED = (signal.SIGUSR1, signal.SIGALRM, signal.SIGTERM)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return fill(tmp_path / "source", {f"{n:04}.bin": os.urandom(BYTES) for n in range(FILES)})


@pytest.mark.parametrize("options", [[], ["--writable"]], ids=["read-only", "writable"])
def test_a_timer_disturbs_no_call(files: Path, mountpoint: Path, options: list[str]):
    with mounts.mounted(str(files), mountpoint, options=options) as mount:
        assert succeed(sys.executable, "-c", UNDER_A_TIMER, mount.path) == b"{}\n"


@contextmanager
def in_another_namespace(files: Path, mountpoint: Path, home: Path) -> Iterator[None]:
    """Mount from a PID namespace in which programs here have no number."""
    words = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", "aisfs", "mount"]
    words += [str(files), str(mountpoint), "--foreground", "--log-file", str(home / "log")]
    with subprocess.Popen(words, env=environment({}, home=home)) as process:
        try:
            assert eventually(lambda: is_mountpoint(mountpoint) or process.poll() is not None)
            yield
            succeed("umount", mountpoint)
            assert process.wait(30) == 0
        finally:
            process.kill()
            subprocess.run(["umount", "--lazy", "--quiet", mountpoint], check=False)


def test_a_timer_disturbs_no_program_that_the_daemon_cannot_see(
    files: Path, mountpoint: Path, tmp_path: Path
):
    if os.geteuid():
        pytest.skip("only root may make a PID namespace")
    (tmp_path / "home").mkdir()
    with in_another_namespace(files, mountpoint, tmp_path / "home"):
        assert succeed(sys.executable, "-c", UNDER_A_TIMER, mountpoint) == b"{}\n"


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.killpg(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(pid, signal.SIGCONT)


@contextmanager
def waiting(path: Path, *handled: int) -> Iterator[subprocess.Popen[str]]:
    """A program that waits for a name, after it has got some signals that it handles."""
    words = [sys.executable, "-c", WAITING, str(path), *map(str, map(int, handled))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "looks\n"
            time.sleep(1)
            for number in handled:
                process.send_signal(number)
            time.sleep(2)
            assert process.poll() is None, "a handled signal ended a look-up"
            yield process
        finally:
            process.kill()


@pytest.fixture
def with_server(store: Path) -> Iterator[RunningServer]:
    fill(store / "b", {"a.bin": b"content"})
    with running_server(store) as server:
        yield server


@pytest.mark.parametrize("with_it", [True, False], ids=["fastpath", "no-fastpath"])
@pytest.mark.parametrize(
    ("fatal", "handled"),
    [
        (signal.SIGINT, HANDLED),
        (signal.SIGKILL, HANDLED),
        (signal.SIGTERM, ()),
        (signal.SIGALRM, ()),
    ],
)
def test_a_signal_that_ends_a_program_ends_its_wait(
    with_server: RunningServer,
    mountpoint: Path,
    with_it: bool,
    fatal: signal.Signals,
    handled: tuple[signal.Signals, ...],
):
    server = with_server
    with mounts.mounted("ais://b", mountpoint, endpoint=server.endpoint, fastpath=with_it) as mount:
        with frozen(server.pid), waiting(mount.path / "a.bin", *handled) as process:
            process.send_signal(fatal)
            assert process.wait(15) == -fatal
        assert (mount.path / "a.bin").read_bytes() == b"content"


@pytest.mark.parametrize("with_it", [True, False], ids=["fastpath", "no-fastpath"])
def test_a_program_that_handles_ctrl_c_gets_its_answer(
    with_server: RunningServer, mountpoint: Path, with_it: bool
):
    server = with_server
    with (
        mounts.mounted("ais://b", mountpoint, endpoint=server.endpoint, fastpath=with_it) as mount,
        frozen(server.pid),
        waiting(mount.path / "a.bin", signal.SIGINT) as process,
    ):
        os.killpg(server.pid, signal.SIGCONT)
        assert process.communicate(timeout=60)[0] == "found\n"
