"""A listing that waits for a moving cluster holds up nothing else in its directory."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.mount.writable import MOVES_LOGGED
from tests.support.mounts import Mount, aisfs, eventually, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

NAMES = [f"f{number}" for number in range(8)]
FRESH = ["--attr-ttl", "0", "--list-ttl", "0", "--negative-ttl", "0"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    fill(tmp_path / "store" / "b", {f"d/{name}": f"{name} old\n".encode() for name in NAMES})
    with running_server(tmp_path / "store", traps=True) as server:
        yield server


def asks_for_pages(server: RunningServer) -> int:
    return server.requests().get("list_page", 0)


@contextmanager
def waiting_listing(server: RunningServer, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start `ls`, which waits until the cluster has moved its data."""
    server.move(cause="maintenance", moving=None, share=0.0)
    before = asks_for_pages(server)
    ls = subprocess.Popen(["ls", folder], stdout=subprocess.PIPE)
    try:
        assert eventually(lambda: asks_for_pages(server) > before), "ls asks for the listing"
        yield ls
        assert ls.poll() is None, "ls still waits"
        server.moved()
        listed, _ = ls.communicate(timeout=60)
        assert ls.returncode == 0
        assert {*NAMES} <= {*listed.decode().split()}
    finally:
        server.moved()
        ls.kill()
        ls.wait()


def act(script: str, *arguments: object) -> str:
    """Run a program that must end while the listing waits."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=40)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


READ = "import sys; print(open(sys.argv[1]).read(), end='')"
WRITE = "import sys; open(sys.argv[1], sys.argv[2]).write('new\\n')"


def refresh(mount: Mount) -> None:
    """Have the kernel told to look names up again."""
    done = aisfs("refresh", mount.path)
    assert (done.returncode, done.stderr) == (0, b"")


def test_writable(server: RunningServer, tmp_path: Path, mountpoint: Path):
    with mounted(
        "ais://b",
        mountpoint,
        endpoint=server.endpoint,
        options=["--writable", "--staging-dir", str(tmp_path / "staging"), *FRESH],
        expected_log=MOVES_LOGGED,
    ) as mount:
        folder = mountpoint / "d"
        known = [os.stat(folder / name).st_size for name in NAMES[:4]]
        assert known == [len(b"f0 old\n")] * 4
        with waiting_listing(server, folder):
            refresh(mount)
            act(WRITE, folder / NAMES[0], "a")
            act(WRITE, folder / NAMES[1], "w")
            act(WRITE, folder / NAMES[5], "a")
            assert act(READ, folder / NAMES[0]) == f"{NAMES[0]} old\nnew\n"
            assert act(READ, folder / NAMES[1]) == "new\n"
            assert act(READ, folder / NAMES[2]) == f"{NAMES[2]} old\n"
