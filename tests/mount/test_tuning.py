"""What is fetched before it is asked for: enough to hide the way to the cluster, and no more."""

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.mount.cache_data import Dataset, make_objects, make_shards
from tests.mount.cache_tools import MIB, READER, Meter, job, read, readers, watch
from tests.support.mounts import Mount, eventually, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

BIG = 64 * MIB
DELAY = 0.5
"""Seconds that each GET takes, large against the time that the bytes take."""
LONG_ENOUGH = 2.0
"""Seconds in which a prefetch would have happened."""


@pytest.fixture(scope="module")
def big(store: Path) -> Dataset:
    """An object of 64 MiB."""
    return make_objects(store / "big", 1, BIG)


@pytest.fixture(scope="module")
def many(store: Path) -> Dataset:
    """Eight objects of 32 MiB."""
    return make_objects(store / "many", 8, 32 * MIB)


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    """16 shards of 2 MiB."""
    return make_shards(store / "shards", 16, 16, 128 * 1024)


@pytest.fixture(scope="module")
def server(store: Path, big: Dataset, many: Dataset, shards: Dataset) -> Iterator[RunningServer]:
    with running_server(store, faulty=True) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_faults_are_left(server: RunningServer) -> Iterator[None]:
    yield
    server.faults([])


@pytest.fixture
def cache(tmp_path: Path) -> tuple[str, str]:
    return ("--cache-dir", str(tmp_path / "cache"))


# Read-ahead --------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [(), ("--cache-size", "0")], ids=["cache", "no-cache"])
def test_a_sequential_reader_hides_the_delay(
    more: tuple[str, ...],
    cache: tuple[str, str],
    big: Dataset,
    server: RunningServer,
    mountpoint: Path,
):
    match = {"method": "GET", "path_contains": "object-", "marked": True}
    server.faults([{"match": match, "action": "stall", "seconds": DELAY, "times": -1}])
    meter = Meter(server)
    with mounted(
        "ais://big", mountpoint, endpoint=server.endpoint, options=(*cache, *more)
    ) as mount:
        start = time.monotonic()
        read(mount.path, big.files)
        elapsed = time.monotonic() - start
        taken = meter.take()
    assert taken["get"] <= BIG // MIB + 8, taken
    assert taken["get_bytes"] == BIG, "fetched twice, or from behind the end"
    one_by_one = taken["get"] * DELAY
    assert elapsed < 0.7 * one_by_one, (elapsed, taken)


def test_read_ahead_can_be_turned_off(
    cache: tuple[str, str], big: Dataset, server: RunningServer, mountpoint: Path
):
    meter = Meter(server)
    (name,) = big.files
    with mounted(
        "ais://big", mountpoint, endpoint=server.endpoint,
        options=(*cache, "--read-ahead-max", "0"),
    ) as mount:  # fmt: skip
        with open(mount.path / name, "rb", buffering=0) as file:
            file.read(4096)
        # What the kernel reads ahead by itself is no more than that.
        assert meter.take()["get_bytes"] <= 4 * MIB + 4096


def test_a_look_at_the_head_fetches_little(
    cache: tuple[str, str], big: Dataset, server: RunningServer, mountpoint: Path
):
    meter = Meter(server)
    (name,) = big.files
    with mounted("ais://big", mountpoint, endpoint=server.endpoint, options=cache) as mount:
        with open(mount.path / name, "rb", buffering=0) as file:
            file.read(4096)
        assert meter.take()["get_bytes"] <= 6 * MIB


def test_random_reads_fetch_what_they_ask_for(
    cache: tuple[str, str], big: Dataset, server: RunningServer, mountpoint: Path
):
    chance = random.Random("random reads")
    meter = Meter(server)
    (name,) = big.files
    source = (server.root / "big" / name).read_bytes()
    with mounted("ais://big", mountpoint, endpoint=server.endpoint, options=cache) as mount:
        fd = os.open(mount.path / name, os.O_RDONLY)
        try:
            for _ in range(64):
                offset = chance.randrange(MIB, BIG - 4096)
                assert os.pread(fd, 4096, offset) == source[offset : offset + 4096]
        finally:
            os.close(fd)
        assert meter.take()["get_bytes"] <= 64 * 128 * 1024 + MIB


