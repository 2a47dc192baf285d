"""What of the clouds' store the contract does not tell: reading over the embedded server's /s3, writing over moto."""

import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
import trio

from aisfs.core.names.listing import ListingBuilder, Refusal
from aisfs.errors import (
    AccessDenied,
    AlreadyExists,
    BucketNotFound,
    ContentUnreadable,
    DeadlineExceeded,
    InvalidName,
    NotFound,
    Stale,
    Unavailable,
)
from aisfs.model import Bucket, Keys, Provider
from aisfs.settings import ClusterSettings
from aisfs.stores import cloud_listings, cloud_uploads
from aisfs.stores.cloud import CloudStore
from aisfs.stores.pipeline import CallPipeline
from aisfs.stores.port import BytesContent, Upload, pages_of
from tests.support.clouds import _SIGNED, S3, moto, s3_environment
from tests.support.mounts import eventually
from tests.support.servers import RunningServer, running_server

PETS = Bucket("pets", Provider.S3)
BIG = random.Random(7).randbytes((12 << 20) + 5)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("clouds").resolve()
    (root / "pets").mkdir()
    for name in ("a", "b", "c"):
        (root / "pets" / name).write_bytes(name.encode() * 1000)
    with running_server(root, faulty=True, traps=False) as server:
        yield server


@dataclass
class Faulty:
    """moto, behind a proxy that fails on demand."""

    s3: S3
    proxy: RunningServer

    def faults(self, rules: Sequence[dict[str, object]]) -> None:
        self.proxy.faults(rules)

    def held(self) -> bool:
        return self.proxy.held()


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    with moto() as s3:
        s3.make_bucket("pets")
        for name in ("a", "b"):
            s3.put("pets", name, name.encode() * 1000)
        root = tmp_path_factory.mktemp("proxy")
        with running_server(root, faulty=True, forward=s3.url) as proxy:
            yield Faulty(s3, proxy)


@pytest.fixture
async def store(server: RunningServer, monkeypatch: pytest.MonkeyPatch):
    async for made in opened(f"{server.endpoint}/s3", monkeypatch):
        yield made
    server.faults([])


@pytest.fixture
async def writable(cloud: Faulty, monkeypatch: pytest.MonkeyPatch):
    async for made in opened(cloud.proxy.endpoint, monkeypatch):
        yield made
    cloud.faults([])


async def opened(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CloudStore]:
    for name, value in s3_environment(url).items():
        monkeypatch.setenv(name, value)
    counted: Counter[str] = Counter()

    def count(kind: str, number: int) -> None:
        counted[kind] += number

    made = CloudStore(ClusterSettings(part_size=5 << 20, read_timeout=30), count)
    made.counted = counted
    yield made
    await made.aclose()


async def test_a_long_listing_outlives_the_deadline_of_a_call(
    store, server: RunningServer, monkeypatch: pytest.MonkeyPatch
):
    """It goes on while empty pages are given, and is asked for only once."""
    monkeypatch.setattr(cloud_listings, "_PATIENCE", 0.05)
    pipeline = CallPipeline(store, deadline=0.5)
    server.faults([{"action": "stall", "seconds": 1.5, "match": {"query_contains": "list-type"}}])
    pages = [page async for page in pages_of(pipeline, PETS, "")]
    assert len(pages) > 5
    assert [info.key for page in pages for info in page.objects] == ["a", "b", "c"]
    assert store.counted["list"] == 1


async def test_a_cancelled_request_is_over(store, server: RunningServer):
    """Its connection is closed, though the server never answers."""
    info = await store.head(PETS, "a")
    buffer = memoryview(bytearray(info.size))
    hang = {"action": "stall", "seconds": 60, "until_cleared": True, "times": -1}
    server.faults([{**hang, "match": {"method": "GET"}}])
    with trio.move_on_after(0.3) as scope:
        await store.read_range(PETS, info, 0, buffer)
    assert scope.cancelled_caught
    server.faults([])
    with trio.fail_after(20):  # no place among the connections is kept
        for _ in range(40):
            await store.read_range(PETS, info, 0, buffer)
    assert buffer == b"a" * 1000


