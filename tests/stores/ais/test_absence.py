"""What a cluster says while it moves objects between its targets: nothing is missing, listed short, or older."""

import json
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from aisfs.errors import DeadlineExceeded, NotFound, Stale, Unavailable, Unproven
from aisfs.http.exchange import Reply
from aisfs.model import Bucket, ObjectInfo
from aisfs.settings import ClusterSettings
from aisfs.stores.ais import absence, readiness
from aisfs.stores.ais.client import AISClient
from aisfs.stores.ais.replies import parse_copies
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
from tests.support.servers import running_server

B = Bucket("b")
NEW = BytesContent(b"new")
Call = Callable[[AISClient], Awaitable[object]]
CHANGES: dict[str, Call] = {
    "upload": lambda client: client.upload(Upload(B, "k", NEW)),
    "remove": lambda client: client.remove(B, "k"),
    "copy": lambda client: client.copy(B, "d/x", B, "k"),
    "custom": lambda client: client.set_custom(B, ObjectInfo("k", 5, "3"), {"a": "b"}),
}
OLD_AT_OWNER = [("3", 0), ("5", 1)]


class Moving(MiniCluster):
    """A cluster that may hide objects as a rebalance does."""

    def __init__(self) -> None:
        super().__init__({"k": b"12345", "d/x": b"1"})
        self.not_by_head: set[str] = set()
        self.not_by_get: set[str] = set()
        self.unlisted: set[str] = set()
        self.flags = 0
        self.copies: dict[str, list[tuple[str, int]]] = {}
        """Version and flags of each copy, where there is not one that is where it belongs."""
        self.listing_status = 200
        self.map_version = 7
        self.map_status = 200
        self.targets = ["t1", "t2"]
        self.has_no_map = 0
        """Requests that are still answered by a target without a map."""
        self.asked: list[str] = []

    def move(self) -> None:
        """Begin to move: a target joined or left, and listings are flagged."""
        self.flags, self.map_version = 1, self.map_version + 1

    def calm(self) -> None:
        self.not_by_head, self.not_by_get, self.unlisted, self.flags = set(), set(), set(), 0

    def answer(self, seen: Seen) -> bytes:
        seen = replace(
            seen, target=seen.target.replace("s/other", "s/b")
        )  # another bucket, with the same
        if seen.path == "/v1/daemon":
            self.asked.append("map")
            nodes = {name: {"flags": 0} for name in self.targets}
            text = json.dumps({"uuid": "u", "version": str(self.map_version), "tmap": nodes})
            return reply(self.map_status, {"Content-Type": "application/json"}, text.encode())
        if seen.path == "/v1/buckets/b" and b'"flags": "2"' in seen.body:
            self.asked.append("copies")
        elif "pid" in seen.query or seen.path == "/v1/buckets/b":
            self.asked.append(seen.method)
        if self.has_no_map and seen.path.startswith("/v1/objects/"):
            self.has_no_map -= 1
            headers, body = error(400, "", "t[t2]: cannot handle bucket request: Smap v0")
            return reply(400, headers, b"" if seen.method == "HEAD" else body)
        return super().answer(seen)

    def object(self, seen: Seen, key: str) -> bytes:
        hidden = self.not_by_get if seen.method == "GET" else self.not_by_head
        if seen.method == "DELETE" and key in self.objects and key not in hidden:
            del self.objects[key]
            return reply(200)
        if seen.method == "PUT":
            self.objects[key] = seen.body
            return reply(200, {"Ais-Version": "2"})
        whole, self.objects = (
            self.objects,
            {k: v for k, v in self.objects.items() if k not in hidden},
        )
        try:
            return super().object(seen, key)
        finally:
            self.objects = whole

    def listing(self, seen: Seen) -> bytes:
        if self.listing_status != 200:
            return reply(self.listing_status, *error(self.listing_status, "", "no listing"))
        prefix = json.loads(seen.body)["value"]["prefix"]
        names = [k for k in self.objects if k.startswith(prefix) and k not in self.unlisted]
        entries = [
            {"name": name, "size": str(len(self.objects[name])), "version": version, "flags": flags}
            for name in names
            for version, flags in self.copies.get(name, [("1", 0)])
        ]
        flags = self.flags if entries else 0  # those of targets that have something in it
        page = {"uuid": "u", "continuation_token": "", "entries": entries, "flags": flags}
        kind = {"Content-Type": "application/json; charset=utf-8"}
        return reply(200, kind, json.dumps(page).encode())


