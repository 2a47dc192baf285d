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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from aisfs.errors import DaemonSilent, MountError
from aisfs.fuse.mountpoint import mount_owner

ALIVE = "user.aisfs.recent"
"""An attribute that a daemon answers from memory."""
PATIENCE = 10.0
"""Seconds that a daemon may take for an answer from memory; under load one takes a second or two."""
_CHUNK = 1 << 16

Answer = bytes | OSError | None
"""The attribute, the error of the kernel or the daemon, or None if there was no answer in time."""


@dataclass(slots=True)
class _Question:
    """A process that asks, and what it has said so far."""

    pid: int
    pipe: int
    said: bytearray = field(default_factory=bytearray)

    def has_ended(self) -> bool:
        """Take what has arrived; return whether that is all."""
        data = os.read(self.pipe, _CHUNK)
        self.said.extend(data)
        return not data


class Asker:
    """Asks mounts, several at once; a question without an answer stays open until the end of the block."""

    def __init__(self) -> None:
        """Ask nothing yet."""
        self._open: dict[Path, _Question] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for question in self._open.values():
            os.close(question.pipe)
            os.kill(question.pid, signal.SIGKILL)
        self._open.clear()

    def ask(
        self, places: Sequence[Path], attribute: str, seconds: float | None = PATIENCE
    ) -> list[Answer]:
        """Return an attribute of each place: always the same one, as earlier questions may be answered.

        What was asked earlier and has no answer yet is not waited for. `seconds` may be None to wait for
        as long as it takes.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        awaited = {place for place in places if place not in self._open}
        self._open |= {place: self._start(place, attribute) for place in awaited}
        answers: dict[Path, Answer] = {}
        with selectors.DefaultSelector() as selector:
            for place in set(places):
                selector.register(self._open[place].pipe, selectors.EVENT_READ, place)
            while selector.get_map():
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready = selector.select(left if awaited else 0)
                for key, _ in ready:
                    if self._open[key.data].has_ended():
                        selector.unregister(key.fd)
                        answers[key.data] = self._close(key.data)
                        awaited.discard(key.data)
                if not ready and (not awaited or left == 0):
                    break
        return [answers.get(place) for place in places]

    def _close(self, place: Path) -> Answer:
        question = self._open.pop(place)
        os.close(question.pipe)
        os.waitpid(question.pid, 0)
        return _decode(question.said)

    def _start(self, place: Path, attribute: str) -> _Question:
        """Start a process that asks."""
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
        return _Question(pid, reader)


def ask(place: Path, attribute: str, seconds: float | None = PATIENCE) -> bytes:
    """Return an attribute of one mount, or of something in it.

    Raises:
        MountError: its daemon has died or does not answer, or this user may not ask it.
        OSError: another error of the file system.
    """
    with Asker() as asker:
        [answer] = asker.ask([place], attribute, seconds)
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


def _decode(answer: bytearray) -> Answer:
    if not answer:
        return None
    if answer.startswith(b"+"):
        return bytes(answer[1:])
    number = int(answer)
    return OSError(number, os.strerror(number))
