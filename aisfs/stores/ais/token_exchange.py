"""A token for AIStore in exchange for another one, at a token endpoint (RFC 8693).

What it says of a refusal is not repeated: such endpoints quote what they were asked.
"""

from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from aisfs.errors import AccessDenied, ProtocolError, Unavailable
from aisfs.http.connections import ConnectionSet
from aisfs.http.exchange import Exchange, Reply, network, tls_options
from aisfs.redaction import remember
from aisfs.settings import ClusterSettings

_SECONDS = 10.0
_MOST_REPLY = 64 << 10


class _Exchanged(msgspec.Struct):
    access_token: str


def exchange(token: str, url: str) -> str:
    """Return the token for which the endpoint `url` takes another.

    The query of the URL goes into the form that is sent: the client and its secret, the audience.

    Raises:
        AisfsError: it takes none, or cannot be reached.
    """
    parts = urlsplit(url)
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token,
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        **dict(parse_qsl(parts.query)),
    }
    body = urlencode(form).encode()
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Content-Length": str(len(body)),
        "Accept": "application/json",
    }
    # The certificate of this client is for the cluster alone.
    settings = ClusterSettings.load({}).changed(client_cert=None, client_key=None)
    timeouts = (_SECONDS, _SECONDS)
    connections = ConnectionSet(url, tls_options(settings), timeouts, _as_it_is, _as_it_is)
    subject = f"token exchange at {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    try:
        with network(subject):
            connection = connections.connected(url)
            pieces = [memoryview(body)]
            sent = Exchange(
                connection, "POST", parts.path or "/", headers, pieces, timeout=_SECONDS
            )
            return _token_in(sent.take_all(_MOST_REPLY, _SECONDS), subject)
    finally:
        connections.close()


def _as_it_is(connection: object) -> None:
    """Ask nothing of a new connection."""


def _token_in(reply: Reply, subject: str) -> str:
    if reply.status >= 500:
        raise Unavailable(f"{subject}: HTTP {reply.status}")
    if reply.status != 200:
        raise AccessDenied(f"{subject}: HTTP {reply.status}: the token is refused")
    try:
        token = msgspec.json.decode(reply.body, type=_Exchanged).access_token
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ProtocolError(f"{subject}: the answer has no access_token") from None
    remember(token)
    return token
