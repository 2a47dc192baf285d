"""Tar shards as webdataset users make them, and their way into a bucket over HTTP."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import requests
import webdataset

from demo.failures import DataError
from demo.pictures import Picture

_SECONDS = 30


@dataclass(frozen=True)
class Shards:
    """What was written."""

    samples: list[Path]
    """`samples-00.tar` …: members of one sample side by side, `sample_0000.image.jpg`."""
    folders: Path
    """`train.tar`: the same pictures in class folders, `cat/0000.jpg`."""
    classes: list[str]
    """In the file `classes.txt`, too: one in a line, by number."""
    pictures: int

    @property
    def all(self) -> list[Path]:
        """Every shard."""
        return [*self.samples, self.folders]

    @property
    def pattern(self) -> str:
        """The shards with samples as webdataset names them: `samples-{00..01}.tar`."""
        return f"samples-{{00..{len(self.samples) - 1:02d}}}.tar"


def write_shards(pictures: Iterable[Picture], directory: Path, *, classes: list[str]) -> Shards:
    """Write the samples over at most two shards by count, and all pictures into `train.tar`.

    Raises:
        DataError: there was not a single picture.
    """
    gathered = list(pictures)
    if not gathered:
        raise DataError("not one of the files could be read as a picture")
    folders = directory / "train.tar"
    writer = webdataset.ShardWriter(
        f"{directory}/samples-%02d.tar", maxcount=(len(gathered) + 1) // 2, verbose=0
    )
    with writer as samples, webdataset.TarWriter(str(folders)) as train:
        for number, picture in enumerate(gathered):
            samples.write(
                {
                    "__key__": f"sample_{number:04d}",
                    "image.jpg": picture.jpeg,
                    "cls": classes.index(picture.label),
                    "trimap.png": picture.trimap,
                }
            )
            train.write({"__key__": f"{picture.label}/{number:04d}", "jpg": picture.jpeg})
    (directory / "classes.txt").write_text("".join(f"{name}\n" for name in classes))
    return Shards(sorted(directory.glob("samples-*.tar")), folders, classes, len(gathered))


def put_shards(endpoint: str, bucket: str, shards: Iterable[Path]) -> None:
    """Create the bucket and PUT the shards into it."""
    with requests.Session() as session:
        session.trust_env = False  # the server is on this machine: no proxy of the user's
        reply = session.post(
            f"{endpoint}/v1/buckets/{bucket}",
            params={"provider": "ais"},
            json={"action": "create-bck"},
            timeout=_SECONDS,
        )
        reply.raise_for_status()
        for shard in shards:
            url = f"{endpoint}/v1/objects/{bucket}/{shard.name}"
            with shard.open("rb") as content:
                reply = session.put(url, params={"provider": "ais"}, data=content, timeout=_SECONDS)
            reply.raise_for_status()
