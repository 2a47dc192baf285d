"""Make the C library return freed memory to the system.

Columns of indexes and buffers take hundreds of kilobytes; one thread allocates them, another frees
them. glibc maps large blocks one by one, but raises the threshold to the largest block ever freed;
from then on they lie in its arenas, one per thread, between small blocks that pin the pages.
"""

import ctypes
from contextlib import suppress

_M_MMAP_THRESHOLD = -3
_MAPPED_FROM = 128 << 10
"""Bytes: glibc's initial threshold, and a column of 16,384 members."""


def map_large_blocks() -> None:
    """Make large blocks return to the system whenever they are freed."""
    with suppress(AttributeError):  # musl does so anyway
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM)


def give_memory_back() -> None:
    """Return free pages between small blocks to the system. Takes milliseconds, without the GIL."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
