"""Objects with the name of a directory, which AIStore can have if the two are on different disks.

One directory cannot contain both, so the files of such objects lie elsewhere, with their
percent-encoded keys as names.
"""

import os
import shutil
import threading
from contextlib import suppress
from urllib.parse import quote, unquote_to_bytes


def parents(key: bytes) -> list[bytes]:
    """Return the directories above a key, or the one that it names with a slash too; top first."""
    return [key[:at] for at in range(1, len(key)) if key[at : at + 1] == b"/"]


class Beside:
    """The objects of one bucket that have the name of a directory."""

    def __init__(self, folder: bytes) -> None:
        """Their files are in `folder`."""
        self.folder = folder
        self._lock = threading.Lock()
        self._keys = set[bytes]()
        with suppress(FileNotFoundError):
            self._keys.update(unquote_to_bytes(name) for name in os.listdir(folder))

    def __contains__(self, key: bytes) -> bool:
        """Return whether this object is one of them."""
        return key in self._keys

    def names(self, inside: bytes) -> set[bytes]:
        """Return the names of those that are directly in a directory, given with its slash."""
        return {key[len(inside) :] for key in self.below(inside) if b"/" not in key[len(inside) :]}

    def below(self, directory: bytes) -> list[bytes]:
        """Return those that are somewhere below a directory, given with its slash."""
        return [key for key in tuple(self._keys) if key.startswith(directory)]

    def name(self, key: bytes) -> bytes:
        """Return the name of the file of an object."""
        return quote(key, safe="").encode()

    def add(self, key: bytes, path: bytes | None = None) -> None:
        """Add an object, and move its file at `path` here, if there is one."""
        with self._lock:
            os.makedirs(self.folder, exist_ok=True)
            if path is not None:
                with suppress(FileNotFoundError, IsADirectoryError):  # just removed, or moved
                    os.rename(path, self.folder + b"/" + self.name(key))
            self._keys.add(key)

    def forget(self, key: bytes) -> None:
        """Remove an object whose file is gone."""
        self._keys.discard(key)

    def clear(self) -> None:
        """Remove all of them."""
        with self._lock:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._keys.clear()
