"""An HTTP proxy: passes requests on, makes tunnels, and may want a password."""

import base64
import http.client
import select
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_PIECE = 64 << 10
_HOP = ("proxy-authorization", "connection", "transfer-encoding")


@dataclass
class HttpProxy:
    """A proxy that is running."""

    url: str
    password: str
    """`NAME:PASSWORD` that must be shown; empty for none."""
    hosts: Mapping[str, tuple[str, int]]
    """Where hosts are that only the proxy knows."""
    seen: list[str] = field(default_factory=list)
    """`METHOD TARGET` of each request."""

    @property
    def with_password(self) -> str:
        """The URL with what must be shown."""
        return self.url.replace("://", f"://{self.password}@")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: HttpProxy

    def _is_admitted(self) -> bool:
        wanted = base64.b64encode(self.proxy.password.encode()).decode()
        said = self.headers.get("Proxy-Authorization", "")
        if not self.proxy.password or said == f"Basic {wanted}":
            self.proxy.seen.append(f"{self.command} {self.path}")
            return True
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._refuse(407)
        return False

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _place(self, host: str, port: int) -> tuple[str, int]:
        return self.proxy.hosts.get(host, (host, port))

    def do_CONNECT(self) -> None:
        if not self._is_admitted():
            return
        host, _, port = self.path.rpartition(":")
        try:
            far = socket.create_connection(self._place(host.strip("[]"), int(port)), 10)
        except OSError:
            self._refuse(503)
            return
        self.send_response(200, "Connection established")
        self.end_headers()
        self.close_connection = True
        ways = {self.connection: far, far: self.connection}
        with far, suppress(OSError):
            while ready := select.select(list(ways), [], [], 60)[0]:
                for one in ready:
                    if not (piece := one.recv(_PIECE)):
                        return
                    ways[one].sendall(piece)

    def do_GET(self) -> None:
        if not self._is_admitted():
            return
        place = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: v for name, v in self.headers.items() if name.lower() not in _HOP}
        target = f"{place.path}?{place.query}" if place.query else place.path
        host, port = self._place(place.hostname or "", place.port or 80)
        far = http.client.HTTPConnection(host, port, timeout=30)
        try:
            far.request(self.command, target, body, headers)
            reply = far.getresponse()
            content = reply.read()
        except OSError:
            self._refuse(502)
            return
        finally:
            far.close()
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in (*_HOP, "content-length"):
                self.send_header(name, value)
        length = reply.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        if length is not None:
            self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(content)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = do_PROPFIND = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet about clients that leave."""


@contextmanager
def http_proxy(
    password: str = "", hosts: Mapping[str, tuple[str, int]] | None = None
) -> Iterator[HttpProxy]:
    """Run a proxy until the block ends."""
    handler = type("Handler", (_Handler,), {})
    server = _Server(("127.0.0.1", 0), handler)
    proxy = HttpProxy(f"http://127.0.0.1:{server.server_port}", password, hosts or {})
    handler.proxy = proxy
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
