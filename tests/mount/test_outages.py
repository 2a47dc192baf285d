"""A server that is slow, broken or gone: every wait ends, nothing hangs, and it works again."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from aisfs.commands.options import Exit
from tests.mount.cache_tools import big_directory
from tests.mount.content import fill, payload
from tests.mount.faulty_stores import STORES, FaultyStore, Rule, faulty_store
from tests.support.mounts import (
    COMMAND,
    COMMAND_LIMIT,
    Mount,
    MountFailedError,
    environment,
    eventually,
    mounted,
    run,
)

pytestmark = pytest.mark.mount

SIZE = 24 << 20
QUICK = ("--io-timeout", "3", "--attr-ttl", "1", "--list-ttl", "1", "--negative-ttl", "0")
HANGS = 60
"""Seconds after which a reader with a deadline of 3 s counts as hung."""
BIG = payload(SIZE)
OBJECTS = {"big.bin": BIG, "d/x.txt": b"x", "d/y.txt": b"y"}
READER = """
import errno, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
os.pread(fd, 100_000, 0)
print("reading", flush=True)
sys.stdin.readline()
step = min(1 << 20, int(sys.argv[4]) - int(sys.argv[2]))
for offset in range(int(sys.argv[2]), int(sys.argv[4]), step):
    try:
        data = os.pread(fd, step, offset)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
        break
    with open(sys.argv[3], "rb") as expected:
        expected.seek(offset)
        if expected.read(len(data)) != data:
            print("wrong bytes", flush=True)
            break
else:
    print("complete", flush=True)
"""
FAILED = {"EIO", "ETIMEDOUT"}


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[FaultyStore]:
    with big_directory() as directory:
        directory.chmod(0o755)
        with faulty_store(request.param, directory / "store", OBJECTS) as store:
            yield store


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is read, in a file."""
    path = tmp_path_factory.mktemp("outages") / "expected"
    path.write_bytes(BIG)
    return path


class Reader:
    """A process in the middle of reading a file; it compares what it reads."""

    def __init__(
        self, path: Path, expected: Path, start: int = SIZE // 2, stop: int = SIZE
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, str(path), str(start), str(expected), str(stop)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout.readline() == "reading\n"

    def finish(self) -> str:
        """Let it read on; how it ended."""
        return self.process.communicate("go\n", timeout=HANGS)[0].strip()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)


def works(mount: Mount) -> bool:
    return run("ls", mount.path / "d").stdout == b"x.txt\ny.txt\n"


def test_the_server_is_killed_in_the_middle_of_a_read(
    store: FaultyStore, mountpoint: Path, expected: Path
):
    """Nobody listens there for a while."""
    with store.mounted(mountpoint, *QUICK) as mount:
        with Reader(mount.path / "big.bin", expected) as reader, store.gone():
            assert reader.finish() in FAILED
            assert run("ls", mount.path / "d", timeout=HANGS).returncode != 0
        assert eventually(lambda: works(mount), 30)
        assert (mount.path / "d" / "x.txt").read_bytes() == b"x"
        assert (mount.path / "big.bin").read_bytes() == BIG


def test_a_reader_survives_a_short_outage(store: FaultyStore, mountpoint: Path, expected: Path):
    with (
        store.mounted(mountpoint, "--io-timeout", "60") as mount,
        Reader(mount.path / "big.bin", expected) as reader,
    ):
        with store.gone():
            reader.process.stdin.write("go\n")
            reader.process.stdin.flush()
        assert reader.process.communicate(timeout=HANGS)[0].strip() == "complete"


@contextmanager
def frozen(store: FaultyStore) -> Iterator[None]:
    """Connections stay open and are accepted by the kernel; not a byte comes back."""
    os.killpg(store.server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(store.server.pid, signal.SIGCONT)


def test_a_server_that_stops_answering(store: FaultyStore, mountpoint: Path, expected: Path):
    with store.mounted(mountpoint, *QUICK) as mount:
        with Reader(mount.path / "big.bin", expected) as reader, frozen(store):
            assert reader.finish() in FAILED
            done = run("cat", mount.path / "d" / "x.txt", timeout=HANGS)
            assert done.returncode == 1
            assert b"Connection timed out" in done.stderr or b"Input/output" in done.stderr
            assert run("ls", mount.path / "d", timeout=HANGS).returncode != 0
        assert eventually(lambda: works(mount), 30)
        assert (mount.path / "big.bin").read_bytes() == BIG


def test_the_first_answer_of_a_silent_server_takes_one_deadline(
    store: FaultyStore, mountpoint: Path
):
    """The kernel reads a page a second time after an error."""
    options = ("--io-timeout", "3", "--list-ttl", "600", "--attr-ttl", "600")
    with store.mounted(mountpoint, *options) as mount:
        run("ls", "-l", mount.path / "d")
        with frozen(store):
            done = run("cat", mount.path / "d" / "x.txt", timeout=HANGS)
        assert done.returncode != 0
        assert b"Connection timed out" in done.stderr
        assert "not asked again at once" in mount.log()


def test_a_reader_can_be_killed_while_it_waits(
    store: FaultyStore, mountpoint: Path, expected: Path
):
    with store.mounted(mountpoint, "--io-timeout", "30") as mount:
        with Reader(mount.path / "big.bin", expected) as reader, frozen(store):
            reader.process.stdin.write("go\n")
            reader.process.stdin.flush()
            with pytest.raises(subprocess.TimeoutExpired):
                reader.process.wait(1)
            reader.process.kill()
            assert reader.process.wait(20) == -signal.SIGKILL
        assert (mount.path / "d" / "x.txt").read_bytes() == b"x"


def test_umount_while_the_server_is_silent(store: FaultyStore, mountpoint: Path):
    with store.mounted(mountpoint, *QUICK) as mount, frozen(store):
        os.kill(mount.pid, signal.SIGTERM)
        assert mount.wait_until_gone(HANGS)


def test_a_listing_that_fails_is_an_error_and_not_an_empty_directory(
    store: FaultyStore, mountpoint: Path
):
    with store.mounted(mountpoint, *QUICK) as mount, store.gone():
        done = run("ls", mount.path, timeout=HANGS)
        assert done.returncode != 0
        assert done.stdout == b""
        failed = run("stat", mount.path / "d" / "x.txt", timeout=HANGS)
        assert failed.returncode == 1
        assert b"No such file" not in failed.stderr


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "silent"])
def test_mounting_without_the_server(store: FaultyStore, silent: bool, mountpoint: Path):
    """It says so in one line, and in time."""
    with (
        frozen(store) if silent else store.gone(),
        pytest.raises(MountFailedError) as caught,
        store.mounted(mountpoint, "--io-timeout", "3"),
    ):
        pass
    assert caught.value.returncode == Exit.UNREACHABLE
    assert caught.value.stderr.count("\n") == 1, caught.value.stderr


