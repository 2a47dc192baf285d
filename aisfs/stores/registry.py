"""Which store has the objects of a bucket: an AIStore, or the place itself."""

import importlib.util
import logging

from aisfs.core.names.reach import Reach
from aisfs.core.names.sources import BucketSource, DatasetSource, Source, without_aistore
from aisfs.errors import ConfigError
from aisfs.model import Bucket, Provider
from aisfs.settings import ClusterSettings, fields, use_proxy
from aisfs.stores.ais.client import AISClient
from aisfs.stores.by_fsspec import open_fsspec
from aisfs.stores.hub import open_hub
from aisfs.stores.port import Count, WritableStore, uncounted
from aisfs.stores.web import WebStore

log = logging.getLogger(__name__)

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
    return without_aistore(source, fields.azure_account())


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
    return f"{store}+direct {fields.place_of(store)}".strip() if store else cluster.endpoint


def is_writable(bucket: Bucket) -> bool:
    """Return whether the store of a bucket can be written to."""
    return bucket.store in _WRITABLE


def refuse_read_only(source: Source, cluster: ClusterSettings, option: str = "") -> None:
    """Refuse to write where nothing can be written.

    Args:
        source: As it is served.
        cluster: How to reach it.
        option: What begins the message.

    Raises:
        ConfigError: it is such a place.
    """
    for bucket in _buckets(source):
        if not is_writable(bucket):
            raise ConfigError(f"{option}{bucket} can only be read")
        if bucket.store and cluster.anonymous:
            raise ConfigError(f"{option}{bucket}: --anonymous only reads")


def _refuse_certificate(bucket: Bucket, cluster: ClusterSettings) -> None:
    """Refuse a certificate of this client where the library that sends the requests takes none."""
    own = cluster.client_cert or cluster.client_key
    if not own or bucket.provider in (Provider.HTTP, Provider.HTTPS):
        return
    if not cluster.endpoint:
        raise ConfigError(
            f"{bucket}: takes no client certificate ({own}): only AIStore and web servers "
            "do; leave out --client-cert and AIS_CRT, or put a proxy with the certificate in between"
        )
    log.info("%s: does not get the client certificate, which is for %s", bucket, cluster.endpoint)


def named_files(source: Source) -> list[tuple[Bucket, str]]:
    """Return the files of web servers that a source names one by one, and whose directories it does not name."""
    if not isinstance(source, DatasetSource) or source.local:
        return []
    found = [(p.bucket, p) for word in source.words for p in word.patterns if p.bucket is not None]
    # The shards that a list names may lie beside it.
    others = {(bucket, p.directory) for bucket, p in found if not p.one or p.listing}
    web = (Provider.HTTP, Provider.HTTPS)
    above = {pattern.directory: _directories_above(pattern.directory) for _, pattern in found}
    return [
        (bucket, pattern.directory + pattern.rest)
        for bucket, pattern in found
        if bucket.provider in web
        and pattern.one
        and not any((bucket, directory) in others for directory in above[pattern.directory])
    ]


def _directories_above(directory: str) -> list[str]:
    """Return a directory and all those above it."""
    return ["", *(directory[: at + 1] for at, letter in enumerate(directory) if letter == "/")]


def open_store(
    source: BucketSource | DatasetSource,
    cluster: ClusterSettings,
    count: Count = uncounted,
    reach: Reach | None = None,
) -> WritableStore:
    """Return the store that has what a source names, without asking it anything.

    Args:
        source: Its buckets are those of one store.
        cluster: How to reach it.
        count: Told the class and the number of requests that somebody may charge for.
        reach: Where redirects of web servers may lead, if that is limited.

    Raises:
        ConfigError: there is none, or what it needs is not installed.
    """
    bucket = source.bucket if isinstance(source, BucketSource) else one_store(source)
    if bucket.store:
        fields.prepare_environment(bucket.store)
        if cluster.proxy:
            use_proxy(cluster.proxy)
        why = "" if cluster.endpoint else "; no endpoint of AIStore is known"
        log.info("%s: without AIStore in between%s", bucket, why)
        _refuse_certificate(bucket, cluster)
    pays = "requester_pays" in cluster.typed and cluster.requester_pays
    if pays and bucket.provider not in (Provider.S3, Provider.GS):
        raise ConfigError(f"--requester-pays: {bucket}: only S3 and Google charge so")
    match bucket.provider:
        case Provider.S3 | Provider.GS | Provider.AZ:
            if importlib.util.find_spec("obstore") is None:
                raise ConfigError(
                    f"{bucket}: needs obstore; in a clone of aisfs: pip install '.[cloud]'"
                )
            from aisfs.stores.cloud import CloudStore

            return CloudStore(cluster, count)
        case Provider.HTTP | Provider.HTTPS:
            return WebStore(
                cluster,
                buckets=_buckets(source),
                named=named_files(source),
                count=count,
                reach=reach,
            )
        case Provider.HF:
            return open_hub(cluster, _buckets(source), count)
        case Provider.FSSPEC:
            return open_fsspec(bucket, cluster.max_connections, count)
    return AISClient(cluster)
