"""The directories that kubelet wants volumes on: what is there, and how a volume gets there and away.

What the kernel has mounted is the only record. So nothing has to be found again when the driver was restarted.
No symbolic link is followed on the way to a target: what is mounted there can be found there again.
"""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from aisfs.app.csi.failures import Code, VolumeError
from aisfs.app.csi.mounter import hand_over
from aisfs.app.csi.volumes import Volume
from aisfs.errors import MountError
from aisfs.fuse.mounting import kernel_settings
from aisfs.fuse.mounting.device import mount_as_root
from aisfs.fuse.mounting.mountpoint import MNT_DETACH, MNT_FORCE, umount2
from aisfs.process.threads import start_service_thread

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""A daemon that has not answered statfs(2) by then, which asks no cluster, hangs."""
PUBLISHES_AT_ONCE = 192
"""A volume that shows a large dataset takes minutes to open, and others do not wait for it. Twice as many as a node has
pods by default."""
_FSNAME_MAX = 200


class State(Enum):
    """What is at a target."""

    FREE = "nothing is mounted"
    SERVED = "it is mounted"
    DEAD = "the process that serves the volume has died or hangs"
    FOREIGN = "another file system is mounted"


class _Turn:
    """A call that is at work on a target."""

    def __init__(self) -> None:
        self.given_up = False
        """Whether it should wait no more for its volume to be ready."""
        self.ended = threading.Event()


class Targets:
    """The targets of one node."""

    def __init__(self, mounter: Path) -> None:
        """Hand mounts to the process that listens on the socket `mounter`."""
        self._mounter = mounter
        self._busy: dict[Path, _Turn] = {}
        """Targets that a call is at work on. Calls come in threads; each step on this is atomic."""

    def publish(self, target: Path, volume: Volume) -> None:
        """Mount a volume, unless it is mounted already.

        Raises:
            VolumeError: with its code.
        """
        if len(self._busy) >= PUBLISHES_AT_ONCE:
            raise VolumeError(
                Code.RESOURCE_EXHAUSTED,
                f"{PUBLISHES_AT_ONCE} volumes of this node are being published: try again later",
            )
        with self._alone(target) as turn:
            match state_of(target):
                case State.SERVED:
                    _check_same(target, volume)
                    return
                case State.FOREIGN:
                    raise VolumeError(
                        Code.FAILED_PRECONDITION, f"{target}: another file system is mounted there"
                    )
                case State.DEAD:
                    _detach(target, State.DEAD)
            fd = _open_directory(target)
            try:
                self._mount(target, fd, volume, turn)
            except BaseException:
                _detach(target, State.DEAD)
                with suppress(OSError):  # it may have been there before, and in use
                    target.rmdir()
                raise
            finally:
                os.close(fd)

    def _mount(self, target: Path, directory: int, volume: Volume, turn: _Turn) -> None:
        options = {"allow_other", "default_permissions", "subtype=aisfs", "noatime"}
        try:
            fd = mount_as_root(
                Path(f"/proc/self/fd/{directory}"),
                {*options, f"fsname={_name(volume)}", "ro" if volume.read_only else "rw"},
            )
        except (OSError, MountError) as error:
            raise VolumeError(Code.FAILED_PRECONDITION, f"{target}: {error}") from error
        try:
            hand_over(self._mounter, volume, fd, lambda: turn.given_up)
        finally:
            os.close(fd)  # else nobody would notice the death of the daemon
        # Without the fast path the limit would be the default; with it INIT has raised it.
        kernel_settings.tune(target)

    def unpublish(self, target: Path) -> None:
        """Unmount a volume, whatever became of its daemon, also if it is just being mounted; nothing to do if there is none.

        Raises:
            VolumeError: with its code.
        """
        if (publishing := self._busy.get(target)) is not None:
            publishing.given_up = True
            publishing.ended.wait(ANSWER_SECONDS)
        with self._alone(target):
            state = state_of(target)
            if state is State.FOREIGN:
                raise VolumeError(
                    Code.FAILED_PRECONDITION, f"{target}: another file system is mounted there"
                )
            if state is not State.FREE:
                _detach(target, state)
            if not target.is_symlink():  # which nothing was ever mounted on
                with suppress(FileNotFoundError):
                    target.rmdir()

    @contextmanager
    def _alone(self, target: Path) -> Iterator[_Turn]:
        turn = _Turn()
        if self._busy.setdefault(target, turn) is not turn:
            raise VolumeError(Code.ABORTED, f"{target}: another call is at work on it")
        try:
            yield turn
        except OSError as error:
            raise VolumeError(Code.INTERNAL, f"{target}: {error.strerror}") from error
        finally:
            del self._busy[target]
            turn.ended.set()


def state_of(target: Path) -> State:
    """Return what is at a target; takes at most `ANSWER_SECONDS`."""
    return facts_of(target)[0]


def facts_of(target: Path) -> tuple[State, os.statvfs_result | None]:
    """Likewise, and what statfs(2) says of a volume that is served."""
    kind = dict(kernel_settings.mounted_filesystems()).get(target)
    if kind is None:
        return State.FREE, None
    if kind != kernel_settings.FILE_SYSTEM:
        return State.FOREIGN, None
    answered: list[os.statvfs_result] = []

    def ask() -> None:
        with suppress(OSError):
            answered.append(os.statvfs(target))

    # A call to a daemon that hangs cannot be interrupted: its thread is left to itself.
    start_service_thread("aisfs asks", ask).join(ANSWER_SECONDS)
    return (State.SERVED, answered[0]) if answered else (State.DEAD, None)


def _open_directory(target: Path) -> int:
    """Return a descriptor of a target, which is made if it is missing.

    Raises:
        VolumeError: a part of the path is a symbolic link, or no directory.
    """
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY)
    for depth, name in enumerate(target.parts[1:], start=2):
        try:
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=fd)
            inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
        except NotADirectoryError:
            raise VolumeError(
                Code.FAILED_PRECONDITION,
                f"{target}: {Path(*target.parts[:depth])} is a symbolic link, or no directory: no"
                " volume is mounted through it",
            ) from None
        finally:
            os.close(fd)
        fd = inner
    return fd


def _name(volume: Volume) -> str:
    """Return what the kernel shows as mounted."""
    return " ".join(volume.sources).replace(",", "_")[:_FSNAME_MAX]


def _check_same(target: Path, volume: Volume) -> None:
    """Refuse another volume than the one that is mounted; other attributes than these the kernel does not know."""
    mounted = [m for m in kernel_settings.mounted_sources() if m.place == target][-1:]
    wanted = (_name(volume), not volume.read_only)
    for there in mounted:
        if (there.source, there.writable) != wanted:
            access = "writable" if there.writable else "read-only"
            raise VolumeError(
                Code.ALREADY_EXISTS, f"{target}: {there.source} is mounted there, {access}"
            )


def _detach(target: Path, state: State) -> None:
    """Take away all that is mounted on a target; requests that hang fail."""
    while dict(kernel_settings.mounted_filesystems()).get(target) == kernel_settings.FILE_SYSTEM:
        if state is State.DEAD:
            with suppress(MountError):  # it may be in use, but its connection is aborted now
                umount2(target, MNT_FORCE)
        try:
            umount2(target, MNT_DETACH)
        except MountError as error:
            if dict(kernel_settings.mounted_filesystems()).get(target) is not None:
                raise VolumeError(Code.INTERNAL, str(error)) from error
