"""What the tests put into buckets, and how they compare what they read."""

import hashlib
import os
import random
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import requests

LIMIT = 30


def payload(size: int, seed: int | str = 0) -> bytes:
    """Bytes that look random and are the same in every run."""
    return random.Random(f"{seed}/{size}").randbytes(size)


def fill(root: Path, objects: Mapping[str, bytes]) -> Path:
    """Write objects below a bucket's folder before a server starts."""
    root.mkdir(parents=True, exist_ok=True)
    for key, data in objects.items():
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def object_url(endpoint: str, bucket: str, key: str) -> str:
    return f"{endpoint}/v1/objects/{bucket}/{quote(key)}"


def put(endpoint: str, bucket: str, key: str, data: bytes) -> None:
    """Write an object as another user of the cluster would."""
    requests.put(object_url(endpoint, bucket, key), data=data, timeout=LIMIT).raise_for_status()


def delete(endpoint: str, bucket: str, key: str) -> None:
    requests.delete(object_url(endpoint, bucket, key), timeout=LIMIT).raise_for_status()


def sha256(path: bytes | str | os.PathLike[str]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass
class Tree:
    """All that lies below a directory, by path relative to it."""

    files: dict[bytes, tuple[int, int, str]] = field(default_factory=dict)
    """Size, mtime in seconds, SHA-256."""
    directories: set[bytes] = field(default_factory=set)
    links: dict[bytes, bytes] = field(default_factory=dict)
    others: set[bytes] = field(default_factory=set)

    def contents(self) -> dict[bytes, str]:
        return {name: row[2] for name, row in self.files.items()}


def tree_of(root: Path) -> Tree:
    """Read everything below a directory; an entry that cannot be read is an error."""
    tree = Tree()
    base = os.fsencode(root)
    pending = [b""]
    while pending:
        directory = pending.pop()
        for name in os.listdir(os.path.join(base, directory)):
            relative = os.path.join(directory, name)
            path = os.path.join(base, relative)
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode):
                tree.directories.add(relative)
                pending.append(relative)
            elif stat.S_ISLNK(status.st_mode):
                tree.links[relative] = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                mtime = status.st_mtime_ns // 1_000_000_000
                tree.files[relative] = (status.st_size, mtime, sha256(path))
            else:
                tree.others.add(relative)
    return tree
