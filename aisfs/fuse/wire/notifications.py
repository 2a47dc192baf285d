"""What the daemon may tell the kernel unasked, as bytes; see `aisfs.fuse.wire.abi`."""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from struct import Struct


class Notification(IntEnum):
    """What the daemon may tell the kernel unasked."""

    INVAL_INODE = 2
    INVAL_ENTRY = 3
    STORE = 4


_INVAL_INODE = Struct("=IiQ Qqq")
_INVAL_ENTRY = Struct("=IiQ QII")
_EXPIRE_ONLY = 1
"""The name stays in use where it is: a directory that is some program's current one keeps its path."""
_STORE = Struct("=IiQ QQII")
STORE_HEADER = _STORE.size
"""Bytes of a notification before those to store."""
_STORE_CODE = int(Notification.STORE)


def inval_inode(nodeid: int, offset: int = 0, length: int = 0) -> bytes:
    """Drop attributes of an inode, and pages from `offset` on; 0 of length is to the end."""
    size = _INVAL_INODE.size
    return _INVAL_INODE.pack(size, Notification.INVAL_INODE, 0, nodeid, offset, length)


def inval_entry(parent: int, name: bytes) -> bytes:
    """Drop a name, and with it the kernel's listing of the directory."""
    size = _INVAL_ENTRY.size + len(name) + 1
    fixed = _INVAL_ENTRY.pack(size, Notification.INVAL_ENTRY, 0, parent, len(name), 0)
    return fixed + name + b"\0"


def expire_entry(parent: int, name: bytes) -> bytes:
    """Have a name looked up again. Linux before 6.2 drops it, as `inval_entry` does."""
    size = _INVAL_ENTRY.size + len(name) + 1
    fixed = _INVAL_ENTRY.pack(size, Notification.INVAL_ENTRY, 0, parent, len(name), _EXPIRE_ONLY)
    return fixed + name + b"\0"


def store_header(nodeid: int, offset: int, size: int) -> bytes:
    """Begin a notification that goes on with `size` bytes for the page cache of an inode."""
    return _STORE.pack(STORE_HEADER + size, _STORE_CODE, 0, nodeid, offset, size, 0)


def store_messages(
    room: bytearray | memoryview, files: Iterable[tuple[int, int, int]]
) -> Iterator[memoryview]:
    """Make notifications of whole files whose bytes lie in `room`, each in one piece there.

    Args:
        room: The `STORE_HEADER` bytes in front of each file are overwritten when its message is
            asked for; what lies there must not be wanted by then.
        files: Inode, where in `room` its bytes start, and how many there are.
    """
    whole, pack = memoryview(room), _STORE.pack_into
    for nodeid, start, size in files:
        at = start - STORE_HEADER
        pack(room, at, STORE_HEADER + size, _STORE_CODE, 0, nodeid, 0, size, 0)
        yield whole[at : start + size]


def store_pairs(
    data: memoryview, files: Iterable[tuple[int, int, int]]
) -> Iterator[tuple[bytes, memoryview]]:
    """Make notifications of whole files whose bytes lie in `data`, which stays as it is.

    Args:
        data: The bytes.
        files: As in `store_messages`.
    """
    for nodeid, start, size in files:
        yield store_header(nodeid, 0, size), data[start : start + size]
