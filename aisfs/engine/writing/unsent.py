"""Recovery of files that were not uploaded: of daemons that were killed, or whose uploads failed for good.

What a daemon could not upload stays where it was staged, in the directory of its session. The session is over once its `lock` is
gone: the daemon removes it at its end, after all that nobody needs; of a daemon that was killed, the next one does both, or
`aisfs recover`. From then on, all that is left in the directory is unsent. As long as a daemon lives, others look only at
the staged files that it has given up: their records say why.
"""

import errno
import fcntl
import functools
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from aisfs.engine.writing.on_disk import (
    DATA,
    ENDED,
    JOURNAL,
    LOCK,
    PARKED,
    RECORD,
    Frame,
    Gap,
    StagedRecord,
    decode,
    live,
    of_staging_disk,
    session_seed,
)
from aisfs.errors import Unavailable
from aisfs.stores.port import Content, FileContent, PartOfContent

log = logging.getLogger(__name__)

_NAME = re.compile("[0-9a-f]{12}")
"""Names of sessions: nothing else in the directory is touched."""
_LINE_MOST = 32
"""Bytes of a line of what has ended: a number of 64 bits, and more."""


@dataclass(frozen=True, slots=True)
class UnsentFile:
    """A file that was never uploaded."""

    record: StagedRecord
    path: Path
    """Its bytes."""
    size: int
    mtime_ns: int

    serial: int = 0
    """Of a file in a journal its number there."""
    start: int = 0
    """Where its bytes begin."""
    written_ns: int = 0
    """When a file in a journal was closed."""

    @property
    def id(self) -> str:
        """A short name for the command line."""
        return f"{_id_of(self.path)}-{self.serial}" if self.acknowledged else _id_of(self.path)

    @property
    def name(self) -> str:
        """The name of the object."""
        return self.record.name

    @property
    def acknowledged(self) -> bool:
        """Whether its close returned 0, so that it is uploaded without being asked for."""
        return self.path.suffix == JOURNAL

    @contextmanager
    def content(self) -> Iterator[Content]:
        """Open its bytes."""
        with self.path.open("rb") as file:
            whole = FileContent(file.fileno(), self.start + self.size, str(self.path))
            yield PartOfContent(whole, self.start, self.size) if self.start else whole

    def drop(self) -> None:
        """Remove it for good."""
        if self.acknowledged:
            _end_in_journal(self.path, self.serial)
            return
        self.path.with_suffix(RECORD).unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
        with suppress(OSError):  # there is more in it
            self.path.parent.rmdir()


@dataclass(frozen=True, slots=True)
class LostPart:
    """A part of a journal that is not what was written: files that were closed, or the content of one."""

    path: Path
    """The journal."""
    number: int | None
    """What is recorded when it is dropped: the serial of a file, or a negative number. None if the journal
    cannot be read: it may be readable later."""
    reason: str
    """What is wrong, for the user."""
    record: StagedRecord | None = None
    """Of the file, if that much is known."""

    @property
    def id(self) -> str:
        """A short name for the command line."""
        if self.number is None:
            return _id_of(self.path)
        return f"{_id_of(self.path)}-{self.number if self.record else f'at-{-1 - self.number}'}"

    @property
    def name(self) -> str:
        """The name of the file, if it is known, or the journal."""
        return self.record.name if self.record else str(self.path)

    def __str__(self) -> str:
        """Say what is lost."""
        return f"{self.name}: {self.reason}" + (f" in {self.path}" if self.record else "")

    def drop(self) -> None:
        """Let the journal be removed once nothing else in it waits."""
        if self.number is None:
            raise Unavailable(str(self))
        _end_in_journal(self.path, self.number)


def _id_of(path: Path) -> str:
    """Return a name of a file that no file of another session has."""
    return path.stem if path.parent.name == PARKED else f"{path.parent.name}-{path.stem}"


@dataclass(slots=True)
class _Left:
    """What is left in the journals of one session."""

    waiting: list[UnsentFile] = field(default_factory=list)
    """Files that have not ended."""
    lost: list[LostPart] = field(default_factory=list)
    repaired: dict[Path, int] = field(default_factory=dict)
    """In how many places a journal is damaged without a loss."""
    readable: bool = True
    """Whether all could be read. If not, what has ended is not known either: nothing may be uploaded."""

    @property
    def over(self) -> bool:
        """Whether the journals are not needed any more."""
        return self.readable and not self.waiting and not self.lost