@asynccontextmanager
async def client_of(cluster: Moving) -> AsyncIterator[AISClient]:
    """Each request is sent once."""
    async with connected(cluster) as (client, _):
        yield client


@pytest.fixture(autouse=True)
def quickly_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "MAP_SETTLES", 0.5)


async def test_what_head_does_not_find_is_described_by_get():
    cluster = Moving()
    async with store_of(cluster) as store:
        known = await store.head(B, "k")
        cluster.move()
        cluster.not_by_head, cluster.unlisted = {"k"}, {"k"}
        assert await store.head(B, "k") == known


async def test_an_empty_object_that_head_does_not_find_is_there():
    cluster = Moving()
    cluster.objects["k"] = b""
    async with store_of(cluster) as store:
        cluster.move()
        cluster.not_by_head = {"k"}
        assert (await store.head(B, "k")).size == 0


async def test_what_neither_finds_is_waited_for_while_listings_are_flagged():
    cluster = Moving()
    cluster.flags, cluster.not_by_head, cluster.not_by_get = 1, {"k"}, {"k"}
    left = [3]

    def end_soon(seen: Seen, connection: socket.socket) -> None:
        left[0] -= seen.method == "HEAD" and "pid" in seen.query
        if not left[0]:
            cluster.calm()

    async with store_of(cluster) as store:
        cluster.before = end_soon
        assert (await store.head(B, "k")).size == 5


@for_each("key", ["k", "nothing"])
async def test_what_cannot_be_told_before_the_deadline_is_not_missing(key):
    cluster = Moving()
    cluster.flags, cluster.not_by_head, cluster.not_by_get = 1, {"k"}, {"k"}
    async with store_of(cluster, deadline=1.0) as store:
        with pytest.raises(DeadlineExceeded, match="the cluster is moving objects"):
            await store.head(B, key)


async def test_what_is_missing_is_missing():
    cluster = Moving()
    async with store_of(cluster) as store:
        with pytest.raises(NotFound):
            await store.head(B, "nothing")
        # From then on nothing moves as long as the map is the same: the word of HEAD is enough.
        cluster.asked.clear()
        with pytest.raises(NotFound):
            await store.head(B, "nothing")
        assert cluster.asked == ["HEAD", "map"]


async def test_a_complete_listing_saves_the_proof_of_single_names():
    cluster = Moving()
    async with store_of(cluster) as store:
        await store.list_page(B, "")
        cluster.asked.clear()
        with pytest.raises(NotFound):
            await store.head(B, "nothing")
        assert cluster.asked == ["HEAD", "map"]


@for_each("targets", [["t1", "t2", "t3"], ["t1"]])
async def test_nothing_is_missing_right_after_a_target_joined(targets):
    cluster = Moving()
    cluster.targets = targets
    async with store_of(cluster) as store:
        await store.list_page(B, "")
        cluster.targets, cluster.map_version = [*targets, "t9"], 8
        cluster.not_by_head, cluster.not_by_get = {"k"}, {"k"}
        left = [2]

        def has_joined(seen: Seen, connection: socket.socket) -> None:
            left[0] -= seen.method == "HEAD" and "pid" in seen.query
            if not left[0]:
                cluster.calm()

        cluster.before = has_joined
        assert (await store.head(B, "k")).size == 5


async def test_without_the_right_to_see_the_map_both_are_always_asked():
    cluster = Moving()
    cluster.map_status = 403
    async with store_of(cluster) as store:
        await store.list_page(B, "")
        cluster.not_by_head = {"k"}
        assert (await store.head(B, "k")).size == 5
        with pytest.raises(NotFound):
            await store.head(B, "nothing")


async def test_an_object_that_delete_does_not_find_is_not_removed():
    cluster = Moving()
    async with store_of(cluster, deadline=1.0) as store:
        cluster.move()
        cluster.not_by_head = {"k"}
        with pytest.raises(DeadlineExceeded, match="moving it"):
            await store.remove(B, "k")
        cluster.calm()
        await store.remove(B, "k")
        assert "k" not in cluster.objects
        with pytest.raises(NotFound):
            await store.remove(B, "k")


