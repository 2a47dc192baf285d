"""Shards as webdataset's TarWriter makes them and what reads them, for the tests of dataset mounts."""

import io
import os
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"
"""What a script begins with that imports webdataset: torch, which it needs for nothing here, takes 3 s."""


def webdataset() -> ModuleType:
    """Import it, without torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        import webdataset
        import webdataset.tariterators
    return webdataset


class ImageFolder:
    """Finds pictures as that of torchvision does, which runs in tests/programs: torch takes 3 s of each worker."""

    def __init__(self, root: str | Path) -> None:
        self.classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        self.samples = [
            (os.path.join(folder, file), index)
            for name, index in self.class_to_idx.items()
            for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True))
            for file in sorted(files)
            if file.lower().endswith((".jpg", ".jpeg", ".png"))
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        path, index = self.samples[row]  # IndexError ends an iteration
        with open(path, "rb") as file:
            return Image.open(file).convert("RGB"), index


def sample(key: str, label: object, image: bytes = b"\xff\xd8\xff image", **parts: bytes) -> dict:
    """One sample as a trainer has it; names of parts have `_` for the dot."""
    named = {name.replace("_", "."): data for name, data in parts.items()}
    return {"__key__": key, "jpg": image, "cls": label, **named}


def encode(samples: Iterable[Mapping[str, object]]) -> bytes:
    """Give the bytes of a shard. webdataset itself brings torch, 3 s and 500 MB of each process."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for each in samples:
            for name in sorted(name for name in each if not name.startswith("_")):
                value = each[name]
                data = value if isinstance(value, bytes) else str(value).encode()
                member = tarfile.TarInfo(f"{each['__key__']}.{name}")
                member.size, member.mode, member.mtime = len(data), 0o444, 1_700_000_000.25
                member.uname, member.gname = "bigdata", "bigdata"
                tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def write_shard(path: Path, samples: Iterable[Mapping[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(samples))
    return path


def tree(root: Path) -> list[str]:
    """All files below a directory, by their path."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
