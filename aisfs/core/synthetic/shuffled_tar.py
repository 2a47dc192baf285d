"""Tar files of the samples of other tars: in another order, or with the parts of several sources.

A sample is copied with its headers as stored: names, times, long names and sparse members stay the
same in any tar format. Headers are only generated

- for samples with the key of another sample of the same virtual shard: they get `~<shard>` before
  their first dot, as in the view `flat`, because readers take adjacent members of one key for one
  sample, and extracting the tar would overwrite one with the other;
- for hardlinks, whose content may not be in the same virtual shard;
- for parts of a joined sample that are in another directory than its first part: they move there, so
  that readers find one sample.

The bytes of a virtual shard only depend on the seed, the options and the shards.
"""

import os
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count
from random import Random
from typing import NamedTuple

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.namespace.keys import NAME_MAX
from aisfs.core.synthetic.sample_lists import CUT_OFF, Part, SampleList
from aisfs.core.synthetic.tar import (
    OCTAL_LIMIT,
    Content,
    VirtualShard,
    header_size,
    member_header,
    overlap,
    spelled,
    tar_size,
    version_of,
)
from aisfs.core.tar.header import padded
from aisfs.core.views.merged import CLASH, JOINT
from aisfs.core.views.samples import SPLITS, split_name
from aisfs.core.views.spec import ShardSplit
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.settings import KeyRule

SPARSE = "sparse sample"
"""A sample with a sparse member that needs a generated header, which would need its map."""
_SECOND = 10**9
_MADE = 0xFFFFFFFF
"""In place of a source: a generated header."""
_ZEROS = 0xFFFFFFFE
"""In place of a source: padding that is missing at its end."""


class SourceTar(NamedTuple):
    """One version of a tar whose samples are shown in other tars."""

    bucket: Bucket
    info: ObjectInfo
    name: bytes
    """Distinguishes its samples from others with the same key."""


class _Header(NamedTuple):
    """A generated header of one member."""

    name: bytes
    size: int
    mtime: int
    """Seconds since the epoch, clamped to what a plain header can store."""
    mode: int

    @property
    def length(self) -> int:
        return header_size(os.fsdecode(self.name), self.size)

    def blocks(self) -> bytes:
        name = os.fsdecode(self.name)
        return member_header(name, self.size, mode=self.mode, mtime=self.mtime)


class _Headers:
    """Generated headers as columns, which take some 20 bytes and the name for each."""

    def __init__(self) -> None:
        self.names, self._ends = bytearray(), array("Q", [0])
        self._sizes, self._mtimes, self._modes = array("Q"), array("Q"), array("H")

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, header: _Header) -> None:
        self.names += header.name
        self._ends.append(len(self.names))
        self._sizes.append(header.size)
        self._mtimes.append(header.mtime)
        self._modes.append(header.mode)

    def __getitem__(self, at: int) -> _Header:
        name = bytes(self.names[self._ends[at] : self._ends[at + 1]])
        return _Header(name, self._sizes[at], self._mtimes[at], self._modes[at])


class _Run(NamedTuple):
    """Adjacent bytes of a sample: a range of its source, a generated header, or zeros."""

    length: int
    source: int = _ZEROS
    offset: int = 0
    """In the source."""
    header: _Header | None = None


