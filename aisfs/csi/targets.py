"""The directories that kubelet wants volumes on: what is there, and how a volume gets there and away.

What the kernel has mounted is the only record. So nothing has to be found again when the driver was restarted.
No symbolic link is followed on the way to a target: what is mounted there can be found there again.

A mount whose daemon died stays, and the next one goes on top of it: that reaches containers, and a container that
is restarted meanwhile finds no directory of the node's disk to write to. For the same reason nobody can write to
a directory without its mount.
"""

import fcntl
import logging
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from errno import ECONNABORTED, ENOTCONN, EXDEV
from pathlib import Path

from aisfs.csi.mounter import OUT_OF_MEMORY_WORDS, Mounter
from aisfs.csi.volumes import Code, Volume, VolumeError
from aisfs.errors import MountError
from aisfs.fuse import mountpoint
from aisfs.fuse.mountpoint import MNT_DETACH, MNT_FORCE, mount_as_root, umount2
from aisfs.system.threads import start_service_thread

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""How long a daemon may take to answer statfs(2), which asks no cluster, before it is called abnormal."""
SILENCE_SECONDS = 60.0
"""A daemon that is silent for as long hangs, and is ended. One that is only slow may have files that are being written."""
GIVING_UP_SECONDS = 5.0
"""How long to wait for a call that publishes to see that its volume is unpublished."""
PUBLISHES_AT_ONCE = 192
"""A volume that shows a large dataset takes minutes to open, and others do not wait for it. Twice as many as a node has
pods by default."""
PUBLISHES_OF_NAMESPACE = 48
"""One namespace, whose cluster does not answer, leaves room for others."""
UNPUBLISHES_AT_ONCE = 192
"""Each may wait for a daemon that hangs."""
_FSNAME_MAX = 200
_NAME_MAX = 200
_GET_FLAGS, _SET_FLAGS, _IMMUTABLE = 0x80086601, 0x40086602, 0x10
"""FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IMMUTABLE_FL: as `chattr +i` has them."""


class State(Enum):
    """What is at a target."""

    FREE = "nothing is mounted"
    SERVED = "it is mounted"
    DEAD = "the process that serves the volume has died"
    HUNG = "the process that serves the volume does not answer"
    FOREIGN = "another file system is mounted"


class _Turn:
    """A call that is at work on a target."""

    def __init__(self, namespace: str | None) -> None:
        self.namespace = namespace
        """Of the pod whose volume is being published, empty if it is not known; None while one is unpublished."""
        self.given_up = False
        """Whether it should wait no more for its volume to be ready."""
        self.ended = threading.Event()


class Targets:
    """The targets of one node."""

    def __init__(self, mounter: Path, left: Path) -> None:
        """Hand mounts to the process that listens on the socket `mounter`.

        Args:
            mounter: That socket.
            left: A directory for files that are found where a volume should have been; made when needed.
        """
        self._mounter = mounter
        self._left = left
        self.rescued = 0
        """How many times files were moved there."""
        self._busy: dict[Path, _Turn] = {}
        """Targets that a call is at work on. Calls come in threads; each step on this is atomic."""

    def publish(self, target: Path, volume: Volume, *, alone: bool = False) -> None:
        """Mount a volume, unless it is mounted already.

        Args:
            target: Where.
            volume: What.
            alone: Only if nothing else on this node writes to the same.

        Raises:
            VolumeError: with its code.
        """
        with self._alone(target, volume.namespace) as turn:
            state = state_of(target, SILENCE_SECONDS)
            if state is State.FOREIGN:
                raise _foreign(target)
            if state is State.SERVED:
                _check_same(target, volume)
                self._renew(target, volume)
                return
            if alone:
                self._check_alone(target, volume)
            with Mounter(self._mounter) as mounter:
                fd, made = _open_directory(target)
                try:
                    if state is State.FREE:
                        _protect(fd, target)
                    elif state is State.HUNG:
                        with suppress(
                            MountError
                        ):  # in use, since it is open here; but its connection is aborted
                            umount2(target, MNT_FORCE)
                    self._mount(target, fd, volume, turn, mounter)
                except BaseException:
                    if made:
                        _remove(target)
                    raise
                finally:
                    os.close(fd)
        if state is not State.FREE:
            self._tell_why(target)

    def _mount(
        self, target: Path, directory: int, volume: Volume, turn: _Turn, mounter: Mounter
    ) -> None:
        """Mount and wait until the volume is served; else nothing is left of this mount."""
        options = {"allow_other", "default_permissions", "subtype=aisfs", "noatime"}
        try:
            fd = mount_as_root(
                Path(f"/proc/self/fd/{directory}"),
                {*options, f"fsname={_name(volume)}", "ro" if volume.read_only else "rw"},
            )
        except (OSError, MountError) as error:
            raise VolumeError(Code.FAILED_PRECONDITION, f"{target}: {error}") from error
        device = mountpoint.device_minor(target)
        try:
            if device is None:
                raise VolumeError(Code.ABORTED, f"{target}: the mount was taken away")
            mounter.serve(device, volume, fd, lambda: turn.given_up)
        except BaseException:
            os.close(fd)
            fd = -1
            _take_away(target, device)
            raise
        finally:
            if fd >= 0:
                os.close(fd)  # else nobody would notice the death of the daemon
        # Without the fast path the limit would be the default; with it INIT has raised it.
        mountpoint.tune(target)

    def _renew(self, target: Path, volume: Volume) -> None:
        """Give the daemon of a volume the secrets as they are now; the volume is served in any case."""
        device = mountpoint.device_minor(target)
        if not volume.secrets or device is None:
            return
        try:
            with Mounter(self._mounter) as mounter:
                if left := mounter.renew(device, volume.secrets):
                    log.warning("%s: %s", target, left)
        except VolumeError as error:
            log.warning("%s: its secrets may be old: %s", target, error)

    def why_dead(self, target: Path, state: State) -> str:
        """Return why the daemon of a target died, or the one before it if it is served again; empty if that is not known."""
        devices = mountpoint.device_minors(target)
        if state is State.HUNG or not devices:
            return ""
        try:
            with Mounter(self._mounter) as mounter:
                status = mounter.status()
        except VolumeError:  # it has died as well
            return ""
        if state is State.SERVED and (top := devices.pop()) in status.restarted:
            return status.restarted[top]
        killed = status.killed
        return next((killed[device] for device in reversed(devices) if device in killed), "")

    def _check_alone(self, target: Path, volume: Volume) -> None:
        """Refuse a volume whose source another volume of this node writes to."""
        with Mounter(self._mounter) as mounter:
            others = set(mounter.status().devices) - set(mountpoint.device_minors(target))
        for there in mountpoint.mounted_sources():
            same = there.writable and there.source == _name(volume)
            if same and mountpoint.device_minor(there.place) in others:
                raise VolumeError(
                    Code.FAILED_PRECONDITION,
                    f"{target}: {there.source} is ReadWriteOncePod, and mounted on {there.place}",
                )

    def _tell_why(self, target: Path) -> None:
        """Say why a volume had to be mounted again; kubelet makes an event for the pod of what is raised, and asks again.

        Raises:
            VolumeError: it was for lack of memory, which somebody has to change.
        """
        why = self.why_dead(target, State.SERVED)
        log.warning("%s: mounted again: %s", target, why or State.DEAD.value)
        if OUT_OF_MEMORY_WORDS in why:
            raise VolumeError(
                Code.UNAVAILABLE, f"{why}. The volume is mounted again; what was open in it is lost"
            )

    def unpublish(self, target: Path) -> None:
        """Unmount a volume, whatever became of its daemon, also if it is just being mounted; nothing to do if there is none.

        Files that are found there without a mount are moved away: they are nowhere else.

        Raises:
            VolumeError: with its code.
        """
        if (publishing := self._busy.get(target)) is not None:
            publishing.given_up = True
            publishing.ended.wait(GIVING_UP_SECONDS)
        with self._alone(target, None):
            state = state_of(target, SILENCE_SECONDS)
            if state is State.FOREIGN:
                raise _foreign(target)
            while (device := _device_of_ours(target)) is not None:
                _take_away(target, device, force=state is not State.SERVED)
                state = State.DEAD  # what lies below another one was replaced
            self._rescue(target)
            _remove(target)

    def _rescue(self, target: Path) -> None:
        """Move files away that are in a directory without its mount."""
        try:
            with os.scandir(target) as entries:
                if target.is_symlink() or next(entries, None) is None:
                    return
        except FileNotFoundError:
            return
        for place, _ in mountpoint.mounted_filesystems():
            if place.is_relative_to(target):
                raise VolumeError(Code.FAILED_PRECONDITION, f"{place}: is mounted in the volume")
        self._left.mkdir(0o700, parents=True, exist_ok=True)
        name = "_".join(target.parts[1:])[-_NAME_MAX:]
        number = next(n for n in range(1 << 30) if not (self._left / f"{name}.{n}").exists())
        place = self._left / f"{name}.{number}"
        _unprotect(target)
        _move(target, place)
        place.chmod(0o700)
        self.rescued += 1
        log.warning(
            "%s: files were written to it while no volume was mounted there, and are in no bucket; they are now in %s",
            target, place,
        )  # fmt: skip

    @contextmanager
    def _alone(self, target: Path, namespace: str | None) -> Iterator[_Turn]:
        turn = _Turn(namespace)
        if self._busy.setdefault(target, turn) is not turn:
            raise VolumeError(Code.ABORTED, f"{target}: another call is at work on it")
        try:
            self._check_room(namespace)
            yield turn
        except OSError as error:
            raise VolumeError(Code.INTERNAL, f"{target}: {error.strerror}") from error
        finally:
            del self._busy[target]
            turn.ended.set()

    def _check_room(self, namespace: str | None) -> None:
        """Refuse a call that is one too many; kubelet makes it again."""
        turns = [turn.namespace for turn in list(self._busy.values())]
        publishes = sum(turn is not None for turn in turns)
        many = Code.RESOURCE_EXHAUSTED
        if namespace is None and len(turns) - publishes > UNPUBLISHES_AT_ONCE:
            raise VolumeError(
                many, f"{UNPUBLISHES_AT_ONCE} volumes of this node are being unpublished"
            )
        if namespace is not None and publishes > PUBLISHES_AT_ONCE:
            raise VolumeError(
                many,
                f"{PUBLISHES_AT_ONCE} volumes of this node are being published: try again later",
            )
        if namespace and turns.count(namespace) > PUBLISHES_OF_NAMESPACE:
            raise VolumeError(
                many,
                f"{PUBLISHES_OF_NAMESPACE} volumes of the namespace {namespace} are being published on this"
                " node: try again later",
            )


def state_of(target: Path, seconds: float) -> State:
    """Return what is at a target; takes at most so many seconds."""
    return facts_of(target, seconds)[0]


def facts_of(target: Path, seconds: float) -> tuple[State, os.statvfs_result | None]:
    """Likewise, and what statfs(2) says of a volume that is served."""
    kind = dict(mountpoint.mounted_filesystems()).get(target)
    if kind is None:
        return State.FREE, None
    if kind != mountpoint.FILE_SYSTEM:
        return State.FOREIGN, None
    answered: list[os.statvfs_result | OSError] = []

    def ask() -> None:
        try:
            answered.append(os.statvfs(target))
        except OSError as error:
            answered.append(error)

    # A call to a daemon that hangs cannot be interrupted: its thread is left to itself.
    start_service_thread("aisfs asks", ask).join(seconds)
    match answered:
        case []:
            return State.HUNG, None
        case [OSError(errno=number)]:
            return (State.DEAD if number in (ENOTCONN, ECONNABORTED) else State.SERVED), None
        case [os.statvfs_result() as facts]:
            return State.SERVED, facts
    raise AssertionError(answered)


def _foreign(target: Path) -> VolumeError:
    return VolumeError(Code.FAILED_PRECONDITION, f"{target}: another file system is mounted there")


def _open_directory(target: Path) -> tuple[int, bool]:
    """Return a descriptor of a target, which is made if it is missing, and whether it was.

    Raises:
        VolumeError: a part of the path is a symbolic link, or no directory.
    """
    fd, made = os.open("/", os.O_PATH | os.O_DIRECTORY), False
    for depth, name in enumerate(target.parts[1:], start=2):
        try:
            mode = 0o755 if depth < len(target.parts) else 0  # of the last, until it is mounted on
            made = False
            with suppress(FileExistsError):
                os.mkdir(name, mode, dir_fd=fd)
                made = True
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
    return fd, made


def _protect(fd: int, target: Path) -> None:
    """Let nobody write to a directory without its mount, not even root where the file system can do that."""
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
    try:
        if os.listdir(directory):
            log.warning("%s: has files that were written to it without a volume", target)
        with suppress(PermissionError):  # it is immutable already
            os.fchmod(directory, 0)
        _set_immutable(directory, on=True)
    finally:
        os.close(directory)


def _set_immutable(directory: int, *, on: bool) -> None:
    with suppress(OSError):  # a file system without such flags, or no right to set them
        (flags,) = struct.unpack("I4x", fcntl.ioctl(directory, _GET_FLAGS, bytes(8)))
        flags = flags | _IMMUTABLE if on else flags & ~_IMMUTABLE
        fcntl.ioctl(directory, _SET_FLAGS, struct.pack("I4x", flags))


def _unprotect(target: Path) -> None:
    directory = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    _set_immutable(directory, on=False)
    os.close(directory)


def _remove(target: Path) -> None:
    """Remove a directory that is empty; a symbolic link, which nothing was ever mounted on, stays."""
    if not target.is_symlink():
        with suppress(FileNotFoundError):
            _unprotect(target)
            target.rmdir()


def _move(directory: Path, place: Path) -> None:
    """Move a directory, also to another file system; nothing in it is followed or opened but files.

    Raises:
        VolumeError: it cannot be moved, and is as before.
    """
    try:
        os.rename(directory, place)
        return
    except OSError as error:
        if error.errno != EXDEV:
            raise
    # Like Python's copytree, but for special files, hard links and owners.
    done = subprocess.run(
        ["cp", "-aT", "--", directory, place], capture_output=True, text=True, check=False
    )
    if done.returncode:
        shutil.rmtree(place, ignore_errors=True)
        reason = (done.stderr.strip().splitlines() or ["cp failed"])[-1]
        raise VolumeError(
            Code.INTERNAL,
            f"{directory}: has files that are in no bucket, and that could not be moved to {place}: {reason}",
        )
    shutil.rmtree(directory)


def _name(volume: Volume) -> str:
    """Return what the kernel shows as mounted."""
    return " ".join(volume.sources).replace(",", "_")[:_FSNAME_MAX]


def _check_same(target: Path, volume: Volume) -> None:
    """Refuse another volume than the one that is mounted; other attributes than these the kernel does not know."""
    mounted = [m for m in mountpoint.mounted_sources() if m.place == target][-1:]
    wanted = (_name(volume), not volume.read_only)
    for there in mounted:
        if (there.source, there.writable) != wanted:
            access = "writable" if there.writable else "read-only"
            raise VolumeError(
                Code.ALREADY_EXISTS, f"{target}: {there.source} is mounted there, {access}"
            )


def _device_of_ours(target: Path) -> int | None:
    """Return the device number of the topmost mount of a target if it is one of aisfs."""
    if dict(mountpoint.mounted_filesystems()).get(target) != mountpoint.FILE_SYSTEM:
        return None
    return mountpoint.device_minor(target)


def _take_away(target: Path, device: int | None, *, force: bool = True) -> None:
    """Unmount the topmost mount of a target if it is that of a device; by force, requests that hang fail."""
    if force and device is not None and _device_of_ours(target) == device:
        with suppress(MountError):  # it may be in use, but its connection is aborted now
            umount2(target, MNT_FORCE)
    if device is not None and _device_of_ours(target) == device:
        try:
            umount2(target, MNT_DETACH)
        except MountError as error:
            if _device_of_ours(target) == device:
                raise VolumeError(Code.INTERNAL, str(error)) from error
