"""Virtual shards of the samples of shards, laid out once from their indexes; and reads of virtual shards.

A read fetches the objects of its range, all at once, and some of those that come next. Small objects are fetched whole, since
the next read wants the rest, and many of them with one request where the store does that.
"""

import logging
from collections import Counter
from collections.abc import Sequence

import trio
from cachetools import LRUCache

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.names.listing import Form
from aisfs.core.policy.shard_readers import ReadAhead
from aisfs.core.views.join import Column, join_samples
from aisfs.core.views.sample_lists import (
    SampleList,
    SeparateSamples,
    ShardSamples,
    TogetherSamples,
)
from aisfs.core.views.shuffled_tar import (
    Content,
    ShuffledShard,
    SourceTar,
    VirtualShard,
    shuffled_shards,
)
from aisfs.core.views.spec import ViewSpec
from aisfs.engine.batches import Gathering
from aisfs.engine.buffers import FIRST_PART
from aisfs.engine.dataset.merger import LOOKED_AT, Found, advise, loses_most, report_join
from aisfs.engine.dataset.shard_set import DAMAGED, OpenProgress, ShardSet, open_each, summarize
from aisfs.engine.fetcher import Fetcher
from aisfs.engine.parts import Data, Reading
from aisfs.engine.shards import Indexer
from aisfs.errors import Archived, ConfigError, NotFound, SourceMissing, Stale
from aisfs.model import ByteRange, aligned

log = logging.getLogger(__name__)


