"""A proxy that is started again: what it says meanwhile, and what is written then.

The cluster here does as AIStore 5.0 was seen to do: at first it knows no target; then some, over
which it routes everything; and a while after it knows all of them it says that it is ready.
"""

import json
import socket
import time
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio

from aisfs.errors import AisfsError, DeadlineExceeded, NotFound, ProtocolError
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.stores.ais import readiness
from aisfs.stores.pipeline import CallPipeline
from aisfs.stores.port import BytesContent, Upload
from tests.stores.ais.scripted_server import (
    MiniCluster,
    Seen,
    connected,
    error,
    reply,
    store_of,
)
from tests.support.for_each import for_each

B = Bucket("b")
READY_AFTER = 3
"""Times that the health is asked for before it is good: some phases have to be lived through."""


class Cluster(MiniCluster):
    """A proxy and three targets behind one listener; `k` is on the second target."""

    def __init__(self) -> None:
        super().__init__({})
        self.targets: dict[str, dict[str, bytes]] = {"t1": {}, "t2": {"k": b"old"}, "t3": {}}
        self.known = ["t1", "t2", "t3"]
        self.leaving: list[str] = []
        self.map_version = 7
        self.uuid = "cluster"
        self.not_ready = 0
        """Times that the health will still be bad."""
        self.starting: list[str] | None = None
        """Targets known before it is good; None when it is."""
        self.since_ns = time.monotonic_ns() - 10**15
        self.health = 200
        """What a ready proxy answers."""
        self.map_status = 200
        self.asked: dict[str, int] = {"health": 0, "smap": 0}
        self.listed = 0
        self.connections: set[socket.socket] = set()
        self.heal: list[str] | None = None

    def __call__(self, seen: Seen, connection: socket.socket) -> bool | None:
        self.connections.add(connection)
        return super().__call__(seen, connection)

    def restart(self, known: list[str], *, finally_known: list[str] | None = None) -> None:
        """Start the proxy again; it knows these targets until it is ready."""
        self.starting, self.not_ready, self.since_ns = known, READY_AFTER, time.monotonic_ns()
        self.heal = finally_known
        self.cut()

    def cut(self) -> None:
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.connections.clear()

    def answer(self, seen: Seen) -> bytes:
        if seen.path == "/v1/health":
            return self.health_reply(seen)
        if seen.path == "/v1/daemon":
            self.asked["smap"] += 1
            return self.map_reply()
        if "pid" in seen.query:
            return self.target(seen)
        known = self.known if self.starting is None else self.starting
        if seen.path.startswith("/v1/buckets/") and self.starting is not None:
            return reply(503)
        if seen.path.startswith("/v1/objects/") and not known:
            status = 500 if seen.method == "HEAD" else 400
            headers, body = error(status, "ErrNoNodes", "no storage targets in the cluster")
            return reply(status, headers, b"" if seen.method == "HEAD" else body)
        return super().answer(seen)

    def health_reply(self, seen: Seen) -> bytes:
        self.asked["health"] += 1
        assert "authorization" not in seen.headers
        if self.starting is not None:
            assert seen.query == {"prr": ["true"]}
            self.not_ready -= 1
            if self.not_ready >= 0:
                return reply(503, *error(503, "", "not ready yet (cluster is starting up)"))
            self.known = self.heal or self.known
            self.starting = None
        uptime = str(time.monotonic_ns() - self.since_ns)
        return reply(self.health, {"Ais-Node-Uptime": uptime})

    def map_reply(self) -> bytes:
        if self.map_status != 200:
            return reply(self.map_status, *error(self.map_status, "", "insufficient permissions"))
        known = self.known if self.starting is None else self.starting
        nodes = {name: {"flags": 4 if name in self.leaving else 0} for name in known}
        version = str(self.map_version)
        text = json.dumps({"uuid": self.uuid, "version": version, "tmap": nodes, "pmap": {}})
        return reply(200, {"Content-Type": "application/json"}, text.encode())

    def target(self, seen: Seen) -> bytes:
        known = self.known if self.starting is None else self.starting
        key = seen.path.removeprefix("/v1/objects/b/")
        target = self.targets["t2" if "t2" in known else known[0]]
        if seen.method == "PUT":
            target[key] = seen.body
            return reply(200, {"Ais-Version": "2"})
        if seen.method == "DELETE":
            if target.pop(key, None) is None:
                return reply(404, *error(404, "", f"ais://b/{key} doesn't exist"))
            return reply(200)
        self.objects = target
        return self.object(seen, key)

    def listing(self, seen: Seen) -> bytes:
        self.listed += 1
        self.objects = {}
        for name in self.known:
            self.objects |= self.targets[name]
        return super().listing(seen)


@pytest.fixture(autouse=True)
def quickly_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "MAP_SETTLES", 0.2)


