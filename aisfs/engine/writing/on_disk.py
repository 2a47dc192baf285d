"""How unsent data lies on the disk: the files of a session, the record of a staged file, the frames of a journal.

    STAGING/<session>/lock       locked by the daemon for as long as it lives; the session is over once it is gone
    STAGING/<session>/N.data     the bytes of a staged file, sparse
    STAGING/<session>/N.json     its record; empty, or not there, unless N.data is dirty
    STAGING/<session>/N.journal  frames, one after the other, and zeros behind them
    STAGING/<session>/N.ended    what has ended in the journal since the session is over, a number a line
    STAGING/uploading            locked by the process that uploads what waits

A record says which object the bytes belong to, for recovery after a crash. It exists exactly as long as they are not in the
store. It is JSON, so that users can read it; bytes of a key that are not UTF-8 are written as escaped lone surrogates. A record
that is not whole belongs to a change that was never acknowledged.

A frame carries the content of one file that was acknowledged, or none, and ends earlier frames: their files are in the store, were
removed, or have newer content here.

    block    content    the block again

    block: mark  CRC-32 of the rest of the block, beginning with that of the session's name  serial
           mtime in ns  number of ended frames, bytes of record and content  CRC-32 of the content
           bytes of the journal  when it was written in ns  serials of ended frames  record

The block says whose content it is and which frames it ends; it is there twice, and begins with a mark. So one damaged place
costs the content of one file at most: frames behind it are found by their marks. A frame of another session, a
copy of which some file may contain, does not have the right checksum.

Of before December 2026 there may be two things more. Frames without the second block:

    mark  CRC-32 of the rest  serial  mtime in ns  number of ended frames, bytes of record and content
    serials of ended frames    record    content

And a directory `parked`, to which the files of sessions that were over were moved, as <session>-N.data and so on.
"""

import errno
import functools
import inspect
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

import msgspec

from aisfs.errors import AisfsError, OutOfSpace, Unavailable
from aisfs.model import Bucket, ObjectInfo, Provider

LOCK, PARKED = "lock", "parked"
DATA, RECORD, JOURNAL, ENDED = ".data", ".json", ".journal", ".ended"
"""How the names of files end."""
LAYOUT = 1
_TEXTS = ("endpoint", "key", "member", "base", "reason", "upload", "only_new")


class StagedRecord(msgspec.Struct, frozen=True, gc=False):
    """The object or member that a staged file will become."""

    endpoint: str
    """The cluster or directory it belongs to."""
    bucket: Bucket
    key: str
    member: str = ""
    """Name of a new member of the shard `key`; empty for an object."""
    base: str = ""
    """The changed version, as `version_text` returns it; empty for a new object."""
    mode: int | None = None
    reason: str = ""
    """Why it is not in the store, if it was given up."""
    upload: str = ""
    """The store's id of an upload that began before the file was closed."""
    only_new: str = ""
    """What `Upload` calls so, for a file made with O_EXCL; empty for others."""

    @property
    def name(self) -> str:
        """The name shown to users."""
        return f"{self.bucket}/{self.key}" + (f".d/{self.member}" if self.member else "")

    def encode(self) -> bytes:
        """Return the record as JSON."""
        bucket = self.bucket
        fields = {
            "layout": LAYOUT,
            "provider": bucket.provider.value,
            "bucket": bucket.name,
            "namespace": bucket.namespace,
            "mode": self.mode,
            **{name: getattr(self, name) for name in _TEXTS},
        }
        try:
            return msgspec.json.encode(fields)  # in a tenth of the time
        except UnicodeEncodeError:
            return json.dumps(fields).encode()

    @classmethod
    def decode(cls, data: bytes) -> "StagedRecord":
        """Return the record that `encode` encoded.

        Raises:
            ValueError: this is not a record of this layout.
        """
        try:
            fields = {"upload": "", "only_new": "", **json.loads(data)}  # older records have none
            if fields["layout"] != LAYOUT:
                raise ValueError(f"a record of layout {fields['layout']}, not {LAYOUT}")
            provider, mode = Provider(fields["provider"]), fields["mode"]
            endpoint = str(fields["endpoint"])
            path = endpoint if endpoint.startswith("/") else ""  # a directory is called by its path
            return cls(
                bucket=Bucket(str(fields["bucket"]), provider, str(fields["namespace"]), path),
                mode=None if mode is None else int(mode),
                **{name: str(fields[name]) for name in _TEXTS},
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a record of a staged file: {error}") from error


def version_text(info: ObjectInfo | None) -> str:
    """Return a version as text, for a record."""
    return "" if info is None else f"{info.version} {info.checksum} {info.size}"


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
