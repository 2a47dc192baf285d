"""Which store has the objects of a bucket, an AIStore or the place itself, and what that kind of store can do."""

import importlib.util
import logging
from dataclasses import dataclass
from functools import partial

from aisfs.core.names.reach import Reach
from aisfs.core.names.sources import BucketSource, DatasetSource, Source, without_aistore
from aisfs.errors import ConfigError
from aisfs.model import Bucket, Provider
from aisfs.settings import ClusterSettings, clouds, use_proxy
from aisfs.stores.ais.client import AISClient
from aisfs.stores.port import Count, WritableStore, uncounted

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of store, as far as it is known before one is opened."""

    title: str
    module: str = ""
    """What it needs besides aisfs' own dependencies."""
    extra: str = ""
    """The extra of aisfs that brings it."""
    is_cloud: bool = False
    """Whether the environment has credentials for it."""
    is_writable: bool = False
    takes_certificate: bool = False
    """Whether it sends the certificate of this client; the libraries of the others have no place for one."""
    may_charge: bool = False
    """Whether `--requester-pays` means anything to it."""


_CLOUD = partial(Kind, module="obstore", extra="cloud", is_cloud=True, is_writable=True)
_WEB = Kind("web server", takes_certificate=True)
_AISTORE = Kind("AIStore", is_writable=True, takes_certificate=True)
_KINDS = {
    Provider.S3: _CLOUD("S3", may_charge=True),
    Provider.GS: _CLOUD("Google Cloud Storage", may_charge=True),
    Provider.AZ: _CLOUD("Azure Blob Storage"),
    Provider.HTTP: _WEB,
    Provider.HTTPS: _WEB,
    Provider.HF: Kind("Hugging Face", "huggingface_hub", "hf"),
    Provider.FSSPEC: Kind("{}:// by fsspec", "fsspec", "fsspec"),
}


def kind_of(bucket: Bucket) -> Kind:
    """Return the kind of store that has a bucket."""
    return _KINDS.get(bucket.provider, _AISTORE)


def as_served(source: Source, cluster: ClusterSettings) -> Source:
    """Return a source with the buckets of clouds as the settings have them served.

    Without an endpoint, or with --direct, `s3://pets` is `s3+direct://pets`.

    Raises:
        ConfigError: there is no such way to one of them.
    """
    if not cluster.without_aistore:
        return source
    return without_aistore(source, clouds.azure_account())


def direct_bucket(source: Source) -> Bucket | None:
    """Return a bucket of a source, as it is served, that is read without AIStore; None if none is."""
    return next((bucket for bucket in _buckets(source) if bucket.store), None)


def direct_store(source: Source) -> str:
    """Return which store that is; see `Bucket.store`."""
    bucket = direct_bucket(source)
    return bucket.store if bucket is not None else ""


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
        if not kind_of(bucket).is_writable:
            raise ConfigError(f"{option}{bucket} can only be read")
        if bucket.store and cluster.anonymous:
            raise ConfigError(f"{option}{bucket}: --anonymous only reads")


def _refuse_certificate(bucket: Bucket, cluster: ClusterSettings) -> None:
    """Refuse a certificate of this client where the library that sends the requests takes none."""
    own = cluster.client_cert or cluster.client_key
    if not own or kind_of(bucket).takes_certificate:
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
    above = {pattern.directory: _directories_above(pattern.directory) for _, pattern in found}
    return [
        (bucket, pattern.directory + pattern.rest)
        for bucket, pattern in found
        if bucket.provider.is_web
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
        clouds.prepare_environment(bucket.store)
        if cluster.proxy:
            use_proxy(cluster.proxy)
        why = "" if cluster.endpoint else "; no endpoint of AIStore is known"
        log.info("%s: without AIStore in between%s", bucket, why)
        _refuse_certificate(bucket, cluster)
    pays = "requester_pays" in cluster.typed and cluster.requester_pays
    kind = kind_of(bucket)
    if pays and not kind.may_charge:
        raise ConfigError(f"--requester-pays: {bucket}: only S3 and Google charge so")
    if kind.module and importlib.util.find_spec(kind.module) is None:
        raise ConfigError(
            f"{bucket}: needs {kind.module}; in a clone of aisfs: pip install '.[{kind.extra}]'"
        )
    match bucket.provider:
        case Provider.S3 | Provider.GS | Provider.AZ:
            from aisfs.stores.cloud import CloudStore  # imports obstore

            return CloudStore(cluster, count)
        case Provider.HTTP | Provider.HTTPS:
            from aisfs.stores.web import WebStore  # imports the parsers of HTML and XML

            buckets, named = _buckets(source), named_files(source)
            return WebStore(cluster, buckets=buckets, named=named, count=count, reach=reach)
        case Provider.HF:
            from aisfs.stores.hub import open_hub  # imports `web`

            return open_hub(cluster, _buckets(source), count)
        case Provider.FSSPEC:
            from aisfs.stores.by_fsspec import open_fsspec

            return open_fsspec(bucket, cluster.max_connections, count)
    return AISClient(cluster)
