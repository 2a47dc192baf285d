"""Directories are made, removed and renamed as on a local disk, though AIStore keeps emptied ones."""

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from tests.contract.subjects import CLUSTER
from tests.mount.writable import Writable, writable
from tests.support.mounts import eventually, succeed
from tests.support.servers import running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(200)]

SECONDS = 60.0
"""More than any time to live here."""
GHOST = "is an emptied directory of that name"


@pytest.fixture(params=[("0", 1), ("5", 1)], ids=["listed anew", "believed"])
def bucket(request: pytest.FixtureRequest, fastpath: bool, tmp_path: Path) -> Iterator[Writable]:
    """A bucket of a server that keeps directories as a real cluster does, or of a real cluster."""
    base = tmp_path.resolve()
    seconds, targets = request.param
    (base / "store" / "b").mkdir(parents=True)
    with ExitStack() as stack:
        server = None
        if not CLUSTER:
            server = stack.enter_context(running_server(base / "store", targets=targets))
        options = ["--list-ttl", seconds, "--attr-ttl", seconds]
        log = [GHOST, "was not uploaded", "flush failed"]
        yield stack.enter_context(writable(base, server=server, options=options, expected_log=log))


def tree(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


def test_rm_of_nested_directories(bucket: Writable):
    for name in ("flat/x", "deep/sub/x", "deep/sub/er/y", "deep/z", "kept/x"):
        (bucket.path / name).parent.mkdir(parents=True, exist_ok=True)
        (bucket.path / name).write_bytes(b"1")
    succeed("rm", "-r", str(bucket.path / "flat"), str(bucket.path / "deep"))
    assert tree(bucket.path) == ["kept", "kept/x"]
    assert not (bucket.path / "deep").exists()
    succeed("rm", "-r", str(bucket.path / "kept"))
    assert tree(bucket.path) == []


def test_made_again_after_its_removal_it_is_empty(bucket: Writable):
    (bucket.path / "d/sub").mkdir(parents=True)
    (bucket.path / "d/sub/x").write_bytes(b"1")
    succeed("rm", "-r", str(bucket.path / "d"))
    (bucket.path / "d").mkdir()
    assert tree(bucket.path) == ["d"]
    (bucket.path / "d/new").write_bytes(b"2")
    assert tree(bucket.path) == ["d", "d/new"]


def test_rename_from_and_onto(bucket: Writable):
    (bucket.path / "a/sub").mkdir(parents=True)
    (bucket.path / "a/sub/x").write_bytes(b"1")
    os.rename(bucket.path / "a", bucket.path / "b")
    assert tree(bucket.path) == ["b", "b/sub", "b/sub/x"]
    (bucket.path / "a").mkdir()
    assert tree(bucket.path) == ["a", "b", "b/sub", "b/sub/x"]
    os.rename(bucket.path / "b", bucket.path / "a")
    assert tree(bucket.path) == ["a", "a/sub", "a/sub/x"]
    with pytest.raises(OSError, match="not empty") as caught:
        os.rmdir(bucket.path / "a")
    assert caught.value.errno == errno.ENOTEMPTY
    os.unlink(bucket.path / "a/sub/x")
    assert tree(bucket.path) == ["a", "a/sub"]
    os.rmdir(bucket.path / "a/sub")
    os.rmdir(bucket.path / "a")
    assert tree(bucket.path) == []


def test_what_another_client_puts_into_a_removed_directory_is_there(bucket: Writable):
    for name in ("d", "e"):
        (bucket.path / name).mkdir()
        (bucket.path / name / "x").write_bytes(b"1")
        succeed("rm", "-r", str(bucket.path / name))
    assert tree(bucket.path) == []
    bucket.put("d/sub/y", b"2")
    assert eventually(lambda: tree(bucket.path) == ["d", "d/sub", "d/sub/y"], SECONDS)
    assert (bucket.path / "d/sub/y").read_bytes() == b"2"


def give_names_of_removed(bucket: Writable) -> tuple[list[str], list[str]]:
    """Remove directories and give files their names; return which are taken, and which are refused."""
    taken: list[str] = []
    refused: list[str] = []
    for number in range(100):  # on three targets of two disks one name in six is refused
        if taken and refused and number >= 12:
            break
        path = bucket.path / f"n{number}"
        path.mkdir()
        (path / "x").write_bytes(b"1")
        succeed("sync", str(path / "x"))
        succeed("rm", "-r", str(path))
        try:
            path.write_bytes(b"content\n")
        except IsADirectoryError:
            refused.append(path.name)
        else:
            taken.append(path.name)
    assert taken
    assert refused
    return taken, refused


def test_a_file_takes_the_name_of_a_removed_directory(bucket: Writable):
    """The cluster refuses it where the file would lie on the disk of the directory."""
    taken, refused = give_names_of_removed(bucket)
    for name in taken:
        assert (bucket.path / name).read_bytes() == b"content\n"
    assert bucket.mount.log().count(GHOST) >= len(refused)
    assert {name.name for name in bucket.path.iterdir()} == set(taken)
    with writable(bucket.files.parent.parent, server=bucket.server, name="other") as other:
        for name in taken:
            assert (other.path / name).read_bytes() == b"content\n"


def test_a_close_that_need_not_wait_says_so_too(tmp_path: Path):
    (tmp_path / "store" / "b").mkdir(parents=True)
    log = [GHOST, "was not uploaded", "flush failed"]
    with ExitStack() as stack:
        server = (
            None if CLUSTER else stack.enter_context(running_server(tmp_path / "store", targets=1))
        )
        options = ["--write-back", "3600"]
        mount = writable(tmp_path, server=server, options=options, expected_log=log)
        give_names_of_removed(stack.enter_context(mount))


def put_both(bucket: Writable, name: str) -> bool:
    """Put an object and a directory of one name; only different disks can have them."""
    bucket.put(f"{name}/sub/x", b"x")
    bucket.put(f"{name}/y", b"y")
    try:
        bucket.put(name, b"object")
    except requests.HTTPError:
        return False
    return True


@pytest.mark.parametrize(
    "bucket", [("5", 1), ("5", 3)], ids=["believed", "three targets"], indirect=True
)
def test_what_is_below_a_directory_beside_an_object_of_its_name_is_safe(bucket: Writable):
    both = [name for name in (f"n{number}" for number in range(24)) if put_both(bucket, name)]
    assert both
    bucket.path.joinpath("other").mkdir()
    for name in both:
        path = bucket.path / name
        assert tree(path) == ["sub", "sub/x", "y"]
        for full in (path, path / "sub"):
            with pytest.raises(OSError, match="not empty"):
                os.rmdir(full)
            with pytest.raises(OSError, match="not empty"):
                os.rename(bucket.path / "other", full)
        with pytest.raises(FileExistsError):
            os.open(path / "y", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        succeed("rm", "-r", str(path))
        assert bucket.stored(f"{name}/sub/x") is None
    for name in both:
        assert eventually((bucket.path / name).is_file, SECONDS)
        assert (bucket.path / name).read_bytes() == b"object"


NAMES = ["p", "q", "p/r", "p/r/s", "q/r", "t"]


def outcome(act: Callable[[], object]) -> int:
    try:
        act()
    except OSError as error:
        return error.errno or -1
    return 0


def step(root: Path, choice: str, first: str, second: str) -> int:
    match choice:
        case "mkdir":
            return outcome(lambda: os.mkdir(root / first))
        case "rmdir":
            return outcome(lambda: os.rmdir(root / first))
        case "write":
            return outcome(lambda: (root / first / "file").write_bytes(b"1"))
        case "unlink":
            return outcome(lambda: os.unlink(root / first / "file"))
        case "rename":
            return outcome(lambda: os.rename(root / first, root / second))
    return outcome(lambda: shutil.rmtree(root / first))


@pytest.mark.parametrize("seed", range(3))
def test_as_on_a_local_disk(seed: int, bucket: Writable, tmp_path: Path):
    local = tmp_path / "local"
    local.mkdir()
    rng = random.Random(seed)
    done = []
    for _ in range(120):
        choice = rng.choice(["mkdir", "mkdir", "rmdir", "write", "unlink", "rename", "rmtree"])
        first, second = rng.choice(NAMES), rng.choice(NAMES)
        done.append((choice, first, second))
        here, there = step(local, choice, first, second), step(bucket.path, choice, first, second)
        assert errno.errorcode.get(there) == errno.errorcode.get(here), done
        assert tree(bucket.path) == tree(local), done
