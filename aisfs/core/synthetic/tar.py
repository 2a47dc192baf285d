"""Tar files that nobody stored: bytes that lie in objects, and others that are made for them.

Those of loose objects are what Python's `tarfile` writes in the pax format, as webdataset's writer
does. They depend on names, sizes and contents of the objects alone: times differ between a listing
and the next one, owners between machines, so members have neither.
"""

import os
import tarfile
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import NamedTuple

from aisfs.config import KeyRule
from aisfs.core.tar.header import padded
from aisfs.core.views.samples import INCOMPLETE, SPLITS, split_name
from aisfs.core.views.spec import Component, ShardSplit
from aisfs.model import Bucket, ByteRange, ObjectInfo

BLOCK = tarfile.BLOCKSIZE
RECORD = tarfile.RECORDSIZE
END = 2 * BLOCK
"""Bytes of zeros that end a tar, before it is filled up to whole records."""
MODE = 0o444
_NAME_MAX = tarfile.LENGTH_NAME
OCTAL_LIMIT = 8 ** (12 - 1)
"""A header has eleven octal digits for a size or a time; what is larger is in a pax record."""


class Content(NamedTuple):
    """Bytes of a virtual shard that are a range of an object."""

    bucket: Bucket
    info: ObjectInfo
    range: ByteRange


class VirtualShard(ABC):
    """One tar file that is put together of ranges of objects and of bytes made for it."""

    __slots__ = ("_starts", "digest", "mtime_ns", "size")

    def __init__(self, starts: "array[int]", digest: str, mtime_ns: int) -> None:
        """Take the places of the entries; how each is made up is for the subclass to say.

        Args:
            starts: Where each entry begins; one more for the end of the last one.
            digest: Tells the versions of all objects, and what becomes of them, from all others.
            mtime_ns: Of the newest object.
        """
        self._starts = starts
        self.size = tar_size(starts[-1])
        """Length in bytes."""
        self.digest = digest
        self.mtime_ns = mtime_ns

    def __len__(self) -> int:
        """Return the number of entries, about as many as objects have to be asked for."""
        return len(self._starts) - 1

    def pieces(self, wanted: ByteRange) -> Iterator[bytes | Content]:
        """Yield the bytes of a range in order, cut at the end of the tar."""
        for at in self._within(wanted):
            yield from self._pieces_of(at, wanted)
        end = overlap(wanted, self._starts[-1], self.size)
        if end:
            yield bytes(len(end))

    def contents(self, wanted: ByteRange) -> Iterator[Content]:
        """Yield what `pieces` would give of objects."""
        for at in self._within(wanted):
            yield from self._contents_of(at, wanted)

    def _within(self, wanted: ByteRange) -> Iterator[int]:
        first = bisect_right(self._starts, wanted.start) - 1
        for at in range(first, len(self)):
            if self._starts[at] >= wanted.stop:
                return
            yield at

    @abstractmethod
    def _pieces_of(self, at: int, wanted: ByteRange) -> Iterator[bytes | Content]:
        """Return the bytes of one entry that lie in `wanted`, in order."""

    @abstractmethod
    def _contents_of(self, at: int, wanted: ByteRange) -> Iterator[Content]:
        """Return what `_pieces_of` would give of objects."""


class LooseShard(VirtualShard):
    """Objects as members, with headers made for them. Takes 16 bytes for each, beside the object."""

    __slots__ = ("_bucket", "_cut", "_objects")

    def __init__(self, bucket: Bucket, objects: Sequence[ObjectInfo], cut: int) -> None:
        """Lay `objects` out, in this order, under their keys without the first `cut` characters."""
        self._bucket = bucket
        self._objects = tuple(objects)
        self._cut = cut
        starts = array("q", [0])
        digest = blake2b(str(bucket).encode(), digest_size=16)
        for info in self._objects:
            starts.append(starts[-1] + member_size(info.key[cut:], info.size))
            digest.update(spelled(info.key[cut:], *version_of(info)))
        newest = max((info.mtime_ns for info in self._objects), default=0)
        super().__init__(starts, digest.hexdigest(), newest)

    def _pieces_of(self, at: int, wanted: ByteRange) -> Iterator[bytes | Content]:
        info, start, data = self._objects[at], self._starts[at], self._data_start(at)
        head = overlap(wanted, start, data)
        if head:
            yield member_header(info.key[self._cut :], info.size)[head.start : head.stop]
        yield from self._contents_of(at, wanted)
        padding = overlap(wanted, data + info.size, self._starts[at + 1])
        if padding:
            yield bytes(len(padding))

    def _contents_of(self, at: int, wanted: ByteRange) -> Iterator[Content]:
        info, data = self._objects[at], self._data_start(at)
        inside = overlap(wanted, data, data + info.size)
        if inside:
            yield Content(self._bucket, info, inside)

    def _data_start(self, at: int) -> int:
        return self._starts[at + 1] - padded(self._objects[at].size)


