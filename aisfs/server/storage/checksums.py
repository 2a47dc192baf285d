"""The checksum types of AIStore buckets, as running hashes."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import xxhash
from crc32c import CRC32CHash

NODE_SEED = 1103515245
"""Seed of every hash AIStore uses for placement (its MLCG32 constant)."""


class Hasher(Protocol):
    """The part of hashlib's interface that the server uses."""

    def update(self, data: bytes, /) -> None:
        """Add the next bytes."""

    def hexdigest(self) -> str:
        """Return the checksum of everything so far, in hex."""
        ...


class _Nothing:
    def update(self, data: bytes, /) -> None:
        """Ignore bytes."""

    def hexdigest(self) -> str:
        """Return the empty checksum."""
        return ""


HASHERS: dict[str, Callable[[], Hasher]] = {
    "none": _Nothing,
    "xxhash": xxhash.xxh64,
    "xxhash2": xxhash.xxh64,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "crc32c": CRC32CHash,
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
}


def digest_of(text: str) -> int:
    """Return the hash of a node id or an object's uname, as in the cluster map."""
    return xxhash.xxh64_intdigest(text.encode(), seed=NODE_SEED)


def hash_file(path: Path, kind: str) -> str:
    """Return the checksum of a whole file."""
    hasher = HASHERS[kind]()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            hasher.update(piece)
    return hasher.hexdigest()
