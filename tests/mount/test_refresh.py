"""`aisfs refresh`: a mount with long times to live shows now what others have changed."""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.mount.content import delete, fill, put
from tests.mount.datasets import encode, sample
from tests.mount.test_mount_errors import MOUNTPOINT, one_line
from tests.support.mounts import Mount, aisfs, eventually, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

NUMBERS = count()
LONG = ("--attr-ttl", "9999", "--list-ttl", "9999", "--negative-ttl", "9999")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("refresh") / "store"
    fill(root / "b", {"top": b"top"})
    fill(root / "s", {"a.tar": encode([sample("one", 0)]), "b.tar": encode([sample("two", 1)])})
    with running_server(root, faulty=True) as server:
        yield server


@pytest.fixture(scope="module", params=[True, False], ids=["fastpath", "pyfuse3"])
def mount(
    server: RunningServer,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Mount]:
    place = tmp_path_factory.mktemp("refreshed")
    with mounted(
        "ais://b", place, endpoint=server.endpoint, options=LONG, fastpath=request.param
    ) as mount:
        yield mount


def refresh(mount: Mount, *paths: str) -> None:
    done = aisfs("refresh", mount.path, *paths)
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.fullmatch(rb"\d+ names? will be looked up again\n", done.stdout)


def tell(mount: Mount, *paths: str | Path) -> tuple[int, str]:
    """Return the exit code and what is said of a refresh that fails."""
    done = aisfs("refresh", mount.path, *paths)
    return done.returncode, one_line(done.stderr)


@pytest.mark.parametrize("paths", [(), (".",), ("changed",)], ids=["all", "dir", "file"])
def test_what_others_changed(server: RunningServer, mount: Mount, paths: tuple[str, ...]):
    d = f"d{next(NUMBERS)}"
    below = mount.path / d
    put(server.endpoint, "b", f"{d}/changed", b"old")
    put(server.endpoint, "b", f"{d}/old", b"1")
    refresh(mount)

    def look() -> tuple[list[str], bytes, bool, bool]:
        return (
            sorted(os.listdir(below)),
            (below / "changed").read_bytes(),
            (below / "old").exists(),
            (below / "new").exists(),
        )

    before = (["changed", "old"], b"old", True, False)
    assert look() == before
    put(server.endpoint, "b", f"{d}/changed", b"newer")
    put(server.endpoint, "b", f"{d}/new", b"2")
    delete(server.endpoint, "b", f"{d}/old")
    assert look() == before, "nothing is looked up again before it is asked for"
    refresh(mount, *(f"{d}/{path}" for path in paths))
    assert look() == (["changed", "new"], b"newer", False, True)


def test_a_name_that_was_missing(server: RunningServer, mount: Mount):
    d = f"made{next(NUMBERS)}"
    path = mount.path / d / "later"
    assert not path.exists()
    code, said = tell(mount, f"{d}/later")
    assert code == 1
    assert f"{d}/later: no such file or directory, in the source either" in said
    put(server.endpoint, "b", f"{d}/later", b"here")
    assert not path.exists()
    refresh(mount, str(path))
    assert path.read_bytes() == b"here"


def test_a_directory_that_others_removed(tmp_path: Path, mountpoint: Path):
    fill(tmp_path / "source", {"d/file": b"1", "other": b"2"})
    with mounted(str(tmp_path / "source"), mountpoint, options=LONG) as mount:
        assert sorted(os.listdir(mountpoint)) == ["d", "other"]
        shutil.rmtree(tmp_path / "source" / "d")
        assert (mountpoint / "d").is_dir()
        refresh(mount, "d")
        assert not (mountpoint / "d").exists()
        assert os.listdir(mountpoint) == ["other"]


def test_a_program_keeps_its_directory(
    server: RunningServer, mount: Mount, request: pytest.FixtureRequest
):
    d = f"kept{next(NUMBERS)}"
    put(server.endpoint, "b", f"{d}/in/file", b"first")
    refresh(mount)
    before = os.getcwd()
    os.chdir(mount.path / d / "in")
    try:
        put(server.endpoint, "b", f"{d}/in/file", b"second")
        refresh(mount)
        if request.node.callspec.params["mount"]:  # libfuse drops a name: it cannot only expire it
            assert os.getcwd() == str(mount.path / d / "in")
        assert Path("file").read_bytes() == b"second"
        assert os.listdir() == ["file"]
    finally:
        os.chdir(before)


def test_a_listing_under_way_brings_nothing_old_back(server: RunningServer, mount: Mount):
    d = f"slow{next(NUMBERS)}"
    put(server.endpoint, "b", f"{d}/one", b"1")
    refresh(mount)
    # The reply is made of what there is, and sent when the mount has been refreshed.
    late = {"action": "stall", "seconds": 3.0, "match": {"path_contains": "/buckets/b"}}
    server.faults([late])
    asked = server.requests().get("list_page", 0)
    lister = threading.Thread(target=os.listdir, args=[mount.path / d])
    lister.start()
    assert eventually(lambda: server.requests().get("list_page", 0) > asked)
    put(server.endpoint, "b", f"{d}/two", b"2")
    refresh(mount)
    lister.join()
    assert sorted(os.listdir(mount.path / d)) == ["one", "two"]
    assert (mount.path / d / "two").read_bytes() == b"2"


def _members(mount: Path) -> list[str]:
    return sorted(str(path.relative_to(mount)) for path in mount.rglob("*.cls"))


@pytest.mark.parametrize("view", ["members", "flat"])
def test_the_shards_of_a_dataset_are_found_again(
    server: RunningServer, mountpoint: Path, view: str
):
    put(server.endpoint, "s", "b.tar", encode([sample("two", 1)]))
    options = [*LONG, "--view", view]
    with mounted("ais://s", mountpoint, endpoint=server.endpoint, options=options) as mount:
        before = _members(mountpoint)
        assert len(before) == 2
        refresh(mount)
        assert _members(mountpoint) == before
        put(server.endpoint, "s", "c.tar", encode([sample("three", 2)]))
        put(server.endpoint, "s", "b.tar", encode([sample("two", 1), sample("four", 1)]))
        assert _members(mountpoint) == before
        refresh(mount)
        assert len(_members(mountpoint)) == 4
        delete(server.endpoint, "s", "c.tar")
        refresh(mount)
        assert len(_members(mountpoint)) == 3


def test_wrong_places(server: RunningServer, mount: Mount, tmp_path: Path):
    code, said = tell(mount, "/etc")
    assert (code, "/etc is not in the mount" in said) == (2, True)
    assert tell(mount, "d/../../x")[0] == 2
    for place in (tmp_path, tmp_path / "missing"):
        done = aisfs("refresh", place)
        assert done.returncode == MOUNTPOINT
        assert "is not a mountpoint" in one_line(done.stderr)


def test_another_user_may_not(server: RunningServer, mountpoint: Path):
    mountpoint.parent.chmod(0o755)
    options = ["--allow-other"]
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        script = (
            "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "try: os.getxattr(sys.argv[1], 'user.aisfs.refresh')\n"
            "except PermissionError as error: print(error.strerror)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, mount.path], capture_output=True, check=True, text=True
        )
        assert done.stdout == "Operation not permitted\n"
