"""webdataset over shards as files of a mount: its shard lists, splitters, sources and loaders."""

import io
import random
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgpack
import numpy as np
import pytest
import torch
import webdataset as wds
from aistore.pytorch import AISShardReader
from aistore.sdk import Client
from PIL import Image

from tests.programs.pictures import SIDE, pictures, write_samples
from tests.support.mounts import Mount, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = [
    pytest.mark.mount,
    # torch advises against more workers than cores, whatever they wait for
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # webdataset leaves shards to the garbage collector
    pytest.mark.filterwarnings("ignore:unclosed file", "ignore:Exception ignored"),
]

SHARDS, SAMPLES = 4, 45
ALL = SHARDS * SAMPLES
WAIT = 60
"""Seconds until a worker process counts as hung."""
RECORDS = [{"key": f"{number:03}", "values": [number, number + 1]} for number in range(50)]


@pytest.fixture(scope="module")
def server(base: Path) -> Iterator[RunningServer]:
    write_samples(base / "store" / "pets", shards=SHARDS, samples=SAMPLES)
    write_records(base / "store" / "records")
    with running_server(base / "store") as server:
        yield server


@pytest.fixture(scope="module")
def mount(base: Path, server: RunningServer) -> Iterator[Mount]:
    with mounted(None, base / "mnt", endpoint=server.endpoint, deadline=300) as mount:
        yield mount


@pytest.fixture
def shards(mount: Mount) -> str:
    return f"{mount.path}/ais/pets/samples-{{00..{SHARDS - 1:02}}}.tar"


def keys(samples) -> list[str]:
    return [sample["__key__"] for sample in samples]


EVERY_KEY = [f"sample_{number:04}" for number in range(ALL)]


def test_webdataset_decodes_every_sample(shards: str):
    dataset = wds.WebDataset(shards, shardshuffle=False).decode("rgb8")
    for sample, picture in zip(dataset, pictures(ALL), strict=True):
        assert sample["__key__"] == f"sample_{picture.number:04}"
        assert sample["cls"] == picture.label
        for name, encoded in (("image.jpg", picture.jpeg), ("trimap.png", picture.trimap)):
            with Image.open(io.BytesIO(encoded)) as image:
                assert np.array_equal(sample[name], np.asarray(image.convert("RGB")))


