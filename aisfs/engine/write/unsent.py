"""What was never uploaded: the files of daemons that were killed, or whose uploads failed for good.

A daemon that is killed leaves its session of the staging directory behind. Whoever comes next moves
what is dirty to `parked` and removes the rest. `aisfs recover` lists, uploads or drops it.
"""

import fcntl
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aisfs.core.staged.journal import Frame, decode, live
from aisfs.core.staged.record import StagedRecord
from aisfs.store.content import FileContent, PartOfContent
from aisfs.store.port import Content

log = logging.getLogger(__name__)

PARKED = "parked"
"""The directory of these files, beside the sessions."""
DATA, RECORD = ".data", ".json"
"""How the names of a file and of its record end."""
JOURNAL, ENDED = ".journal", ".ended"
"""How the names of a journal (`engine.write.journal`) and of the list of what has ended in it end."""


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

    @property
    def id(self) -> str:
        """A short name for the command line."""
        return f"{self.path.stem}-{self.serial}" if self.acknowledged else self.path.stem

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
    for paths in _journals_by_session(directory / PARKED).values():
        found += _in_journals(paths)
    return sorted(found, key=lambda one: one.mtime_ns)


def _journals_by_session(directory: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in directory.glob(f"*{JOURNAL}"):
        found.setdefault(path.name.partition("-")[0], []).append(path)
    return found


def _in_journals(paths: Iterable[Path]) -> list[UnsentFile]:
    """Return the files that have not ended in the journals of one session."""
    frames: list[Frame] = []
    places: dict[int, Path] = {}
    gone: set[int] = set()
    for path in paths:
        try:
            here = list(decode(memoryview(path.read_bytes())))
            with suppress(FileNotFoundError):
                gone.update(int(line) for line in path.with_suffix(ENDED).read_text().split())
        except FileNotFoundError:
            continue  # dropped meanwhile
        except (OSError, ValueError) as error:
            log.warning("%s: %s", path, error)
            continue
        frames += here
        places |= {frame.serial: path for frame in here}
    return [
        UnsentFile(
            frame.record,
            places[frame.serial],
            frame.size,
            frame.mtime_ns,
            frame.serial,
            frame.start,
        )
        for frame in live(frames)
        if frame.record is not None and frame.serial not in gone
    ]


def park_journals(session: Path) -> int:
    """Keep the journals of a session for the next mount, if files in them wait; return how many do."""
    paths = sorted(session.glob(f"*{JOURNAL}"))
    waiting = len(_in_journals(paths))
    for path in paths:
        if waiting:  # the later ones say what has ended in the others
            path.rename(session.parent / PARKED / f"{session.name}-{path.name}")
        else:
            path.unlink()
    return waiting


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
    for paths in _journals_by_session(directory / PARKED).values():
        if not _in_journals(paths):
            for path in paths:
                path.unlink(missing_ok=True)
                path.with_suffix(ENDED).unlink(missing_ok=True)


def _end_in_journal(path: Path, serial: int) -> None:
    """Record that a file of a parked journal is not needed any more."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(path.with_suffix(ENDED), flags, 0o600)
    try:
        os.write(descriptor, b"%d\n" % serial)
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
