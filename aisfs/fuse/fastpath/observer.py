"""The hook for pushing ahead: is told what the kernel reads and lists."""

from typing import Protocol


class Observer(Protocol):
    """Is told of replies after they were sent.

    Called from the thread that answers requests, or from trio's, perhaps from both at once. Must
    return within microseconds, must not raise, and must never wait for a lock that is held while a
    notification is sent: decide elsewhere, and push from the notifier's thread.
    """

    def was_read(self, ino: int, offset: int, size: int) -> None:
        """A READ of `size` bytes, after cutting at the end of the file, was answered."""
        ...

    def was_listed(self, ino: int) -> None:
        """A directory was listed to its end, so the kernel knows the inodes of its entries."""
        ...


class NullObserver:
    """An observer that does nothing."""

    def was_read(self, ino: int, offset: int, size: int) -> None:
        """See `Observer`."""

    def was_listed(self, ino: int) -> None:
        """See `Observer`."""
