"""The handles of files that the dispatcher opened, in a mount that can be written.

They say which inode it is, so that no table is needed: pyfuse3 is told the handle only
when a file is closed. Its own handles count from 1.
"""

_MEMBER = 0
"""Any member of a shard: which one does not matter."""
_OBJECT = 1 << 63
"""Added to the number of an object, which is less."""


def handle_of(ino: int) -> int:
    """Return the handle of an open file."""
    return _MEMBER if ino & _OBJECT else ino | _OBJECT


def is_fastpath_handle(handle: int) -> bool:
    """Return whether the dispatcher opened it."""
    return handle == _MEMBER or bool(handle & _OBJECT)


def object_of(handle: int) -> int | None:
    """Return the inode of an object that the dispatcher opened; None for any other handle."""
    return handle ^ _OBJECT if handle & _OBJECT else None
