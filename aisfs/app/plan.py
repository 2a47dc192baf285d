"""What is to be mounted, and how."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from aisfs.config import (
    CacheSettings,
    ClusterSettings,
    KernelSettings,
    TreeSettings,
    WriteSettings,
)
from aisfs.core.namespace.patterns import EVERY_KEY, KeyFilter
from aisfs.core.namespace.sources import DatasetSource, DirectorySource, Source
from aisfs.core.views.spec import ViewSpec
from aisfs.errors import MountError


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """Everything that is to be known to read a source."""

    source: Source
    cluster: ClusterSettings
    tree: TreeSettings
    cache: CacheSettings
    view: ViewSpec = field(default_factory=ViewSpec)
    """How a dataset is laid out; other sources are shown as they are."""
    keys: KeyFilter = EVERY_KEY
    """What of a bucket, prefix or directory is shown; a dataset has a filter of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPlan(SourcePlan):
    """Everything a mount needs to know."""

    mountpoint: Path
    writing: WriteSettings
    options: frozenset[str]
    """Mount options for the kernel, as of `mount -o`."""
    kernel: KernelSettings


def is_local(source: Source) -> bool:
    """Say whether a source needs no cluster."""
    return isinstance(source, DirectorySource) or (
        isinstance(source, DatasetSource) and source.local
    )


def origin_of(plan: SourcePlan) -> str:
    """Say where objects go: the endpoint, or the directory that is mounted."""
    if isinstance(plan.source, DirectorySource):
        return str(plan.source.path.resolve())
    if isinstance(plan.source, DatasetSource) and plan.source.local:
        return plan.source.root
    return plan.cluster.endpoint


def check_places(plan: MountPlan) -> None:
    """Refuse what would have the daemon wait for itself: what it reads and writes below the mount.

    Raises:
        MountError: with the place.
    """
    places = {"--cache-dir": str(plan.cache.cache_dir)} if plan.cache.cache_size != 0 else {}
    if plan.writing.writable:
        places["--staging-dir"] = str(plan.writing.staging_dir)
    mountpoint = os.path.realpath(plan.mountpoint)
    if isinstance(plan.source, DirectorySource):
        source = os.path.realpath(plan.source.path)
        places["the source"] = source
        if Path(mountpoint).is_relative_to(source):
            raise MountError(f"mountpoint {plan.mountpoint} lies in what is mounted there")
    elif isinstance(plan.source, DatasetSource) and plan.source.local:
        directories = {pattern.directory for word in plan.source.words for pattern in word.patterns}
        places |= {f"the source {directory}": directory for directory in directories}
    for what, place in places.items():
        if Path(os.path.realpath(place)).is_relative_to(mountpoint):
            raise MountError(f"{what} lies below the mountpoint {plan.mountpoint}")
