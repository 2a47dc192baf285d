"""`aisfs.torch.announce` and `AnnouncedSampler`: a mount knows what samplers of PyTorch will draw."""

import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aisfs.order import NotAnnounced
from aisfs.torch import (
    AnnouncedSampler,
    ShardSamples,
    ShardWindowSampler,
    SpreadBatches,
    announce,
    announcing,
)
from tests.mount.datasets import sample, write_shard
from tests.support.mounts import Mount, eventually, mounted
from tests.support.servers import running_server

pytestmark = pytest.mark.mount

PICTURES = 120


@pytest.fixture(scope="module")
def data() -> Any:
    """Imported by the one worker that runs these tests, since it takes seconds: all workers collect them."""
    return pytest.importorskip("torch.utils.data")


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    from PIL import Image

    root = tmp_path_factory.mktemp("served")
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "JPEG")
    for number in range(PICTURES):
        path = root / "pets" / f"class{number % 3}" / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture.getvalue())
    mountpoint = tmp_path_factory.mktemp("mnt").resolve()
    with (
        running_server(root) as server,
        mounted("ais://pets", mountpoint, endpoint=server.endpoint) as mount,
    ):
        yield mount


@pytest.fixture
def pictures(mount: Mount) -> Iterator[Any]:
    datasets = pytest.importorskip("torchvision.datasets")
    yield datasets.ImageFolder(str(mount.path), transform=lambda picture: picture.getpixel((0, 0)))
    os.getxattr(mount.path, "user.aisfs.plan.drop")


def plans(mount: Mount) -> list[dict[str, Any]]:
    return list(json.loads(os.getxattr(mount.path, "user.aisfs.plan")))


def all_followed(mount: Mount, log_before: int) -> None:
    """The plan has ended since all of it was read, and the log says how many in its order.

    A worker that the machine holds up for long comes late for a few.
    """
    assert eventually(lambda: plans(mount) == [])
    followed = re.findall(r"(\d+) of (\d+) files were read in its", mount.log()[log_before:])[-1]
    assert int(followed[1]) == PICTURES
    assert int(followed[0]) > 0.9 * PICTURES


def forgotten(mount: Mount) -> int:
    """Have the kernel ask for all bytes again; return where the log is."""
    Path("/proc/sys/vm/drop_caches").write_text("3")
    return len(mount.log())


