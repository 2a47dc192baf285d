"""A token in exchange for another one, at a token endpoint (RFC 8693), as AIStore's issuers and Google have them.

What it says of a refusal is not repeated: such endpoints quote what they were asked.
"""

import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from aisfs.errors import AccessDenied, ProtocolError, Unavailable
from aisfs.http.connections import ConnectionSet
from aisfs.http.exchange import Exchange, network, tls_options
from aisfs.redaction import remember
from aisfs.settings import ClusterSettings

T = TypeVar("T")

_JWT = "urn:ietf:params:oauth:token-type:jwt"
_SECONDS = 10.0
_MOST_REPLY = 64 << 10
_LIFE = 3600.0
"""Seconds that a token is taken to be valid for if the endpoint does not say it; Google's usual time."""


class Token(NamedTuple):
    """A token, and when it ends: seconds since 1970."""

    text: str
    ends: float


class _Exchanged(msgspec.Struct):
    access_token: str
    expires_in: float = _LIFE


class _Impersonated(msgspec.Struct):
    accessToken: str
    expireTime: datetime


def exchange(
    token: str, url: str, kind: str = _JWT, more: Mapping[str, str] | None = None
) -> Token:
    """Return the token for which the endpoint `url` takes another.

    Args:
        token: What is exchanged.
        url: Its query goes into the form that is sent: the client and its secret, the audience.
        kind: What the token is, as RFC 8693 calls it.
        more: More of the form.

    Raises:
        AisfsError: it takes none, or cannot be reached.
    """
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token,
        "subject_token_type": kind,
        **(more or {}),
        **dict(parse_qsl(urlsplit(url).query)),
    }
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    said = _post(url, headers, urlencode(form).encode(), "token exchange", _Exchanged)
    remember(said.access_token)
    return Token(said.access_token, time.time() + said.expires_in)


def impersonate(token: str, url: str, scope: str) -> Token:
    """Return the token of one of Google's service accounts, named by `url`, that another one may be.

    Raises:
        AisfsError: it may not, or Google cannot be reached.
    """
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    body = json.dumps({"scope": [scope], "lifetime": f"{_LIFE:.0f}s"}).encode()
    said = _post(url, headers, body, "service account", _Impersonated)
    remember(said.accessToken)
    return Token(said.accessToken, said.expireTime.timestamp())


def _post(url: str, headers: dict[str, str], body: bytes, what: str, kind: type[T]) -> T:
    parts = urlsplit(url)
    headers |= {"Content-Length": str(len(body)), "Accept": "application/json"}
    # The certificate of this client is for the cluster alone.
    settings = ClusterSettings.load({}).changed(client_cert=None, client_key=None)
    timeouts = (_SECONDS, _SECONDS)
    connections = ConnectionSet(url, tls_options(settings), timeouts, _as_it_is, _as_it_is)
    subject = f"{what} at {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    try:
        with network(subject):
            connection = connections.connected(url)
            pieces = [memoryview(body)]
            sent = Exchange(
                connection, "POST", parts.path or "/", headers, pieces, timeout=_SECONDS
            )
            reply = sent.take_all(_MOST_REPLY, _SECONDS)
    finally:
        connections.close()
    if reply.status >= 500:
        raise Unavailable(f"{subject}: HTTP {reply.status}")
    if reply.status != 200:
        raise AccessDenied(f"{subject}: HTTP {reply.status}: the token is refused")
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ProtocolError(f"{subject}: the answer has no token") from None


def _as_it_is(connection: object) -> None:
    """Ask nothing of a new connection."""
