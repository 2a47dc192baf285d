"""The tree of a dataset mount: what its view shows in place of buckets and directories."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import trio

from aisfs.core.names.sources import DatasetSource
from aisfs.core.views.sample_lists import epoch_seed
from aisfs.core.views.shuffled_tar import LooseShard, VirtualShard, loose_shards
from aisfs.core.views.spec import LabelSource, ViewSpec
from aisfs.engine.dataset.label_files import NO_CLASSES, find_classes, read_table
from aisfs.engine.dataset.merger import Merger
from aisfs.engine.dataset.reshuffler import reshuffle
from aisfs.engine.dataset.shard_set import (
    MADE_AT_ONCE,
    OpenProgress,
    ShardSet,
    find_loose_objects,
    find_shards,
    nothing,
)
from aisfs.errors import SourceMissing
from aisfs.filesystem.dataset_trees import DatasetTree, EpochTree, MergedTree, SyntheticTree
from aisfs.filesystem.trees import Names
from aisfs.mount.services import Services
from aisfs.mount.setup import MountSetup
from aisfs.settings import View
from aisfs.stores.epochs import epoch_directory
from aisfs.stores.pipeline import all_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a dataset mount shows."""

    tree: Names
    merger: Merger | None
    """Opens all shards when the tree is first asked; None where each is opened by itself, or all are open."""


async def build_dataset(
    setup: MountSetup, source: DatasetSource, services: Services, progress: OpenProgress
) -> Dataset:
    """Find the shards of a dataset, and return the tree that the view of `setup` makes of them, or one for each epoch.

    Raises:
        SourceMissing: there is nothing to show.
    """
    if not setup.transform.epochs:
        return await _build_one(setup, setup.view, source, services, progress)

    async def build(epoch: int, progress: OpenProgress) -> Dataset:
        view, within = setup.view, source
        if view.shuffle is not None:
            view = replace(view, shuffle=epoch_seed(view.shuffle, epoch))
        if setup.transform:
            within = source.within(epoch_directory(epoch))
        layout = epoch_directory(epoch)
        return await _build_one(setup, view, within, services, progress, layout)

    async def make(epoch: int) -> Names:
        return (await build(epoch, OpenProgress())).tree

    first = await build(0, progress)
    tree = EpochTree(source.buckets[0], setup.transform.epochs, first.tree, make)
    return replace(first, tree=tree)


async def _build_one(
    setup: MountSetup,
    view: ViewSpec,
    source: DatasetSource,
    services: Services,
    progress: OpenProgress,
    layout: str = "",
) -> Dataset:
    """Do it for one epoch; `layout` distinguishes its directories from those of others."""
    if view.view is View.SHARDS:
        return Dataset(await _build_virtual(view, source, services, progress), None)
    shards = await _find_shards(view, source, services)
    by_content = view.view is View.CLASS and view.label.component is not None
    looks_for_classes = by_content and view.classes is None
    merger: Merger | None = None

    async def find_again() -> ShardSet:
        await services.lister.refresh(None)
        found = await _find_shards(view, source, services)
        if merger is not None and looks_for_classes:
            merger.classes = await find_classes(found, services.lister, services.store)
        return found

    if not view.merged:
        return Dataset(DatasetTree(shards, find_again, services.nursery), None)
    classes = NO_CLASSES
    if looks_for_classes:
        classes = await find_classes(shards, services.lister, services.store)
    table = None
    if view.view is View.CLASS and view.label.source is LabelSource.TABLE:
        table = await read_table(services.store, source, view.label.text)
    merger = Merger(
        shards,
        services.indexer,
        services.reader.read_whole,
        view,
        services.nursery,
        services.metrics,
        table=table,
        classes=classes,
        progress=progress,
        strict=setup.strict,
    )
    return Dataset(MergedTree(merger, layout + repr(view), find_again), merger)


async def _build_virtual(
    view: ViewSpec, source: DatasetSource, services: Services, progress: OpenProgress
) -> Names:
    metrics = services.metrics
    shards: Sequence[VirtualShard]
    if view.reshaped:
        found = await _find_shards(view, source, services)
        shards, exclusions = await reshuffle(found, services.indexer, view, progress)
    else:
        shards, exclusions = await _pack_loose_objects(view, source, services)
    metrics.dataset_shards.labels("shown").set(len(shards))
    for reason, number in exclusions.items():
        metrics.exclusions.labels(reason.replace(" ", "_")).set(number)
    log.info("%d virtual shards of %s", len(shards), source)
    return SyntheticTree(shards, exclusions)


async def _find_shards(view: ViewSpec, source: DatasetSource, services: Services) -> ShardSet:
    joined = view.join is not None
    shards = await find_shards(
        source, services.lister, services.store, services.metrics, joined=joined
    )
    services.scans.expect(shards.size)
    return shards


async def _pack_loose_objects(
    view: ViewSpec, source: DatasetSource, services: Services
) -> tuple[list[LooseShard], Counter[str]]:
    found = await find_loose_objects(source, services.lister)
    make = partial(
        loose_shards,
        cut=len(found.directory),
        split=view.split,
        rule=view.rule,
        require=view.require,
    )
    bucket, objects = found.bucket, found.objects

    async def size(at: int) -> None:
        objects[at] = await services.store.sized(bucket, objects[at])

    unsized = (at for at, info in enumerate(objects) if not info.is_sized)
    await all_of((partial(size, at) for at in unsized), MADE_AT_ONCE)
    shards, unused = await trio.to_thread.run_sync(make, bucket, objects)
    exclusions = found.exclusions + unused
    if not shards:
        raise SourceMissing(f"{source}: {nothing(exclusions)}")
    return shards, exclusions
