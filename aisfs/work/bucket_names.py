"""The names of buckets for the completion of a shell: quick, and silent about what fails.

It asks AIStore itself, since importing the client takes longer than a person waits for a key.
"""

import ssl
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import msgspec

from aisfs.errors import AisfsError
from aisfs.model import SERVED, Bucket, Provider
from aisfs.settings import ClusterSettings, use_file
from aisfs.stores.ais.auth import Credentials

_SECONDS = 0.5
"""Until AIStore must connect, and then answer: a person has typed the name by then."""
_MOST_BYTES = 1 << 20


class _Listed(msgspec.Struct):
    """A bucket as AIStore lists it."""

    name: str
    provider: str = ""
    namespace: Mapping[str, str] = {}


def bucket_names(begun: str, settings: Mapping[str, object], config: Path | None) -> list[str]:
    """Return the buckets whose URL begins so, such as `ais://pe`; none if AIStore cannot be asked.

    Args:
        begun: What was typed so far.
        settings: Options that were typed.
        config: The file of `--config`.
    """
    try:
        use_file(config)
        provider = Provider.parse(begun.partition(":")[0])
        cluster = ClusterSettings.load(settings)
        if provider not in SERVED or not cluster.endpoint:
            return []
        found = _ask(provider, cluster)
    except (AisfsError, OSError, ValueError, HTTPException, msgspec.MsgspecError):
        return []
    buckets = [Bucket(each.name, provider) for each in found if not any(each.namespace.values())]
    return sorted(str(bucket) for bucket in buckets if str(bucket).startswith(begun))


def _ask(provider: Provider, settings: ClusterSettings) -> list[_Listed]:
    url = urlsplit(settings.endpoint)
    headers = {"Content-Type": "application/json"}
    if authorization := Credentials.load(settings).authorization():
        headers["Authorization"] = authorization
    host = url.hostname or ""
    connection: HTTPConnection
    if url.scheme == "https":
        context = _tls(settings)
        connection = HTTPSConnection(host, url.port, timeout=_SECONDS, context=context)
    else:
        connection = HTTPConnection(host, url.port, timeout=_SECONDS)
    with closing(connection):
        query = urlencode({"provider": provider.value})
        connection.request("GET", f"/v1/buckets?{query}", '{"action":"list"}', headers)
        reply = connection.getresponse()
        content = reply.read(_MOST_BYTES) if reply.status == 200 else b"[]"
    return msgspec.json.decode(content, type=list[_Listed])


def _tls(settings: ClusterSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.client_ca)
    if settings.skip_verify_crt:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.client_cert:
        context.load_cert_chain(settings.client_cert, settings.client_key, password="")
    return context