async def reshuffle(
    shards: ShardSet, indexer: Indexer, view: ViewSpec, progress: OpenProgress
) -> tuple[list[ShuffledShard], Counter[str]]:
    """Open all shards of a dataset and distribute their samples: shuffled, joined, or both.

    `progress` follows the shards.

    Returns:
        The virtual shards, and why how much is in none.

    Raises:
        ConfigError: one is no plain tar.
        SourceMissing: there is no sample.
        Stale: one changed meanwhile.
    """
    await shards.make_all()
    current = shards.current
    sources = [SourceTar(s.bucket, s.info, s.name) for _, s in current]
    for source in sources:
        await _check_form(source, indexer, "--join" if view.shuffle is None else "--shuffle")
    found = await _open_all(sources, indexer, progress)
    shards.leave_out([place for at, (place, _) in enumerate(current) if at not in found])
    opened = [current[at][1] for at in sorted(found)]
    sources, indexes = [sources[at] for at in sorted(found)], [found[at] for at in sorted(found)]
    exclusions = shards.exclusions
    for index in indexes:
        exclusions += Counter(index.skipped)
        exclusions[DAMAGED] += bool(index.warnings)

    def make() -> tuple[list[ShuffledShard], int, Counter[str]]:
        columns = [Column(s.source, index) for s, index in zip(opened, indexes, strict=True)]
        samples, skipped = _list_samples(columns, shards.sources, view)
        made, unmade = shuffled_shards(
            sources, indexes, samples, view.shuffle, view.split, view.rule
        )
        return made, len(samples), skipped + unmade

    made, progress.files, unmade = await trio.to_thread.run_sync(make)
    exclusions += unmade
    if not made:
        shown = f"{len(sources)} shard{'s' * (len(sources) > 1)}"
        reasons = summarize(exclusions)
        raise SourceMissing(f"no samples in {shown}" + (f": {reasons}" if reasons else ""))
    if loses_most(progress.files, exclusions):
        there = Found()
        for index in indexes[:: len(indexes) // LOOKED_AT + 1]:
            there.add(index, view)
        log.warning("%s", advise(view, progress.files, exclusions, there))
    return made, exclusions


async def _open_all(
    sources: Sequence[SourceTar], indexer: Indexer, progress: OpenProgress
) -> dict[int, MemberIndex]:
    """Return the indexes of shards by their numbers, without those that the store has only archived.

    Raises:
        Stale: one changed meanwhile.
    """
    found: dict[int, MemberIndex] = {}

    async def open_one(at: int) -> None:
        bucket, info, _ = sources[at]
        try:
            found[at] = (await indexer.open(bucket, info)).index
        except (Stale, NotFound) as error:
            raise Stale(f"{bucket}/{info.key} changed meanwhile; mount again") from error
        except Archived:
            return
        indexer.forget(bucket, info)  # it is needed once
        progress.add(0)  # samples are counted when all shards are open

    progress.begin(len(sources))
    await open_each(range(len(sources)), open_one, indexer.at_once)
    return found


def _list_samples(
    columns: Sequence[Column], words: Sequence[str], view: ViewSpec
) -> tuple[SampleList, Counter[str]]:
    """Return the samples of all shards, and what is in none. Runs in a worker thread."""
    if view.join is not None:
        joined = join_samples(columns, len(words), view.rule, view.require, view.join, view.wanted)
        report_join(joined, words)
        return TogetherSamples(joined), joined.skipped
    separate = [ShardSamples(index, view.rule, view.require, view.wanted) for _, index in columns]
    return SeparateSamples(separate), sum((one.skipped for one in separate), Counter[str]())


async def _check_form(source: SourceTar, indexer: Indexer, option: str) -> None:
    form = await indexer.forms.form(source.bucket, source.info)
    if form not in (None, Form.TAR):
        raise ConfigError(
            f"{source.bucket}/{source.info.key}: {option} takes plain tars only, since parts of"
            " other archives cannot be copied as they are; leave them out with --exclude"
        )


AHEAD_OBJECTS = 256
"""Objects fetched ahead of a reader at most, about: eight for each connection."""
BLOCK = 4096
"""Large objects are fetched in whole pages of the disk cache."""
SHARDS_MAX = 1000
"""Virtual shards whose readers are remembered."""


class SyntheticReader:
    """Makes the bytes of virtual shards."""

    def __init__(self, fetcher: Fetcher, read_ahead_max: int) -> None:
        """Fetch objects through `fetcher`, at most `read_ahead_max` bytes ahead of a reader."""
        self._fetcher = fetcher
        self._read_ahead_max = read_ahead_max
        self._readers: LRUCache[str, ReadAhead] = LRUCache(SHARDS_MAX)

    async def read(self, shard: VirtualShard, wanted: ByteRange) -> Data:
        """Read a range of a virtual shard, cut at its end; empty behind the end.

        Raises:
            Stale: an object of the range is no longer the version that was laid out.
        """
        wanted = ByteRange(wanted.start, min(wanted.stop, shard.size))
        if wanted.start >= wanted.stop:
            return b""
        with self._fetcher.gathering() as together:
            found = [
                piece if isinstance(piece, bytes) else (piece, self._start(piece, together))
                for piece in shard.pieces(wanted)
            ]
            stalled = any(not isinstance(each, bytes) and not each[1].ready for each in found)
            self._fetch_ahead(shard, wanted, together, stalled=stalled)
        return b"".join([each if isinstance(each, bytes) else await _wait(*each) for each in found])

    def _start(self, content: Content, together: Gathering | None) -> Reading:
        opened = self._fetcher.open(content.bucket, content.info)
        return self._fetcher.start(opened, _fetched(content), together)

    def _fetch_ahead(
        self, shard: VirtualShard, wanted: ByteRange, together: Gathering | None, *, stalled: bool
    ) -> None:
        reader = self._readers.get(shard.digest)
        if reader is None:
            window = min(self._read_ahead_max, AHEAD_OBJECTS * shard.size // len(shard))
            reader = ReadAhead(shard.size, max_window=window)
            self._readers[shard.digest] = reader
        plan = reader.observe(wanted, stalled=stalled, high_latency=self._fetcher.high_latency)
        for content in shard.contents(plan.ahead) if plan.ahead is not None else ():
            opened = self._fetcher.open(content.bucket, content.info)
            self._fetcher.ahead(opened, _fetched(content), together)


def _fetched(content: Content) -> ByteRange:
    """Return what to fetch of an object when a range of it is wanted."""
    size = content.info.size
    return ByteRange(0, size) if size <= FIRST_PART else aligned(content.range, BLOCK, size)


async def _wait(content: Content, reading: Reading) -> Data:
    try:
        data = await reading.wait()
    except (Stale, NotFound) as error:
        raise Stale(
            f"{content.bucket}/{content.info.key} changed since the mount began; mount again to see"
            " virtual shards with what it is now"
        ) from error
    start = content.range.start - reading.wanted.start
    return memoryview(data)[start : start + len(content.range)]