async def test_bytes_that_are_on_their_way_are_waited_for():
    cluster = Moving()
    async with store_of(cluster) as store:
        info, left, buffer = await store.head(B, "k"), [3], bytearray(5)
        cluster.move()
        cluster.not_by_get = {"k"}

        def end_soon(seen: Seen, connection: socket.socket) -> None:
            left[0] -= seen.method == "GET" and "pid" in seen.query
            if not left[0]:
                cluster.calm()

        cluster.before = end_soon
        await store.read_range(B, info, 0, memoryview(buffer))
        assert buffer == b"12345"


async def test_a_flagged_listing_is_asked_for_until_it_is_complete():
    cluster = Moving()
    cluster.flags, cluster.unlisted, left = 1, {"k"}, [3]

    def end_soon(seen: Seen, connection: socket.socket) -> None:
        left[0] -= seen.path == "/v1/buckets/b" and seen.method == "GET"
        if not left[0]:
            cluster.calm()

    cluster.before = end_soon
    async with store_of(cluster) as store:
        assert "k" in [info.key for info in (await store.list_page(B, "")).objects]


async def test_a_listing_that_stays_flagged_is_an_error_even_if_it_has_all_names():
    cluster = Moving()
    cluster.flags = 1
    async with store_of(cluster, deadline=1.0) as store:
        with pytest.raises(DeadlineExceeded, match="not complete"):
            await store.list_page(B, "")


async def test_a_look_at_the_first_page_does_not_wait():
    cluster = Moving()
    cluster.flags, cluster.unlisted = 1, {"k"}
    async with store_of(cluster) as store:
        page = await store.peek_page(B, "")
        assert (page.complete, [info.key for info in page.objects]) == (False, ["d/x"])


async def test_a_directory_is_not_empty_by_a_flagged_listing():
    cluster = Moving()
    cluster.flags, cluster.unlisted = 1, {"d/x"}
    async with store_of(cluster, deadline=1.0) as store:
        with pytest.raises(DeadlineExceeded, match="not complete"):
            await store.first_keys(B, "d/", 1)
        cluster.unlisted = set()
        await trio.sleep(0.3)  # what has just failed is not asked again at once
        assert (await store.first_keys(B, "d/", 1)).found == [
            "d/x"
        ]  # that is there, flagged or not


async def test_an_empty_listing_is_never_flagged_and_proves_nothing():
    cluster = Moving()
    cluster.flags, cluster.unlisted, cluster.not_by_head = 1, {"d/x"}, {"d/x"}
    async with store_of(cluster, deadline=1.0) as store:
        for ask in (
            lambda: store.list_page(B, "d/"),
            lambda: store.first_keys(B, "d/", 1),
            lambda: store.head(B, "d/nothing"),
        ):
            with pytest.raises(DeadlineExceeded, match=r"not complete|moving objects"):
                await ask()
        assert (await store.head(B, "d/x")).size == 1
        cluster.calm()
        await trio.sleep(0.3)  # what has just failed is not asked again at once
        assert (await store.first_keys(B, "d/", 1)).found == ["d/x"]


async def test_a_target_without_a_map_is_asked_again():
    cluster = Moving()
    cluster.has_no_map = 2
    async with store_of(cluster) as store:
        assert (await store.head(B, "k")).size == 5


# The copy of a target that has come back


@for_each("change", CHANGES.values())
async def test_nothing_is_changed_over_a_newer_copy(change: Call):
    cluster = Moving()
    cluster.copies["k"] = OLD_AT_OWNER
    cluster.move()
    async with client_of(cluster) as client:
        with pytest.raises(Unproven, match="k: the cluster is moving a newer version of it"):
            await change(client)
    assert set(cluster.asked) <= {"GET", "HEAD", "map", "copies"}


async def test_an_old_copy_is_not_described():
    cluster = Moving()
    cluster.copies["k"] = OLD_AT_OWNER
    cluster.move()
    async with client_of(cluster) as client:
        with pytest.raises(Unproven, match="newer version"):
            await client.head(B, "k")
        cluster.copies["k"] = [("5", 0)]
        assert (await client.head(B, "k")).size == 5


