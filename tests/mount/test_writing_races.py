"""Files that are opened, read and written while their names change, which takes the cluster its time."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.mount.content import fill
from tests.mount.writable import Writable, writable
from tests.support.mounts import eventually

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

OLD = b"what was there\n" * 20_000
LINE = b"one more line\n"


FOLDERS = iter([f"folder{n}" for n in range(40)])
"""Directories that somebody else made before the mount was there, one for each test."""


@pytest.fixture(scope="module")
def place(fastpath: bool, tmp_path_factory: pytest.TempPathFactory):
    base = tmp_path_factory.mktemp("races").resolve()
    names = [f"folder{n}/{name}" for n in range(40) for name in ("one", "two", "three")]
    fill(base / "store" / "b", dict.fromkeys(names, OLD))
    with writable(
        base,
        faulty=True,
        options=["--attr-ttl", "600", "--list-ttl", "600", "--negative-ttl", "600"],
        expected_log=["failed", "was not uploaded", "not renamed", "could not go back"],
        deadline=900,
    ) as place:
        yield place


@pytest.fixture
def folder(place: Writable) -> Path:
    """A directory of three files, of which this mount has looked up all and opened none."""
    path = place.path / next(FOLDERS)
    assert all((path / name).stat().st_size == len(OLD) for name in ("one", "two", "three"))
    return path


@contextmanager
def under_way(place: Writable, method: str, change: Callable[[], None]) -> Iterator[None]:
    """Make a change of names, and go on while the cluster has done `method` but not said so."""
    query = {"query_contains": "object_to"} if method == "PUT" else {}
    with stalled(place, {"method": method, "marked": True, **query}, change):
        yield


@contextmanager
def stalled(
    place: Writable, match: dict[str, Any], change: Callable[[], None], every: int = 1
) -> Iterator[None]:
    """Change something, and go on while the cluster has served a request that this takes but not said so."""
    match = {"path_contains": "/v1/objects/b/", **match}
    place.server.faults([{"match": match, "action": "stall", "seconds": 2, "every": every}])
    errors: list[Exception] = []

    def run() -> None:
        try:
            change()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert eventually(lambda: place.server.held() or errors), "it is not under way"
        yield
    finally:
        thread.join()
        place.server.faults([])
    assert not errors, errors


def append(path: Path) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(LINE)


def stored(place: Writable, folder: Path) -> dict[str, bytes | None]:
    """What the cluster holds of a directory."""
    names = [name for name in place.names() if name.startswith(f"{folder.name}/")]
    return {name.partition("/")[2]: place.stored(name) for name in names}


def shown(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_appending_to_what_is_being_renamed(place: Writable, folder: Path):
    with under_way(place, "PUT", lambda: os.rename(folder / "one", folder / "new")):
        append(folder / "one")
    expected = {"new": OLD + LINE, "two": OLD, "three": OLD}
    assert stored(place, folder) == shown(folder) == expected


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_reading_what_is_being_renamed(method: str, place: Writable, folder: Path):
    with (
        (folder / "one").open("rb", buffering=0) as file,
        under_way(place, method, lambda: os.rename(folder / "one", folder / "new")),
    ):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert file.read() == OLD
    assert stored(place, folder) == shown(folder) == {"new": OLD, "two": OLD, "three": OLD}


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_opening_what_is_being_replaced(method: str, place: Writable, folder: Path):
    (folder / "two").write_bytes(LINE)
    with under_way(place, method, lambda: os.rename(folder / "two", folder / "one")):
        seen = (folder / "one").read_bytes()
    assert seen == LINE
    assert stored(place, folder) == shown(folder) == {"one": LINE, "three": OLD}


def test_opening_what_is_being_removed(place: Writable, folder: Path):
    with (
        under_way(place, "DELETE", lambda: os.unlink(folder / "one")),
        pytest.raises(FileNotFoundError),
    ):
        (folder / "one").read_bytes()


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_writing_to_what_is_being_replaced(method: str, place: Writable, folder: Path):
    """What a rename acknowledged is not undone by a writer who had the file of before."""
    (folder / "two").write_bytes(b"the next")
    with under_way(place, method, lambda: os.rename(folder / "two", folder / "one")):
        append(folder / "one")
    expected = {"one": b"the next" + LINE, "three": OLD}
    assert stored(place, folder) == shown(folder) == expected


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_closing_what_is_being_replaced(method: str, place: Writable, folder: Path):
    """What a rename acknowledged is not undone by a writer who closes the file of before."""
    (folder / "two").write_bytes(b"the next")
    descriptor = os.open(folder / "one", os.O_WRONLY)
    os.write(descriptor, LINE)
    with under_way(place, method, lambda: os.rename(folder / "two", folder / "one")):
        os.close(descriptor)
    expected = {"one": b"the next", "three": OLD}
    assert stored(place, folder) == shown(folder) == expected


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_emptying_what_is_being_renamed(method: str, place: Writable, folder: Path):
    with under_way(place, method, lambda: os.rename(folder / "one", folder / "new")):
        os.close(os.open(folder / "one", os.O_WRONLY | os.O_TRUNC))
    assert stored(place, folder) == shown(folder) == {"new": b"", "two": OLD, "three": OLD}


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_new_member_goes_where_its_shard_goes(method: str, place: Writable, folder: Path):
    os.mkdir(folder / "x.tar.d")
    (folder / "x.tar.d" / "first").write_bytes(b"1")
    descriptor = os.open(folder / "x.tar.d" / "second", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"2")
    with under_way(place, method, lambda: os.rename(folder / "x.tar", folder / "y.tar")):
        os.close(descriptor)
    assert set(stored(place, folder)) == {"one", "two", "three", "y.tar"}
    assert shown(folder / "y.tar.d") == {"first": b"1", "second": b"2"}


def test_a_new_member_does_not_bring_a_shard_back(place: Writable, folder: Path):
    os.mkdir(folder / "x.tar.d")
    descriptor = os.open(folder / "x.tar.d" / "first", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"1")
    os.unlink(folder / "x.tar")
    with pytest.raises(OSError, match="Stale"):
        os.close(descriptor)
    assert set(stored(place, folder)) == {"one", "two", "three"}


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_changing_files_of_a_directory_that_is_being_renamed(
    method: str, place: Writable, folder: Path
):
    """What is acknowledged meanwhile is under the new name."""
    new = folder.with_name(f"{folder.name}.new")
    directory = os.open(folder, os.O_RDONLY)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with under_way(place, method, lambda: os.rename(folder, new)):
        for name in ("one", "two", "three", "made"):
            descriptor = os.open(name, flags, 0o644, dir_fd=directory)
            os.write(descriptor, LINE)
            os.close(descriptor)
    os.close(directory)
    assert stored(place, folder) == {}
    expected = {**dict.fromkeys(("one", "two", "three"), OLD + LINE), "made": LINE}
    assert stored(place, new) == shown(new) == expected


def test_changing_names_in_a_directory_that_is_being_renamed(place: Writable, folder: Path):
    new = folder.with_name(f"{folder.name}.new")
    directory = os.open(folder, os.O_RDONLY)
    with under_way(place, "PUT", lambda: os.rename(folder, new)):
        os.unlink("one", dir_fd=directory)
        os.rename("two", "other", src_dir_fd=directory, dst_dir_fd=directory)
        os.truncate(f"/proc/self/fd/{directory}/three", 4)
        os.mkdir("empty", dir_fd=directory)
    os.close(directory)
    assert stored(place, folder) == {}
    assert stored(place, new) == shown(new) == {"other": OLD, "three": OLD[:4]}
    assert (new / "empty").is_dir()


def test_what_is_written_as_soon_as_a_large_file_was_put_together_stays(tmp_path: Path):
    """Its mode and time are sent after its parts: what is there then may be another client's."""
    large, theirs = OLD * 40, b"theirs\n" * 1000
    with writable(
        tmp_path.resolve(),
        faulty=True,
        options=["--part-size", "5MiB"],
        expected_log=["was not uploaded", "flush failed"],
    ) as place:
        (place.path / "large").write_bytes(large)
        fd = os.open(place.path / "large", os.O_WRONLY | os.O_APPEND)
        os.write(fd, LINE)
        with stalled(place, {"method": "PATCH"}, lambda: os.fsync(fd)):
            place.put("large", theirs)
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            write_and_close(fd)
        assert place.stored("large") == theirs


