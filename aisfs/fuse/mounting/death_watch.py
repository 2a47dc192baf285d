"""Frees who waits for a mount whose daemon was killed.

A thread that stores into the page cache may wait in the kernel for a page that a READ has locked.
Should the process be killed in that moment, the READ is not answered, the thread cannot end, the device
stays open, and every process that looks at the mount hangs. So a shell waits beside the daemon. The kernel
tells it that our main thread has ended; if other threads are there a second later it aborts the
connection, which needs fusectl, or root. Root mounts fusectl where it is not, unseen by others, since
`umount -f` knows no mount that another umount has already taken away, and waits for.
"""

import logging
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from aisfs.fuse.mounting.kernel_settings import CONNECTIONS

log = logging.getLogger(__name__)

_SCRIPT = """
free() {
    sleep 1
    set -- "$1" "$2" "/proc/$3/task"/*
    [ $# -gt 3 ] && {
        echo 1 > "$1" ||
        unshare -m sh -c 'mount -t fusectl none "${1%/*/*}" && echo 1 > "$1"' sh "$1" ||
        umount -f "$2"
    }
    exit
}
trap 'free "$@"' USR1
trap '' HUP INT TERM
read -r _
"""
"""Words: the file that aborts, the mountpoint, our process. A daemon that is gone, or waits to be
reaped, has no other thread."""
DISMISS_SECONDS = 5


class DeathWatch:
    """The shell beside a mount. To be made in the main thread."""

    def __init__(self, mountpoint: Path | None, minor: int | None) -> None:
        """Start it, if this system can.

        Args:
            mountpoint: As the kernel calls it; None if that is not known.
            minor: The device number of the mount.
        """
        self._process: subprocess.Popen[bytes] | None = None
        if minor is None:  # it is unmounted again
            return
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            log.info("no guardian beside the mount: setpriv (util-linux) is not installed")
            return
        abort = CONNECTIONS / str(minor) / "abort"
        words = [str(abort), str(mountpoint or ""), str(os.getpid())]
        self._process = subprocess.Popen(
            [setpriv, "--pdeathsig", "USR1", "sh", "-c", _SCRIPT, "aisfs-guardian", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def dismiss(self) -> None:
        """End it: the mount ends as it should."""
        if self._process is None:
            return
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.communicate(b"\n", DISMISS_SECONDS)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
