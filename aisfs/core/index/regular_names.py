"""Fast checks of names that follow one pattern, as those of most shards do.

    00000000.cls00000000.jpg00000001.cls…    records of 24 bytes, each of the names of one sample

The checks read whole columns of bytes; they never build a name.
"""

import struct
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from aisfs.core.index.columns import MemberColumns
from aisfs.core.index.zip_columns import progression

RECORD_MAX = 64
"""Most names of one record that are looked for."""


class RegularNames(NamedTuple):
    """Names without a slash, whose records are alike but for their keys."""

    blob: bytes
    """All names, one behind the other."""
    width: int
    """Bytes of one record."""
    key_length: int
    """Above 0. Each name of a record begins with the same key, which has no dot."""
    suffixes: Sequence[bytes]
    """What follows the key in each name: nothing, or a dot and more."""

    def keys(self) -> list[bytes]:
        """Return the key of each record."""
        rest = self.width - self.key_length
        return list(
            chain.from_iterable(struct.iter_unpack(f"{self.key_length}s{rest}x", self.blob))
        )


def regular_names(columns: MemberColumns) -> RegularNames | None:
    """Return what the names of two records or more have in common; None if that is not so much."""
    ends, blob = columns.ends, bytes(columns.names)
    key, suffixes = _first_record(columns)
    step = len(suffixes)
    if not key or not step or len(ends) % step or b"/" in blob:
        return None
    width, records = ends[step - 1], len(ends) // step
    if (
        width * records != len(blob)
        or any(
            ends[at::step] != progression(range(ends[at], len(blob) + 1, width))
            for at in range(step)
        )
        # The rest of the dots are in the suffixes, if these are all the same.
        or blob.count(b".") != records * sum(suffix.count(b".") for suffix in suffixes)
    ):
        return None
    starts = [0, *ends[: step - 1]]
    for start, suffix in zip(starts, suffixes, strict=True):
        for at in range(len(key)):
            if start and blob[start + at :: width] != blob[at::width]:
                return None
        for at in range(start + len(key), start + len(key) + len(suffix)):
            if blob[at::width] != blob[at : at + 1] * records:
                return None
    return RegularNames(blob, width, len(key), suffixes)


def _first_record(columns: MemberColumns) -> tuple[bytes, list[bytes]]:
    """Return the key and the suffixes of the first names, without suffixes if no other key follows."""
    suffixes: list[bytes] = []
    key = columns.name(0).partition(b".")[0] if columns.ends else b""
    for row in range(min(len(columns.ends), RECORD_MAX + 1)):
        name = columns.name(row)
        if name.partition(b".")[0] != key:
            return key, suffixes
        suffixes.append(name[len(key) :])
    return b"", []
