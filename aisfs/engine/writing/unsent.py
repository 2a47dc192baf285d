"""Recovery of files that were not uploaded: of daemons that were killed, or whose uploads failed for good.

A daemon that is killed leaves its session of the staging directory behind. The next one moves its dirty files to
`parked` and removes the rest. `aisfs recover` lists, uploads or drops them.

Files that were acknowledged are frames of a journal: frames, one after the other, and zeros behind them. A frame carries the
content of one file, or none, and ends earlier frames: their files are in the store, were removed, or have newer content here.

    block    content    the block again

    block: mark  CRC-32 of the rest of the block, beginning with that of the session's name  serial
           mtime in ns  number of ended frames, bytes of record and content  CRC-32 of the content
           bytes of the journal  when it was written in ns  serials of ended frames  record

The block says whose content it is and which frames it ends; it is there twice, and begins with a mark. So one damaged place
costs the content of one file at most: frames behind it are found by their marks. A frame of another session, a
copy of which some file may contain, does not have the right checksum.

Journals of before December 2026 have frames without the second block:

    mark  CRC-32 of the rest  serial  mtime in ns  number of ended frames, bytes of record and content
    serials of ended frames    record    content
"""

import errno
import fcntl
import functools
import inspect
import logging
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

from aisfs.engine.writing.record import StagedRecord
from aisfs.errors import AisfsError, OutOfSpace, Unavailable
from aisfs.stores.port import Content, FileContent, PartOfContent

_MARK, _MARK_AGAIN = b"aisJ", b"Jsia"
_MARKS = re.compile(_MARK + b"|" + _MARK_AGAIN)
_HEAD = struct.Struct("<4sIQqIIIIIq")
_OLD_HEAD = struct.Struct("<4sIQqIII")
_CHECKED = 8
"""Where the bytes begin that the checksum covers."""
_TIME_MOST = (1 << 63) - 1
"""Nanoseconds that fit into a frame: 292 years around 1970. Files may be of any other time."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a journal."""

    serial: int
    """Of two frames the later one has the higher number."""
    mtime_ns: int
    ended: tuple[int, ...]
    """Serials of frames that this one ends."""
    record: StagedRecord | None
    """What the content is to become; None if the frame only ends others."""
    start: int
    """Where the content begins in the journal."""
    size: int
    """Bytes of content."""
    written_ns: int = 0
    """When it was written; 0 if it does not say."""
    damaged: bool = False
    """Whether the content is not what was written. Everything else is."""
    repaired: bool = False
    """Whether one of its blocks is damaged, and nothing else."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of a journal in which no frame can be found, though there was one; or that are missing."""

    start: int
    size: int


def session_seed(name: str) -> int:
    """Return what the checksums of the frames of a session begin with."""
    return zlib.crc32(name.encode())


def encode(
    serial: int,
    mtime_ns: int,
    ended: Sequence[int],
    record: bytes = b"",
    content: bytes = b"",
    *,
    written_ns: int,
    seed: int,
    capacity: int,
) -> bytes:
    """Return a frame.

    Args:
        serial: See `Frame`.
        mtime_ns: A time that does not fit is the nearest that does.
        ended: See `Frame`.
        record: Encoded, and empty if the frame only ends others.
        content: What the file has.
        written_ns: See `Frame`.
        seed: Of the session.
        capacity: Bytes of the journal.
    """
    mtime_ns = max(-_TIME_MOST, min(mtime_ns, _TIME_MOST))
    ends = struct.pack(f"<{len(ended)}Q", *ended) if ended else b""
    counts = len(ended), len(record), len(content)
    checksum = zlib.crc32(content)
    head = _HEAD.pack(_MARK, 0, serial, mtime_ns, *counts, checksum, capacity, written_ns)
    rest = b"".join((head[_CHECKED:], ends, record))
    rest = zlib.crc32(rest, seed).to_bytes(4, "little") + rest
    return b"".join((_MARK, rest, content, _MARK_AGAIN, rest))


def content_at(frame: bytes, size: int) -> int:
    """Return where the content of so many bytes begins in an encoded frame."""
    return (len(frame) - size) // 2


@dataclass(frozen=True, slots=True)
class _Found:
    """A frame, and where it begins and ends."""

    frame: Frame
    start: int
    stop: int
    capacity: int


