"""Which file of a directory a key means, so that nothing leads out of the directory.

A key is a path below the root, spelled in the one way that the system does not shorten. Symbolic links are
followed as `Links` says.

Everything here blocks. Must not know trio.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from aisfs.core.names.listing import check_new_key
from aisfs.errors import (
    BucketNotFound,
    InvalidName,
    IsADirectory,
    NotFound,
    Unsupported,
)
from aisfs.model import Bucket
from aisfs.openat2 import open_beneath
from aisfs.store.local.errors import os_errors, writing_errors
from aisfs.store.local.links import Links
from aisfs.store.local.writes import UNFINISHED, opened


class KeyPaths:
    """Paths of the files of one bucket."""

    def __init__(self, links: Links, bucket: Bucket) -> None:
        """Find files of `bucket` below the root of `links`."""
        self.links = links
        self.root = links.root
        self._bucket = bucket

    def path(self, bucket: Bucket, key: str) -> bytes:
        """Spell the path of a key, whether there is a file or not.

        Raises:
            InvalidName: no file can have this key.
            NotFound: none has it here, though the path may lead to one.
        """
        raw = raw_key(bucket, key)
        parts = raw.split(b"/")
        if b"\0" in raw or not raw or not {b".", b".."}.isdisjoint(parts):
            raise InvalidName(f"{bucket}: {key!r} is not a name of an object")
        if any(part.startswith(UNFINISHED) for part in parts):
            raise InvalidName(f"{bucket}: {key!r}: aisfs itself uses such names")
        if b"" in parts:
            # The system would read `a//b` as `a/b`, a second name for the same file.
            raise NotFound(f"{bucket}/{key}: no such object")
        return os.path.join(self.root, raw)

    def check_new(self, bucket: Bucket, key: str) -> None:
        """Make sure that a file of this key can be written; whatever hides there is not replaced."""
        check_new_key(bucket, key)
        path, subject = self.path(bucket, key), f"{bucket}/{key}"
        folder, name = os.path.split(raw_key(bucket, key))
        with writing_errors(subject):
            self.check_bucket(bucket)
            try:
                with opened(self.root, folder) as parent:
                    mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            except (FileNotFoundError, NotADirectoryError):
                # Nothing is there to be replaced. Whether something is in the way, writing finds
                # out: a directory that is being removed may also look like none.
                return
        if stat.S_ISLNK(mode):
            with suppress(OSError):  # it leads nowhere, or is no link any more
                found = self.links.target(path)
                mode = found[1].st_mode if found is not None else mode
                mode = stat.S_IFDIR if found is None and self.links.enters(path) else mode
        if stat.S_ISDIR(mode):
            raise IsADirectory(f"{subject}: is a directory")
        if not stat.S_ISREG(mode):
            raise Unsupported(f"{subject}: something that is no file has this name")

    def folder(self, bucket: Bucket, prefix: str) -> bytes | None:
        """Find the directory that a prefix means; None when there is none to be shown."""
        if not prefix:
            return self.root
        try:
            path = self.path(bucket, prefix[:-1]) if prefix != "/" else None
            # A directory that may not be entered is an error, not an empty one.
            if path and self.links.enters(path) and stat.S_ISDIR(os.stat(path).st_mode):
                return path
        except (NotFound, FileNotFoundError, NotADirectoryError):
            pass
        return None

    @contextmanager
    def open(self, bucket: Bucket, key: str) -> Iterator[int]:
        """Lend a descriptor of the file of a key, to read from.

        Raises:
            NotFound: there is none, or it is no regular file below the root.
        """
        subject = f"{bucket}/{key}"
        path = self.path(bucket, key)
        with os_errors(subject):
            self.check_bucket(bucket)
            descriptor = self._open(raw_key(bucket, key), path)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NotFound(f"{subject}: not a file")
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, raw: bytes, path: bytes) -> int:
        # A pipe in its place must not make the call wait for a writer.
        flags = os.O_RDONLY | os.O_NONBLOCK
        root = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                return open_beneath(root, raw, flags, links=False)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
            # As no listing leads through a link to a directory, nor does a name; the last step may be one.
            missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            try:
                entered = self.links.enters(os.path.dirname(path))
                descriptor = self.links.open(path, flags) if entered else None
            except OSError as error:  # EINVAL, when a link is no link any more
                raise missing from error
            if descriptor is None:
                raise missing
            return descriptor
        finally:
            os.close(root)

    def check_bucket(self, bucket: Bucket) -> None:
        """Make sure that the root, if it is what is meant, is still there."""
        if bucket != self._bucket or not os.path.isdir(self.root):
            raise BucketNotFound(f"{bucket}: no such directory")


def raw_key(bucket: Bucket, key: str) -> bytes:
    """Return a key as the bytes that names of files are."""
    try:
        return os.fsencode(key)
    except UnicodeEncodeError:
        raise InvalidName(f"{bucket}: {key!r} is not a name any store could hold") from None
