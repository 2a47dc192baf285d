"""The two files on the local disk behind one staged file: its bytes, and the record of whose they are."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aisfs.core.staged.record import StagedRecord
from aisfs.engine.write.staging_errors import all_of_staging_disk
from aisfs.engine.write.unsent import RECORD


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