def loose_shards(
    bucket: Bucket,
    objects: Sequence[ObjectInfo],
    cut: int,
    split: ShardSplit,
    rule: KeyRule = KeyRule.WDS,
    require: tuple[Component, ...] = (),
) -> tuple[list[LooseShard], Counter[str]]:
    """Lay objects out as tars, samples in the order of their keys and whole in one tar.

    Args:
        bucket: Where the objects are.
        objects: In any order, of different keys.
        cut: Characters of the keys that are no part of the members' names.
        split: How much goes into one tar.
        rule: What the key of a sample is.
        require: What a sample must have.

    Returns:
        The tars, and why how many objects or samples are in none.
    """
    exclusions: Counter[str] = Counter()
    shards: list[LooseShard] = []
    members: list[ObjectInfo] = []
    samples = size = 0
    for sample in _samples(objects, cut, rule, require, exclusions):
        length = sum(member_size(info.key[cut:], info.size) for info in sample)
        full = samples == split.samples or (
            split.size is not None and tar_size(size + length) > split.size
        )
        if members and full:
            shards.append(LooseShard(bucket, members, cut))
            members, samples, size = [], 0, 0
        members += sample
        samples += 1
        size += length
    if members:
        shards.append(LooseShard(bucket, members, cut))
    return shards, exclusions


def _samples(
    objects: Sequence[ObjectInfo],
    cut: int,
    rule: KeyRule,
    require: tuple[Component, ...],
    exclusions: Counter[str],
) -> Iterator[list[ObjectInfo]]:
    parts: list[tuple[bytes, bytes, bytes, ObjectInfo]] = []
    for info in objects:
        name = os.fsencode(info.key[cut:])
        found = split_name(name, SPLITS[rule])
        if isinstance(found, str):
            exclusions[found] += 1
        else:
            parts.append((found[0], name, found[1], info))
    parts.sort(key=lambda part: part[:2])
    for _, group in groupby(parts, key=lambda part: part[0]):
        sample = list(group)
        has = all(any(c.rank(part[2]) is not None for part in sample) for c in require)
        if has:
            yield [part[3] for part in sample]
        else:
            exclusions[INCOMPLETE] += 1


def member_header(
    name: str, size: int, *, mode: int = MODE, mtime: int = 0, directory: bool = False
) -> bytes:
    """Return all header blocks of a member; `mtime` in seconds."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, mode, mtime
    info.type = tarfile.DIRTYPE if directory else tarfile.REGTYPE
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def header_size(name: str, size: int) -> int:
    """Return the bytes of a member's header blocks, whatever its mode and its time are."""
    plain = len(name) <= _NAME_MAX and name.isascii() and size < OCTAL_LIMIT
    return BLOCK if plain else len(member_header(name, size))


def member_size(name: str, size: int) -> int:
    """Return the bytes that a member takes in a tar, headers and padding included."""
    return header_size(name, size) + padded(size)


def tar_size(members: int) -> int:
    """Return the size of a tar whose members take so many bytes."""
    return -(-(members + END) // RECORD) * RECORD


def version_of(info: ObjectInfo) -> tuple[object, ...]:
    """Return what tells a version of an object from all others in its bucket."""
    return info.key, info.size, info.version, info.checksum


def spelled(*parts: object) -> bytes:
    """Spell parts of what a digest is made of."""
    return "\0".join(map(str, parts)).encode(errors="surrogateescape") + b"\n"


def overlap(wanted: ByteRange, start: int, stop: int) -> ByteRange:
    """Return what `wanted` has of a range, counted from the beginning of that; may be empty."""
    first = max(wanted.start, start)
    return ByteRange(first - start, max(min(wanted.stop, stop), first) - start)
