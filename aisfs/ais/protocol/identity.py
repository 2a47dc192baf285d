"""What answers at an endpoint: an AIStore, and which, or something else.

`/v1/health` is answered without a token by every AIStore, with its uptime in a header.
"""

import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import msgspec

from aisfs.ais.protocol.errors import is_by_aistore
from aisfs.ais.protocol.requests import Request
from aisfs.http.exchange import Reply

HEALTH = Request("GET", "/v1/health", "", "the endpoint")
CLUSTER_MAP = Request("GET", "/v1/daemon", "what=smap", "cluster map", most_reply=16 << 20)
VERSION = Request("GET", "/v1/daemon", "what=software_version", "version of AIStore")

_UPTIMES = ("ais-cluster-uptime", "ais-node-uptime", "cluster-uptime", "node-uptime")
_VERSION = re.compile(r"[\w.+-]{1,40}")


class _Map(msgspec.Struct):
    pmap: dict[str, msgspec.Raw]
    tmap: dict[str, msgspec.Raw] | None = None


_decode_map = msgspec.json.Decoder(_Map, strict=False).decode


@dataclass(frozen=True, slots=True)
class Identity:
    """What is known about an endpoint that answers."""

    is_aistore: bool | None
    """None if it cannot be told: a gateway may want a token, or the cluster may be starting."""
    seen: str
    """How it answered, in words."""
    targets: int | None = None
    """Storage nodes of the cluster; None if it does not tell."""
    version: str = ""
    clock_ahead: float | None = None
    """Seconds by which its clock is ahead of ours; negative if it is behind."""
    map_status: int = 0
    """HTTP status of the cluster map, which needs a token where tokens are used."""


def identify(
    health: Reply, cluster_map: Reply, version: Reply, clock: tuple[float, float]
) -> Identity:
    """Return what three replies say.

    Args:
        health: The reply to `HEALTH`.
        cluster_map: The reply to `CLUSTER_MAP`.
        version: The reply to `VERSION`.
        clock: Our time before and after `HEALTH`, in seconds.
    """
    targets = _targets(cluster_map)
    replies = (health, cluster_map, version)
    found: bool | None = (
        targets is not None
        or (health.status == 200 and any(name in health.headers for name in _UPTIMES))
        or any(is_by_aistore(reply) for reply in replies)
    )
    if not found and (health.status in (401, 407) or health.status >= 500):
        found = None
    text = version.body.decode("ascii", "replace").strip().strip('"')
    known = version.status == 200 and _VERSION.fullmatch(text)
    return Identity(
        found,
        _described(health),
        targets,
        text if found and known else "",
        _clock_ahead(health, clock),
        cluster_map.status,
    )


def _targets(reply: Reply) -> int | None:
    if reply.status != 200:
        return None
    try:
        return len(_decode_map(reply.body).tmap or {})
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _described(reply: Reply) -> str:
    kind = reply.headers.get("content-type", "").partition(";")[0].strip()
    server = reply.headers.get("server", "")
    by = f" by {server[:60]}" if server else ""
    what = f", {kind}" if kind and reply.body else ""
    return f"HTTP {reply.status}{what}{by} to GET {HEALTH.path}"


def _clock_ahead(reply: Reply, clock: tuple[float, float]) -> float | None:
    try:
        theirs = parsedate_to_datetime(reply.headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
    before, after = clock
    # Their clock was cut to a whole second.
    if theirs + 1 >= before and theirs <= after:
        return 0.0
    return theirs - (after if theirs > after else before)
