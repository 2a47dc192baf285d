"""`aisfs umount`."""

import errno
import os
from pathlib import Path

from aisfs.app.watching.flush import flush
from aisfs.errors import AisfsError, MountError
from aisfs.fuse.mounting.mountpoint import our_mount, unmount


def umount(mountpoint: Path, *, lazy: bool) -> None:
    """Unmount a mount of aisfs; `lazy` detaches it even when it is busy.

    Raises:
        MountError: it is no mount of aisfs, or busy.
        AisfsError: it is unmounted, and some closed files were not uploaded; the message says what
            becomes of them.
    """
    mount = our_mount(mountpoint)
    problem: AisfsError | None = None
    if not lazy:
        try:
            flush(mountpoint)
        except MountError:
            pass  # whoever cannot ask the daemon may unmount all the same
        except AisfsError as error:
            problem = error
    unmount(mount, lazy=lazy)
    if problem is not None:
        raise problem


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
