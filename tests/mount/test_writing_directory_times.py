"""Times of directories of a mount that can be written: they tell when an entry changed, and nothing else."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.writable import Writable, writable
from tests.support.mounts import eventually, python, succeed

pytestmark = pytest.mark.mount

SHORT = ("--attr-ttl", "1", "--list-ttl", "1", "--negative-ttl", "0")


@pytest.fixture(scope="module", params=["ais", "directory"])
def place(request: pytest.FixtureRequest, fastpath: bool, tmp_path_factory: pytest.TempPathFactory):
    base = tmp_path_factory.mktemp(f"d-{request.param}")
    with writable(base, backend=request.param, options=SHORT, deadline=300) as place:
        yield place


@pytest.fixture
def folder(place: Writable, request: pytest.FixtureRequest) -> Path:
    path = place.path / request.node.name.split("[")[0]
    path.mkdir()
    return path


def rename_over(folder: Path) -> None:
    (folder / "old").rename(folder / "other")


CHANGES: dict[str, Callable[[Path], object]] = {
    "create": lambda folder: (folder / "new").touch(),
    "unlink": lambda folder: (folder / "old").unlink(),
    "rename": lambda folder: (folder / "old").rename(folder / "new"),
    "replace": rename_over,
    "mkdir": lambda folder: (folder / "new").mkdir(),
    "rmdir": lambda folder: (folder / "empty").rmdir(),
    "rename of a directory": lambda folder: (folder / "full").rename(folder / "new"),
    "mkdir of a shard": lambda folder: (folder / "x.tar.d").mkdir(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_entry_changes_the_time_at_once(place: Writable, change: str):
    folder = place.path / f"changed by {change}"
    folder.mkdir()
    for name in ("old", "other"):
        (folder / name).touch()
    for name in ("empty", "full"):
        (folder / name).mkdir()
    (folder / "full" / "inside").touch()
    for listed in (False, True):
        if listed:
            os.listdir(folder)
        os.utime(folder, ns=(0, 10**18))
        assert folder.stat().st_mtime_ns == 10**18
        above = place.path.stat().st_mtime_ns
        began = time.time_ns()
        if listed:
            (folder / "another").touch()
        else:
            CHANGES[change](folder)
        assert began <= folder.stat().st_mtime_ns <= time.time_ns()
        assert place.path.stat().st_mtime_ns == above, "nothing changed there"


def test_a_move_changes_both_directories(folder: Path):
    for name in ("from", "to"):
        (folder / name).mkdir()
    (folder / "from/file").touch()
    (folder / "from/sub").mkdir()
    for name in ("file", "sub"):
        for directory in ("from", "to"):
            os.utime(folder / directory, ns=(0, 10**18))
        os.rename(folder / "from" / name, folder / "to" / name)
        for directory in ("from", "to"):
            assert (folder / directory).stat().st_mtime_ns > 10**18


def test_a_new_directory_has_the_time_it_was_made(folder: Path):
    began = time.time_ns()
    (folder / "new").mkdir()
    assert began <= (folder / "new").stat().st_mtime_ns <= time.time_ns()
    (folder / "new").rmdir()
    began = time.time_ns()
    (folder / "new").mkdir()
    assert began <= (folder / "new").stat().st_mtime_ns


def test_content_and_expired_listings_change_no_time(folder: Path, place: Writable):
    (folder / "file").write_bytes(b"before")
    made = folder.stat().st_mtime_ns
    for round_ in range(3):
        assert os.listdir(folder) == ["file"]
        (folder / "file").write_bytes(b"after %d" % round_)
        assert folder.stat().st_mtime_ns == made
        time.sleep(1.1)  # the listing expires
        assert folder.stat().st_mtime_ns == made
    place.put(f"{folder.name}/theirs", b"")
    assert eventually(lambda: sorted(os.listdir(folder)) == ["file", "theirs"])
    time.sleep(1.1)
    place.delete(f"{folder.name}/theirs")
    assert eventually(lambda: os.listdir(folder) == ["file"])


def test_what_appears_in_an_empty_directory_is_seen(place: Writable, folder: Path):
    assert os.listdir(folder) == []
    assert [entry.name for entry in os.scandir(folder)] == []
    place.put(f"{folder.name}/theirs", b"content")
    assert eventually(lambda: os.listdir(folder) == ["theirs"])
    assert (folder / "theirs").read_bytes() == b"content"
    place.delete(f"{folder.name}/theirs")
    assert eventually(lambda: os.listdir(folder) == [])
    (folder / "ours").touch()
    assert os.listdir(folder) == ["ours"]


IMPORTS = """
import importlib, os, sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
for name in ("first", "second", "third"):
    with open(os.path.join(sys.argv[1], name + ".py"), "w") as file:
        file.write(f"value = {name!r}")
    print(importlib.import_module(name).value)
"""


def test_python_imports_what_was_just_written(folder: Path):
    assert python(IMPORTS, folder).split() == [b"first", b"second", b"third"]


def test_git_sees_new_files_with_its_untracked_cache(tmp_path: Path):
    with writable(tmp_path, backend="directory") as place:
        git = ["git", f"--git-dir={tmp_path}/git", f"--work-tree={place.path}"]
        succeed(*git, "init", "--quiet")
        succeed(*git, "config", "core.untrackedCache", "true")
        (place.path / "sub").mkdir()
        for name in ("sub/one", "sub/two"):
            (place.path / name).touch()
            succeed(*git, "add", place.path / "sub/one")
            for _ in range(2):  # the first fills the cache
                time.sleep(1.1)  # git does not rely on what is as young as its index
                found = succeed(*git, "status", "--porcelain")
    assert found.split() == [b"A", b"sub/one", b"??", b"sub/two"]


def test_make_sees_a_new_file_in_a_directory(folder: Path):
    (folder / "sub").mkdir()
    makefile = "all: sub\n\ttouch all\n"
    (folder / "Makefile").write_text(makefile)
    assert succeed("make", "-C", folder, "-s", "--no-print-directory") == b""
    assert b"up to date" in succeed("make", "-C", folder)
    time.sleep(1.1)  # the listing expires, and times of objects are whole seconds
    assert b"up to date" in succeed("make", "-C", folder)
    (folder / "sub/new").touch()
    assert b"touch all" in succeed("make", "-C", folder)