def test_two_sequential_readers_of_one_object(
    cache: tuple[str, str], big: Dataset, server: RunningServer, mountpoint: Path
):
    """Interleaved in one process, half the object apart; both are read ahead, nothing is fetched twice."""
    meter = Meter(server)
    (name,) = big.files
    source = (server.root / "big" / name).read_bytes()
    with mounted("ais://big", mountpoint, endpoint=server.endpoint, options=cache) as mount:
        one, other = (os.open(mount.path / name, os.O_RDONLY) for _ in range(2))
        try:
            for offset in range(0, BIG // 2, 128 * 1024):
                for fd, place in ((one, offset), (other, offset + BIG // 2)):
                    data = os.pread(fd, 128 * 1024, place)
                    assert data == source[place : place + 128 * 1024], place
        finally:
            os.close(one)
            os.close(other)
        taken = meter.take()
    assert taken["get_bytes"] == BIG, taken
    assert taken["get"] <= BIG // MIB + 8, taken


# Prefetch ----------------------------------------------------------------------------------------


def names(shards: Dataset, *numbers: int) -> dict[str, str]:
    every = list(shards.files.items())
    return dict(every[number] for number in numbers)


def fetched(counts: Callable[[], Mapping[str, int]]) -> list[int]:
    """Numbers of the shards of which anything was asked for."""
    return sorted(int(name[6:10]) for name, count in counts().items() if count)


def never(condition: Callable[[], bool]) -> bool:
    return not eventually(condition, LONG_ENOUGH)


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "names known"])
def test_the_next_shards_in_name_order_are_prefetched(
    listed: bool, cache: tuple[str, str], shards: Dataset, server: RunningServer, mountpoint: Path
):
    counts = watch(server, list(shards.files))
    with mounted("ais://shards", mountpoint, endpoint=server.endpoint, options=cache) as mount:
        if listed:
            os.listdir(mount.path)
        read(mount.path, names(shards, 0, 1, 2))
        assert eventually(lambda: 3 in fetched(counts), 10), counts()
        assert never(lambda: len(fetched(counts)) > 3 + 2), counts()
        meter = Meter(server)
        before = counts()["shard-0003.tar"]
        read(mount.path, names(shards, 3))
        assert counts()["shard-0003.tar"] == before
        assert meter.take()["get_bytes"] <= 2 * shards.size // 16, "not more than the next two"


def test_members_in_order_prefetch_the_next_shards(
    cache: tuple[str, str], shards: Dataset, server: RunningServer, mountpoint: Path
):
    counts = watch(server, list(shards.files))
    first = {k: v for k, v in shards.members.items() if k < "shard-0003"}
    with mounted("ais://shards", mountpoint, endpoint=server.endpoint, options=cache) as mount:
        os.listdir(mount.path)
        read(mount.path, first)
        assert eventually(lambda: 3 in fetched(counts), 10), counts()


def test_prefetch_can_be_turned_off(
    cache: tuple[str, str], shards: Dataset, server: RunningServer, mountpoint: Path
):
    counts = watch(server, list(shards.files))
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint,
        options=(*cache, "--prefetch-shards", "0"),
    ) as mount:  # fmt: skip
        os.listdir(mount.path)
        read(mount.path, names(shards, 0, 1, 2, 3))
        assert never(lambda: fetched(counts) != [0, 1, 2, 3]), counts()


@pytest.mark.parametrize("order", [(5, 12, 0, 9, 14, 2, 7), (15, 11, 6, 3, 13, 8)])
def test_random_order_prefetches_nothing(
    order: tuple[int, ...], cache: tuple[str, str], shards: Dataset, server: RunningServer,
    mountpoint: Path,
):  # fmt: skip
    counts = watch(server, list(shards.files))
    with mounted("ais://shards", mountpoint, endpoint=server.endpoint, options=cache) as mount:
        os.listdir(mount.path)
        read(mount.path, names(shards, *order))
        assert never(lambda: fetched(counts) != sorted(order)), counts()


# The kernel and memory -----------------------------------------------------------------------------


def device(mount: Mount) -> str:
    minor = os.stat(mount.path).st_dev
    return f"{os.major(minor)}:{os.minor(minor)}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise it")
def test_the_kernel_reads_ahead_more_than_by_default(
    cache: tuple[str, str], server: RunningServer, mountpoint: Path
):
    with mounted("ais://big", mountpoint, endpoint=server.endpoint, options=cache) as mount:
        bdi = Path("/sys/class/bdi") / device(mount)
        assert int((bdi / "read_ahead_kb").read_text()) > 128
        assert "read_ahead_kb" not in mount.log()


def memory(pid: int) -> int:
    """The most that a process has had in memory, with what it has mapped."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) * 1024


@pytest.mark.parametrize("more", [(), ("--cache-size", "0")], ids=["cache", "no-cache"])
def test_memory_stays_bounded(
    more: tuple[str, ...],
    cache: tuple[str, str],
    many: Dataset,
    server: RunningServer,
    mountpoint: Path,
):
    with mounted(
        "ais://many", mountpoint, endpoint=server.endpoint,
        options=(*cache, "--memory-limit", "32MiB", *more),
    ) as mount:  # fmt: skip
        jobs = [job(mount.path, {name: sha}) for name, sha in many.files.items()]
        with readers(READER, jobs) as wait:
            assert wait() == []
        peak = memory(mount.pid)
    assert peak < 400 * MIB, f"{peak / MIB:.0f} MiB"


def test_less_memory_than_readers_need_is_no_error(
    cache: tuple[str, str], many: Dataset, server: RunningServer, mountpoint: Path
):
    """16 MiB, the least there may be, for readers with 8 MiB under way each."""
    with mounted(
        "ais://many", mountpoint, endpoint=server.endpoint,
        options=(*cache, "--memory-limit", "16MiB", "--cache-size", "0"),
    ) as mount:  # fmt: skip
        some = dict(list(many.files.items())[:2])
        jobs = [job(mount.path, some, piece) for piece in (4096, MIB, 7 * MIB)]
        with readers(READER, jobs) as wait:
            assert wait() == []
