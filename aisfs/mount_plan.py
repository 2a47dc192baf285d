"""What is to be mounted, and how."""

from dataclasses import dataclass, field
from pathlib import Path

from aisfs.config import (
    CacheSettings,
    ClusterSettings,
    KernelSettings,
    TreeSettings,
    WriteSettings,
)
from aisfs.core.patterns import EVERY_KEY, KeyFilter
from aisfs.core.sources import DatasetSource, DirectorySource, Source
from aisfs.core.view_spec import ViewSpec


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
