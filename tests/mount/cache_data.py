"""What the tests of the disk cache read, and in which order."""

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.mount.content import payload
from tests.support.tars import END, entry

Digests = Mapping[str, str]
"""SHA-256 by path below the mountpoint."""


@dataclass
class Dataset:
    """What a bucket holds."""

    files: dict[str, str] = field(default_factory=dict)
    """Shards or objects as files."""
    members: dict[str, str] = field(default_factory=dict)
    """Members of shards."""
    size: int = 0
    """Bytes of all files."""

    @property
    def folders(self) -> list[str]:
        return sorted({name.partition("/")[0] for name in self.members})


def make_shards(bucket: Path, count: int, samples: int, size: int) -> Dataset:
    """Write shards of `samples` samples, each a picture of `size` bytes and its class."""
    bucket.mkdir(parents=True, exist_ok=True)
    made = Dataset()
    for number in range(count):
        name, tar = f"shard-{number:04}.tar", b""
        parts = []
        for sample in range(samples):
            for kind, length in (("cls", 3), ("jpg", size)):
                data = payload(length, f"{number}/{sample}")
                parts.append(entry(f"{sample:05}.{kind}".encode(), data))
                made.members[f"{name}.d/{sample:05}.{kind}"] = hashlib.sha256(data).hexdigest()
        tar = b"".join(parts) + END
        (bucket / name).write_bytes(tar)
        made.files[name] = hashlib.sha256(tar).hexdigest()
        made.size += len(tar)
    return made


def make_objects(bucket: Path, count: int, size: int) -> Dataset:
    """Write objects of `size` bytes."""
    bucket.mkdir(parents=True, exist_ok=True)
    made = Dataset()
    for number in range(count):
        data = payload(size, f"object {number}")
        (bucket / f"object-{number:04}.bin").write_bytes(data)
        made.files[f"object-{number:04}.bin"] = hashlib.sha256(data).hexdigest()
        made.size += size
    return made


def shuffled(digests: Digests, seed: object) -> dict[str, str]:
    order = list(digests.items())
    random.Random(str(seed)).shuffle(order)
    return dict(order)


def samples_shuffled(members: Digests, seed: object) -> dict[str, str]:
    """All parts of one sample after the other, as data loaders read them; samples in any order."""
    samples: dict[str, list[str]] = {}
    for name in members:
        samples.setdefault(name.rpartition(".")[0], []).append(name)
    order = list(samples.values())
    random.Random(str(seed)).shuffle(order)
    return {name: members[name] for parts in order for name in parts}


def pictures(members: Digests) -> dict[str, str]:
    """What torchvision's ImageFolder reads."""
    return {name: sha for name, sha in members.items() if name.endswith(".jpg")}


def dealt(digests: Digests, count: int) -> list[dict[str, str]]:
    """Deal files to readers, in order, as a data loader deals them to its workers."""
    order = list(digests.items())
    return [dict(order[at::count]) for at in range(count)]
