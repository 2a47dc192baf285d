"""Buckets of clouds and other clusters: AIStore keeps copies, and does not look again by itself."""

import json
import socket

import pytest

from aisfs.errors import Stale, Unavailable
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.stores.ais.client import AISClient
from tests.stores.ais.scripted_server import (
    MiniCluster,
    Seen,
    connected,
    error,
    reply,
)
from tests.support.for_each import for_each

FAR = Bucket("b", namespace="@far#")
CLOUD = Bucket("b", Provider.AWS)
NEW = b"new bytes"


class Copies(MiniCluster):
    """AIStore with copies of the objects of the cluster `far`, of which `k` was changed there."""

    def __init__(self) -> None:
        super().__init__({"k": b"old", "a/b-2/k": b"old"})
        self.originals = {"k": NEW, "a/b-2/k": NEW}

    def answer(self, seen: Seen) -> bytes:
        if "object_to" in seen.query and "pid" in seen.query:
            return self.copy(seen)
        if seen.query.get("latest-ver") == ["true"] and "pid" in seen.query:
            if seen.method == "GET":
                self.objects, self.version = dict(self.originals), "2"
            else:
                assert seen.query["namespace"] == ["@far#"]  # else it panics the server
                if self.objects.get("k") != NEW:
                    return reply(
                        409, *error(409, "ErrRemoteMetadataMismatch", "size 3 != 9 remote")
                    )
        return super().answer(seen)

    def listing(self, seen: Seen) -> bytes:
        asked = json.loads(seen.body)["value"]
        assert asked["flags"] == "1024"
        assert asked["pagesize"] == 1
        checksum = f"{sum(NEW):x}"
        key = next(key for key in self.originals if key.startswith(asked["prefix"]))
        entry = {"name": key, "size": str(len(NEW)), "version": "2", "checksum": checksum}
        body = json.dumps({"uuid": "u", "continuation_token": key, "entries": [entry]}).encode()
        return reply(200, {"Content-Type": "application/json; charset=utf-8"}, body)

    def copy(self, seen: Seen) -> bytes:
        place = seen.query["object_to"][0]
        if not place.startswith("ais/@Uu1d#/b/"):
            return reply(404, *error(404, "ErrRemoteBckNotFound", f"{place} does not exist"))
        self.objects[place.removeprefix("ais/@Uu1d#/b/")] = self.objects["k"]
        return reply(200)


def attached(seen: Seen, connection: socket.socket) -> bool | None:
    if seen.path == "/v1/cluster":
        assert seen.query == {"what": ["remote"]}
        text = json.dumps({"a": [{"alias": "far", "uuid": "Uu1d", "url": "http://far"}], "ver": 1})
        connection.sendall(reply(200, body=text.encode()))
        return True
    if seen.path == "/v1/buckets":
        space = seen.query.get("namespace", [""])[0]
        found = [{"name": "near"}, {"name": "b", "namespace": {"uuid": "Uu1d", "name": ""}}]
        if space:
            found = [{"name": name, "namespace": {"uuid": "far", "name": ""}} for name in "bc"]
        connection.sendall(reply(200, body=json.dumps(found).encode()))
        return True
    return None


async def read(client: AISClient, bucket: Bucket, info: ObjectInfo) -> bytes:
    buffer = bytearray(info.size)
    await client.read_range(bucket, info, 0, memoryview(buffer))
    return bytes(buffer)


def looked(server) -> int:
    return sum(
        "latest-ver" in seen.query and "pid" in seen.query and seen.method == "GET"
        for seen in server.seen
    )


@for_each("bucket", [FAR, CLOUD])
async def test_what_was_listed_and_is_not_what_aistore_has_is_fetched_anew(bucket):
    async with connected(Copies()) as (client, server):
        assert await read(client, bucket, ObjectInfo("k", len(NEW), version="2")) == NEW
        assert looked(server) == 1

    pieces: list[bytes] = []
    async with connected(Copies()) as (client, server):
        listed = ObjectInfo("k", len(NEW), version="2")
        await client.stream(bucket, listed, lambda piece: pieces.append(bytes(piece)))
        assert b"".join(pieces) == NEW


async def test_a_mixture_that_a_listing_shows_is_stale_once():
    """The listing has the new version with the old size and checksum."""
    async with connected(Copies()) as (client, server):
        with pytest.raises(Stale):
            await read(client, FAR, ObjectInfo("k", 3, version="2"))
        assert looked(server) == 1
        assert await read(client, FAR, await client.head(FAR, "k")) == NEW


