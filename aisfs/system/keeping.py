"""The daemon's side of the keeper (`aisfs.system.keeper`), which goes on with a mount when its daemon dies.

The process that would be the daemon becomes the keeper, and its child the first daemon: so whoever started it waits
for the keeper, and signals and exit codes pass through. What the keeper holds open are anonymous files, which last as
long as it does: the options of the mount, the inode numbers, and what a crash wrote.
"""

import faulthandler
import json
import logging
import os
import platform
import signal
import socket
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from aisfs.system.keeper import received
from aisfs.system.threads import any_thread, ask_to_end, start_service_thread

log = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("keeper.py")
FROZEN = "keeper"
"""The first argument by which the frozen program knows that it is to be the keeper."""
NOTES_FORMAT = 1
"""Changes with how anything is noted for the next daemon, which goes on only with what it understands."""
LEAST_KERNEL = (6, 9)
"""Since then a kernel repeats the requests that a dead daemon has taken: FUSE_NOTIFY_RESEND."""
_MESSAGE_MAX = 65536
_DESCRIPTORS = 6


def can_keep() -> bool:
    """Return whether this kernel lets a daemon go on with the mount of another."""
    release = platform.release().split(".")
    numbers = [part for part in release[:2] if part.isdigit()]
    return len(numbers) == 2 and tuple(map(int, numbers)) >= LEAST_KERNEL


@dataclass(frozen=True, slots=True)
class Takeover:
    """What a daemon has to know that goes on with a mount."""

    device: int
    """The mounted /dev/fuse."""
    init: bytes
    """The kernel's INIT: it sends it only once."""
    upgrade: bool
    """Whether there is a daemon, which serves until this one has loaded."""
    restarts: int
    """How often the mount was gone on with because a daemon had died."""
    cause: str
    """How the one before ended; empty for an upgrade."""
    trace: str
    """The traceback that it wrote as it crashed."""
    lock: int | None
    """Of the staged files, in a mount that can be written; locked."""


class Keeping:
    """The daemon's end of the connection to its keeper."""

    def __init__(
        self,
        end: socket.socket,
        keeper: int,
        options: int,
        numbers: tuple[int, int],
        trace: int,
        takeover: Takeover | None = None,
    ) -> None:
        """Talk to the keeper through `end`; the others are `keeper`'s number and its anonymous files."""
        self._end = end
        self.keeper = keeper
        self.numbers = numbers
        """Two files in which `aisfs.filesystem.takeover` notes inode numbers."""
        self.takeover = takeover
        """None in the first daemon of a mount."""
        self.refused = ""
        """Why the last upgrade failed."""
        self._options = options
        self._over = False
        faulthandler.enable(trace)

    @property
    def is_upgrade(self) -> bool:
        """Whether the daemon before still serves."""
        return self.takeover is not None and self.takeover.upgrade

    @property
    def options(self) -> bytes:
        """The options that the last daemon which was ready was started with."""
        return os.pread(self._options, 1 << 24, 0)

    @options.setter
    def options(self, value: bytes) -> None:
        os.pwrite(self._options, value, 0)
        os.ftruncate(self._options, len(value))

    @any_thread
    def mounted(self, device: int, init: bytes) -> None:
        """Give the mounted device to the keeper, and what the kernel sends only once."""
        self._send({"mounted": b64encode(init).decode()}, device)

    def hold(self, lock: int) -> None:
        """Have the keeper keep a lock, and give it to the daemon that goes on."""
        if self.takeover is None or self.takeover.lock != lock:
            self._send({"holds": True}, lock)

    def ready(self) -> None:
        """Say that the mount serves: from now on another daemon would go on with it."""
        self._send({"ready": True})

    def loaded(self) -> None:
        """Say that this daemon of an upgrade can take over; return when the one before is gone."""
        self._send({"loaded": True})
        if not self._end.recv(_MESSAGE_MAX):
            raise SystemExit(1)  # the mount is over, or the upgrade was given up

    def listen(self) -> None:
        """Begin to wait for what the keeper says; without it, this daemon unmounts."""
        start_service_thread("aisfs keeper", self._listen)

    def upgrade(self) -> None:
        """Ask for a daemon of the program that is installed now."""
        self.refused = ""
        self._send({"upgrade": True})

    def failed(self, reason: str, *, again: bool) -> None:
        """Say why this daemon cannot go on with the mount; `again` if it could a little later."""
        self._send({"failed": reason, "again": again})

    @any_thread
    def ended(self) -> None:
        """Say that the mount is over: no other daemon is to go on with it."""
        self._over = True
        self._send({"ended": True})

    def _listen(self) -> None:
        while True:
            try:
                message = self._end.recv(_MESSAGE_MAX)
            except ConnectionResetError:
                message = b""
            if not message:
                break
            self.refused = json.loads(message)["refused"]
            log.warning(
                "the upgrade of this mount failed, so it goes on as it was: %s", self.refused
            )
        if not self._over:
            log.error("the keeper of this mount has ended, so it is unmounted")
            ask_to_end()

    @any_thread
    def _send(self, message: dict[str, Any], *descriptors: int) -> None:
        with suppress(OSError):  # the keeper has ended, which `_listen` notices
            socket.send_fds(self._end, [json.dumps(message).encode()], descriptors)


