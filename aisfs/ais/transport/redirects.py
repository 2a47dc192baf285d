"""Where a request may be redirected to, and whether the token goes along.

Must not know: connections, what requests mean.
"""

import re
import string
from contextlib import suppress
from urllib.parse import quote, urljoin, urlsplit

from aisfs.ais.protocol.requests import BATCHES, Request
from aisfs.errors import ProtocolError
from aisfs.redaction import shown

REDIRECTS = frozenset({301, 302, 307, 308})
_MOST_TEXT = 300
"""Characters of a `Location` that are passed on."""
_MAX_HOPS = 3
"""Redirects in a row: AIStore needs one; a load balancer in front may add another."""
_TARGET_MARKS = (re.compile(r"[?&]pid="), re.compile(r"[?&]utm="))
"""What a proxy adds to the query when it redirects to a target."""
_SIGNATURE = re.compile(r"[?&]u=")


class RedirectChain:
    """The way of one request, from the endpoint on.

    Only the place and the query of a redirect are followed, with the path of the request: AIStore
    writes that anew in `Location`, with spaces for line breaks, which is the name of another object.
    That of a GetBatch names no object: it gets longer by the number of its job, and is followed.

    The token goes along to whatever host the endpoint itself names: that is the cluster. It stays
    behind when others redirect elsewhere, and when the way leaves https.
    """

    def __init__(self, endpoint: str, request: Request, authorization: str | None) -> None:
        """Begin at the endpoint."""
        self.url = self._origin = endpoint + request.target
        """Where to send the request now."""
        self.authorization = authorization
        """What to say there."""
        self._endpoint = endpoint
        self._path = request.path
        self._subject = request.subject
        self._hops = 0

    def absolute(self, location: str) -> str:
        """Return the URL that the `Location` of a reply sends this request to.

        Raises:
            ProtocolError: that is nowhere, or no place for requests to AIStore.
        """
        # http.client gives the header's bytes as Latin-1; a URL has only ASCII.
        place = quote(location.encode("latin-1"), safe=string.punctuation)
        with suppress(ValueError):
            is_absolute = place.startswith(("http://", "https://"))
            target = place if is_absolute else urljoin(self.url, place)
            parts = urlsplit(target)
            # Impossible hosts and ports are told by asking for them.
            host = (parts.hostname or "").encode("idna")
            before, version, rest = parts.path.partition("/v1/")
            if parts.scheme in ("http", "https") and host and parts.port != 0 and version:
                # A name need not be escaped there: its question mark is not the last one.
                query = place[place.rfind("?") :] if "?" in place else ""
                there = f"/v1/{rest}"
                path = there if _is_job(self._path, there) else self._path
                return f"{parts.scheme}://{parts.netloc}{before}{path}{query}"
        raise ProtocolError(f"{self._subject}: redirected to {shown(place)[:_MOST_TEXT]!r}")

    def go(self, target: str) -> None:
        """Go where the request is redirected to.

        Raises:
            ProtocolError: that is in circles.
        """
        if not may_have_token(self._endpoint, self.url, target):
            self.authorization = None
        self.url = target
        self._hops += 1
        if self._hops > _MAX_HOPS:
            raise ProtocolError(
                f"{self._subject}: redirected in circles, from {self._origin} to {shown(target)[:_MOST_TEXT]}"
            )


def _is_job(path: str, there: str) -> bool:
    """Return whether a GetBatch is redirected to its job on the target that does it."""
    return path.startswith(f"{BATCHES}/") and there.startswith(f"{path}/gbt-")


def is_target(url: str) -> bool:
    """Return whether a redirect of a proxy leads to the target that is to do the work."""
    return all(mark.search(url) for mark in _TARGET_MARKS)


def is_signed(url: str) -> bool:
    """Return whether a redirect holds only for a body of the length that was announced to the proxy."""
    return bool(_SIGNATURE.search(url))


def may_have_token(endpoint: str, current: str, target: str) -> bool:
    """Return whether what was sent to `current` with the token may be sent so to `target`."""
    if current.startswith(f"{endpoint}/") and target.startswith(f"{endpoint}/"):
        return True
    old, new = urlsplit(current), urlsplit(target)
    if old.scheme == "https" and new.scheme == "http":
        return False
    cluster = {urlsplit(endpoint).netloc, old.netloc}
    return old.netloc == urlsplit(endpoint).netloc or new.netloc in cluster
