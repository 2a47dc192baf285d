"""What of an open file is in the page cache."""

import ctypes
import mmap
import os

PAGE = mmap.PAGESIZE
_CACHESTAT = 451
"""The number of the call, on every architecture. Linux 6.5."""


def cached_pages(descriptor: int) -> int:
    """Count the pages of an open file that are in memory; it need not be readable, nor is it read.

    Raises:
        OSError: ENOSYS, the kernel is too old to tell.
    """
    everything = (ctypes.c_uint64 * 2)(0, 0)
    counted = (ctypes.c_uint64 * 5)()
    if ctypes.CDLL(None, use_errno=True).syscall(_CACHESTAT, descriptor, everything, counted, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return counted[0]
