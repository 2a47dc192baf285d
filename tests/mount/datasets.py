"""Shards as webdataset's own writer makes them, for the tests of dataset mounts."""

import io
from collections.abc import Iterable, Mapping
from pathlib import Path

import webdataset as wds


def sample(key: str, label: object, image: bytes = b"\xff\xd8\xff image", **parts: bytes) -> dict:
    """One sample as a trainer has it; names of parts have `_` for the dot."""
    named = {name.replace("_", "."): data for name, data in parts.items()}
    return {"__key__": key, "jpg": image, "cls": label, **named}


def encode(samples: Iterable[Mapping[str, object]]) -> bytes:
    """Give the bytes of a shard."""
    buffer = io.BytesIO()
    # Parts are bytes already, but for labels; a JPEG must not be compressed again.
    with wds.TarWriter(buffer, encoder=_as_bytes, mtime=1_700_000_000.25) as writer:
        for each in samples:
            writer.write(dict(each))
    return buffer.getvalue()


def _as_bytes(each: dict[str, object]) -> dict[str, object]:
    return {
        name: value if isinstance(value, bytes) or name.startswith("__") else str(value).encode()
        for name, value in each.items()
    }


def write_shard(path: Path, samples: Iterable[Mapping[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(samples))
    return path


def tree(root: Path) -> list[str]:
    """All files below a directory, by their path."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
