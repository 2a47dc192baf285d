"""The work of `aisfs index`, shard by shard."""

import logging
import os
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

import trio

from aisfs.app.publishing.exports import Exporter, common_directory, make_directory
from aisfs.app.publishing.plan import IndexPlan
from aisfs.app.publishing.published import Shelf, find_published, publish
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import LabelColumn, PublishedIndex
from aisfs.core.names.sources import DatasetSource
from aisfs.core.views.sample_views import label_rows
from aisfs.core.views.spec import LabelRule, LabelSource
from aisfs.core.views.summary import shown
from aisfs.core.views.tree import without_folders
from aisfs.engine.dataset.shard_set import Shard, find_shards
from aisfs.engine.shards import saved_as
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    BucketNotFound,
    ConfigError,
    DeadlineExceeded,
    OutOfSpace,
    ReadOnly,
    Unavailable,
    Unsupported,
)
from aisfs.mount.services import Services, open_services
from aisfs.stores.local import LocalStore

log = logging.getLogger(__name__)

DEFAULT_LABEL = LabelRule(LabelSource.CONTENT, "cls")
"""Published where shards have it, as `--view class` looks for it."""
_HOPELESS = (
    AccessDenied,
    BucketNotFound,
    ConfigError,
    DeadlineExceeded,
    OutOfSpace,
    ReadOnly,
    Unavailable,
)
"""What one shard fails with, all fail with."""


