"""The cluster behind the endpoint: does it answer, is it an AIStore, does it know us."""

import base64
import binascii
import math
import stat
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import trio

from aisfs.app.doctor.check import Check, note, ok, wrong
from aisfs.core.names.sources import Everything, Source
from aisfs.errors import AccessDenied, AisfsError, ConfigError, Unavailable
from aisfs.mount.plan import is_local
from aisfs.mount.source import open_source
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.auth import Credentials
from aisfs.stores.ais.client import AISClient
from aisfs.stores.ais.cluster import identify_endpoint, wrong_scheme
from aisfs.stores.ais.replies import HEALTH, Identity

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SKEW = 300.0
"""Seconds that clocks may differ, as Kerberos and token issuers permit."""
_DAY = 86400
_LOGIN = "log in again: ais auth login"
_SET_ENDPOINT = "export AIS_ENDPOINT=http://PROXY:PORT, or give --endpoint"


class _Claims(msgspec.Struct):
    exp: float = math.inf


async def cluster_checks(settings: ClusterSettings, source: Source) -> AsyncIterator[Check]:
    """Check the way to the cluster and the source there, as far as the first obstacle."""
    if not settings.endpoint:
        if is_local(source):
            yield ok("endpoint", "none, and a local directory needs none")
        elif isinstance(source, Everything):
            yield note("endpoint", "none: only what needs no AIStore can be mounted", _SET_ENDPOINT)
        else:
            yield wrong("endpoint", f"none, and {source} needs one", _SET_ENDPOINT)
        return
    token = _token(settings)
    yield token
    try:
        client = AISClient(settings)
    except ConfigError as error:
        if str(error) != token.found:
            yield wrong("TLS", str(error), "mend AIS_CLIENT_CA, AIS_CRT and AIS_CRT_KEY")
        return
    try:
        found = await identify_endpoint(client)
    except AisfsError as error:
        text = str(error).removeprefix(f"{HEALTH.subject}: ")
        yield await _unreached(settings, text, error)
        return
    finally:
        await client.aclose()
    for check in _identity(settings.endpoint, found):
        yield check
    if found.is_aistore:
        for check in [*_tls(settings), *_clock(found), *_access(found)]:
            yield check
        yield await _source(source, settings)


async def _unreached(settings: ClusterSettings, text: str, error: AisfsError) -> Check:
    endpoint = settings.endpoint
    if isinstance(error, Unavailable) and error.__cause__ is not None and not settings.proxy:
        why = await trio.to_thread.run_sync(wrong_scheme, endpoint)
        text, error = (why, ConfigError(why)) if why else (text, error)
    if isinstance(error, ConfigError):
        found, _, cure = text.rpartition(": ")
        return wrong("TLS", f"{endpoint}: {found or text}", cure)
    if "HTTP 5" in text or "HTTP 429" in text:
        return wrong(
            "endpoint", f"{endpoint}: {text}", "wait, or look at the cluster: ais show cluster"
        )
    host = urlsplit(endpoint).hostname
    cure = f"is AIStore running there, is {host} right, does a firewall let us through?"
    return wrong("endpoint", f"{endpoint} does not answer: {text}", cure)


def _identity(endpoint: str, found: Identity) -> Iterator[Check]:
    cure = "name a proxy of AIStore with --endpoint or AIS_ENDPOINT"
    if found.is_aistore is False:
        yield wrong("endpoint", f"{endpoint} answers, but is no AIStore ({found.seen})", cure)
    elif found.is_aistore is None:
        cure = "a gateway may want a token, or the cluster may be starting; see the log there"
        yield wrong("endpoint", f"{endpoint} does not say what it is ({found.seen})", cure)
    else:
        version = f"AIStore {found.version}" if found.version else "an AIStore"
        yield ok("endpoint", f"{endpoint} is {version}")
        if found.targets == 0:
            yield wrong("targets", "the cluster has no target", "start targets: ais show cluster")
        elif found.targets is not None:
            yield ok("targets", str(found.targets))


