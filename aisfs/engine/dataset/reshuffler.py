"""Virtual shards of the samples of shards, shuffled: made once, from the indexes of all of them."""

from collections import Counter

import trio

from aisfs.core.archive.formats import Form
from aisfs.core.synthetic.shuffled_tar import (
    ShardSamples,
    ShuffledShard,
    SourceTar,
    shuffled_shards,
)
from aisfs.core.views.spec import ViewSpec
from aisfs.engine.dataset.exclusions import DAMAGED, summarize
from aisfs.engine.dataset.open_many import open_each
from aisfs.engine.dataset.shard_set import ShardSet
from aisfs.engine.read.indexer import Indexer
from aisfs.errors import ConfigError, NotFound, SourceMissing, Stale


async def reshuffle(
    shards: ShardSet, indexer: Indexer, view: ViewSpec
) -> tuple[list[ShuffledShard], Counter[str]]:
    """Open all shards of a dataset and deal their samples out anew.

    Returns:
        The virtual shards, and why how much is in none.

    Raises:
        ConfigError: one is no plain tar.
        SourceMissing: there is no sample.
        Stale: one changed meanwhile.
    """
    assert view.shuffle is not None, "the order of samples needs a seed"
    sources = [SourceTar(s.bucket, s.info, s.name) for _, s in shards.current]
    for source in sources:
        await _check_form(source, indexer)
    found: dict[int, ShardSamples] = {}

    async def open_one(at: int) -> None:
        bucket, info, _ = sources[at]
        try:
            index = (await indexer.open(bucket, info)).index
        except (Stale, NotFound) as error:
            raise Stale(f"{bucket}/{info.key} changed meanwhile; mount again") from error
        indexer.forget(bucket, info)  # it is needed once
        found[at] = await trio.to_thread.run_sync(ShardSamples, index, view.rule, view.require)

    await open_each(range(len(sources)), open_one)
    samples = [found[at] for at in range(len(sources))]
    exclusions = shards.exclusions
    for one in samples:
        exclusions += one.skipped + Counter(one.index.skipped)
        exclusions[DAMAGED] += bool(one.index.warnings)
    made, unmade = await trio.to_thread.run_sync(
        shuffled_shards, sources, samples, view.shuffle, view.split, view.rule
    )
    exclusions += unmade
    if not made:
        shown = f"{len(sources)} shard{'s' * (len(sources) > 1)}"
        reasons = summarize(exclusions)
        raise SourceMissing(f"no samples in {shown}" + (f": {reasons}" if reasons else ""))
    return made, exclusions


async def _check_form(source: SourceTar, indexer: Indexer) -> None:
    form = await indexer.form(source.bucket, source.info)
    if form not in (None, Form.TAR):
        raise ConfigError(
            f"{source.bucket}/{source.info.key}: --shuffle takes plain tars only, since parts of"
            " other archives cannot be copied as they are; leave them out with --exclude"
        )
