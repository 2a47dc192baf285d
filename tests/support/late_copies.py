"""Azure as it is with large blobs: copies are accepted at once, and made later."""

import contextlib
import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from tests.support.clouds import Azure


class LateCopies(BaseHTTPRequestHandler):
    """Hands requests on to azurite, but for copies."""

    protocol_version = "HTTP/1.1"
    azure: Azure
    seconds: float
    pending: set[str]

    def do_GET(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if source := self.headers.get("x-ms-copy-source"):
            self._copy(urlsplit(source).path)
            return
        place = urlsplit(self.azure.url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, data, dict(self.headers))
            reply = connection.getresponse()
            self._reply(reply.status, dict(reply.getheaders()), reply.read())

    def _copy(self, source: str) -> None:
        target = self.path
        if target in self.pending:
            body = b"<Error><Code>PendingCopyOperation</Code></Error>"
            self._reply(409, {"x-ms-error-code": "PendingCopyOperation"}, body)
            return
        self.pending.add(target)
        self._put(target, b"")
        threading.Timer(self.seconds, self._finish, (source, target)).start()
        self._reply(202, {"x-ms-copy-status": "pending", "x-ms-copy-id": "1"}, b"")

    def _finish(self, source: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile: then the copy fails
            self._put(target, self.azure.get(*_parts(source)))
        self.pending.discard(target)

    def _put(self, target: str, data: bytes) -> None:
        self.azure.put(*_parts(target), data)

    def _reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = {name.lower(): value for name, value in headers.items()}.get("content-length", "0")
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


def _parts(path: str) -> tuple[str, str]:
    """Return the bucket and the key of a path."""
    account, container, key = unquote(path).removeprefix("/").split("/", 2)
    return f"{account}/{container}", key


@contextmanager
def late_copies(azure: Azure, seconds: float) -> Iterator[Azure]:
    """Have an azurite copy so much later, until the block ends."""
    facts = {"azure": azure, "seconds": seconds, "pending": set()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (LateCopies,), facts))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}{urlsplit(azure.url).path}"
    try:
        yield replace(azure, environment={**azure.environment, "AZURE_STORAGE_ENDPOINT": url})
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
