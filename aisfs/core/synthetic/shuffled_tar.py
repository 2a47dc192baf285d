"""Tar files of the samples of other tars, in another order.

A sample is copied with its headers as stored: names, times, long names and sparse members stay the
same in any tar format. Headers are only generated

- for samples with the key of another sample of the same virtual shard: they get `~<shard>` before
  their first dot, as in the view `flat`, because readers take adjacent members of one key for one
  sample, and extracting the tar would overwrite one with the other;
- for hardlinks, whose content may not be in the same virtual shard.

The bytes of a virtual shard only depend on the seed, the options and the shards.
"""

import os
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate, count
from random import Random
from typing import NamedTuple

from aisfs.config import KeyRule
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.namespace.keys import NAME_MAX
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
from aisfs.core.views.merged import CLASH, DUPLICATE, JOINT
from aisfs.core.views.samples import SPLITS, Samples, split_name
from aisfs.core.views.spec import Component, ShardSplit
from aisfs.model import Bucket, ByteRange, ObjectInfo

CUT_OFF = "cut off sample"
"""A sample that is truncated in its shard."""
SPARSE = "sparse sample"
"""A sample with a sparse member that needs a generated header, which would need its map."""
_SECOND = 10**9
_MADE = 0xFFFFFFFF
"""In place of a source: a generated header."""
_ZEROS = 0xFFFFFFFE
"""In place of a source: padding that is missing at its end."""


class SourceTar(NamedTuple):
    """One version of a tar whose samples are shuffled."""

    bucket: Bucket
    info: ObjectInfo
    name: bytes
    """Distinguishes its samples from others with the same key."""


class ShardSamples:
    """The samples of one tar, as rows of its index, with those of a sample adjacent."""

    def __init__(self, index: MemberIndex, rule: KeyRule, require: tuple[Component, ...]) -> None:
        """Group the members of `index`. Of members with one name the last wins."""
        self.index = index
        found = Samples(index, rule, require)
        self.skipped = found.skipped
        """How many members and samples are left out, by reason."""
        self._rows, self._ends = array("I"), array("I", [0])
        groups: dict[bytes, dict[bytes, int]] = {}
        for part in found:
            last = groups.setdefault(part.key, {})
            name = index.name(part.row)
            self.skipped[DUPLICATE] += name in last
            last[name] = part.row
        for last in groups.values():
            rows = sorted(last.values())
            if any(map(index.truncated, rows)):
                self.skipped[CUT_OFF] += 1
            else:
                self._rows.extend(rows)
                self._ends.append(len(self._rows))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def rows(self, sample: int) -> Sequence[int]:
        """Return the members of a sample in the order of the tar."""
        return self._rows[self._ends[sample] : self._ends[sample + 1]]


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
    offset: int | None = None
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

    def __init__(self, sources: Sequence[SourceTar], rule: KeyRule) -> None:
        self._sources = sources
        self._rule = rule
        self._keys: set[bytes] = set()
        self._starts, self._owners, self._offsets = array("q", [0]), array("I"), array("Q")
        self._headers = _Headers()
        self.samples = 0

    def plan(
        self, source: int, index: MemberIndex, rows: Sequence[int]
    ) -> tuple[bytes, list[_Run]]:
        """Return the key and the runs with which a sample would be added.

        Raises:
            _Unmakeable: it needs another name and cannot have it.
        """
        names = [index.name(row) for row in rows]
        key = self._key(names[0])
        renamed = key in self._keys
        if renamed:
            key, names = self._fresh(names, self._sources[source].name)
        runs: list[_Run] = []
        for row, name in zip(rows, names, strict=True):
            _add_member(runs, index, row, name, make=renamed or index.content_row(row) != row)
        return key, runs

    def would_take(self, runs: Sequence[_Run]) -> int:
        """Return the size of the shard with another sample, in bytes."""
        return tar_size(self._starts[-1] + sum(run.length for run in runs))

    def add(self, source: int, key: bytes, runs: Sequence[_Run]) -> None:
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
                self._owners.append(_ZEROS if run.offset is None else source)
                self._offsets.append(run.offset or 0)

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
    samples: Sequence[ShardSamples],
    seed: int,
    split: ShardSplit,
    rule: KeyRule,
) -> tuple[list[ShuffledShard], Counter[str]]:
    """Arrange the samples of all sources as tars, in an order that depends on the seed.

    Args:
        sources: The tars, in the order of the dataset.
        samples: The samples of each source.
        seed: Not negative.
        split: The limits of one tar; without any there are as many tars as sources.
        rule: The rule for sample keys.

    Returns:
        The tars, and how many samples are in none, by reason.
    """
    exclusions: Counter[str] = Counter()
    shards: list[ShuffledShard] = []
    firsts = list(accumulate(map(len, samples), initial=0))
    total = firsts[-1]
    cuts = _cuts(total, len(sources)) if split == ShardSplit(None, None) else set()
    builder = _Builder(sources, rule)
    for place, number in enumerate(_order(total, seed)):
        source = bisect_right(firsts, number) - 1
        index, rows = samples[source].index, samples[source].rows(number - firsts[source])
        if builder.samples and (builder.samples == split.samples or place in cuts):
            shards.append(builder.finish())
            builder = _Builder(sources, rule)
        try:
            key, runs = builder.plan(source, index, rows)
            if builder.samples and split.size and builder.would_take(runs) > split.size:
                shards.append(builder.finish())
                builder = _Builder(sources, rule)
                key, runs = builder.plan(source, index, rows)
        except _Unmakeable as reason:
            exclusions[str(reason)] += 1
        else:
            builder.add(source, key, runs)
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


def _with_mark(name: bytes, mark: bytes) -> bytes:
    """Return a name with a mark before the first dot of its last component."""
    dot = name.find(b".", name.rfind(b"/") + 1)
    return name + mark if dot < 0 else name[:dot] + mark + name[dot:]


def _add_member(runs: list[_Run], index: MemberIndex, row: int, name: bytes, *, make: bool) -> None:
    """Add the bytes of a member, joined with the previous run if they are adjacent."""
    data = index.data_range(row)
    start = data.start
    if make:
        if index.sparse(row):
            raise _Unmakeable(SPARSE)
        mtime = min(max(index.mtime_ns(row) // _SECOND, 0), OCTAL_LIMIT - 1)
        header = _Header(name, index.size(row), mtime, index.mode(row))
        runs.append(_Run(header.length, header=header))
    else:
        start = index.span(row).start
    stop = data.start + padded(len(data))
    there = min(stop, index.object_size)
    before = runs[-1] if runs else None
    if before and before.offset is not None and before.offset + before.length == start:
        runs[-1] = _Run(before.length + there - start, before.offset)
    elif start < there:
        runs.append(_Run(there - start, start))
    if there < stop:
        runs.append(_Run(stop - there))
