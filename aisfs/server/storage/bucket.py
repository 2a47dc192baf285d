"""One bucket: the folder with its objects, and what is known of each."""

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
    """One object as it is on the disk now, with what is known of it."""

    size: int
    mtime_ns: int
    atime_ns: int
    record: Record

    @property
    def identity(self) -> tuple[int, int]:
        """What ties a record to a file."""
        return self.size, self.mtime_ns

    def check(self, status: int = 500) -> None:
        """Refuse an object that is known to contradict itself.

        Raises:
            Failure: with this status.
        """
        damage = self.record.damage
        if damage and damage.noticed:
            text = f"errsize ({self.size} != {damage.length})"
            raise Failure(status, text, "ErrLmetaCorrupted")


class Bucket:
    """One bucket: its folder and its records.

    Names come from clients and symbolic links from whoever fills the directory: what is not opened
    by `open` goes through `check_place` first, so that nothing leads out of the served directory.
    """

    def __init__(
        self, root: int, name: str, folder: bytes, records: Records, beside: Beside
    ) -> None:
        """Describe the bucket `name`, whose `folder` lies in the directory open as `root`.

        `beside` has the objects that are not in that folder, since directories have their names.
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
        """Make sure that a file of this key would lie below the served directory.

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
        """Look an object up; None when there is no regular file at its key."""
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
        """Refuse an object that cannot be read; whatever contradicts itself is noticed from now on."""
        found.check()
        if found.record.damage and found.record.damage.length:
            damage = structs.replace(found.record.damage, noticed=True)
            record = replace(found.record, damage=damage)
            self.records.store(key, found.size, found.mtime_ns, record)

    def corrupted(self) -> frozenset[bytes]:
        """Return the keys of the objects that are known to contradict themselves."""
        found = ((key, self.find(key)) for key in self.records.damaged())
        damages = ((key, f.record.damage) for key, f in found if f)
        return frozenset(key for key, damage in damages if damage and damage.noticed)

    @staticmethod
    def found(status: os.stat_result, record: Record | None) -> Found:
        """Combine a file and its record; without one, the file's time stands in for a version."""
        if record is None:
            # A file nobody PUT: its time of change is at least as good a change indicator as a
            # counter, and stays a decimal number that a later PUT can count up.
            record = Record(version=str(status.st_mtime_ns))
        atime = max(status.st_atime_ns, status.st_mtime_ns)
        return Found(status.st_size, status.st_mtime_ns, atime, record)

    def is_file(self, key: bytes) -> bool:
        """Return whether a regular file below the served directory has this key."""
        with contextlib.suppress(Failure):
            return self.find(key) is not None
        return False