@for_each("elsewhere", ["5", "3", "", "x"])
async def test_other_copies_that_are_not_newer_do_not_matter(elsewhere: str):
    cluster = Moving()
    cluster.copies["k"] = [("5", 0), (elsewhere, 1)]
    cluster.move()
    async with client_of(cluster) as client:
        assert (await client.head(B, "k")).size == 5
        await client.upload(Upload(B, "k", NEW))
        assert cluster.objects["k"] == b"new"
        await client.remove(B, "k")
        assert "k" not in cluster.objects


async def test_what_its_owner_lacks_is_read_elsewhere_and_not_written_over():
    cluster = Moving()
    cluster.copies["k"], cluster.not_by_head = [("5", 1)], {"k"}
    cluster.move()
    async with client_of(cluster) as client:
        with pytest.raises(Unproven, match="newer version"):
            await client.upload(Upload(B, "k", NEW))
        cluster.calm()
    async with store_of(cluster) as store:
        cluster.not_by_head, cluster.flags = {"k"}, 1
        assert (await store.head(B, "k")).size == 5


@for_each("change", [CHANGES["upload"], CHANGES["remove"]])
async def test_right_after_a_target_came_only_reads_go_on(change: Call):
    """Its copies may not be known to the listing yet."""
    cluster = Moving()
    async with client_of(cluster) as client:
        await client.head(B, "k")
        cluster.map_version += 1
        await trio.sleep(absence.WRITE_AGE)
        with pytest.raises(Unproven, match=r"targets joined or left|map changed"):
            await change(client)
        assert (await client.head(B, "k")).size == 5


async def test_an_old_copy_of_what_was_read_is_no_change_of_it():
    cluster = Moving()
    cluster.version = "5"
    async with client_of(cluster) as client:
        info, buffer = await client.head(B, "k"), memoryview(bytearray(5))
        cluster.move()
        cluster.objects["k"], cluster.version, cluster.copies["k"] = b"old", "3", OLD_AT_OWNER
        with pytest.raises(Unproven, match="newer version"):
            await client.read_range(B, info, 0, buffer)
        cluster.objects["k"], cluster.version, cluster.copies["k"] = b"newer", "6", [("6", 0)]
        with pytest.raises(Stale):
            await client.read_range(B, info, 0, buffer)


# What is under way while targets join or leave


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_change_during_which_targets_join_is_not_done(
    change: Call, monkeypatch: pytest.MonkeyPatch
):
    """It may have been made at a target that has sent on its objects already."""
    monkeypatch.setattr(absence, "WRITE_AGE", 0.0)
    cluster = Moving()

    def join(seen: Seen, connection: socket.socket) -> None:
        if "pid" in seen.query and seen.method in ("PUT", "DELETE", "PATCH"):
            cluster.map_version += 1

    async with client_of(cluster) as client:
        await client.head(B, "k")
        cluster.before = join
        with pytest.raises(Unproven, match="targets joined or left the cluster meanwhile"):
            await change(client)


async def test_what_was_written_over_an_older_version_is_not_done():
    """Even if the map does not show it: the version of what was written does."""
    cluster = Moving()  # which calls whatever is written version 2
    async with client_of(cluster) as client:
        await client.upload(Upload(B, "k", NEW, replaces=await client.head(B, "k")))
        cluster.version = "2"
        newest = await client.head(B, "k")
        with pytest.raises(Unproven, match="k: written over an older copy"):
            await client.upload(Upload(B, "k", NEW, replaces=newest))


class Interrupted:
    """A content; something happens when it is first read, which is after what is there was looked at."""

    def __init__(self, data: bytes, act: Callable[[], object]) -> None:
        self._content, self._act, self.size = BytesContent(data), act, len(data)

    def read_into(self, start: int, buffer: memoryview) -> None:
        act, self._act = self._act, lambda: None
        act()
        self._content.read_into(start, buffer)

    def __str__(self) -> str:
        return "interrupted"


