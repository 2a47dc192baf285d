"""Keeps files that are being written on the local disk until the store has them.

`engine.writing.on_disk` says how they lie there. Making and removing files is what a small staged file would cost most, so a few
empty ones wait for the next to be written.

What a daemon leaves behind is for `engine.writing.unsent`. All of it is synchronous: the files are in the page cache, and what
survives is what survives the end of a process.
"""

import errno
import fcntl
import logging
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from msgspec import structs

from aisfs.engine.writing.journal import Journal, JournalEntry
from aisfs.engine.writing.on_disk import (
    DATA,
    LOCK,
    RECORD,
    StagedRecord,
    StagingErrors,
    all_of_staging_disk,
)
from aisfs.engine.writing.unsent import adopt_dead_sessions, end_session, unsent_files
from aisfs.errors import AisfsError, ConfigError, FileTooLarge, OutOfSpace
from aisfs.stores.port import FileContent, UploadAhead
from aisfs.system import locks
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.logs import STAGING, request_log
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)

NEVER = sys.maxsize
"""More bytes than a file can have."""
FILE_MAX = 1 << 43
"""Bytes that `df` shows as the size of a mount: 8 TiB. No larger file could be stored."""
_SPARE_MOST = 16
"""Empty files kept for the next; more are rarely open at once."""


@all_of_staging_disk
class StagingSlot:
    """A file for bytes, and one for the record beside it; empty when not in use."""

    def __init__(self, path: Path, flags: int = os.O_CREAT | os.O_EXCL) -> None:
        self.path = path
        self.recorded = False
        """Whether there is something in the record, or may be: the bytes must stay what they are then."""
        self._record_path = str(path.with_suffix(RECORD))
        self.data = _open(str(path), flags)
        try:
            self._record = _open(self._record_path, flags)
        except BaseException:
            os.close(self.data)
            if flags & os.O_EXCL:
                with suppress(OSError):
                    path.unlink()
            raise

    @classmethod
    def found(cls, path: Path) -> "StagingSlot":
        """Open what the daemon of the session before has made."""
        slot = cls(path, os.O_CREAT)
        slot.recorded = os.fstat(slot._record).st_size > 0
        return slot

    @property
    def size(self) -> int:
        """Bytes that it has."""
        return os.fstat(self.data).st_size

    @property
    def mtime_ns(self) -> int:
        """When they were changed last, or what was kept with them."""
        return os.fstat(self.data).st_mtime_ns

    def read_record(self) -> bytes:
        """Return the record, encoded."""
        return os.pread(self._record, 1 << 20, 0)

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


def _open(path: str, flags: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)


