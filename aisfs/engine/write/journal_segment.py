"""One file of a journal (`engine.write.journal`), and where the content of a closed file is in it."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aisfs.engine.write.staging_errors import StagingErrors
from aisfs.errors import AisfsError, OutOfSpace
from aisfs.stores.port import FileContent, PartOfContent


class JournalSegment:
    """One journal file."""

    def __init__(self, path: Path, capacity: int) -> None:
        """Make one for so many bytes."""
        self.path = path
        self._capacity = capacity
        self.used = 0
        """Bytes of the entries, with those that are to be written next."""
        self.live = 0
        """Entries that have not ended."""
        self._next: list[bytes] = []
        zeroing = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _fill(zeroing, capacity)
            _sync_directory(path.parent)
            _sync_directory(path.parent.parent)
            # One call writes and flushes, and takes the interpreter's lock back once.
            self.descriptor = os.open(path, os.O_RDWR | os.O_DSYNC | os.O_CLOEXEC)
        except BaseException:
            self.remove()
            raise
        finally:
            os.close(zeroing)

    def has_room(self, size: int) -> bool:
        """Return whether so many bytes more fit in."""
        return self.used + size <= self._capacity

    def add(self, frame: bytes) -> int:
        """Take a frame that is to be written next; return where it begins."""
        start = self.used
        self._next.append(frame)
        self.used += len(frame)
        return start

    def write(self) -> None:
        """Write what was added, and return once the disk has it."""
        frames, self._next = self._next, []
        rest = memoryview(b"".join(frames))
        start = self.used - len(rest)
        failed = self._capacity
        """Where the next one begins if this fails: what the disk has then is not known."""
        try:
            with StagingErrors(self.path):
                while rest:
                    rest = rest[write_through(self.descriptor, rest, self.used - len(rest)) :]
            failed = self.used
        except OutOfSpace:
            # The room there is may do for what ends others, without which removed files come back.
            failed = start if self._cut(start) else failed
            raise
        except AisfsError:
            self._cut(start)
            raise
        finally:
            self.used = failed

    def _cut(self, length: int) -> bool:
        """Forget what is behind; return whether the disk did: frames told as failed may be whole.

        The journal stays as long as it is, or it would seem to have lost what is behind.
        """
        with suppress(OSError):
            os.ftruncate(self.descriptor, length)
            os.ftruncate(self.descriptor, self._capacity)
            os.fsync(self.descriptor)
            return True
        return False

    def remove(self) -> None:
        """Remove the file."""
        with suppress(OSError):  # what nothing waits in goes with the session
            os.unlink(self.path)

    def __del__(self) -> None:
        """Close it, once no entry of it can be read any more: a reader may still be at one that has ended."""
        with suppress(AttributeError):  # it could not be made
            os.close(self.descriptor)


@dataclass(eq=False, slots=True)
class JournalEntry:
    """The content of one file in the journal."""

    serial: int
    segment: JournalSegment
    start: int
    size: int
    mtime_ns: int
    """The time of the file."""

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; shorter only at the end."""
        length = max(min(size, self.size - offset), 0)
        with StagingErrors(self.segment.path):
            return os.pread(self.segment.descriptor, length, self.start + offset)

    def content(self) -> PartOfContent:
        """Return the bytes to upload."""
        whole = FileContent(self.segment.descriptor, self.start + self.size, str(self.segment.path))
        return PartOfContent(whole, self.start, self.size)


def _fill(descriptor: int, size: int) -> None:
    piece = bytes(1 << 20)
    for start in range(0, size, len(piece)):
        os.pwrite(descriptor, piece[: size - start], start)
    os.fsync(descriptor)


def write_through(descriptor: int, data: memoryview, start: int) -> int:
    """Write to the disk; return how many bytes it has. The file was opened for that."""
    return os.pwrite(descriptor, data, start)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