@pytest.mark.parametrize("cause", ["maintenance", "return"])
@pytest.mark.parametrize("expects", [True, False], ids=["one version", "any"])
async def test_what_is_written_right_after_targets_left_or_came_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str, expects: bool
):
    """The map is still believed, and a target is written to that does not have the newest copy."""
    monkeypatch.setattr(absence, "WRITE_AGE", 60.0)
    (tmp_path / "b").mkdir()
    with running_server(tmp_path, traps=True) as server:
        client = AISClient(ClusterSettings(endpoint=server.endpoint, io_timeout=30))
        store = CallPipeline(client, deadline=30, rng=random.Random(1))
        info = await store.upload(Upload(B, "k", BytesContent(b"0")))
        if cause == "return":
            await trio.to_thread.run_sync(server.take_away)
            await trio.sleep(1)
        for data in (b"1", b"2", b"3"):
            info = await store.upload(Upload(B, "k", BytesContent(data)))

        def move() -> None:
            server.move(cause=cause, share=1.0, moving=3.0, incomplete=0.2)

        await store.upload(
            Upload(B, "k", Interrupted(b"4", move), replaces=info if expects else None)
        )
        await trio.to_thread.run_sync(server.moved)
        got = bytearray(1)
        await store.read_range(B, await store.head(B, "k"), 0, memoryview(got))
        await store.aclose()
        assert got == b"4"


async def use(client: AISClient) -> None:
    for _ in range(5):
        await client.head(B, "k")
        await client.upload(Upload(B, "k", NEW))
        await client.remove(B, "k")
        await client.upload(Upload(B, "k", NEW))


@pytest.mark.usefixtures("map_is_believed")
async def test_a_calm_cluster_lists_copies_once():
    cluster = Moving()
    async with client_of(cluster) as client:
        await use(client)
        # The map at the beginning, for the first listing, and after each upload over whatever is there.
        assert (cluster.asked.count("copies"), cluster.asked.count("map")) == (2, 2 + 10)


@pytest.mark.usefixtures("map_is_believed")
async def test_what_a_listing_of_one_bucket_proves_holds_for_no_other():
    """A target that has nothing of this bucket may be sending that one's objects."""
    cluster = Moving()
    async with client_of(cluster) as client:
        await use(client)
        asked = cluster.asked.count("copies")
        await client.head(B, "k")
        assert cluster.asked.count("copies") == asked
        await client.head(Bucket("other"), "k")
        assert cluster.asked.count("copies") > asked


async def test_a_cluster_that_gives_no_map_lists_copies_for_changes_only():
    cluster = Moving()
    cluster.map_status = 403
    async with client_of(cluster) as client:
        for _ in range(5):
            await client.head(B, "k")
        assert "copies" not in cluster.asked
        cluster.copies["k"], cluster.flags = OLD_AT_OWNER, 1
        with pytest.raises(Unproven, match="newer version"):
            await client.upload(Upload(B, "k", NEW))
        cluster.copies.clear()
        await use(client)


@pytest.mark.usefixtures("map_is_believed")
async def test_a_bucket_that_may_not_be_listed_is_used_without():
    cluster = Moving()
    cluster.listing_status = 403
    async with client_of(cluster) as client:
        await use(client)
        assert cluster.asked.count("copies") == 1


async def test_a_listing_that_fails_keeps_nothing_from_being_read():
    cluster = Moving()
    cluster.listing_status = 503
    async with client_of(cluster) as client:
        assert (await client.head(B, "k")).size == 5
        with pytest.raises(Unavailable):
            await client.upload(Upload(B, "k", NEW))
        assert cluster.objects["k"] == b"12345"


def test_copies_are_read_from_a_listing_of_what_begins_so():
    entries = [
        {"name": "k", "version": "9", "flags": 64},
        {"name": "k", "version": "11", "flags": 64 | 1},
        {"name": "k", "version": "10", "flags": 1},
        {"name": "k2", "version": "20", "flags": 1},
    ]

    def parsed(flags: int) -> tuple[int, int, bool]:
        text = json.dumps({"entries": entries, "flags": flags})
        return parse_copies(Reply(200, {}, text.encode()), B, "k")

    assert parsed(0) == (9, 11, True)
    del entries[:2]
    assert parsed(1) == (0, 10, False)
    entries.clear()
    assert parsed(0) == (0, 0, True)
