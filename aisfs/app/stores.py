"""Which store has the objects of a bucket: an AIStore, or the place itself."""

import importlib.util
import logging
from collections.abc import Callable

from aisfs.ais.client import AISClient
from aisfs.config import ClusterSettings, clouds
from aisfs.core.namespace.sources import (
    BucketSource,
    DatasetSource,
    Source,
    without_aistore,
)
from aisfs.errors import ConfigError
from aisfs.model import Bucket, Provider
from aisfs.store.port import WritableStore

log = logging.getLogger(__name__)

Count = Callable[[str, int], None]

_WRITABLE = ("", "s3", "gs", "az")
"""Stores that can be written to; see `Bucket.store`."""


def as_served(source: Source, cluster: ClusterSettings) -> Source:
    """Return a source with the buckets of clouds as the settings have them served.

    Without an endpoint, or with --direct, `s3://pets` is `s3+direct://pets`.

    Raises:
        ConfigError: there is no such way to one of them.
    """
    if not cluster.without_aistore:
        return source
    return without_aistore(source, clouds.azure_account())


def direct_store(source: Source) -> str:
    """Return which store a source, as it is served, is read from without AIStore; empty for none."""
    return max((bucket.store for bucket in _buckets(source)), default="")


def _buckets(source: Source) -> list[Bucket]:
    match source:
        case BucketSource(bucket):
            return [bucket]
        case DatasetSource() if not source.local:
            return source.buckets
    return []


def one_store(source: DatasetSource) -> Bucket:
    """Return a bucket of the one store that has all shards.

    Raises:
        ConfigError: there are several stores.
    """
    first, *others = source.buckets
    for other in others:
        if other.store != first.store:
            raise ConfigError(f"{first} and {other}: one mount shows what one store has")
    return first


def origin_of_store(source: Source, cluster: ClusterSettings) -> str:
    """Return what tells the store of a source from others that have buckets of the same names."""
    store = direct_store(as_served(source, cluster))
    return f"{store}+direct {clouds.place_of(store)}".strip() if store else cluster.endpoint


def refuse_read_only(source: Source, cluster: ClusterSettings) -> None:
    """Refuse to write where nothing can be written.

    Raises:
        ConfigError: it is such a place.
    """
    for bucket in _buckets(source):
        if bucket.store not in _WRITABLE:
            raise ConfigError(f"--writable: {bucket} can only be read")
        if bucket.store and cluster.anonymous:
            raise ConfigError("--writable: not with --anonymous, which only reads")


def open_store(
    bucket: Bucket, cluster: ClusterSettings, count: Count = lambda kind, number: None
) -> WritableStore:
    """Return the store that has a bucket, and others like it, without asking it anything.

    Args:
        bucket: One of its buckets.
        cluster: How to reach it.
        count: Told the class and the number of requests that somebody may charge for.

    Raises:
        ConfigError: there is none, or what it needs is not installed.
    """
    if bucket.store:
        why = "" if cluster.endpoint else "; no endpoint of AIStore is known"
        log.info("%s: without AIStore in between%s", bucket, why)
    match bucket.provider:
        case Provider.S3 | Provider.GS | Provider.AZ:
            if importlib.util.find_spec("obstore") is None:
                raise ConfigError(f"{bucket}: needs obstore: pip install 'aisfs[cloud]'")
            from aisfs.store.cloud.store import CloudStore

            return CloudStore(cluster, count)
        case Provider.HTTP | Provider.HTTPS | Provider.HF | Provider.FSSPEC:
            known = ", ".join(f"{p.scheme}://" for p in Provider if p is not Provider.FSSPEC)
            raise ConfigError(f"{bucket}: unknown provider {bucket.store!r}; use one of {known}")
    return AISClient(cluster)