class StagedFile:
    """The local bytes of one file being written."""

    def __init__(self, area: "StagingArea", slot: StagingSlot) -> None:
        """Start with an empty file."""
        self._area = area
        self._slot = slot
        self.path = slot.path
        """Where the bytes are."""
        self.record: StagedRecord | None = None
        """What its bytes are to become; None when they are not wanted."""
        self.encoded_record = b""
        """The record as it is on the disk; empty if there is none."""
        self._upload = ""
        """What the store calls the upload of these bytes that began last."""
        self._recording = ranked_lock(Rank.STAGED_RECORD)
        """Held to write the record: the dispatcher does so, and the tasks that upload."""
        self.size = 0
        """Bytes."""
        self.in_order = 0
        """Bytes from the beginning on that were written without leaving any out."""
        self.is_loaded = False
        """Whether it began as what the store had."""
        self.sent_ahead: UploadAhead | None = None
        """What was sent of it already; it is notified of changes to these bytes."""
        self._call_at = NEVER
        self._call: Callable[[StagedFile], None] | None = None

    def take_over(self) -> int:
        """Go on with the bytes and the record that a daemon before has left; return when they were changed."""
        self.size = self.in_order = self._slot.size
        if self._slot.recorded:
            self.encoded_record = self._slot.read_record()
            with suppress(ValueError):
                self.record = StagedRecord.decode(self.encoded_record)
        return self._slot.mtime_ns

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; shorter only at the end."""
        return self._slot.read(offset, max(min(size, self.size - offset), 0))

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write all of `data`.

        Raises:
            OutOfSpace: beyond the limit of the staging directory, or its disk is full. The size is
                as before; bytes within it may have been written.
        """
        stop = offset + len(data)
        growth = max(stop - self.size, 0)
        self._area.take(growth)
        try:
            self.fill(offset, data)
        except BaseException:
            self._shrink_back(growth)
            raise
        finally:
            self._spoil(offset, stop)
        self.size += growth
        if offset <= self.in_order < stop:
            self.in_order = stop
        if self.in_order >= self._call_at and self._call is not None:
            self._call(self)

    @any_thread
    def fill(self, offset: int, data: bytes | memoryview) -> None:
        """Write within the size, or within what was taken for it."""
        request_log.note(STAGING)
        view = memoryview(data)
        while view:
            try:
                done = self._slot.write(offset, view)
            except OutOfSpace:
                if not self._area.empty_kept():
                    raise
            else:
                offset += done
                view = view[done:]

    def content(self) -> FileContent:
        """Return the bytes to upload."""
        return FileContent(self._slot.data, self.size, str(self.path))

    def truncate(self, size: int) -> None:
        """Cut or extend with zeros.

        Raises:
            FileTooLarge: nobody could store so much.
            OutOfSpace: the staging directory has no room for it.
        """
        if size > FILE_MAX:
            raise FileTooLarge(f"{size} bytes are more than a mount holds, which is {FILE_MAX}")
        growth = max(size - self.size, 0)
        self._area.take(growth)
        try:
            self._slot.truncate(size)
        except BaseException:
            self._shrink_back(growth)
            raise
        self._area.give_back(self.size - size)
        self._spoil(min(size, self.size), NEVER)
        self.in_order = min(size, self.in_order)
        self.size = size

    def _spoil(self, start: int, stop: int) -> None:
        # After the change: what is read from now on is read as it is now.
        if self.sent_ahead is not None:
            self.sent_ahead.invalidate(start, stop)

    def call_at(self, in_order: int, call: "Callable[[StagedFile], None] | None" = None) -> None:
        """Make each write call `call` from so many bytes in order on, in its own thread.

        Without `call` it is the one given before. It is called as well when a file of which something
        was sent is not wanted any more.
        """
        self._call = call or self._call
        self._call_at = in_order

    def _shrink_back(self, growth: int) -> None:
        """Free what was to be added to the file, whose size is as it was."""
        with suppress(AisfsError):
            self._slot.truncate(self.size)
        self._area.give_back(growth)

    def empty(self) -> int:
        """Drop the bytes of a clean file, which are the caller's to count; return how many."""
        size, self.size, self.in_order = self.size, 0, 0
        with suppress(AisfsError):
            self._slot.empty()
        return size

    def mark_dirty(self, record: StagedRecord) -> None:
        """Record whose bytes these are, before the first change is acknowledged."""
        with self._recording:
            if record.upload != self._upload:
                record = structs.replace(record, upload=self._upload)
            self._write_record(record)

    def note_upload(self, name: str) -> None:
        """Record what an upload is called that begins, so that its parts are found if it is not ended.

        That they are found is not worth failing for.
        """
        with self._recording:
            self._upload = name
            if self.record is None:
                return
            try:
                self._write_record(structs.replace(self.record, upload=name))
            except AisfsError as error:
                log.warning(
                    "%s: if the mount is killed now, parts of it stay in the store: %s",
                    self.record.name,
                    error,
                )

    def _write_record(self, record: StagedRecord) -> None:
        if record == self.record:
            return
        encoded = record.encode()
        self._slot.record(encoded)
        self.record, self.encoded_record = record, encoded

    def mark_clean(self) -> None:
        """Forget the record: the bytes are not wanted any more, or are elsewhere too.

        Should the disk refuse that, a recovery finds them once more.
        """
        if self.record is not None:
            with self._recording:
                with self._area.tidying():
                    self._slot.clear_record()
                self.record, self.encoded_record = None, b""
                self._upload = ""
            if self.sent_ahead is not None and self._call is not None:
                self._call(self)

    @property
    def is_dirty(self) -> bool:
        """Whether its bytes are wanted."""
        return self.record is not None

    def set_mtime(self, mtime_ns: int) -> None:
        """Keep the modification time with the bytes, where a recovery finds it."""
        self._slot.set_mtime(mtime_ns)

    def discard(self) -> None:
        """Remove it, wanted or not."""
        self.mark_clean()
        self._area.take_back(self._slot)
        self._area.give_back(self.size)
        self._area.open.discard(self)

    def give_up(self, reason: str) -> None:
        """Leave it to `aisfs recover`, since it could not be uploaded.

        Should the disk refuse that, it is found after the end of the mount.
        """
        record = self.record
        assert record is not None, "only what is dirty is given up"
        with self._area.tidying():
            self.mark_dirty(structs.replace(record, reason=reason))
        self._slot.close()
        self._area.give_back(self.size)
        self._area.open.discard(self)
        with self._area.tidying():
            self._area.count_unsent()


