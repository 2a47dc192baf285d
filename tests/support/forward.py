"""Hands requests on to another server, as a reverse proxy does: faults can be put before any server."""

import contextlib
import http.client
from collections.abc import Iterable
from urllib.parse import urlsplit

from aisfs.server.messages import REPEATED, S3_METADATA, Environ, StartResponse

_OF_THE_CONNECTION = ("connection", "keep-alive", "transfer-encoding", "content-length")
_SECONDS = 60.0


class Forward:
    """A WSGI application that is another server."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Ask the other server, and answer what it says."""
        headers = {
            name.removeprefix("HTTP_").replace("_", "-"): value
            for name, value in environ.items()
            if name.startswith("HTTP_") or name == "CONTENT_TYPE"
        }
        metadata = headers.pop(S3_METADATA.upper(), "")  # what run.py has joined
        headers |= dict(line.split("=", 1) for line in metadata.split(REPEATED) if line)
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
        start_response(f"{reply.status} {reply.reason}", told)
        return [content]
