"""Tar files that nobody stored: headers computed from names, contents that lie in objects.

The bytes are those that Python's `tarfile` writes in the pax format, as webdataset's writer does.
They depend on names, sizes and contents of the objects alone: times differ between a listing and
the next one, owners between machines, so members have neither.
"""

import os
import tarfile
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import NamedTuple

from aisfs.config import KeyRule
from aisfs.core.samples import INCOMPLETE, SPLITS, split_name
from aisfs.core.view_spec import Component, ShardSplit
from aisfs.model import ByteRange, ObjectInfo

BLOCK = tarfile.BLOCKSIZE
RECORD = tarfile.RECORDSIZE
END = 2 * BLOCK
"""Bytes of zeros that end a tar, before it is filled up to whole records."""
MODE = 0o444
_NAME_MAX = tarfile.LENGTH_NAME
_SIZE_LIMIT = 8 ** (12 - 1)
"""A header has eleven octal digits for a size; what is larger is in a pax record."""


class Content(NamedTuple):
    """Bytes of a virtual shard that are a range of an object."""

    info: ObjectInfo
    range: ByteRange


class VirtualShard:
    """One tar file made of objects. Takes 16 bytes for each, beside the object itself."""

    __slots__ = ("_cut", "_objects", "_starts", "digest", "mtime_ns", "size")

    def __init__(self, objects: Sequence[ObjectInfo], cut: int) -> None:
        """Lay `objects` out, in this order, under their keys without the first `cut` characters."""
        self._objects = tuple(objects)
        self._cut = cut
        self._starts = array("q", [0])
        """Where each member's header begins; one more for the end of the last member."""
        digest = blake2b(digest_size=16)
        for info in self._objects:
            self._starts.append(self._starts[-1] + member_size(info.key[cut:], info.size))
            version = (info.key, info.key[cut:], info.size, info.version, info.checksum)
            digest.update("\0".join(map(str, version)).encode(errors="surrogateescape") + b"\n")
        self.size = tar_size(self._starts[-1])
        """Length in bytes."""
        self.mtime_ns = max((info.mtime_ns for info in self._objects), default=0)
        """Of the newest object."""
        self.digest = digest.hexdigest()
        """Tells the versions of all objects, and their names in the tar, from all others."""

    def __len__(self) -> int:
        return len(self._objects)

    def pieces(self, wanted: ByteRange) -> Iterator[bytes | Content]:
        """Give the bytes of a range in order, cut at the end of the tar."""
        for at in self._members(wanted):
            info, start = self._objects[at], self._starts[at]
            data = self._data_start(at)
            head = _overlap(wanted, start, data)
            if head:
                yield member_header(info.key[self._cut :], info.size)[head.start : head.stop]
            yield from self._content(wanted, at)
            padding = _overlap(wanted, data + info.size, self._starts[at + 1])
            if padding:
                yield bytes(len(padding))
        end = _overlap(wanted, self._starts[-1], self.size)
        if end:
            yield bytes(len(end))

    def contents(self, wanted: ByteRange) -> Iterator[Content]:
        """Give what `pieces` would give of objects."""
        for at in self._members(wanted):
            yield from self._content(wanted, at)

    def _members(self, wanted: ByteRange) -> Iterator[int]:
        first = bisect_right(self._starts, wanted.start) - 1
        for at in range(first, len(self._objects)):
            if self._starts[at] >= wanted.stop:
                return
            yield at

    def _content(self, wanted: ByteRange, at: int) -> Iterator[Content]:
        info, data = self._objects[at], self._data_start(at)
        inside = _overlap(wanted, data, data + info.size)
        if inside:
            yield Content(info, inside)

    def _data_start(self, at: int) -> int:
        return self._starts[at + 1] - _padded(self._objects[at].size)


def virtual_shards(
    objects: Sequence[ObjectInfo],
    cut: int,
    split: ShardSplit,
    rule: KeyRule = KeyRule.WDS,
    require: tuple[Component, ...] = (),
) -> tuple[list[VirtualShard], Counter[str]]:
    """Lay objects out as tars, samples in the order of their keys and whole in one tar.

    Args:
        objects: In any order, of different keys.
        cut: Characters of the keys that are no part of the members' names.
        split: How much goes into one tar.
        rule: What the key of a sample is.
        require: What a sample must have.

    Returns:
        The tars, and why how many objects or samples are in none.
    """
    left_out: Counter[str] = Counter()
    shards: list[VirtualShard] = []
    members: list[ObjectInfo] = []
    samples = size = 0
    for sample in _samples(objects, cut, rule, require, left_out):
        length = sum(member_size(info.key[cut:], info.size) for info in sample)
        full = samples == split.samples or (
            split.size is not None and tar_size(size + length) > split.size
        )
        if members and full:
            shards.append(VirtualShard(members, cut))
            members, samples, size = [], 0, 0
        members += sample
        samples += 1
        size += length
    if members:
        shards.append(VirtualShard(members, cut))
    return shards, left_out


def _samples(
    objects: Sequence[ObjectInfo],
    cut: int,
    rule: KeyRule,
    require: tuple[Component, ...],
    left_out: Counter[str],
) -> Iterator[list[ObjectInfo]]:
    parts: list[tuple[bytes, bytes, bytes, ObjectInfo]] = []
    for info in objects:
        name = os.fsencode(info.key[cut:])
        found = split_name(name, SPLITS[rule])
        if isinstance(found, str):
            left_out[found] += 1
        else:
            parts.append((found[0], name, found[1], info))
    parts.sort(key=lambda part: part[:2])
    for _, group in groupby(parts, key=lambda part: part[0]):
        sample = list(group)
        has = all(any(c.rank(part[2]) is not None for part in sample) for c in require)
        if has:
            yield [part[3] for part in sample]
        else:
            left_out[INCOMPLETE] += 1


def member_header(name: str, size: int) -> bytes:
    """Give all header blocks of a member."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = MODE
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def member_size(name: str, size: int) -> int:
    """Give the bytes that a member takes in a tar, headers and padding included."""
    plain = len(name) <= _NAME_MAX and name.isascii() and size < _SIZE_LIMIT
    return (BLOCK if plain else len(member_header(name, size))) + _padded(size)


def tar_size(members: int) -> int:
    """Give the size of a tar whose members take so many bytes."""
    return -(-(members + END) // RECORD) * RECORD


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _overlap(wanted: ByteRange, start: int, stop: int) -> ByteRange:
    """Give what `wanted` has of a range, counted from the beginning of that; may be empty."""
    first = max(wanted.start, start)
    return ByteRange(first - start, max(min(wanted.stop, stop), first) - start)
