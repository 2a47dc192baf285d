"""Cache files that are cut while the daemon has them mapped: it lives, and every byte is right.

A process that touches a page behind the end of a mapped file gets SIGBUS, and so it does when the disk
below fails. Files that are cut are how that is brought about here.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.mount.cache_data import Dataset, make_shards
from tests.mount.cache_tools import DAMAGED, MIB, Meter, data_files, list_folders, read
from tests.mount.content import fill, payload
from tests.support.archives import make_zip, text
from tests.support.mounts import Mount, eventually, mounted
from tests.support.servers import RunningServer

pytestmark = pytest.mark.mount

BORDER = 16 * MIB
"""Where a file of the cache ends and the next one begins."""
LARGE = payload(BORDER + 3 * MIB, "large")
ZIPPED = {f"{number:02}.txt": text(200_000, number) for number in range(20)}


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    """Shards, and beside them one large object and a zip."""
    dataset = make_shards(store / "shards", 4, 150, 20_000)
    fill(store / "shards", {"other/large.bin": LARGE, "other/texts.zip": make_zip(ZIPPED)})
    return dataset


@contextmanager
def with_cache(server: RunningServer, mountpoint: Path, cache: Path) -> Iterator[Mount]:
    with mounted(
        "ais://shards",
        mountpoint,
        endpoint=server.endpoint,
        options=("--cache-dir", str(cache), "--cache-size", "200MiB"),
        expected_log=[DAMAGED, "cache bypassed"],
    ) as mount:
        yield mount
        assert mount.living() == mount.pids


def read_large(mount: Mount) -> None:
    """Read it in large pieces, whose pages the kernel does not have."""
    fd = os.open(mount.path / "other/large.bin", os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for offset in range(0, len(LARGE), MIB):
            assert os.pread(fd, MIB, offset) == LARGE[offset : offset + MIB], offset
    finally:
        os.close(fd)


def read_at_random(mount: Mount) -> None:
    fd = os.open(mount.path / "other/large.bin", os.O_RDONLY)
    chance = random.Random(1)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for _ in range(300):
            offset = chance.randrange(len(LARGE))
            assert os.pread(fd, 100, offset) == LARGE[offset : offset + 100], offset
    finally:
        os.close(fd)


def read_zip(mount: Mount) -> None:
    for name, content in ZIPPED.items():
        path = mount.path / "other/texts.zip.d" / name
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert file.readall() == content, name


@pytest.mark.parametrize("work", [read_large, read_at_random, read_zip])
def test_what_is_read_is_right(
    work: Callable[[Mount], None],
    server: RunningServer,
    shards: Dataset,
    mountpoint: Path,
    tmp_path: Path,
):
    with with_cache(server, mountpoint, tmp_path / "cache") as mount:
        for _ in range(2):
            work(mount)  # from files that are mapped, from the second time on
            work(mount)
            for path in data_files(tmp_path / "cache"):
                os.truncate(path, 0)
            work(mount)


def test_a_page_of_which_the_end_was_cut_is_not_believed(
    server: RunningServer, shards: Dataset, mountpoint: Path, tmp_path: Path
):
    """It is mapped still, and reads as zeros from there on."""
    cache = tmp_path / "cache"
    with with_cache(server, mountpoint, cache) as mount:
        read_large(mount)
    with with_cache(server, mountpoint, cache) as mount:  # nothing is in the daemon's memory
        read_large(mount)
        read_large(mount)
        for path in data_files(cache):
            os.truncate(path, path.stat().st_size - 100)
        time.sleep(0.02)  # its length is believed for half of that
        read_large(mount)


def test_members_that_were_lost_are_fetched_ahead_of_their_reader(
    server: RunningServer, shards: Dataset, mountpoint: Path, tmp_path: Path
):
    """In large pieces as the first time, not each by a request of its own."""
    cache = tmp_path / "cache"
    with with_cache(server, mountpoint, cache) as mount:
        list_folders(mount.path, shards)
        read(mount.path, shards.members)
        for path in data_files(cache):
            os.truncate(path, 0)
        meter = Meter(server)
        read(mount.path, shards.members)
        taken = meter.take()
        # The kernel may have kept any share of the pages, and asks for the rest only.
        assert taken["get"] < len(shards.members) // 10


def whole(path: Path) -> bool:
    """Whether nothing is missing in a file; what is written behind a cut would make a hole of it."""
    found = path.stat()
    return found.st_blocks * 512 >= found.st_size


def test_members_are_right_while_files_are_cut(
    server: RunningServer, shards: Dataset, mountpoint: Path, tmp_path: Path
):
    """Members in order, which are pushed; shards as files; folders opened anew."""
    cache = tmp_path / "cache"
    chance = random.Random(2)

    def cut(paths: list[Path]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):  # found out before, and removed
                os.truncate(path, 4096 * chance.randrange(path.stat().st_size // 4096))
            time.sleep(0.03)

    with with_cache(server, mountpoint, cache) as mount:
        for _ in range(2):
            list_folders(mount.path, shards)
            read(mount.path, shards.members)
            read(mount.path, shards.files)
            assert eventually(lambda: any(map(whole, data_files(cache))))
            paths = [path for path in data_files(cache) if whole(path)]
            thread = threading.Thread(target=cut, args=[paths])
            thread.start()
            try:
                list_folders(mount.path, shards)
                read(mount.path, shards.members)
            finally:
                thread.join()