def _tls(settings: ClusterSettings) -> Iterator[Check]:
    url = urlsplit(settings.endpoint)
    if url.scheme == "https":
        if settings.skip_verify_crt:
            cure = "unset AIS_SKIP_VERIFY_CRT, and name the CA in AIS_CLIENT_CA"
            yield note("TLS", "the server's certificate is not checked", cure)
        else:
            yield ok("TLS", "the server's certificate is trusted")
    elif url.hostname not in _LOOPBACK and _has_token(settings):
        yield note("TLS", "none: the token travels in the clear", "use https:// if the cluster can")
    else:
        yield ok("TLS", "none")


def _clock(found: Identity) -> Iterator[Check]:
    ahead = found.clock_ahead
    if ahead is None:
        return
    if abs(ahead) > _SKEW:
        how = "ahead of" if ahead > 0 else "behind"
        text = f"the cluster's clock is {abs(ahead):,.0f} seconds {how} ours"
        cure = "set the clocks (timedatectl set-ntp true): tokens and certificates depend on them"
        yield wrong("clock", text, cure)
    else:
        yield ok("clock", "as that of the cluster")


def _access(found: Identity) -> Iterator[Check]:
    if found.map_status == 401:
        yield wrong("access", "the cluster does not accept the token, or wants one", _LOGIN)
    elif found.map_status == 403:
        cure = "only needed to watch targets: grant SHOW-CLUSTER to the token's role"
        yield note("access", "the token may not see the cluster map", cure)


async def _source(source: Source, settings: ClusterSettings) -> Check:
    what = "all buckets" if isinstance(source, Everything) else str(source)
    try:
        async with open_source(source, settings):
            return ok("source", f"{what} can be listed")
    except AccessDenied as error:
        return wrong("source", f"{what}: {error}", _LOGIN)
    except AisfsError as error:
        return wrong(
            "source", str(error), "give a SOURCE as aisfs mount takes it; aisfs ls shows buckets"
        )


# The token ----------------------------------------------------------------------------------------


def _token(settings: ClusterSettings) -> Check:
    """Say where the token comes from; never what it is."""
    origin = _origin(settings)
    if origin is None:
        return ok("token", "none")
    try:
        authorization = Credentials.load(settings).authorization()
    except ConfigError as error:
        return wrong("token", str(error), "log in: ais auth login, or name another file")
    if authorization is None:
        return ok("token", "none")
    expires = _expiry(authorization.removeprefix("Bearer "))
    left = expires - time.time()
    if left <= 0:
        return wrong("token", f"{origin}: expired {_span(-left)} ago", _LOGIN)
    until = "" if expires == math.inf else f", valid for {_span(left)}"
    if isinstance(origin, Path) and origin.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        return note("token", f"{origin}{until}: others can read it", f"chmod 600 {origin}")
    return ok("token", f"{origin}{until}")


def _origin(settings: ClusterSettings) -> Path | str | None:
    if settings.token and settings.token.get_secret_value().strip():
        return "AIS_AUTHN_TOKEN"
    if settings.authn_token_file:
        return settings.authn_token_file
    try:
        return settings.cli_token_file if settings.cli_token_file.exists() else None
    except OSError:
        return None


def _has_token(settings: ClusterSettings) -> bool:
    return _origin(settings) is not None


def _expiry(token: str) -> float:
    """Return when a token expires, if it is a JWT that says so."""
    try:
        middle = token.split(".")[1]
        claims = base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4))
        return msgspec.json.decode(claims, type=_Claims).exp
    except (IndexError, binascii.Error, ValueError, msgspec.MsgspecError):
        return math.inf


def _span(seconds: float) -> str:
    if seconds >= 2 * _DAY:
        return f"{seconds / _DAY:.0f} days"
    return f"{seconds / 3600:.0f} hours" if seconds >= 7200 else f"{seconds / 60:.0f} minutes"
