"""Tar files of the samples of other tars, in another order.

A sample is copied with its headers, as it is stored: names, times, long names and sparse members
stay what they are, whatever format the tar has. Headers are made only

- for samples whose key another one of the same virtual shard has: they get `~<shard>` before their
  first dot, as in the view `flat`, since readers take neighbours of one key for one sample and
  programs that unpack the tar would overwrite the one with the other;
- for hardlinks, whose content may not be in the same virtual shard.

Which bytes a virtual shard has depends on the seed, the options and the shards, and on nothing else.
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
"""One of which the shard does not have all bytes."""
SPARSE = "sparse sample"
"""One with a sparse member that needs a header made for it, which would need its map."""
_SECOND = 10**9
_MADE = 0xFFFFFFFF
"""In the place of a source: a header that is made."""
_ZEROS = 0xFFFFFFFE
"""Padding that the source ends without."""


class SourceTar(NamedTuple):
    """A tar whose samples are shuffled, in the version that is shown."""

    bucket: Bucket
    info: ObjectInfo
    name: bytes
    """What tells its samples from others of the same key."""


class ShardSamples:
    """The samples of one tar: rows of its index, those of a sample side by side."""

    def __init__(self, index: MemberIndex, rule: KeyRule, require: tuple[Component, ...]) -> None:
        """Group the members of `index`. Of members with one name the last wins."""
        self.index = index
        found = Samples(index, rule, require)
        self.skipped = found.skipped
        """Members and samples that are left out: reason and how many."""
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
    """A header that is made, for one member."""

    name: bytes
    size: int
    mtime: int
    """Seconds since the epoch, as far as a plain header can say it."""
    mode: int

    @property
    def length(self) -> int:
        return header_size(os.fsdecode(self.name), self.size)

    def blocks(self) -> bytes:
        name = os.fsdecode(self.name)
        return member_header(name, self.size, mode=self.mode, mtime=self.mtime)


class _Headers:
    """Headers that are made, as columns: some 20 bytes and the name for each."""

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
    """Bytes of a sample that lie side by side: of its source, a header that is made, or zeros."""

    length: int
    offset: int | None = None
    """In the source."""
    header: _Header | None = None


class ShuffledShard(VirtualShard):
    """Samples of other tars. Takes 20 bytes for each run of bytes of one of them."""

    __slots__ = ("_headers", "_offsets", "_owners", "_sources")

    def __init__(
        self,
        sources: Sequence[SourceTar],
        starts: "array[int]",
        owners: "array[int]",
        offsets: "array[int]",
        headers: _Headers,
    ) -> None:
        """Take the columns of the runs.

        Args:
            sources: The tars that `owners` counts.
            starts: Where each run begins; one more for the end of the last one.
            owners: Whose bytes each is.
            offsets: Where they lie in the source, or which of `headers` it is.
            headers: Those that are made.
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
    """A sample cannot be had under the name it would need; the text says why."""


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
        """Say under which key a sample would be added, and as what.

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
        """Return the size of the shard with a sample more, in bytes."""
        return tar_size(self._starts[-1] + sum(run.length for run in runs))

    def add(self, source: int, key: bytes, runs: Sequence[_Run]) -> None:
        """Take a sample as `plan` gave it."""
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
        columns = (self._starts[:], self._owners[:], self._offsets[:])  # without spare room
        return ShuffledShard(self._sources, *columns, self._headers)

    def _key(self, name: bytes) -> bytes:
        found = split_name(name, SPLITS[self._rule])
        assert not isinstance(found, str), "what has no key is no part of a sample"
        return found[0]

    def _fresh(self, names: list[bytes], shard: bytes) -> tuple[bytes, list[bytes]]:
        """Return names that differ from those of all samples here, and their key."""
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
    """Lay the samples of all sources out as tars, in an order that the seed decides.

    Args:
        sources: The tars, in the order of the dataset.
        samples: Of each of them.
        seed: Not negative.
        split: How much goes into one tar; without a word on that there are as many as sources.
        rule: What the key of a sample is.

    Returns:
        The tars, and why how many samples are in none.
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
    """Return where each part but the first begins when all are as long as each other, or nearly so."""
    return {total * part // parts for part in range(1, parts)}


def _order(length: int, seed: int) -> "array[int]":
    """Return the numbers below `length`, shuffled.

    By hand: Python promises the same sequence from every version for `random()` alone.
    """
    draw = Random(seed).random
    order = array("I", range(length))
    for last in range(length - 1, 0, -1):
        other = int(draw() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order


def _with_mark(name: bytes, mark: bytes) -> bytes:
    """Put something before the first dot of the last component."""
    dot = name.find(b".", name.rfind(b"/") + 1)
    return name + mark if dot < 0 else name[:dot] + mark + name[dot:]


def _add_member(runs: list[_Run], index: MemberIndex, row: int, name: bytes, *, make: bool) -> None:
    """Add the bytes of a member, together with those before it where they are neighbours."""
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
