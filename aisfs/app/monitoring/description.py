"""What the counters say of the mount itself."""

import os

from aisfs.app.plan import MountPlan, is_local
from aisfs.app.services import Services
from aisfs.engine.dataset.shard_set import OpenProgress
from aisfs.filesystem.filesystem import FileSystem
from aisfs.stores.ais.transport import VERSION
from aisfs.stores.registry import direct_store


def describe(
    plan: MountPlan, services: Services, filesystem: FileSystem, progress: OpenProgress
) -> None:
    """Show in the counters what is mounted, and how full its cache is."""
    metrics, blocks, staging = services.metrics, services.blocks, services.staging
    metrics.show_version(VERSION)
    apart = is_local(plan.source) or direct_store(plan.source)
    endpoint = "" if apart else plan.cluster.shown_endpoint
    directory = "" if blocks is None else str(plan.cache.cache_dir)
    names = (str(plan.source), endpoint, directory)
    metrics.mount.labels(*(os.fsencode(n).decode(errors="replace") for n in names)).set(1)

    def update() -> None:
        metrics.inodes.set(len(filesystem.inodes))
        metrics.shards_to_open.set(progress.shards or 0)
        metrics.shards_opened.set(progress.opened)
        metrics.opened_files.set(progress.files)
        if staging is not None:
            metrics.staging_limit.set(staging.limit)
            metrics.staging_used.set(staging.used)
        if blocks is not None:
            counts = blocks.counts()
            metrics.cache_limit.set(blocks.limit)
            metrics.cache_used.set(counts.used)
            metrics.cache_hits.set(counts.hits)
            metrics.cache_misses.set(counts.misses)
            metrics.cache_evictions.set(counts.evictions)
            metrics.cache_rejected.set(counts.rejected)

    metrics.before_text.append(update)
