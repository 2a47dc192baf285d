"""Hands requests on to another server, as a reverse proxy does: faults can be put before any server.

`GET /-/requests` is the number of requests by class, and of bytes that were got, if that server is an S3.
"""

import contextlib
import http.client
import json
from collections import Counter
from collections.abc import Iterable
from urllib.parse import urlsplit

from aisfs.server.messages import Environ, StartResponse

_OF_THE_CONNECTION = ("connection", "keep-alive", "transfer-encoding", "content-length")
_SECONDS = 60.0


class Forward:
    """A WSGI application that is another server."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        self._counts: Counter[str] = Counter()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Ask the other server, and answer what it says."""
        if environ["PATH_INFO"] == "/-/requests":
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._counts).encode()]
        kind = _kind(environ)
        self._counts[kind] += 1
        headers = {
            name.removeprefix("HTTP_").replace("_", "-"): value
            for name, value in environ.items()
            if name.startswith("HTTP_") or name == "CONTENT_TYPE"
        }
        headers["CONNECTION"] = "close"
        body = environ["wsgi.input"].read()
        if body or environ["REQUEST_METHOD"] in ("PUT", "POST"):
            headers["CONTENT-LENGTH"] = str(len(body))
        connection = http.client.HTTPConnection(self._host, timeout=_SECONDS)
        with contextlib.closing(connection):
            connection.request(environ["REQUEST_METHOD"], environ["RAW_URI"], body, headers)
            reply = connection.getresponse()
            content = reply.read()
        told = [pair for pair in reply.getheaders() if pair[0].lower() not in _OF_THE_CONNECTION]
        size = reply.getheader("Content-Length") if environ["REQUEST_METHOD"] == "HEAD" else None
        told.append(("Content-Length", size or str(len(content))))
        self._counts["get_bytes"] += len(content) * (kind == "get")
        start_response(f"{reply.status} {reply.reason}", told)
        return [content]


def _kind(environ: Environ) -> str:
    method, is_bucket = environ["REQUEST_METHOD"], "/" not in environ["PATH_INFO"].strip("/")
    if method == "PUT" and "HTTP_X_AMZ_COPY_SOURCE" in environ:
        return "copy"
    of_object = {"GET": "get", "HEAD": "head", "PUT": "put", "POST": "put", "DELETE": "delete"}
    return "list" if is_bucket and method == "GET" else of_object.get(method, "other")
