"""The store that has the objects of a source: connected, and checked once."""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import assert_never

import trio

from aisfs.ais.client import AISClient
from aisfs.ais.identification import check_answers, identify_endpoint
from aisfs.app.stores import as_served, is_writable, open_store
from aisfs.config import ClusterSettings
from aisfs.core.namespace.reach import Reach
from aisfs.core.namespace.sources import (
    BucketSource,
    DatasetSource,
    DirectorySource,
    Everything,
    Source,
)
from aisfs.engine.read.sources.index_bucket import IndexBucket
from aisfs.errors import (
    AccessDenied,
    AlreadyExists,
    BucketNotFound,
    ConfigError,
    NotFound,
    ProtocolError,
    SourceMissing,
    Unavailable,
    Unproven,
    Unsupported,
)
from aisfs.filesystem.nodes import DatasetNode, DirectoryNode, Node, RootNode
from aisfs.metrics import Metrics
from aisfs.model import Bucket, Provider
from aisfs.store.local.store import LocalStore
from aisfs.store.pipeline import CallPipeline
from aisfs.store.port import WritableStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A source whose store is connected."""

    source: Source
    """As planned, but the local files of a dataset have a bucket."""
    root: Node
    store: WritableStore
    ping: Callable[[], Awaitable[None]] | None = None
    """Raises `Unavailable` if the cluster does not answer; None where there is no cluster."""
    watch: Callable[[], Awaitable[None]] | None = None
    """To be run as long as the source is used, if there is a cluster; see `AISClient.watch_map`."""
    index_bucket: IndexBucket | None = None
    """Has the published indexes; None where they lie beside the shards."""

    @property
    def bucket(self) -> Bucket:
        """The bucket of a source that is one, or of a directory."""
        assert isinstance(self.root, DirectoryNode), "the caller has a bucket or a directory"
        return self.root.bucket


def connect(
    source: Source,
    cluster: ClusterSettings,
    metrics: Metrics | None = None,
    reach: Reach | None = None,
) -> OpenSource:
    """Return a source with the store that has its objects, without asking the store anything.

    Args:
        source: As planned.
        cluster: How to reach its store.
        metrics: Where requests are counted that may cost money.
        reach: Where redirects of web servers may lead, if that is limited.

    Raises:
        ConfigError: no store has it, or no single one.
    """

    def count(kind: str, number: int) -> None:
        if metrics is not None:
            metrics.store_requests.labels(kind).inc(number)

    source = as_served(source, cluster)
    match source:
        case DirectorySource(path):
            local = LocalStore(path)
            return OpenSource(source, DirectoryNode(local.bucket, ""), local)
        case BucketSource(bucket, prefix):
            return OpenSource(
                source, DirectoryNode(bucket, prefix), open_store(source, cluster, count, reach)
            )
        case Everything():
            return OpenSource(source, RootNode(), AISClient(cluster))
        case DatasetSource() if source.local:
            root = source.common_directory(os.path.realpath)
            local = LocalStore(Path(root))
            found = source.below(root, local.bucket, os.path.realpath)
            return OpenSource(found, DatasetNode(), local)
        case DatasetSource():
            return OpenSource(source, DatasetNode(), open_store(source, cluster, count, reach))
        case _:
            assert_never(source)


@asynccontextmanager
async def open_source(
    source: Source,
    cluster: ClusterSettings,
    metrics: Metrics | None = None,
    *,
    may_be_unlistable: bool = False,
    create_bucket: bool = False,
    reach: Reach | None = None,
) -> AsyncIterator[OpenSource]:
    """Connect the store of a source, with retries, once it has answered; count its calls.

    Args:
        source: As planned.
        cluster: How to reach the cluster.
        metrics: Where calls are counted.
        may_be_unlistable: Accept a bucket whose listing is denied, and a web server without an index.
        create_bucket: Make the bucket of the source if it is missing.
        reach: Where redirects of web servers may lead, if that is limited.

    Raises:
        AisfsError: the store cannot be reached, or the source does not exist.
    """
    found = connect(source, cluster, metrics, reach)
    limit = None if isinstance(found.store, LocalStore) else cluster.bandwidth_limit
    pipeline = CallPipeline(
        found.store, deadline=cluster.io_timeout, download_limit=limit, metrics=metrics
    )
    try:
        try:
            with suppress(*[AccessDenied, Unsupported] if may_be_unlistable else []):
                await _check_answers(found.store, found.source)
        except Unavailable as error:
            if not isinstance(found.store, AISClient):
                raise
            raise Unavailable(f"{cluster.endpoint} does not answer: {error}") from error
        except BucketNotFound:
            if not create_bucket:
                raise
            await _create_bucket(pipeline, found.bucket)
        client = found.store if isinstance(found.store, AISClient) else None
        ping = partial(check_answers, client) if client is not None else None
        indexes = None
        if client is not None and cluster.index_bucket:
            indexes = IndexBucket(Bucket(cluster.index_bucket), client.by_uuid)
        watch = client.watch_map if client is not None else None
        yield replace(found, store=pipeline, ping=ping, watch=watch, index_bucket=indexes)
    finally:
        with trio.CancelScope(shield=True):
            await found.store.aclose()


async def _create_bucket(store: WritableStore, bucket: Bucket) -> None:
    with suppress(AlreadyExists):  # another client was faster
        await store.create_bucket(bucket)
        log.info("created %s", bucket)


async def _check_answers(store: WritableStore, source: Source) -> None:
    """Check the source; if the answers are odd or empty, check that they are those of an AIStore."""
    try:
        if await _check(store, source):
            return
    except (AccessDenied, BucketNotFound, ProtocolError, Unsupported):
        await _refuse_stranger(store)
        raise
    await _refuse_stranger(store)


async def _refuse_stranger(store: WritableStore) -> None:
    """Raise if what answers is no AIStore.

    Raises:
        ConfigError: the endpoint is wrong.
    """
    if not isinstance(store, AISClient):
        return
    try:
        found = await identify_endpoint(store)
    except Unavailable:  # it just answered: what it said then is of more use
        return
    if found.is_aistore is False:
        raise ConfigError(stranger(store.transport.endpoint, found.seen))


def stranger(endpoint: str, seen: str) -> str:
    """Return the message about an endpoint that is no AIStore."""
    return (
        f"{endpoint} answers, but is no AIStore ({seen}): "
        "--endpoint and AIS_ENDPOINT name a proxy of the cluster"
    )


async def _check(store: WritableStore, source: Source) -> bool:
    """Ask once, without retries: what cannot work should fail at once.

    Returns:
        Whether anything was found.
    """
    found = False
    match source:
        case BucketSource(bucket, prefix):
            found = await _check_bucket(store, bucket, prefix)
            if prefix and not found:
                await _check_no_object(store, bucket, prefix.removesuffix("/"))
                if not is_writable(bucket):  # nothing will ever be put there from here
                    raise SourceMissing(f"{bucket}/{prefix}: no such directory, or it is empty")
        case DatasetSource():
            for bucket in source.buckets:
                # Of a web server, only the directories of the shards need an index.
                with suppress(*[Unsupported] if bucket.store == "web" else []):
                    found |= await _check_bucket(store, bucket, "")
        case Everything():
            found = bool(await store.list_buckets())
    return found


async def _check_bucket(store: WritableStore, bucket: Bucket, prefix: str) -> bool:
    """Check that a bucket exists; return whether anything is below `prefix`."""
    try:
        return bool((await store.first_keys(bucket, prefix, 1)).found)
    except Unproven:  # it exists; a rebalance may take hours, and what it hides shows later
        return True
    except BucketNotFound as error:
        if bucket.path:
            raise SourceMissing(f"{bucket}: no such directory") from error
        if bucket.provider is Provider.HF:  # whose message knows more
            raise
        hint = "" if bucket.store else "; `aisfs ls` shows what does"
        raise BucketNotFound(f"bucket {bucket} does not exist{hint}") from error


async def _check_no_object(store: WritableStore, bucket: Bucket, key: str) -> None:
    """Refuse an object in place of a directory; an empty directory is fine."""
    with suppress(NotFound, AccessDenied):
        await store.head(bucket, key)
        raise SourceMissing(f"{bucket}/{key} is an object, not a directory of objects")