async def read(store: CallPipeline, info: ObjectInfo) -> bytes:
    buffer = bytearray(info.size)
    await store.read_range(B, info, 0, memoryview(buffer))
    return bytes(buffer)


@for_each("known", [[], ["t1"], ["t1", "t3"]])
async def test_what_is_written_after_a_restart_is_read_back(known):
    cluster = Cluster()
    async with store_of(cluster) as store:
        await store.head(B, "k")
        cluster.restart(known)  # while the client is idle
        await store.upload(Upload(B, "k", BytesContent(b"new")))
        assert await read(store, await store.head(B, "k")) == b"new"
        assert cluster.targets == {"t1": {}, "t2": {"k": b"new"}, "t3": {}}


@for_each("known", [[], ["t1"]])
async def test_what_exists_exists_after_a_restart(known):
    cluster = Cluster()
    async with store_of(cluster) as store:
        info = await store.head(B, "k")
        cluster.restart(known)
        assert await store.head(B, "k") == info
        cluster.restart(known)
        assert await read(store, info) == b"old"
        cluster.restart(known)
        assert [found.key for found in (await store.list_page(B, "")).objects] == ["k"]


@for_each("known", [[], ["t1"]])
async def test_what_is_removed_after_a_restart_is_gone(known):
    cluster = Cluster()
    async with store_of(cluster) as store:
        await store.head(B, "k")
        cluster.restart(known)
        await store.remove(B, "k")
        assert cluster.targets["t2"] == {}


async def test_a_client_that_begins_during_a_restart_waits():
    cluster = Cluster()
    cluster.restart(["t1"])
    async with store_of(cluster) as store:
        assert (await store.head(B, "k")).size == 3


async def test_a_restart_that_does_not_end_is_a_timeout():
    cluster = Cluster()
    async with store_of(cluster, deadline=1.0) as store:
        await store.head(B, "k")
        cluster.restart(["t1"])
        cluster.not_ready = 1_000_000
        with pytest.raises(DeadlineExceeded, match="the cluster is starting"):
            await store.head(B, "k")
        with pytest.raises(DeadlineExceeded, match="the cluster is starting"):
            await store.upload(Upload(B, "k", BytesContent(b"new")))
        assert cluster.targets == {"t1": {}, "t2": {"k": b"old"}, "t3": {}}


@for_each("changed", ["targets", "just now"])
async def test_another_daemon_of_a_mount_knows_what_the_one_before_knew(changed):
    cluster = Cluster()
    noted: list[Any] = []
    async with connected(cluster, io_timeout=1.0) as (client, _):
        client.transport.readiness.note = noted.append
        await CallPipeline(client, deadline=1.0).head(B, "k")
    known = json.loads(json.dumps(noted[-1]))
    if changed == "targets":
        cluster.known = ["t1", "t3"]
    else:
        known[-1] = time.monotonic() + 60
    async with connected(cluster, io_timeout=1.0) as (client, _):
        store = CallPipeline(client, deadline=1.0)
        client.transport.readiness.go_on(known)
        expected = "misses 1 target" if changed == "targets" else "joined or left the cluster"
        with pytest.raises(DeadlineExceeded, match=expected):
            await store.head(B, "nothing")


async def test_nothing_is_written_before_all_targets_are_back():
    cluster = Cluster()
    async with store_of(cluster, deadline=1.0) as store:
        info = await store.head(B, "k")
        cluster.restart(["t1"], finally_known=["t1", "t3"])
        with pytest.raises(DeadlineExceeded, match=r"misses 1 target \(t2\)"):
            await store.upload(Upload(B, "k", BytesContent(b"new")))
        with pytest.raises(DeadlineExceeded, match=r"misses 1 target \(t2\)"):
            await store.remove(B, "k")
        with pytest.raises(DeadlineExceeded, match=r"misses 1 target \(t2\)"):
            await store.list_page(B, "")
        cluster.targets["t1"]["there"] = b"!"
        assert (await store.head(B, "there")).size == 1
        cluster.known = ["t1", "t2", "t3"]
        assert await read(store, info) == b"old"
        await store.upload(Upload(B, "k", BytesContent(b"new")))
        assert cluster.targets["t2"] == {"k": b"new"}


@pytest.mark.usefixtures("map_is_believed")
async def test_a_ready_cluster_is_asked_once():
    """But for its map: with the first connection, once the first listing was complete, and after each upload
    over whatever is there, since nothing else tells that it replaced the newest copy."""
    cluster = Cluster()
    async with store_of(cluster) as store:
        for _ in range(20):
            await store.upload(Upload(B, "k", BytesContent(b"new")))
            await read(store, await store.head(B, "k"))
        assert cluster.asked == {"health": 1, "smap": 2 + 20}
        assert (
            cluster.listed == 2
        )  # the copies of the name, and whether any target with something sends


