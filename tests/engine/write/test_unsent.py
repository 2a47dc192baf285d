"""Journals of mounts that were killed: none is removed, and nothing comes back, whatever cannot be read."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aisfs.app.writing.recover import upload_acknowledged
from aisfs.core.staged.journal import encode
from aisfs.core.staged.record import StagedRecord
from aisfs.engine.write.unsent import UnsentFile, adopt_dead_sessions, unsent_files
from aisfs.errors import Stale, Unavailable
from aisfs.model import Bucket
from aisfs.store.memory import MemoryStore

SESSION = "0123456789ab"


def record(key: str) -> bytes:
    return StagedRecord("http://x", Bucket("b"), key).encode()


def entry(serial: int, *ended: int) -> bytes:
    return encode(serial, serial, ended, record(f"k{serial}"), b"content")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "parked").mkdir()
    return tmp_path


def killed(directory: Path, name: str = SESSION, **segments: bytes) -> Path:
    """Leave the session of a mount that was killed, with journals `n<number>`."""
    session = directory / name
    session.mkdir()
    (session / "lock").touch()
    for number, content in segments.items():
        (session / f"{number[1:]}.journal").write_bytes(content + bytes(100))
    return session


def names(directory: Path) -> list[str]:
    return [one.record.key for one in unsent_files(directory)]


def parked(directory: Path) -> list[str]:
    return sorted(os.listdir(directory / "parked"))


def refuse(name: str, code: int) -> Callable[[Path], bytes]:
    read = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path.name.endswith(name):
            raise OSError(code, os.strerror(code))
        return read(path)

    return refused


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("name", ["0.journal", "2.journal"])
def test_a_journal_that_cannot_be_read_is_kept_and_waits(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    name: str, code: int,
):  # fmt: skip
    killed(directory, n0=entry(0) + entry(1), n2=encode(2, 0, [0]))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse(name, code))
        for _ in range(2):
            adopt_dead_sessions(directory)
            assert names(directory) == [], "what has ended is not known"
    assert os.strerror(code) in caplog.text
    assert parked(directory) == [f"{SESSION}-0.journal", f"{SESSION}-2.journal"]
    adopt_dead_sessions(directory)
    assert names(directory) == ["k1"]


def test_a_journal_of_a_newer_layout_is_kept(directory: Path):
    newer = record("k1").replace(b'"layout":1', b'"layout":99')
    assert newer != record("k1")
    killed(directory, n0=encode(1, 0, [], newer, b"content"))
    for _ in range(2):
        adopt_dead_sessions(directory)
    assert names(directory) == []
    assert parked(directory) == [f"{SESSION}-0.journal"]


def test_a_line_that_was_cut_off_ends_nothing(directory: Path):
    killed(directory, n0=b"".join(entry(serial) for serial in (1, 2, 12, 23)))
    adopt_dead_sessions(directory)
    unsent_files(directory)[1].drop()
    ended = directory / "parked" / f"{SESSION}-0.ended"
    with ended.open("ab") as file:
        file.write(b"1")  # of 12
    adopt_dead_sessions(directory)
    assert names(directory) == ["k1", "k12", "k23"]
    unsent_files(directory)[2].drop()
    assert names(directory) == ["k1", "k12"]
    assert ended.read_bytes() == b"2\n23\n"
    for one in unsent_files(directory):
        one.drop()
    adopt_dead_sessions(directory)
    assert parked(directory) == []


def test_a_list_of_ends_that_is_damaged_removes_nothing(directory: Path):
    killed(directory, n0=entry(0))
    adopt_dead_sessions(directory)
    (directory / "parked" / f"{SESSION}-0.ended").write_bytes(b"0\0\0\n")
    adopt_dead_sessions(directory)
    assert names(directory) == []
    assert f"{SESSION}-0.journal" in parked(directory)


@pytest.mark.parametrize("moves", range(4))
def test_killed_while_journals_are_moved_nothing_comes_back(
    directory: Path, monkeypatch: pytest.MonkeyPatch, moves: int
):
    session = killed(
        directory,
        n0=entry(0) + entry(1),
        n5234=entry(5234, 0) + entry(5235),
        n10120=encode(10120, 0, [1, 5235]),
    )
    moved, rename = list[str](), Path.rename

    def move(path: Path, target: Path) -> Path:
        if len(moved) == moves:
            raise KeyboardInterrupt
        moved.append(path.name)
        assert names(directory) == [], "another process looks at it"
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", move)
        if moves < 3:
            with pytest.raises(KeyboardInterrupt):
                adopt_dead_sessions(directory)
        else:
            adopt_dead_sessions(directory)
    assert moved == ["0.journal", "5234.journal", "10120.journal"][:moves]
    assert session.exists() == (moves < 3)
    assert names(directory) == (["k5234"] if moves == 3 else [])
    adopt_dead_sessions(directory)
    assert names(directory) == ["k5234"]
    assert os.listdir(directory) == ["parked"]


@pytest.fixture
def same_name(directory: Path) -> list[UnsentFile]:
    """Leave two files of one name; the one that was written last has the older time."""
    for session, written, mtime_ns, content in (("a", 2000, 1, b"newer"), ("b", 1000, 9, b"older")):
        frame = encode(0, mtime_ns, [], record("k"), content)
        journal = killed(directory, session * 12, n0=frame) / "0.journal"
        os.utime(journal, (written, written))
    adopt_dead_sessions(directory)
    return unsent_files(directory)


async def test_of_one_name_the_newest_is_uploaded(directory: Path, same_name: list[UnsentFile]):
    store = MemoryStore()
    store.add_bucket(Bucket("b"))
    assert await upload_acknowledged(store, same_name) == []
    assert store.calls["upload"] == 1
    assert store._contents(Bucket("b")).objects["k"][1] == b"newer"
    assert names(directory) == []


async def test_the_older_ones_of_a_name_stay_with_the_newest(
    directory: Path, same_name: list[UnsentFile]
):
    store = MemoryStore()
    store.put(Bucket("b"), "k", b"theirs")
    failed = await upload_acknowledged(store, same_name)
    assert {one for one, _ in failed} == set(same_name)
    assert all(isinstance(error, Stale) for _, error in failed)
    assert store.calls["upload"] == 0
    assert names(directory) == ["k", "k"]


async def test_a_file_that_cannot_be_read_or_forgotten_stays(
    directory: Path, same_name: list[UnsentFile], monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    store = MemoryStore()
    store.add_bucket(Bucket("b"))
    with monkeypatch.context() as patch:
        patch.setattr(UnsentFile, "drop", full)
        failed = await upload_acknowledged(store, same_name)
    assert all(isinstance(error, Unavailable) for _, error in failed)
    assert names(directory) == ["k", "k"]
    store.delete(Bucket("b"), "k")
    assert await upload_acknowledged(store, same_name) == []
    gone = replace(same_name[0], path=directory / "parked" / "removed.journal")
    ((_, error),) = await upload_acknowledged(store, [gone])
    assert isinstance(error, Unavailable)
