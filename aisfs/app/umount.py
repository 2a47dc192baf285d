"""`aisfs umount`."""

import errno
import os
from pathlib import Path

from aisfs.fuse.mounting.mountpoint import our_mount, unmount


def umount(mountpoint: Path, *, lazy: bool) -> None:
    """Unmount a mount of aisfs; `lazy` detaches it even when it is busy.

    Raises:
        MountError: it is no mount of aisfs, or busy.
    """
    unmount(our_mount(mountpoint), lazy=lazy)


def clear_dead(mountpoint: Path) -> None:
    """Unmount what a daemon left behind that was killed; leave any other mount alone.

    Raises:
        MountError: it cannot be unmounted.
    """
    try:
        os.statvfs(mountpoint)
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
            umount(mountpoint, lazy=True)
