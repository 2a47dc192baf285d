"""`aisfs umount`."""

import errno
import json
import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aisfs.app.watching.asking import ask
from aisfs.app.watching.flush import flush
from aisfs.app.watching.mounts import ABOUT
from aisfs.errors import AisfsError, MountError
from aisfs.fuse.mountpoint import our_mount, unmount

QUIET_SECONDS = 5.0
"""A daemon that takes longer to end is worth a line; most take a fraction of a second."""
END_SECONDS = 180.0
"""After so long a daemon hangs: at its end it tries to upload for `--io-timeout`, by default a minute."""
_REAP_SECONDS = 3.0
"""So long it is waited until a process that has ended is in no list either: some first processes of containers
look for such every two seconds, and some never."""


def umount(
    mountpoint: Path, *, lazy: bool, tell: Callable[[str], None] = lambda text: None
) -> None:
    """Unmount a mount of aisfs, and wait until its daemon has ended.

    Args:
        mountpoint: Where it is.
        lazy: Detach it even when it is busy, ask its daemon nothing, and wait for nothing.
        tell: Given a line for the user when the daemon takes long to end.

    Raises:
        MountError: it is no mount of aisfs, or busy, or its daemon does not end.
        AisfsError: it is unmounted, and some closed files were not uploaded; the message says what
            becomes of them.
    """
    mount = our_mount(mountpoint)
    if lazy:
        unmount(mount, lazy=True)
        return
    problem: AisfsError | None = None
    answers = True
    try:
        flush(mountpoint)
    except MountError:
        answers = False  # a user who cannot ask the daemon may unmount all the same
    except AisfsError as error:
        problem = error
    with _watched(_pid(mount) if answers else None) as daemon:
        unmount(mount)
        if daemon is not None:
            _wait(mount, daemon, tell)
    if problem is not None:
        raise problem


def _pid(mount: Path) -> int | None:
    """Return the process that serves a mount; None if it cannot be seen from here, as in another container."""
    with suppress(AisfsError, OSError, KeyError):
        pid = int(json.loads(ask(mount, ABOUT))["pid"])
        if b"mount" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return pid
    return None


@contextmanager
def _watched(pid: int | None) -> Iterator[tuple[int, int] | None]:
    """Yield a process and a descriptor of it, by which its number cannot come to mean another one."""
    descriptor = None
    if pid is not None:
        with suppress(OSError):
            descriptor = os.pidfd_open(pid)
    try:
        yield None if pid is None or descriptor is None else (pid, descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _wait(mount: Path, daemon: tuple[int, int], tell: Callable[[str], None]) -> None:
    pid, descriptor = daemon
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(QUIET_SECONDS * 1000):
        tell(f"{mount} is unmounted; waiting for its daemon (process {pid}) to end")
        if not poll.poll((END_SECONDS - QUIET_SECONDS) * 1000):
            raise MountError(
                f"{mount} is unmounted, but its daemon (process {pid}) has not ended within "
                f"{END_SECONDS:.0f} s; its log may say why, and kill -9 ends it"
            )
    deadline = time.monotonic() + _REAP_SECONDS
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.01)  # noqa: TID251 - a command; there is no event loop


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
