"""Changes that were given up and happen all the same: a target that stood still goes on."""

import random
import socket
import threading
from functools import partial

import pytest
import trio

from aisfs.errors import DeadlineExceeded
from aisfs.model import Bucket
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from aisfs.stores.pipeline import CallPipeline
from aisfs.stores.port import BytesContent, Upload
from tests.stores.ais.scripted_server import MiniCluster, Seen, reply, scripted_server
from tests.support.for_each import for_each

B = Bucket("b")


class Target(MiniCluster):
    """A target that is stopped; what it was sent meanwhile it does afterwards, the last first."""

    def __init__(self) -> None:
        super().__init__({})
        self._lock = threading.Lock()
        self._stopped = True
        self.came = threading.Event()
        """Set by the change that is to be acknowledged, if it is sent while the target is stopped."""
        self._waiting: list[tuple[threading.Event, threading.Event]] = []

    def __call__(self, seen: Seen, connection: socket.socket) -> bool | None:
        turn, done = threading.Event(), threading.Event()
        with self._lock:
            if self._stopped:
                self._waiting.append((turn, done))
                if seen.body == b"acknowledged":
                    self.came.set()
            else:
                turn.set()
        turn.wait(30)
        try:
            return super().__call__(seen, connection)
        finally:
            done.set()

    def answer(self, seen: Seen) -> bytes:
        key = seen.path.removeprefix("/v1/objects/b/")
        if seen.method == "PUT":
            self.objects[key] = seen.body
        elif seen.method == "DELETE":
            self.objects.pop(key, None)
        elif seen.method == "HEAD" and key in self.objects:
            return reply(200, {"Content-Length": str(len(self.objects[key])), "Ais-Version": "1"})
        else:
            return super().answer(seen)
        return reply(200, {"Ais-Version": "1"})

    def go_on(self) -> None:
        with self._lock:
            self._stopped = False
        for turn, done in reversed(self._waiting):
            turn.set()
            done.wait(10)


@for_each("first", ["upload", "remove"])
async def test_what_was_given_up_does_not_undo_what_was_acknowledged(first):
    target = Target()
    with scripted_server(target) as second:

        def proxy(seen: Seen, connection: socket.socket) -> bool:
            if seen.path.startswith("/v1/objects/"):
                place = f"{second.endpoint}{seen.target}&pid=p1&utm=x"
                connection.sendall(reply(307, {"Location": place}))
            else:
                connection.sendall(MiniCluster({}).answer(seen))
            return True

        with scripted_server(proxy) as server:
            settings = ClusterSettings(endpoint=server.endpoint, read_timeout=0.2, io_timeout=30)
            client = AISClient(settings)
            store = CallPipeline(client, deadline=1.5, rng=random.Random(1))
            ways = {
                "upload": partial(store.upload, Upload(B, "k", BytesContent(b"given up"))),
                "remove": partial(store.remove, B, "k"),
            }
            with pytest.raises(DeadlineExceeded):
                await ways[first]()
            patient = CallPipeline(client, deadline=30, rng=random.Random(1))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(patient.upload, Upload(B, "k", BytesContent(b"acknowledged")))
                await trio.to_thread.run_sync(target.came.wait, 1)
                await trio.to_thread.run_sync(target.go_on)
            assert target.objects == {"k": b"acknowledged"}
            await store.aclose()