def keep(
    mountpoint: str,
    words: Sequence[str],
    directory: str,
    options: bytes,
    run: Callable[[int], int] | None = None,
) -> Keeping:
    """Become the keeper of a mount; return in its first daemon, a child.

    Must be called before any thread or event loop exists, since it forks.

    Args:
        mountpoint: Where the mount is going to be, as the kernel will call it.
        words: The arguments of `aisfs mount` that began it.
        directory: Where they were typed.
        options: What another daemon needs to know of the mount.
        run: Runs the keeper in this process, with the arguments of `Kept`; None runs it as a program.
    """
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    files = {name: os.memfd_create(name) for name in ("options", "numbers", "others", "trace")}
    numbers = files["numbers"], files["others"]
    daemon = os.fork()
    if daemon:
        ours.close()
        _become_keeper(
            mountpoint,
            run,
            pid=daemon,
            socket=its.detach(),
            command=_command(),
            words=[*words],
            directory=directory,
            options=files["options"],
            numbers=numbers,
            trace=files["trace"],
        )
    its.close()
    kept = Keeping(ours, os.getppid(), files["options"], numbers, files["trace"])
    kept.options = options
    return kept


def _command() -> list[str]:
    """Return what starts the installed program, with no module from the directory where the mount was typed."""
    if _is_frozen():
        return [sys.executable]
    in_clone = sys.path[0] == str(PROGRAM.parents[2])
    return [sys.executable, *([] if in_clone else ["-P"]), "-m", "aisfs"]


def _is_frozen() -> bool:
    return bool(getattr(sys, "frozen", False))


def _become_keeper(
    mountpoint: str,
    run: Callable[[int], int] | None,
    **kept: Any,  # noqa: ANN401 - any JSON
) -> NoReturn:
    """Run the keeper in this process."""
    try:
        # Until it has begun, when it unblocks them; what asks to end would end it, and not the mount.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        said = os.memfd_create("kept")
        os.write(said, json.dumps(kept).encode())
        os.lseek(said, 0, os.SEEK_SET)
        if run is not None:
            os._exit(run(said))
        for fd in (said, kept["socket"], kept["options"], *kept["numbers"], kept["trace"]):
            os.set_inheritable(fd, True)
        start = (
            [sys.executable, FROZEN] if _is_frozen() else [sys.executable, "-I", "-S", str(PROGRAM)]
        )
        os.execv(start[0], [*start, mountpoint, str(said)])
    finally:
        os._exit(127)  # the daemon finds its keeper gone


def take_over(fd: int) -> Keeping:
    """Return the connection of a daemon that goes on with a mount; `fd` is its socket."""
    os.set_inheritable(fd, False)
    end = socket.socket(fileno=fd)
    data, descriptors = received(end, _DESCRIPTORS)
    said = json.loads(data)["takeover"]
    device, options, first, second, trace, *locks = descriptors
    takeover = Takeover(
        device,
        b64decode(said["init"]),
        said["upgrade"],
        said["restarts"],
        said["cause"],
        said["trace"],
        locks[0] if locks else None,
    )
    return Keeping(end, said["keeper"], options, (first, second), trace, takeover)
