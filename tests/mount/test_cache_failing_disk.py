"""A cache on a disk that fails is a miss: readers get what the server has, and the log says so once."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.cache_data import Dataset, dealt, make_shards, shuffled
from tests.mount.cache_tools import MIB, Meter, lines, list_folders, read
from tests.support.failing_disk import FailingDisk, failing_disk
from tests.support.mounts import mounted
from tests.support.servers import RunningServer

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a disk"),
]

INDEXES = r"WARNING aisfs\.cache\..* indexes"
STARTS_EMPTY = r"cache .* starts empty"
TOLD = r"cache bypassed|cache not used until the next start"


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    """Twelve shards of 1.5 MiB."""
    return make_shards(store / "shards", 12, 12, 128 * 1024)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FailingDisk]:
    with failing_disk(tmp_path / "disk", 128 * MIB) as disk:
        yield disk


def options(disk: FailingDisk) -> tuple[str, ...]:
    return ("--cache-dir", str(disk.path / "cache"), "--cache-size", "64MiB")


def check_told(log: str) -> None:
    """Blocks and indexes each say once that they go without the disk; SQLite may find it out later."""
    bypassed = lines(log, "cache bypassed")
    given_up = lines(log, "cache not used until the next start")
    assert bypassed or given_up, log
    assert len(bypassed) <= 1, log
    assert len(given_up) <= 1, log
    assert len(lines(log, "WARNING aisfs.cache.files")) <= 1, log


@pytest.mark.parametrize("what", ["reads", "writes", "all"])
def test_a_disk_that_fails_while_mounted(
    what: str, shards: Dataset, server: RunningServer, mountpoint: Path, disk: FailingDisk
):
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=options(disk),
        expected_log=[TOLD, INDEXES],
    ) as mount:  # fmt: skip
        read(mount.path, dict(list(shards.files.items())[::2]))
        os.sync()
        disk.fail(what)
        for epoch in range(2):
            disk.forget_pages()
            list_folders(mount.path, shards)
            read(mount.path, *dealt(shuffled(shards.members, epoch), 2), shards.files)
        check_told(mount.log())


@pytest.mark.parametrize("what", ["reads", "all"])
def test_a_warm_cache_whose_disk_fails(
    what: str, shards: Dataset, server: RunningServer, mountpoint: Path, disk: FailingDisk
):
    """When it works again, what could not be read meanwhile is cached again."""
    settings = options(disk)
    with mounted("ais://shards", mountpoint, endpoint=server.endpoint, options=settings) as mount:
        list_folders(mount.path, shards)
        read(mount.path, shards.files)
    os.sync()
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=settings,
        expected_log=[TOLD, INDEXES],
    ) as mount:  # fmt: skip
        disk.forget_pages()
        disk.fail(what)
        list_folders(mount.path, shards)
        read(mount.path, *dealt(shuffled(shards.members, 0), 2), shards.files)
        check_told(mount.log())
    if what == "all":
        return  # ext4 has given up
    disk.fail("nothing")
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=settings,
        expected_log=[STARTS_EMPTY],
    ) as mount:  # fmt: skip
        read(mount.path, shards.files)
        meter = Meter(server)
        read(mount.path, shards.files)
        meter.nothing()


def test_what_never_reached_the_disk_is_not_taken_for_what_was_written(
    shards: Dataset, server: RunningServer, mountpoint: Path, disk: FailingDisk
):
    """Pages whose writing fails later are lost with the next shortage of memory; the file reads as zeros."""
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=options(disk),
        expected_log=[TOLD, INDEXES],
    ) as mount:  # fmt: skip
        read(mount.path, shards.files)
        disk.fail("writes")
        os.sync()
        disk.fail("nothing")
        for epoch in range(2):
            disk.forget_pages()
            read(mount.path, *dealt(shuffled(shards.members, epoch), 2), shards.files)
        check_told(mount.log())
