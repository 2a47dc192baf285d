"""Programs begin to read a large directory after its first page, and get all of it or an error."""

import ctypes
import errno
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from aisfs.engine.listing import PAGES_AHEAD
from tests.mount.content import fill
from tests.support.mounts import Mount, eventually, mounted, run
from tests.support.servers import RunningServer, running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

PAGES = 7
COUNT = PAGES * 10_000 - 1000
"""Names in the directory. Those that share a prefix lie on different pages."""
PAGE_OF = {"path_contains": "/v1/buckets/b"}
HOLD_THIRD = {
    "action": "stall", "until_cleared": True, "every": 3, "times": 1, "match": PAGE_OF, "seconds": 60,
}  # fmt: skip
FAIL = {"action": "status", "status": 500, "times": -1, "match": PAGE_OF}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("first_names") / "store"
    folder = fill(store / "b" / "many", {"d1/x": b"x", "00500-/y": b"y"})
    for number in range(COUNT):
        (folder / f"{number:05}").touch()
    return store


NAMES = {f"{number:05}" for number in range(COUNT)} | {"d1", "00500-"}


@pytest.fixture
def server(many: Path) -> Iterator[RunningServer]:
    with running_server(many, faulty=True) as server:
        yield server


@pytest.fixture
def mount(server: RunningServer, fastpath: bool, tmp_path: Path) -> Iterator[Mount]:
    place = tmp_path / "mnt"
    place.mkdir()
    options = ["--io-timeout", "20"]
    log = ["failed", "given up", "answered in its place"]
    with mounted(
        "ais://b", place, endpoint=server.endpoint, options=options, expected_log=log
    ) as m:
        assert (place / "many").is_dir()
        yield m
        server.faults([])


def pages(server: RunningServer) -> int:
    return server.requests().get("list_page", 0)


def first_of(entries: Iterator[os.DirEntry[str]], count: int = 5000) -> list[str]:
    return [next(entries).name for _ in range(count)]


def test_the_first_names_come_before_the_last_page(server: RunningServer, mount: Mount):
    server.faults([HOLD_THIRD])
    with os.scandir(mount.path / "many") as entries:
        names = first_of(entries)
        assert eventually(server.held)
        known = os.stat(mount.path / "many" / names[-1])  # a look-up meanwhile
        assert known.st_size == 0
        assert server.held()
        server.faults([])
        names += [entry.name for entry in entries]
    assert len(names) == len(NAMES)
    assert {*names} == NAMES
    before = pages(server)
    assert os.listdir(mount.path / "many") == names, "the order stays"
    assert pages(server) == before


def test_a_later_page_that_fails_is_an_error(server: RunningServer, mount: Mount):
    server.faults([HOLD_THIRD])
    names = []
    with os.scandir(mount.path / "many") as entries:
        names += first_of(entries)
        assert eventually(server.held)
        server.faults([FAIL])
        with pytest.raises(OSError) as caught:  # noqa: PT011, PT012 - the number is looked at
            for entry in entries:
                names.append(entry.name)
    assert caught.value.errno in (errno.EIO, errno.ETIMEDOUT)
    assert len(NAMES) > len(names) == len({*names})
    server.faults([])
    succeeded: list[list[str]] = []
    with suppress(OSError):  # the store is not asked again at once
        succeeded.append(os.listdir(mount.path / "many"))
    assert eventually(lambda: run("ls", "-f", mount.path / "many").returncode == 0)
    succeeded.append(os.listdir(mount.path / "many"))
    assert all(len(listed) == len(NAMES) and {*listed} == NAMES for listed in succeeded)
    assert succeeded[-1][: len(names)] == names, "they have kept their offsets"


def test_two_readers_share_the_pages(server: RunningServer, mount: Mount):
    before = pages(server)
    server.faults([HOLD_THIRD])
    lists: list[list[str]] = []
    with os.scandir(mount.path / "many") as entries:
        names = first_of(entries, 10)
        assert eventually(server.held)
        other = threading.Thread(target=lambda: lists.append(os.listdir(mount.path / "many")))
        other.start()
        server.faults([])
        names += [entry.name for entry in entries]
        other.join()
    assert names == lists[0]
    assert {*names} == NAMES
    assert pages(server) <= before + PAGES + 3


