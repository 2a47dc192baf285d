"""Which files may wait for their upload, and what a close is told."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from aisfs.cache.names import MetadataCache
from aisfs.engine.overlay import Overlay, Probes
from aisfs.engine.writing import journal as journals
from aisfs.engine.writing import journal as segments
from aisfs.engine.writing.staging import StagingArea
from aisfs.engine.writing.uploads import Writer
from aisfs.errors import Unavailable
from aisfs.filesystem.nodes import ObjectNode
from aisfs.filesystem.writing import commit
from aisfs.filesystem.writing.commit import Acknowledger
from aisfs.filesystem.written import WrittenFile
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.memory import MemoryStore
from tests.support.mounts import eventually

BUCKET = Bucket("b")


class Scene:
    """Files of a mount, and what lets them wait."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.area = StagingArea(directory, 1 << 30, journal=True)
        assert self.area.journal is not None
        self.now = 0.0
        store = MemoryStore()
        self.writer = Writer(store, self.area, nursery, endpoint="http://x")
        cache = MetadataCache(attr_ttl=60, list_ttl=60, negative_ttl=5, clock=lambda: self.now)
        overlay = Overlay(Probes(store), cache, list_ttl=60, change_ttl=60, clock=lambda: self.now)
        self.acknowledger = Acknowledger(
            self.area.journal, self.writer, overlay, 5.0, lambda: self.now
        )

    def file(self, key: str, content: bytes = b"content") -> WrittenFile:
        node = ObjectNode(BUCKET, ObjectInfo(key, 0), 1, os.fsencode(key))
        file = WrittenFile(len(key), b"", node, None, 0o644, 7)
        file.staged = self.writer.new()
        file.staged.write(0, content)
        file.staged.mark_dirty(file.record("http://x"))
        file.dirty = True
        return file


def begin(
    scene: Scene, file: WrittenFile, told: list[bool] | None = None, *, may_wait: bool = False
) -> bool:
    learn = (told if told is not None else list[bool]()).append
    return scene.acknowledger.try_begin(file, learn, may_wait=may_wait)


def refuse(*_: object) -> int:
    raise OSError(5, "the disk is broken")


@pytest.fixture
async def scene(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path / "staging", nursery)
    yield scene
    await trio.to_thread.run_sync(scene.area.close)


async def test_the_number_of_files_that_wait_is_bounded(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commit, "WAITING_MOST", 2)
    files = [scene.file(f"f{number}") for number in range(3)]
    assert [await scene.acknowledger.acknowledge(file) for file in files] == [True, True, False]
    assert not begin(scene, files[2])
    files[0].acknowledged = False
    assert await scene.acknowledger.acknowledge(files[0]), "it waits already"
    scene.acknowledger.end(files[0])
    assert await scene.acknowledger.acknowledge(files[2])


async def test_files_that_do_not_wait(scene: Scene):
    large = scene.file("large", bytes((1 << 20) + 1))
    shard, failed, member = scene.file("x.tar"), scene.file("failed"), scene.file("member")
    failed.failed = Unavailable("it was")
    member.member = "in/it"
    for file in (large, shard, failed, member):
        assert not await scene.acknowledger.acknowledge(file)
        assert not begin(scene, file)
        assert not begin(scene, file, may_wait=True)
    assert await scene.acknowledger.acknowledge(scene.file("largest", bytes(1 << 20)))


async def test_a_close_is_told_when_it_is_safe_and_holds_the_content_until_then(scene: Scene):
    file, told = scene.file("f"), list[bool]()
    async with file.lock:
        assert not begin(scene, file, told), "a task is at work on it"
    assert begin(scene, file, told)
    assert eventually(lambda: told == [True])
    assert file.lock.is_free
    assert file.waits
    assert file.entry is not None
    assert file.entry.read(0, 99) == b"content"
    assert list(scene.acknowledger.waiting.items()) == [(file, 5.0)]
    assert file.staged is not None
    assert not file.staged.is_dirty, "else it would be found twice"
    assert begin(scene, file, told)
    assert told == [True, True], "it is safe already"


async def test_a_close_may_wait_for_a_quick_disk(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journals, "QUICK_SECONDS", 60)
    first, second, told = scene.file("f"), scene.file("second"), list[bool]()
    assert begin(scene, first, told, may_wait=True)
    assert told == [], "it is not known to be quick"
    assert eventually(lambda: told == [True])
    assert begin(scene, second, told, may_wait=True)
    assert told == [True, True]
    assert second.waits
    assert second.lock.is_free
    assert second.entry is not None
    assert second.entry.read(0, 99) == b"content"
    assert list(scene.acknowledger.waiting) == [first, second]


async def test_what_a_quick_disk_refuses_is_for_the_trio_thread(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journals, "QUICK_SECONDS", 60)
    assert await scene.acknowledger.acknowledge(scene.file("f"))
    file = scene.file("refused")
    with monkeypatch.context() as patch:
        patch.setattr(segments, "write_through", refuse)
        assert not begin(scene, file, may_wait=True)
    assert not file.waits
    assert file.lock.is_free
    assert file.staged is not None
    assert file.staged.is_dirty
    assert await scene.acknowledger.acknowledge(file)


async def test_what_cannot_be_written_is_told(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    file, told = scene.file("f"), list[bool]()
    with monkeypatch.context() as patch:
        patch.setattr(segments, "write_through", refuse)
        assert begin(scene, file, told)
        assert eventually(lambda: told == [False])
        assert not file.waits
        assert not await scene.acknowledger.acknowledge(file)
    assert not await scene.acknowledger.acknowledge(file), "the disk is left alone for a while"
    scene.now += commit.REFUSED_SECONDS
    assert await scene.acknowledger.acknowledge(file)