@dataclass(slots=True)
class Report:
    """What was found and done."""

    shards: int = 0
    current: int = 0
    """Shards whose index was published and current."""
    published: int = 0
    beside: int = 0
    """Indexes that were found beside their shards, though there is a bucket for them."""
    wanting: dict[str, str] = field(default_factory=dict)
    """By shard, why its index was not current."""
    written: list[str] = field(default_factory=list)
    """Where indexes for other programs were written, or would be."""
    left_out: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By shard, what could not be written of it, and why."""
    damage: dict[str, list[str]] = field(default_factory=dict)
    """By shard, what is wrong with it."""
    failures: dict[str, AisfsError] = field(default_factory=dict)
    """By shard, why it could not be indexed."""
    missing: list[str] = field(default_factory=list)
    """What the sources named and does not exist."""


class Watcher(Protocol):
    """Shows the progress."""

    def found(self, shards: int, size: int) -> None:
        """Show the number of shards, and the bytes of all of them."""
        ...

    def done(self, size: int) -> None:
        """Show that one more is done, of so many bytes."""
        ...


async def index_shards(plan: IndexPlan, *, jobs: int, progress: Watcher) -> Report:
    """Index the shards of a source.

    Args:
        plan: What to do.
        jobs: Shards at once.
        progress: Shows the progress.

    Raises:
        AisfsError: the source cannot be listed, or nothing can be written there. What was published
            before stays, and is recognized next time.
    """
    async with open_services(plan) as services:
        source = services.source
        assert isinstance(source, DatasetSource), "the plan has no other"
        found = await find_shards(source, services.lister, services.store, services.metrics)
        shards = [shard for _, shard in found.current]
        report = Report(shards=len(shards), missing=list(found.missing))
        work = _Work(plan, services, shards, report)
        progress.found(len(shards), sum(shard.info.size for shard in shards))
        await work.run(jobs, progress)
    return report


class _Work:
    """One run over all shards."""

    def __init__(
        self, plan: IndexPlan, services: Services, shards: list[Shard], report: Report
    ) -> None:
        self._plan = plan
        self._services = services
        self._store = services.store
        self._shards = shards
        self._report = report
        self._shelf = _shelf(plan, services, shards)
        self._exporters = [Exporter(export, shards, services.store) for export in plan.exports]

    async def run(self, jobs: int, progress: Watcher) -> None:
        """Go through all shards, `jobs` at a time.

        Raises:
            AisfsError: one that would be the same for each shard.
        """
        if self._plan.dry_run:
            for exporter in self._exporters:
                self._report.written += exporter.targets()
            await self._index_all(jobs, progress)
            return
        if self._plan.publish and self._plan.publish_to is not None:
            make_directory("--publish-to", self._plan.publish_to)
        for exporter in self._exporters:
            exporter.prepare()
        await self._index_all(jobs, progress)
        for exporter in self._exporters:
            await exporter.finish()
            self._report.written += exporter.written

    async def _index_all(self, jobs: int, progress: Watcher) -> None:
        hopeless: list[AisfsError] = []
        waiting = iter(range(len(self._shards)))

        async def work(scope: trio.CancelScope) -> None:
            for at in waiting:
                try:
                    await self._index(at)
                except _HOPELESS as error:
                    hopeless.append(error)
                    scope.cancel()
                except AisfsError as error:
                    self._report.failures[self._name(at)] = error
                progress.done(self._shards[at].info.size)

        async with trio.open_nursery() as nursery:
            for _ in range(min(jobs, len(self._shards))):
                nursery.start_soon(work, nursery.cancel_scope)
        if hopeless:
            raise hopeless[0]

    def _name(self, at: int) -> str:
        shard = self._shards[at]
        return f"{shard.bucket}/{shown(os.fsencode(shard.info.key))}"

    async def _index(self, at: int) -> None:
        """Do what is to be done about one shard."""
        plan, report, shard = self._plan, self._report, self._shards[at]
        looked = await find_published(self._shelf, shard, plan.scan)
        found = looked.index
        report.beside += looked.beside
        reason = await trio.to_thread.run_sync(self._wanting, found)
        index = found.index if isinstance(found, PublishedIndex) and not plan.force else None
        if reason is None:
            report.current += 1
        else:
            report.wanting[self._name(at)] = reason
        if plan.check or plan.dry_run:
            return
        if plan.publish and reason is not None:
            labels = found.labels if index is not None and isinstance(found, PublishedIndex) else {}
            index = await self._publish(shard, index, dict(labels))
        if self._exporters:
            if index is None:
                index = (await self._services.indexer.open(shard.bucket, shard.info)).index
            await self._export(at, index)
        if index is not None and index.warnings:
            report.damage[self._name(at)] = list(index.warnings)
        self._services.indexer.forget(shard.bucket, shard.info)

    def _wanting(self, found: PublishedIndex | str) -> str | None:
        """Return why an index has to be published; None if it has not. Runs in a worker thread."""
        if isinstance(found, str):
            return found
        if self._plan.force:
            return "forced"
        lacking = [
            rule
            for rule in self._rules
            if saved_as(rule) not in found.labels and self._has_column(rule, found.index)
        ]
        return f"no labels of {', '.join(map(str, lacking))}" if lacking else None

    @property
    def _rules(self) -> tuple[LabelRule, ...]:
        return self._plan.labels or (DEFAULT_LABEL,)

    def _has_column(self, rule: LabelRule, index: MemberIndex) -> bool:
        """Return whether a shard has a column of these labels, if only an empty one."""
        return bool(self._plan.labels) or bool(label_rows(rule, index))

    async def _publish(
        self, shard: Shard, index: MemberIndex | None, labels: dict[str, LabelColumn]
    ) -> MemberIndex:
        """Build what an index lacks and publish it; return its members."""
        indexer = self._services.indexer
        if index is not None:
            indexer.learn(shard.bucket, shard.info, without_folders(index))
        for rule in self._rules:
            if saved_as(rule) not in labels:
                index, column = await indexer.labels(
                    shard.bucket, shard.info, rule, self._services.reader.read_whole
                )
                if self._has_column(rule, index):
                    labels[saved_as(rule)] = column
        assert index is not None, "there is a rule at least"
        await publish(self._store, self._shelf, shard, index, labels, self._plan.scan)
        self._report.published += 1
        return index

    async def _export(self, at: int, index: MemberIndex) -> None:
        for exporter in self._exporters:
            try:
                await exporter.add(at, index)
            except Unsupported as error:
                self._report.left_out[self._name(at)].append(str(error))


def _shelf(plan: IndexPlan, services: Services, shards: list[Shard]) -> Shelf:
    """Return where the indexes of shards are published.

    Raises:
        ConfigError: one directory cannot stand for all of theirs.
    """
    if plan.publish_to is None:
        return Shelf(services.store, services.index_bucket)
    if len({shard.bucket for shard in shards}) > 1:
        raise ConfigError("--publish-to: shards of several buckets; publish them one by one")
    directory = LocalStore(plan.publish_to)
    return Shelf(directory, elsewhere=directory.bucket, shards=common_directory(shards))
