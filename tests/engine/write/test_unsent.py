"""Journals of mounts that were killed: none is removed, and nothing comes back, whatever cannot be read."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aisfs.core.staged.journal import encode
from aisfs.core.staged.record import StagedRecord
from aisfs.engine.write.unsent import adopt_dead_sessions, unsent_files
from aisfs.model import Bucket

SESSION = "0123456789ab"


def record(key: str) -> bytes:
    return StagedRecord("http://x", Bucket("b"), key).encode()


def entry(serial: int, *ended: int) -> bytes:
    return encode(serial, serial, ended, record(f"k{serial}"), b"content")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "parked").mkdir()
    return tmp_path


def killed(directory: Path, **segments: bytes) -> Path:
    """Leave the session of a mount that was killed, with journals `n<number>`."""
    session = directory / SESSION
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
