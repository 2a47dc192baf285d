"""The directory a mount goes on: is it fit, and how is it left again."""

import ctypes
import errno
import grp
import os
import shutil
import stat
import subprocess
from collections.abc import Container
from pathlib import Path
from shlex import quote

from aisfs.errors import FuseUnavailable, MountError
from aisfs.fuse.mounting.busy import what_keeps_busy
from aisfs.fuse.mounting.kernel_settings import FILE_SYSTEM, device_minor, mounted_filesystems

FUSERMOUNT = "fusermount3"
DEVICE = "/dev/fuse"
_CONTAINER = "in a container pass the device: --device /dev/fuse --cap-add SYS_ADMIN"
MNT_FORCE, MNT_DETACH, _UMOUNT_NOFOLLOW = 1, 2, 8
_MOST_LINKS = 40
"""As many as Linux follows."""
UMOUNT_SECONDS = 20
"""A umount that takes longer is stuck behind something that will not end by waiting."""


def device_problem() -> tuple[str, str] | None:
    """Return what is wrong with the device of FUSE, and what mends it; None if it can be opened."""
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        found = f"{DEVICE}: {error.strerror}"
        if error.errno == errno.EACCES:
            status = os.stat(DEVICE)
            cure = f"as root: chmod 666 {DEVICE}"
            if status.st_mode & 0o060 == 0o060:
                cure += f", or put yourself into its group {_group(status.st_gid)}"
            return f"{found} ({stat.filemode(status.st_mode)})", cure
        if error.errno == errno.EPERM:
            return found, _CONTAINER
        return found, f"as root, load the kernel module: modprobe fuse; {_CONTAINER}"
    return None


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def check_fuse(*, fastpath: bool) -> None:
    """Check that this machine lets us mount at all; with the fast path root needs no fusermount3.

    Raises:
        FuseUnavailable: no /dev/fuse, or no fusermount3.
    """
    if problem := device_problem():
        raise FuseUnavailable("; ".join(problem))
    if shutil.which(FUSERMOUNT) is None and not (fastpath and os.geteuid() == 0):
        raise FuseUnavailable("fusermount3 is not installed; on Debian: apt install fuse3")


def prepare(mountpoint: Path, *, allow_nonempty: bool = False) -> None:
    """Check that `mountpoint` can be mounted on; clear away the mount of a daemon that died.

    Raises:
        MountError: it is missing, no directory, in use or not empty.
    """
    try:
        os.statvfs(mountpoint)  # stat alone would be answered from what the kernel still remembers
        mode = mountpoint.stat().st_mode
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise MountError(
                f"mountpoint {mountpoint}: no such directory; make it: mkdir -p {quote(str(mountpoint))}"
            ) from error
        if error.errno != errno.ENOTCONN:
            raise MountError(f"mountpoint {mountpoint}: {error.strerror}") from error
        unmount(mountpoint, lazy=True)
        mode = mountpoint.stat().st_mode
    if not stat.S_ISDIR(mode):
        raise MountError(f"mountpoint {mountpoint} is not a directory")
    if mountpoint.is_mount():
        raise MountError(
            f"mountpoint {mountpoint} is already mounted; unmount it first: aisfs umount {mountpoint}"
        )
    try:
        empty = next(os.scandir(mountpoint), None) is None
    except OSError as error:
        raise MountError(f"mountpoint {mountpoint}: {error.strerror}") from error
    if not allow_nonempty and not empty:
        raise MountError(
            f"mountpoint {mountpoint} is not empty; use an empty directory, or -o nonempty"
        )


def our_mount(mountpoint: Path) -> Path:
    """Return the path by which the kernel knows a mount of aisfs.

    Raises:
        MountError: nothing is mounted there, or something else.
    """
    kinds = dict(mounted_filesystems())
    place = _known_as(mountpoint, kinds)
    if place not in kinds:
        raise MountError(f"{mountpoint} is not a mountpoint")
    if kinds[place] != FILE_SYSTEM:
        raise MountError(f"{mountpoint} is a mount of {kinds[place]}, not of aisfs")
    return place


def _known_as(path: Path, mounts: Container[Path]) -> Path:
    """Resolve links without touching what is mounted: its daemon may have died, or stand still."""
    place = path.absolute()
    for _ in range(_MOST_LINKS):
        if place.name in ("", ".."):
            return Path(os.path.realpath(place))
        place = Path(os.path.realpath(place.parent), place.name)
        if place in mounts or not place.is_symlink():
            break
        place = place.parent / os.readlink(place)
    return place


def unmount(mountpoint: Path, *, lazy: bool = False) -> None:
    """Unmount; `lazy` detaches now and lets go when the last open file is closed.

    Raises:
        MountError: it is not mounted, or busy.
    """
    command = [FUSERMOUNT, "-u", *(["-z"] if lazy else []), "--", str(mountpoint)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=UMOUNT_SECONDS, check=False
        )
    except FileNotFoundError:
        if os.geteuid():
            raise FuseUnavailable(f"{FUSERMOUNT} is not installed") from None
        umount2(mountpoint, MNT_DETACH if lazy else 0)
        return
    except subprocess.TimeoutExpired:
        raise MountError(f"{mountpoint}: fusermount3 does not end; try --lazy") from None
    if done.returncode:
        if device_minor(Path(os.path.realpath(mountpoint))) is None:
            raise MountError(f"{mountpoint}: nothing is mounted there")
        reason = done.stderr.strip().removeprefix("fusermount3: ").replace("\n", "; ")
        if not lazy and "busy" in reason:
            raise _busy(mountpoint)
        raise MountError(reason or "fusermount3 failed")


def umount2(mountpoint: Path, flags: int) -> None:
    """Unmount as root, without fusermount3.

    Raises:
        MountError: it is not mounted, or busy.
    """
    if libc().umount2(os.fsencode(mountpoint), flags | _UMOUNT_NOFOLLOW):
        code = ctypes.get_errno()
        if code == errno.EBUSY and not flags:
            raise _busy(mountpoint)
        reason = "not mounted" if code == errno.EINVAL else os.strerror(code)
        raise MountError(f"{mountpoint}: {reason}")


def _busy(mountpoint: Path) -> MountError:
    why = what_keeps_busy(mountpoint)
    return MountError(
        f"{mountpoint} is busy: {why}. End that, or detach it now: aisfs umount --lazy {mountpoint}"
    )


def libc() -> ctypes.CDLL:
    """Return the system calls that Python does not have; `ctypes.get_errno` says what went wrong."""
    return ctypes.CDLL(None, use_errno=True)