async def test_requests_are_counted(writable):
    await writable.upload(Upload(PETS, "new", BytesContent(b"12")))
    info = await writable.head(PETS, "new")
    await writable.read_range(PETS, info, 0, memoryview(bytearray(2)))
    await writable.rename(PETS, "new", "newer")
    await writable.remove(PETS, "newer")
    await writable.list_page(PETS, "")
    assert writable.counted == {
        "put": 1, "head": 7, "get": 1, "copy": 1, "delete": 2, "list": 1,
    }  # fmt: skip


async def test_a_part_that_failed_is_sent_again_alone(writable, cloud: Faulty):
    cloud.faults([{"action": "status", "status": 503, "match": {"query_contains": "partNumber=2"}}])
    await writable.upload(Upload(PETS, "big", BytesContent(BIG)))
    info = await writable.head(PETS, "big")
    buffer = bytearray(info.size)
    await writable.read_range(PETS, info, 0, memoryview(buffer))
    assert buffer == BIG
    assert writable.counted["put"] == 2 + 3
    await writable.remove(PETS, "big")


@pytest.mark.parametrize("data", [b"small", BIG], ids=["whole", "parts"])
async def test_a_head_that_failed_after_an_upload_is_asked_again_alone(
    writable, cloud: Faulty, data: bytes
):
    cloud.faults([{"action": "status", "status": 503, "match": {"method": "HEAD"}, "times": 3}])
    info = await CallPipeline(writable, deadline=30).upload(
        Upload(PETS, "sent", BytesContent(data))
    )
    assert info.size == len(data)
    assert writable.counted["put"] == (1 if data == b"small" else 2 + 3)
    assert writable.counted["head"] == 4
    await writable.remove(PETS, "sent")


async def test_a_cancelled_upload_leaves_no_parts(writable, cloud: Faulty, monkeypatch):
    monkeypatch.setattr(cloud_uploads, "_AT_ONCE", 1)
    slow = {"action": "stall", "seconds": 0.5, "times": -1}
    cloud.faults([{**slow, "match": {"query_contains": "partNumber"}}])
    with trio.move_on_after(0.7) as scope:
        await writable.upload(Upload(PETS, "cancelled", BytesContent(BIG)))
    assert scope.cancelled_caught
    cloud.faults([])
    left = cloud.s3._ask("GET", "/pets?uploads", headers=_SIGNED)
    assert b"<UploadId>" not in left, left
    assert "cancelled" not in [info.key for info in (await writable.list_page(PETS, "")).objects]


async def test_what_cannot_be_read_is_not_sent(writable):
    class Broken:
        size = len(BIG)

        def read_into(self, start: int, buffer: memoryview) -> None:
            if start:
                raise ContentUnreadable("gone")

    with pytest.raises(ContentUnreadable, match="gone"):
        await writable.upload(Upload(PETS, "broken", Broken()))


async def test_a_new_object_whose_reply_was_lost_is_nobody_else_s(writable, cloud: Faulty):
    """The second try finds an object, which is the first try's."""
    cloud.faults([{"action": "reset", "stage": "done", "match": {"method": "PUT"}}])
    pipeline = CallPipeline(writable, deadline=30)
    await pipeline.upload(Upload(PETS, "lock", BytesContent(b"mine"), only_new="mine"))
    assert writable.counted["put"] > 1, "the reply was never lost"
    assert cloud.s3.get("pets", "lock") == b"mine"
    await writable.remove(PETS, "lock")
    # The same content may be another's all the same.
    cloud.s3.put("pets", "lock", b"mine")
    with pytest.raises(AlreadyExists):
        await pipeline.upload(Upload(PETS, "lock", BytesContent(b"mine"), only_new="mine"))
    await writable.remove(PETS, "lock")


