"""`aisfs inspect`: what is in shards, without mounting them.

It uses the same services as a mount, so what it finds is in the cache for the next mount.
"""

import logging
import os
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import trio

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import LabelColumn
from aisfs.core.names.listing import is_shard
from aisfs.core.names.sources import DatasetSource
from aisfs.core.views.spec import ViewSpec
from aisfs.core.views.summary import LABEL_MAX, Sizes, Summary, holes, shown
from aisfs.core.views.tree import MembersView
from aisfs.engine.dataset.shard_set import find_shards
from aisfs.engine.listing import Lister
from aisfs.engine.scanning import ScanReport
from aisfs.errors import (
    AisfsError,
    NotFound,
    ShardDamaged,
    SourceMissing,
)
from aisfs.filesystem.nodes import DirectoryNode
from aisfs.model import Bucket, ObjectInfo
from aisfs.mount.services import Services, open_services
from aisfs.mount.setup import SourceSetup
from aisfs.stores.pipeline import all_of

log = logging.getLogger(__name__)

Shard = tuple[Bucket, ObjectInfo]

TOGETHER = 64
"""Shards that are asked for at once, of which nothing may have to be read: as many as one request
fetches published indexes of."""


@dataclass(slots=True)
class Report:
    """What was found."""

    summary: Summary = field(default_factory=Summary)
    loose_objects: int = 0
    """Objects beside the shards that are not shards."""
    damage: dict[str, list[str]] = field(default_factory=dict)
    """By shard, what is wrong with it."""
    failures: dict[str, AisfsError] = field(default_factory=dict)
    """By shard, why it could not be read."""
    holes: list[str] = field(default_factory=list)
    """Names of shards that are missing between others."""

    scans: ScanReport = field(default_factory=ScanReport)
    indexes: Counter[str] = field(default_factory=Counter)
    """Where the indexes of the other shards were found, and of how many."""
    """How the shards were read whose index nobody knew."""

    @property
    def first_failure(self) -> AisfsError | None:
        """Why the first of those shards could not be read."""
        return next((self.failures[shard] for shard in sorted(self.failures)), None)

    def components(self) -> list[tuple[str, Sizes]]:
        """Return the sizes of each component, by its name."""
        return [(shown(name), sizes) for name, sizes in self.summary.components()]

    def labels(self) -> list[tuple[str, int]]:
        """Return how many samples have each label, the most frequent first."""
        return [(shown(label), count) for label, count in self.summary.labels.most_common()]


class Watcher(Protocol):
    """Shows the progress."""

    def found(self, shards: int) -> None:
        """Show the number of shards."""
        ...

    def done(self) -> None:
        """Show that one more is done."""
        ...


async def inspect(
    setup: SourceSetup, only: str | None, *, jobs: int, labels: bool, progress: Watcher
) -> Report:
    """Read the members of all shards of a source.

    Args:
        setup: Where to look.
        only: The key of the one object to read; None for all shards at and below the place.
        jobs: Shards read at once.
        labels: Read the labels as well.
        progress: Shows the progress.

    Raises:
        AisfsError: the source cannot be listed.
    """
    report = Report()
    async with open_services(setup) as services:
        shards = await _sized(services, await _find(services, only, report))
        progress.found(len(shards))
        services.scans.expect(sum(info.size for _, info in shards))
        report.scans = services.scans.report
        await _read_all(services, shards, report, jobs, labels, progress)
        report.indexes = services.indexer.origins
        await services.flush()
    return report


async def _find(services: Services, only: str | None, report: Report) -> list[Shard]:
    """Find the shards of a source, in the order in which it names them."""
    source, root, lister = services.source, services.root, services.lister
    if isinstance(source, DatasetSource):
        shards = await find_shards(source, lister, services.store, services.metrics)
        report.holes = list(shards.missing)
        return [(shard.bucket, shard.info) for _, shard in shards.current]
    assert isinstance(root, DirectoryNode), "a source of everything was refused before"
    bucket, prefix = root.bucket, root.prefix
    if only is not None:
        try:
            return [(bucket, await services.store.head(bucket, only))]
        except NotFound:
            # A directory may be called like a shard.
            prefix = f"{only}/"
            found = await _below(lister, bucket, prefix, report)
            if not found and not report.loose_objects:
                raise SourceMissing(f"{bucket}/{only}: no such object or directory") from None
            return found
    found = await _below(lister, bucket, prefix, report)
    names = [os.fsencode(info.key) for _, info in found]
    report.holes = [shown(name) for name in holes(names)]
    return found


