"""Connects to the store of a source, and checks once that the source is there."""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import assert_never

import trio

from aisfs.core.names.reach import Reach
from aisfs.core.names.sources import (
    BucketSource,
    DatasetSource,
    DirectorySource,
    Everything,
    Source,
    missing_path,
    parse_source,
)
from aisfs.engine.dataset.shard_set import what_is_there
from aisfs.engine.index_sources import IndexBucket
from aisfs.errors import (
    AccessDenied,
    AisfsError,
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
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from aisfs.stores.ais.cluster import check_answers, identify_endpoint, wrong_scheme
from aisfs.stores.ais.readiness import Readiness
from aisfs.stores.local import LocalStore
from aisfs.stores.pipeline import CallPipeline
from aisfs.stores.port import WritableStore
from aisfs.stores.registry import as_served, direct_store, kind_of, one_store, open_store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A source whose store is connected."""

    source: Source
    """As in the setup, but the local files of a dataset have a bucket."""
    root: Node
    store: WritableStore
    ping: Callable[[], Awaitable[None]] | None = None
    """Raises `Unavailable` if the cluster does not answer; None where there is no cluster."""
    readiness: Readiness | None = None
    """What is known of the cluster's map, if there is a cluster."""
    watch: Callable[[], Awaitable[None]] | None = None
    """To be run as long as the source is used, if there is a cluster; see `AISClient.watch_map`."""
    index_bucket: IndexBucket | None = None
    """Has the published indexes; None where they lie beside the shards."""

    @property
    def store_name(self) -> str:
        """What the store is, in a word; see `Bucket.store`."""
        return direct_store(self.source)

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
        source: As in the setup.
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
        case DirectorySource(path, named):
            typed = [named] if named else []
            local = LocalStore(path, follow_links=cluster.follow_links, named=typed)
            return OpenSource(source, DirectoryNode(local.bucket, ""), local)
        case BucketSource(bucket, prefix):
            return OpenSource(
                source, DirectoryNode(bucket, prefix), open_store(source, cluster, count, reach)
            )
        case Everything():
            return OpenSource(source, RootNode(), AISClient(cluster))
        case DatasetSource() if source.local:
            root = source.common_directory(os.path.realpath)
            typed = source.named_files(os.path.realpath)
            local = LocalStore(Path(root), follow_links=cluster.follow_links, named=typed)
            found = source.below(root, local.bucket, os.path.realpath)
            return OpenSource(found, DatasetNode(), local)
        case DatasetSource():
            return OpenSource(source, DatasetNode(), open_store(source, cluster, count, reach))
        case _:
            assert_never(source)


def _with_cluster(found: OpenSource, cluster: ClusterSettings) -> OpenSource:
    """Add what only an AIStore has."""
    store = found.store
    if not isinstance(store, AISClient):
        return found
    name = cluster.index_bucket
    indexes = IndexBucket(Bucket(name), store.by_uuid) if name else None
    ping = partial(check_answers, store)
    readiness = store.transport.readiness
    watch = store.watch_map
    return replace(found, ping=ping, readiness=readiness, watch=watch, index_bucket=indexes)


Show = Callable[[OpenSource, WritableStore], Awaitable[WritableStore]]


@asynccontextmanager
async def open_source(
    source: Source,
    cluster: ClusterSettings,
    metrics: Metrics | None = None,
    *,
    may_be_unlistable: bool = False,
    by_name: bool = False,
    writable: bool = True,
    create_bucket: bool = False,
    reach: Reach | None = None,
    shows: Show | None = None,
) -> AsyncIterator[OpenSource]:
    """Connect the store of a source, with retries, once it has answered; count its calls.

    Args:
        source: As in the setup.
        cluster: How to reach the cluster.
        metrics: Where calls are counted.
        may_be_unlistable: Accept a bucket whose listing is denied, and a web server without an index.
        by_name: Accept a web server without an index, whose files are found by their names.
        writable: Whether something may be put there; else a directory that is empty is worth a warning.
        create_bucket: Make the bucket of the source if it is missing.
        reach: Where redirects of web servers may lead, if that is limited.
        shows: Returns what shows the objects in place of the store, with its retries.

    Raises:
        AisfsError: the store cannot be reached, or the source does not exist.
    """
    found = _with_cluster(connect(source, cluster, metrics, reach), cluster)
    limit = None if isinstance(found.store, LocalStore) else cluster.bandwidth_limit
    pipeline = CallPipeline(
        found.store, deadline=cluster.io_timeout, download_limit=limit, metrics=metrics
    )
    shown: WritableStore = pipeline
    try:
        try:
            with suppress(*[AccessDenied, Unsupported] if may_be_unlistable else []):
                await _check_answers(found.store, found.source, cluster, writable=writable)
        except Unsupported as error:
            if not by_name or found.store_name != "web":
                raise
            log.warning("%s; what is there can be opened by its name, and not be listed", error)
        except Unavailable as error:
            await _explain_silence(found, cluster, error)
            raise
        except BucketNotFound:
            if not create_bucket:
                raise
            await _create_bucket(pipeline, found.bucket)
        if shows is not None:
            shown = await shows(found, pipeline)
        yield replace(found, store=shown)
    finally:
        with trio.CancelScope(shield=True):
            await shown.aclose()


async def has_name(text: str, cluster: ClusterSettings) -> bool:
    """Return whether a URL names an object, or a directory that has some; one with a slash at its end, only the latter.

    Raises:
        AisfsError: that cannot be asked.
    """
    source = parse_source(text)
    assert isinstance(source, BucketSource), "what has a scheme is a bucket"
    source = as_served(source, cluster)
    assert isinstance(source, BucketSource), "served otherwise, it is still a bucket"
    store = connect(replace(source, prefix=""), cluster).store
    try:
        with suppress(AccessDenied, Unsupported, NotFound):
            if (await store.first_keys(source.bucket, source.prefix, 1)).found:
                return True
        if text.endswith("/"):
            return False
        with suppress(NotFound):
            await store.head(source.bucket, source.prefix.removesuffix("/"))
            return True
        return False
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


async def _create_bucket(store: WritableStore, bucket: Bucket) -> None:
    with suppress(AlreadyExists):  # another client was faster
        await store.create_bucket(bucket)
        log.info("created %s", bucket)


async def _check_answers(
    store: WritableStore, source: Source, cluster: ClusterSettings, *, writable: bool
) -> None:
    """Check the source; if the answers are odd or empty, check that they are those of an AIStore."""
    try:
        if await _check(store, source, writable=writable):
            return
    except (AccessDenied, NotFound, ProtocolError, SourceMissing, Unsupported):
        await _refuse_stranger(store)
        await _refuse_aistore(source, cluster)
        raise
    await _refuse_stranger(store)
    await _refuse_aistore(source, cluster)


def _bucket_of(source: Source) -> Bucket:
    """Return a bucket of the store that has a source."""
    assert isinstance(source, BucketSource | DatasetSource), "others are in no store"
    return source.bucket if isinstance(source, BucketSource) else one_store(source)


async def _explain_silence(found: OpenSource, cluster: ClusterSettings, error: Unavailable) -> None:
    """Raise what says more than the error of a server that does not answer.

    Raises:
        ConfigError: it was asked with TLS and has none, or the reverse.
        Unavailable: it is an AIStore, whose endpoint is named.
    """
    is_aistore, url = isinstance(found.store, AISClient), ""
    if is_aistore and not cluster.proxy:
        url = cluster.endpoint
    elif found.store_name == "web":
        url = str(_bucket_of(found.source))
    check = partial(wrong_scheme, url, is_aistore=is_aistore)
    silent = error.__cause__ is not None  # else it did answer
    if silent and url and (wrong := await trio.to_thread.run_sync(check)):
        raise ConfigError(f"{url}: {wrong}")
    if is_aistore:
        raise Unavailable(f"{cluster.endpoint} does not answer: {error}") from error


async def _refuse_aistore(source: Source, cluster: ClusterSettings) -> None:
    """Raise if a web server that is no use as one is an AIStore.

    Raises:
        ConfigError: it is one.
    """
    if direct_store(source) != "web":
        return
    bucket = _bucket_of(source)
    client = AISClient(cluster.changed(endpoint=str(bucket)))
    try:
        found = await identify_endpoint(client)
    except AisfsError:  # what it said before is of more use
        return
    finally:
        with trio.CancelScope(shield=True):
            await client.aclose()
    if found.is_aistore:
        raise ConfigError(
            f"{bucket} is an AIStore: give it with --endpoint {bucket}, and a bucket of it as the"
            " SOURCE, such as ais://BUCKET; `aisfs ls` shows its buckets"
        )


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
        endpoint = store.transport.endpoint
        if "HTTP 400" in found.seen and (
            wrong := await trio.to_thread.run_sync(wrong_scheme, endpoint)
        ):
            raise ConfigError(f"{endpoint}: {wrong}")
        raise ConfigError(stranger(store.transport.endpoint, found.seen))


def stranger(endpoint: str, seen: str) -> str:
    """Return the message about an endpoint that is no AIStore."""
    return (
        f"{endpoint} answers, but is no AIStore ({seen}): "
        "--endpoint and AIS_ENDPOINT name a proxy of the cluster"
    )


async def _check(store: WritableStore, source: Source, *, writable: bool) -> bool:
    """Ask once, without retries: what cannot work should fail at once.

    Args:
        store: What to ask.
        source: What must be there; an empty directory is accepted with a warning.
        writable: No warning for an empty directory, since it will be written to.

    Returns:
        Whether anything was found.
    """
    found = False
    match source:
        case BucketSource(bucket, prefix):
            found = await _check_bucket(store, bucket, prefix)
            if prefix and not found:
                await _check_no_object(store, bucket, prefix.removesuffix("/"))
                there, _ = await what_is_there(bucket, prefix, store)
                said = f"{bucket}/{prefix}: nothing is below it; {there}"
                if not kind_of(bucket).is_writable:  # nothing will ever be put there from here
                    raise SourceMissing(said)
                if not writable:
                    log.warning("%s", said)
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
            raise SourceMissing(missing_path(bucket, "directory")) from error
        if bucket.provider is Provider.HF:  # whose message knows more
            raise
        hint = "" if bucket.store else "; `aisfs ls` shows what does"
        hint += f", and `aisfs mb {bucket}` makes it" if bucket.is_local else ""
        raise BucketNotFound(f"bucket {bucket} does not exist{hint}") from error


async def _check_no_object(store: WritableStore, bucket: Bucket, key: str) -> None:
    """Refuse an object in place of a directory; an empty directory is fine."""
    with suppress(NotFound, AccessDenied):
        await store.head(bucket, key)
        above = "".join(key.rpartition("/")[:2])
        raise SourceMissing(
            f"{bucket}/{key} is an object, not a directory of objects: mount {bucket}/{above} to see it as a"
            " file, or open it with --view if it is an archive"
        )
