"""One bucket: the folder with its objects, and the record of each."""

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace

from msgspec import structs

from aisfs.openat2 import open_beneath
from aisfs.server import failures
from aisfs.server.failures import Failure
from aisfs.server.names import check_key
from aisfs.server.storage.beside import Beside
from aisfs.server.storage.records import Record, Records


@dataclass(frozen=True, slots=True)
class Found:
    """The current state of one object on disk, with its record."""

    size: int
    mtime_ns: int
    atime_ns: int
    record: Record

    @property
    def identity(self) -> tuple[int, int]:
        """Links a record to a file."""
        return self.size, self.mtime_ns

    def check(self, status: int = 500) -> None:
        """Check that the object's metadata is not known to be inconsistent.

        Raises:
            Failure: with this status.
        """
        damage = self.record.damage
        if damage and damage.noticed:
            text = f"errsize ({self.size} != {damage.length})"
            raise Failure(status, text, "ErrLmetaCorrupted")


class Bucket:
    """One bucket: its folder and its records.

    Names come from clients, and the directory may contain any symbolic links. So that nothing leads
    out of the served directory, a path is either opened by `open` or checked by `check_place` first.
    """

    def __init__(
        self, root: int, name: str, folder: bytes, records: Records, beside: Beside
    ) -> None:
        """Describe the bucket `name`, whose `folder` lies in the directory open as `root`.

        `beside` has the objects that cannot be in that folder, since directories have their names.
        """
        self.name = name
        self.folder = folder
        self.records = records
        self.beside = beside
        self._root = root

    def path_of(self, key: bytes) -> bytes:
        """Return the path of a key that was listed, found or checked."""
        if key in self.beside:
            return self.beside.folder + b"/" + self.beside.name(key)
        return self.folder + b"/" + key

    def open(self, key: bytes, flags: int = os.O_RDONLY | os.O_NONBLOCK) -> int:
        """Return a descriptor of the file of a key; never waits for the writer of a fifo.

        Raises:
            OSError: there is none below the served directory, or it cannot be opened.
            Failure: 400; no object can have this name.
        """
        check_key(key)
        if key in self.beside:
            return os.open(self.path_of(key), flags | os.O_NOFOLLOW | os.O_CLOEXEC)
        return open_beneath(self._root, os.fsencode(self.name) + b"/" + key, flags)

    def open_folder(self, key: bytes) -> int:
        """Return a descriptor of the directory of a key, or of the bucket itself for an empty one.

        Raises:
            OSError: there is none below the served directory.
        """
        path = os.fsencode(self.name) + b"/" + key
        return open_beneath(self._root, path, os.O_RDONLY | os.O_DIRECTORY)

    def has_folder(self, key: bytes) -> bool:
        """Return whether there is a directory of this key below the served one."""
        try:
            os.close(self.open_folder(key))
        except OSError:
            return False
        return True

    def below(self, key: bytes) -> Iterator[bytes]:
        """Yield the keys of all files below the directory of a key."""
        yield from self.beside.below(key + b"/")
        if self.has_folder(key):
            for folder, _, names in os.walk(self.folder + b"/" + key):
                for name in names:
                    yield folder[len(self.folder) + 1 :] + b"/" + name

    def check_place(self, key: bytes) -> None:
        """Check that a file of this key would lie below the served directory.

        Raises:
            Failure: 400.
        """
        check_key(key)
        folder = os.fsencode(self.name) + b"/" + os.path.dirname(key)
        try:
            os.close(open_beneath(self._root, folder, os.O_PATH))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            text = f"{failures.text_of(key)}: a link on the way leads out of the served directory"
            raise Failure(400, text, "errInvalidPath") from error

    def find(self, key: bytes, status: os.stat_result | None = None) -> Found | None:
        """Return an object; None when there is no regular file at its key."""
        if status is None:
            try:
                descriptor = self.open(key, os.O_PATH)
            except OSError:
                return None
            try:
                status = os.fstat(descriptor)
            finally:
                os.close(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        record = self.records.find(key, status.st_size, status.st_mtime_ns)
        return self.found(status, record)

    def load(self, key: bytes, found: Found) -> None:
        """Check that an object can be read; from then on its inconsistent length counts as noticed."""
        found.check()
        if found.record.damage and found.record.damage.length:
            damage = structs.replace(found.record.damage, noticed=True)
            record = replace(found.record, damage=damage)
            self.records.store(key, found.size, found.mtime_ns, record)

    def corrupted(self) -> frozenset[bytes]:
        """Return the keys of the objects whose metadata is known to be inconsistent."""
        found = ((key, self.find(key)) for key in self.records.damaged())
        damages = ((key, f.record.damage) for key, f in found if f)
        return frozenset(key for key, damage in damages if damage and damage.noticed)

    @staticmethod
    def found(status: os.stat_result, record: Record | None) -> Found:
        """Return a file with its record; without a record, the file's mtime is the version."""
        if record is None:
            # A file that was not PUT: its mtime detects changes as well as a counter does, and is
            # a decimal number that a later PUT can increment.
            record = Record(version=str(status.st_mtime_ns))
        atime = max(status.st_atime_ns, status.st_mtime_ns)
        return Found(status.st_size, status.st_mtime_ns, atime, record)

    def is_file(self, key: bytes) -> bool:
        """Return whether a regular file below the served directory has this key."""
        with contextlib.suppress(Failure):
            return self.find(key) is not None
        return False
