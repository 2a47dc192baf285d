"""The keeper of a volume that is only read: it starts the volume's daemon again when that dies.

It is forked from the mounter, and its daemons from it: so they share the memory of all that is imported, begin at once,
and find the plan and the secrets of the volume where these are. A secret that is renewed is one file for all of them.
"""

import ctypes
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from aisfs.commands.mount_start import resume
from aisfs.mount.plan import MountPlan
from aisfs.system.keeper import Daemon, Keeper, Kept
from aisfs.system.keeping import Keeping, keep, take_over

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_SOONER = 100
"""A tenth of the limit, in the kernel's choice of what to kill: more than the mounter and the keepers have."""


class Restart(msgspec.Struct):
    """A line for the mounter: a daemon has ended, and another goes on."""

    device: int
    pid: int
    signal: int
    """What it was killed by; 0 if it ended by itself."""
    cause: str


class _VolumeKeeper(Keeper):
    """Forks daemons."""

    def __init__(
        self, device: int, kept: Kept, restarts: int, begin: Callable[[socket.socket], None]
    ) -> None:
        """Tell the pipe `restarts` of daemons that ended; `begin` serves in a new one."""
        super().__init__(f"volume of device 0:{device}", kept)
        self.names = (name_of(device), name_of(device))
        self._device_number = device
        self._restarts = restarts
        self._begin = begin

    def died(self, daemon: Daemon) -> int | None:
        """See `Keeper`."""
        code = super().died(daemon)
        if code is None and daemon.failed is None:  # else it has said so itself
            ended = os.waitstatus_to_exitcode(daemon.status) if daemon.status is not None else -9
            cause = self.cause.removeprefix(f"process {daemon.pid} ")
            line = Restart(self._device_number, daemon.pid, max(-ended, 0), cause)
            with suppress(OSError):  # the mounter has ended, or does not read
                os.write(self._restarts, msgspec.json.encode(line) + b"\n")
        return code

    def become_daemon(self, its: socket.socket) -> NoReturn:
        """See `Keeper`; this child goes on as it is."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self.device is not None:  # it gets one of its own
                os.close(self.device)
            for other in (self.daemon, self.next):
                if other is not None and other.end is not None:
                    other.end.close()
            self._begin(its)
            code = 0
        except Exception:
            log.exception("the daemon of a volume ended on a bug in aisfs, please report it")
        finally:
            os._exit(code)


def name_of(device: int) -> bytes:
    """Return the name by which the mounter finds what keeps a volume, or serves one without a keeper."""
    return b"aisfs vol %d" % device


def keep_volume(device: int, fd: int, plan: MountPlan, restarts: int) -> Keeping:
    """Become the keeper of a volume; return in its first daemon, a child.

    Args:
        device: The device number of the mount.
        fd: Its descriptor.
        plan: What is served.
        restarts: A pipe to the mounter.
    """

    def begin(its: socket.socket) -> None:
        keeping = take_over(its.detach())
        _become_daemon(device, keeping)
        be_killed_first()
        resume(keeping, plan)

    def run(kept: int) -> int:
        os.close(fd)  # it comes from the daemon, once that has agreed with the kernel
        try:
            return _VolumeKeeper(device, Kept(kept), restarts, begin).run()
        except Exception:
            log.exception("the keeper of a volume ended on a bug in aisfs, please report it")
            return 1

    keeping = keep(plan.mountpoint, (), "/", b"", run)
    _become_daemon(device, keeping)
    return keeping


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