@dataclass(frozen=True, slots=True)
class Session:
    """The files of one session, as they were at one moment."""

    path: Path
    files: list[Path]
    """In the order in which they may be removed."""
    lives: bool
    """Whether its daemon may live, or another process ends it."""

    @classmethod
    def at(cls, path: Path) -> "Session":
        """Look at a session; the error of a directory that cannot be read is raised."""
        names = _names(path)
        files = [path / name for name in names]
        files += [
            path.parent / PARKED / name
            for name in _moved(path.parent)
            if name.partition("-")[0] == path.name
        ]
        return cls(path, sorted(files, key=_order), LOCK in names)

    def dirty(self) -> Iterator[Path]:
        """Find the records of the staged files that are not in the store."""
        for path in self.files:
            with suppress(FileNotFoundError):
                if path.suffix == RECORD and path.stat().st_size:
                    path.with_suffix(DATA).stat()
                    yield path

    def staged(self) -> Iterator[UnsentFile]:
        """Read these records. What cannot be read is logged and kept."""
        for path in self.dirty():
            data = path.with_suffix(DATA)
            try:
                status = data.stat()
                record = StagedRecord.decode(path.read_bytes())
            except FileNotFoundError:
                continue  # dropped meanwhile
            except (OSError, ValueError) as error:
                if not self.lives:  # else it is being written
                    log.warning("%s: %s", path, error)
                continue
            if record.reason or not self.lives:
                yield UnsentFile(record, data, status.st_size, status.st_mtime_ns)

    def left(self) -> _Left:
        """Read the journals."""
        frames: list[Frame] = []
        places: dict[int, tuple[Path, int]] = {}
        gone: set[int] = set()
        left = _Left()
        for path in self.files:
            if path.suffix != JOURNAL:
                continue
            try:
                here, gaps = decode(path.read_bytes(), session_seed(self.path.name))
                written_ns = path.stat().st_mtime_ns  # older frames do not say
                ended = _ended_in(path)
            except FileNotFoundError:
                left.readable = False  # nothing waited in any, and another process removes them
            except (OSError, ValueError) as error:
                log.warning("%s is kept, and what waits with it: %s", path, error)
                left.lost.append(LostPart(path, None, f"it cannot be read: {error}"))
                left.readable = False
            else:
                frames += here
                if repaired := sum(frame.repaired for frame in here):
                    left.repaired[path] = repaired
                places |= {frame.serial: (path, written_ns) for frame in here}
                gone |= {number for number in ended if number >= 0}
                left.lost += [_lost(path, gap) for gap in gaps if -1 - gap.start not in ended]
        for frame in live(frames):
            if frame.record is not None and frame.serial not in gone:
                _add(left, frame, frame.record, *places[frame.serial])
        return left

    def remove_rest(self) -> int:
        """Remove what nobody needs of a session that is over; return how many files wait in its journals."""
        left = self.left()
        needed = {file for path in self.dirty() for file in (path, path.with_suffix(DATA))}
        if not left.over:
            needed |= {path for path in self.files if path.suffix in (JOURNAL, ENDED)}
        for path in self.files:
            if path not in needed:
                path.unlink(missing_ok=True)
        if self.files:  # else it may be about to begin
            with suppress(OSError):  # something is needed
                self.path.rmdir()
        return len(left.waiting)


def _sessions(directory: Path) -> Iterator[Session]:
    names = {*_names(directory), *(name.partition("-")[0] for name in _moved(directory))}
    return (Session.at(directory / name) for name in sorted(names) if _NAME.fullmatch(name))


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _moved(directory: Path) -> list[str]:
    """Return the names of what earlier versions moved: those of the session, and of the file in it."""
    return [name for name in _names(directory / PARKED) if "-" in name]


def _order(path: Path) -> tuple[int, int, str]:
    """Return in which order files are removed.

    The later journals say what has ended in the earlier ones, and the lists what else has. The lock goes last: as long as
    it is there, no other process looks at the rest.
    """
    kinds = (JOURNAL, ENDED, "")
    number = path.stem.rpartition("-")[2]
    return kinds.index(path.suffix) if path.suffix in kinds else -1, len(number), number


