"""The keeper of a volume that is only read: it starts the volume's daemon again when that dies.

It is forked from the mounter, and its daemons from it: so they share the memory of all that is imported, begin at once,
and find the setup and the secrets of the volume where these are. A secret that is renewed is one file for all of them.

It outlives its mounter by its volume: on a socket it hands that over to a keeper of a later mounter, in another pod, which has loaded
a daemon beside its own. Only then its own daemon ends, so one of the two serves whatever fails.
"""

import ctypes
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from aisfs.commands.mount_start import GoingOn, resume
from aisfs.csi.volumes import Secrets, Volume
from aisfs.mount.setup import MountSetup
from aisfs.system.keeper import Daemon, Keeper, Kept
from aisfs.system.keeping import Keeping, keep, take_over

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_LEFT_MAX = 192 << 10
"""More than the question that a volume came with."""
_SOONER = 100
"""A tenth of the limit, in the kernel's choice of what to kill: more than the mounter and the keepers have."""


class Restart(msgspec.Struct):
    """A line for the mounter: a daemon has ended, and another goes on."""

    device: int
    pid: int
    signal: int
    """What it was killed by; 0 if it ended by itself."""
    cause: str


class Left(msgspec.Struct):
    """A volume that its keeper hands over; /dev/fuse and the files of inode numbers come with it."""

    device: int
    volume: Volume
    agreed: str
    restarts: int


class Home(NamedTuple):
    """What the keepers of one mounter have in common."""

    directory: Path
    """Where each has a socket, on which it hands its volume over to a later mounter."""
    begun: int
    """When the mounter began."""
    restarts: int
    """A pipe to the mounter, for each `Restart`."""

    def place(self, device: int) -> Path:
        """Return the socket of a keeper."""
        return self.directory / f"{device}.{self.begun}.volume"

    def earlier(self) -> list[Path]:
        """Return the sockets of keepers that a mounter before this one has started."""
        found = self.directory.glob("*.volume")
        return [place for place in found if int(place.name.split(".")[1]) < self.begun]


