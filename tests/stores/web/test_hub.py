"""Repositories of the hub: one commit for the whole mount, and the token for the hub alone."""

import pytest
import trio

from aisfs.errors import AccessDenied, BucketNotFound, NotFound, ReadOnly, Unavailable
from aisfs.model import Bucket, Provider
from aisfs.settings import ClusterSettings
from aisfs.stores.hub import open_hub
from aisfs.stores.port import BytesContent, Upload
from tests.support.hub import running_hub, use_hub

PETS = Bucket("datasets/own/pets", Provider.HF)
TOKEN = "hf_of_the_test"
CAT, DOG = b"miaow" * 100, b"wow!!" * 100


@pytest.fixture
def hub(monkeypatch):
    with running_hub(TOKEN) as hub:
        use_hub(hub, monkeypatch)
        hub.files |= {"data/cat.tar": CAT, "small": b"few"}
        yield hub


@pytest.fixture
async def store(hub):
    store = open_hub(ClusterSettings(), [PETS])
    yield store
    await store.aclose()


async def read(store, bucket, info):
    buffer = bytearray(info.size)
    await store.read_range(bucket, info, 0, memoryview(buffer))
    return bytes(buffer)


async def test_a_branch_is_the_commit_that_it_was(hub, store):
    info = await store.head(PETS, "data/cat.tar")
    before = hub.commit()
    hub.files["data/cat.tar"] = DOG
    hub.files["data/new"] = b"1"
    assert await store.head(PETS, "data/cat.tar") == info
    assert await read(store, PETS, info) == CAT
    assert [found.key for found in (await store.list_page(PETS, "data/")).objects] == [info.key]
    pinned = Bucket(f"{PETS.name}@{before}", Provider.HF)
    assert await read(store, pinned, await store.head(pinned, "data/cat.tar")) == CAT
    fresh = open_hub(ClusterSettings(), [PETS])
    changed = await fresh.head(PETS, "data/cat.tar")
    assert changed.size == info.size
    assert not changed.same_content(info)
    assert await read(fresh, PETS, changed) == DOG
    await fresh.aclose()


async def test_large_files_have_a_checksum_and_all_have_the_time_of_the_repository(store):
    page = await store.list_page(PETS, "")
    assert (page.directories, [info.key for info in page.objects]) == (["data/"], ["small"])
    assert page.objects[0].checksum == ""
    info = await store.head(PETS, "data/cat.tar")
    assert info.checksum.startswith("sha256:")
    assert info.mtime_ns == 1_767_323_045_000_000_000


async def test_the_token_stays_with_the_hub(hub, store):
    info = await store.head(PETS, "data/cat.tar")
    assert await read(store, PETS, info) == CAT
    assert any("/resolve/" in seen for seen in hub.seen)
    assert hub.to_storage
    for headers in hub.to_storage:
        assert TOKEN not in str(headers)


async def test_what_is_wrong_is_named(hub, store, monkeypatch):
    for name, text in (
        ("datasets/own/none", "no such repository"),
        ("datasets/own/pets@none", "no such branch"),
    ):
        with pytest.raises(BucketNotFound, match=text):
            await store.list_page(Bucket(name, Provider.HF), "")
    with pytest.raises(NotFound, match=r"none\.tar: no such file"):
        await store.head(PETS, "none.tar")
    with pytest.raises(ReadOnly):
        await store.upload(Upload(PETS, "k", BytesContent(b"1")))
    monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
    stranger = open_hub(ClusterSettings(), [PETS])
    with pytest.raises(AccessDenied, match="HF_TOKEN") as caught:
        await stranger.head(PETS, "small")
    assert "hf_of_nobody" not in str(caught.value)
    await stranger.aclose()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    anonymous = open_hub(ClusterSettings(anonymous=True), [PETS])
    with pytest.raises(AccessDenied, match="HF_TOKEN"):
        await anonymous.head(PETS, "small")
    await anonymous.aclose()


async def test_a_hub_that_is_away(monkeypatch, hub):
    store = open_hub(ClusterSettings(), [PETS])
    store._api.endpoint = "http://127.0.0.1:9"
    with trio.fail_after(60), pytest.raises(Unavailable, match="does not answer"):
        await store.head(PETS, "small")
    await store.aclose()
