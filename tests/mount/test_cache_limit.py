"""The cache directory never takes more of the disk than it may, whoever reads, and how often."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.mount.cache_data import Dataset, dealt, make_objects, make_shards, shuffled
from tests.mount.cache_tools import (
    MIB,
    RANDOM_READER,
    READER,
    disk_usage,
    job,
    list_folders,
    read,
    readers,
    watched_disk,
)
from tests.support.mounts import mounted, succeed
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

LIMIT = 64 * MIB
LOOKS = 30
"""Samples of the disk's use that a test must have taken to say something."""
COUNT = 100
"""Pieces that each random reader reads."""


@pytest.fixture(scope="module")
def objects(store: Path) -> Dataset:
    """Twice the limit and more: five objects of 32 MiB; each takes two segments of the cache."""
    return make_objects(store / "objects", 5, 32 * MIB)


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    """More than the limit: 96 shards of 1 MiB, with members of all sizes."""
    return make_shards(store / "shards", 96, 8, 126_000)


@pytest.fixture(scope="module")
def server(store: Path, objects: Dataset, shards: Dataset) -> Iterator[RunningServer]:
    with running_server(store) as server:
        yield server


def random_jobs(root: Path, bucket: Path, data: Dataset, seeds: Sequence[int]) -> list[dict]:
    files = [(str(root / name), str(bucket / name)) for name in data.files]
    return [{"files": files, "seed": seed, "count": COUNT} for seed in seeds]


def read_in_every_way(roots: Sequence[Path], store: Path, data: Dataset) -> list[str]:
    """Eight processes: four read all files in order, a quarter each, four read at random."""
    ordered = [job(roots[at % len(roots)], part) for at, part in enumerate(dealt(data.files, 4))]
    chaotic = [
        each
        for at in range(4)
        for each in random_jobs(roots[at % len(roots)], store / "objects", data, [at])
    ]
    with readers(READER, ordered) as one, readers(RANDOM_READER, chaotic) as other:
        return one() + other()


@pytest.mark.parametrize("daemons", [1, 2])
def test_eight_readers_never_exceed_the_limit(
    daemons: int, objects: Dataset, server: RunningServer, tmp_path: Path
):
    cache = tmp_path / "cache"
    options = ("--cache-dir", str(cache), "--cache-size", "64MiB", "--memory-limit", "64MiB")
    with ExitStack() as stack:
        roots = []
        for number in range(daemons):
            place = tmp_path.resolve() / f"mnt-{number}"
            place.mkdir()
            mount = stack.enter_context(
                mounted("ais://objects", place, endpoint=server.endpoint, options=options)
            )
            roots.append(mount.path)
        with watched_disk(cache, 0.02) as seen:
            wrong = read_in_every_way(roots, server.root, objects)
    assert not wrong, (len(wrong), wrong[:5])
    assert seen.samples >= LOOKS
    assert LIMIT // 2 < seen.peak <= LIMIT, seen


def test_many_small_shards_never_exceed_the_limit(
    shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    """Segments come and go all the time, and indexes are kept too."""
    cache = tmp_path / "cache"
    options = ("--cache-dir", str(cache), "--cache-size", "64MiB", "--memory-limit", "16MiB")
    with (
        mounted("ais://shards", mountpoint, endpoint=server.endpoint, options=options) as mount,
        watched_disk(cache, 0.02) as seen,
    ):
        list_folders(mount.path, shards)
        read(mount.path, *dealt(shuffled(shards.members, 0), 4), *dealt(shards.files, 4))
    assert seen.samples >= LOOKS
    assert LIMIT // 2 < seen.peak <= LIMIT, seen


@pytest.mark.parametrize("size", ["5MiB", "9MiB"])
def test_the_smallest_caches_hold_their_limit(
    size: str, shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    cache = tmp_path / "cache"
    part = dict(list(shards.files.items())[:20])
    options = ("--cache-dir", str(cache), "--cache-size", size)
    with (
        mounted("ais://shards", mountpoint, endpoint=server.endpoint, options=options) as mount,
        watched_disk(cache) as seen,
    ):
        read(mount.path, *dealt(part, 2))
    assert seen.peak <= int(size.removesuffix("MiB")) * MIB, seen


def test_a_smaller_limit_after_a_remount_holds_at_once(
    shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    cache = tmp_path / "cache"
    place = ("--cache-dir", str(cache), "--cache-size")
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=(*place, "200MiB")
    ) as mount:
        read(mount.path, shards.files)
    assert disk_usage(cache) > 80 * MIB
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=(*place, "32MiB")
    ) as mount:
        assert disk_usage(cache) <= 32 * MIB
        with watched_disk(cache) as seen:
            read(mount.path, *dealt(shards.files, 2))
    assert seen.peak <= 32 * MIB, seen


def test_the_disk_usage_told_by_du(
    shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    """That the measure of these tests is that of `du`."""
    cache = tmp_path / "cache"
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint,
        options=("--cache-dir", str(cache), "--cache-size", "64MiB"),
    ) as mount:  # fmt: skip
        read(mount.path, dict(list(shards.files.items())[:20]))
    said = int(succeed("du", "-s", "--block-size=1", cache).split()[0])
    assert 20 * MIB < said == disk_usage(cache)
