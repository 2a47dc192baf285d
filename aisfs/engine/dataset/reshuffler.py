"""Virtual shards of the samples of shards: made once, from the indexes of all of them."""

import logging
from collections import Counter
from collections.abc import Sequence

import trio

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.names.formats import Form
from aisfs.core.views.join import Column, join_samples
from aisfs.core.views.shuffle_order import (
    SampleList,
    SeparateSamples,
    ShardSamples,
    TogetherSamples,
)
from aisfs.core.views.shuffled_tar import ShuffledShard, SourceTar, shuffled_shards
from aisfs.core.views.spec import ViewSpec
from aisfs.engine.dataset.advice import LOOKED_AT, Found, advise, loses_most
from aisfs.engine.dataset.exclusions import DAMAGED, summarize
from aisfs.engine.dataset.join_report import report_join
from aisfs.engine.dataset.open_many import open_each
from aisfs.engine.dataset.progress import OpenProgress
from aisfs.engine.dataset.shard_set import ShardSet
from aisfs.engine.read.indexer import Indexer
from aisfs.errors import Archived, ConfigError, NotFound, SourceMissing, Stale

log = logging.getLogger(__name__)


async def reshuffle(
    shards: ShardSet, indexer: Indexer, view: ViewSpec, progress: OpenProgress
) -> tuple[list[ShuffledShard], Counter[str]]:
    """Open all shards of a dataset and deal their samples out anew: shuffled, joined, or both.

    `progress` follows the shards.

    Returns:
        The virtual shards, and why how much is in none.

    Raises:
        ConfigError: one is no plain tar.
        SourceMissing: there is no sample.
        Stale: one changed meanwhile.
    """
    current = shards.current
    sources = [SourceTar(s.bucket, s.info, s.name) for _, s in current]
    for source in sources:
        await _check_form(source, indexer, "--join" if view.shuffle is None else "--shuffle")
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
