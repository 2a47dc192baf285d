"""The checksum types of AIStore buckets, as running hashes."""

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Protocol

import xxhash

NODE_SEED = 1103515245
"""Seed of every hash AIStore uses for placement (its MLCG32 constant)."""


class Hasher(Protocol):
    """The part of hashlib's interface the server uses."""

    def update(self, data: bytes, /) -> None:
        """Take the next bytes."""

    def hexdigest(self) -> str:
        """Give the checksum of everything so far, in hex."""
        ...


@cache
def _castagnoli() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


class Crc32c:
    """CRC-32C in plain Python: a few MB/s, enough for the odd bucket that asks for it."""

    def __init__(self) -> None:
        self._state = 0xFFFFFFFF

    def update(self, data: bytes, /) -> None:
        """Take the next bytes."""
        table, state = _castagnoli(), self._state
        for byte in data:
            state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
        self._state = state

    def hexdigest(self) -> str:
        """Give eight hex digits."""
        return f"{self._state ^ 0xFFFFFFFF:08x}"


class _Nothing:
    def update(self, data: bytes, /) -> None:
        """Take bytes and forget them."""

    def hexdigest(self) -> str:
        """Give the empty checksum."""
        return ""


HASHERS: dict[str, Callable[[], Hasher]] = {
    "none": _Nothing,
    "xxhash": xxhash.xxh64,
    "xxhash2": xxhash.xxh64,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "crc32c": Crc32c,
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
}


def digest_of(text: str) -> int:
    """Hash a node id or an object's uname the way the cluster map does."""
    return xxhash.xxh64_intdigest(text.encode(), seed=NODE_SEED)
