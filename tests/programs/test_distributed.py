"""Several processes that train together over one mount: they share the data and repeat nothing."""

import json
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.mount import zoo
from tests.programs.pictures import write_folders, write_samples
from tests.programs.programs import run_all
from tests.support.mounts import Mount, mounted
from tests.support.servers import running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

WORLD = 2
SHARDS, SAMPLES = 6, 20
PICTURES = 61
TRAINER = "examples/imagenet_train.py"
SMALL = ["--classes", "3", "--size", "32", "--batch-size", "8", "--workers", "1"]


@pytest.fixture(scope="module")
def mount(base: Path) -> Iterator[Mount]:
    write_samples(base / "store" / "pets", shards=SHARDS, samples=SAMPLES)
    write_folders(base / "tree" / "train", PICTURES)
    for part in range(3):
        tree = base / f"part-{part}"
        for path in sorted((base / "tree" / "train").rglob("*.jpg"))[part::3]:
            place = tree / path.parent.name / path.name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.hardlink_to(path)
        zoo.gnu_tar("-C", str(tree), "--sort=name", "-cf", str(base / f"part-{part}.tar"), ".")
        (base / f"part-{part}.tar").rename(base / "store" / "pets" / f"part-{part}.tar")
    (base / "tree" / "train").rename(base / "store" / "pets" / "train")
    with (
        running_server(base / "store") as server,
        mounted("ais://pets", base / "mnt", endpoint=server.endpoint, deadline=280) as mount,
    ):
        yield mount


def ranks() -> list[Mapping[str, str]]:
    """What a launcher sets for each process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = {"WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(WORLD)]


def shares(home: Path, script: str, *arguments: str) -> list[list[str]]:
    """What each process printed last, as JSON."""
    outputs = run_all(home, *((["-c", script, *arguments], rank) for rank in ranks()))
    return [json.loads(out.splitlines()[-1]) for out in outputs]


def test_webdataset_splits_shards_by_node(mount: Mount, tmp_path: Path):
    script = """
import json, sys
import webdataset as wds
samples = wds.WebDataset(sys.argv[1], shardshuffle=False, nodesplitter=wds.split_by_node)
print(json.dumps([f"{sample['__url__']} {sample['__key__']}" for sample in samples]))
"""
    first, second = shares(tmp_path, script, f"{mount.path}/samples-{{00..{SHARDS - 1:02}}}.tar")
    assert {len(first), len(second)} == {SHARDS * SAMPLES // WORLD}
    shards = [{row.split()[0] for row in share} for share in (first, second)]
    assert not shards[0] & shards[1]
    assert len(shards[0] | shards[1]) == SHARDS
    assert len({row.split()[1] for row in first + second}) == SHARDS * SAMPLES


SAMPLER = """
import json, sys
from torch import distributed
from torch.utils.data.distributed import DistributedSampler
from aisfs.torch import ShardWindowSampler
from pathlib import Path
paths = [str(path) for part in range(3) for path in
         sorted(Path(sys.argv[1], f"part-{part}.tar.d").rglob("*.jpg"))]
distributed.init_process_group("gloo")
sampler = {
    "torch": lambda: DistributedSampler(paths, seed=1, drop_last=True),
    "window": lambda: ShardWindowSampler(paths, window=2, seed=1, drop_last=True, pieces=2),
}[sys.argv[2]]()
read = [paths[at] for at in sampler if Path(paths[at]).read_bytes()]
distributed.destroy_process_group()
print(json.dumps(read))
"""


@pytest.mark.parametrize("kind", ["torch", "window"])
def test_samplers_deal_samples(mount: Mount, tmp_path: Path, kind: str):
    """ShardWindowSampler takes its rank from torch.distributed, as DistributedSampler does."""
    first, second = shares(tmp_path, SAMPLER, str(mount.path), kind)
    assert len(first) == len(second) == PICTURES // WORLD
    assert len({*first, *second}) == PICTURES // WORLD * WORLD
    opened = Counter(
        shard for share in (first, second) for shard in {path.split("/")[-3] for path in share}
    )
    assert len(opened) == 3
    if kind == "window":
        assert sum(opened.values()) <= 3 + WORLD - 1


def trained(outputs: list[str]) -> dict[tuple[int, int], int]:
    """Samples that each process saw, by epoch and process."""
    line = r"^epoch (\d+), process (\d+) of \d+: (\d+) samples, loss \d+\.\d\d$"
    found = re.findall(line, "".join(outputs), re.MULTILINE)
    return {(int(epoch), int(rank)): int(seen) for epoch, rank, seen in found}


def test_the_trainer_streams_shards(mount: Mount, tmp_path: Path):
    shards = f"{mount.path}/samples-{{00..{SHARDS - 1:02}}}.tar"
    one = [TRAINER, "--shards", shards, *SMALL, "--steps", "4"]
    assert trained(run_all(tmp_path, (one, {}))) == {(1, 0): 32}
    both = [([TRAINER, "--shards", shards, *SMALL], rank) for rank in ranks()]
    half = SHARDS * SAMPLES // WORLD
    assert trained(run_all(tmp_path, *both)) == {(1, 0): half, (1, 1): half}


def test_the_trainer_reads_class_folders(mount: Mount, tmp_path: Path):
    """Objects in folders, shuffled by torch; and members of a shard, within a window."""
    objects = [TRAINER, "--imagenet", f"{mount.path}/train", *SMALL, "--epochs", "2"]
    assert trained(run_all(tmp_path, (objects, {}))) == {(1, 0): PICTURES, (2, 0): PICTURES}
    members = [TRAINER, "--imagenet", f"{mount.path}/part-0.tar.d", *SMALL, "--window", "1"]
    seen = trained(run_all(tmp_path, *((members, rank) for rank in ranks())))
    assert seen == {(1, 0): 11, (1, 1): 11}  # of 21 pictures, one is seen twice
