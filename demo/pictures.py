"""Labelled pictures, drawn here or taken from a folder of the user."""

import io
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageOps

from demo.failures import DataError

MOST = 200
"""A demo of half a minute cannot look at more."""
MOST_BYTES = 1 << 20
MOST_PIXELS = 2_000_000
LARGE_SIDE = 1024
SIZE = (320, 240)
KINDS = {"cat": (205, 140, 90), "dog": (120, 110, 100), "fish": (90, 150, 210)}
_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
_PET, _BACKGROUND, _BORDER = 1, 2, 3
"""The values of a trimap, as in the Oxford-IIIT Pet data set."""


@dataclass(frozen=True)
class Picture:
    """One sample to be."""

    label: str
    jpeg: bytes
    trimap: bytes
    """A PNG that says for each pixel: pet, background or border."""


def draw_pictures(count: int) -> Iterator[Picture]:
    """Draw cats, dogs and fish in turn, the same ones every time."""
    random = np.random.default_rng(2024)
    for number in range(count):
        label = list(KINDS)[number % len(KINDS)]
        mask = _silhouette(label, random)
        fur = np.array(KINDS[label]) + random.integers(-30, 30, 3)
        meadow = np.array((110, 150, 80)) + random.integers(-50, 50, 3)
        colours = np.where(np.asarray(mask)[..., None] > 0, fur, meadow)
        noisy = colours + random.normal(0, 12, (SIZE[1], SIZE[0], 3))
        image = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
        yield Picture(label, _jpeg(image), _trimap(mask))


def _silhouette(label: str, random: np.random.Generator) -> Image.Image:
    mask = Image.new("L", SIZE, 0)
    draw = ImageDraw.Draw(mask)
    x, y = (int(side * random.uniform(0.35, 0.65)) for side in SIZE)
    r = int(random.uniform(45, 70))
    if label == "fish":
        draw.ellipse((x - r, y - r // 2, x + r, y + r // 2), fill=255)
        draw.polygon([(x + r // 2, y), (x + r * 2, y - r // 2), (x + r * 2, y + r // 2)], fill=255)
        return mask
    draw.ellipse((x - r, y - r, x + r, y + r), fill=255)
    for side in (-1, 1):
        ear = x + side * r
        if label == "cat":
            draw.polygon([(x, y - r), (ear, y), (ear, y - r * 3 // 2)], fill=255)
        else:
            draw.ellipse((ear - r // 3, y - r // 2, ear + r // 3, y + r), fill=255)
    return mask


def find_pictures(folder: Path) -> list[Path]:
    """Find the pictures below a folder, its classes in turn.

    Raises:
        DataError: there is no such folder, or nothing in it is named like a picture.
    """
    if not folder.is_dir():
        raise DataError(f"--data {folder} is not a directory")
    classes = defaultdict(list)
    for directory, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if Path(name).suffix.lower() in _SUFFIXES and not name.startswith("."):
                classes[directory].append(Path(directory, name))
    if not classes:
        raise DataError(f"--data {folder} has no pictures ({' '.join(sorted(_SUFFIXES))})")
    in_turn = chain.from_iterable(zip_longest(*classes.values()))
    return [path for path in in_turn if path is not None]


def read_pictures(paths: list[Path]) -> Iterator[Picture]:
    """Read pictures of a user; what Pillow cannot read is left out.

    A JPEG of moderate size is taken byte for byte, others are made into one.
    """
    for path in paths:
        try:
            jpeg, size = _as_jpeg(path)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue  # all that Pillow raises for damaged files
        yield Picture(class_name(path), jpeg, _trimap(_middle(size)))


def class_name(path: Path) -> str:
    """Take the folder's name as class, in letters that are safe in file names and sample keys."""
    folder = path.resolve().parent.name
    return re.sub(r"[^\w-]+", "_", folder)[:24] or "pictures"


def _as_jpeg(path: Path) -> tuple[bytes, tuple[int, int]]:
    with Image.open(path) as image:
        small = path.stat().st_size <= MOST_BYTES and image.width * image.height <= MOST_PIXELS
        if image.format == "JPEG" and small:
            image.load()  # a damaged one shows only now
            return path.read_bytes(), image.size
        image.draft("RGB", (LARGE_SIDE, LARGE_SIDE))
        upright = ImageOps.exif_transpose(image)
        upright.thumbnail((LARGE_SIDE, LARGE_SIDE))
        rgb = upright.convert("RGBA").convert("RGB")  # in two steps: palettes may be transparent
        return _jpeg(rgb), rgb.size


def _middle(size: tuple[int, int]) -> Image.Image:
    """Guess where the subject is."""
    width, height = size
    mask = Image.new("L", size, 0)
    box = (width // 4, height // 4, width - width // 4 - 1, height - height // 4 - 1)
    ImageDraw.Draw(mask).ellipse(box, fill=255)
    return mask


def _trimap(mask: Image.Image) -> bytes:
    inside = np.asarray(mask.filter(ImageFilter.MinFilter(5))) > 0
    outside = np.asarray(mask.filter(ImageFilter.MaxFilter(5))) == 0
    values = np.where(inside, _PET, np.where(outside, _BACKGROUND, _BORDER)).astype(np.uint8)
    return _encoded(Image.fromarray(values), "PNG")


def _jpeg(image: Image.Image) -> bytes:
    return _encoded(image, "JPEG", quality=90)


def _encoded(image: Image.Image, kind: str, **options: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