@pytest.mark.parametrize("only_new", ["", "mine"], ids=["an older version", "an earlier try"])
async def test_what_is_written_after_a_conflict_was_looked_into_stays(
    only_new: str, writable, cloud: Faulty
):
    base = await writable.upload(Upload(PETS, "log", BytesContent(b"mine"), only_new="mine"))
    cloud.faults(
        [
            {"action": "status", "status": 412, "match": {"method": "PUT"}},
            {
                "action": "stall",
                "seconds": 1,
                "match": {"method": "HEAD"},
                "every": 1 if only_new else 2,
            },
        ]
    )
    upload = Upload(PETS, "log", BytesContent(b"and more"), only_new=only_new)
    if not only_new:
        upload = replace(upload, replaces=base)

    def write() -> None:
        assert eventually(cloud.held)
        cloud.s3.put("pets", "log", b"theirs")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, write)
        with pytest.raises(Unavailable):
            await writable.upload(upload)
    assert cloud.s3.get("pets", "log") == b"theirs"
    await writable.remove(PETS, "log")


async def test_a_cloud_without_conditions_is_looked_into(writable, cloud: Faulty, caplog):
    refused = {"action": "status", "status": 501, "match": {"method": "PUT"}, "times": 4}
    cloud.faults([refused])  # by obstore's tries, all of which fail
    with pytest.raises(AlreadyExists):
        await writable.upload(Upload(PETS, "a", BytesContent(b"mine"), only_new="mine"))
    cloud.faults([refused])
    await writable.upload(Upload(PETS, "lock", BytesContent(b"mine"), only_new="mine"))
    assert [r.levelname for r in caplog.records if "may be overwritten" in r.message] == ["WARNING"]
    with pytest.raises(AlreadyExists):
        await writable.upload(Upload(PETS, "b", BytesContent(b"mine"), only_new="mine"))
    assert cloud.s3.get("pets", "b") == b"b" * 1000
    await writable.remove(PETS, "lock")


async def test_throttling_ends_at_the_deadline(store, server: RunningServer):
    pipeline = CallPipeline(store, deadline=1)
    info = await store.head(PETS, "a")
    server.faults([{"action": "status", "status": 503, "times": -1, "match": {"method": "GET"}}])
    with pytest.raises(DeadlineExceeded, match="HTTP 503"):
        await pipeline.read_range(PETS, info, 0, memoryview(bytearray(10)))
    assert store.counted["get"] < 20, "it backs off"


async def test_nothing_is_written_without_credentials(server: RunningServer, store):
    anonymous = CloudStore(ClusterSettings(anonymous=True))
    assert (await anonymous.head(PETS, "a")).size == 1000
    with pytest.raises(AccessDenied, match="--anonymous"):
        await anonymous.upload(Upload(PETS, "x", BytesContent(b"")))
    await anonymous.aclose()


ODD = ["d//x", "d/../y", "d/./z", "/lead", "d/tab\tx", "d/tab\t/x", "d/\x7f", "d/..", "d//"]


async def test_keys_that_obstore_refuses_are_listed(monkeypatch: pytest.MonkeyPatch):
    with moto(page_size=50) as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        bucket = Bucket(s3.make_bucket(), Provider.S3)
        for key in (*ODD, *(f"d/{number:04}" for number in range(101)), "fine"):
            s3.put(bucket.name, key, b"1")
        store = CloudStore(ClusterSettings())
        lister = ListingBuilder("d/")
        async for page in pages_of(store, bucket, "d/"):
            lister.add(page)
        listing = lister.finish()
        odd = [b"\x7f", b"aisfs-dot", b"aisfs-dotdot", b"aisfs-empty", b"tab\t", b"tab\tx"]
        assert sorted(listing.names) == sorted([*(b"%04d" % n for n in range(101)), *odd])
        assert listing.refused == {Refusal.HIDDEN_BY_DIRECTORY: 1}, "the object called `..`"
        for prefix, wanted in (("", {"/", "d/"}), ("d//", set()), ("d/../", set()), ("/", set())):
            page = await store.list_page(bucket, prefix)
            assert set(page.directories) == wanted
        names = {info.key for info in page.objects}
        assert names == {"/lead"}
        assert (await store.first_keys(bucket, "", 1)).found
        assert (await store.first_keys(bucket, "d//", 1)) == Keys(["d//"], complete=False)
        assert (await store.first_keys(bucket, "d/./", 9)) == Keys(["d/./z"], complete=True)
        assert (await store.first_keys(bucket, "none//", 9)) == Keys([], complete=True)
        keys = await store.first_keys(bucket, "d/", 10_000)
        assert (len(keys.found), keys.complete) == (101 + 8, True)
        for key in ("", "d/", "d//"):  # as files
            with pytest.raises(NotFound):
                await store.head(bucket, key)
            with pytest.raises(InvalidName):
                await store.upload(Upload(bucket, key, BytesContent(b"")))
        await store.aclose()


