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

from tests.mount.content import fill, payload
from tests.support.mounts import (
    COMMAND,
    COMMAND_LIMIT,
    environment,
    eventually,
    mounted,
    run,
    succeed,
)
from tests.support.servers import running_server

pytestmark = pytest.mark.mount

SIZE = 64 << 20
QUICK = ("--io-timeout", "3", "--attr-ttl", "1", "--list-ttl", "1", "--negative-ttl", "0")
HANGS = 60
"""Seconds after which a reader with a deadline of 3 s counts as hung."""
ANYTHING = [r"WARNING|ERROR"]
READER = """
import errno, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
os.pread(fd, 100_000, 0)
print("reading", flush=True)
sys.stdin.readline()
for offset in range(int(sys.argv[2]), os.fstat(fd).st_size, 1 << 20):
    try:
        os.pread(fd, 1 << 20, offset)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
        break
else:
    print("complete", flush=True)
"""
FAILED = {"EIO", "ETIMEDOUT"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("outages") / "store"
    fill(root / "b", {"big.bin": payload(SIZE), "d/x.txt": b"x", "d/y.txt": b"y"})
    return root


class Reader:
    """A process in the middle of reading a file."""

    def __init__(self, path: Path, start: int = SIZE // 2) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, str(path), str(start)],
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


def test_the_server_is_killed_in_the_middle_of_a_read(store: Path, mountpoint: Path):
    with running_server(store) as first:
        port = int(first.endpoint.rpartition(":")[2])
        with mounted(
            "ais://b", mountpoint, endpoint=first.endpoint, options=QUICK, expected_log=ANYTHING
        ) as mount:
            with Reader(mount.path / "big.bin") as reader:
                first.kill()
                assert reader.finish() in FAILED
            assert run("ls", mount.path / "d", timeout=HANGS).returncode != 0
            with running_server(store, port=port) as second:
                assert second.endpoint == first.endpoint
                assert eventually(lambda: run("ls", mount.path / "d").returncode == 0, 30)
                assert (mount.path / "d" / "x.txt").read_bytes() == b"x"
                succeed("cmp", mount.path / "big.bin", store / "b" / "big.bin")


def test_a_reader_survives_a_short_outage(store: Path, mountpoint: Path):
    options = ("--io-timeout", "60")
    with running_server(store) as first:
        port = int(first.endpoint.rpartition(":")[2])
        with (
            mounted(
                "ais://b", mountpoint, endpoint=first.endpoint, options=options,
                expected_log=ANYTHING,
            ) as mount,
            Reader(mount.path / "big.bin") as reader,
        ):  # fmt: skip
            first.kill()
            reader.process.stdin.write("go\n")
            reader.process.stdin.flush()
            with running_server(store, port=port):
                assert reader.process.communicate(timeout=HANGS)[0].strip() == "complete"


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Connections stay open and are accepted by the kernel; not a byte comes back."""
    os.killpg(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(pid, signal.SIGCONT)


def test_a_server_that_stops_answering(store: Path, mountpoint: Path):
    with (
        running_server(store) as server,
        mounted(
            "ais://b", mountpoint, endpoint=server.endpoint, options=QUICK, expected_log=ANYTHING
        ) as mount,
    ):
        with Reader(mount.path / "big.bin") as reader, frozen(server.pid):
            assert reader.finish() in FAILED
            done = run("cat", mount.path / "d" / "x.txt", timeout=HANGS)
            assert done.returncode == 1
            assert b"Connection timed out" in done.stderr or b"Input/output" in done.stderr
            assert run("ls", mount.path / "d", timeout=HANGS).returncode != 0
        assert eventually(lambda: run("ls", mount.path / "d").returncode == 0, 30)
        succeed("cmp", mount.path / "big.bin", store / "b" / "big.bin")


def test_a_reader_can_be_killed_while_it_waits(store: Path, mountpoint: Path):
    options = ("--io-timeout", "30")
    with (
        running_server(store) as server,
        mounted(
            "ais://b", mountpoint, endpoint=server.endpoint, options=options, expected_log=ANYTHING
        ) as mount,
    ):
        with Reader(mount.path / "big.bin") as reader, frozen(server.pid):
            reader.process.stdin.write("go\n")
            reader.process.stdin.flush()
            with pytest.raises(subprocess.TimeoutExpired):
                reader.process.wait(1)
            reader.process.kill()
            assert reader.process.wait(20) == -signal.SIGKILL
        assert (mount.path / "d" / "x.txt").read_bytes() == b"x"


def test_umount_while_the_server_is_silent(store: Path, mountpoint: Path):
    with (
        running_server(store) as server,
        mounted(
            "ais://b", mountpoint, endpoint=server.endpoint, options=QUICK, expected_log=ANYTHING
        ) as mount,
        frozen(server.pid),
    ):
        os.kill(mount.pid, signal.SIGTERM)
        assert mount.wait_until_gone(HANGS)


def test_a_listing_that_fails_is_an_error_and_not_an_empty_directory(store: Path, mountpoint: Path):
    with (
        running_server(store) as server,
        mounted(
            "ais://b", mountpoint, endpoint=server.endpoint, options=QUICK, expected_log=ANYTHING
        ) as mount,
    ):
        server.kill()
        done = run("ls", mount.path, timeout=HANGS)
        assert done.returncode != 0
        assert done.stdout == b""
        failed = run("stat", mount.path / "d" / "x.txt", timeout=HANGS)
        assert failed.returncode == 1
        assert b"No such file" not in failed.stderr


OBJECT_BYTES = {"marked": True, "method": "GET", "path_contains": "/objects/"}


@pytest.mark.parametrize(
    "rule",
    [
        {"action": "stall", "seconds": 45, "times": -1},
        {"action": "stall", "seconds": 45, "fraction": 0.5, "times": -1},
        {"action": "drip", "piece": 64, "seconds": 0.5, "times": -1},
        {"action": "truncate", "times": -1},
        {"action": "status", "status": 503, "times": -1},
        {"action": "reset", "times": -1},
    ],
    ids=["stall", "stall amid the body", "drip", "truncate", "503", "reset"],
)
def test_bytes_that_do_not_come(rule: dict[str, object], store: Path, mountpoint: Path):
    with (
        running_server(store, faulty=True) as server,
        mounted(
            "ais://b", mountpoint, endpoint=server.endpoint, options=QUICK, expected_log=ANYTHING
        ) as mount,
    ):
        with Reader(mount.path / "big.bin") as reader:
            server.faults([{"match": OBJECT_BYTES, **rule}])
            assert reader.finish() in FAILED
            server.faults([])
        with open(mount.path / "big.bin", "rb") as file:
            assert file.read(3 << 20) == (store / "b" / "big.bin").read_bytes()[: 3 << 20]


@pytest.mark.parametrize("action", ["status", "reset", "truncate"])
def test_a_burst_of_failures_is_invisible(action: str, store: Path, mountpoint: Path):
    with (
        running_server(store, faulty=True) as server,
        mounted(
            "ais://b", mountpoint, endpoint=server.endpoint, options=("--io-timeout", "60"),
            expected_log=["WARNING"],
        ) as mount,
    ):  # fmt: skip
        server.faults([{"match": {}, "action": action, "times": 4}])
        succeed("cmp", mount.path / "big.bin", store / "b" / "big.bin")
        server.faults([{"match": {}, "action": action, "times": 4}])
        assert succeed("ls", mount.path / "d") == b"x.txt\ny.txt\n"


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
