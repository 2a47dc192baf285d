"""Small labelled pictures, in the forms that people keep them in."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import webdataset
from PIL import Image

CLASSES = ("cat", "dog", "fish")
SIDE = 24


class Picture(NamedTuple):
    number: int
    label: int
    jpeg: bytes
    trimap: bytes


def pictures(count: int) -> Iterator[Picture]:
    """The same ones every time, their classes in turn."""
    chance = np.random.default_rng(7)
    for number in range(count):
        noise = chance.integers(0, 60, (SIDE, SIDE, 3)) + 60 * (number % len(CLASSES))
        trimap = chance.integers(1, 4, (SIDE, SIDE))
        yield Picture(
            number, number % len(CLASSES),
            encoded(noise, "JPEG"), encoded(trimap, "PNG"),
        )  # fmt: skip


def encoded(pixels: np.ndarray, kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def write_samples(folder: Path, *, shards: int, samples: int) -> None:
    """Shards as the seed has them: `image.jpg`, `cls` and `trimap.png` side by side."""
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{folder}/samples-%02d.tar"
    with webdataset.ShardWriter(pattern, maxcount=samples, verbose=0) as writer:
        for picture in pictures(shards * samples):
            writer.write(
                {
                    "__key__": f"sample_{picture.number:04}",
                    "image.jpg": picture.jpeg,
                    "cls": picture.label,
                    "trimap.png": picture.trimap,
                }
            )


def write_folders(folder: Path, count: int) -> None:
    """A folder for each class."""
    for picture in pictures(count):
        path = folder / CLASSES[picture.label] / f"{picture.number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture.jpeg)