SAMPLERS = {
    "random": lambda data, files: {"sampler": data.RandomSampler(files), "batch_size": 7},
    "distributed": lambda data, files: {
        "sampler": data.DistributedSampler(files, num_replicas=1, rank=0),
        "batch_size": 7,
    },
    "batches": lambda data, files: {
        "batch_sampler": data.BatchSampler(data.RandomSampler(files), 7, drop_last=False)
    },
    "window": lambda data, files: {
        "sampler": ShardWindowSampler(files, window=3, num_replicas=1, rank=0),
        "batch_size": 7,
    },
    "spread": lambda data, files: {
        "batch_sampler": SpreadBatches(
            ShardWindowSampler(files, window=3, num_replicas=1, rank=0), 7
        )
    },
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may empty the page cache")
@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_loader_reads_was_announced(
    kind: str, workers: int, data: Any, mount: Mount, pictures: Any
):
    words = SAMPLERS[kind](data, pictures)
    for name in ("sampler", "batch_sampler"):
        if name in words:
            words[name] = AnnouncedSampler(pictures, words[name])
    loader = data.DataLoader(pictures, num_workers=workers, **words)
    for _ in range(2):
        before = forgotten(mount)
        assert sum(len(labels) for _, labels in loader) == PICTURES
        all_followed(mount, before)


def test_samples_of_shards_in_a_mount_are_announced(tmp_path: Path, data: Any):
    """With all members of each, in the order in which they are read."""
    (tmp_path / "store" / "b").mkdir(parents=True)
    (tmp_path / "mnt").mkdir()
    for shard in range(2):
        members = [sample(f"{shard}{each:02}", 1, image_jpg=b"picture") for each in range(20)]
        write_shard(tmp_path / "store" / "b" / f"{shard}.tar", members)
    with (
        running_server(tmp_path / "store") as server,
        mounted("ais://b", tmp_path / "mnt", endpoint=server.endpoint) as mount,
    ):
        samples = ShardSamples(mount.path, transform=_key, cache_dir=tmp_path / "cache")
        sampler = AnnouncedSampler(samples, data.RandomSampler(samples))
        assert sum(len(keys) for keys in data.DataLoader(samples, sampler=sampler)) == 40
        [plan] = plans(mount)
        assert plan["files"] == 120
        assert plan["followed"] > 0
        window = ShardWindowSampler(samples, window=1, num_replicas=1, rank=0)
        assert announce(samples, window, epoch=2) == 120
        numbers = announcing._files_of(samples)
        order = window.upcoming(2)
        expected = [number for at in order for number in _members(mount, samples[at])]
        assert numbers.numbers[announcing._spread(order, numbers.counts)].tolist() == expected
        direct = ShardSamples("ais://b", endpoint=server.endpoint, cache_size=0)
        with pytest.raises(NotAnnounced, match=r"ais://b/0\.tar is read without a mount"):
            announce(direct, ShardWindowSampler(direct, window=1, num_replicas=1, rank=0))


def _key(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def _members(mount: Mount, key: str) -> list[int]:
    """The inode numbers of the files of a sample; those of a shard go up in the order of the tar."""
    folder = mount.path / f"{key[0]}.tar.d"
    return sorted(os.stat(folder / f"{key}.{name}").st_ino for name in ("cls", "jpg", "image.jpg"))


def test_the_next_epoch_is_announced_early_and_the_sampler_keeps_its_own(
    data: Any, mount: Mount, pictures: Any
):
    sampler = data.DistributedSampler(pictures, num_replicas=2, rank=1, seed=5)
    sampler.set_epoch(3)
    now = list(sampler)
    assert announce(pictures, sampler) == PICTURES // 2
    assert announce(pictures, data.BatchSampler(sampler, 4, drop_last=False), epoch=4) == 60
    assert (sampler.epoch, list(sampler)) == (3, now)
    [plan] = plans(mount)
    assert (plan["name"], plan["files"]) == (str(os.getpid()), PICTURES)


def test_an_order_that_is_drawn_once_cannot_be_announced_before(
    data: Any, mount: Mount, pictures: Any
):
    with pytest.raises(TypeError, match="RandomSampler has no epochs"):
        announce(pictures, data.RandomSampler(pictures))


def test_a_sampler_that_would_lose_its_place_is_refused(pictures: Any):
    stateful = pytest.importorskip("torchdata.stateful_dataloader.sampler")
    sampler = stateful.StatefulDistributedSampler(pictures, num_replicas=1, rank=0)
    with pytest.raises(TypeError, match="keeps its own place"):
        AnnouncedSampler(pictures, sampler)


def test_after_a_restart_the_rest_is_announced(mount: Mount, pictures: Any):
    sampler = ShardWindowSampler(pictures, window=3, num_replicas=2, rank=0)
    sampler.load_state_dict({**sampler.state_dict(), "place": 101})
    drawn = list(AnnouncedSampler(pictures, sampler))
    assert len(drawn) == 10
    [plan] = plans(mount)
    assert plan["files"] in (9, 10)  # one may be drawn again, so that all processes end together


def test_files_outside_of_mounts_are_read_with_a_warning(data: Any, tmp_path: Path):
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_text("x")
    sampler = AnnouncedSampler(files, data.SequentialSampler(files))
    with pytest.warns(UserWarning, match="is it in a mount of aisfs"):
        assert list(sampler) == [0, 1]
    with pytest.raises(NotAnnounced):
        announce(files, ShardWindowSampler(files, window=1, num_replicas=1, rank=0))
