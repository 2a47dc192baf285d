"""Open a file below a directory, where no symbolic link and no `..` leads out of it.

The kernel checks each step of the path while it takes it (openat2, Linux 5.6), so nothing that is
moved or replaced in the meantime can lead elsewhere. Python has no call for it yet.
"""

import ctypes
import errno
import os

_OPENAT2 = 437
"""The number of the system call, the same on every architecture."""
_NO_MAGIC_LINKS = 0x02
_NO_SYMLINKS = 0x04
_BENEATH = 0x08
_TRIES = 100
"""A path with `..` that meets a rename elsewhere is EAGAIN; the next try rarely meets one."""

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


class _How(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_beneath(directory: int, path: bytes, flags: int, *, links: bool = True) -> int:
    """Return a descriptor of `path`, which is relative to the open `directory`.

    Args:
        directory: A descriptor of the directory.
        path: Without a leading slash.
        flags: As for `os.open`; O_CLOEXEC is added.
        links: Whether symbolic links that stay below the directory are followed.

    Raises:
        OSError: EXDEV when the path leads out of the directory, ELOOP at a link that is not to be
            followed; otherwise as `os.open`.
    """
    if b"\0" in path:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    resolve = _BENEATH | _NO_MAGIC_LINKS | (0 if links else _NO_SYMLINKS)
    how = _How(flags | os.O_CLOEXEC, 0, resolve)
    number = errno.EAGAIN
    for _ in range(_TRIES):
        found: int = _syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(directory),
            ctypes.c_char_p(path),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if found >= 0:
            return found
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    # Containers may refuse calls that they do not know as not permitted.
    if number in (errno.ENOSYS, errno.EPERM):
        return _step_by_step(directory, path, flags)
    raise OSError(number, os.strerror(number), path)


def _step_by_step(directory: int, path: bytes, flags: int) -> int:
    """Do the same on an older kernel, where no link is followed at all."""
    if path.startswith(b"/") or b".." in path.split(b"/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    *folders, name = path.split(b"/")
    held = os.dup(directory)
    try:
        for folder in folders:
            here = os.open(folder or b".", os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=held)
            os.close(held)
            held = here
        return os.open(name or b".", flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
    finally:
        os.close(held)
