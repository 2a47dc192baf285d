"""Fills the disk cache from the cluster itself, for mounts that are made later.

It uses the services of a mount, so a mount with the same cache directory finds all of it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import trio
from rich.console import Console
from rich.progress import Progress, TaskID

from aisfs.app.buckets.contents import Kind, list_opened
from aisfs.app.buckets.places import Place
from aisfs.app.warming.through_mount import Summary, columns
from aisfs.core.names.sources import Everything
from aisfs.errors import AisfsError, ConfigError
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.mount.plan import SourcePlan, load, load_cluster
from aisfs.mount.services import Services, open_services
from aisfs.mount.source import OpenSource
from aisfs.settings import CacheSettings, TreeSettings


@dataclass(frozen=True, slots=True)
class _Item:
    bucket: Bucket
    info: ObjectInfo
    is_shard: bool

    def __str__(self) -> str:
        return f"{self.bucket}/{self.info.key}"


async def warm_place(
    place: Place,
    settings: Mapping[str, object],
    summary: Summary,
    *,
    index_only: bool,
    jobs: int,
    console: Console,
) -> None:
    """Read what a source has, `jobs` objects at a time, and show the progress.

    Args:
        place: The source.
        settings: The options that were given, by name of the setting.
        summary: Counts what was done.
        index_only: Only find the members of shards.
        jobs: Objects at a time.
        console: Where the progress is shown.

    Raises:
        AisfsError: the source cannot be listed, or the disk cache cannot be opened.
    """
    if isinstance(place.source, Everything):
        raise ConfigError(f"{place.text}: give a bucket, such as {place.text}BUCKET")
    plan = SourcePlan(
        source=place.source,
        cluster=load_cluster(place.source, settings),
        tree=load(TreeSettings, settings),
        cache=load(CacheSettings, settings),
        partly=True,
    )
    async with open_services(plan) as services:
        found = await _find(services, place, index_only=index_only)
        services.scans.expect(sum(item.info.size for item in found))
        warmed = await _Warmer(services, summary, index_only).warm(found, jobs, console)
        await services.flush()
        for item in warmed:  # only now: the last items may have evicted the first
            await _look(services, item, summary, index_only=index_only)


async def _find(services: Services, place: Place, *, index_only: bool) -> list[_Item]:
    opened = OpenSource(services.source, services.root, services.store)
    items: dict[_Item, None] = {}
    async for batch in list_opened(opened, place, Counter(), recursive=True):
        for entry in batch:
            is_shard = entry.kind is Kind.SHARD
            if entry.info is not None and (is_shard or not index_only):
                items[_Item(entry.bucket, entry.info, is_shard)] = None
    return list(items)


@dataclass(frozen=True, slots=True)
class _Warmer:
    """Reads objects into the disk cache."""

    services: Services
    summary: Summary
    index_only: bool

    async def warm(self, items: list[_Item], jobs: int, console: Console) -> list[_Item]:
        """Read all; return those that could be read."""
        warmed: list[_Item] = []
        waiting = iter(items)
        total = 0 if self.index_only else sum(item.info.size for item in items)
        with Progress(*columns(total), console=console) as progress:

            def done(count: int) -> str:
                return f"{count}/{len(items)} objects"

            task = progress.add_task("", total=total or len(items), done=done(0))

            async def work() -> None:
                for item in waiting:
                    try:
                        await self._read(item, progress, task)
                        warmed.append(item)
                    except AisfsError as error:
                        self.summary.failures.append(str(error))
                    progress.update(task, done=done(len(warmed)), advance=0 if total else 1)

            async with trio.open_nursery() as nursery:
                for _ in range(min(jobs, len(items))):
                    nursery.start_soon(work)
        return warmed

    async def _read(self, item: _Item, progress: Progress, task: TaskID) -> None:
        services = self.services
        if not self.index_only:
            fetcher = services.fetcher
            async for _, data in fetcher.stream(fetcher.open(item.bucket, item.info)):
                progress.advance(task, len(data))
            self.summary.size += item.info.size
        if item.is_shard:
            await services.indexer.open(item.bucket, item.info)
        self.summary.shards += item.is_shard
        self.summary.objects += not item.is_shard


async def _look(services: Services, item: _Item, summary: Summary, *, index_only: bool) -> None:
    """Count how much of an object that was read is on disk."""
    coverage = services.coverage
    if item.is_shard:
        summary.indexes += await coverage.save_index(item.bucket, item.info)
    if not index_only:
        whole = ByteRange(0, item.info.size)
        summary.kept += await coverage.cached(item.bucket, item.info, whole)
