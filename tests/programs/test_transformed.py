"""Training on shards that an ETL transforms: through the SDK over HTTP and through a mount, the data are the same."""

import hashlib
import io
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
import webdataset
from aistore.sdk import Client
from aistore.sdk.etl import ETLConfig
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

from aisfs.torch import ShardWindowSampler
from tests.mount.cache_data import make_shards
from tests.programs.pictures import write_samples
from tests.programs.programs import ROOT
from tests.support.mounts import aisfs, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = [
    pytest.mark.mount,
    # webdataset leaves shards and the programs that fetch them to the garbage collector
    pytest.mark.filterwarnings("ignore:unclosed file", "ignore:Exception ignored"),
]

SHARDS, SAMPLES, SIDE = 3, 8, 16
ETL = "normalize-etl"
IMAGE = "image.jpg"


@pytest.fixture(scope="module")
def server(base: Path) -> Iterator[RunningServer]:
    write_samples(base / "store/pets", shards=SHARDS, samples=SAMPLES)
    make_shards(base / "store/shards", 6, 8, 4096)
    etls = {
        "registry/normalize:1": f"{sys.executable} {ROOT}/examples/normalize.py",
        "nothing-etl": "cat",
    }
    with running_server(base / "store", etls=etls, traps=True) as running:
        words = ("etl", "init", ROOT / "examples/normalize.yaml", "--endpoint", running.endpoint)
        assert aisfs(*words).returncode == 0
        yield running


@pytest.fixture
def options(base: Path) -> tuple[str, ...]:
    """Of mounts that share their results."""
    return ("--etl", ETL, "--cache-dir", str(base / "cache"))


Samples = Mapping[str, Mapping[str, bytes]]


def streamed(urls: list[str]) -> Samples:
    """Read shards with webdataset: by curl over HTTP, or as files."""
    dataset = webdataset.WebDataset(urls, shardshuffle=False)
    return {
        sample["__key__"]: {part: sample[part] for part in (IMAGE, "cls", "trimap.png")}
        for sample in dataset
    }


def train(batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> tuple[int, list[float]]:
    """Take one step for each batch, from the same weights each time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen, losses = 0, []
    for images, labels in batches:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(labels)
        losses.append(loss.item())
    return seen, losses


def batches_of(urls: list[str]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    dataset = webdataset.WebDataset(urls, shardshuffle=False).decode("pil").to_tuple(IMAGE, "cls")
    return iter(DataLoader(dataset.map_tuple(ToTensor()), batch_size=8))


def test_http_and_files_have_the_same_data(
    server: RunningServer, base: Path, options: tuple[str, ...]
) -> None:
    mountpoint = base / "mnt"
    bucket = Client(server.endpoint).bucket("pets")
    names = [f"samples-{number:02}.tar" for number in range(SHARDS)]
    urls = [bucket.object(name).get_url(etl=ETLConfig(ETL)) for name in names]
    assert all(f"etl_name={ETL}" in url for url in urls)
    by_http = streamed(urls)
    losses = train(batches_of(urls))

    with mounted("ais://pets", mountpoint, endpoint=server.endpoint, options=options):
        files = [str(mountpoint / name) for name in names]
        for name, file in zip(names, files, strict=True):
            reader = bucket.object(name).get_reader(etl=ETLConfig(ETL))
            assert Path(file).read_bytes() == reader.read_all()
        assert streamed(files) == by_http
        assert train(batches_of(files)) == losses
    assert losses[0] == len(by_http) == SHARDS * SAMPLES

    view = (*options, "--view", "class", "--image", IMAGE)
    with mounted("ais://pets", mountpoint, endpoint=server.endpoint, options=view):
        folder = ImageFolder(str(mountpoint), ToTensor())
        found = sorted(digest(Path(path).read_bytes()) for path, _ in folder.samples)
        assert found == sorted(digest(sample[IMAGE]) for sample in by_http.values())
        assert {label for _, label in folder.samples} == {0, 1, 2}
        seen, again = train(iter(DataLoader(folder, batch_size=8)))
        assert (seen, len(again)) == (SHARDS * SAMPLES, len(losses[1]))

    for sample in by_http.values():
        assert Image.open(io.BytesIO(sample[IMAGE])).size == (SIDE, SIDE)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_an_epoch_of_a_sampler_on_transformed_shards(server: RunningServer, base: Path) -> None:
    """It finds the shards by the inode numbers; each is transformed once, whatever the order."""
    mountpoint = base / "mnt"
    options = ("--etl", "nothing-etl", "--cache-dir", str(base / "cache"), "--view", "flat")
    before = server.requests()["transform"]
    with mounted("ais://shards", mountpoint, endpoint=server.endpoint, options=options):
        paths = sorted(str(path) for path in mountpoint.glob("*.jpg"))
        sampler = ShardWindowSampler(paths, window=2)
        assert (sampler.shards, len(sampler)) == (6, len(paths)) == (6, 48)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            order = list(sampler)
            assert sorted(order) == list(range(48))
            assert {len(Path(paths[at]).read_bytes()) for at in order} == {4096}
    assert server.requests()["transform"] - before == 6
