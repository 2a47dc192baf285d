"""The mountpoint of a mount, and its device: checks, mounting, tuning, and how it is left.

We mount ourselves because pyfuse3 does not hand out the descriptor it mounts with. No other thread may touch
the mountpoint between the mount and the start of the thread that serves it: the kernel would wait
for an answer to its first request, and so would we.

`/dev/fd/N` as MNT is a descriptor of /dev/fuse that another program opened, mounted and passed on; libfuse, mountpoint-s3 and
gcsfuse take it under the same name. The process that serves such a mount needs no rights: neither /dev/fuse nor fusermount3 has
to be there. It knows no path of the mount, which may lie in another mount namespace, so unmounting is left to the program that
mounted.

The death watch: a thread that stores into the page cache may wait in the kernel for a page that a READ has locked.
If the process is killed in that moment, the READ is not answered, the thread cannot end, the device
stays open, and every process that looks at the mount hangs. So a shell waits beside the daemon. It sees that our main thread has
ended; if other threads are there a second later it aborts the
connection, which needs fusectl, or root. Root mounts fusectl where it is missing, unseen by others, since
`umount -f` knows no mount that another umount has already taken away, and waits for.

Tuning: the kernel reads 128 KiB ahead and lets 12 requests wait in the background; with 20 ms to the
cluster that is 11 MiB/s for one reader, and hundreds with the values here. They are files of sysfs
and fusectl, which root may write; what cannot be set is logged, with the command that sets it.
"""

import ctypes
import errno
import fcntl
import grp
import logging
import os
import re
import select
import shutil
import socket
import stat
import subprocess
from collections.abc import Collection, Container, Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from aisfs.errors import ConfigError, FuseUnavailable, MountError

log = logging.getLogger(__name__)

READ_AHEAD_KB = 4096
"""Per open file. Large enough to keep several requests of 1 MiB under way; our own read-ahead, which
knows objects and shards, does the rest."""
MAX_BACKGROUND = 64
"""Requests the kernel sends without waiting for answers; mountpoint-s3 and hf-mount use as many."""
BACKGROUND_LEAST = 8
BACKGROUND_SHARE = 2 << 20
"""One more request for so many bytes of the limit on memory: each that is read ahead waits for 1 MiB, which counts
beyond that limit."""

FILE_SYSTEM = "fuse.aisfs"
"""The type that mounts of ours have."""
MOUNTS = Path("/proc/self/mountinfo")
BDI = Path("/sys/class/bdi")
_OWNER = re.compile(r"\buser_id=(\d+),group_id=(\d+)")
CONNECTIONS = Path("/sys/fs/fuse/connections")


def mounted_filesystems() -> list[tuple[Path, str]]:
    """List (mountpoint, type of file system) of all mounts, the last ones on top."""
    return [(Path(mount.place), mount.kind) for mount in _mounts()]


class MountedSource(NamedTuple):
    """A mount, and what is mounted."""

    place: Path
    kind: str
    """Type of file system."""
    source: str
    writable: bool


def mounted_sources() -> list[MountedSource]:
    """List all mounts, the last ones on top."""
    return [MountedSource(Path(m.place), m.kind, m.source, m.writable) for m in _mounts()]


def mount_ids(mountpoint: Path) -> frozenset[int]:
    """Return the ids of the mounts there, as /proc/PID/fdinfo has them."""
    return frozenset(mount.id for mount in _mounts() if mount.place == str(mountpoint))


def device_minor(mountpoint: Path) -> int | None:
    """Find the device number of the mount without touching it; None when it is not mounted."""
    minors = device_minors(mountpoint)
    return minors[-1] if minors else None


def device_minors(mountpoint: Path) -> list[int]:
    """Return the device numbers of all mounts there, the last one on top."""
    return [mount.minor for mount in _mounts() if mount.place == str(mountpoint)]


def mount_owner(path: Path) -> tuple[int, int] | None:
    """Return user and group of the FUSE mount that a path is in, without touching it."""
    owners = {mount.place: mount.owner for mount in _mounts()}
    return next((owners[str(p)] for p in (path, *path.parents) if str(p) in owners), None)


