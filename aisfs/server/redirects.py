"""Redirects from the proxy to a target: what the proxy says in them, signs, and the target checks.

AIStore 5.1 signs, where its configuration says so. The signature covers the method, the decoded path, the
proxy, the version of the cluster's map, the length of the body and a number that is never used again, so
a target refuses (401) what was not asked of the proxy in the same way.
"""

import base64
import hashlib
import hmac
import itertools
import os
import time
from collections.abc import Callable

from aisfs.server.failures import Failure
from aisfs.server.messages import Reply, Request, base36

_SIGNATURE = 86
"""Characters of a signature; AIStore's are of Ed25519, and here those of SHA-512 are as long."""


class Redirects:
    """Makes the redirects of one proxy, and checks them."""

    def __init__(self, proxy_id: str, version: Callable[[], int], *, signs: bool = False) -> None:
        """`version` returns that of the cluster's map."""
        self._proxy_id = proxy_id
        self._version = version
        self.signs = signs
        self._key = os.urandom(32)
        self._numbers = itertools.count(int.from_bytes(os.urandom(4)))

    def make(self, status: int, request: Request, path: str, asked: bytes | None = None) -> Reply:
        """Return a redirect to the target, which is this same listener.

        Args:
            status: Of the reply.
            request: What to redirect.
            path: As it is written in the redirect.
            asked: The path that the target will be asked for, decoded; by default that of the request.
        """
        query = request.environ.get("QUERY_STRING", "")
        mark = f"pid={self._proxy_id}&utm={base36(time.time_ns())}"
        if self.signs:
            version, number = base36(self._version()), base36(next(self._numbers))
            signature = self._sign(request, asked or request.raw_path, version, number)
            mark += f"&vpams={version}&x={number}&u={signature}"
        start = "&" if "?" in path else "?"
        location = f"{request.base_url}{path}{start}{query}{'&' if query else ''}{mark}"
        return Reply(status, [("Location", location)])

    def check(self, request: Request) -> None:
        """Check a request that came to the target.

        Raises:
            Failure: 401; this proxy did not redirect it so.
        """
        if not self.signs:
            return
        query = request.query
        given = query.get("u", "")
        if not given:
            raise Failure(401, "missing signature", node="t")
        if len(given) != _SIGNATURE:
            raise Failure(401, f"invalid signature length: {len(given)}", node="t")
        right = self._sign(request, request.raw_path, query.get("vpams", ""), query.get("x", ""))
        if query["pid"] != self._proxy_id or not hmac.compare_digest(
            given.encode(), right.encode()
        ):
            raise Failure(401, "node signature verification failed", node="t")

    def _sign(self, request: Request, path: bytes, version: str, number: str) -> str:
        length = str(request.length)
        parts = [request.method.encode(), path, self._proxy_id.encode()]
        parts += [text.encode() for text in (version, length, number)]
        digest = hmac.digest(self._key, b"\0".join(parts), hashlib.sha512)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")
