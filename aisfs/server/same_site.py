"""Refuses requests that a web page of another site makes a browser send to this server.

A browser on the same machine can reach a server on loopback. A page from elsewhere may post to it
(the browser then sends the page's site as `Origin`), or resolve its own name to 127.0.0.1 and read
the replies too (DNS rebinding; the browser then sends that site as `Host`).
"""

import ipaddress
import json
from collections.abc import Iterable
from urllib.parse import urlsplit

from aisfs.server.messages import Environ, StartResponse, WsgiApp


class SameSite:
    """Middleware that accepts only certain names of this machine, and no pages of other sites."""

    def __init__(self, app: WsgiApp, names: Iterable[str]) -> None:
        """Guard `app`; besides addresses and `localhost`, the host may be one of `names`."""
        self._app = app
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request, or refuse it."""
        host, origin = environ.get("HTTP_HOST", ""), environ.get("HTTP_ORIGIN", "")
        if host and not self._is_ours(f"//{host}"):
            return _refuse(start_response, f"Host {host!r} is not a name of this server")
        if origin and not self._is_ours(origin):
            return _refuse(start_response, f"a page of {origin!r} may not use this server")
        return self._app(environ, start_response)

    def _is_ours(self, url: str) -> bool:
        try:
            name = (urlsplit(url).hostname or "").rstrip(".")
        except ValueError:
            return False
        return name in self._names or _is_address(name)


def _is_address(name: str) -> bool:
    # No other site can have an address as its name, so DNS rebinding does not lead here.
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refuse(start_response: StartResponse, reason: str) -> Iterable[bytes]:
    message = f"{reason}; to permit it: aisfs serve --allow-host NAME"
    body = json.dumps({"message": message, "status": 403}).encode() + b"\n"
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response("403 Forbidden", [*headers, ("Connection", "close")])
    return [body]
