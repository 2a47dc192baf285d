"""Journals of mounts that were killed: none is removed, and nothing comes back, whatever cannot be read."""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from aisfs.engine.writing.on_disk import StagedRecord, encode, session_seed, version_text
from aisfs.engine.writing.unsent import (
    UnsentFile,
    adopt_dead_sessions,
    lost_parts,
    unsent_files,
)
from aisfs.errors import Stale, Unavailable
from aisfs.model import Bucket
from aisfs.mount.recovery import upload_acknowledged
from aisfs.stores.memory import MemoryStore
from tests.support.old_journal import old_frame

SESSION = "0123456789ab"


def record(key: str) -> bytes:
    return StagedRecord("http://x", Bucket("b"), key).encode()


def frame(
    serial: int, ended: tuple[int, ...] = (), of: bytes = b"", content: bytes = b"",
    *, session: str = SESSION, mtime_ns: int = 0, written_ns: int = 1,
) -> bytes:  # fmt: skip
    return encode(
        serial, mtime_ns, ended, of, content,
        written_ns=written_ns, seed=session_seed(session), capacity=0,
    )  # fmt: skip


def entry(serial: int, *ended: int) -> bytes:
    return frame(serial, ended, record(f"k{serial}"), b"content", mtime_ns=serial)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
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


def kept(directory: Path) -> list[str]:
    """Give what is left of the session that is over."""
    assert set(os.listdir(directory)) <= {SESSION}
    session = directory / SESSION
    return sorted(os.listdir(session)) if session.exists() else []


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
    killed(directory, n0=entry(0) + entry(1), n2=frame(2, (0,)))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse(name, code))
        for _ in range(2):
            adopt_dead_sessions(directory)
            assert names(directory) == [], "what has ended is not known"
    assert os.strerror(code) in caplog.text
    assert kept(directory) == ["0.journal", "2.journal"]
    adopt_dead_sessions(directory)
    assert names(directory) == ["k1"]


def test_a_journal_of_a_newer_layout_is_kept(directory: Path):
    newer = record("k1").replace(b'"layout":1', b'"layout":99')
    assert newer != record("k1")
    killed(directory, n0=frame(1, (), newer, b"content"))
    for _ in range(2):
        adopt_dead_sessions(directory)
    assert names(directory) == []
    assert kept(directory) == ["0.journal"]


def test_a_line_that_was_cut_off_ends_nothing(directory: Path):
    killed(directory, n0=b"".join(entry(serial) for serial in (1, 2, 12, 23)))
    adopt_dead_sessions(directory)
    unsent_files(directory)[1].drop()
    ended = directory / SESSION / "0.ended"
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
    assert kept(directory) == []


def test_a_list_of_ends_that_is_damaged_removes_nothing(directory: Path):
    killed(directory, n0=entry(0))
    adopt_dead_sessions(directory)
    (directory / SESSION / "0.ended").write_bytes(b"0\0\0\n")
    adopt_dead_sessions(directory)
    assert names(directory) == []
    assert "0.journal" in kept(directory)


def over(directory: Path) -> Path:
    """Leave a session of which one file waits, in the second of its journals."""
    return killed(
        directory,
        n0=entry(0) + entry(1),
        n5234=entry(5234, 0) + entry(5235),
        n10120=frame(10120, (1, 5235)),
    )


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("removals", range(10))
def test_killed_while_a_session_ends_nothing_comes_back(
    directory: Path, monkeypatch: pytest.MonkeyPatch, removals: int, waits: bool
):
    session = over(directory)
    if not waits:
        (session / "10120.journal").write_bytes(frame(10120, (1, 5234, 5235)))
    for number in (1, 2):
        (session / f"{number}.data").write_bytes(b"clean")
        (session / f"{number}.json").touch()
    removed, unlink = list[str](), Path.unlink

    def remove(path: Path, missing_ok: bool = False) -> None:
        if len(removed) == removals:
            raise KeyboardInterrupt
        removed.append(path.name)
        assert names(directory) == [], "another process looks at it"
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", remove)
        with suppress(KeyboardInterrupt):
            adopt_dead_sessions(directory)
    journals = [] if waits else ["0.journal", "5234.journal", "10120.journal"]
    assert set(removed[:4]) <= {"1.data", "1.json", "2.data", "2.json"}
    assert removed[4:] == [*journals, "lock"][: max(removals - 4, 0)]
    ended = len(removed) == 5 + len(journals)
    assert names(directory) == (["k5234"] if waits and ended else [])
    adopt_dead_sessions(directory)
    assert names(directory) == (["k5234"] if waits else [])
    assert os.listdir(directory) == ([SESSION] if waits else [])


