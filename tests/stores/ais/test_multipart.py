"""Uploads in parts to a server that destroys, as AIStore does, a part that comes twice.

What was reported done is read back by another client.
"""

import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator

import pytest
import requests
import trio

from aisfs.errors import AisfsError, DeadlineExceeded
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from aisfs.stores.pipeline import CallPipeline
from aisfs.stores.port import BytesContent, Upload
from tests.stores.ais.test_write_faults import (
    FAULTS,
    OLD,
    STAGES,
    B,
    left_over,
    rule,
    stored,
    struck,
    url,
)
from tests.support.servers import RunningServer, running_server

PART = 5 << 20
DATA = random.Random(2).randbytes(4 * PART + 5)
START = {"method": "POST"}
FIRST = {"method": "PUT", "query_contains": "partNumber=1"}
SECOND = {"method": "PUT", "query_contains": "partNumber=2"}
LAST = {"method": "PUT", "query_contains": "partNumber=5"}
COMPLETE = {"method": "POST", "query_contains": "uploadId"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("parts") / "served"
    (root / "b").mkdir(parents=True)
    with running_server(root, faulty=True, traps=True) as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture
def server(shared: RunningServer) -> Iterator[RunningServer]:
    shared.faults([])
    put(shared, OLD)
    for garbage in left_over(shared.root):  # of uploads that began and whose name never arrived
        shutil.rmtree(garbage)
    yield shared
    shared.faults([])


@pytest.fixture
async def store(server: RunningServer):
    made = store_of(server)
    yield made
    await made.aclose()


def store_of(
    server: RunningServer,
    deadline: float = 30.0,
    read_timeout: float = 10.0,
    part_size: int = PART,
) -> CallPipeline:
    settings = ClusterSettings(
        endpoint=server.endpoint,
        part_size=part_size,
        io_timeout=deadline,
        read_timeout=read_timeout,
    )
    return CallPipeline(AISClient(settings), deadline=deadline, rng=random.Random(3))


def put(server: RunningServer, data: bytes, query: dict[str, str] | None = None) -> None:
    requests.put(url(server, "k"), params=query, data=data, timeout=30).raise_for_status()


def sent(server: RunningServer) -> int:
    return server.requests().get("part", 0)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize(
    "match", [START, SECOND, LAST, COMPLETE], ids=["start", "second", "last", "complete"]
)
async def test_one_failure(server, store, match, fault, stage):
    server.faults([rule(fault, stage, **match)])
    info = await store.upload(Upload(B, "k", BytesContent(DATA), custom={"mode": "0600"}))
    assert struck(server) == 1
    assert stored(server, "k") == DATA
    assert info == await store.head(B, "k")
    assert info.custom == {"mode": "0600"}
    if (match, stage) != (START, "done"):  # nobody knows the id of that one
        assert left_over(server.root) == []


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("changed", [False, True])
async def test_one_failure_of_a_part_sent_ahead(server, store, fault, stage, changed):
    begun = await store.begin_upload(B, "k")
    server.faults([rule(fault, stage, **SECOND)])
    await begun.next_part(BytesContent(DATA))()
    with pytest.raises(AisfsError):
        await begun.next_part(BytesContent(DATA))()
    assert struck(server) == 1
    content = bytearray(DATA)
    if changed:
        begun.invalidate(PART, PART + 1)
        content[PART] ^= 1
    info = await store.upload(Upload(B, "k", BytesContent(content), ahead=begun))
    assert stored(server, "k") == content
    assert info == await store.head(B, "k")
    assert left_over(server.root) == []


@pytest.mark.parametrize("start", [0, PART - 1, PART, 2 * PART - 1])
async def test_what_was_sent_ahead_and_changed_since_is_not_sent_to_the_same_upload(
    server, store, start
):
    begun = await store.begin_upload(B, "k")
    for _ in range(2):
        await begun.next_part(BytesContent(DATA))()
    begun.invalidate(start, start + 1)
    assert begun.is_lost
    content = bytearray(DATA)
    content[start] ^= 1
    await store.upload(Upload(B, "k", BytesContent(content), ahead=begun))
    assert stored(server, "k") == content
    assert left_over(server.root) == []


@pytest.mark.parametrize("stage", ["headers", "mid"])
async def test_a_part_that_was_cut_off_costs_only_itself(server, stage):
    """It is larger than what the kernels on the way take of it before anybody reads."""
    store = store_of(server, part_size=48 << 20)
    data = DATA[: 1 << 20] * 50
    before = sent(server)
    server.faults([rule({"action": "reset"}, stage, **FIRST)])
    await store.upload(Upload(B, "k", BytesContent(data)))
    await store.aclose()
    assert struck(server) == 1
    assert sent(server) - before == 2, "of the first try the server counts none"
    assert stored(server, "k") == data


async def test_every_part_fails_once_in_every_way(server, store):
    ways = [(fault, stage) for fault in FAULTS for stage in STAGES]
    server.faults(
        [
            rule(fault, stage, method="PUT", query_contains=f"partNumber={1 + n % 5}")
            for n, (fault, stage) in enumerate(ways)
        ]
    )
    await store.upload(Upload(B, "k", BytesContent(DATA)))
    assert struck(server) == len(ways)
    assert stored(server, "k") == DATA
    assert left_over(server.root) == []


async def test_the_parts_are_put_together_twice(server, store):
    """What stands between repeats the request, and gives the reply to the second one: 404."""
    gone = {"tcode": "ErrNotFound", "message": "does not exist"}
    before = sent(server)
    server.faults([rule({"action": "status", "status": 404, "body": gone}, "done", **COMPLETE)])
    await store.upload(Upload(B, "k", BytesContent(DATA)))
    assert struck(server) == 1
    assert stored(server, "k") == DATA
    assert sent(server) - before == 5, "what is there need not be sent again"


@pytest.mark.parametrize(
    "match", [START, SECOND, LAST, COMPLETE], ids=["start", "second", "last", "complete"]
)
async def test_a_reply_that_comes_too_late(server, match):
    store = store_of(server, read_timeout=0.5)
    stall = {"action": "stall", "seconds": 2.0, "fraction": 0.0}
    server.faults([rule(stall, "body", **match)])
    await store.upload(Upload(B, "k", BytesContent(DATA)))
    await store.aclose()
    assert struck(server) == 1
    assert stored(server, "k") == DATA


async def test_a_server_that_stands_still_for_longer_than_a_reply_may_take(tmp_path):
    root = tmp_path / "served"
    (root / "b").mkdir(parents=True)
    with running_server(root, traps=True) as server:
        store = store_of(server, deadline=120.0, read_timeout=1.0)
        contents = {f"{n}": random.Random(n).randbytes(2 * PART + n) for n in range(6)}
        over = threading.Event()

        def stand_still() -> None:
            for moments in (1, 2, 4, 8, 16, 32, 64):  # in the end there is time for an upload
                over.wait(moments / 50)
                os.killpg(server.pid, signal.SIGSTOP)
                over.wait(1.5)
                os.killpg(server.pid, signal.SIGCONT)

        still = threading.Thread(target=stand_still)
        still.start()
        try:
            for key, data in contents.items():
                await store.upload(Upload(B, key, BytesContent(data)))
        finally:
            over.set()
            await trio.to_thread.run_sync(still.join)
            await store.aclose()
        for key, data in contents.items():
            assert stored(server, key) == data


# An upload that AIStore calls complete and that is not


async def lose_a_part(server: RunningServer, store: CallPipeline):
    """Begin an upload of which a part comes twice, by way of somebody else."""
    begun = await store.begin_upload(B, "k")
    for _ in range(2):
        await begun.next_part(BytesContent(DATA))()
    put(server, DATA[PART : 2 * PART], {"uploadId": begun.name, "partNumber": "2"})
    return begun


async def test_a_lost_part_is_noticed_and_all_is_sent_again(server, store):
    begun = await lose_a_part(server, store)
    await store.upload(Upload(B, "k", BytesContent(DATA), ahead=begun))
    assert stored(server, "k") == DATA


async def test_a_part_that_cannot_be_read_back_is_an_error(server):
    gone = {"tcode": "PathError", "message": "chunk does not exist"}
    lost = {"action": "status", "status": 404, "body": gone}
    server.faults([rule(lost, "body", times=-1, method="GET", range=True)])
    store = store_of(server, deadline=1.0)
    with pytest.raises(DeadlineExceeded, match="lost a part of it"):
        await store.upload(Upload(B, "k", BytesContent(DATA)))
    await store.aclose()
    assert struck(server) > 1


async def test_overwritten_while_it_is_read_back(server, store):
    """The last one to end wins, and nobody sends again over it."""
    before = sent(server)
    stall = {"action": "stall", "seconds": 2.0, "fraction": 0.0}
    server.faults([rule(stall, "body", method="GET", range=True)])

    def overwrite() -> None:
        while not struck(server):
            pass
        put(server, b"newer")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.upload, Upload(B, "k", BytesContent(DATA)))
        await trio.to_thread.run_sync(overwrite)
    assert stored(server, "k") == b"newer"
    assert sent(server) - before == 5


async def test_an_upload_is_announced_before_anything_of_it_is_sent(server, store):
    names = []

    def announce(name: str) -> None:
        names.append(name)
        (upload,) = left_over(server.root)
        assert upload.name == f"parts-{name}"
        assert list(upload.iterdir()) == []

    server.faults([rule({"action": "reset"}, "done", **LAST)])
    await store.upload(Upload(B, "k", BytesContent(DATA), announce=announce))
    assert len(set(names)) == 2
