"""The process whose children serve volumes: it needs no rights, since each mount is made for it.

The driver sends what to mount and the descriptor of the mount in one message, and waits for the result. A child is
forked for each message; it starts the daemon of the volume and ends with the answer. Nothing is kept:
which volumes there are, the kernel knows, and a daemon ends when its volume is unmounted.
"""

import ctypes
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from aisfs.app import mount as mounts
from aisfs.app.csi.failures import Code, VolumeError, code_of
from aisfs.app.csi.volumes import Volume
from aisfs.app.plan import is_local, plan_mount
from aisfs.config import ClusterSettings
from aisfs.errors import AisfsError, ConfigError
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
_PR_SET_CHILD_SUBREAPER = 36


def hand_over(mounter: Path, volume: Volume, fd: int) -> None:
    """Have the mounter serve a volume; return when it is ready.

    Args:
        mounter: The mounter's socket.
        volume: What to show.
        fd: The descriptor of the mount, which stays open here.

    Raises:
        VolumeError: why it cannot be served.
    """
    message = json.dumps(asdict(volume)).encode()
    if len(message) > MESSAGE_MAX:
        raise VolumeError(Code.INVALID_ARGUMENT, "the attributes and secrets are too large")
    try:
        with connect(mounter) as connection:
            socket.send_fds(connection, [message], [fd])
            answer = connection.recv(MESSAGE_MAX)
    except OSError as error:
        raise VolumeError(Code.UNAVAILABLE, f"mounter {mounter}: {error.strerror}") from error
    if not answer:
        raise VolumeError(Code.UNAVAILABLE, f"mounter {mounter}: ended before the volume was ready")
    said = json.loads(answer)
    if said["code"] != Code.OK:
        raise VolumeError(Code(said["code"]), said["reason"])


def connect(mounter: Path) -> socket.socket:
    """Connect to the mounter's socket.

    Raises:
        OSError: nothing listens there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
            outcome, reason = _start(Volume(**json.loads(data)), descriptors[0])
            connection.send(json.dumps({"code": outcome, "reason": reason}).encode())
        code = 0
    except OSError as error:
        log.warning("the driver did not take the answer: %s", error.strerror)
    finally:
        os._exit(code)


def _start(volume: Volume, fd: int) -> tuple[int, str]:
    log.info("serving %s", " ".join(volume.sources))
    return daemon.detach(lambda reporter: _serve(volume, fd, reporter), keep_stderr=True)


def _serve(volume: Volume, fd: int, reporter: "Reporter") -> None:
    warnings = RecentWarnings()
    warnings.attach()
    try:
        settings = volume.settings_with_secrets()
        check_token(settings)
        plan = plan_mount(volume.sources, Path(f"/dev/fd/{fd}"), (), settings)
        if is_local(plan.source):
            raise ConfigError(f"{plan.source}: a volume shows buckets")
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


def check_token(settings: Mapping[str, Any]) -> None:
    """Refuse to send the token of this process to a cluster that a volume names."""
    own = ClusterSettings.load({})
    has_token = own.token or own.authn_token_file or own.cli_token_file.exists()
    if "endpoint" in settings and "token" not in settings and has_token:
        named = ClusterSettings.load({"endpoint": settings["endpoint"]}).endpoint
        if named != own.endpoint:
            raise ConfigError(
                f"endpoint {named}: the token of this node is for another cluster; give the volume a"
                " secret with a token"
            )
