"""Folders of shards that are listed one after the other: the next one is there before it is asked for."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.content import payload
from tests.support.mounts import Mount, eventually, mounted
from tests.support.servers import RunningServer, running_server
from tests.support.tars import END, entry

pytestmark = pytest.mark.mount

SHARDS = ["a.tar", "b.tar", "c.tar", "d.tar", "e.tar"]
MEMBERS = 50


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("ahead") / "store"
    (root / "b").mkdir(parents=True)
    for name in SHARDS:
        members = (entry(b"%05d" % row, payload(3000, f"{name} {row}")) for row in range(MEMBERS))
        (root / "b" / name).write_bytes(b"".join(members) + END)
    with running_server(root) as server:
        yield server


@pytest.fixture
def mount(server: RunningServer, mountpoint: Path, tmp_path: Path) -> Iterator[Mount]:
    options = ["--cache-dir", str(tmp_path / "cache")]
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        assert sorted(os.listdir(mount.path)) == SHARDS
        yield mount


def list_folder(mount: Mount, name: str) -> None:
    assert len(os.listdir(mount.path / f"{name}.d")) == MEMBERS


def fetched(server: RunningServer, since: int) -> int:
    return server.requests().get("get", 0) - since


def test_the_second_neighbour_brings_the_next(server: RunningServer, mount: Mount):
    before = fetched(server, 0)
    list_folder(mount, "b.tar")
    list_folder(mount, "c.tar")
    assert eventually(lambda: fetched(server, before) == 3)
    list_folder(mount, "d.tar")  # which was asked of nobody, and brings e.tar in its turn
    assert eventually(lambda: fetched(server, before) == 4)


def test_a_walk_from_the_first_folder_never_waits_again(server: RunningServer, mount: Mount):
    before = fetched(server, 0)
    for place, name in enumerate(SHARDS[:4]):
        list_folder(mount, name)
        assert eventually(lambda number=place + 2: fetched(server, before) == number)


def test_so_does_a_walk_backwards(server: RunningServer, mount: Mount):
    before = fetched(server, 0)
    list_folder(mount, "e.tar")
    list_folder(mount, "d.tar")
    assert eventually(lambda: fetched(server, before) == 3)
    list_folder(mount, "c.tar")
    assert eventually(lambda: fetched(server, before) == 4)


def test_other_orders_bring_nothing(server: RunningServer, mount: Mount):
    before = fetched(server, 0)
    list_folder(mount, "d.tar")
    list_folder(mount, "d.tar")
    list_folder(mount, "b.tar")
    list_folder(mount, "e.tar")
    (mount.path / "a.tar").stat()
    assert not eventually(lambda: fetched(server, before) > 3, seconds=0.5)
