"""The descriptor of a mount: from fusermount3, as any user may, or from mount(2), as root.

We mount ourselves because pyfuse3 does not hand out the descriptor it mounts with. No other thread may touch
the mountpoint between the mount and the start of the thread that serves it: the kernel would wait
for an answer to its first request, and so would we.
"""

import ctypes
import logging
import os
import select
import shutil
import socket
import stat
import subprocess
from pathlib import Path

from aisfs.errors import FuseUnavailable, MountError
from aisfs.fuse.mounting.death_watch import DeathWatch
from aisfs.fuse.mounting.inherited import connection_of, descriptor_of
from aisfs.fuse.mounting.kernel_settings import CONNECTIONS, device_minor
from aisfs.fuse.mounting.mountpoint import FUSERMOUNT, MNT_FORCE, libc, umount2, unmount

log = logging.getLogger(__name__)

_COMMFD = "_FUSE_COMMFD"
MOUNT_SECONDS = 20
"""It takes milliseconds, unless a directory above is on a file system that does not answer."""
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOATIME = 1, 2, 4, 1024
_FLAGS = {"ro": _MS_RDONLY, "noatime": _MS_NOATIME}
_OURS = ("nonempty", "fsname", "subtype", "rw")
"""Options that mount(2) does not take in its text."""


class Device:
    """An open /dev/fuse that is mounted on a directory."""

    def __init__(self, fd: int, mountpoint: Path | None) -> None:
        """Take over a descriptor that is mounted; None if it is not known where."""
        self.fd = fd
        self._mountpoint = mountpoint
        os.set_inheritable(fd, False)  # else a child of ours would keep the connection alive
        os.set_blocking(fd, False)
        self._asked = select.poll()
        self._asked.register(fd, select.POLLIN)
        self._minor = connection_of(fd) if mountpoint is None else device_minor(mountpoint)

    def guarded(self) -> DeathWatch:
        """Start the death watch. Call it in the main thread, before any request is served."""
        return DeathWatch(self._mountpoint, self._minor)

    @property
    def mounted(self) -> bool:
        """Whether it is still mounted where it was; False if that is not known."""
        if self._mountpoint is None or self._minor is None:
            return False
        return device_minor(self._mountpoint) == self._minor

    def has_request(self) -> bool:
        """Return whether the kernel has a request to hand out. For the dispatcher."""
        return bool(self._asked.poll(0))

    def unmount(self) -> None:
        """Detach the mount if it is there, even if busy; logs when it cannot."""
        if self._mountpoint is None or not self.mounted:
            return
        try:
            unmount(self._mountpoint, lazy=True)
        except MountError as error:
            log.warning("%s stays mounted: %s", self._mountpoint, error)

    def abort(self) -> bool:
        """Make every request fail, now and later, also those the kernel cannot be woken from.

        Returns:
            Whether it could be done.
        """
        try:
            (CONNECTIONS / str(self._minor) / "abort").write_text("1")
            return True
        except OSError as error:
            log.info("cannot abort the connection in %s: %s", CONNECTIONS, error.strerror)
        if self._mountpoint is None:
            return False
        try:
            umount2(self._mountpoint, MNT_FORCE)  # aborts first, then unmounts if not busy
        except MountError as error:
            log.info("cannot abort the connection by umount: %s", error)
            return False
        return True

    def close(self) -> None:
        """Close the device: requests to what is still mounted fail from now on."""
        os.close(self.fd)


def mount_device(mountpoint: Path, options: set[str]) -> Device:
    """Mount on an empty directory, or take over a descriptor that is mounted already.

    Args:
        mountpoint: Absolute; `/dev/fd/N` is the descriptor N.
        options: Words as of `mount -o`.

    Raises:
        MountError: the kernel or fusermount3 refused.
    """
    inherited = descriptor_of(mountpoint)
    if inherited is not None:
        return Device(inherited, None)
    mountpoint = mountpoint.resolve()  # as the kernel will call it, and while it may be touched
    if shutil.which(FUSERMOUNT) is not None:
        return Device(_ask_fusermount(mountpoint, options), mountpoint)
    if os.geteuid():
        raise FuseUnavailable(f"{FUSERMOUNT} is not installed; on Debian: apt install fuse3")
    return Device(mount_as_root(mountpoint, options), mountpoint)


def _ask_fusermount(mountpoint: Path, options: set[str]) -> int:
    """Mount with the setuid program, which sends the descriptor through a socket."""
    ours, its = socket.socketpair()
    with ours, its:
        # In the environment of the child only, which is how libfuse talks to it.
        command = ["env", f"{_COMMFD}={its.fileno()}", FUSERMOUNT]
        try:
            done = subprocess.run(
                [*command, "-o", ",".join(sorted(options)), "--", str(mountpoint)],
                pass_fds=[its.fileno()],
                capture_output=True,
                text=True,
                check=False,
                timeout=MOUNT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise MountError(
                f"cannot mount on {mountpoint}: {FUSERMOUNT} does not end; is a directory above it "
                "on a file system that does not answer?"
            ) from None
        its.close()
        if done.returncode:
            reason = done.stderr.strip().removeprefix(f"{FUSERMOUNT}: ").replace("\n", "; ")
            raise MountError(f"cannot mount on {mountpoint}: {reason or 'fusermount3 failed'}")
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        raise MountError(f"cannot mount on {mountpoint}: fusermount3 sent no descriptor")
    return descriptors[0]


def mount_as_root(mountpoint: Path, options: set[str]) -> int:
    """Mount without fusermount3; return the open /dev/fuse.

    Raises:
        OSError: it cannot be opened.
        MountError: the kernel refused.
    """
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    words = dict(option.partition("=")[::2] for option in options)
    flags = _MS_NOSUID | _MS_NODEV
    for name in _FLAGS.keys() & words.keys():
        flags |= _FLAGS[name]
    data = {"fd": str(fd), "rootmode": f"{stat.S_IFDIR:o}"}
    data |= {"user_id": str(os.getuid()), "group_id": str(os.getgid())}
    data |= {n: v for n, v in words.items() if n not in _FLAGS and n not in _OURS}
    text = ",".join(f"{name}={value}" if value else name for name, value in data.items())
    kind = f"fuse.{words['subtype']}" if "subtype" in words else "fuse"
    source = words.get("fsname", "aisfs")
    target = os.fsencode(mountpoint)
    done = libc().mount(os.fsencode(source), target, kind.encode(), flags, text.encode())
    if done:
        code = ctypes.get_errno()
        os.close(fd)
        raise MountError(f"cannot mount on {mountpoint}: {os.strerror(code)}")
    return fd
