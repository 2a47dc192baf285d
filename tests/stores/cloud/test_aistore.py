"""AIStore's own `/s3`, which is not like Amazon's: reading works, and nothing is lost by it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from aisfs.errors import InvalidName, NotFound, ProtocolError, Unsupported
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.settings import ClusterSettings
from aisfs.stores.cloud import CloudStore
from aisfs.stores.port import BytesContent, Upload, pages_of
from tests.support.clouds import s3_environment
from tests.support.servers import RunningServer, running_server

PETS = Bucket("pets", Provider.S3)
FOLDERS = [f"d{number}" for number in range(24)]
"""On either disk of the target: only on one of them is a directory taken for an object."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bucket = tmp_path_factory.mktemp("aistore").resolve() / "pets"
    for name in FOLDERS:
        (bucket / name).mkdir(parents=True)
        (bucket / name / "x").write_bytes(name.encode())
    (bucket / "q").write_bytes(b"dear")
    (bucket / "q?").write_bytes(b"odd?")
    return bucket


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[RunningServer]:
    with running_server(root.parent, faulty=True, traps=True) as server:
        yield server


@pytest.fixture
async def store(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[CloudStore]:
    for name, value in s3_environment(f"{server.endpoint}/s3").items():
        monkeypatch.setenv(name, value)
    made = CloudStore(ClusterSettings(part_size=5 << 20, read_timeout=30))
    yield made
    await made.aclose()
    server.faults([])


async def read(store: CloudStore, info: ObjectInfo) -> bytes:
    buffer = bytearray(info.size)
    await store.read_range(PETS, info, 0, memoryview(buffer))
    return bytes(buffer)


async def test_what_is_listed_is_read(store: CloudStore):
    pages = [page async for page in pages_of(store, PETS, "d1/")]
    (info,) = pages[0].objects
    assert info.version == ""
    assert await read(store, info) == b"d1"
    assert (await store.head(PETS, "d1/x")).version


async def test_a_directory_is_no_object(store: CloudStore):
    """Where AIStore finds a directory on the disk of the name, its replies are 400 and 500."""
    for name in FOLDERS:
        with pytest.raises(NotFound):
            await store.head(PETS, name)
        with pytest.raises(NotFound):
            await store.remove(PETS, name)
        with pytest.raises(NotFound):
            await store.rename(PETS, name, "new")


async def test_what_is_refused_for_another_reason_stays_an_error(
    store: CloudStore, server: RunningServer
):
    server.faults(
        [{"action": "status", "status": 400, "times": -1, "match": {"path_contains": "/s3/"}}]
    )
    with pytest.raises(ProtocolError, match="HTTP 400"):
        await store.head(PETS, "d1/x")


async def test_an_upload_is_refused_and_says_what_to_do(store: CloudStore, root: Path):
    for size in (10, 11 << 20):
        with pytest.raises(Unsupported, match="--endpoint and ais://BUCKET"):
            await store.upload(Upload(PETS, "q", BytesContent(bytes(size))))
    assert (root / "q").read_bytes() == b"dear"


@pytest.mark.parametrize("listed", [False, True])
async def test_a_name_with_a_question_mark_is_not_taken_for_another(
    store: CloudStore, root: Path, listed: bool
):
    """AIStore redirects to the name that ends there."""
    info = ObjectInfo("q?", 4)
    if listed:
        pages = [page async for page in pages_of(store, PETS, "")]
        (info,) = (info for info in pages[0].objects if info.key == "q?")
    with pytest.raises(InvalidName, match="what is before the"):
        await read(store, info)
    with pytest.raises(InvalidName):
        await store.head(PETS, "q?")
    with pytest.raises(InvalidName):
        await store.remove(PETS, "q?")
    with pytest.raises(InvalidName):
        await store.rename(PETS, "q", "r?")
    assert (root / "q").read_bytes() == b"dear"
    assert await read(store, await store.head(PETS, "q")) == b"dear"
