"""AIStore's checksum of a whole object, as far as it is worth computing here."""

import hashlib
from collections.abc import Callable
from typing import Protocol

import xxhash

from aisfs.cache.disk.format import EntryId


class Hasher(Protocol):
    """Computes a checksum piece by piece."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Take the next bytes in."""

    def hexdigest(self) -> str:
        """Give the checksum of all bytes so far."""


_HASHERS: dict[str, Callable[[], Hasher]] = {
    "xxhash": xxhash.xxh64,
    "xxhash2": xxhash.xxh64,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
}
"""Not crc32c, which in Python would be slower than the network."""


def hasher_for(entry: EntryId) -> Hasher | None:
    """Give a hasher for the checksum of an entry; None if it has none that is computed here."""
    make = _HASHERS.get(entry.checksum.partition(":")[0])
    return make() if make is not None else None