class ShuffledShard(VirtualShard):
    """Samples of other tars. Each run of bytes takes 20 bytes."""

    __slots__ = ("_headers", "_offsets", "_owners", "_sources")

    def __init__(
        self,
        sources: Sequence[SourceTar],
        starts: "array[int]",
        owners: "array[int]",
        offsets: "array[int]",
        headers: _Headers,
    ) -> None:
        """Keep the columns of the runs.

        Args:
            sources: The tars that `owners` counts.
            starts: Where each run begins, and where the last one ends.
            owners: The source of each run.
            offsets: The offset in the source, or the position in `headers`.
            headers: The generated headers.
        """
        self._sources = sources
        self._owners, self._offsets, self._headers = owners, offsets, headers
        digest = blake2b(digest_size=16)
        used = [sources[at] for at in sorted(set(owners)) if at < _ZEROS]
        for source in used:
            digest.update(spelled(source.bucket, *version_of(source.info)))
        for column in (starts, owners, offsets, headers.names):
            digest.update(column)
        newest = max((source.info.mtime_ns for source in used), default=0)
        super().__init__(starts, digest.hexdigest(), newest)

    def _pieces_of(self, at: int, wanted: ByteRange) -> Iterator[bytes | Content]:
        inside = overlap(wanted, self._starts[at], self._starts[at + 1])
        owner = self._owners[at]
        if owner == _MADE:
            yield self._headers[self._offsets[at]].blocks()[inside.start : inside.stop]
        elif owner == _ZEROS:
            yield bytes(len(inside))
        else:
            yield from self._contents_of(at, wanted)

    def _contents_of(self, at: int, wanted: ByteRange) -> Iterator[Content]:
        owner, offset = self._owners[at], self._offsets[at]
        if owner < _ZEROS:
            inside = overlap(wanted, self._starts[at], self._starts[at + 1])
            stored = ByteRange(offset + inside.start, offset + inside.stop)
            yield Content(self._sources[owner].bucket, self._sources[owner].info, stored)


class _Unmakeable(Exception):
    """A sample cannot have the name it would need; the text is the reason."""


class _Builder:
    """One virtual shard, sample by sample."""

    def __init__(
        self, sources: Sequence[SourceTar], indexes: Sequence[MemberIndex], rule: KeyRule
    ) -> None:
        self._sources = sources
        self._indexes = indexes
        self._rule = rule
        self._keys: set[bytes] = set()
        self._starts, self._owners, self._offsets = array("q", [0]), array("I"), array("Q")
        self._headers = _Headers()
        self.samples = 0

    def plan(self, parts: Sequence[Part]) -> tuple[bytes, list[_Run]]:
        """Return the key and the runs with which a sample would be added.

        Raises:
            _Unmakeable: it needs another name and cannot have it, or its source ends before it.
        """
        own = [self._indexes[source].name(row) for source, row in parts]
        names = own if parts[0][0] == parts[-1][0] else _in_one_directory(own)
        key = self._key(names[0])
        if key in self._keys:
            key, names = self._fresh(names, self._sources[parts[0][0]].name)
        runs: list[_Run] = []
        for part, before, name in zip(parts, own, names, strict=True):
            source, row = part
            index = self._indexes[source]
            if index.truncated(row):
                raise _Unmakeable(CUT_OFF)
            make = name != before or index.content_row(row) != row
            _add_member(runs, source, index, row, name, make=make)
        return key, runs

    def would_take(self, runs: Sequence[_Run]) -> int:
        """Return the size of the shard with another sample, in bytes."""
        return tar_size(self._starts[-1] + sum(run.length for run in runs))

    def add(self, key: bytes, runs: Sequence[_Run]) -> None:
        """Add a sample as `plan` returned it."""
        self._keys.add(key)
        self.samples += 1
        for run in runs:
            self._starts.append(self._starts[-1] + run.length)
            if run.header is not None:
                self._owners.append(_MADE)
                self._offsets.append(len(self._headers))
                self._headers.add(run.header)
            else:
                self._owners.append(run.source)
                self._offsets.append(run.offset)

    def finish(self) -> ShuffledShard:
        """Return the shard. The builder is spent."""
        columns = (self._starts[:], self._owners[:], self._offsets[:])  # without spare capacity
        return ShuffledShard(self._sources, *columns, self._headers)

    def _key(self, name: bytes) -> bytes:
        found = split_name(name, SPLITS[self._rule])
        assert not isinstance(found, str), "what has no key is no part of a sample"
        return found[0]

    def _fresh(self, names: list[bytes], shard: bytes) -> tuple[bytes, list[bytes]]:
        """Return names that no other sample here has, and their key."""
        mark = JOINT + shard.replace(b".", b"_")  # the key ends at the first dot
        candidates = (
            [_with_mark(name, mark + (JOINT + b"%d" % number if number > 1 else b""))
             for name in names]
            for number in count(1)
        )  # fmt: skip
        new = next(each for each in candidates if self._key(each[0]) not in self._keys)
        if any(len(name) - name.rfind(b"/") - 1 > NAME_MAX for name in new):
            raise _Unmakeable(CLASH)
        return self._key(new[0]), new