class StagingArea:
    """The staging directory of one daemon, within its limit."""

    journal: Journal | None = None
    """Where small files that were closed wait for their upload, if they may."""

    def __init__(
        self, directory: Path, limit: int, *, journal: bool = False, lock: int | None = None
    ) -> None:
        """Start a session, and end those of daemons that were killed.

        Args:
            directory: Shared by the daemons of one user.
            limit: Bytes of files being written and of unsent ones together.
            journal: Whether to have a journal.
            lock: That of a session which this one goes on with.

        Raises:
            ConfigError: the directory cannot be used.
        """
        self.directory = directory
        self.limit = limit
        self.open: set[StagedFile] = set()
        self._spare: list[StagingSlot] = []
        self._kept: list[StagedFile] = []
        """Files whose bytes are kept until other files need the room; the oldest first."""
        self._books = ranked_lock(Rank.STAGING_ROOM)
        """Held for an instant: the dispatcher writes to staged files too."""
        self._used = 0
        self._unsent = 0
        self._fails = False
        """Whether it was logged that the disk fails."""
        try:
            locks.make_directory(directory)
            self.lock, self._session = (lock, _locked_by(lock)) if lock else _begin(directory)
            adopt_dead_sessions(directory)
            self._found = sorted(self._session.glob(f"*{DATA}"))
            """What the daemon before has left."""
            numbers = [int(p.stem) for p in self._found if p.stem.isdigit()]
            self._serials = count(max(numbers, default=0) + 1)
        except OSError as error:
            raise ConfigError(f"staging directory {directory}: {error.strerror}") from error
        self.count_unsent()
        if journal:
            # Made first, and taken first. A file system without a journal would write their inodes with each flush.
            with suppress(AisfsError):  # the first write runs into it as well
                while len(self._spare) < _SPARE_MOST:
                    self._spare.insert(0, self._new_slot())
            self.journal = Journal(self._session, self.take, self.give_back)

    def take_over(self, name: str) -> tuple[StagedFile, int] | None:
        """Return what the daemon before has staged under a name, and when it was changed; None if it is not there."""
        path = self._session / name
        if path not in self._found:
            return None
        self._found.remove(path)
        staged = StagedFile(self, StagingSlot.found(path))
        changed_ns = staged.take_over()
        with self._books:
            self._used += staged.size
        self.open.add(staged)
        return staged, changed_ns

    def tidy_found(self) -> None:
        """Remove what the daemon before has left and nobody has taken over, unless it was never uploaded."""
        for path in self._found:
            with self.tidying():
                slot = StagingSlot.found(path)
                slot.close() if slot.recorded else slot.remove()
        self._found = []

    @property
    def used(self) -> int:
        """Bytes of the files being written and of unsent ones."""
        return self._used + self._unsent

    @any_thread
    def create(self) -> StagedFile:
        """Return an empty file."""
        try:
            slot = self._spare.pop()  # one step: tasks and the dispatcher take some
        except IndexError:
            slot = self._new_slot()
        else:
            slot.begin()
        staged = StagedFile(self, slot)
        self.open.add(staged)
        return staged

    @any_thread
    def _new_slot(self) -> StagingSlot:
        return StagingSlot(self._session / f"{next(self._serials)}{DATA}")

    def take_back(self, slot: StagingSlot) -> None:
        """Keep the files that are no longer needed for the next, or remove them."""
        with self.tidying():
            if slot.recorded or len(self._spare) >= _SPARE_MOST:
                slot.remove()
                return
            try:
                slot.empty()
            except AisfsError:
                slot.close()
                raise
            self._spare.append(slot)

    @contextmanager
    def tidying(self) -> Iterator[None]:
        """Do what no program waits for, as far as the disk lets it be done."""
        try:
            yield
        except AisfsError as error:
            if not self._fails:  # what is asked for next will fail, and say so
                log.error(
                    "what the staging disk cannot forget, `aisfs recover` may list: %s", error
                )
            self._fails = True
        else:
            self._fails = False

    def take(self, size: int) -> None:
        """Count `size` more bytes.

        Raises:
            OutOfSpace: they would exceed the limit.
        """
        if self._fits(size):
            return
        while self.empty_kept():
            if self._fits(size):
                return
        self.count_unsent()  # `aisfs recover` may have made room
        if not self._fits(size):
            raise OutOfSpace(
                f"staging directory {self.directory}: {self.used} of {self.limit} bytes are in use, "
                f"{self._unsent} of them by files that `aisfs recover` lists; see --staging-size"
            )

    def _fits(self, size: int) -> bool:
        with self._books:
            fits = self.used + size <= self.limit
            self._used += size if fits else 0
        return fits

    def keep(self, staged: StagedFile) -> None:
        """Keep the bytes of a clean file until other files need the room."""
        with self._books:
            self._kept.append(staged)

    def reuse(self, staged: StagedFile) -> bool:
        """Take such a file back; return whether it still has its bytes."""
        with self._books:
            kept = staged in self._kept
            self._kept = [one for one in self._kept if one is not staged]
            return kept

    @any_thread
    def empty_kept(self) -> bool:
        """Empty a file that is only kept; return whether there was one."""
        with self._books:  # so that the file is not reused meanwhile
            if not self._kept:
                return False
            self._used -= self._kept.pop(0).empty()
            return True

    def give_back(self, size: int) -> None:
        """Count `size` bytes less; nothing when it is negative."""
        with self._books:
            self._used -= max(size, 0)

    def count_unsent(self) -> None:
        """Count the bytes of unsent files."""
        self._unsent = sum(found.size for found in unsent_files(self.directory))

    def give_up_entry(self, entry: JournalEntry, record: StagedRecord, mtime_ns: int) -> Path:
        """Leave what is in the journal to `aisfs recover`, since it could not be uploaded; return where."""
        slot = self._new_slot()
        with StagingErrors(slot.path), slot.removed_on_error():
            slot.fill(entry.read(0, entry.size), record, mtime_ns)
        slot.close()
        self.count_unsent()
        return slot.path

    def close(self) -> None:
        """End the session; what is still dirty is left to `aisfs recover`, anything else removed.

        What the disk refuses stays for the next mount, as after the end of a process.
        """
        if self.journal is not None:
            self.journal.close()
        for staged in list(self.open):
            if staged.is_dirty:
                staged.give_up("the mount ended before it was uploaded")
            else:
                staged.discard()
        for slot in self._spare:
            slot.close()
        with self.tidying():
            end_session(self._session)
        os.close(self.lock)


def _begin(directory: Path) -> tuple[int, Path]:
    """Make the directory of a session; return its lock, and where it is."""
    name = uuid.uuid4().hex[:12]
    session, fresh = directory / name, directory / f".{name}"
    fresh.mkdir(mode=0o700)
    lock = os.open(fresh / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fresh.rename(session)  # locked: another process would take it for a dead one
    return lock, session


def _locked_by(lock: int) -> Path:
    """Return the directory of the session whose lock this is."""
    return Path(os.readlink(f"/proc/self/fd/{lock}")).parent