@for_each("key", ["k", "a/b-2/k"])
async def test_what_is_looked_up_in_another_cluster_is_the_original(key):
    async with connected(Copies()) as (client, server):
        found = await client.head(FAR, key)
        assert (found.size, found.version) == (len(NEW), "2")
        assert looked(server) == 0  # the copy is renewed when it is read
        assert await read(client, FAR, found) == NEW
        assert looked(server) == 1
        assert await client.head(FAR, key) == found


async def test_no_range_of_a_copy_is_taken_for_the_original():
    """The original's version would say nothing about bytes of the copy."""
    async with connected(Copies()) as (client, _):
        found = await client.head(FAR, "k")
        wanted = [(found, 0, memoryview(bytearray(2)))]
        assert await client.read_ranges(FAR, wanted) == [False]


async def test_nothing_is_asked_again_of_a_bucket_of_this_cluster():
    async with connected(Copies(), latest=True) as (client, server):
        with pytest.raises(Stale):
            await read(client, Bucket("b"), ObjectInfo("k", 3, version="2"))
        assert looked(server) == 0


async def test_latest_looks_at_the_original_of_what_is_first_read():
    async with connected(Copies(), latest=True) as (client, server):
        before = await client.head(CLOUD, "k")
        with pytest.raises(Stale):  # instead of the old bytes
            await read(client, CLOUD, before)
        now = await client.head(CLOUD, "k")
        for _ in range(3):
            assert await read(client, CLOUD, now) == NEW
        assert looked(server) == 2  # once for each version
        assert await client.read_many(CLOUD, [(now, memoryview(bytearray(now.size)))]) == [False]


async def test_a_look_at_the_original_that_failed_is_no_look():
    cluster, failed = Copies(), []

    def fails_once(seen: Seen, connection: socket.socket) -> bool | None:
        if "latest-ver" not in seen.query or failed:
            return None
        failed.append(seen)
        connection.sendall(reply(503, {}, b""))
        return True

    cluster.before = fails_once
    async with connected(cluster, latest=True) as (client, _):
        before = await client.head(CLOUD, "k")
        with pytest.raises(Unavailable):
            await read(client, CLOUD, before)
        with pytest.raises(Stale):  # instead of the old bytes
            await read(client, CLOUD, before)


async def test_a_rename_names_the_other_cluster_by_its_uuid():
    cluster = Copies()
    cluster.before = attached
    async with connected(cluster) as (client, server):
        info = await client.rename(FAR, "k", "new")
        assert info.key == "new"
        assert sum(seen.path == "/v1/cluster" for seen in server.seen) == 1
        assert not [seen for seen in server.seen if seen.body == b"old"]  # not through here


async def test_buckets_of_attached_clusters_are_listed():
    cluster = Copies()
    cluster.before = attached
    async with connected(cluster) as (client, _):
        expected = [Bucket("b", namespace="@far#"), Bucket("c", namespace="@far#"), Bucket("near")]
        assert await client.list_buckets() == expected


async def test_an_attached_cluster_that_does_not_answer_hides_nothing_that_was_shown(caplog):
    cluster, is_away = Copies(), [True]
    said = "remote-cluster[far]: dial tcp 127.0.0.1:1: connect: connection refused"

    def away(seen: Seen, connection: socket.socket) -> bool | None:
        if "namespace" not in seen.query or not is_away[0]:
            return attached(seen, connection)
        connection.sendall(reply(400, *error(400, "OpError", said)))
        return True

    cluster.before = away
    async with connected(cluster) as (client, _):
        assert await client.list_buckets() == [Bucket("near")]
        assert "buckets of the attached cluster far are unknown" in caplog.text
        with pytest.raises(Unavailable, match="the cluster that has this is not there"):
            await read(client, FAR, ObjectInfo("k", 3, version="1"))
        is_away[0] = False
        known = await client.list_buckets()
        assert len(known) == 3
        is_away[0] = True
        assert await client.list_buckets() == known


@for_each("status", [400, 403])
async def test_a_token_that_may_not_see_the_attached_clusters_sees_those_here(status):
    cluster = Copies()

    def refuse(seen: Seen, connection: socket.socket) -> bool | None:
        if seen.path != "/v1/cluster":
            return attached(seen, connection)
        connection.sendall(reply(status, *error(status, "", "no")))
        return True

    cluster.before = refuse
    async with connected(cluster) as (client, _):
        known = [Bucket("b", namespace="@Uu1d#"), Bucket("near")]  # it is in use
        assert await client.list_buckets() == known
