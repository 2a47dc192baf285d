"""A descriptor of /dev/fuse that another program opened, mounted and passed on: `/dev/fd/N` as MNT.

libfuse, mountpoint-s3 and gcsfuse take it under the same name. The process that serves such a mount needs
no rights: neither /dev/fuse nor fusermount3 has to be there. It knows no path of the mount, which may
lie in another mount namespace, so unmounting is left to the program that mounted.
"""

import fcntl
import os
import re
import select
import stat
from collections.abc import Collection
from pathlib import Path

from aisfs.errors import ConfigError, MountError

_PATH = re.compile(r"/dev/fd/(\d+)")
_DEVICE = os.makedev(10, 229)
"""/dev/fuse on every Linux."""
_STANDARD = 3
"""Descriptors below this one are stdin, stdout and stderr, which a daemon closes."""
_CONNECTION = re.compile(r"^fuse_connection:\s*(\d+)$", re.MULTILINE)


def descriptor_of(mountpoint: Path) -> int | None:
    """Return the descriptor that a mountpoint stands for, or None if it is a directory."""
    found = _PATH.fullmatch(str(mountpoint))
    return int(found[1]) if found else None


def check_descriptor(fd: int, options: Collection[str]) -> None:
    """Check that a descriptor is an open, mounted /dev/fuse.

    Args:
        fd: The descriptor.
        options: Mount options that were given, which come too late.

    Raises:
        MountError: it is not.
        ConfigError: there are options.
    """
    if options:
        raise ConfigError(
            f"-o {min(options)}: /dev/fd/{fd} is mounted already; give it to the program that mounts"
        )
    if fd < _STANDARD:
        raise MountError(
            f"/dev/fd/{fd} is a standard stream; pass /dev/fuse as descriptor 3 or above"
        )
    try:
        status = os.fstat(fd)
    except OSError as error:
        raise MountError(
            f"/dev/fd/{fd}: {os.strerror(error.errno or 0)}; the program that mounts must let its "
            "child inherit the descriptor"
        ) from error
    if not stat.S_ISCHR(status.st_mode) or status.st_rdev != _DEVICE:
        raise MountError(f"/dev/fd/{fd} is {os.readlink(f'/proc/self/fd/{fd}')}, not /dev/fuse")
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
        raise MountError(f"/dev/fd/{fd} is not open for reading and writing")
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if any(events & select.POLLERR for _, events in poll.poll(0)):
        raise MountError(
            f"/dev/fd/{fd} is not mounted, or is unmounted again; mount it with fd={fd}"
        )


def connection_of(fd: int) -> int | None:
    """Return the number of the connection under /sys/fs/fuse; None if the kernel does not tell it."""
    try:
        found = _CONNECTION.search(Path(f"/proc/self/fdinfo/{fd}").read_text())
    except OSError:
        return None
    return int(found[1]) if found else None
