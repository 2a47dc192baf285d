"""Files of a directory changed as objects are: whole or not at all, and on the disk when reported.

A file is written under a name that no listing shows and then renamed. Directories come and go with
the files below them, as in a bucket; one that was empty before stays.

Every change is made through a descriptor of its directory, which was opened without following any
link below the root. So a directory that is replaced by a link meanwhile cannot lead it elsewhere.

Everything here blocks; files raise OSError as the system does. Must not know trio, buckets, keys.
"""

import contextlib
import errno
import os
import random
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar

from aisfs.errors import Unsupported
from aisfs.openat2 import open_beneath
from aisfs.store.local.errors import error_of
from aisfs.store.port import Content, Progress

T = TypeVar("T")

UNFINISHED = b".aisfs-upload-"
"""Names that begin so are files being written, or left behind by a process that was killed."""

CUSTOM_ATTRIBUTE = "user.aisfs.custom"

_PIECE = 1 << 20
_MOST_TRIES = 1000
"""Directories are removed when they are empty; one may go away just after it was made, again and
again where others write and remove files in it. A process that does nothing but make and remove them
takes 9 of 10 away in time; then a hundred tries are not enough for one file of a thousand."""
_PAUSE = 1e-3
"""Most seconds before another try, drawn at random, so that two who hinder each other stop: all tries
take half a second."""
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What opening a directory gives that was removed or replaced meanwhile."""


def publish(root: bytes, key: bytes, write: Callable[[int], None]) -> os.stat_result:
    """Put a new file in place of whatever file is there.

    Args:
        root: The directory that stays, however empty it gets.
        key: Path of the file, relative to `root`.
        write: Writes the content to a descriptor; what it raises comes out.
    """
    folder, name = os.path.split(key)
    fresh = UNFINISHED + uuid.uuid4().hex.encode()
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW

    def create(parent: int) -> tuple[int, int]:
        held = os.dup(parent)
        try:
            return held, os.open(fresh, flags, 0o666, dir_fd=held)
        except BaseException:
            os.close(held)
            raise

    parent, descriptor = _in_folder(root, folder, create)
    try:
        try:
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(name, dir_fd=parent).st_mode
                os.fchmod(descriptor, stat.S_IMODE(mode))
            write(descriptor)
            os.fsync(descriptor)
            os.rename(fresh, name, src_dir_fd=parent, dst_dir_fd=parent)
            result = os.fstat(descriptor)
        except BaseException:
            os.unlink(fresh, dir_fd=parent)
            prune(root, folder)
            raise
        _sync(parent)
    finally:
        os.close(descriptor)
        os.close(parent)
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


def move(root: bytes, key: bytes, new_key: bytes) -> None:
    """Rename a file over whatever file is there."""
    (folder, name), (new_folder, new_name) = os.path.split(key), os.path.split(new_key)

    def rename(parent: int) -> bool:
        try:
            os.rename(name, new_name, src_dir_fd=old_parent, dst_dir_fd=parent)
        except FileNotFoundError:
            if _has(old_parent, name):
                raise  # it is the new directory that is gone
            return False
        _sync(parent)
        return True

    try:
        with opened(root, folder) as old_parent:
            if not _in_folder(root, new_folder, rename):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)
    except BaseException:
        prune(root, new_folder)
        raise
    prune(root, folder)


def remove(root: bytes, key: bytes) -> None:
    """Remove a file, and the directories that held nothing else."""
    folder, name = os.path.split(key)
    with opened(root, folder) as parent:
        os.unlink(name, dir_fd=parent)
    prune(root, folder)


def prune(root: bytes, folder: bytes) -> None:
    """Remove a directory when it is empty, and then the one above it, below `root`."""
    while folder:
        above, name = os.path.split(folder)
        try:
            with opened(root, above) as parent:
                os.rmdir(name, dir_fd=parent)
        except OSError:
            break
        folder = above
    try:
        with opened(root, folder) as parent:
            _sync(parent)
    except OSError as error:
        if error.errno not in _GONE:
            raise


def _in_folder(root: bytes, folder: bytes, act: Callable[[int], T]) -> T:
    """Call `act` with a directory, which is made if need be, until it did not go away meanwhile."""
    left = _MOST_TRIES
    while True:
        try:
            with opened(root, folder) as parent:
                return act(parent)
        except (FileNotFoundError, NotADirectoryError) as error:
            left -= 1
            blocked = isinstance(error, NotADirectoryError) and _is_blocked(root, folder)
            if blocked or not left or not folder:
                raise
        if left < _MOST_TRIES - 1:
            time.sleep(random.uniform(0, _PAUSE))  # noqa: TID251 - in a worker thread
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            _make(root, folder)


def _is_blocked(root: bytes, folder: bytes) -> bool:
    """Return whether something that is no directory has the name of this one, or of one above it."""
    above = b""
    for name in folder.split(b"/"):
        try:
            with opened(root, above) as parent:
                mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        except OSError:
            return False
        if not stat.S_ISDIR(mode):
            return True
        above = os.path.join(above, name)
    return False


def _has(folder: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _make(root: bytes, folder: bytes) -> None:
    """Make a directory, and those above it, where there are none."""
    made = b""
    for name in folder.split(b"/"):
        with opened(root, made) as parent, contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
        made = os.path.join(made, name)


@contextlib.contextmanager
def opened(root: bytes, folder: bytes) -> Iterator[int]:
    """Lend a descriptor of a directory, to which no symbolic link leads from `root` on."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    top = os.open(root, flags)
    try:
        found = open_beneath(top, folder or b".", flags, links=False)
    finally:
        os.close(top)
    try:
        yield found
    finally:
        os.close(found)


def _sync(folder: int) -> None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(b".", flags, dir_fd=folder)
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