def test_a_file_that_is_replaced_while_it_is_read(
    store: FaultyStore, mountpoint: Path, expected: Path
):
    """Its reader gets no byte of the other version, and whoever opens it anew all of it."""
    store.put("replaced.bin", BIG)
    with store.mounted(mountpoint, *QUICK) as mount:
        with Reader(mount.path / "replaced.bin", expected) as reader:
            store.put("replaced.bin", BIG[::-1])
            assert reader.finish() == "ESTALE"
        assert eventually(lambda: (mount.path / "replaced.bin").read_bytes() == BIG[::-1])


@pytest.mark.parametrize(
    "rule",
    [
        {"action": "stall", "seconds": 45, "until_cleared": True},
        # Of more, a reader goes on: see below.
        {"action": "stall", "seconds": 45, "until_cleared": True, "fraction": 0.02},
        {"action": "drip", "piece": 64, "seconds": 0.5},
        {"action": "truncate"},
        {"action": "status", "status": 503},
        {"action": "reset"},
    ],
    ids=["stall", "stall amid the body", "drip", "truncate", "503", "reset"],
)
def test_bytes_that_do_not_come(rule: Rule, store: FaultyStore, mountpoint: Path, expected: Path):
    with store.mounted(mountpoint, *QUICK) as mount:
        with (
            Reader(mount.path / "big.bin", expected) as reader,
            store.failing({**rule, "match": store.bytes_of("big.bin")}),
        ):
            assert reader.finish() in FAILED
        with open(mount.path / "big.bin", "rb") as file:
            assert file.read(3 << 20) == BIG[: 3 << 20]


def test_a_server_that_sends_half_of_each_body(
    store: FaultyStore, mountpoint: Path, expected: Path
):
    """What came is read, or the read fails within its time; the rest is waited for by nobody.

    The kernel goes on where a READ failed, page by page at worst: 32 of them are read.
    """
    half = {"action": "stall", "seconds": 45, "until_cleared": True, "fraction": 0.5}
    with store.mounted(mountpoint, *QUICK, "--io-timeout", "1") as mount:
        with (
            Reader(mount.path / "big.bin", expected, stop=SIZE // 2 + (128 << 10)) as reader,
            store.failing({**half, "match": store.bytes_of("big.bin")}),
        ):
            assert reader.finish() in FAILED | {"complete"}
        assert (mount.path / "big.bin").read_bytes() == BIG


def test_aisfs_serve(tmp_path: Path, mountpoint: Path):
    """The one test that starts the server as a user does."""
    fill(tmp_path / "data" / "pets", {"x.txt": b"x"})
    fill(tmp_path / "data" / "toys", {"d/y.txt": b"y"})
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            [*COMMAND, "serve", "./data", "--port", str(port)], cwd=tmp_path,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(),
            start_new_session=True,
        )  # fmt: skip
    try:
        assert eventually(lambda: answers(endpoint), COMMAND_LIMIT), (tmp_path / "log").read_text()
        with mounted(None, mountpoint, endpoint=endpoint) as mount:
            assert sorted(os.listdir(mount.path / "ais")) == ["pets", "toys"]
            assert (mount.path / "ais" / "toys" / "d" / "y.txt").read_bytes() == b"y"
        process.terminate()
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)
    log_text = (tmp_path / "log").read_text()
    assert "127.0.0.1" in log_text
    assert str(port) in log_text
    assert "Traceback" not in log_text


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def answers(endpoint: str) -> bool:
    try:
        return requests.get(f"{endpoint}/v1/health", timeout=2).ok
    except requests.RequestException:
        return False
