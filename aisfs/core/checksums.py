"""Checksums of whole objects, as texts `<type>:<hex>` with AIStore's names for the types."""

import hashlib
from collections.abc import Callable
from typing import Protocol

import xxhash
from crc32c import CRC32CHash

DEFAULT_TYPE = "xxhash2"
"""The type of checksum of a bucket of AIStore by default."""


class Hasher(Protocol):
    """The part of hashlib's interface that is used."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add the next bytes."""

    def hexdigest(self) -> str:
        """Return the checksum of all bytes so far, in hexadecimal digits."""
        ...


_HASHERS: dict[str, Callable[[], Hasher]] = {
    "xxhash": xxhash.xxh64,
    "xxhash2": xxhash.xxh64,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "crc32c": CRC32CHash,
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
}


def is_known(kind: str) -> bool:
    """Return whether checksums of this type can be computed."""
    return kind in _HASHERS


def hasher_of(kind: str) -> Hasher:
    """Begin a checksum of a known type."""
    return _HASHERS[kind]()


def hasher_for_cache(checksum: str) -> Hasher | None:
    """Begin a checksum like this one; None if whole objects in the cache are not verified by it."""
    kind = checksum.partition(":")[0]
    # crc32c without the processor's instruction for it is slower than the network.
    return hasher_of(kind) if is_known(kind) and kind != "crc32c" else None
