"""`aisfs flush`, which `aisfs umount` does, too."""

import errno
import json
from pathlib import Path

from aisfs.app.watching.asking import ALIVE, ask
from aisfs.errors import AisfsError, MountError
from aisfs.fuse.mountpoint import our_mount

FLUSH = "user.aisfs.flush"


def flush(mountpoint: Path) -> int:
    """Have a mount upload the closed files that wait for it; return how many there were.

    Raises:
        MountError: there is no mount of aisfs, its daemon does not answer, or this user may not.
        AisfsError: some are not uploaded; the message says what becomes of them.
    """
    mount = our_mount(mountpoint)
    try:
        ask(mount, ALIVE)  # what follows may take long, since it waits for the cluster
        told = json.loads(ask(mount, FLUSH, None))
    except OSError as error:
        if error.errno == errno.ENODATA:
            raise MountError(
                f"{mountpoint}: its daemon is of an older aisfs, where no closed file waits"
            ) from error
        if error.errno == errno.EPERM:
            raise MountError(
                f"{mountpoint}: only the user who mounted it, and root, may flush it"
            ) from error
        raise MountError(f"{mountpoint}: {error.strerror}") from error
    if "failed" in told:
        raise AisfsError(f"{mountpoint}: {told['failed']}")
    return int(told["files"])