def test_a_reader_that_stops_leaves_the_rest_to_others(server: RunningServer, mount: Mount):
    server.faults([HOLD_THIRD])
    command = "ls -f $0 | head -n 100"
    shown = subprocess.run(
        ["bash", "-c", command, mount.path / "many"], check=True, capture_output=True
    )
    assert len(shown.stdout.splitlines()) == 100
    server.faults([])
    assert {*os.listdir(mount.path / "many")} == NAMES


class _Dirent(ctypes.Structure):
    _fields_ = (
        ("ino", ctypes.c_uint64), ("offset", ctypes.c_int64), ("length", ctypes.c_uint16),
        ("kind", ctypes.c_uint8), ("name", ctypes.c_char * 256),
    )  # fmt: skip


def test_telldir_and_seekdir(server: RunningServer, mount: Mount):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.opendir.restype, libc.readdir.restype = ctypes.c_void_p, ctypes.POINTER(_Dirent)
    libc.telldir.restype = ctypes.c_long
    server.faults([HOLD_THIRD])
    directory = ctypes.c_void_p(libc.opendir(os.fsencode(mount.path / "many")))

    def read(count: int) -> list[bytes]:
        names = []
        while len(names) < count and (entry := libc.readdir(directory)):
            names.append(entry.contents.name)
        return names

    def all_from(place: int) -> list[bytes]:
        libc.seekdir(directory, ctypes.c_long(place))
        return read(len(NAMES) + 3)

    try:
        read(100)
        place = libc.telldir(directory)
        some = read(3000)
        libc.seekdir(directory, ctypes.c_long(place))
        assert read(3000) == some
        assert eventually(server.held)
        server.faults([])
        rest = all_from(place)
        assert rest[:3000] == some
        assert all_from(place) == rest, "in the complete listing"
        assert len({*rest}) == len(rest)
    finally:
        libc.closedir(directory)


def test_a_reader_who_rests_gets_all(server: RunningServer, mount: Mount):
    before = pages(server)
    with os.scandir(mount.path / "many") as slow:
        names = first_of(slow, 10)
        assert eventually(lambda: pages(server) == before + PAGES_AHEAD + 1)
        assert os.stat(mount.path / "many" / names[-1]).st_size == 0
        with os.scandir(mount.path / "many") as quick:
            others = first_of(quick, 25_000)
            assert names == others[:10]
            names += first_of(slow, 100)
            others += [entry.name for entry in quick]
        names += [entry.name for entry in slow]
    assert names == others
    assert len(names) == len(NAMES)
    assert {*names} == NAMES
    assert pages(server) <= before + PAGES + 3, "one listing serves both"


def test_a_reader_who_is_killed_leaves_the_rest_to_others(server: RunningServer, mount: Mount):
    before = pages(server)
    server.faults([HOLD_THIRD])
    with subprocess.Popen(["ls", "-f", mount.path / "many"], stdout=subprocess.PIPE) as ls:
        assert eventually(server.held)
        ls.kill()
        server.faults([])
    assert {*os.listdir(mount.path / "many")} == NAMES
    assert pages(server) <= before + PAGES + 3, "it was begun anew"


def test_the_daemon_dies_under_a_reader(server: RunningServer, mountpoint: Path, fastpath: bool):
    if not fastpath:
        pytest.skip("such a mount has no keeper")
    log = ["this daemon goes on with the mount"]
    with (
        mounted(
            "ais://b", mountpoint, endpoint=server.endpoint, keeper=True, expected_log=log
        ) as mount,
        os.scandir(mountpoint / "many") as entries,
    ):
        names = first_of(entries, 3000)
        os.kill(mount.daemon_now(), signal.SIGKILL)
        names += [entry.name for entry in entries]
        assert len(names) == len(NAMES)
        assert {*names} == NAMES
        assert {*os.listdir(mountpoint / "many")} == NAMES
