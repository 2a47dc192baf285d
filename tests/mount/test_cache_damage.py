"""What was damaged in the cache between two mounts is fetched again; reads stay right."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.cache_data import Dataset, dealt, make_shards, shuffled
from tests.mount.cache_tools import (
    DAMAGED,
    MIB,
    Meter,
    data_files,
    lines,
    list_folders,
    read,
    watched_disk,
)
from tests.support.mounts import mounted
from tests.support.servers import RunningServer

pytestmark = pytest.mark.mount

LIMIT = 24 * MIB
STARTS_EMPTY = r"cache .* starts empty"
NOT_USED = r"cache not used until the next start"


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    """Twelve shards of 1.5 MiB."""
    return make_shards(store / "shards", 12, 12, 128 * 1024)


def options(cache: Path) -> tuple[str, ...]:
    return ("--cache-dir", str(cache), "--cache-size", "24MiB")


def warm(server: RunningServer, shards: Dataset, mountpoint: Path, cache: Path) -> None:
    """Fill a cache and unmount."""
    settings = options(cache)
    with mounted("ais://shards", mountpoint, endpoint=server.endpoint, options=settings) as mount:
        list_folders(mount.path, shards)
        read(mount.path, shards.files)


def test_damaged_data_is_a_miss(
    shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    cache = tmp_path / "cache"
    warm(server, shards, mountpoint, cache)
    chance = random.Random(1)
    damaged = data_files(cache)[::2]
    for path in damaged:
        with path.open("r+b") as file:
            place = chance.randrange(64 * 1024, shards.size // len(shards.files) - 64 * 1024)
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 0x10]))
    meter = Meter(server)
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=options(cache),
        expected_log=[DAMAGED],
    ) as mount:  # fmt: skip
        read(mount.path, shards.files, shuffled(shards.members, 0))
        fetched = meter.take()["get_bytes"]
        assert 0 < fetched <= len(damaged) / len(shards.files) * shards.size + MIB
        assert len(lines(mount.log(), "is damaged")) == len(damaged)
        read(mount.path, shards.files)
        # Samples were fetched anew, without the headers between them: a shard read as a file wants
        # those as well, once.
        assert meter.take()["get_bytes"] <= 512 * len(shards.members)
        read(mount.path, shards.files)
        meter.nothing()


def truncated(path: Path) -> None:
    os.truncate(path, 200_000)


def removed(path: Path) -> None:
    path.unlink()


def exchanged(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [truncated, removed, exchanged])
def test_data_files_that_are_not_what_they_were(
    damage: Callable[[Path], None],
    shards: Dataset,
    server: RunningServer,
    mountpoint: Path,
    tmp_path: Path,
):
    cache = tmp_path / "cache"
    warm(server, shards, mountpoint, cache)
    for path in data_files(cache)[::2]:
        damage(path)
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=options(cache),
        expected_log=[DAMAGED, r"dropped from the cache: \d+ files are missing"],
    ) as mount:  # fmt: skip
        read(mount.path, shards.files, shuffled(shards.members, 0))
        meter = Meter(server)
        read(mount.path, shards.files)
        meter.nothing()


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(100_000))


def spoiled_inside(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        for place in range(4096, size, 8192):
            file.seek(place)
            file.write(b"\xa5" * 4096)


@pytest.mark.parametrize("damage", [garbage, removed, spoiled_inside])
def test_a_bad_ledger_costs_only_time(
    damage: Callable[[Path], None],
    shards: Dataset,
    server: RunningServer,
    mountpoint: Path,
    tmp_path: Path,
):
    cache = tmp_path / "cache"
    warm(server, shards, mountpoint, cache)
    (ledger,) = cache.rglob("ledger.db")
    damage(ledger)
    settings = options(cache)
    with (
        watched_disk(cache) as seen,
        mounted(
            "ais://shards", mountpoint, endpoint=server.endpoint, options=settings,
            expected_log=[STARTS_EMPTY, NOT_USED, DAMAGED, r"files are missing"],
        ) as mount,
    ):  # fmt: skip
        read(mount.path, *dealt(shuffled(shards.members, 0), 2), shards.files)
        log = mount.log()
        assert len(lines(log, "WARNING")) <= 2, log
    assert seen.peak <= LIMIT, seen
    meter = Meter(server)
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=settings,
        expected_log=[STARTS_EMPTY],
    ) as mount:  # fmt: skip
        read(mount.path, shards.files)
        meter.take()
        read(mount.path, shards.files)
        meter.nothing()
