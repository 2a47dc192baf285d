"""The store that has the objects of a source: connected, and checked once."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

import trio

from aisfs.ais.client import AISClient
from aisfs.config import ClusterSettings
from aisfs.core.namespace.sources import (
    BucketSource,
    DatasetSource,
    DirectorySource,
    Everything,
    Source,
)
from aisfs.errors import (
    AccessDenied,
    BucketNotFound,
    NotFound,
    SourceMissing,
    Unavailable,
)
from aisfs.filesystem.nodes import DatasetNode, DirectoryNode, Node, RootNode
from aisfs.metrics import Metrics
from aisfs.model import Bucket
from aisfs.store.local.store import LocalStore
from aisfs.store.pipeline import CallPipeline
from aisfs.store.port import WritableStore


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A source whose store is connected."""

    source: Source
    """As planned, but the local files of a dataset have a bucket."""
    root: Node
    store: WritableStore

    @property
    def bucket(self) -> Bucket:
        """The bucket of a source that is one, or of a directory."""
        assert isinstance(self.root, DirectoryNode), "the caller has a bucket or a directory"
        return self.root.bucket


def connect(source: Source, cluster: ClusterSettings) -> OpenSource:
    """Return a source with the store that has its objects, without asking the store anything."""
    match source:
        case DirectorySource(path):
            local = LocalStore(path)
            return OpenSource(source, DirectoryNode(local.bucket, ""), local)
        case BucketSource(bucket, prefix):
            return OpenSource(source, DirectoryNode(bucket, prefix), AISClient(cluster))
        case Everything():
            return OpenSource(source, RootNode(), AISClient(cluster))
        case DatasetSource() if source.local:
            root = source.common_directory(os.path.realpath)
            local = LocalStore(Path(root))
            found = source.below(root, local.bucket, os.path.realpath)
            return OpenSource(found, DatasetNode(), local)
        case DatasetSource():
            return OpenSource(source, DatasetNode(), AISClient(cluster))
        case _:
            assert_never(source)


@asynccontextmanager
async def open_source(
    source: Source,
    cluster: ClusterSettings,
    metrics: Metrics | None = None,
    *,
    may_be_unlistable: bool = False,
) -> AsyncIterator[OpenSource]:
    """Connect the store of a source, with retries, once it has answered; count its calls.

    Raises:
        AisfsError: the store cannot be reached, or the source does not exist.
    """
    found = connect(source, cluster)
    try:
        try:
            with suppress(*[AccessDenied] if may_be_unlistable else []):
                await _check(found.store, found.source)
        except Unavailable as error:
            raise Unavailable(f"{cluster.endpoint} does not answer: {error}") from error
        pipeline = CallPipeline(found.store, deadline=cluster.io_timeout, metrics=metrics)
        yield replace(found, store=pipeline)
    finally:
        with trio.CancelScope(shield=True):
            await found.store.aclose()


async def _check(store: WritableStore, source: Source) -> None:
    """Ask once, without retries: what cannot work should fail at once."""
    match source:
        case BucketSource(bucket, prefix):
            occupied = await _check_bucket(store, bucket, prefix)
            if prefix and not occupied:
                await _check_no_object(store, bucket, prefix.removesuffix("/"))
        case DatasetSource():
            for bucket in source.buckets:
                await _check_bucket(store, bucket, "")
        case Everything():
            await store.list_buckets()


async def _check_bucket(store: WritableStore, bucket: Bucket, prefix: str) -> bool:
    """Check that a bucket exists; return whether anything is below `prefix`."""
    try:
        return bool((await store.first_keys(bucket, prefix, 1)).found)
    except BucketNotFound as error:
        raise BucketNotFound(f"bucket {bucket} does not exist; `ais ls` shows what does") from error


async def _check_no_object(store: WritableStore, bucket: Bucket, key: str) -> None:
    """Refuse an object in place of a directory; an empty directory is fine."""
    with suppress(NotFound, AccessDenied):
        await store.head(bucket, key)
        raise SourceMissing(f"{bucket}/{key} is an object, not a directory of objects")
