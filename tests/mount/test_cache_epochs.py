"""What was read once is not fetched again: epochs over a warm cache, and over one that is too small."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.cache_data import (
    Dataset,
    dealt,
    make_objects,
    make_shards,
    pictures,
    samples_shuffled,
    shuffled,
)
from tests.mount.cache_tools import (
    MIB,
    SETTLED,
    SHORT,
    Meter,
    kill_daemon,
    list_folders,
    read,
)
from tests.support.mounts import mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

RECORDED = 2.5
"""Seconds after which what was read is in the books even if the daemon is killed."""
EPOCHS = 2
HALF = ("--cache-size", "25MiB", "--memory-limit", "16MiB")
"""For the 40 MiB of `shards`: 20 MiB of data, and 5 MiB for indexes, the ledger and its margin."""


@pytest.fixture(scope="module")
def mixed(store: Path) -> Dataset:
    """Six shards of 1.5 MiB, four objects of 3 MiB and one of 20 MiB."""
    shards = make_shards(store / "mixed", 6, 12, 128 * 1024)
    objects = make_objects(store / "mixed", 4, 3 * MIB)
    big = make_objects(store / "mixed" / "big", 1, 20 * MIB)
    names = {f"big/{name}": sha for name, sha in big.files.items()}
    size = shards.size + objects.size + big.size
    return Dataset({**shards.files, **objects.files, **names}, shards.members, size)


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    """40 shards of 1 MiB."""
    return make_shards(store / "shards", 40, 8, 128 * 1024 - 2048)


@pytest.fixture(scope="module")
def one(store: Path) -> Dataset:
    """One shard of 12 MiB."""
    return make_shards(store / "one", 1, 48, 256 * 1024)


@pytest.fixture(scope="module")
def server(store: Path, mixed: Dataset, shards: Dataset, one: Dataset) -> Iterator[RunningServer]:
    with running_server(store) as server:
        yield server


def options(cache: Path, *more: str) -> tuple[str, ...]:
    return ("--cache-dir", str(cache), *more)


def test_the_second_epoch_asks_for_no_data(
    mixed: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    meter = Meter(server)
    with mounted(
        "ais://mixed", mountpoint, endpoint=server.endpoint,
        options=options(tmp_path / "cache", *SHORT),
    ) as mount:  # fmt: skip
        read(mount.path, *dealt(shuffled(mixed.members, 0), 2), mixed.files)
        first = meter.take()
        assert first["get_bytes"] == mixed.size, first
        for epoch in range(3):
            time.sleep(SETTLED if epoch == 1 else 0)  # what is known of names has expired
            read(mount.path, *dealt(shuffled(mixed.members, epoch), 2), mixed.files)
            meter.nothing()


def test_without_a_cache_the_second_epoch_fetches_again(
    mixed: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    """Shows that the counts above are the daemon's doing, not that of the kernel's page cache."""
    meter = Meter(server)
    none = ("--cache-size", "0", "--memory-limit", "16MiB")
    with mounted(
        "ais://mixed", mountpoint, endpoint=server.endpoint,
        options=options(tmp_path / "cache", *none),
    ) as mount:  # fmt: skip
        for _ in range(2):
            read(mount.path, mixed.files)
            assert meter.take()["get_bytes"] > 0.7 * mixed.size
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("end", ["unmounted", "killed", "killed in use"])
def test_a_remount_is_warm(
    end: str, mixed: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    settings = options(tmp_path / "cache")
    with mounted("ais://mixed", mountpoint, endpoint=server.endpoint, options=settings) as mount:
        list_folders(mount.path, mixed)
        read(mount.path, mixed.files)
        if end != "unmounted":
            time.sleep(RECORDED)
            if end == "killed in use":
                read(mount.path, shuffled(mixed.members, 1))
            kill_daemon(mount)
    meter = Meter(server)
    with mounted("ais://mixed", mountpoint, endpoint=server.endpoint, options=settings) as mount:
        list_folders(mount.path, mixed)
        meter.nothing()  # no shard is read again to find its members
        read(mount.path, *dealt(shuffled(mixed.members, 2), 2), mixed.files)
        meter.nothing()


def test_members_are_listed_from_lasting_indexes_alone(
    mixed: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    """The cache is far too small to keep the shards; their indexes are kept all the same."""
    settings = options(tmp_path / "cache", "--cache-size", "8MiB")
    with mounted("ais://mixed", mountpoint, endpoint=server.endpoint, options=settings) as mount:
        list_folders(mount.path, mixed)
    meter = Meter(server)
    with mounted("ais://mixed", mountpoint, endpoint=server.endpoint, options=settings) as mount:
        list_folders(mount.path, mixed)
        meter.nothing()


def test_eight_readers_of_a_cold_shard_are_one_download(
    one: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    meter = Meter(server)
    with mounted(
        "ais://one", mountpoint, endpoint=server.endpoint, options=options(tmp_path / "cache")
    ) as mount:
        read(mount.path, *[one.files] * 8)
        assert meter.take()["get_bytes"] == one.size


@pytest.mark.parametrize("order", ["tar", "shuffled", "each its own"])
def test_eight_readers_of_members_of_a_cold_shard_are_one_download(
    order: str, one: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    seeds = range(8) if order == "each its own" else [0] * 8
    parts = [one.members if order == "tar" else shuffled(one.members, seed) for seed in seeds]
    meter = Meter(server)
    with mounted(
        "ais://one", mountpoint, endpoint=server.endpoint, options=options(tmp_path / "cache")
    ) as mount:
        read(mount.path, *parts)
        assert meter.take()["get_bytes"] == one.size


def test_readers_of_a_shard_and_of_its_members_share_one_download(
    one: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    meter = Meter(server)
    with mounted(
        "ais://one", mountpoint, endpoint=server.endpoint, options=options(tmp_path / "cache")
    ) as mount:
        read(mount.path, *[one.files] * 3, *dealt(one.members, 3))
        assert meter.take()["get_bytes"] == one.size


def test_a_shard_read_as_a_file_is_fetched_whole_but_not_for_a_look_at_its_head(
    one: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    (name,) = one.files
    meter = Meter(server)
    with mounted(
        "ais://one", mountpoint, endpoint=server.endpoint, options=options(tmp_path / "cache")
    ) as mount:
        os.listdir(mount.path)  # it takes a listing to know that all shards fit
        with (mount.path / name).open("rb", buffering=0) as file:
            file.read(512)
            assert meter.take()["get_bytes"] < 2 * MIB
            file.seek(0)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.read(MIB)
            assert meter.take()["get_bytes"] > one.size - 2 * MIB


def epochs(mount: Path, data: Dataset, access: str) -> Iterator[int]:
    """Read everything, epoch after epoch."""
    for epoch in range(EPOCHS):
        match access:
            case "samples shuffled":
                read(mount, samples_shuffled(data.members, epoch))
            case "shards shuffled":
                read(mount, shuffled(data.files, epoch))
        yield epoch


ACCESS = pytest.mark.parametrize("access", ["samples shuffled", "shards shuffled"])


@ACCESS
def test_room_for_half_of_the_data_saves_nearly_half(
    access: str, shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    meter = Meter(server)
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint,
        options=options(tmp_path / "cache", *HALF), deadline=110,
    ) as mount:  # fmt: skip
        if not access.startswith("shards"):
            list_folders(mount.path, shards)
        fetched = [meter.take()["get_bytes"] for _ in epochs(mount.path, shards, access)]
    shares = [round(each / shards.size, 3) for each in fetched]
    assert all(share <= 0.55 for share in shares[1:]), shares


def test_a_look_into_a_large_member_fetches_little(
    server: RunningServer, store: Path, mountpoint: Path, tmp_path: Path
):
    large = make_shards(store / "large", 1, 1, 24 * MIB)
    (name,) = pictures(large.members)
    small = ("--cache-size", "8MiB", "--memory-limit", "16MiB")
    meter = Meter(server)
    with mounted(
        "ais://large", mountpoint, endpoint=server.endpoint,
        options=options(tmp_path / "cache", *small),
    ) as mount:  # fmt: skip
        list_folders(mount.path, large)
        meter.take()
        with (mount.path / name).open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for place in (7, 15, 11):
                assert len(os.pread(file.fileno(), 4096, place * MIB)) == 4096
        assert meter.take()["get_bytes"] <= 3 * 8192


@ACCESS
def test_with_room_for_all_each_shard_is_fetched_once(
    access: str, shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    meter = Meter(server)
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=options(tmp_path / "cache")
    ) as mount:
        fetched = [meter.take()["get_bytes"] for _ in epochs(mount.path, shards, access)]
    assert fetched == [shards.size] + [0] * (EPOCHS - 1)
