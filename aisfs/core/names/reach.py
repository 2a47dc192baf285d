"""Decides what a remote party may name: a list of shards that lies in a bucket, the author of a volume of Kubernetes.

It may name no local file, and no host of its own choosing. Whatever becomes a source, a shard or a table
because somebody else than the user of this machine wrote it is checked here first (invariant I17).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from aisfs.core.names.urls import provider_of
from aisfs.errors import ConfigError
from aisfs.model import SERVED, Bucket, Provider

_HEAD = re.compile(r"([a-z0-9+]+)://")
_MOST_TEXT = 200
"""Characters of a text that are repeated in a message."""
_USUAL_PORTS = {"http": ":80", "https": ":443"}
_OF_LISTS = (
    "a list that is fetched names shards of its own store and host only; save it as a file of this"
    " machine, which may name any"
)
_OF_TENANTS = (
    "a volume shows buckets of AIStore, and what the operator of the node permits with --allow-scheme"
    " and --allow-host"
)
GRANTABLE = tuple(
    provider.scheme
    for provider in Provider
    if provider.is_direct and provider is not Provider.FSSPEC
)
"""Schemes that can be permitted besides those of AIStore. What fsspec opens, such as `file://`, cannot."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Which places may be named."""

    places: Mapping[str, frozenset[str] | None]
    """The hosts of each scheme; None for any place of it."""
    remedy: str
    """What can be done about a refusal."""

    @classmethod
    def of_list(cls, bucket: Bucket) -> Self:
        """Return what a list of shards in a bucket may name: its store and its host, over no worse connection."""
        schemes = [scheme_of(bucket)]
        if not bucket.provider.is_direct:
            schemes = [provider.scheme for provider in SERVED]
        elif bucket.provider is Provider.HTTP:
            schemes.append(Provider.HTTPS.scheme)
        host = _host_of(bucket)
        hosts = frozenset({host}) if host else None
        return cls(dict.fromkeys(schemes, hosts), _OF_LISTS)

    @classmethod
    def of_tenant(cls, schemes: Iterable[str], hosts: Iterable[str]) -> Self:
        """Return what the author of a volume may name: what AIStore serves, and what an operator permits.

        Args:
            schemes: Some of `GRANTABLE`.
            hosts: Web servers, as `HOST` or `HOST:PORT`.
        """
        web, named = (Provider.HTTP.scheme, Provider.HTTPS.scheme), frozenset(map(str.lower, hosts))
        places = {provider.scheme: None for provider in SERVED}
        granted = {scheme: named if scheme in web else None for scheme in schemes}
        return cls(places | granted, _OF_TENANTS)

    def check_text(self, what: str, text: str) -> None:
        """Refuse a text that does not begin with a scheme that may be named, before anything looks at it.

        Args:
            what: What messages call it.
            text: As it was written; its braces can change nothing before them.

        Raises:
            ConfigError: it begins otherwise: as a path, with braces, with another scheme.
        """
        head = _HEAD.match(text)
        if head is None:
            named = f"{what} {text[:_MOST_TEXT]}"
            raise self._refused(named, "it does not begin with a scheme, as ais://BUCKET does")
        # No more of it is repeated: there may be a password in it.
        self._check_scheme(f"{what} {head[0]}…", head[1], provider_of(head[1]).scheme)

    def check(self, what: str, bucket: Bucket | None) -> None:
        """Refuse a place that may not be named.

        Args:
            what: How messages begin.
            bucket: The place; None for files of this machine.

        Raises:
            ConfigError: it may not.
        """
        if bucket is None or bucket.path:
            raise self._refused(what, "it is a file of this machine")
        scheme, host = scheme_of(bucket), _host_of(bucket)
        self._check_scheme(what, scheme, scheme)
        hosts = self.places[scheme]
        if hosts is not None and not _is_among(scheme, host, hosts):
            raise self._refused(what, f"the host {host} is not permitted")

    def _check_scheme(self, what: str, shown: str, scheme: str) -> None:
        if scheme not in self.places:
            raise self._refused(what, f"{shown}:// is not permitted")

    def _refused(self, what: str, why: str) -> ConfigError:
        return ConfigError(f"{what}: {why} ({self.remedy})")


def scheme_of(bucket: Bucket) -> str:
    """Return the scheme by which users call a bucket."""
    return bucket.store if bucket.provider is Provider.FSSPEC else bucket.provider.scheme


def _host_of(bucket: Bucket) -> str:
    """Return the part of a bucket's name that chooses a host; empty where the scheme alone does."""
    match bucket.provider:
        case Provider.HTTP | Provider.HTTPS:
            return bucket.name
        case Provider.AZ:
            return bucket.name.partition("/")[0]
        case Provider.FSSPEC:
            return bucket.name.partition("://")[2]
    return ""


def _is_among(scheme: str, host: str, hosts: frozenset[str]) -> bool:
    """Return whether one of the hosts is meant; one without a port is that of the usual port."""
    usual = _USUAL_PORTS.get(scheme, "")
    return host in hosts or bool(
        usual and (host.removesuffix(usual) in hosts or f"{host}{usual}" in hosts)
    )
