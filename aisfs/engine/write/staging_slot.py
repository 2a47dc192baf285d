"""The two files on the local disk behind one staged file: its bytes, and the record of whose they are."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from aisfs.core.staged.record import StagedRecord
from aisfs.engine.write.unsent import RECORD
from aisfs.errors import OutOfSpace, Unavailable

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StagingSlot:
    """A file for bytes, and one for the record beside it; empty when not in use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._record_path = str(path.with_suffix(RECORD))
        with StagingErrors(path):
            self.data = _make(str(path))
            try:
                self._record = _make(self._record_path)
            except BaseException:
                os.close(self.data)
                path.unlink()
                raise

    def write_record(self, record: bytes) -> None:
        """Write the first record, encoded; an error leaves none."""
        done = 0
        try:
            done = os.pwrite(self._record, record, 0)
        finally:
            if done < len(record):
                os.ftruncate(self._record, 0)
        if done < len(record):
            raise OSError(errno.ENOSPC, "not all of a record was written")

    def replace_record(self, record: bytes) -> None:
        """Write another record, whole or not at all."""
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

    def fill(self, content: bytes, record: StagedRecord, mtime_ns: int) -> None:
        """Write bytes and record, and return once the disk has them."""
        view = memoryview(content)
        while view:
            view = view[os.pwrite(self.data, view, len(content) - len(view)) :]
        os.utime(self.data, ns=(mtime_ns, mtime_ns))
        os.fsync(self.data)
        self.write_record(record.encode())
        os.fsync(self._record)

    def clear_record(self) -> None:
        """Mark the bytes as no longer needed."""
        os.ftruncate(self._record, 0)

    def empty(self) -> None:
        """Free the disk; the record is cleared already."""
        os.ftruncate(self.data, 0)

    def remove(self) -> None:
        """Remove both files."""
        with suppress(FileNotFoundError):
            os.unlink(self._record_path)
        self.path.unlink(missing_ok=True)
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
            kept = OutOfSpace if error.errno in _FULL else Unavailable
            raise kept(f"staging file {self._path}: {error.strerror}") from error
