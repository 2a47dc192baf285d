"""Checksums by the names AIStore gives their types."""

import hashlib
from collections.abc import Callable
from typing import Protocol

import xxhash
from crc32c import CRC32CHash

from aisfs.store.content import pieces_of
from aisfs.store.port import Content

DEFAULT_TYPE = "xxhash2"
"""What AIStore gives a bucket unless told otherwise."""


class Hasher(Protocol):
    """The part of hashlib's interface that is used."""

    def update(self, data: memoryview, /) -> None:
        """Take the next bytes."""

    def hexdigest(self) -> str:
        """Give the checksum of everything so far, in hex."""
        ...


_HASHERS: dict[str, Callable[[], Hasher]] = {
    "xxhash": xxhash.xxh64,
    "xxhash2": xxhash.xxh64,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "crc32c": CRC32CHash,
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
}
_TYPE_OF_LENGTH = {8: "crc32c", 16: "xxhash2", 32: "md5", 64: "sha256", 128: "sha512"}


def is_known(kind: str) -> bool:
    """Say whether checksums of this type can be computed."""
    return kind in _HASHERS


def hasher_of(kind: str) -> Hasher:
    """Begin a checksum of a known type."""
    return _HASHERS[kind]()


def labelled(kind: str, value: str) -> str:
    """Give `<type>:<hex>` for a checksum whose type only its bucket tells.

    Objects that were uploaded in parts, or are older than a change of the bucket's type, have
    checksums of another type; the length gives them away.
    """
    if not value or not kind:
        return ""
    guess = _TYPE_OF_LENGTH.get(len(value), "")
    if kind == "none" or (kind in _HASHERS and guess and guess != _same_length(kind)):
        kind = guess
    return f"{kind}:{value}" if kind else ""


def label_of_usual(kind: str) -> tuple[str, int]:
    """Give what `labelled` puts before the checksums of a bucket, and the length of those for which
    that holds; -1 when it holds for none."""
    length = {name: length for length, name in _TYPE_OF_LENGTH.items()}.get(_same_length(kind), -1)
    return f"{kind}:", length


def _same_length(kind: str) -> str:
    return "xxhash2" if kind == "xxhash" else kind


def checksum_of(content: Content, kind: str, go_on: Callable[[], bool] = lambda: True) -> str:
    """Compute the checksum of a content, as `<type>:<hex>`.

    Args:
        content: Read from its beginning to its end.
        kind: A known type.
        go_on: Asked for each MiB; the result is of no use once it says no.
    """
    hasher = hasher_of(kind)
    for piece in pieces_of(content):
        if not go_on():
            break
        hasher.update(piece)
    return f"{kind}:{hasher.hexdigest()}"
