"""Map-style data sets of paths where AIStore's SDK has AISMapDataset, prefix_map and a sampler."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from aistore.pytorch import AISMapDataset, DynamicBatchSampler
from aistore.sdk import Client
from torch.utils.data import DataLoader

from examples.path_dataset import PathDataset
from tests.mount.content import fill, payload
from tests.support.mounts import Mount, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(400)]

PAGE = 10_000
SMALL, LARGE = 10_000, 100_000
LIMIT = 64 * 1024
"""Bytes of a batch."""


@pytest.fixture(scope="module")
def server(base: Path) -> Iterator[RunningServer]:
    store = base / "store"
    keys = [f"{part}/{number:03}.bin" for part in ("train", "trial", "test") for number in range(9)]
    fill(store / "b", {key: payload(100 + at, key) for at, key in enumerate(keys)})
    fill(store / "b", {"train/deep/x.bin": b"deep", "top.bin": b"top"})
    for name, count in (("small", SMALL), ("large", LARGE)):
        make_sparse(store / name / "files", count)
    with running_server(store) as server:
        yield server


def make_sparse(folder: Path, count: int) -> None:
    """Files of many sizes that take no room."""
    folder.mkdir(parents=True)
    for number in range(count):
        with open(folder / f"{number:06}.bin", "wb") as file:
            file.truncate(1 + number * 7919 % 4000)


@pytest.fixture(scope="module")
def mount(base: Path, server: RunningServer) -> Iterator[Mount]:
    with mounted(None, base / "mnt", endpoint=server.endpoint, deadline=380) as mount:
        yield mount


def test_paths_stand_for_ais_map_dataset(mount: Mount, server: RunningServer):
    sdk = AISMapDataset(ais_source_list=Client(server.endpoint).bucket("b"))
    paths = PathDataset(f"{mount.path}/ais/b")
    assert len(paths) == len(sdk) == 29
    assert sorted(paths[at] for at in range(29)) == sorted(sdk[at] for at in range(29))


@pytest.mark.parametrize("prefixes", [["train/"], ["tr"], ["test/", "train/deep/"], ["top"], ["x"]])
def test_prefixes_stand_for_prefix_map(mount: Mount, server: RunningServer, prefixes: list[str]):
    bucket = Client(server.endpoint).bucket("b")
    sdk = AISMapDataset(ais_source_list=bucket, prefix_map={bucket: prefixes})
    paths = PathDataset(f"{mount.path}/ais/b", prefixes)
    assert sorted(paths[at] for at in range(len(paths))) == sorted(
        sdk[at] for at in range(len(sdk))
    )


def test_a_loader_with_workers_reads_the_same(mount: Mount):
    paths = PathDataset(f"{mount.path}/ais/b")
    loader = DataLoader(paths, batch_size=4, shuffle=True, num_workers=2, timeout=60)
    read = [row for names, contents in loader for row in zip(names, contents, strict=True)]
    assert sorted(read) == sorted(paths[at] for at in range(len(paths)))


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_sdks_batch_sampler_takes_sizes_from_the_listing(
    mount: Mount, server: RunningServer, shuffle: bool
):
    """The SDK's own sampler over the SDK's own data set is what it must agree with."""
    paths = PathDataset(f"{mount.path}/ais/b")
    before = server.requests()
    batches = list(DynamicBatchSampler(paths, max_batch_size=1000, shuffle=shuffle))
    assert server.requests() == before
    assert sorted(at for batch in batches for at in batch) == list(range(len(paths)))
    assert all(sum(len(paths[at][1]) for at in batch) <= 1000 for batch in batches)
    if not shuffle:
        sdk = AISMapDataset(ais_source_list=Client(server.endpoint).bucket("b"))
        expected = DynamicBatchSampler(sdk, max_batch_size=1000)
        assert named(batches, [paths[at][0] for at in range(len(paths))]) == named(
            expected, [name.name for name in sdk.get_obj_list()]
        )


def named(batches, names: list[str]) -> list[list[str]]:
    return [[names[at] for at in batch] for batch in batches]


def operations(mount: Mount) -> int:
    """Requests of the kernel so far, but for what it forgets whenever memory is wanted elsewhere."""
    stats = os.getxattr(mount.path, "user.aisfs.stats").decode()
    counts = re.findall(
        r'^aisfs_operations_total\{.*operation="(?!forget|batch_forget)\w+".*\} (\S+)$',
        stats,
        re.MULTILINE,
    )
    return sum(int(float(count)) for count in counts)


def test_sizes_of_many_files_cost_their_listing_only(mount: Mount, server: RunningServer):
    """Nothing is asked for a file singly, so the cost grows as the number of files."""
    cost = {}
    for name, count in (("small", SMALL), ("large", LARGE)):
        before, asked = server.requests(), operations(mount)
        paths = PathDataset(f"{mount.path}/ais/{name}")
        batches = list(DynamicBatchSampler(paths, max_batch_size=LIMIT))
        assert sum(map(len, batches)) == len(paths) == count
        after = server.requests()
        assert after.get("list_page", 0) - before.get("list_page", 0) <= count // PAGE + 4
        for kind in ("get", "head"):
            assert after.get(kind, 0) == before.get(kind, 0)
        cost[count] = operations(mount) - asked
    assert cost[LARGE] < cost[SMALL] * LARGE / SMALL * 1.2, cost
    assert cost[LARGE] < LARGE / 10, cost
