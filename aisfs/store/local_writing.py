"""Files of a directory changed as objects are: whole or not at all, and on the disk when reported.

A file is written under a name that no listing shows and then renamed. Directories come and go with
the files below them, as in a bucket; one that was empty before stays.

Everything here blocks; files raise OSError as the system does. Must not know trio, buckets, keys.
"""

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Callable
from typing import TypeVar

from aisfs.errors import Unsupported
from aisfs.store.local_errors import error_of
from aisfs.store.port import Content, Progress

T = TypeVar("T")

UNFINISHED = b".aisfs-upload-"
"""Names that begin so are files being written, or left behind by a process that was killed."""

CUSTOM_ATTRIBUTE = "user.aisfs.custom"

_PIECE = 1 << 20
_MOST_TRIES = 10
"""Directories are removed when they are empty; one may go away just after it was made."""


def publish(root: bytes, path: bytes, write: Callable[[int], None]) -> os.stat_result:
    """Put a new file in place of whatever file is there.

    Args:
        root: The directory that stays, however empty it gets.
        path: Absolute path of the file, below `root`.
        write: Writes the content to a descriptor; what it raises comes out.
    """
    folder = os.path.dirname(path)
    fresh = os.path.join(folder, UNFINISHED + uuid.uuid4().hex.encode())
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = _in_folder(folder, lambda: os.open(fresh, flags, 0o666))
    try:
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(descriptor, stat.S_IMODE(os.stat(path).st_mode))
        write(descriptor)
        os.fsync(descriptor)
        os.rename(fresh, path)
        result = os.fstat(descriptor)
    except BaseException:
        os.unlink(fresh)
        prune(root, folder)
        raise
    finally:
        os.close(descriptor)
    _sync(folder)
    return result


def write_content(descriptor: int, content: Content, progress: Progress | None = None) -> None:
    """Write a content to the beginning of a file."""
    buffer = memoryview(bytearray(min(_PIECE, content.size)))
    done = 0
    while done < content.size:
        piece = buffer[: content.size - done]
        content.read_into(done, piece)
        written = 0
        while written < len(piece):
            written += os.pwrite(descriptor, piece[written:], done + written)
        done += written
        if progress:
            progress(done)


def move(root: bytes, path: bytes, new_path: bytes) -> None:
    """Rename a file over whatever file is there."""
    folder = os.path.dirname(new_path)
    try:
        _in_folder(folder, lambda: os.rename(path, new_path))
    except BaseException:
        prune(root, folder)
        raise
    _sync(folder)
    prune(root, os.path.dirname(path))


def remove(root: bytes, path: bytes) -> None:
    """Remove a file, and the directories that held nothing else."""
    os.unlink(path)
    prune(root, os.path.dirname(path))


def prune(root: bytes, folder: bytes) -> None:
    """Remove a directory when it is empty, and then the one above it, below `root`."""
    while folder != root:
        try:
            os.rmdir(folder)
        except OSError:
            break
        folder = os.path.dirname(folder)
    with contextlib.suppress(FileNotFoundError):
        _sync(folder)


def _in_folder(folder: bytes, make: Callable[[], T]) -> T:
    for _ in range(_MOST_TRIES):
        os.makedirs(folder, exist_ok=True)
        try:
            return make()
        except FileNotFoundError:
            if os.path.isdir(folder):
                raise
    return make()


def _sync(folder: bytes) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_attribute(file: int | bytes) -> str:
    """Read the text of the custom metadata; empty when there is none, or nowhere to keep it."""
    try:
        return os.getxattr(file, CUSTOM_ATTRIBUTE).decode("ascii", "replace")
    except OSError:
        return ""


def write_attribute(file: int | bytes, subject: str, text: str) -> None:
    """Write it.

    Raises:
        Unsupported: the file system keeps none.
    """
    try:
        os.setxattr(file, CUSTOM_ATTRIBUTE, text.encode())
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EPERM, errno.E2BIG, errno.ENOSPC):
            reason = f"no extended attributes here: {error.strerror}"
            raise Unsupported(f"{subject}: {reason}") from error
        raise error_of(subject, error) from error
