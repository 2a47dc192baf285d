"""Files that the dispatcher makes: the program is told first, and the rest is done before it can ask again."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from aisfs.core.names.inodes import ROOT
from aisfs.engine.writing.staging import StagingSlot
from aisfs.errors import OutOfSpace
from aisfs.filesystem.handles import OpenFile
from aisfs.filesystem.nodes import Entry
from tests.filesystem.writing.test_write_back import Scene


@pytest.fixture
async def scene(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path / "staging", nursery)
    monkeypatch.setattr(scene.tree, "try_find", lambda *_: None)
    yield scene
    await trio.to_thread.run_sync(scene.area.close)


def records(scene: Scene) -> int:
    return sum(path.stat().st_size > 0 for path in scene.directory.glob("*/*.json"))


def make(scene: Scene, name: bytes) -> tuple[OpenFile, int]:
    """Make a file as the dispatcher does; return it, and how many records there were when it was told."""
    made: list[tuple[OpenFile, int]] = []

    def told(entry: Entry, opened: OpenFile) -> None:
        assert scene.filesystem.inodes.get(entry.attr.ino) is not None, "a FORGET may follow"
        made.append((opened, records(scene)))

    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    assert scene.layer.creator.try_create(ROOT, name, 0o644, flags, told)
    ((opened, before),) = made
    return opened, before


async def test_the_program_is_told_before_the_record_is_written(scene: Scene):
    opened, before = make(scene, b"new")
    assert (before, records(scene)) == (0, 1)
    assert await scene.filesystem.lookup(ROOT, b"new") is not None
    assert scene.layer.files.try_write(opened.ino, 0, memoryview(b"content"))
    await scene.close(opened)
    await scene.layer.flush()
    assert scene.stored() == {"new": b"content"}


async def test_what_was_not_recorded_is_recorded_by_the_first_write(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(StagingSlot, "write_record", full)
        opened, _ = make(scene, b"new")
        with pytest.raises(OutOfSpace):
            scene.layer.files.try_write(opened.ino, 0, memoryview(b"lost"))
    assert records(scene) == 0
    assert scene.layer.files.try_write(opened.ino, 0, memoryview(b"content"))
    assert records(scene) == 1
    await scene.close(opened)


@pytest.mark.parametrize("flags", [os.O_EXCL, os.O_APPEND, os.O_EXCL | os.O_TRUNC, 0])
async def test_what_does_not_overwrite_is_asked_for_and_has_a_mark_of_its_own(
    scene: Scene, flags: int
):
    marks = set()
    for number in range(3):
        name, flags = b"%d" % number, flags | os.O_WRONLY | os.O_CREAT
        assert not scene.layer.creator.try_create(ROOT, name, 0o644, flags, lambda *_: None)
        _, opened = await scene.layer.creator.create(ROOT, name, 0o644, flags)
        assert isinstance(opened, OpenFile)
        assert opened.file is not None
        marks.add(opened.file.only_new)
    assert len(marks) == 3
    assert all(len(mark) == 32 for mark in marks)


async def test_what_overwrites_is_made_without_a_mark(scene: Scene):
    opened, _ = make(scene, b"new")
    assert opened.file is not None
    assert opened.file.only_new == ""