@pytest.mark.parametrize("moves", range(4))
def test_what_earlier_versions_moved_is_found(directory: Path, moves: int):
    """They moved journals one by one, and were killed in between; and the bytes before their record."""
    session, moved = over(directory), directory / "parked"
    moved.mkdir()
    (moved / "uploading").touch()
    (session / "1.data").write_bytes(b"staged")
    (session / "1.json").write_bytes(record("staged"))
    for name in ["0.journal", "5234.journal", "10120.journal"][:moves]:
        (session / name).rename(moved / f"{SESSION}-{name}")
    if moves:
        os.link(session / "1.data", moved / f"{SESSION}-1.data")
    assert names(directory) == [], "the other version may be at it"
    if moves == 3:
        (session / "1.json").rename(moved / f"{SESSION}-1.json")
        for path in session.iterdir():
            path.unlink()
        session.rmdir()
    adopt_dead_sessions(directory)
    found = {one.record.key: one for one in unsent_files(directory)}
    assert sorted(found) == ["k5234", "staged"]
    assert found["k5234"].id == f"{SESSION}-5234-5234"
    assert found["staged"].id == f"{SESSION}-1"
    assert found["staged"].path.read_bytes() == b"staged"
    for one in found.values():
        one.drop()
    adopt_dead_sessions(directory)
    assert names(directory) == []
    assert [path.name for path in directory.rglob("*") if path.is_file()] == ["uploading"]


def test_nothing_of_anybody_else_is_touched(directory: Path):
    for name in ("lost+found", "photos", "parked"):
        (directory / name).mkdir()
        (directory / name / "1.journal").touch()
        (directory / name / "1.data").touch()
    adopt_dead_sessions(directory)
    assert len(list(directory.glob("*/1.*"))) == 6


def left_by(
    directory: Path, session: str, content: bytes, *, written_ns: int, base: str = ""
) -> None:
    """Leave a file `k`; the older one has the newer time of file and journal."""
    encoded = StagedRecord("http://x", Bucket("b"), "k", base=base).encode()
    made = frame(
        0, (), encoded, content, session=session * 12, mtime_ns=-written_ns, written_ns=written_ns
    )
    path = killed(directory, session * 12, n0=made) / "0.journal"
    os.utime(path, (5000 - written_ns, 5000 - written_ns))


@pytest.fixture(params=["ab", "ba"])
def same_name(request: pytest.FixtureRequest, directory: Path) -> list[UnsentFile]:
    """Leave two files of one name, whichever is found first."""
    first, second = request.param
    left_by(directory, first, b"newer", written_ns=2000)
    left_by(directory, second, b"older", written_ns=1000)
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


async def test_of_what_is_forgotten_after_its_upload_the_newest_goes_last(
    directory: Path, same_name: list[UnsentFile], monkeypatch: pytest.MonkeyPatch
):
    """As when it is killed in between: of an older one alone `aisfs recover` would offer outdated content."""
    store, dropped, drop = MemoryStore(), list[UnsentFile](), UnsentFile.drop
    store.add_bucket(Bucket("b"))

    def drop_one(one: UnsentFile) -> None:
        if dropped:
            raise OSError(errno.ENOSPC, "no space")
        dropped.append(one)
        drop(one)

    with monkeypatch.context() as patch:
        patch.setattr(UnsentFile, "drop", drop_one)
        await upload_acknowledged(store, same_name)
    assert store._contents(Bucket("b")).objects["k"][1] == b"newer"
    assert [one.written_ns for one in unsent_files(directory)] == [2000]


