"""What was never uploaded: the files of daemons that were killed, or whose uploads failed for good.

A daemon that is killed leaves its session of the staging directory behind. Whoever comes next moves
what is dirty to `parked` and removes the rest. `aisfs recover` lists, uploads or drops it.
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aisfs.core.staged.record import StagedRecord

log = logging.getLogger(__name__)

PARKED = "parked"
"""The directory of these files, beside the sessions."""
DATA, RECORD = ".data", ".json"
"""How the names of a file and of its record end."""


@dataclass(frozen=True, slots=True)
class UnsentFile:
    """A file that was never uploaded."""

    record: StagedRecord
    path: Path
    """Its bytes."""
    size: int
    mtime_ns: int

    @property
    def id(self) -> str:
        """A short name for the command line."""
        return self.path.stem

    def drop(self) -> None:
        """Remove it for good."""
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
    return sorted(found, key=lambda one: one.mtime_ns)


def adopt_dead_sessions(directory: Path) -> None:
    """Park what daemons that were killed left dirty, and remove the rest of what they left."""
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


def park(directory: Path, data: Path) -> None:
    """Move a dirty file; the record counts, so it moves when its bytes are there."""
    target = directory / PARKED / _parked_name(data)
    with suppress(FileExistsError):  # a crash came between the two
        os.link(data, target)
    data.with_suffix(RECORD).rename(target.with_suffix(RECORD))
    data.unlink()


def _parked_name(data: Path) -> str:
    return f"{data.parent.name}-{data.name}"


def _name_of(data: Path) -> str:
    with suppress(OSError, ValueError):
        return StagedRecord.decode(data.with_suffix(RECORD).read_bytes()).name
    return data.name
