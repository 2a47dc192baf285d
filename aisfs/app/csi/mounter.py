"""The process whose children serve volumes: it needs no rights, since each mount is made for it.

The driver sends what to mount and the descriptor of the mount in one message, and waits for the result. A child is
forked for each message; it starts the daemon of the volume and ends with the answer, which comes in time: a daemon
that is not ready by then is killed. Nothing is kept: which volumes there are, the kernel knows, and a daemon
ends when its volume is unmounted.
"""

import ctypes
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio

from aisfs.app import mount as mounts
from aisfs.app.csi.failures import Code, VolumeError, code_of
from aisfs.app.csi.volumes import Volume, check_endpoint, check_plan
from aisfs.app.plan import plan_mount
from aisfs.errors import AisfsError
from aisfs.process import daemon
from aisfs.process.recent_warnings import RecentWarnings

if TYPE_CHECKING:
    from types import FrameType

    from aisfs.process.daemon import Reporter

log = logging.getLogger(__name__)

MESSAGE_MAX = 128 << 10
"""Bytes of a message. Kubernetes' secrets and attributes that are larger do not fit a socket's buffer."""
END_SECONDS = 20
"""How long daemons have to end: Kubernetes kills a pod after 30 seconds."""
OPEN_SECONDS = 600.0
"""How long a volume may take to be ready: large datasets take minutes, and others must not wait for them."""
_CONNECT_SECONDS = 5.0
_LOOK_MS = 300
_PR_SET_CHILD_SUBREAPER = 36


class _Answer(msgspec.Struct):
    """How the start of a volume went."""

    code: Code
    reason: str = ""


def hand_over(
    mounter: Path, volume: Volume, fd: int, given_up: Callable[[], bool] = lambda: False
) -> None:
    """Have the mounter serve a volume; return when it is ready.

    Args:
        mounter: The mounter's socket.
        volume: What to show.
        fd: The descriptor of the mount, which stays open here.
        given_up: Returns whether nobody wants the volume any more; asked now and then.

    Raises:
        VolumeError: why it cannot be served, or `given_up`.
    """
    message = msgspec.json.encode(volume)
    if len(message) > MESSAGE_MAX:
        raise VolumeError(Code.INVALID_ARGUMENT, "the attributes and secrets are too large")
    try:
        with connect(mounter) as connection:
            socket.send_fds(connection, [message], [fd])
            _wait(connection, given_up)
            answer = connection.recv(MESSAGE_MAX)
    except OSError as error:
        raise VolumeError(
            Code.UNAVAILABLE, f"mounter {mounter}: {error.strerror or error}"
        ) from error
    if not answer:
        raise VolumeError(Code.UNAVAILABLE, f"mounter {mounter}: ended before the volume was ready")
    said = msgspec.json.decode(answer, type=_Answer)
    if said.code is not Code.OK:
        raise VolumeError(said.code, said.reason)


def _wait(connection: socket.socket, given_up: Callable[[], bool]) -> None:
    """Wait for the answer of the mounter, which ends a start that takes too long itself."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    deadline = time.monotonic() + OPEN_SECONDS + 2 * END_SECONDS
    while not poll.poll(_LOOK_MS):
        if given_up():
            raise VolumeError(Code.ABORTED, "the volume was unpublished before it was ready")
        if time.monotonic() > deadline:
            raise TimeoutError("no answer in time")


def connect(mounter: Path) -> socket.socket:
    """Connect to the mounter's socket.

    Raises:
        OSError: nothing listens there, or what listens hangs.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(_CONNECT_SECONDS)
    try:
        connection.connect(str(mounter))
    except OSError:
        connection.close()
        raise
    return connection


def run(path: Path) -> None:
    """Serve volumes until SIGTERM; then unmount nothing, but let each daemon finish what it writes.

    Raises:
        OSError: `path` cannot be listened on.
    """
    # As the first process of a container, and then elsewhere too: daemons become our children.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # or it would unmount: daemons inherit this
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        mask = os.umask(0o177)  # whoever may connect can have anything mounted
        listener.bind(str(path))
        os.umask(mask)
        listener.listen()
        log.info("waiting for volumes on %s", path)
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    _answer(connection, listener)


def _end(number: int, frame: "FrameType | None") -> None:
    told: set[int] = set()
    deadline = time.monotonic() + END_SECONDS
    # Again and again: a daemon that has just begun becomes our child when its parent has answered.
    while (children := _children()) and time.monotonic() < deadline:
        for child in children - told:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        told |= children
        signal.sigtimedwait([], 0.05)
    raise SystemExit(0)


def _children() -> set[int]:
    return {int(pid) for pid in Path("/proc/thread-self/children").read_text().split()}


def _answer(connection: socket.socket, listener: socket.socket) -> None:
    """Start the daemon of one volume and answer; never returns."""
    code = 1
    try:
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        listener.close()
        data, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_MAX, 1)
        if data and descriptors:  # else the driver has only looked whether we are here
            connection.send(msgspec.json.encode(_start_of(data, descriptors[0])))
        code = 0
    except OSError as error:
        log.warning("the driver did not take the answer: %s", error.strerror)
    finally:
        os._exit(code)


def _start_of(data: bytes, fd: int) -> _Answer:
    """Start the daemon of a volume, and kill it if it is not ready in time."""
    try:
        volume = msgspec.json.decode(data, type=Volume)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return _Answer(
            Code.INTERNAL, f"driver and mounter are of different versions, update both: {error}"
        )
    log.info("serving %s", " ".join(volume.sources))
    # Ends the daemon by SIGTERM as Ctrl-C would, and after another while by SIGKILL.
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, OPEN_SECONDS, END_SECONDS)
    try:
        code, reason = daemon.detach(
            lambda reporter: _serve(volume, fd, reporter), keep_stderr=True
        )
    except KeyboardInterrupt:
        return _Answer(
            Code.UNAVAILABLE,
            f"{' '.join(volume.sources)}: not ready within {OPEN_SECONDS:g} s; with the attribute"
            " lazy a view is mounted before all of its shards are open",
        )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return _Answer(Code(code) if code in frozenset(Code) else Code.INTERNAL, reason)


def _serve(volume: Volume, fd: int, reporter: "Reporter") -> None:
    warnings = RecentWarnings()
    warnings.attach()
    try:
        check_endpoint(volume)
        settings = volume.settings_with_secrets()
        plan = plan_mount(volume.sources, Path(f"/dev/fd/{fd}"), (), settings)
        check_plan(volume, plan)
        plan = replace(plan, reach=volume.permitted.reach)
        mounts.check(plan)
        trio.run(mounts.run, plan, reporter, warnings)
    except AisfsError as error:
        log.error("%s", error)
        failure = VolumeError(code_of(error), str(error))  # only this process knows the token
        reporter.failed(str(failure), failure.code)
    except Exception as error:
        log.exception("the mount ended on a bug in aisfs, please report it")
        failure = VolumeError(Code.INTERNAL, f"unexpected {type(error).__name__}: {error}")
        reporter.failed(str(failure), failure.code)
    else:
        reporter.failed("the volume was unmounted before it was ready", Code.ABORTED)