@pytest.mark.usefixtures("map_is_believed")
async def test_connections_are_asked_about_one_by_one_but_the_map_once():
    cluster = Cluster()
    async with store_of(cluster) as store:
        await store.head(B, "k")
        asked = cluster.asked["smap"]
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(store.head, B, "k")
        assert 1 < cluster.asked["health"] <= 8
        assert cluster.asked["smap"] == asked


async def test_an_object_whose_target_is_gone_is_not_missing():
    cluster = Cluster()
    async with store_of(cluster, deadline=1.0) as store:
        info = await store.head(B, "k")
        cluster.known, cluster.map_version = ["t1", "t3"], 8
        with pytest.raises(DeadlineExceeded, match=r"misses 1 target \(t2\)"):
            await store.head(B, "k")
        with pytest.raises(DeadlineExceeded, match=r"misses 1 target \(t2\)"):
            await read(store, info)
        cluster.known, cluster.map_version = ["t1", "t2", "t3"], 9
        await trio.sleep(0.3)  # what has just failed is not asked again at once
        assert await read(store, info) == b"old"
        with pytest.raises(NotFound):
            await store.head(B, "nothing")


async def test_a_listing_without_the_objects_of_a_target_is_an_error():
    cluster = Cluster()
    async with store_of(cluster, deadline=1.0) as store:
        assert len((await store.list_page(B, "")).objects) == 1
        cluster.known, cluster.map_version = ["t1", "t3"], 8
        with pytest.raises(DeadlineExceeded, match="misses 1 target"):
            await store.list_page(B, "")
        with pytest.raises(DeadlineExceeded, match="misses 1 target"):
            await store.first_keys(B, "", 1)


async def test_a_listing_waits_for_a_target_that_does_not_answer():
    cluster, left = Cluster(), [2]

    def dead(seen: Seen, connection: socket.socket) -> bool | None:
        if seen.path != "/v1/buckets/b" or seen.method != "GET" or not left[0]:
            return None
        left[0] -= 1
        said = "p[p1]: failed to call t[t2] list[x], err: dial tcp: connect: connection refused"
        connection.sendall(reply(400, *error(400, "ErrFailedTo", said)))
        return True

    cluster.before = dead
    async with store_of(cluster) as store:
        assert len((await store.list_page(B, "")).objects) == 1


async def test_a_listing_during_which_the_map_changed_is_asked_for_again():
    cluster = Cluster()
    async with store_of(cluster) as store:
        await store.list_page(B, "")
        hidden, cluster.targets["t2"] = cluster.targets["t2"], {}

        def back_again(seen: Seen, connection: socket.socket) -> None:
            if seen.path == "/v1/daemon":
                cluster.targets["t2"] = hidden

        cluster.before, cluster.map_version = back_again, 9  # it left, came, and nobody looked
        assert [found.key for found in (await store.list_page(B, "")).objects] == ["k"]


async def test_a_change_of_the_map_that_another_request_saw_first_counts_as_well():
    cluster, began, gone_on = Cluster(), trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def without_a_target_once(seen: Seen, connection: socket.socket) -> bool | None:
        if seen.path != "/v1/buckets/b" or seen.method != "GET" or began.is_set():
            return None
        targets, cluster.targets = cluster.targets, {**cluster.targets, "t2": {}}
        page = cluster.answer(seen)
        cluster.targets, cluster.map_version = targets, 9  # the target was away, and is back
        trio.from_thread.run_sync(began.set, trio_token=token)
        trio.from_thread.run(gone_on.wait, trio_token=token)
        connection.sendall(page)
        return True

    async with store_of(cluster) as store, trio.open_nursery() as nursery:
        await store.head(B, "k")
        cluster.before, found = without_a_target_once, []

        async def listed() -> None:
            found.extend((await store.list_page(B, "")).objects)

        nursery.start_soon(listed)
        await began.wait()
        with pytest.raises(NotFound):
            await store.head(B, "missing")
        gone_on.set()
    assert [info.key for info in found] == ["k"]


async def test_a_target_that_was_taken_out_on_purpose_is_not_missed():
    cluster = Cluster()
    async with store_of(cluster) as store:
        await store.head(B, "k")
        cluster.leaving, cluster.map_version = ["t3"], 8
        await store.list_page(B, "")
        cluster.known, cluster.map_version = ["t1", "t2"], 9
        await store.list_page(B, "")
        with pytest.raises(NotFound):
            await store.head(B, "nothing")


async def test_another_cluster_at_the_same_endpoint_misses_nothing():
    cluster = Cluster()
    async with store_of(cluster) as store:
        await store.head(B, "k")
        cluster.restart([], finally_known=["n1"])
        cluster.uuid, cluster.targets = "new", {"n1": {"k": b"newer"}}
        assert (await store.head(B, "k")).size == 5