def decode(journal: bytes, seed: int) -> tuple[list[Frame], list[Gap]]:
    """Return the frames of a journal of a session, and what of it is not understood.

    A frame at the end that was only begun is neither: nothing was acknowledged because of it.

    Raises:
        ValueError: a record is of another layout.
    """
    if not journal:  # it was full of zeros before it was used
        return [], [Gap(0, 0)]
    view, used = memoryview(journal), len(journal.rstrip(b"\0"))
    frames: list[Frame] = []
    gaps: list[Gap] = []
    capacity = place = 0
    while place < used:
        found = _frame_at(view, place, place, seed) or _next_frame(view, place, frames, seed)
        if found is None:
            gaps.append(Gap(place, used - place))
            break
        if found.start > place:
            gaps.append(Gap(place, found.start - place))
        capacity = max(capacity, found.capacity)
        frame = found.frame
        # It was only begun if there is no second block, unless the journal was cut.
        begun = used <= frame.start + frame.size and len(journal) >= capacity
        if not begun:
            frames.append(frame)
        elif not frame.damaged:
            frames.append(replace(frame, repaired=False))
        place = found.stop
    if capacity > len(journal):
        gaps.append(Gap(len(journal), capacity - len(journal)))
    return frames, gaps


def _next_frame(
    journal: memoryview, place: int, before: Sequence[Frame], seed: int
) -> _Found | None:
    """Return the next frame from a place on that can be found by a mark."""
    serial = before[-1].serial if before else -1
    for mark in _MARKS.finditer(journal, place + 1):
        found = _frame_at(journal, mark.start(), place, seed)
        if found is not None and found.frame.serial > serial:
            return found
    return None


def _frame_at(journal: memoryview, place: int, least: int, seed: int) -> _Found | None:
    """Return the frame whose block begins here, unless it begins before `least`, or an old frame."""
    if place + _HEAD.size <= len(journal):
        (
            mark,
            checksum,
            serial,
            mtime_ns,
            ends,
            recorded,
            size,
            content_sum,
            capacity,
            written_ns,
        ) = _HEAD.unpack_from(journal, place)
        stop = place + _HEAD.size + 8 * ends + recorded
        start = stop if mark == _MARK else place - size
        begin = start - (stop - place)
        if (
            mark in (_MARK, _MARK_AGAIN)
            and begin >= least
            and stop <= len(journal)
            and zlib.crc32(journal[place + _CHECKED : stop], seed) == checksum
        ):
            ended, record = _ended_and_record(journal, place + _HEAD.size, ends, recorded)
            damaged = zlib.crc32(journal[start : start + size]) != content_sum
            other = begin if mark == _MARK_AGAIN else start + size
            same = (_MARK if other == begin else _MARK_AGAIN) + journal[place + 4 : stop]
            repaired = not damaged and journal[other : other + len(same)] != same
            frame = Frame(
                serial, mtime_ns, ended, record, start, size, written_ns, damaged, repaired
            )
            return _Found(frame, begin, start + size + stop - place, capacity)
    return _old_frame_at(journal, place)


def _old_frame_at(journal: memoryview, place: int) -> _Found | None:
    if place + _OLD_HEAD.size > len(journal):
        return None
    mark, checksum, serial, mtime_ns, ends, recorded, size = _OLD_HEAD.unpack_from(journal, place)
    start = place + _OLD_HEAD.size + 8 * ends + recorded
    stop = start + size
    whole = mark == _MARK and stop <= len(journal)
    if not whole or zlib.crc32(journal[place + _CHECKED : stop]) != checksum:
        return None
    ended, record = _ended_and_record(journal, place + _OLD_HEAD.size, ends, recorded)
    return _Found(Frame(serial, mtime_ns, ended, record, start, size), place, stop, 0)


def _ended_and_record(
    journal: memoryview, place: int, ends: int, recorded: int
) -> tuple[tuple[int, ...], StagedRecord | None]:
    ended = struct.unpack_from(f"<{ends}Q", journal, place)
    text = bytes(journal[place + 8 * ends : place + 8 * ends + recorded])
    return ended, StagedRecord.decode(text) if text else None


def live(frames: Iterable[Frame]) -> list[Frame]:
    """Return the frames with content that none ends, in order; of one object only the last."""
    found: dict[tuple[object, ...], Frame] = {}
    by_serial: dict[int, tuple[object, ...]] = {}
    for frame in sorted(frames, key=lambda each: each.serial):
        for serial in frame.ended:
            ended = by_serial.pop(serial, None)
            if ended is not None:
                del found[ended]
        record = frame.record
        if record is not None:
            place = (record.endpoint, record.bucket, record.key)
            previous = found.pop(place, None)
            if previous is not None:
                del by_serial[previous.serial]
            found[place] = frame
            by_serial[frame.serial] = place
    return list(found.values())


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

