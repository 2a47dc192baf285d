"""A web server with two files, each of whose replies a test may spoil."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.settings import ClusterSettings
from aisfs.stores.pipeline import CallPipeline
from aisfs.stores.web import WebStore
from tests.stores.ais.scripted_server import ScriptedServer, Seen, reply, scripted_server

DATA = bytes(range(256)) * 4096
DATE = "Tue, 24 Nov 2026 05:00:00 GMT"
Spoil = Callable[[Seen, socket.socket], bool | None]


class MiniSite:
    """Serves ranges of one version; `before` may answer instead, None lets pass."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data = data
        self.headers = {"ETag": '"one"', "Last-Modified": DATE}
        self.ranges = True
        self.before: Spoil = lambda seen, connection: None

    def __call__(self, seen: Seen, connection: socket.socket) -> bool | None:
        done = self.before(seen, connection)
        if done is None:
            connection.sendall(self.answer(seen))
            return True
        return done

    def answer(self, seen: Seen) -> bytes:
        if seen.path not in ("/k", "/d/k"):
            return reply(404)
        if seen.headers.get("if-match", self.headers.get("ETag")) != self.headers.get("ETag"):
            return reply(412)
        if seen.method == "HEAD":
            return reply(200, {**self.headers, "Content-Length": str(len(self.data))})
        if "range" not in seen.headers or not self.ranges:
            return reply(200, self.headers, self.data)
        first, last = map(int, seen.headers["range"].removeprefix("bytes=").split("-"))
        part = self.data[first : last + 1]
        place = {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(self.data)}"}
        return reply(206, {**self.headers, **place}, part)


@asynccontextmanager
async def store_over(
    site: Callable[[Seen, socket.socket], bool | None], deadline: float = 60, **options: Any
) -> AsyncIterator[tuple[CallPipeline, Bucket, ScriptedServer]]:
    """Yield a store, as a mount has it, for the site."""
    with scripted_server(site) as server:
        scheme, _, host = server.endpoint.partition("://")
        bucket = Bucket(host, Provider(scheme))
        settings = ClusterSettings(io_timeout=deadline, **options)
        store = CallPipeline(WebStore(settings, buckets=[bucket]), deadline=deadline)
        try:
            yield store, bucket, server
        finally:
            await store.aclose()


async def read(
    store: CallPipeline, bucket: Bucket, info: ObjectInfo, start: int = 0, stop: int | None = None
) -> bytes:
    """Read a range."""
    buffer = bytearray((info.size if stop is None else stop) - start)
    await store.read_range(bucket, info, start, memoryview(buffer))
    return bytes(buffer)


async def stream(store: CallPipeline, bucket: Bucket, info: ObjectInfo) -> bytes:
    """Stream all of it."""
    pieces: list[bytes] = []
    await store.stream(bucket, info, lambda piece: pieces.append(bytes(piece)))
    return b"".join(pieces)
