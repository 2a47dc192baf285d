"""Files that wait for their upload: none is forgotten, whatever fails meanwhile."""

import errno
import gc
import math
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from aisfs.core.names.inodes import ROOT
from aisfs.engine.writing import journal as segments
from aisfs.engine.writing.staging import StagingArea, StagingSlot
from aisfs.engine.writing.unsent import unsent_files
from aisfs.engine.writing.uploads import Writer
from aisfs.errors import AccessDenied, AisfsError, Unavailable
from aisfs.filesystem.handles import OpenFile
from aisfs.filesystem.writing.setattr import AttributeChanges, write_layer
from aisfs.filesystem.written import WrittenFile
from aisfs.model import Bucket
from aisfs.mount.recovery import upload_rest
from aisfs.settings import WriteSettings
from tests.filesystem.user import BUCKET, OFF, build, new_store
from tests.support.mounts import eventually

DOWN = Unavailable("the cluster is down")
REFUSED = AccessDenied("read-only for you")


class Scene:
    """A mount without a kernel that lets files wait for an hour."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.store = new_store()
        self.directory = directory
        self.area = StagingArea(directory, 1 << 30, journal=True)
        self.filesystem = build(self.store, nursery, writable=True, **OFF)
        settings = WriteSettings(writable=True, staging_dir=directory, write_back=3600)
        self.tree = self.filesystem.tree
        lister = self.tree._lister
        writer = Writer(self.store, self.area, nursery, endpoint="http://x")
        self.layer = write_layer(
            self.filesystem, self.tree, lister, writer, settings, trio.current_time
        )
        self.failing: AisfsError | None = None
        self.store.hook = self.fail

    async def fail(self, method: str, bucket: Bucket | None, key: str) -> None:
        if self.failing is not None and method in ("upload", "rename", "set_custom"):
            raise self.failing

    async def open(self, name: bytes, parent: int = ROOT) -> OpenFile:
        _, handle = await self.layer.creator.create(parent, name, 0o644, os.O_RDWR)
        assert isinstance(handle, OpenFile)
        return handle

    async def write(self, name: bytes, content: bytes, parent: int = ROOT) -> WrittenFile:
        handle = await self.open(name, parent)
        assert handle.file is not None
        await self.layer.files.truncate(handle.file, 0)
        await self.layer.files.write(handle, 0, content)
        await self.close(handle)
        return handle.file

    async def close(self, handle: OpenFile) -> None:
        await self.layer.files.flush(handle, sync=False)
        await self.layer.files.release(handle)

    def stored(self) -> dict[str, bytes]:
        return {k: c for k, (_, c) in self.store._contents(BUCKET).objects.items()}

    def waiting(self) -> int:
        assert self.layer.write_back is not None
        return self.layer.write_back.waiting()[0]


@pytest.fixture
async def scene(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path / "staging", nursery)
    yield scene
    await trio.to_thread.run_sync(scene.area.close)


async def changed(scene: Scene) -> WrittenFile:
    """Return a file that is in the store, and whose newer content waits."""
    await scene.write(b"k", b"old")
    await scene.layer.flush()
    assert scene.stored() == {"k": b"old"}
    return await scene.write(b"k", b"new content")


async def test_files_may_be_closed_while_those_that_are_due_are_looked_for(
    scene: Scene, nursery: trio.Nursery
):
    file = await scene.write(b"k", b"content")
    write_back, acknowledger = scene.layer.write_back, scene.layer.acknowledger
    assert write_back is not None
    assert acknowledger is not None
    waiting = acknowledger.waiting
    waiting.update((replace(file), math.inf) for _ in range(5000))
    waiting[file] = 0.0

    def close_another(phase: str, info: dict[str, int]) -> None:
        waiting[replace(file)] = math.inf

    # When garbage is collected, the interpreter may switch to the dispatcher, which adds files.
    gc.callbacks.append(close_another)
    try:
        nursery.start_soon(write_back.run)
        assert await trio.to_thread.run_sync(eventually, lambda: not file.dirty)
    finally:
        gc.callbacks.remove(close_another)
    assert scene.stored() == {"k": b"content"}


async def test_a_rename_that_fails_leaves_the_file_waiting(scene: Scene):
    file = await changed(scene)
    scene.failing = DOWN
    with pytest.raises(Unavailable):
        await scene.layer.names.rename(ROOT, b"k", ROOT, b"k2", 0)
    with pytest.raises(Unavailable, match="1 closed files still wait"):
        await scene.layer.flush()
    assert scene.waiting() == 1
    scene.failing = None
    assert await scene.layer.flush() == 1
    assert scene.stored() == {"k": b"new content"}
    assert not file.dirty


async def test_a_rename_of_its_directory_that_fails_leaves_it_waiting(scene: Scene):
    await scene.layer.creator.mkdir(ROOT, b"d", 0o755)
    entry = await scene.filesystem.lookup(ROOT, b"d")
    assert entry is not None
    await scene.write(b"f", b"content", parent=entry.attr.ino)
    scene.failing = DOWN
    with pytest.raises(Unavailable):
        await scene.layer.names.rename(ROOT, b"d", ROOT, b"e", 0)
    with pytest.raises(Unavailable):
        await scene.layer.flush()
    scene.failing = None
    await scene.layer.flush()
    assert scene.stored() == {"d/f": b"content"}


async def test_a_directory_is_renamed_when_nothing_would_come_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    await scene.layer.creator.mkdir(ROOT, b"d", 0o755)
    entry = await scene.filesystem.lookup(ROOT, b"d")
    assert entry is not None
    await scene.write(b"f", b"content", parent=entry.attr.ino)
    free, done = threading.Event(), list[str]()

    async def rename() -> None:
        await scene.layer.names.rename(ROOT, b"d", ROOT, b"e", 0)
        done.append("renamed")

    write = segments.write_through

    def held(*what: Any) -> int:
        free.wait(60)
        return write(*what)

    monkeypatch.setattr(segments, "write_through", held)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rename)
        await trio.to_thread.run_sync(eventually, lambda: "e/f" in scene.stored())
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert done == [], "after a crash d/f would be uploaded again"
        free.set()
    assert done == ["renamed"]


async def test_an_fsync_that_fails_leaves_the_file_waiting(scene: Scene):
    await changed(scene)
    scene.failing = DOWN
    handle = await scene.open(b"k")
    with pytest.raises(Unavailable):
        await scene.layer.files.flush(handle)
    with pytest.raises(Unavailable):
        await scene.layer.flush()
    await scene.layer.files.release(handle)
    assert scene.waiting() == 1
    scene.failing = None
    assert await scene.layer.flush() == 1
    assert scene.stored() == {"k": b"new content"}


async def test_attributes_that_can_neither_wait_nor_be_stored_leave_it_waiting(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    file = await changed(scene)
    assert scene.layer.acknowledger is not None
    scene.failing = DOWN
    reader = await scene.open(b"k")
    with monkeypatch.context() as patch:

        async def refuse(*_: object, **__: object) -> bool:
            return False

        patch.setattr(scene.layer.acknowledger, "again", refuse)
        with pytest.raises(Unavailable):
            await scene.layer.attributes.setattr(file.ino, AttributeChanges(mode=0o600), None)
        with pytest.raises(Unavailable):
            await scene.layer.flush()
    scene.failing = None
    assert await scene.layer.flush() == 1
    assert scene.stored() == {"k": b"new content"}
    await scene.close(reader)


async def test_a_rename_that_the_store_refuses_for_good_is_reported(scene: Scene):
    await changed(scene)
    scene.failing = REFUSED
    with pytest.raises(AccessDenied):
        await scene.layer.names.rename(ROOT, b"k", ROOT, b"k2", 0)
    with pytest.raises(AccessDenied, match=r"such as .*/k"):
        await scene.layer.flush()
    assert scene.waiting() == 0
    assert [one.record.reason for one in unsent_files(scene.directory)] == [str(REFUSED)]


async def test_what_is_closed_while_it_is_given_up_waits_again(scene: Scene):
    file = await changed(scene)
    write_back = scene.layer.write_back
    assert write_back is not None
    scene.failing = REFUSED
    async with trio.open_nursery() as nursery:
        await file.lock.__aenter__()
        nursery.start_soon(write_back._give_up, file, REFUSED)
        await trio.testing.wait_all_tasks_blocked()
        assert file.failed is None, "its newer content was not tried"
        await file.lock.__aexit__(None, None, None)
    assert scene.waiting() == 1
    scene.failing = None
    assert await scene.layer.flush() == 1


async def test_what_the_disk_cannot_keep_for_recover_stays_in_the_journal(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    await changed(scene)
    scene.failing = REFUSED
    with monkeypatch.context() as patch:
        patch.setattr(StagingSlot, "fill", full)
        for _ in range(2):
            with pytest.raises(AccessDenied, match=r"such as .*/k"):
                await scene.layer.flush()
    assert "stays in the journal" in caplog.text
    assert unsent_files(scene.directory) == [], "it would be found twice"
    records = scene.directory.rglob("*.json")
    assert [path for path in records if path.stat().st_size] == []
    file = await scene.write(b"k", b"newer content")
    assert file.waits, "others go on, and it does with its next content"
    scene.failing = None
    assert await scene.layer.flush() == 1
    assert scene.stored() == {"k": b"newer content"}


async def test_what_the_disk_could_not_keep_for_recover_is_kept_once_there_is_room(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    await changed(scene)
    scene.failing = REFUSED
    with monkeypatch.context() as patch:
        patch.setattr(StagingSlot, "fill", full)
        with pytest.raises(AccessDenied, match=r"such as .*/k"):
            await scene.layer.flush()
    with pytest.raises(AccessDenied, match=r"`aisfs recover` lists them"):
        await scene.layer.flush()
    (unsent,) = unsent_files(scene.directory)
    assert unsent.record.reason == str(REFUSED)
    unsent.drop()
    assert await scene.layer.flush() == 0, "it was dealt with"


async def test_an_unforeseen_error_at_the_end_says_what_waits(scene: Scene):
    await changed(scene)
    assert scene.layer.write_back is not None

    async def fail() -> None:
        raise ExceptionGroup("of a nursery", [ValueError("unforeseen")])

    scene.layer.write_back._committer.settled = fail  # type: ignore[method-assign]
    scene.failing = DOWN
    with pytest.raises(Unavailable, match=r"1 closed files were not uploaded yet.*of a nursery"):
        await upload_rest(scene.layer, trio.CancelScope())