P = ParamSpec("P")
T = TypeVar("T")


class StagingErrors:
    """Turns an `OSError` of a staged file into one of `aisfs.errors`."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        """Name `path` in the error."""
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            raise _turned(error, self._path) from error


def of_staging_disk(work: Callable[P, T]) -> Callable[P, T]:
    """Make a function or method raise errors of aisfs; they name its first argument, or the `path` of that."""

    @functools.wraps(work)
    def turning(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except OSError as error:
            raise _turned(error, getattr(args[0], "path", args[0])) from error

    return turning


def all_of_staging_disk(kind: type[T]) -> type[T]:
    """Do the same with all methods of a class."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method):
            setattr(kind, name, of_staging_disk(method))
    return kind


def _turned(error: OSError, path: object) -> AisfsError:
    kind = OutOfSpace if error.errno in _FULL else Unavailable
    return kind(f"staging file {path}: {error.strerror}")


log = logging.getLogger(__name__)

PARKED = "parked"
"""The directory of these files, beside the sessions."""
DATA, RECORD = ".data", ".json"
"""How the names of a file and of its record end."""
JOURNAL, ENDED = ".journal", ".ended"
"""How the names of a journal (`engine.writing.journal`) and of the list of what has ended in it end."""
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
    moved before this process is killed: the next process moves the others.
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
    """Remove the parked journals of sessions without a waiting file."""
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


@all_of_staging_disk
class StagingSlot:
    """A file for bytes, and one for the record beside it; empty when not in use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recorded = False
        """Whether there is something in the record, or may be: the bytes must stay what they are then."""
        self._record_path = str(path.with_suffix(RECORD))
        self.data = _make(str(path))
        try:
            self._record = _make(self._record_path)
        except BaseException:
            os.close(self.data)
            with suppress(OSError):
                path.unlink()
            raise

    # bytes ---------------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; shorter only at the end."""
        return os.pread(self.data, size, offset)

    def write(self, offset: int, data: memoryview) -> int:
        """Write; return how many bytes."""
        return os.pwrite(self.data, data, offset)

    def truncate(self, size: int) -> None:
        """Cut or extend with zeros."""
        os.ftruncate(self.data, size)

    def set_mtime(self, mtime_ns: int) -> None:
        """Keep a time with the bytes."""
        os.utime(self.data, ns=(mtime_ns, mtime_ns))

    def begin(self) -> None:
        """Begin to use it again: a recovery takes the time of the bytes for when the file was made."""
        os.utime(self.data)

    # the record ----------------------------------------------------------------------------------

    def record(self, record: bytes) -> None:
        """Write a record, encoded, whole or not at all."""
        if self.recorded:
            self._replace_record(record)
            return
        self.recorded = True
        try:
            self.write_record(record)
        except BaseException:
            self.clear_record()
            raise

    def write_record(self, record: bytes) -> None:
        """Write a record to a file that is empty."""
        if os.pwrite(self._record, record, 0) < len(record):
            raise OSError(errno.ENOSPC, "not all of a record was written")

    def _replace_record(self, record: bytes) -> None:
        temporary = f"{self._record_path}.tmp"
        new = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        old, self._record = self._record, new
        try:
            self.write_record(record)
            os.rename(temporary, self._record_path)
        except BaseException:
            self._record, old = old, new
            with suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(old)

    def clear_record(self) -> None:
        """Mark the bytes as no longer needed."""
        os.ftruncate(self._record, 0)
        self.recorded = False

    def fill(self, content: bytes, record: StagedRecord, mtime_ns: int) -> None:
        """Write bytes and record, and return once the disk has them."""
        view = memoryview(content)
        while view:
            view = view[os.pwrite(self.data, view, len(content) - len(view)) :]
        self.set_mtime(mtime_ns)
        os.fsync(self.data)
        self.record(record.encode())
        os.fsync(self._record)

    # the end -------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Free the disk; the record is cleared already."""
        os.ftruncate(self.data, 0)

    def remove(self) -> None:
        """Remove both files, the record first."""
        try:
            Path(self._record_path).unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
        finally:
            self.close()

    @contextmanager
    def removed_on_error(self) -> Iterator[None]:
        """Remove both files if what is done with them fails."""
        try:
            yield
        except BaseException:
            self.remove()
            raise

    def close(self) -> None:
        """Close the files."""
        os.close(self.data)
        os.close(self._record)


def _make(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
