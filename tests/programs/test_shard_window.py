"""ShardWindowSampler on a mount: it knows the shards, and an epoch fetches each of them once."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch.utils.data import DataLoader
from torchvision.datasets import DatasetFolder

from aisfs.torch import ShardWindowSampler
from tests.mount.cache_data import Dataset, make_shards
from tests.mount.cache_tools import Meter
from tests.support.for_each import for_each
from tests.support.mounts import Mount, mounted, python
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

SHARDS, SAMPLES, SIZE = 24, 32, 128 * 1024
WINDOW = 4
SMALL = ("--cache-size", "21MiB", "--memory-limit", "16MiB")
"""Four shards of 4 MiB on disk, and 5 MiB for indexes, the ledger and its margin."""


class Files:
    """A map-style data set of paths, as any that is not torchvision's."""

    def __init__(self, paths):
        self.samples = [(path, 0) for path in paths]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, at):
        with open(self.samples[at][0], "rb") as file:
            size = len(file.read())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return at, size


@pytest.fixture(scope="module")
def data(base: Path) -> Dataset:
    return make_shards(base / "store" / "shards", SHARDS, SAMPLES, SIZE)


@pytest.fixture(scope="module")
def server(base: Path, data: Dataset) -> Iterator[RunningServer]:
    with running_server(base / "store") as server:
        yield server


@pytest.fixture
def mount(base: Path, server: RunningServer) -> Iterator[Mount]:
    """A mount with room for four shards."""
    options = ("--cache-dir", str(base / "cache"), *SMALL)
    with mounted("ais://shards", base / "mnt", endpoint=server.endpoint, options=options) as mount:
        yield mount
    shutil.rmtree(base / "cache")


def pictures(mount: Mount) -> Files:
    folders = sorted(f"{mount.path}/{name}.d" for name in os.listdir(mount.path))
    return Files(
        f"{folder}/{name}" for folder in folders for name in sorted(os.listdir(folder))
        if name.endswith(".jpg")
    )  # fmt: skip


def read(dataset: Files, sampler) -> list[int]:
    seen = []
    for positions, sizes in DataLoader(dataset, batch_size=16, sampler=sampler):
        assert set(sizes.tolist()) == {SIZE}
        seen += positions.tolist()
    return seen


def shard_of(path: str) -> str:
    return os.getxattr(path, "user.aisfs.shard").decode()


def most_open(paths: list[str]) -> int:
    """How many shards were begun and not finished, at the worst moment."""
    left = Counter(map(shard_of, paths))
    begun, most = set(), 0
    for shard in map(shard_of, paths):
        begun.add(shard)
        most = max(most, len(begun))
        left[shard] -= 1
        if not left[shard]:
            begun.remove(shard)
    return most


VIEWS = {
    "members": [],
    "samples": ["--view", "samples"],
    "class": ["--view", "class", "--label", r"re:(\d)$"],
    "flat": ["--view", "flat"],
}


@contextmanager
def dataset_mount(base: Path, server: RunningServer, *options: str) -> Iterator[Mount]:
    source = f"ais://shards/shard-{{0000..{SHARDS - 1:04}}}.tar"
    with mounted(source, base / "mnt", endpoint=server.endpoint, options=options) as mount:
        yield mount


@pytest.mark.parametrize("view", VIEWS)
def test_shards_are_known_in_every_view(
    base: Path, data: Dataset, server: RunningServer, view: str
):
    """A data set of torchvision's, whose classes are the folders that the view has."""
    with dataset_mount(base, server, *VIEWS[view]) as mount:
        root = mount.path.parent if view == "flat" else mount.path
        dataset = DatasetFolder(str(root), loader=length, extensions=(".jpg",), allow_empty=True)
        assert len(dataset) == SHARDS * SAMPLES
        assert ("mnt" in dataset.classes) == (view == "flat")
        sampler = ShardWindowSampler(dataset, window=WINDOW)
        assert sampler.shards == SHARDS
        order = list(sampler)
        assert most_open([dataset.samples[at][0] for at in order]) == WINDOW
        assert {dataset[at][0] for at in order[:50]} == {SIZE}


def length(path: str) -> int:
    return len(Path(path).read_bytes())


def test_an_epoch_of_class_folders_fetches_no_more_than_the_data(
    base: Path, data: Dataset, server: RunningServer
):
    """Show 2 of issue 5: the disk cache has room for the window, memory for as much again."""
    cache = ("--cache-dir", str(base / "class-cache"), *SMALL)
    with dataset_mount(base, server, *VIEWS["class"], *cache) as mount:
        dataset = DatasetFolder(str(mount.path), loader=length, extensions=(".jpg",))
        assert len(dataset.classes) == 10
        sampler = ShardWindowSampler(dataset, window=WINDOW)
        meter = Meter(server)
        meter.take()  # the labels came with a scan of the shards
        assert [dataset[at][0] for at in sampler] == [SIZE] * (SHARDS * SAMPLES)
        taken = meter.take()
        assert 0 < taken["get_bytes"] <= 1.05 * data.size, taken


