"""What is open by a handle that was given out in the trio thread; see `handle_codes` for the others."""

import os
from collections.abc import Callable
from itertools import count

from aisfs.filesystem.handles import DirectoryHandle, FileHandle, OpenFile
from aisfs.filesystem.nodes import describe
from aisfs.fuse.fastpath.handle_codes import object_of

Opened = DirectoryHandle | FileHandle | OpenFile


class HandleTable:
    """Handles by their numbers. For the trio thread, and for the dispatcher, which opens new files."""

    def __init__(self) -> None:
        """Start with none."""
        self._opened: dict[int, Opened] = {}
        self._numbers = count(1)

    def keep(self, opened: Opened) -> int:
        """Return something open a number."""
        number = next(self._numbers)
        self._opened[number] = opened
        return number

    def get(self, number: int) -> Opened | None:
        """Return what has a number."""
        return self._opened.get(number)

    def __getitem__(self, number: int) -> Opened:
        """Return what has a number, which was not closed."""
        return self._opened[number]

    def file(self, number: int) -> FileHandle | OpenFile:
        """Return the open file that has a number; the dispatcher may have opened it."""
        ino = object_of(number)
        if ino is not None:
            return OpenFile(ino, None)
        opened = self._opened[number]
        assert isinstance(opened, FileHandle | OpenFile), "the kernel uses a file it opened"
        return opened

    def describe(self, number: int, of_inode: Callable[[int], str]) -> str:
        """Return which file has a number, for the log.

        Args:
            number: A handle.
            of_inode: Says which file an inode is.
        """
        opened = self._opened.get(number)
        ino = opened.ino if isinstance(opened, OpenFile) else object_of(number)
        if ino is not None:
            return of_inode(ino)
        if not isinstance(opened, FileHandle):
            return f"handle {number}"
        member = opened.member
        inside = f"/{os.fsdecode(member.index.name(member.row))}" if member is not None else ""
        return describe(opened.node) + inside

    def drop(self, number: int) -> Opened | None:
        """Forget a number; returns what had it."""
        return self._opened.pop(number, None)
