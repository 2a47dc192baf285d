"""How the C library gives memory back.

Columns of indexes and buffers are hundreds of kilobytes, made by one thread and dropped by another.
glibc raises the size from which it maps them one by one to that of the largest it ever freed; from
then on they lie in its arenas, one for each thread, between small things that hold the pages.
"""

import ctypes
from contextlib import suppress

_M_MMAP_THRESHOLD = -3
_MAPPED_FROM = 128 << 10
"""Bytes; glibc's own value at the start. A column of 16,384 members has that."""


def map_large_blocks() -> None:
    """Have large blocks return to the system whenever they are freed."""
    with suppress(AttributeError):  # musl does so anyway
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM)


def give_memory_back() -> None:
    """Return what is free between small blocks. Takes milliseconds, without Python's lock."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
