"""A libfuse that cannot serve the fast path's descriptor: the mount works all the same, and says so."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.content import fill, put
from tests.support import mounts
from tests.support.mounts import Mount, eventually, python, succeed
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

OLD_LIBFUSE = {"PYTHONPATH": str(Path(__file__).parent / "no_descriptor")}
SAID = "without the fast path"
LONG = ("--attr-ttl", "600", "--list-ttl", "600", "--negative-ttl", "600")
WAYS = ((), ("--writable",))
CHANGES = """
import os, sys
os.chdir(sys.argv[1])
os.makedirs("new/below")
for number in range(20):
    with open(f"new/below/{number}", "w") as file:
        file.write(f"content {number}")
assert sorted(os.listdir("new/below"), key=int) == [str(n) for n in range(20)]
os.rename("new/below/0", "new/0")
os.unlink("new/below/1")
with open("new/0", "r+") as file:
    file.write("CONTENT")
assert sorted(os.listdir("new")) == ["0", "below"]
assert len(os.listdir("new/below")) == 18
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    many = {f"one/deep/{number:03}": b"x" for number in range(100)}
    fill(tmp_path / "store" / "b", {"one/a.txt": b"a", "two/b.txt": b"b", **many})
    with running_server(tmp_path / "store") as server:
        yield server


@contextmanager
def without_descriptor(
    server: RunningServer, mountpoint: Path, *options: str, expected_log: tuple[str, ...] = ()
) -> Iterator[Mount]:
    if "--writable" in options:
        options += ("--staging-dir", str(mountpoint.with_name("staging")))
    with mounts.mounted(
        "ais://b",
        mountpoint,
        endpoint=server.endpoint,
        options=(*LONG, *options),
        fastpath=True,
        env=OLD_LIBFUSE,
        expected_log=[SAID, *expected_log],
    ) as mount:
        yield mount
        assert SAID in mount.log()


@pytest.mark.parametrize("options", WAYS, ids=["read-only", "writable"])
def test_directories_list_what_is_in_them(
    options: tuple[str, ...], server: RunningServer, mountpoint: Path
):
    with without_descriptor(server, mountpoint, *options) as mount:
        for folder, names in (
            ("two", ["b.txt"]),
            ("one", ["a.txt", "deep"]),
            ("one/deep", [f"{number:03}" for number in range(100)]),
            ("", ["one", "two"]),
        ):
            assert succeed("ls", mount.path / folder).decode().split() == names
        assert succeed("cat", mount.path / "one/a.txt", mount.path / "two/b.txt") == b"ab"


@pytest.mark.parametrize("options", WAYS, ids=["read-only", "writable"])
def test_the_kernel_hears_of_an_object_that_changed(
    options: tuple[str, ...], server: RunningServer, mountpoint: Path
):
    with without_descriptor(server, mountpoint, *options, expected_log=["changed"]) as mount:
        file = mount.path / "one/a.txt"
        os.stat(file)  # the name may be kept for ten minutes now
        put(server.endpoint, "b", "one/a.txt", b"another version")

        def is_new() -> bool:
            try:
                return file.read_bytes() == b"another version"
            except OSError:
                return False

        assert eventually(is_new)


def test_files_are_written(server: RunningServer, mountpoint: Path, tmp_path: Path):
    with without_descriptor(server, mountpoint, "--writable") as mount:
        python(CHANGES, mount.path)
    stored = tmp_path / "store" / "b" / "new"
    assert (stored / "0").read_bytes() == b"CONTENT 0"
    assert len(list((stored / "below").iterdir())) == 18


def test_it_ends_when_it_is_told_to(server: RunningServer, mountpoint: Path):
    with without_descriptor(server, mountpoint) as mount:
        os.listdir(mount.path)
        os.kill(mount.pid, signal.SIGTERM)
        assert mount.wait_until_gone()
