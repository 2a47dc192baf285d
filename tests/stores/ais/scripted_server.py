"""A server whose every byte a test decides: for replies no well-behaved server would give."""

import json
import random
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from aisfs.stores.pipeline import CallPipeline

QUESTIONS = ("/v1/health", "/v1/daemon")
"""What a new connection begins with; see `aisfs.stores.ais.readiness`."""


@dataclass
class Seen:
    """A request as it came over the wire."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.target).query)


Handler = Callable[[Seen, socket.socket], bool | None]
"""Writes the reply; False closes the connection."""


@dataclass
class ScriptedServer:
    handler: Handler
    seen: list[Seen] = field(default_factory=list)
    """All but `QUESTIONS`."""
    stopping: threading.Event = field(default_factory=threading.Event)
    closed_by_client: threading.Event = field(default_factory=threading.Event)
    endpoint: str = ""
    tls: ssl.SSLContext | None = None

    def serve(self, connection: socket.socket) -> None:
        if self.tls:
            try:
                connection = self.tls.wrap_socket(connection, server_side=True)
            except OSError:
                connection.close()
                return
        with connection, connection.makefile("rb") as stream:
            try:
                while (seen := _read_request(stream)) is not None:
                    if seen.path not in QUESTIONS:
                        self.seen.append(seen)
                    if self.handler(seen, connection) is False:
                        return
            except OSError:
                pass

    def stall(self, connection: socket.socket) -> bool:
        """Say nothing more until the client goes away."""
        while not self.stopping.is_set():
            connection.settimeout(0.05)
            try:
                if not connection.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self.closed_by_client.set()
        return False


def _read_request(stream) -> Seen | None:
    line = stream.readline()
    if not line:
        return None
    words = line.decode("latin-1").split(" ")
    if len(words) != 3:  # a greeting of TLS, by which a client finds out why it got no answer
        return None
    method, target, _ = words
    headers = {}
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return Seen(method, target, headers, stream.read(int(headers.get("content-length", 0))))


def reply(status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    given = {"Content-Length": str(len(body)), **(headers or {})}
    lines += [f"{name}: {value}" for name, value in given.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def error(status: int, tcode: str, message: str) -> tuple[dict[str, str], bytes]:
    text = json.dumps({"tcode": tcode, "message": message, "status": status})
    return {"Content-Type": "application/json", "Hdr-Error": text}, text.encode()


@contextmanager
def scripted_server(
    handler: Handler, tls: ssl.SSLContext | None = None
) -> Iterator[ScriptedServer]:
    server = ScriptedServer(handler, tls=tls)
    threads = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        scheme = "https" if tls else "http"
        server.endpoint = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"

        def accept() -> None:
            while not server.stopping.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                connection.settimeout(None)
                thread = threading.Thread(target=server.serve, args=(connection,), daemon=True)
                thread.start()
                threads.append(thread)

        acceptor = threading.Thread(target=accept, daemon=True)
        acceptor.start()
        try:
            yield server
        finally:
            server.stopping.set()
            acceptor.join()
    for thread in threads:
        thread.join(1)


@asynccontextmanager
async def connected(
    handler: Handler, **options: Any
) -> AsyncIterator[tuple[AISClient, ScriptedServer]]:
    """Yield a client, which sends each request once, and its server."""
    with scripted_server(handler) as server:
        client = AISClient(ClusterSettings(endpoint=server.endpoint, **options))
        try:
            yield client, server
        finally:
            await client.aclose()


@asynccontextmanager
async def store_of(
    handler: Handler, *, deadline: float = 30.0, **options: Any
) -> AsyncIterator[CallPipeline]:
    """Yield a store that tries again."""
    async with connected(handler, io_timeout=deadline, **options) as (client, _):
        yield CallPipeline(client, deadline=deadline, rng=random.Random(1))


PROPS = '{"checksum":{"type":"xxhash2","enable_read_range":false},"created":"1700000000000000000"}'


class MiniCluster:
    """A proxy and a target in one: a bucket `b`, whole objects, the usual headers.

    Tests put `before` in front to answer some requests otherwise: it returns None to let pass.
    """

    def __init__(self, objects: dict[str, bytes], scheme: str = "http") -> None:
        self.objects = objects
        self.scheme = scheme
        self.version = "1"
        self.before: Callable[[Seen, socket.socket], bool | None] | None = None

    def __call__(self, seen: Seen, connection: socket.socket) -> bool | None:
        if self.before is not None:
            done = self.before(seen, connection)
            if done is not None:
                return done
        connection.sendall(self.answer(seen))
        return True

    def answer(self, seen: Seen) -> bytes:
        if seen.path == "/v1/buckets/b":
            if seen.method == "HEAD":
                return reply(200, {"Ais-Bucket-Props": PROPS})
            return self.listing(seen)
        if not seen.path.startswith("/v1/objects/b/"):
            return reply(404, *error(404, "ErrBckNotFound", "no such bucket"))
        if "pid" not in seen.query:
            code = 301 if seen.method == "GET" else 307
            location = f"{self.scheme}://{seen.headers['host']}{seen.target}&pid=p1&utm=x"
            return reply(code, {"Location": location}, b"<a>Moved</a>" * (seen.method == "GET"))
        key = unquote_to_bytes(seen.path[len("/v1/objects/b/") :]).decode()
        return self.object(seen, key)

    def listing(self, seen: Seen) -> bytes:
        entries = [{"name": key, "size": str(len(data))} for key, data in self.objects.items()]
        body = json.dumps({"uuid": "u", "continuation_token": "", "entries": entries}).encode()
        return reply(200, {"Content-Type": "application/json; charset=utf-8"}, body)

    def object(self, seen: Seen, key: str) -> bytes:
        if key not in self.objects:
            headers, body = error(404, "ErrNotFound", f"ais://b/{key} does not exist")
            return reply(404, headers, b"" if seen.method == "HEAD" else body)
        data = self.objects[key]
        headers = {
            "Ais-Version": self.version,
            "Ais-Checksum-Type": "xxhash2",
            "Ais-Checksum-Value": f"{sum(data):x}",
        }
        if seen.method == "HEAD":
            return reply(200, {**headers, "Content-Length": str(len(data))})
        if "range" not in seen.headers:
            return reply(200, headers, data)
        first, last = map(int, seen.headers["range"].removeprefix("bytes=").split("-"))
        if first >= len(data):
            return reply(416, {"Content-Range": f"bytes */{len(data)}"})
        last = min(last, len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return reply(206, headers, data[first : last + 1])