@for_each("status", [401, 403, 404])
async def test_a_map_that_may_not_be_seen_is_not_needed(status):
    cluster = Cluster()
    cluster.map_status = status
    async with store_of(cluster) as store:
        await store.head(B, "k")
        with pytest.raises(NotFound):
            await store.head(B, "nothing")
        cluster.restart(["t1"])
        await store.upload(Upload(B, "k", BytesContent(b"new")))
        assert cluster.targets["t2"] == {"k": b"new"}


@for_each("status", [400, 403, 404])
async def test_a_proxy_that_does_not_tell_its_health_is_judged_by_its_map(status):
    cluster = Cluster()
    cluster.health, cluster.map_status = status, 200
    async with store_of(cluster, deadline=1.0) as store:
        assert (await store.head(B, "k")).size == 3
        cluster.known = ["t1", "t3"]
        cluster.cut()
        with pytest.raises(DeadlineExceeded, match="misses 1 target"):
            await store.upload(Upload(B, "k", BytesContent(b"new")))


async def test_the_map_is_asked_for_with_the_token():
    cluster = Cluster()

    def only_with_token(seen: Seen, connection: socket.socket) -> bool | None:
        if seen.path == "/v1/daemon" and seen.headers.get("authorization") != "Bearer secret":
            connection.sendall(reply(401, *error(401, "", "token required")))
            return True
        return None

    cluster.before = only_with_token
    async with store_of(cluster, deadline=1.0, token="secret") as store:
        await store.head(B, "k")
        cluster.known = []
        with pytest.raises(DeadlineExceeded, match="misses 3 targets"):
            await store.list_page(B, "")


async def test_what_was_written_while_another_request_saw_a_restart_is_looked_at_again():
    """Behind a balancer the connection to it stays while a proxy goes."""
    cluster, began, gone_on = Cluster(), trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def misplace_once(seen: Seen, connection: socket.socket) -> bool | None:
        if seen.method == "PUT" and "pid" in seen.query and not began.is_set():
            trio.from_thread.run_sync(began.set, trio_token=token)
            trio.from_thread.run(gone_on.wait, trio_token=token)
            cluster.targets["t1"]["k"] = seen.body
            connection.sendall(reply(200, {"Ais-Version": "1"}))
            return True
        if seen.path.endswith("/other") and not gone_on.is_set():
            connection.sendall(reply(502, {}, b"<html>Bad Gateway</html>"))
            return True
        return None

    cluster.before = misplace_once
    async with store_of(cluster) as store, trio.open_nursery() as nursery:
        nursery.start_soon(store.upload, Upload(B, "k", BytesContent(b"new")))
        await began.wait()
        cluster.targets["t2"]["other"] = b"!"

        async def other() -> None:
            with suppress(AisfsError):
                await store.head(B, "other")

        nursery.start_soon(other)
        await trio.sleep(0.3)  # the other request was answered; it tries again
        gone_on.set()
    assert cluster.targets["t2"]["k"] == b"new"


async def test_a_server_that_closes_after_each_reply_is_asked_on_connections_of_their_own():
    cluster = Cluster()

    def close(seen: Seen, connection: socket.socket) -> bool:
        answer = cluster.answer(seen)
        connection.sendall(answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        return False

    cluster.before = close
    async with store_of(cluster) as store:
        assert (await store.head(B, "k")).size == 3
        cluster.restart(["t1"])
        assert (await store.head(B, "k")).size == 3


@for_each("method, status", [("HEAD", 400), ("GET", 500), ("DELETE", 400)])
async def test_an_object_that_the_cluster_cannot_read_is_said_to_be_damaged(method, status):
    cluster = Cluster()

    def damaged(seen: Seen, connection: socket.socket) -> bool | None:
        if seen.method != method or "pid" not in seen.query:
            return None
        headers, body = error(status, "ErrLmetaCorrupted", "errsize (4096 != 10240)")
        connection.sendall(reply(status, headers, b"" if method == "HEAD" else body))
        return True

    cluster.before = damaged
    async with store_of(cluster) as store:
        calls = {
            "HEAD": partial(store.head, B, "k"),
            "GET": partial(read, store, ObjectInfo("k", 3)),
            "DELETE": partial(store.remove, B, "k"),
        }
        with pytest.raises(ProtocolError, match=r"PUT anything over it .* then remove it"):
            await calls[method]()


async def test_buckets_elsewhere_do_not_depend_on_the_targets_here():
    assert Bucket("b").is_local
    assert Bucket("b", namespace="#n").is_local
    assert Bucket("b", namespace="@#n").is_local
    assert not Bucket("b", namespace="@far#").is_local
    assert not Bucket("b", Provider.AWS).is_local
