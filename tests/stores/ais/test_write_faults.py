"""Writing while the server fails at every stage: what was reported done is there, whole.

The server's directory and plain HTTP say what is stored; the client only says what it believes.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import requests
import trio

from aisfs.errors import AisfsError, DeadlineExceeded, NotFound, OutOfSpace, ProtocolError
from aisfs.model import Bucket
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from aisfs.stores.pipeline import CallPipeline
from aisfs.stores.port import BytesContent, Upload
from tests.support.mounts import eventually
from tests.support.servers import RunningServer, running_server

B = Bucket("b")
OLD = b"the old object"
SMALL = random.Random(1).randbytes(300_000)
LARGE = random.Random(2).randbytes((11 << 20) + 5)
STAGES = ["headers", "mid", "body", "done"]
FAULTS = [
    {"action": "reset"},
    {"action": "status", "status": 500},
    {"action": "status", "status": 503},
    {"action": "status", "status": 429},
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("faults") / "served"
    (root / "b").mkdir(parents=True)
    with running_server(root, faulty=True) as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture
def server(shared: RunningServer) -> Iterator[RunningServer]:
    shared.faults([])
    put(shared, "k", OLD)
    for garbage in left_over(shared.root):  # of the one test that cannot help leaving some
        shutil.rmtree(garbage)
    yield shared
    shared.faults([])


@pytest.fixture
async def store(server: RunningServer):
    made = store_of(server)
    yield made
    await made.aclose()


def store_of(server: RunningServer, deadline: float = 30.0) -> CallPipeline:
    settings = ClusterSettings(
        endpoint=server.endpoint, part_size=5 << 20, io_timeout=deadline, read_timeout=10
    )
    return CallPipeline(AISClient(settings), deadline=deadline, rng=random.Random(3))


def url(server: RunningServer, key: str, bucket: str = "b") -> str:
    return f"{server.endpoint}/v1/objects/{bucket}/{key}"


def create(server: RunningServer, name: str, checksums: str) -> None:
    action = {"action": "create-bck", "value": {"checksum": {"type": checksums}}}
    made = requests.post(f"{server.endpoint}/v1/buckets/{name}", json=action, timeout=30)
    assert made.status_code in (200, 409)


def put(server: RunningServer, key: str, data: bytes) -> None:
    requests.put(url(server, key), data=data, timeout=30).raise_for_status()


def delete(server: RunningServer, key: str) -> None:
    requests.delete(url(server, key), timeout=30)


def stored(server: RunningServer, key: str, bucket: str = "b") -> bytes | None:
    reply = requests.get(url(server, key, bucket), timeout=30)
    return None if reply.status_code == 404 else reply.content


def left_over(root: Path) -> list[Path]:
    return list((root / ".aisfs-server" / "tmp").iterdir())


def struck(server: RunningServer) -> int:
    return sum(rule["struck"] for rule in server._control("GET", "/-/faults"))


def held(server: RunningServer) -> int:
    return sum(rule["held"] for rule in server._control("GET", "/-/faults"))


def rule(fault: dict, stage: str, times: int = 1, **match) -> dict:
    return {**fault, "stage": stage, "times": times, "match": {"marked": True, **match}}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_one_failure_of_a_put(server, store, fault, stage):
    server.faults([rule(fault, stage, method="PUT")])
    info = await store.upload(Upload(B, "k", BytesContent(SMALL), custom={"mode": "0600"}))
    assert struck(server) == 1
    assert stored(server, "k") == SMALL
    assert info == await store.head(B, "k")
    assert info.custom == {"mode": "0600"}
    assert left_over(server.root) == []


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["whole", "parts"])
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"action": "reset"}, DeadlineExceeded),
        ({"action": "status", "status": 429}, DeadlineExceeded),
        ({"action": "status", "status": 507}, OutOfSpace),
        ({"action": "status", "status": 403}, AisfsError),
    ],
    ids=["reset", "429", "507", "403"],
)
async def test_a_put_that_never_succeeds(server, stage, data, fault, error):
    server.faults([rule(fault, stage, times=-1, method="PUT")])
    # Short only where the deadline is what ends it.
    store = store_of(server, deadline=1.0 if error is DeadlineExceeded else 30.0)
    try:
        await store.upload(Upload(B, "k", BytesContent(data)))
        failed = False
    except error:
        failed = True
    finally:
        await store.aclose()
    server.faults([])
    # Only where the request was served although its reply was lost may it have succeeded.
    assert failed or stage == "done"
    assert stored(server, "k") in ([OLD, SMALL] if stage == "done" else [OLD])
    if not failed:
        assert stored(server, "k") == SMALL
    assert left_over(server.root) == []


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["whole", "parts"])
async def test_the_server_is_killed(tmp_path, stage, data):
    root = tmp_path / "served"
    (root / "b").mkdir(parents=True)
    with running_server(root, faulty=True) as first:
        put(first, "k", OLD)
        port = int(first.endpoint.rpartition(":")[2])
        first.faults([{**rule({"action": "kill"}, stage, method="PUT")}])
        store = store_of(first, deadline=1.5)
        with pytest.raises(AisfsError):
            await store.upload(Upload(B, "k", BytesContent(data)))
    with running_server(root, port=port) as second:
        assert stored(second, "k") in ([OLD, SMALL] if stage == "done" else [OLD])
        await store.upload(Upload(B, "k", BytesContent(data)))
        assert stored(second, "k") == data
        assert left_over(root) == []
    await store.aclose()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_one_failure_of_a_delete(server, store, fault, stage):
    server.faults([rule(fault, stage, method="DELETE")])
    await store.remove(B, "k")
    assert struck(server) == 1
    assert stored(server, "k") is None
    with pytest.raises(NotFound):
        await store.remove(B, "k")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("method", ["PUT", "HEAD", "DELETE"])
async def test_one_failure_of_a_rename(server, store, method, fault, stage):
    put(server, "from", SMALL)
    server.faults([rule(fault, stage, method=method)])
    info = await store.rename(B, "from", "k")
    assert struck(server) == 1
    assert stored(server, "k") == SMALL
    assert stored(server, "from") is None
    assert info == await store.head(B, "k")


async def test_damage_on_the_way_is_sent_again(server, store):
    body = {"tcode": "ErrBadCksum", "message": "BAD DATA CHECKSUM: xxhash2(1 != 2)"}
    fault = {"action": "status", "status": 500, "body": body}
    server.faults([rule(fault, "body", method="PUT", times=2)])
    await store.upload(Upload(B, "k", BytesContent(SMALL)))
    assert stored(server, "k") == SMALL


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["whole", "parts"])
async def test_cancelled_at_any_moment(server, store, data):
    for delay in (0.001, 0.004, 0.01, 0.02, 0.04, 0.08, 0.16):
        put(server, "k", OLD)
        with trio.move_on_after(delay):
            await store.upload(Upload(B, "k", BytesContent(data)))
        now = stored(server, "k")
        assert now in (OLD, data)
        # Nothing comes later.
        put(server, "k", b"newer")
        await trio.sleep(0.1)
        assert stored(server, "k") == b"newer"
    for _ in range(100):
        if not left_over(server.root):
            break
        await trio.sleep(0.05)
    assert left_over(server.root) == []


async def test_cancelled_while_the_name_of_an_upload_in_parts_arrives(server, store):
    """It began in the cluster: the name is awaited, and the upload aborted."""
    stall = {"action": "stall", "seconds": 30, "until_cleared": True, "fraction": 0.5}
    server.faults([rule(stall, "body", method="POST")])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.upload, Upload(B, "k", BytesContent(LARGE)))
        assert await trio.to_thread.run_sync(eventually, lambda: held(server))
        assert left_over(server.root) != []
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.sleep(
                0.05
            )  # for the cancellation to arrive; it is no harm if it comes later
            await trio.to_thread.run_sync(server.faults, [])
    assert left_over(server.root) == []
    assert stored(server, "k") == OLD


# A cluster that says yes and does nothing

LIE = {"action": "status", "status": 200}


async def test_a_copy_that_did_not_happen_is_made_through_this_machine(server, store):
    put(server, "from", SMALL)
    server.faults([rule(LIE, "body", times=-1, query_contains="object_to")])
    copied = await store.copy(B, "from", B, "k")
    assert struck(server) == 1
    assert stored(server, "k") == stored(server, "from") == SMALL
    assert copied == await store.head(B, "k")
    renamed = await store.rename(B, "from", "new")
    assert struck(server) == 2
    assert stored(server, "new") == SMALL
    assert stored(server, "from") is None
    assert renamed == await store.head(B, "new")


async def test_a_rename_that_cannot_be_made_sure_of_leaves_the_source(server, store):
    put(server, "from", SMALL)
    full = {"action": "status", "status": 507}
    server.faults(
        [
            rule(LIE, "body", times=-1, query_contains="object_to"),
            rule(full, "body", times=-1, method="PUT"),
        ]
    )
    with pytest.raises(OutOfSpace):
        await store.rename(B, "from", "k")
    server.faults([])
    assert stored(server, "from") == SMALL
    assert stored(server, "k") == OLD


async def test_a_rename_does_not_delete_what_was_written_meanwhile(server, store, monkeypatch):
    put(server, "from", OLD)
    newer = [SMALL]

    async def head(bucket, key, **options):
        info = await client_head(bucket, key, **options)
        if key == "to" and newer:  # the copy was just verified
            put(server, "from", newer.pop())
        return info

    client_head = store._inner.head
    monkeypatch.setattr(store._inner, "head", head)
    await store.rename(B, "from", "to")
    assert not newer
    assert stored(server, "to") == OLD
    assert stored(server, "from") == SMALL
    delete(server, "to")
    delete(server, "from")


@pytest.mark.parametrize("name", ["100%", "a?b", "dir/%41"])
async def test_names_that_aistore_loses_are_not_given_to_its_copy(server, store, name):
    put(server, "from", SMALL)
    copies = server.requests().get("copy", 0)
    await store.rename(B, "from", name)
    assert server.requests().get("copy", 0) == copies
    assert stored(server, quote(name)) == SMALL
    assert stored(server, "from") is None
    delete(server, quote(name))


async def test_rename_is_never_asked_of_the_cluster(server, store):
    put(server, "from", SMALL)
    renames = server.requests().get("rename", 0)
    await store.rename(B, "from", "to")
    assert server.requests().get("rename", 0) == renames
    delete(server, "to")


@pytest.mark.parametrize("checksums", ["xxhash2", "none"])
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["whole", "parts"])
async def test_a_put_that_did_not_happen(server, store, checksums, data):
    name = f"lies-{checksums}"
    create(server, name, checksums)
    bucket = Bucket(name)
    await store.upload(Upload(bucket, "k", BytesContent(OLD)))
    server.faults([rule(LIE, "body", method="PUT"), rule(LIE, "body", method="POST")])
    await store.upload(Upload(bucket, "k", BytesContent(data)))
    assert stored(server, "k", name) == data


async def test_an_endpoint_that_does_not_redirect_never_gets_an_empty_object(server, store):
    # The proxy's side answers itself, as a gateway that follows redirects would.
    for checksums in ("xxhash2", "none"):
        create(server, f"gateway-{checksums}", checksums)
        server.faults(
            [{**LIE, "stage": "headers", "times": -1, "match": {"marked": False, "method": "PUT"}}]
        )
        with pytest.raises(ProtocolError, match="is the endpoint a proxy"):
            await store.upload(Upload(Bucket(f"gateway-{checksums}"), "k", BytesContent(SMALL)))
        server.faults([])
        assert stored(server, "k", f"gateway-{checksums}") is None


@pytest.mark.parametrize("kind", ["none", "xxhash", "md5", "crc32c", "sha256", "sha512"])
async def test_buckets_with_other_checksums(server, store, kind):
    name = f"kind-{kind}"
    create(server, name, kind)
    bucket = Bucket(name)
    for key, data in (("small", SMALL), ("large", LARGE), ("empty", b"")):
        info = await store.upload(Upload(bucket, key, BytesContent(data), custom={"mode": "0600"}))
        assert info == await store.head(bucket, key)
        assert info.custom == {"mode": "0600"}
        assert stored(server, key, name) == data
        renamed = await store.rename(bucket, key, f"{key}-2")
        assert stored(server, f"{key}-2", name) == data
        assert stored(server, key, name) is None
        assert renamed.custom == {"mode": "0600"}
    page = await store.list_page(bucket, "")
    for info in page.objects:
        head = await store.head(bucket, info.key)
        assert info.same_content(head)
        assert info.custom == head.custom


async def test_a_server_without_parts_gets_one_piece(server, store):
    unknown = {
        "action": "status",
        "status": 400,
        "body": {"message": 'invalid action "mpt-upload"'},
    }
    server.faults([rule(unknown, "body", times=-1, method="POST")])
    await store.upload(Upload(B, "k", BytesContent(LARGE)))
    assert stored(server, "k") == LARGE
    await store.upload(Upload(B, "k", BytesContent(LARGE[1:])))
    assert struck(server) == 1
    assert stored(server, "k") == LARGE[1:]