def test_data_pipeline_of_explicit_stages(shards: str):
    pipeline = wds.DataPipeline(
        wds.SimpleShardList(shards, seed=3),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.shuffle(20, seed=3),
        wds.decode("torchrgb"),
        wds.to_tuple("image.jpg", "cls"),
        wds.batched(16),
    )
    sizes = [len(labels) for _, labels in pipeline]
    assert sizes == [16] * (ALL // 16) + [ALL % 16]
    images, _ = next(iter(pipeline))
    assert images.shape == (16, 3, SIDE, SIDE)


def test_shards_in_another_order(shards: str):
    pipeline = wds.DataPipeline(wds.SimpleShardList(shards, seed=3), wds.tarfile_to_samples())
    read = keys(pipeline)
    assert sorted(read) == EVERY_KEY != read


def test_resampled_shards_make_an_epoch_of_any_length(shards: str):
    pipeline = wds.DataPipeline(
        wds.ResampledShards(shards, seed=1, deterministic=True),
        wds.tarfile_to_samples(),
    ).with_epoch(3 * ALL)
    read = keys(pipeline)
    assert len(read) == 3 * ALL
    assert set(read) <= set(EVERY_KEY)
    assert read[:SAMPLES] in [EVERY_KEY[at : at + SAMPLES] for at in range(0, ALL, SAMPLES)]


@pytest.mark.parametrize("workers", [2, SHARDS])
def test_workers_read_disjoint_shards(shards: str, workers: int):
    pipeline = wds.DataPipeline(
        wds.SimpleShardList(shards), wds.split_by_worker, wds.tarfile_to_samples(), tagged
    )
    loader = torch.utils.data.DataLoader(
        pipeline, batch_size=None, num_workers=workers, timeout=WAIT
    )
    rows = list(loader)
    assert sorted(key for key, _, _ in rows) == EVERY_KEY
    owners = {}
    for _, url, worker in rows:
        owners.setdefault(url, set()).add(worker)
    assert len(owners) == SHARDS
    assert all(len(seen) == 1 for seen in owners.values())
    assert Counter(worker for (worker,) in owners.values()) == dict.fromkeys(
        range(workers), SHARDS // workers
    )


def tagged(samples):
    worker = torch.utils.data.get_worker_info().id
    for sample in samples:
        yield sample["__key__"], sample["__url__"], worker


def test_loader_with_workers_and_shuffle(shards: str):
    dataset = wds.WebDataset(shards, shardshuffle=SHARDS, seed=5).shuffle(50, seed=5)
    loader = wds.WebLoader(
        dataset.to_tuple("__key__", "cls"), batch_size=8, num_workers=2, timeout=WAIT
    )
    for _ in range(2):
        read = [key for batch, _ in loader for key in batch]
        assert sorted(read) == EVERY_KEY != read


def test_what_a_tar_writer_wrote_is_read_back(mount: Mount, shards: str, tmp_path: Path):
    """Samples go from the mount through TarWriter, and the shard comes out the same."""
    copy = tmp_path / "copy.tar"
    with wds.TarWriter(str(copy), mtime=0) as writer:
        for sample in wds.WebDataset(shards, shardshuffle=False):
            writer.write({name: part for name, part in sample.items() if name != "__url__"})
    again = list(wds.WebDataset(str(copy), shardshuffle=False))
    assert keys(again) == EVERY_KEY
    with tarfile.open(copy) as tar, tarfile.open(f"{mount.path}/ais/pets/samples-00.tar") as first:
        for member in first:
            assert tar.extractfile(member.name).read() == first.extractfile(member).read()


# CBOR and MsgPack ------------------------------------------------------------------------------


def write_records(bucket: Path) -> None:
    """Shards of encoded members, and the same records one after the other in one object."""
    import cbor

    bucket.mkdir(parents=True)
    with wds.TarWriter(f"{bucket}/records.tar") as writer:
        for record in RECORDS:
            writer.write({"__key__": record["key"], "mp": record, "cbor": record})
    (bucket / "records.mps").write_bytes(b"".join(map(msgpack.packb, RECORDS)))
    (bucket / "records.cbors").write_bytes(b"".join(map(cbor.dumps, RECORDS)))


def test_members_of_cbor_and_msgpack(mount: Mount):
    dataset = wds.WebDataset(f"{mount.path}/ais/records/records.tar", shardshuffle=False).decode()
    assert [(sample["mp"], sample["cbor"]) for sample in dataset] == [(r, r) for r in RECORDS]


def cbor_records(sources):
    import cbor

    for source in sources:
        with open(source["url"], "rb") as file:
            while file.peek(1):
                yield cbor.load(file)


def msgpack_records(sources):
    for source in sources:
        with open(source["url"], "rb") as file:
            yield from msgpack.Unpacker(file)


@pytest.mark.parametrize(
    ("name", "stage"), [("records.cbors", cbor_records), ("records.mps", msgpack_records)]
)
def test_objects_of_records(mount: Mount, name: str, stage):
    """webdataset 1.0 has no source for these any more: a stage of a few lines is one."""
    path = f"{mount.path}/ais/records/{name}"
    pipeline = wds.DataPipeline(wds.SimpleShardList([path]), wds.split_by_worker, stage)
    assert list(pipeline) == RECORDS


# The seed's pipeline ---------------------------------------------------------------------------


def through_the_seeds_pipeline(source, workers: int) -> list[tuple[torch.Tensor, ...]]:
    dataset = wds.DataPipeline(
        source,
        wds.shuffle(1000, rng=random.Random(11)),
        wds.decode("torchrgb"),
        wds.to_tuple("image.jpg", "cls", "trimap.png"),
        wds.batched(16),
    )
    loader = wds.WebLoader(
        dataset, batch_size=None, num_workers=workers, timeout=WAIT if workers else 0
    )
    loader = loader.unbatched().shuffle(1000, rng=random.Random(12)).batched(64)
    return list(loader)


class SdkSamples(torch.utils.data.IterableDataset):
    """AIStore's own reader; it gives `jpg` and `png`, from the last dot of a name."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def __iter__(self):
        reader = AISShardReader(bucket_list=Client(self._endpoint).bucket("pets"))
        for key, parts in reader:
            named = {"jpg": "image.jpg", "cls": "cls", "png": "trimap.png"}
            yield {"__key__": key, **{name: parts[part] for part, name in named.items()}}


@pytest.mark.parametrize("workers", [0, 2])
def test_the_seeds_pipeline_gives_the_tensors_of_the_sdk(
    shards: str, server: RunningServer, workers: int
):
    mounted = through_the_seeds_pipeline(
        wds.DataPipeline(
            wds.SimpleShardList(shards), wds.split_by_worker, wds.tarfile_to_samples()
        ),
        workers,
    )
    expected = through_the_seeds_pipeline(SdkSamples(server.endpoint), workers)
    assert [len(labels) for _, labels, _ in mounted] == [64] * (ALL // 64) + [ALL % 64]
    assert len(mounted) == len(expected)
    for batch, wanted in zip(mounted, expected, strict=True):
        for part, tensor in zip(batch, wanted, strict=True):
            assert torch.equal(torch.as_tensor(part), torch.as_tensor(tensor))
    labels = sorted(label for _, labels, _ in mounted for label in labels)
    assert labels == sorted(picture.label for picture in pictures(ALL))