@pytest.mark.parametrize("key", ["a//b", "/a", "a/./b", "a/..", "t\tab", "//?x=1&y/ü +%2F"])
async def test_objects_whose_keys_obstore_refuses_are_read_and_written(
    cloud: Faulty, monkeypatch: pytest.MonkeyPatch, key: str
):
    s3 = cloud.s3
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    bucket, data = Bucket(s3.make_bucket(), Provider.S3), os.urandom(1000)
    store = CloudStore(ClusterSettings())
    with pytest.raises(NotFound):
        await store.head(bucket, key)
    with pytest.raises(BucketNotFound):
        await store.head(Bucket("no-such-bucket", Provider.S3), key)
    info = await store.upload(Upload(bucket, key, BytesContent(data), only_new="ours"))
    assert s3.get(bucket.name, key) == data
    assert (await store.head(bucket, key)) == info
    assert (info.key, info.size) == (key, 1000)

    middle = memoryview(bytearray(100))
    await store.read_range(bucket, info, 200, middle)
    assert middle == data[200:300]
    arrived = bytearray()
    await store.stream(bucket, info, arrived.extend)
    assert arrived == data

    again = await store.upload(Upload(bucket, key, BytesContent(data), only_new="ours"))
    assert again.same_content(info), "as after a lost answer"
    with pytest.raises(AlreadyExists):
        await store.upload(Upload(bucket, key, BytesContent(b"x"), only_new="another"))
    newer = await store.upload(Upload(bucket, key, BytesContent(b""), replaces=info))
    with pytest.raises(Stale):
        await store.upload(Upload(bucket, key, BytesContent(b"x"), replaces=info))
    with pytest.raises(Stale):
        await store.read_range(bucket, info, 0, middle)
    with pytest.raises(Stale):
        await store.stream(bucket, info, arrived.extend)
    await store.stream(bucket, newer, pytest.fail)
    assert s3.get(bucket.name, key) == b""

    s3.put(bucket.name, key, data)
    await store.copy(bucket, key, bucket, "copy//of")
    await store.rename(bucket, "copy//of", "plain")
    assert s3.get(bucket.name, "plain") == data
    await store.remove(bucket, key)
    assert s3.get(bucket.name, key) is None
    with pytest.raises(NotFound):
        await store.remove(bucket, key)
    with pytest.raises(NotFound):
        await store.read_range(bucket, info, 0, middle)
    await store.aclose()


BEFORE = 1_600_000_000
LATER_PAGES = {"query_contains": "continuation-token"}


@pytest.mark.parametrize(
    "body", ["<html>log in</html>", "<Error><Code>InternalError</Code></Error>"]
)
async def test_a_page_that_is_none_does_not_end_a_listing(store, server: RunningServer, body: str):
    """obstore takes any XML for a listing, and one without a token for the last page of it."""
    make_many(server, "many", 1005)
    lie = {"action": "lie", "status": 200, "body": body, "times": -1}
    server.faults([{**lie, "match": LATER_PAGES}])
    with pytest.raises(Unavailable, match="not the end"):
        await store.list_page(PETS, "many/")
    server.faults([])
    assert len((await store.list_page(PETS, "many/")).objects) == 1005


def make_many(server: RunningServer, name: str, count: int) -> None:
    folder = server.root / "pets" / name
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number:04}").write_bytes(b"")
        os.utime(folder / f"{number:04}", (BEFORE, BEFORE))


async def test_the_keys_below_a_directory_do_not_end_at_a_page_that_is_none(
    store, server: RunningServer
):
    make_many(server, "keys", 1005)
    lie = {"action": "lie", "status": 200, "body": "<html>log in</html>", "times": -1}
    server.faults([{**lie, "match": LATER_PAGES}])
    with pytest.raises(Unavailable, match="not the end"):
        await store.first_keys(PETS, "keys/", 10_000)
    server.faults([])
    keys = await store.first_keys(PETS, "keys/", 10_000)
    assert (len(keys.found), keys.complete) == (1005, True)


