"""What a file system may tell the kernel unasked."""

from collections.abc import Iterable
from typing import Protocol


class Kernel(Protocol):
    """Makes the kernel forget what it was told before."""

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """Make the kernel look `name` up again. Must not wait for a request to be answered."""
        ...

    def invalidate_inode(self, ino: int) -> None:
        """Make the kernel ask for attributes and content again. Must not wait either."""
        ...

    def drop_pages(self, inodes: Iterable[int]) -> None:
        """Make the kernel ask for the content of files again, read-only ones too. Must not wait."""
        ...

    async def expire(
        self, entries: Iterable[tuple[int, bytes]], directories: Iterable[int]
    ) -> None:
        """Make the kernel ask for names, then for attributes and listings of directories, again.

        Returns once it knows, and has the replies to what it asked for before in the directories of the
        names. What a program has open stays open.
        """
        ...

    async def invalidated(self, parent: int, name: bytes) -> None:
        """Make the kernel look `name` up again, and wait until it knows, a second at most.

        Not for requests during which the kernel holds the lock of the directory `parent`.
        """
        ...
