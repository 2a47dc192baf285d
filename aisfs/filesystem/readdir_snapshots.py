"""Directories being read by inode: the snapshots that their readers go on with.

Nothing says which reader goes on at an offset. All get the snapshot of the last one that began, since
offsets hold good from one listing to the next.

A directory whose listing is not in memory is listed while it is being opened, and not at its first
READDIR: the kernel holds the directory's lock during READDIR, and with it every open and look-up in the
directory would wait for the store. The handle then stands for the snapshot, until its first READDIR.
"""

from collections import OrderedDict
from itertools import count

from aisfs.filesystem.handles import DirectoryHandle

DIRECTORIES_MAX = 256
"""Directories being read at once; one more makes one of them be listed again."""


class ReaddirSnapshots:
    """One for each directory that is being read, by inode number."""

    def __init__(self) -> None:
        """Start with none."""
        self._latest: OrderedDict[int, DirectoryHandle] = OrderedDict()
        self._opened: dict[int, DirectoryHandle] = {}
        """Listed while being opened and not read yet, by the number that the kernel knows as the handle."""
        self._numbers = count(1)
        self._handed_on: dict[int, DirectoryHandle] = {}
        """By inode number: what the dispatcher began to read and the trio thread has to answer."""

    def open(self, handle: DirectoryHandle) -> int:
        """Return a snapshot a number, for its first reader."""
        number = next(self._numbers)
        self._opened[number] = handle
        return number

    def take(self, number: int) -> DirectoryHandle | None:
        """Return the snapshot that has a number, the first time; 0 is none."""
        return self._opened.pop(number, None)

    def hand_on(self, ino: int, handle: DirectoryHandle) -> None:
        """Have the trio thread begin with a snapshot."""
        self._handed_on[ino] = handle

    def handed_on(self, ino: int) -> DirectoryHandle | None:
        """Return the snapshot to begin with, once."""
        return self._handed_on.pop(ino, None)

    def under_way(self, ino: int, offset: int) -> DirectoryHandle | None:
        """Return the snapshot to go on with at an offset, if there is one."""
        return self._latest.get(ino) if offset else None

    def begin(self, ino: int, handle: DirectoryHandle) -> DirectoryHandle:
        """Keep a snapshot for those who go on reading it."""
        self._latest[ino] = handle
        while len(self._latest) > DIRECTORIES_MAX:
            self._latest.popitem(last=False)
        return handle

    def end(self, ino: int) -> None:
        """Drop a snapshot: a reader came to its end, or the kernel forgot the directory."""
        self._latest.pop(ino, None)
