"""Directories being read without a handle: the snapshots that their readers go on with.

Without a handle there is nothing that says which reader goes on at an offset. All get the snapshot
of the last one that began, since offsets hold good from one listing to the next.
"""

from collections import OrderedDict

from aisfs.filesystem.handles import DirectoryHandle

DIRECTORIES_MAX = 256
"""Directories being read at once; one more makes one of them be listed again."""


class ReaddirSnapshots:
    """One for each directory that is being read, by inode number."""

    def __init__(self) -> None:
        """Start with none."""
        self._latest: OrderedDict[int, DirectoryHandle] = OrderedDict()

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
