"""The journal on the disk: told only when it is safe, flushed once for many, kept as long as it is needed."""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from aisfs.engine.writing import journal as journals
from aisfs.engine.writing import journal as segments
from aisfs.engine.writing.journal import Journal, JournalEntry, NewEntry, Outcome
from aisfs.engine.writing.on_disk import StagedRecord
from aisfs.engine.writing.staging import StagingArea
from aisfs.engine.writing.unsent import adopt_dead_sessions, unsent_files
from aisfs.errors import AisfsError, OutOfSpace, Unavailable
from aisfs.model import Bucket
from tests.support.mounts import eventually

RECORDS = [StagedRecord("http://x", Bucket("b"), f"k{number}").encode() for number in range(200)]
JOURNAL_BYTES = 1 << 16


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "JOURNAL_BYTES", JOURNAL_BYTES)
    monkeypatch.setattr(journals, "ENDS_BYTES", JOURNAL_BYTES // 16)


@pytest.fixture
def area(tmp_path: Path) -> Iterator[StagingArea]:
    area = StagingArea(tmp_path / "staging", 10 * JOURNAL_BYTES, journal=True)
    yield area
    area.close()


def of(area: StagingArea) -> Journal:
    assert area.journal is not None
    return area.journal


def names(directory: Path) -> list[str]:
    return [one.record.key for one in unsent_files(directory)]


class Disk:
    """Counts what is written through to it, and holds or refuses that."""

    def __init__(self, write: Callable[[int, memoryview, int], int]) -> None:
        self.writes = 0
        self.free = threading.Event()
        self.free.set()
        self.fails = False
        self.torn = False
        self.seconds = 0.0
        self._write = write

    def write(self, descriptor: int, data: memoryview, start: int) -> int:
        self.free.wait(60)
        time.sleep(self.seconds)
        if self.torn:  # as when the disk is full, or gone, in the middle
            self._write(descriptor, data[: len(data) // 2], start)
        if self.fails or self.torn:
            raise OSError(errno.EIO, "the disk is broken")
        self.writes += 1
        return self._write(descriptor, data, start)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(segments.write_through)
    monkeypatch.setattr(segments, "write_through", disk.write)
    return disk


async def test_an_entry_is_read_back(area: StagingArea):
    entry = await of(area).keep(NewEntry(RECORDS[0], b"content", 5, []))
    assert (entry.read(0, 100), entry.read(3, 2), entry.read(9, 1)) == (b"content", b"te", b"")
    buffer = bytearray(4)
    entry.content().read_into(3, memoryview(buffer))
    assert buffer == b"tent"


def test_nothing_is_told_before_the_disk_has_it_and_many_share_a_flush(
    area: StagingArea, disk: Disk
):
    told: list[Outcome] = []
    disk.free.clear()
    of(area).put(told.append, NewEntry(record=RECORDS[0], content=b"first"))
    assert eventually(lambda: of(area)._asked.empty())
    for record in RECORDS[1:100]:
        of(area).put(told.append, NewEntry(record=record, content=b"more"))
    assert told == []
    disk.free.set()
    assert eventually(lambda: len(told) == 100)
    assert disk.writes == 2
    assert all(isinstance(one, JournalEntry) for one in told)


async def test_a_disk_that_fails_is_told_and_what_was_told_before_stays(
    area: StagingArea, disk: Disk
):
    kept = await of(area).keep(NewEntry(RECORDS[0], b"kept", 1, []))
    disk.fails = True
    with pytest.raises(Unavailable, match="broken"):
        await of(area).keep(NewEntry(RECORDS[1], b"lost", 2, []))
    disk.fails = False
    assert (await of(area).keep(NewEntry(RECORDS[2], b"later", 3, []))).segment is not kept.segment
    assert kept.read(0, 9) == b"kept"


async def test_what_was_torn_is_told_and_what_follows_is_not_lost(
    area: StagingArea, disk: Disk, tmp_path: Path
):
    await of(area).keep(NewEntry(RECORDS[0], b"kept", 1, []))
    disk.torn = True
    with pytest.raises(Unavailable, match="broken"):
        await of(area).keep(NewEntry(RECORDS[1], b"lost" * 100, 2, []))
    disk.torn = False
    await of(area).keep(NewEntry(RECORDS[2], b"later", 3, []))
    assert left_by(area, tmp_path) == ["k0", "k2"]


@pytest.mark.parametrize(
    ("error", "refusal"), [(errno.ENOSPC, OutOfSpace), (errno.EIO, Unavailable)]
)
def test_what_was_told_as_failed_is_not_found_although_the_disk_has_it(
    error: int,
    refusal: type[AisfsError],
    area: StagingArea,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    calls, free, write = iter(range(100)), threading.Event(), segments.write_through

    def fill_up(descriptor: int, data: memoryview, start: int) -> int:
        call = next(calls)
        if call == 1:
            free.wait(60)
        if call == 3:
            raise OSError(error, "the disk refuses it")
        return write(descriptor, data[:-100] if call == 2 else data, start)

    monkeypatch.setattr(segments, "write_through", fill_up)
    told: list[Outcome] = []
    of(area).put(told.append, NewEntry(record=RECORDS[0], content=b"kept"))
    assert eventually(lambda: len(told) == 1)
    (kept,) = told
    assert isinstance(kept, JournalEntry)
    of(area).put(told.append, NewEntry(record=RECORDS[1], content=b"keeps the thread busy"))
    assert eventually(lambda: of(area)._asked.empty())
    of(area).put(
        told.append, NewEntry(record=RECORDS[2], content=b"whole, and ends another", ended=[kept])
    )
    of(area).put(told.append, NewEntry(record=RECORDS[3], content=b"cut off" * 100))
    free.set()
    assert eventually(lambda: len(told) == 4)
    assert [type(one) for one in told[2:]] == [refusal, refusal]
    assert left_by(area, tmp_path / "first") == ["k0", "k1"]
    of(area).end([kept])  # for this the full disk has room still
    assert eventually(lambda: left_by(area, tmp_path / str(next(calls))) == ["k1"])


def left_by(area: StagingArea, place: Path) -> list[str]:
    """What the next mount finds if the daemon is killed now."""
    left = place / "left"
    shutil.copytree(area.directory, left)
    adopt_dead_sessions(left)
    return names(left)


def put_here(
    area: StagingArea,
    record: bytes,
    content: bytes = b"content",
    told: Callable[[], None] = lambda: None,
) -> Outcome:
    return of(area).try_put(told, NewEntry(record=record, content=content, mtime_ns=5, ended=()))


async def test_a_quick_disk_is_written_to_by_who_asks(
    area: StagingArea, disk: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(journals, "QUICK_SECONDS", 60)
    assert put_here(area, RECORDS[0]) is None, "nothing is known of the disk"
    await of(area).keep(NewEntry(RECORDS[0], b"first", 0, []))
    written: list[int] = []
    entry = put_here(area, RECORDS[1], b"second", lambda: written.append(disk.writes))
    assert isinstance(entry, JournalEntry)
    assert written == [2], "it is told when the disk has it"
    assert entry.read(0, 99) == b"second"
    assert left_by(area, tmp_path) == ["k0", "k1"]
    of(area).end([entry])
    await of(area).settled()
    assert entry.segment.live == 1


async def test_nobody_waits_for_a_slow_disk_but_the_journals_thread(area: StagingArea, disk: Disk):
    disk.seconds = 2 * journals.QUICK_SECONDS
    await of(area).keep(NewEntry(RECORDS[0], b"content", 0, []))
    assert put_here(area, RECORDS[1]) is None


async def test_nobody_waits_while_others_are_written(
    area: StagingArea, disk: Disk, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journals, "QUICK_SECONDS", 60)
    await of(area).keep(NewEntry(RECORDS[0], b"content", 0, []))
    disk.free.clear()
    told: list[Outcome] = []
    of(area).put(told.append, NewEntry(record=RECORDS[1], content=b"content"))
    assert eventually(lambda: of(area)._asked.empty())
    assert put_here(area, RECORDS[2]) is None, "the thread is at it"
    of(area).put(told.append, NewEntry(record=RECORDS[2], content=b"content"))
    assert put_here(area, RECORDS[3]) is None, "another waits for its turn"
    disk.free.set()
    assert eventually(lambda: len(told) == 2)


async def test_nobody_waits_for_another_journal_to_be_made(
    area: StagingArea, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journals, "QUICK_SECONDS", 60)
    entry = await of(area).keep(NewEntry(RECORDS[0], bytes(JOURNAL_BYTES // 2), 0, []))
    assert put_here(area, RECORDS[1], bytes(JOURNAL_BYTES // 2)) is None
    small = put_here(area, RECORDS[1], bytes(JOURNAL_BYTES // 8))
    assert isinstance(small, JournalEntry)
    assert small.segment is entry.segment


async def test_who_asks_is_told_that_a_quick_disk_fails(
    area: StagingArea, disk: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(journals, "QUICK_SECONDS", 60)
    kept = await of(area).keep(NewEntry(RECORDS[0], b"kept", 0, []))
    disk.torn = True
    told: list[str] = []
    assert isinstance(put_here(area, RECORDS[1], told=lambda: told.append("safe")), Unavailable)
    assert told == []
    disk.torn = False
    later = await of(area).keep(NewEntry(RECORDS[2], b"later", 0, []))
    assert later.segment is not kept.segment
    assert left_by(area, tmp_path) == ["k0", "k2"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["encode", "content_at"])
async def test_a_bug_is_told_and_the_next_entry_is_written(
    area: StagingArea, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
):
    def fail(*_: object, **__: object) -> bytes:
        raise ValueError("unforeseen")

    kept = await of(area).keep(NewEntry(RECORDS[0], b"kept", 1, []))
    with monkeypatch.context() as patch:
        patch.setattr(journals, name, fail)
        with pytest.raises(Unavailable, match="unforeseen"):
            await of(area).keep(NewEntry(RECORDS[1], b"lost", 2, []))
    assert "bug in aisfs" in caplog.text
    later = await of(area).keep(NewEntry(RECORDS[2], b"later", 1 << 63, []))
    assert (kept.read(0, 9), later.read(0, 9)) == (b"kept", b"later")


@pytest.mark.timeout(20)
async def test_who_cannot_be_told_does_not_keep_others_from_it(
    area: StagingArea, caplog: pytest.LogCaptureFixture
):
    def fail(_: Outcome) -> None:
        raise ValueError("unforeseen")

    of(area).put(fail, NewEntry(record=RECORDS[0], content=b"content"))
    assert (await of(area).keep(NewEntry(RECORDS[1], b"next", 1, []))).read(0, 9) == b"next"
    assert "unforeseen" in caplog.text


@pytest.mark.timeout(20)
async def test_an_old_journal_that_cannot_be_removed_ends_nothing(
    area: StagingArea, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "read-only by now")

    first = await of(area).keep(NewEntry(RECORDS[0], bytes(JOURNAL_BYTES // 2), 0, []))
    await of(area).keep(NewEntry(RECORDS[1], bytes(JOURNAL_BYTES // 2), 0, []))
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        of(area).end([first])
        await of(area).settled()
        assert eventually(lambda: area.used == JOURNAL_BYTES)
    assert (await of(area).keep(NewEntry(RECORDS[2], b"later", 0, []))).read(0, 9) == b"later"


@pytest.mark.timeout(20)
async def test_without_its_thread_nobody_waits(area: StagingArea):
    of(area)._asked.put(None)
    assert eventually(lambda: not of(area)._thread.is_alive())
    with pytest.raises(Unavailable, match="has ended"):
        await of(area).keep(NewEntry(RECORDS[0], b"content", 0, []))


async def test_old_journals_go_when_nothing_in_them_waits(area: StagingArea):
    first = await of(area).keep(NewEntry(RECORDS[0], b"first", 0, []))
    entries = [
        await of(area).keep(NewEntry(record, bytes(10_000), 0, [])) for record in RECORDS[1:20]
    ]
    folder = first.segment.path.parent

    def journals_left() -> int:
        return sum(name.endswith(".journal") for name in os.listdir(folder))

    assert journals_left() == 4
    assert area.used == 4 * JOURNAL_BYTES
    of(area).end(entries)
    await of(area).settled()
    assert journals_left() == 4, "the later ones say what has ended in the first"
    of(area).end([first])
    assert eventually(lambda: journals_left() == 1)
    assert eventually(lambda: area.used == JOURNAL_BYTES)


async def test_what_has_ended_is_read_to_its_end(area: StagingArea):
    first = await of(area).keep(NewEntry(RECORDS[0], b"first", 0, []))
    last = await of(area).keep(NewEntry(RECORDS[1], bytes(JOURNAL_BYTES // 2), 0, []))
    last = await of(area).keep(NewEntry(RECORDS[1], bytes(JOURNAL_BYTES // 2), 0, [last]))
    of(area).end([first])
    path, descriptor = first.segment.path, first.segment.descriptor
    assert eventually(lambda: not path.exists() and area.used == JOURNAL_BYTES)
    assert first.read(0, 99) == b"first"
    del first
    await of(area).keep(NewEntry(RECORDS[2], b"so that the thread forgets it", 0, []))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert last.segment.path.exists()


async def test_without_room_it_is_refused(tmp_path: Path):
    area = StagingArea(tmp_path / "staging", JOURNAL_BYTES - 1, journal=True)
    with pytest.raises(OutOfSpace, match="staging directory"):
        await of(area).keep(NewEntry(RECORDS[0], b"content", 0, []))
    area.close()
    assert unsent_files(tmp_path / "staging") == []


async def test_an_end_that_could_not_be_written_is_written_later(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journals, "_OWED_SECONDS", 0.1)
    area = StagingArea(tmp_path, 10 * JOURNAL_BYTES, journal=True)
    first, second, third = [
        await of(area).keep(NewEntry(r, b"content", 0, [])) for r in RECORDS[:3]
    ]
    disk.fails = True
    of(area).end([first])
    of(area).end([second])
    await of(area).settled()
    assert caplog.text.count("would come back after a crash") == 1
    assert first.segment.live == 3, "the disk may have nothing of it"
    disk.fails = False
    assert eventually(lambda: first.segment.live == 1)
    monkeypatch.setattr(journals, "_OWED_SECONDS", 60)
    disk.fails = True
    of(area).end([third])
    await of(area).settled()
    disk.fails = False
    await trio.to_thread.run_sync(area.close)
    assert unsent_files(tmp_path) == []
    assert os.listdir(tmp_path) == []


async def test_what_ends_has_room_where_nothing_else_has(tmp_path: Path):
    area = StagingArea(tmp_path, 2 * JOURNAL_BYTES - 1, journal=True)
    entries: list[JournalEntry] = []

    async def fill() -> None:
        for record in RECORDS:
            entries.extend([await of(area).keep(NewEntry(record, bytes(1000), 0, []))])

    with pytest.raises(OutOfSpace):
        await fill()
    assert len(entries) > 40
    for entry in entries[1:]:
        of(area).end([entry])
    await of(area).settled()
    os.close(area.lock)  # what the kernel does
    adopt_dead_sessions(tmp_path)
    assert names(tmp_path) == ["k0"]
    area.lock = os.open("/dev/null", os.O_RDONLY)
    await trio.to_thread.run_sync(of(area).close)


async def test_what_waits_survives_the_end_of_the_session(tmp_path: Path):
    area = StagingArea(tmp_path, 10 * JOURNAL_BYTES, journal=True)
    entries = [
        await of(area).keep(NewEntry(r, bytes(9000) + r, n, [])) for n, r in enumerate(RECORDS[:20])
    ]
    of(area).end(entries[:15])
    again = await of(area).keep(NewEntry(RECORDS[16], b"newer", 50, [entries[16]]))
    assert again.serial > entries[16].serial
    area.close()
    found = unsent_files(tmp_path)
    assert [one.record.key for one in found] == ["k15", "k17", "k18", "k19", "k16"]
    assert all(one.acknowledged for one in found)
    with found[-1].content() as content:
        buffer = bytearray(content.size)
        content.read_into(0, memoryview(buffer))
        assert buffer == b"newer"
    found[0].drop()
    assert names(tmp_path) == ["k17", "k18", "k19", "k16"]
    for one in found[1:]:
        one.drop()
    adopt_dead_sessions(tmp_path)
    assert os.listdir(tmp_path) == []


async def test_what_waits_survives_a_kill(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    area = StagingArea(tmp_path, 10 * JOURNAL_BYTES, journal=True)
    await of(area).keep(NewEntry(RECORDS[0], b"one", 0, []))
    ended = await of(area).keep(NewEntry(RECORDS[1], b"two", 0, []))
    of(area).end([ended])
    await of(area).settled()
    os.close(area.lock)  # what the kernel does
    adopt_dead_sessions(tmp_path)
    assert names(tmp_path) == ["k0"]
    assert "1 files that were closed wait" in caplog.text
    assert os.listdir(area._session) == ["0.journal"]
    area.lock = os.open("/dev/null", os.O_RDONLY)
    await trio.to_thread.run_sync(of(area).close)
