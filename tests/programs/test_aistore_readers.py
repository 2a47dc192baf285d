"""AIStore's own readers over a bucket whose shards have published indexes: they find shards, and nothing else."""

import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from aistore.pytorch import AISIterDataset, AISShardReader
from aistore.sdk import Bucket, Client

from tests.programs.pictures import write_samples
from tests.support.mounts import aisfs
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

SHARDS, SAMPLES = 3, 5


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    for folder in ("pets", "pets/train/deep"):
        write_samples(tmp_path / "store" / folder, shards=SHARDS, samples=SAMPLES)
    with running_server(tmp_path / "store") as running:
        yield running


def seen(bucket: Bucket, prefix: str = "") -> tuple[list[str], Counter[str], list[str]]:
    """What the two readers and a listing find."""
    wanted = {bucket: [prefix]} if prefix else {}
    dataset = AISIterDataset(ais_source_list=bucket, prefix_map=wanted)
    objects = sorted(name for name, _ in dataset)
    samples = Counter(key for key, _ in AISShardReader(bucket_list=bucket, prefix_map=wanted))
    return objects, samples, sorted(entry.name for entry in bucket.list_all_objects())


def test_indexes_disturb_no_reader(server: RunningServer, tmp_path: Path):
    bucket = Client(server.endpoint).bucket("pets")
    before = seen(bucket)
    assert sum(before[1].values()) == 2 * SHARDS * SAMPLES

    def run(*words: object) -> None:
        done = aisfs(*map(str, words), "--endpoint", server.endpoint)
        assert done.returncode == 0, done.stderr

    place = ("--cache-dir", tmp_path / "cache")
    run("index", "--publish", "ais://pets", *place)
    assert seen(bucket) == before
    run("index", "--publish", "--force", "ais://pets/train", "--label", "image.jpg", *place)
    assert seen(bucket) == before
    # Those of earlier releases, which the reader dies of, are moved away.
    run("index", "--publish", "ais://pets", "--index-bucket", "", *place)
    with pytest.raises(tarfile.TarError):
        seen(bucket)
    run("index", "--move", "ais://pets")
    assert seen(bucket) == before


def test_packed_shards_can_be_read(server: RunningServer, tmp_path: Path):
    files = tmp_path / "files"
    for label in ("cat", "dog"):
        (files / label).mkdir(parents=True)
        for number in range(SAMPLES):
            (files / label / f"{number}.jpg").write_bytes(b"\xff\xd8\xff")
    shards = "ais://packed/s-{00..}.tar"
    assert aisfs("mb", "ais://packed", "--endpoint", server.endpoint).returncode == 0
    words = ("--class-to", "cls", "--max-count", "4", "--endpoint", server.endpoint)
    assert aisfs("pack", files, shards, *words).returncode == 0
    bucket = Client(server.endpoint).bucket("packed")
    with pytest.raises(
        tarfile.TarError
    ):  # of the names of the classes, which are an object beside the shards
        seen(bucket)
    objects, samples, listed = seen(bucket, "s-")
    assert listed == ["classes.txt", *(f"s-0{number}.tar" for number in range(3))]
    assert len(objects) == 3
    assert sum(samples.values()) == 2 * SAMPLES