def test_an_epoch_fetches_no_more_than_the_data(data: Dataset, server: RunningServer, mount: Mount):
    """The same with shards as folders of a bucket, epoch after epoch."""
    meter = Meter(server)
    dataset = pictures(mount)
    meter.take()  # listing scanned the shards
    sampler = ShardWindowSampler(dataset, window=WINDOW)
    assert sampler.shards == SHARDS
    meter.nothing()
    orders = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        order = read(dataset, sampler)
        assert sorted(order) == list(range(SHARDS * SAMPLES))
        assert most_open([dataset.samples[at][0] for at in order]) <= WINDOW
        taken = meter.take()
        assert 0 < taken["get_bytes"] <= 1.05 * data.size, taken
        orders.append(order)
    assert orders[0] != orders[1]


def test_samples_are_named_in_every_usual_way(mount: Mount):
    dataset = pictures(mount)
    paths = [path for path, _ in dataset.samples]
    mixed = [Path(path) if at % 2 else path for at, path in enumerate(paths)]
    orders = [
        list(ShardWindowSampler(samples, window=WINDOW, seed=5))
        for samples in (dataset, dataset.samples, paths, tuple(paths), mixed)
    ]
    assert all(order == orders[0] for order in orders)
    assert list(ShardWindowSampler(paths, window=WINDOW, seed=6)) != orders[0]


def test_replicas_get_shares_of_the_same_length(mount: Mount):
    paths = [path for path, _ in pictures(mount).samples][:-3]
    samplers = [
        ShardWindowSampler(paths, window=2, num_replicas=4, rank=rank, drop_last=True, pieces=4)
        for rank in range(4)
    ]
    shares = [list(sampler) for sampler in samplers]
    assert {len(share) for share in shares} == {len(paths) // 4} == {len(samplers[0])}
    assert len(set().union(*shares)) == 4 * (len(paths) // 4)
    opened = Counter(shard for share in shares for shard in {shard_of(paths[at]) for at in share})
    assert sum(opened.values()) <= SHARDS + 3  # so many cuts


def test_a_shard_is_known_by_any_name(mount: Mount):
    """Through the shard's folder, or as a file of the bucket beside others."""
    names = sorted(os.listdir(mount.path))
    paths = [f"{mount.path}/{names[0]}", f"{mount.path}/{names[1]}.d/00001.jpg"]
    paths += [f"{mount.path}/{names[1]}.d/00002.jpg", f"{mount.path}/{names[1]}"]
    assert ShardWindowSampler(paths, window=1).shards == 3


def test_files_of_any_other_kind_are_all_shuffled(tmp_path: Path):
    for number in range(100):
        (tmp_path / f"{number:03}").write_bytes(b"")
    paths = sorted(map(str, tmp_path.iterdir()))
    sampler = ShardWindowSampler(paths, window=1)
    assert sampler.shards == 100
    order = list(sampler)
    assert sorted(order) == list(range(100)) != order


def test_nothing_to_read(tmp_path: Path):
    sampler = ShardWindowSampler([], window=4)
    assert (len(sampler), list(sampler), sampler.shards) == (0, [], 0)


@for_each(
    "options, reason",
    [
        ({"window": 0}, "window must be at least one shard, not 0"),
        ({"window": 1, "num_replicas": 2, "rank": 2}, "rank 2 is not one of 2 replicas"),
        ({"window": 1, "num_replicas": 0, "rank": 0}, "rank 0 is not one of 0 replicas"),
    ],
)
def test_what_makes_no_sense_is_refused(options, reason: str):
    with pytest.raises(ValueError, match=reason):
        ShardWindowSampler([], **options)


def test_a_path_alone_is_refused(tmp_path: Path):
    for path in (tmp_path, str(tmp_path)):
        with pytest.raises(TypeError, match="not the path"):
            ShardWindowSampler(path, window=1)


def test_a_missing_sample_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"gone\.jpg"):
        ShardWindowSampler([str(tmp_path / "gone.jpg")], window=1)


def test_it_asks_torch_for_the_rank_only():
    """The module can be imported, and used with a rank, where torch is not installed."""
    script = """
import sys
sys.modules["torch"] = None
from aisfs.torch import ShardWindowSampler
print(len(ShardWindowSampler([], window=1, num_replicas=1, rank=0)))
try:
    ShardWindowSampler([], window=1)
except ModuleNotFoundError as error:
    print(error)
"""
    said = python(script).decode().splitlines()
    assert said[0] == "0"
    assert "pip install torch" in said[1]