async def test_one_of_the_version_that_is_there_goes_before_newer_ones_of_another(directory: Path):
    store = MemoryStore()
    theirs = store.put(Bucket("b"), "k", b"theirs")
    left_by(directory, "a", b"of nothing", written_ns=3000)
    left_by(directory, "b", b"of theirs", written_ns=2000, base=version_text(theirs))
    left_by(directory, "c", b"older", written_ns=1000)
    adopt_dead_sessions(directory)
    ((one, error),) = await upload_acknowledged(store, unsent_files(directory))
    assert isinstance(error, Stale)
    assert one.written_ns == 3000
    assert store._contents(Bucket("b")).objects["k"][1] == b"of theirs"
    assert [one.written_ns for one in unsent_files(directory)] == [3000]


def old_session(directory: Path, name: str, written: int, *frames: bytes) -> None:
    path = killed(directory, name * 12, n0=b"".join(frames)) / "0.journal"
    os.utime(path, (written, written))


async def test_journals_of_older_versions_are_uploaded_in_their_order(directory: Path):
    old_session(directory, "a", 2000, old_frame(0, 1, [], record("k"), b"newer"))
    old_session(directory, "b", 1000, old_frame(0, 9, [], record("k"), b"older"))
    adopt_dead_sessions(directory)
    store = MemoryStore()
    store.add_bucket(Bucket("b"))
    assert await upload_acknowledged(store, unsent_files(directory)) == []
    assert store._contents(Bucket("b")).objects["k"][1] == b"newer"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_damaged_content_is_told_and_kept_and_the_others_are_not(
    directory: Path, caplog: pytest.LogCaptureFixture
):
    first = entry(1)
    session = killed(directory, n0=first + entry(2, 1) + entry(3))
    flip(session / "0.journal", len(first) + entry(2, 1).index(b"content"))
    for _ in range(3):
        adopt_dead_sessions(directory)
        assert names(directory) == ["k3"], "the damaged one has ended the first"
    assert caplog.text.count("ais://b/k2: its 7 bytes are damaged") == 1
    (lost,) = lost_parts(directory)
    assert lost.record is not None
    unsent_files(directory)[0].drop()
    adopt_dead_sessions(directory)
    assert "0.journal" in kept(directory), "nobody has decided about it"
    lost.drop()
    assert lost_parts(directory) == []
    adopt_dead_sessions(directory)
    assert kept(directory) == []


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("old", [True, False])
def test_a_damaged_frame_is_told_and_kept(
    directory: Path, caplog: pytest.LogCaptureFixture, place: int, old: bool
):
    made = [old_frame(n, n, [], record(f"k{n}"), b"content") if old else entry(n) for n in range(3)]
    session = killed(directory, n0=b"".join(made))
    start = sum(map(len, made[:place]))
    for at in (start + 10, start + len(made[place]) - 10):  # both of its blocks
        flip(session / "0.journal", at)
    for _ in range(3):
        adopt_dead_sessions(directory)
        assert names(directory) == [f"k{n}" for n in range(3) if n != place]
    assert caplog.text.count("are damaged or missing") == 1
    for one in unsent_files(directory):
        one.drop()
    adopt_dead_sessions(directory)
    assert "0.journal" in kept(directory)
    (lost,) = lost_parts(directory)
    assert lost.id == f"{SESSION}-0-at-{start}"
    lost.drop()
    adopt_dead_sessions(directory)
    assert kept(directory) == []


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
    gone = replace(same_name[0], path=directory / SESSION / "removed.journal")
    ((_, error),) = await upload_acknowledged(store, [gone])
    assert isinstance(error, Unavailable)