def shuffled_shards(
    sources: Sequence[SourceTar],
    indexes: Sequence[MemberIndex],
    samples: SampleList,
    seed: int | None,
    split: ShardSplit,
    rule: KeyRule,
) -> tuple[list[ShuffledShard], Counter[str]]:
    """Arrange the samples of all sources as tars, in an order that depends on the seed.

    Args:
        sources: The tars, in the order of the dataset.
        indexes: The members of each.
        samples: What they consist of.
        seed: Not negative; None keeps the order.
        split: The limits of one tar. Without any there are as many tars as sources that samples
            belong to, each with the samples of its source if the order is kept.
        rule: The rule for sample keys.

    Returns:
        The tars, and how many samples are in none, by reason.
    """
    exclusions: Counter[str] = Counter()
    shards: list[ShuffledShard] = []
    total, cuts = len(samples), set[int]()
    if split == ShardSplit(None, None):
        cuts = set(samples.firsts) if seed is None else _cuts(total, len(samples.firsts))
    builder = _Builder(sources, indexes, rule)
    for place, number in enumerate(range(total) if seed is None else _order(total, seed)):
        parts = samples.parts(number)
        if builder.samples and (builder.samples == split.samples or place in cuts):
            shards.append(builder.finish())
            builder = _Builder(sources, indexes, rule)
        try:
            key, runs = builder.plan(parts)
            if builder.samples and split.size and builder.would_take(runs) > split.size:
                shards.append(builder.finish())
                builder = _Builder(sources, indexes, rule)
                key, runs = builder.plan(parts)
        except _Unmakeable as reason:
            exclusions[str(reason)] += 1
        else:
            builder.add(key, runs)
    if builder.samples:
        shards.append(builder.finish())
    return shards, exclusions


def _cuts(total: int, parts: int) -> set[int]:
    """Return where each part but the first begins, with parts of nearly equal lengths."""
    return {total * part // parts for part in range(1, parts)}


def _order(length: int, seed: int) -> "array[int]":
    """Return the numbers below `length`, shuffled.

    Not `shuffle`: only `random()` is the same sequence in every version of Python.
    """
    draw = Random(seed).random
    order = array("I", range(length))
    for last in range(length - 1, 0, -1):
        other = int(draw() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order


def _in_one_directory(names: list[bytes]) -> list[bytes]:
    """Return the names of a sample's parts, all in the directory of the first."""
    home = names[0][: names[0].rfind(b"/") + 1]
    return [home + name[name.rfind(b"/") + 1 :] for name in names]


def _with_mark(name: bytes, mark: bytes) -> bytes:
    """Return a name with a mark before the first dot of its last component."""
    dot = name.find(b".", name.rfind(b"/") + 1)
    return name + mark if dot < 0 else name[:dot] + mark + name[dot:]


def _add_member(
    runs: list[_Run], source: int, index: MemberIndex, row: int, name: bytes, *, make: bool
) -> None:
    """Add the bytes of a member, joined with the previous run if they are adjacent."""
    data = index.data_range(row)
    start = data.start
    if make:
        if index.sparse(row):
            raise _Unmakeable(SPARSE)
        mtime = min(max(index.mtime_ns(row) // _SECOND, 0), OCTAL_LIMIT - 1)
        header = _Header(name, index.size(row), mtime, index.mode(row))
        runs.append(_Run(header.length, _MADE, header=header))
    else:
        start = index.span(row).start
    stop = data.start + padded(len(data))
    there = min(stop, index.object_size)
    before = runs[-1] if runs else _Run(0)
    if before.source == source and before.offset + before.length == start:
        runs[-1] = _Run(before.length + there - start, source, before.offset)
    elif start < there:
        runs.append(_Run(there - start, source, start))
    if there < stop:
        runs.append(_Run(stop - there))