def write_and_close(fd: int) -> None:
    try:
        os.write(fd, LINE)
    finally:
        os.close(fd)


THEIRS = b"theirs, as long\n" * 10
"""What another client writes meanwhile."""


@pytest.mark.parametrize("every", [1, 2])
def test_what_is_written_while_it_is_being_renamed_is_not_taken_for_ours(
    every: int, place: Writable, folder: Path
):
    """However late it is written: a program that goes on writing has the content of before."""
    fd = os.open(folder / "one", os.O_WRONLY | os.O_APPEND)
    os.write(fd, LINE)
    os.fsync(fd)
    key = f"{folder.name}/one"
    rename = partial(os.rename, folder / "one", folder / "new")
    with stalled(place, {"method": "HEAD", "path_contains": key}, rename, every):
        place.put(key, THEIRS)
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        write_and_close(fd)
    assert stored(place, folder) == shown(folder) == {"new": THEIRS, "two": OLD, "three": OLD}


def test_nor_in_a_directory_that_is_being_renamed(place: Writable, folder: Path):
    new = folder.with_name(f"{folder.name}-new")
    fd = os.open(folder / "one", os.O_WRONLY | os.O_APPEND)
    os.write(fd, LINE)
    os.fsync(fd)
    rename = partial(os.rename, folder, new)
    with stalled(place, {"method": "HEAD", "path_contains": f"{folder.name}/"}, rename):
        for name in ("one", "two"):
            place.put(f"{folder.name}/{name}", THEIRS)
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        write_and_close(fd)
    assert stored(place, new) == shown(new) == {"one": THEIRS, "two": THEIRS, "three": OLD}


def test_a_directory_that_is_not_renamed_keeps_what_was_made_in_it_meanwhile(
    place: Writable, folder: Path
):
    first, held_up, refused = sorted(["one", "two", "three"])  # the order of the listing
    copying = {"method": "PUT", "query_contains": "object_to", "marked": True}
    rules = [
        {"match": {**copying, "path_contains": f"{folder.name}/{name}"}, **action}
        for name, action in (
            (held_up, {"action": "stall", "seconds": 2}),
            (refused, {"action": "status", "status": 403, "times": -1}),
        )
    ]
    place.server.faults(rules)
    with ThreadPoolExecutor() as pool:
        renaming = pool.submit(os.rename, folder, folder.with_name(f"{folder.name}-new"))
        assert eventually(lambda: place.server.held() or renaming.done())
        place.put(f"{folder.name}/{first}", THEIRS)
    place.server.faults([])
    assert isinstance(renaming.exception(), PermissionError)
    expected = {first: THEIRS, refused: OLD, held_up: OLD}
    assert stored(place, folder) == shown(folder) == expected
    assert place.stored(f"{folder.name}-new/{first}") == OLD