def background_within(memory: int) -> int:
    """Return how many requests the kernel may send without waiting, for a daemon of so much memory."""
    return min(max(memory // BACKGROUND_SHARE, BACKGROUND_LEAST), MAX_BACKGROUND)


def tune(mountpoint: Path, *, background: int | None = None) -> None:
    """Raise read-ahead, and background requests if given, of a mount as far as this process may."""
    minor = device_minor(mountpoint)
    if minor is None:
        return
    settings = {BDI / f"0:{minor}" / "read_ahead_kb": READ_AHEAD_KB}
    if background is not None:
        settings[CONNECTIONS / str(minor) / "max_background"] = background
    for file, value in settings.items():
        try:
            file.write_text(str(value))
        except OSError as error:
            log.info(
                "cannot raise %s (%s); as root: echo %d > %s",
                file.name,
                error.strerror,
                value,
                file,
            )


class _Mount(NamedTuple):
    """A line of mountinfo."""

    id: int
    minor: int
    """Of the device number."""
    place: str
    kind: str
    owner: tuple[int, int] | None
    """User and group, of a FUSE mount."""
    source: str
    writable: bool


def _mounts() -> list[_Mount]:
    found = []
    for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
        mount, _, filesystem = line.partition(" - ")
        fields = mount.split(" ")
        minor = int(fields[2].partition(":")[2])
        kind, source, options = filesystem.split(" ", 2)
        ids = _OWNER.search(options)
        owner = (int(ids[1]), int(ids[2])) if ids is not None else None
        writable = "rw" in fields[5].split(",") and "rw" in options.split(",")
        place, source = _unescape(fields[4]), _unescape(source)
        found.append(_Mount(int(fields[0]), minor, place, kind, owner, source, writable))
    return found


def _unescape(field: str) -> str:
    """Undo the octal escapes of mountinfo: blanks, backslashes, and `#`, which namespaces begin with."""
    raw = field.encode(errors="surrogateescape")
    for character in (b" ", b"\t", b"\n", b"#", b"\\"):
        raw = raw.replace(b"\\%03o" % character[0], character)
    return raw.decode(errors="surrogateescape")


PROCESSES = Path("/proc")
MOST_NAMED = 5
"""Programs that one line names."""
_MOUNT_ID = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)


def what_keeps_busy(mountpoint: Path) -> str:
    """Return the programs that use a mount, for the end of a message; those that we may not see are not named."""
    inner = [place for place, _ in mounted_filesystems() if mountpoint in place.parents]
    if inner:
        return f"{inner[-1]} is mounted below it; unmount that first"
    users = list(_users(mountpoint))
    if not users:
        hint = "; root sees all programs" if os.geteuid() else ""
        return f"no program that uses it can be seen{hint}"
    more = f" and {len(users) - MOST_NAMED} more" if len(users) > MOST_NAMED else ""
    return f"in use by {', '.join(users[:MOST_NAMED])}{more}"


def _users(mountpoint: Path) -> Iterator[str]:
    ids, minor = mount_ids(mountpoint), device_minor(mountpoint)
    mapped = f" 00:{minor or 0:02x} "
    own = os.getpid()
    for entry in sorted(PROCESSES.iterdir(), key=lambda entry: (len(entry.name), entry.name)):
        if not entry.name.isdigit() or int(entry.name) == own:
            continue
        with suppress(OSError):  # it has ended, or belongs to another user
            if _uses(entry, mountpoint, ids, mapped):
                command = (entry / "comm").read_text(errors="replace").strip()
                yield f"process {entry.name} ({command})"


def _uses(process: Path, mountpoint: Path, ids: frozenset[int], mapped: str) -> bool:
    for link in ("cwd", "root"):
        with suppress(OSError):
            if Path(os.readlink(process / link)).is_relative_to(mountpoint):
                return True
    for info in (process / "fdinfo").iterdir():
        with suppress(OSError):  # closed meanwhile
            found = _MOUNT_ID.search(info.read_text())
            if found and int(found[1]) in ids:
                return True
    return mapped in (process / "maps").read_text(errors="replace")


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


_SCRIPT = """
free() {
    abort=$1 place=$2 daemon=$3 keeper=$4
    while sleep 1 && grep -q '^State:.Z' "/proc/$daemon/status" && set -- "/proc/$daemon/task"/* && [ $# -gt 1 ]; do
        [ "$keeper" ] && kill -0 "$keeper" && continue
        echo 1 > "$abort" ||
        unshare -m sh -c 'mount -t fusectl none "${1%/*/*}" && echo 1 > "$1"' sh "$abort" ||
        umount -f "$place"
        break
    done
    exit
}
trap 'free "$@"' USR1
trap '' HUP INT TERM
read -r _
"""
"""Words: the file that aborts, the mountpoint, our process, and its keeper, whose next daemon answers what our threads
wait for. A daemon that is gone, or waits to be reaped, has no other thread."""
DISMISS_SECONDS = 5


class DeathWatch:
    """The shell beside a mount. To be made in the main thread."""

    def __init__(
        self, mountpoint: Path | None, minor: int | None, keeper: int | None = None
    ) -> None:
        """Start it, if this system can.

        Args:
            mountpoint: As the kernel calls it; None if that is not known.
            minor: The device number of the mount.
            keeper: The process that starts another daemon.
        """
        self._process: subprocess.Popen[bytes] | None = None
        if minor is None:  # it is unmounted again
            return
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            log.info("no death watch beside the mount: setpriv (util-linux) is not installed")
            return
        abort = CONNECTIONS / str(minor) / "abort"
        words = [str(abort), str(mountpoint or ""), str(os.getpid()), str(keeper or "")]
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
    """Return the number of the connection under /sys/fs/fuse; None if the kernel does not say."""
    try:
        found = _CONNECTION.search(Path(f"/proc/self/fdinfo/{fd}").read_text())
    except OSError:
        return None
    return int(found[1]) if found else None


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
        self._minor = connection_of(fd)
        if self._minor is None and mountpoint is not None:
            self._minor = device_minor(mountpoint)

    def guarded(self, keeper: int | None = None) -> DeathWatch:
        """Start the death watch, which leaves to a `keeper` what it can do. Call it in the main thread, before any
        request is served."""
        return DeathWatch(self._mountpoint, self._minor, keeper)

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


def taken_over(fd: int, mountpoint: Path) -> Device:
    """Return the device of a mount whose daemon has died: nobody answers there, so it may not be touched.

    Of `/dev/fd/N` the number was that of another process, and it is not known where that is mounted.
    """
    if descriptor_of(mountpoint) is not None:
        return Device(fd, None)
    return Device(fd, _known_as(mountpoint, dict(mounted_filesystems())))


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
