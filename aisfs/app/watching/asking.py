"""Asks the daemons of mounts, through extended attributes, without ever hanging with them.

A process that waits for an answer of a daemon that hangs cannot always be killed. So each question is
asked by a process of its own, which is left behind if it does not come back in time.
"""

import errno
import os
import selectors
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from aisfs.errors import DaemonSilent, MountError
from aisfs.fuse.mounting.kernel_settings import mount_owner

ALIVE = "user.aisfs.recent"
"""An attribute that a daemon answers from memory."""
PATIENCE = 10.0
"""Seconds that a daemon may take for an answer from memory; under load one takes a second or two."""
_CHUNK = 1 << 16

Answer = bytes | OSError | None
"""The attribute, the error of the kernel or the daemon, or None if there was no answer in time."""


class Asker:
    """Asks mounts, several at once; knows which did not answer yet."""

    def __init__(self) -> None:
        """Wait for nothing yet."""
        self._left: dict[Path, int] = {}
        """The process that still waits for an answer, by what it asked."""

    def ask(
        self, places: Sequence[Path], attribute: str, seconds: float | None = PATIENCE
    ) -> list[Answer]:
        """Return an attribute of each place; `seconds` may be None to wait for as long as it takes."""
        deadline = None if seconds is None else time.monotonic() + seconds
        answers: dict[Path, bytearray] = {}
        waiting: dict[int, Path] = {}
        with selectors.DefaultSelector() as selector:
            for place in places:
                if self._still_waits(place):
                    continue
                pipe = self._start(place, attribute)
                selector.register(pipe, selectors.EVENT_READ)
                waiting[pipe] = place
            try:
                while waiting:
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        break
                    for key, _ in selector.select(left):
                        place = waiting[key.fd]
                        data = os.read(key.fd, _CHUNK)
                        answers.setdefault(place, bytearray()).extend(data)
                        if not data:
                            selector.unregister(key.fd)
                            os.close(key.fd)
                            del waiting[key.fd]
                            os.waitpid(self._left.pop(place), 0)
            finally:
                for pipe, place in waiting.items():
                    answers.pop(place, None)
                    os.close(pipe)
                    os.kill(self._left[place], signal.SIGKILL)
        return [_decode(answers.get(place)) for place in places]

    def _still_waits(self, place: Path) -> bool:
        """Return whether an earlier question was not answered yet."""
        pid = self._left.get(place)
        if pid is None:
            return False
        if os.waitpid(pid, os.WNOHANG)[0]:
            del self._left[place]
            return False
        return True

    def _start(self, place: Path, attribute: str) -> int:
        """Start a process that asks; return the pipe for its answer."""
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                _become(mount_owner(place))
                with os.fdopen(writer, "wb") as file:
                    file.write(_answer(place, attribute))
            finally:
                os._exit(0)
        os.close(writer)
        self._left[place] = pid
        return reader


def ask(place: Path, attribute: str, seconds: float | None = PATIENCE) -> bytes:
    """Return an attribute of one mount, or of something in it.

    Raises:
        MountError: its daemon has died or does not answer, or this user may not ask it.
        OSError: another error of the file system.
    """
    [answer] = Asker().ask([place], attribute, seconds)
    if answer is None:
        raise DaemonSilent(
            f"{place}: no answer within {seconds:.0f} seconds: its daemon hangs, or is stopped; to detach "
            f"the mount: aisfs umount --lazy {place}"
        )
    if isinstance(answer, bytes):
        return answer
    if answer.errno in (errno.ENOTCONN, errno.ECONNABORTED):
        raise MountError(
            f"the daemon of {place} has died; clear the mount with: aisfs umount {place}"
        ) from answer
    if answer.errno == errno.EACCES:
        raise MountError(
            f"{place}: permission denied: ask as the user who mounted it, or as root"
        ) from answer
    raise answer


def _become(owner: tuple[int, int] | None) -> None:
    """Ask as the owner of a mount: the kernel lets not even root in without `allow_other`."""
    if owner is not None and os.geteuid() == 0:
        user, group = owner
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)


def _answer(place: Path, attribute: str) -> bytes:
    try:
        return b"+" + os.getxattr(place, attribute)
    except OSError as error:
        return b"%d" % (error.errno or errno.EIO)


def _decode(answer: bytearray | None) -> Answer:
    if not answer:
        return None
    if answer.startswith(b"+"):
        return bytes(answer[1:])
    number = int(answer)
    return OSError(number, os.strerror(number))
