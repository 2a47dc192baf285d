"""Puts a transformer in front of the store of a mount, as `--etl` or `--transform` asks."""

import logging
from collections.abc import Callable
from functools import partial

import trio

from aisfs.core.names.listing import is_shard
from aisfs.core.names.sources import DatasetSource, Source
from aisfs.errors import ConfigError, JobNotFound
from aisfs.filesystem.nodes import DirectoryNode, Node
from aisfs.metrics import Metrics
from aisfs.mount.plan import SourcePlan, origin_of
from aisfs.settings import View
from aisfs.stores.ais.client import AISClient
from aisfs.stores.ais.etls import EtlTransformer
from aisfs.stores.epochs import EpochStore
from aisfs.stores.port import WritableStore
from aisfs.stores.results import Results
from aisfs.stores.transformed import CommandTransformer, TransformedStore, Transformer

log = logging.getLogger(__name__)

SHARE = 2
"""Results take half of the disk cache: the other half is for indexes and for what is decompressed of results."""


def results_limit(plan: SourcePlan, limit: int) -> int:
    """Return the bytes of a disk cache of `limit` bytes that are for results."""
    return limit // SHARE if plan.transform else 0


async def transformed(
    plan: SourcePlan,
    source: Source,
    root: Node,
    store: WritableStore,
    pipeline: WritableStore,
    limit: int,
    metrics: Metrics,
    *,
    restarted: bool,
) -> WritableStore:
    """Return the store that shows the objects of a source as the plan has them transformed, in each epoch anew.

    Args:
        plan: How.
        source: As it is served.
        root: What is mounted.
        store: What has the objects.
        pipeline: The same, with retries.
        limit: Bytes of the disk cache.
        metrics: Count transformations.
        restarted: Whether another daemon has served this mount before, with ETLs that need not run now.

    Raises:
        ConfigError, Unsupported: there is no such transformer.
    """
    room = results_limit(plan, limit)
    if not room:
        raise ConfigError(f"{plan.cache.cache_dir}: no room for results of transformations")
    results = await trio.to_thread.run_sync(Results, plan.cache.cache_dir, room)
    try:
        transformer: Transformer
        if plan.command is not None:
            transformer = CommandTransformer(plan.command, most=room, scratch=results.scratch)
        else:
            transformer = await _etls(plan, store, results, restarted=restarted)
    except BaseException:
        results.close()
        raise
    shown = TransformedStore(
        pipeline,
        transformer,
        results,
        wanted=_wanted(plan, source, root),
        deadline=plan.cluster.io_timeout,
        metrics=metrics,
    )
    if not plan.transform.epochs:
        return shown
    stores = [shown, *map(shown.of_epoch, range(1, plan.transform.epochs))]
    return EpochStore(stores, root.prefix if isinstance(root, DirectoryNode) else "")


async def _etls(
    plan: SourcePlan, store: WritableStore, results: Results, *, restarted: bool
) -> EtlTransformer:
    """Return the ETLs, which run at the moment, unless the mount was `restarted`: what they have made is shown then."""
    assert isinstance(store, AISClient), "the plan was checked"
    names, mount = plan.transform.etl.split(","), origin_of(plan)
    etls = EtlTransformer(
        store,
        names,
        plan.transform.etl_args,
        deadline=plan.cluster.io_timeout,
        note=partial(results.note_definition, mount),
    )
    if restarted:
        etls.go_on(await trio.to_thread.run_sync(results.definition, mount))
    try:
        await etls.ask()
    except JobNotFound as error:
        if not restarted:
            hint = "`aisfs etl list` shows which there are"
            raise JobNotFound(f"--etl: {error}; {hint}") from error
        log.warning("what is not transformed yet has to wait: %s", error)
    return etls


def _wanted(plan: SourcePlan, source: Source, root: Node) -> Callable[[str], bool]:
    """Return which keys are transformed: those that the mount shows, or whose members it shows."""
    if not isinstance(source, DatasetSource):
        prefix = root.prefix if isinstance(root, DirectoryNode) else ""
        return plan.keys.below(prefix) or (lambda _: True)
    if plan.view.view is View.SHARDS and not plan.view.reshaped:
        cut = len(source.words[0].patterns[0].directory)
        return lambda key: source.keys.wants(key[cut:])
    patterns = [pattern for word in source.words for pattern in word.patterns]
    named = {pattern.directory + pattern.rest for pattern in patterns if pattern.one}
    others = [pattern.directory for pattern in patterns if not pattern.one or pattern.listing]
    is_glob = any(pattern.rest and not pattern.one for pattern in patterns)

    def wanted(key: str) -> bool:
        is_taken = is_shard(key.encode(errors="surrogateescape")) or (source.magic and is_glob)
        return key in named or (is_taken and any(map(key.startswith, others)))

    return wanted