async def _sized(services: Services, shards: list[Shard]) -> list[Shard]:
    """Have those shards transformed that are to be; return all as they are then."""
    found = dict(enumerate(shards))

    async def make(at: int, bucket: Bucket, info: ObjectInfo) -> None:
        found[at] = bucket, await services.store.sized(bucket, info)

    await all_of(partial(make, at, *shard) for at, shard in enumerate(shards))
    return list(found.values())


async def _below(lister: Lister, bucket: Bucket, prefix: str, report: Report) -> list[Shard]:
    """List a directory and those below it."""
    found: list[Shard] = []
    pending = [prefix]
    while pending:
        directory = pending.pop()
        listing = (await lister.directory(bucket, directory)).value
        for _, name, info in listing.after(0):
            if info is None:
                pending.append(f"{directory}{os.fsdecode(name)}/")
            elif is_shard(name):
                found.append((bucket, info))
            else:
                report.loose_objects += 1
    return sorted(found, key=lambda shard: shard[1].key)


async def _read_all(
    services: Services,
    shards: list[Shard],
    report: Report,
    jobs: int,
    labels: bool,
    progress: Watcher,
) -> None:
    known = await _open_known(services, shards, labels=labels)
    counting = trio.CapacityLimiter(1)

    async def one(shard: Shard) -> None:
        name = shown(os.fsencode(shard[1].key))
        try:
            view = await services.indexer.open(*shard)
            found = partial(report.summary.add, view, shard[1].size)
            rows = await trio.to_thread.run_sync(found, limiter=counting)
            damage = list(view.index.warnings)
            if labels:
                column = known.pop(shard, None)
                damage += await _read_labels(services, shard, view, rows, column, report.summary)
            if damage:
                report.damage[name] = damage
        except AisfsError as error:
            log.debug("%s: %s", name, error)
            report.failures[name] = error
        progress.done()

    await all_of((partial(one, shard) for shard in shards), jobs)


async def _open_known(
    services: Services, shards: list[Shard], *, labels: bool
) -> dict[Shard, LabelColumn]:
    """Open the shards that need no scan, many at once; return the labels of those that have a column."""
    found: dict[Shard, LabelColumn] = {}
    rule = ViewSpec().label if labels else None

    def column_of(
        _at: int, _index: MemberIndex, column: LabelColumn | None
    ) -> tuple[LabelColumn | None]:
        return (column,)

    for start in range(0, len(shards), TOGETHER):
        some = shards[start : start + TOGETHER]
        known = await services.indexer.use_known(some, rule, column_of)
        for shard, one in zip(some, known, strict=True):
            if one is not None and one[0] is not None:
                found[shard] = one[0]
    return found


async def _read_labels(
    services: Services,
    shard: Shard,
    view: MembersView,
    rows: list[int],
    column: LabelColumn | None,
    summary: Summary,
) -> list[str]:
    """Count the labels of a shard, which its column has unless they are no labels; return what is
    wrong with those that cannot be read.
    """
    index = view.index
    damage = []
    contents = column.by_row() if column is not None else {}
    small = [row for row in rows if index.size(row) <= LABEL_MAX and row not in contents]
    contents |= await services.indexer.contents(*shard, index, small)
    for row in rows:
        size = index.size(row)
        if size > LABEL_MAX:
            summary.add_label(None)
            continue
        if row in contents:
            summary.add_label(contents[row])
            continue
        try:
            content = await services.reader.read_whole(*shard, index, row)
        except ShardDamaged as error:
            damage.append(str(error))
        else:
            summary.add_label(bytes(content))
    return damage