class _VolumeKeeper(Keeper):
    """Forks daemons, and hands its volume over."""

    def __init__(
        self, device: int, volume: Volume, setup: MountSetup, kept: Kept, home: Home
    ) -> None:
        """Keep a mount of `setup`, which is of `volume`."""
        super().__init__(f"volume of device 0:{device}", kept)
        self.names = (name_of(device), name_of(device))
        self.left: socket.socket | None = None
        """The connection to the keeper that this one takes the volume from."""
        self._number = device
        self._volume = volume
        self._setup = setup
        self._home = home
        self._listener: socket.socket | None = None
        self._taker: socket.socket | None = None

    def serve(self, begin: Callable[[], None] = lambda: None) -> int:
        """Call `begin`; return the exit code once the mount is over, or another keeper has it."""
        try:
            self._listener = listen(self._home.place(self._number))
            begin()
            return self.run()
        except SystemExit as end:
            return int(end.code or 0)
        except Exception:
            log.exception("the keeper of a volume ended on a bug in aisfs, please report it")
            return 1
        finally:
            self._home.place(self._number).unlink(missing_ok=True)

    # handing over ----------------------------------------------------------------------------

    def also(self) -> dict[int, Callable[[], None]]:
        """See `Keeper`."""
        if self._taker is not None:
            return {self._taker.fileno(): self._hand_over}
        if self._listener and self.daemon and self.daemon.ready and self.next is None:
            return {self._listener.fileno(): self._offer}
        return {}

    def _offer(self) -> None:
        assert self._listener is not None
        assert self.device is not None, "its daemon is ready"
        self._taker, _ = self._listener.accept()
        volume = replace(self._volume, secrets=Secrets(self._number).current())
        left = Left(self._number, volume, self.agreed, self.restarts)
        with suppress(OSError):  # it is gone again, which `_hand_over` finds
            socket.send_fds(
                self._taker, [msgspec.json.encode(left)], [self.device, *self.kept.numbers]
            )

    def _hand_over(self) -> None:
        assert self._taker is not None
        with suppress(OSError):
            if self._taker.recv(1):
                log.info("volume of device 0:%d goes to another mounter", self._number)
                if self.daemon is not None:
                    self.kill(self.daemon, signal.SIGKILL)
                    while not self.daemon.has_died():
                        time.sleep(0.001)  # noqa: TID251 - this is no daemon
                raise SystemExit(0)
        self._taker.close()
        self._taker = None

    # taking over -----------------------------------------------------------------------------

    def begin_from(self, left: socket.socket, device: int, said: Left) -> None:
        """Start a daemon beside that of another keeper; both go on if it cannot."""
        self.left, self.device = left, device
        self.agreed, self.restarts = said.agreed, said.restarts
        self.next = self.start(upgrade=True)

    def look_at_upgrade(self, new: Daemon) -> None:
        """See `Keeper`."""
        failed = new.failed
        super().look_at_upgrade(new)
        if self.left is not None and self.next is None:
            why = failed[0] if failed is not None else "its daemon did not get ready"
            log.error("volume of device 0:%d stays with the mounter before: %s", self._number, why)
            raise SystemExit(1)

    def take_over(self, new: Daemon) -> None:
        """See `Keeper`."""
        if self.left is not None:
            with suppress(OSError):  # it has ended, and so has its daemon
                self.left.send(b"1")
                self.left.recv(1)
            self.left.close()
            self.left = None
        super().take_over(new)

    # daemons ---------------------------------------------------------------------------------

    def died(self, daemon: Daemon) -> int | None:
        """See `Keeper`."""
        code = super().died(daemon)
        if code is None and daemon.failed is None:  # else it has said so itself
            ended = os.waitstatus_to_exitcode(daemon.status) if daemon.status is not None else -9
            cause = self.cause.removeprefix(f"process {daemon.pid} ")
            line = Restart(self._number, daemon.pid, max(-ended, 0), cause)
            with suppress(OSError):  # the mounter has ended, or does not read
                os.write(self._home.restarts, msgspec.json.encode(line) + b"\n")
        return code

    def become_daemon(self, its: socket.socket) -> NoReturn:
        """See `Keeper`; this child goes on as it is."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for end in (self._listener, self._taker, self.left):
                if end is not None:
                    end.close()
            if self.device is not None:  # it gets one of its own
                os.close(self.device)
            for other in (self.daemon, self.next):
                if other is not None and other.end is not None:
                    other.end.close()
            keeping = take_over(its.detach())
            _become_daemon(self._number, keeping)
            be_killed_first()
            code = resume(keeping, lambda: (self._setup, GoingOn(), None))
        except Exception:
            log.exception("the daemon of a volume ended on a bug in aisfs, please report it")
        finally:
            os._exit(code)


def name_of(device: int) -> bytes:
    """Return the name by which the mounter finds what keeps a volume, or serves one without a keeper."""
    return b"aisfs vol %d" % device


def keep_volume(device: int, fd: int, volume: Volume, setup: MountSetup, home: Home) -> Keeping:
    """Become the keeper of a volume; return in its first daemon, a child.

    Args:
        device: The device number of the mount.
        fd: Its descriptor.
        volume: What was asked for.
        setup: What is served.
        home: Of the mounter.
    """

    def run(kept: int) -> int:
        os.close(fd)  # it comes from the daemon, once that has agreed with the kernel
        return _VolumeKeeper(device, volume, setup, Kept(kept), home).serve()

    keeping = keep(str(setup.mountpoint), (), "/", b"", run)
    _become_daemon(device, keeping)
    return keeping


def take_volume(place: Path, setup_of: Callable[[int, int, Volume], MountSetup], home: Home) -> int:
    """Become the keeper of a volume that another mounter serves; return the exit code when that is over.

    Args:
        place: The socket of its keeper.
        setup_of: Returns what to serve of a volume, given the device number and the descriptor of the mount.
        home: Of this mounter.

    Raises:
        AisfsError: the volume cannot be served.
        OSError, ValueError, MsgspecError: its keeper has ended, or says what makes no sense.
    """
    left = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        left.connect(str(place))
    except ConnectionRefusedError:
        place.unlink(missing_ok=True)
        return 0
    data, descriptors, _, _ = socket.recv_fds(left, _LEFT_MAX, 3)
    said = msgspec.json.decode(data, type=Left)
    device, *numbers = descriptors
    Path("/proc/self/comm").write_bytes(name_of(said.device))
    setup = setup_of(said.device, device, said.volume)
    files = {name: os.memfd_create(name) for name in ("options", "trace", "kept")}
    kept = {"command": [], "words": [], "directory": "/", "numbers": numbers, **files}
    os.pwrite(files["kept"], json.dumps(kept).encode(), 0)
    keeper = _VolumeKeeper(said.device, said.volume, setup, Kept(files["kept"]), home)
    return keeper.serve(partial(keeper.begin_from, left, device, said))


def listen(place: Path) -> socket.socket:
    """Listen on a socket for this user alone: what may connect can have anything mounted."""
    place.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mask = os.umask(0o177)
    listener.bind(str(place))
    os.umask(mask)
    listener.listen()
    return listener


def _become_daemon(device: int, keeping: Keeping) -> None:
    """Take another name than the keeper, and end with it: a start that hangs is ended by an end of its keeper."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != keeping.keeper:
        os._exit(1)
    with open("/proc/self/comm", "wb") as name:
        name.write(b"aisfs serves %d" % device)


def be_killed_first() -> None:
    """Have the kernel end this daemon, should memory run out, and not the mounter with all of them."""
    score = Path("/proc/self/oom_score_adj")
    score.write_text(str(min(int(score.read_text()) + _SOONER, 1000)))
