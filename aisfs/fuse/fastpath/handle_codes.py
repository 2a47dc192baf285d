"""The handles of files that the lane opened, on a mount that can be written.

They say which inode it is, so that whoever gets one needs no table: pyfuse3 is told the handle only
when a file is closed. Its own handles count from 1.
"""

_MEMBER = 0
"""Any member of a shard: nobody needs to know which."""
_OBJECT = 1 << 63
"""Added to the number of an object, which is less."""


def handle_of(ino: int) -> int:
    """Give the handle of an open file."""
    return _MEMBER if ino & _OBJECT else ino | _OBJECT


def is_lanes(handle: int) -> bool:
    """Say whether the lane opened it."""
    return handle == _MEMBER or bool(handle & _OBJECT)


def object_of(handle: int) -> int | None:
    """Give the inode of an object that the lane opened; None for any other handle."""
    return handle ^ _OBJECT if handle & _OBJECT else None