def _add(
    left: _Left, frame: Frame, record: StagedRecord, path: Path, journal_written_ns: int
) -> None:
    """Add a file that waits in a journal, or is damaged there."""
    if frame.damaged:
        reason = f"its {frame.size} bytes are damaged"
        left.lost.append(LostPart(path, frame.serial, reason, record))
        return
    written_ns = frame.written_ns or journal_written_ns
    left.waiting.append(
        UnsentFile(record, path, frame.size, frame.mtime_ns, frame.serial, frame.start, written_ns)
    )


def _lost(path: Path, gap: Gap) -> LostPart:
    reason = (
        f"{gap.size} bytes from byte {gap.start} on are damaged or missing, and files that were closed with them"
        if gap.size
        else "it is empty, and files that were closed may be lost"
    )
    return LostPart(path, -1 - gap.start, reason)


def _ended_in(path: Path) -> set[int]:
    """Return what was recorded by `_end_in_journal`; a line that is cut off does not count.

    Serials, and of parts that are lost -1 less where they begin.
    """
    try:
        lines = path.with_suffix(ENDED).read_bytes()
    except FileNotFoundError:
        return set()
    return {int(line) for line in lines[: lines.rfind(b"\n") + 1].split()}


@of_staging_disk
def unsent_files(directory: Path) -> list[UnsentFile]:
    """List what was never uploaded, the oldest first. What cannot be read is logged and kept."""
    found: list[UnsentFile] = []
    for session in _sessions(directory):
        found += session.staged()
        if session.lives:
            continue
        left = session.left()
        found += left.waiting if left.readable else []
        for part in left.lost:
            ending = (
                f"; `aisfs recover --drop {part.id}` forgets it" if part.number is not None else ""
            )
            _say_once(f"{part}{ending}")
        for path, number in left.repaired.items():
            _say_once(f"{path}: {number} damaged places were made good by their copies")
    return sorted(found, key=lambda one: one.mtime_ns)


@functools.cache
def _say_once(text: str) -> None:
    """Log what is damaged: what is left is looked at again and again."""
    log.error("%s", text)


@of_staging_disk
def lost_parts(directory: Path) -> list[LostPart]:
    """List what was closed, and cannot be uploaded, since it is damaged here."""
    over = (session for session in _sessions(directory) if not session.lives)
    return [part for session in over for part in session.left().lost]


@of_staging_disk
def end_session(path: Path) -> None:
    """End a session whose lock is this process's: what is left in it is for others from now on."""
    Session.at(path).remove_rest()


def adopt_dead_sessions(directory: Path) -> None:
    """End the sessions of daemons that were killed, and remove of those that are over what nobody needs."""
    for session in _sessions(directory):
        if not session.lives:
            session.remove_rest()
            continue
        with _locked_if_dead(session.path / LOCK) as dead:
            if dead:
                _adopt(Session.at(session.path))


def _adopt(session: Session) -> None:
    for one in replace(session, lives=False).staged():
        if not one.record.reason:  # else its daemon has said so
            log.warning(
                "%s was not uploaded before its mount was killed; `aisfs recover` lists it",
                one.name,
            )
    waiting = session.remove_rest()
    if waiting:
        log.warning(
            "%d files that were closed wait for their upload since their mount was killed; the "
            "next mount of their source or `aisfs recover` uploads them",
            waiting,
        )


@contextmanager
def _locked_if_dead(lock: Path) -> Iterator[bool]:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # it is ending
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield lock.exists()
    finally:
        os.close(descriptor)


@contextmanager
def sole_uploader(directory: Path) -> Iterator[bool]:
    """Keep other processes from uploading what waits; yield False if one does already.

    What it has uploaded may have been changed or removed since, and must not be uploaded again.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(directory / "uploading", flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


def _end_in_journal(path: Path, number: int) -> None:
    """Record that a file, or a lost part, of a journal is not needed any more, in a session that is over."""
    line = b"%d\n" % number
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(path.with_suffix(ENDED), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # for an instant
        size = os.fstat(descriptor).st_size
        last = os.pread(descriptor, _LINE_MOST, max(size - _LINE_MOST, 0))
        size -= len(last) - (last.rfind(b"\n") + 1)
        os.ftruncate(descriptor, size)  # a line that was cut off would join with this one
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, "not all of a line was written")
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
