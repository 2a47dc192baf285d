"""Shards as webdataset's TarWriter makes them, for the tests of dataset mounts."""

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path


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
