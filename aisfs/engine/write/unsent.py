"""What was never uploaded: the files of daemons that were killed, or whose uploads failed for good.

A daemon that is killed leaves its session of the staging directory behind. Whoever comes next moves
what is dirty to `parked` and removes the rest. `aisfs recover` lists, uploads or drops it.
"""

import errno
import fcntl
import functools
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from aisfs.core.staged.journal import Frame, Gap, decode, live, session_seed
from aisfs.core.staged.record import StagedRecord
from aisfs.engine.write.staging_errors import of_staging_disk
from aisfs.errors import Unavailable
from aisfs.stores.port import Content, FileContent, PartOfContent

log = logging.getLogger(__name__)

PARKED = "parked"
"""The directory of these files, beside the sessions."""
DATA, RECORD = ".data", ".json"
"""How the names of a file and of its record end."""
JOURNAL, ENDED = ".journal", ".ended"
"""How the names of a journal (`engine.write.journal`) and of the list of what has ended in it end."""
_LINE_MOST = 32
"""Bytes of a line of that list: a number of 64 bits, and more."""


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
        return f"{self.path.stem}-{self.serial}" if self.acknowledged else self.path.stem

    @property
    def name(self) -> str:
        """The name of the object."""
        return self.record.name

    @property
    def acknowledged(self) -> bool:
        """Whether its program was told that it is safe, so that it is uploaded without being asked."""
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
            return self.path.stem
        return f"{self.path.stem}-{self.number if self.record else f'at-{-1 - self.number}'}"

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


@of_staging_disk
def unsent_files(directory: Path) -> list[UnsentFile]:
    """List what was never uploaded, the oldest first. What cannot be read is logged and kept."""
    found = []
    for path in sorted((directory / PARKED).glob(f"*{RECORD}")):
        data = path.with_suffix(DATA)
        try:
            status = data.stat()
            record = StagedRecord.decode(path.read_bytes())
        except FileNotFoundError:
            continue  # dropped meanwhile
        except (OSError, ValueError) as error:
            log.warning("%s: %s", path, error)
            continue
        found.append(UnsentFile(record, data, status.st_size, status.st_mtime_ns))
    for session in _parked_sessions(directory):
        left = _left_in(session, _journals(directory / PARKED, f"{session}-"))
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
    found = []
    for session in _parked_sessions(directory):
        found += _left_in(session, _journals(directory / PARKED, f"{session}-")).lost
    return found


def _parked_sessions(directory: Path) -> list[str]:
    """Return the sessions whose journals are parked, all of them."""
    try:
        names = os.listdir(directory / PARKED)
    except (FileNotFoundError, PermissionError):
        return []
    found = {name.partition("-")[0] for name in names if name.endswith(JOURNAL)}
    return sorted(one for one in found if not (directory / one / "lock").exists())


def _journals(directory: Path, prefix: str = "") -> list[Path]:
    """Return journals, the oldest first. The error of a directory that cannot be read is raised."""
    names: list[str] = []
    with suppress(FileNotFoundError):
        names = os.listdir(directory)
    found = [directory / n for n in names if n.startswith(prefix) and n.endswith(JOURNAL)]
    return sorted(found, key=lambda path: (len(path.stem), path.stem))  # 9 before 10


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


def _left_in(session: str, paths: Iterable[Path]) -> _Left:
    """Read the journals of one session."""
    frames: list[Frame] = []
    places: dict[int, tuple[Path, int]] = {}
    gone: set[int] = set()
    left = _Left()
    for path in paths:
        try:
            here, gaps = decode(path.read_bytes(), session_seed(session))
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
        if frame.record is None or frame.serial in gone:
            continue
        path, written_ns = places[frame.serial]
        if frame.damaged:
            reason = f"its {frame.size} bytes are damaged"
            left.lost.append(LostPart(path, frame.serial, reason, frame.record))
            continue
        left.waiting.append(
            UnsentFile(
                frame.record,
                path,
                frame.size,
                frame.mtime_ns,
                frame.serial,
                frame.start,
                frame.written_ns or written_ns,
            )
        )
    return left


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
def park_journals(session: Path) -> int:
    """Keep the journals of a session for the next mount, if files in them wait; return how many do.

    Until the session's lock is removed, nobody looks at them. So it does not matter if only some are
    moved before this process is killed: whoever comes next moves the others.
    """
    parked = session.parent / PARKED
    paths = _journals(session)
    left = _left_in(session.name, [*_journals(parked, f"{session.name}-"), *paths])
    for path in paths:
        if left.over:
            path.unlink()
        else:  # the later ones say what has ended in the others
            path.rename(parked / f"{session.name}-{path.name}")
    return len(left.waiting)


@contextmanager
def sole_uploader(directory: Path) -> Iterator[bool]:
    """Keep other processes from uploading what waits; yield False if one does already.

    What it has uploaded may have been changed or removed since, and must not be uploaded again.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(directory / PARKED / "uploading", flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


def _remove_ended(directory: Path) -> None:
    """Remove the parked journals of sessions of which no file waits."""
    for session in _parked_sessions(directory):
        paths = _journals(directory / PARKED, f"{session}-")
        if _left_in(session, paths).over:
            for path in paths:  # the later ones say what has ended in the others
                path.unlink(missing_ok=True)
                path.with_suffix(ENDED).unlink(missing_ok=True)


def _end_in_journal(path: Path, number: int) -> None:
    """Record that a file, or a lost part, of a parked journal is not needed any more."""
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


def adopt_dead_sessions(directory: Path) -> None:
    """Park what daemons that were killed left dirty, and remove the rest of what they left."""
    _remove_ended(directory)
    for session in directory.iterdir() if directory.is_dir() else ():
        if session.name == PARKED or not session.is_dir():
            continue
        with _locked_if_dead(session / "lock") as dead:
            if not dead:
                continue
            for record in session.glob(f"*{RECORD}"):
                data = record.with_suffix(DATA)
                if not data.exists() or not record.stat().st_size:
                    continue
                park(directory, data)
                log.warning(
                    "%s was not uploaded before its mount was killed; `aisfs recover` lists it",
                    _name_of(directory / PARKED / _parked_name(data)),
                )
            waiting = park_journals(session)
            if waiting:
                log.warning(
                    "%d files that were closed wait for their upload since their mount was killed; the "
                    "next mount of their source or `aisfs recover` uploads them",
                    waiting,
                )
            for rest in session.iterdir():
                rest.unlink(missing_ok=True)
            session.rmdir()


@contextmanager
def _locked_if_dead(lock: Path) -> Iterator[bool]:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # it is only just beginning, or ending
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


@of_staging_disk
def park(directory: Path, data: Path) -> Path:
    """Move a dirty file; the record counts, so it moves when its bytes are there. Return where it is."""
    target = directory / PARKED / _parked_name(data)
    with suppress(FileExistsError):  # a crash came between the two
        os.link(data, target)
    data.with_suffix(RECORD).rename(target.with_suffix(RECORD))
    data.unlink()
    return target


def _parked_name(data: Path) -> str:
    return f"{data.parent.name}-{data.name}"


def _name_of(data: Path) -> str:
    with suppress(OSError, ValueError):
        return StagedRecord.decode(data.with_suffix(RECORD).read_bytes()).name
    return data.name
