"""The staging directory: its limit, what survives, who may touch it."""

import os
from pathlib import Path

import pytest
from msgspec import structs

from aisfs.engine.writing.on_disk import StagedRecord
from aisfs.engine.writing.staging import StagingArea
from aisfs.engine.writing.unsent import adopt_dead_sessions, unsent_files
from aisfs.errors import ConfigError, OutOfSpace
from aisfs.model import Bucket

RECORD = StagedRecord("http://x", Bucket("b"), "k")


@pytest.fixture
def area(tmp_path: Path):
    area = StagingArea(tmp_path / "staging", 1000)
    yield area
    area.close()


def test_room_is_counted(area: StagingArea):
    one, two = area.create(), area.create()
    one.write(100, b"x" * 100)
    two.truncate(700)
    assert area.used == 900
    with pytest.raises(OutOfSpace):
        one.write(0, b"y" * 301)
    assert (one.size, area.used) == (200, 900)
    assert one.read(0, 1000) == bytes(100) + b"x" * 100
    two.truncate(10)
    one.write(0, b"y" * 301)
    one.discard()
    two.discard()
    assert area.used == 0


def test_beside_a_journal_the_files_made_first_are_used_first(tmp_path: Path):
    area = StagingArea(tmp_path, 1 << 30, journal=True)
    names = [area.create().path.name for _ in range(3)]
    area.close()
    assert names == ["1.data", "2.data", "3.data"]


def test_a_dirty_file_is_given_up_and_takes_room(area: StagingArea):
    staged = area.create()
    staged.write(0, b"x" * 600)
    staged.mark_dirty(RECORD)
    staged.give_up("the cluster said no")
    (found,) = unsent_files(area.directory)
    assert found.record.reason == "the cluster said no"
    assert found.path.read_bytes() == b"x" * 600
    assert area.used == 600
    with pytest.raises(OutOfSpace, match="aisfs recover"):
        area.create().write(0, b"y" * 500)
    found.drop()
    area.create().write(0, b"y" * 500)
    assert not staged.path.exists()


def test_what_is_given_up_outlives_the_mount(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    area = StagingArea(tmp_path, 1000)
    staged = area.create()
    staged.write(0, b"mine")
    staged.mark_dirty(RECORD)
    staged.give_up("the cluster said no")
    os.close(area.lock)  # what the kernel does
    for _ in range(2):
        adopt_dead_sessions(tmp_path)
        (found,) = unsent_files(tmp_path)
        assert (found.id, found.path) == (f"{area._session.name}-1", staged.path)
        assert found.record.reason == "the cluster said no"
    assert caplog.text == "", "it was said when it was given up"
    found.drop()
    assert list(tmp_path.iterdir()) == []
    area.lock = os.open("/dev/null", os.O_RDONLY)


def test_a_clean_file_leaves_nothing(tmp_path: Path):
    area = StagingArea(tmp_path, 1000)
    staged = area.create()
    staged.write(0, b"x")
    staged.mark_dirty(RECORD)
    staged.mark_clean()
    area.close()
    assert list(area.directory.rglob("*")) == []


def test_files_are_used_again(area: StagingArea):
    for text in (b"first", b"2nd"):
        staged = area.create()
        staged.mark_dirty(RECORD)
        staged.write(0, text)
        assert (staged.size, staged.path.read_bytes()) == (len(text), text)
        staged.discard()
        assert staged.path.stat().st_size == 0
        assert staged.path.with_suffix(".json").stat().st_size == 0
    assert len(list(area.directory.rglob("*.data"))) == 1


def test_the_record_can_change(area: StagingArea):
    staged = area.create()
    staged.mark_dirty(RECORD)
    staged.mark_dirty(structs.replace(RECORD, mode=0o600))
    record = staged.path.with_suffix(".json")
    assert StagedRecord.decode(record.read_bytes()).mode == 0o600
    staged.mark_clean()
    assert record.read_bytes() == b""
    staged.mark_dirty(RECORD)
    assert StagedRecord.decode(record.read_bytes()) == RECORD


def test_the_end_of_a_mount_leaves_what_is_dirty(tmp_path: Path):
    area = StagingArea(tmp_path, 1000)
    dirty, clean = area.create(), area.create()
    dirty.mark_dirty(RECORD)
    clean.write(0, b"x")
    area.close()
    assert [one.record.key for one in unsent_files(tmp_path)] == ["k"]
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == ["1.data", "1.json"]


def test_a_living_session_is_left_alone(area: StagingArea):
    staged = area.create()
    staged.write(0, b"mine")
    staged.mark_dirty(RECORD)
    adopt_dead_sessions(area.directory)
    other = StagingArea(area.directory, 1000)
    assert unsent_files(area.directory) == []
    assert staged.read(0, 10) == b"mine"
    other.close()


def test_a_dead_session_is_adopted(tmp_path: Path):
    session = tmp_path / "dead0dead0de"
    session.mkdir()
    (session / "lock").touch()
    (session / "1.data").write_bytes(b"dirty")
    (session / "1.json").write_bytes(RECORD.encode())
    (session / "2.data").write_bytes(b"clean")
    (session / "3.json").write_bytes(RECORD.encode())
    (session / "4.data").write_bytes(b"clean, and its record cleared")
    (session / "4.json").write_bytes(b"")
    (session / "4.tmp").write_bytes(b"{")
    assert unsent_files(tmp_path) == [], "nobody has looked whether it is dead"
    adopt_dead_sessions(tmp_path)
    (found,) = unsent_files(tmp_path)
    assert found.path.read_bytes() == b"dirty"
    assert sorted(os.listdir(session)) == ["1.data", "1.json"]


def test_an_unreadable_record_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    session = tmp_path / "dead0dead0de"
    session.mkdir()
    (session / "1.json").write_bytes(b"not json")
    (session / "1.data").write_bytes(b"bytes")
    adopt_dead_sessions(tmp_path)
    assert unsent_files(tmp_path) == []
    assert "1.json" in caplog.text
    assert (session / "1.data").exists()


def test_a_directory_that_cannot_be_used(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="staging directory"):
        StagingArea(tmp_path / "file" / "staging", 1000)


def test_a_session_lives_while_its_lock_is_held(tmp_path: Path):
    area = StagingArea(tmp_path, 1000)
    staged = area.create()
    staged.write(0, b"mine")
    staged.mark_dirty(RECORD)
    kept = os.dup(area.lock)  # as a keeper has it
    os.close(area.lock)
    other = StagingArea(tmp_path, 1000)
    other.close()
    assert unsent_files(tmp_path) == []
    area.lock = os.open("/dev/null", os.O_RDONLY)
    following = StagingArea(tmp_path, 1000, lock=kept)
    found = following.take_over(staged.path.name)
    assert found is not None
    again, _ = found
    assert again.read(0, 10) == b"mine"
    assert again.record == RECORD
    assert following.used == 4
    again.write(4, b" and more")
    again.discard()
    following.close()
    assert os.listdir(tmp_path) == []