async def test_a_page_of_another_directory_is_refused(store, server: RunningServer):
    make_many(server, "other", 1005)
    body = (
        "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>elsewhere/x</Key>"
        "<LastModified>2020-01-01T00:00:00.000Z</LastModified><ETag>1</ETag><Size>0</Size>"
        "</Contents></ListBucketResult>"
    )
    lie = {"action": "lie", "status": 200, "body": body, "times": -1, "match": LATER_PAGES}
    server.faults([lie])
    with pytest.raises(Unavailable, match="names 'elsewhere/x', which is not in it"):
        await store.list_page(PETS, "other/")
    with pytest.raises(Unavailable, match="which is not in it"):
        await store.first_keys(PETS, "other/", 10_000)


async def test_whoever_asks_for_certainty_does_not_get_a_page_that_is_none(
    store, server: RunningServer
):
    """That a directory is empty is asked before another is put in its place."""
    make_many(server, "full", 1)
    await store.list_page(PETS, "full/")
    lie = {"action": "lie", "status": 200, "body": "<html>log in</html>"}
    server.faults([{**lie, "match": {"query_contains": "list-type"}, "times": 3}])
    with pytest.raises(Unavailable, match="which is there"):
        await store.first_keys(PETS, "full/", 1, sure=True)


async def test_a_listing_whose_page_is_cancelled_is_over(store, server: RunningServer):
    """Nobody could ask for the rest of it."""
    hang = {"action": "stall", "seconds": 60, "until_cleared": True, "times": -1}
    server.faults([{**hang, "match": {"query_contains": "list-type"}}])
    begun = []
    begin = store._listings._begin
    store._listings._begin = lambda *args: begun.append(begin(*args)) or begun[-1]
    with trio.move_on_after(0.3) as scope:
        await store.list_page(PETS, "")
    assert scope.cancelled_caught
    assert [future.cancelled() for future in begun] == [True]


async def test_a_directory_may_grow_at_its_end_while_it_is_listed(store, server: RunningServer):
    folder = server.root / "pets" / "growing"
    folder.mkdir()
    for number in range(1005):
        (folder / f"{number:04}").write_bytes(b"")
        if number < 1000:
            os.utime(folder / f"{number:04}", (BEFORE, BEFORE))
    empty = {"action": "lie", "status": 200, "body": "<ListBucketResult/>"}
    server.faults([{**empty, "match": LATER_PAGES}])  # as before these were written
    assert len((await store.list_page(PETS, "growing/")).objects) == 1000


async def test_a_directory_is_empty_also_for_who_sees_only_a_part_of_the_bucket(
    store, monkeypatch: pytest.MonkeyPatch
):
    first = cloud_listings.Listings._first

    async def refused(self, client, bucket, prefix, *rest):
        if not prefix:
            raise AccessDenied("HTTP 403")
        return await first(self, client, bucket, prefix, *rest)

    monkeypatch.setattr(cloud_listings.Listings, "_first", refused)
    page = await store.list_page(PETS, "nothing/")
    assert (page.objects, page.directories, page.next_token) == ([], [], "")
    assert (await store.first_keys(PETS, "nothing/", 2)).found == []


async def test_a_listing_of_a_cloud_that_fell_silent_ends(
    server: RunningServer, store, monkeypatch: pytest.MonkeyPatch
):
    """Though it may take longer than the deadline of a call."""
    monkeypatch.setattr(cloud_listings, "_PATIENCE", 0.1)
    impatient = CloudStore(ClusterSettings(read_timeout=0.3))
    hang = {"action": "stall", "seconds": 60, "until_cleared": True, "times": -1}
    server.faults([{**hang, "match": {"query_contains": "list-type"}}])
    with trio.fail_after(20), pytest.raises(Unavailable):
        async for _ in pages_of(CallPipeline(impatient, deadline=60), PETS, ""):
            pass
    await impatient.aclose()
