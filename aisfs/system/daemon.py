"""Starts a process in the background, and reports how its start goes.

The parent waits at a pipe. The child writes messages, each one JSON object in a line: its progress, warnings,
and at last that it is ready or why it failed. A pipe that closes without the last message means that the
child died. Messages are short enough to be written in one step, so any thread of the child may send one.

Here is also what a process sets once for itself: how many files it may have open, and imports without garbage collection.
"""

import fcntl
import gc
import json
import os
import resource
import signal
import struct
import sys
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

Message = Mapping[str, Any]

REASON_MAX, WARNING_MAX = 1900, 1000
"""Bytes of a text. JSON doubles them at most, and a pipe takes up to 4096 in one step."""
WARNINGS_MAX = 20
"""Warnings that the parent gets; the log has all of them. They fit into the pipe, unread."""
QUEUED_MAX = 16384
"""Bytes in the pipe above which no progress is sent: the parent may have been stopped with Ctrl-Z, and
a child that filled the pipe would wait for it."""


class Reporter:
    """The child's side. Nothing is sent after `ready` or `failed`, nor after the parent has ended."""

    def __init__(self, pipe: int) -> None:
        """Write to the descriptor `pipe`."""
        self._pipe = pipe
        self._ended = False
        self._warned = 0

    def progress(self, state: Message) -> None:
        """Say how far the start is; left out while the parent does not read."""
        if not self._ended and _queued(self._pipe) <= QUEUED_MAX:
            self._send({"progress": state})

    def warn(self, level: str, text: str) -> None:
        """Pass on a warning."""
        self._warned += 1
        if self._warned <= WARNINGS_MAX:
            self._send({"warning": _cut(text, WARNING_MAX), "level": level})

    def ready(self, note: str = "") -> None:
        """Say that the start succeeded, and what there is to know about it."""
        self._end({"ready": _cut(note, REASON_MAX)})

    def failed(self, reason: str, exit_code: int) -> None:
        """Say why the start failed."""
        self._end({"failed": _cut(reason, REASON_MAX), "exit_code": exit_code})

    def _end(self, message: Message) -> None:
        if not self._ended:
            if self._warned > WARNINGS_MAX:
                self._send({"unsaid": self._warned - WARNINGS_MAX})
            self._send(message)
            self._ended = True
            # Not closed, since a thread that sends now would write to whatever has the number next.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._pipe, inheritable=False)
            os.close(null)

    def _send(self, message: Message) -> None:
        if not self._ended:
            with suppress(BrokenPipeError):
                os.write(self._pipe, json.dumps(message, ensure_ascii=False).encode() + b"\n")


def detach(
    work: Callable[[Reporter], None],
    told: Callable[[Message], None] = lambda _: None,
    *,
    keep_stderr: bool = False,
) -> tuple[int, str]:
    """Run `work(reporter)` in a child with a session of its own.

    Must be called before any thread or event loop exists, since it forks.

    Args:
        work: Calls `reporter.ready()` once it serves, or `reporter.failed(reason, exit_code)`.
        told: Called in the parent with each message before the last.
        keep_stderr: Leave the child its stderr, where a container's log is written.

    Returns:
        0 and its note once the child is ready, else an exit code and the reason. Only in the parent; the
        child leaves the process when `work` returns.

    Raises:
        KeyboardInterrupt: Ctrl-C; the child was asked to end, and has ended.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run_child(work, writer, streams=2 if keep_stderr else 3)
    try:
        os.close(writer)
        last = _follow(reader, told)
        if "ready" in last:
            return 0, str(last["ready"])
        _, status = os.waitpid(child, 0)
    except KeyboardInterrupt:
        _stop(child)
        raise
    if "failed" in last:
        return last["exit_code"], last["failed"]
    code = os.waitstatus_to_exitcode(status)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else "ended"
    return 1, f"the background process {how} before the mount was ready; its log may say why"


def _follow(reader: int, told: Callable[[Message], None]) -> Message:
    """Pass messages on; return the last one, which is empty if the child died."""
    with os.fdopen(reader, "rb") as pipe:
        for line in pipe:
            message = json.loads(line)
            if "ready" in message or "failed" in message:
                return dict(message)
            told(message)
    return {}


def _stop(child: int) -> None:
    """End the child; a second Ctrl-C does not wait for it to do so itself."""
    try:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):  # it had ended, and was waited for
        pass


def _cut(text: str, size: int) -> str:
    data = text.encode(errors="backslashreplace")
    return data[:size].decode(errors="ignore") + ("…" if len(data) > size else "")


def _queued(pipe: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


def _run_child(work: Callable[[Reporter], None], writer: int, *, streams: int) -> None:
    """Detach from the terminal and work; never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir("/")  # else the current directory could not be unmounted
        null = os.open(os.devnull, os.O_RDWR)
        for standard in range(streams):
            os.dup2(null, standard)
        os.close(null)
        work(Reporter(writer))
        code = 0
    finally:
        os._exit(code)


WANTED = 1 << 16
"""More than 32 requests at once to each of 1,000 targets; bounded, as each costs the kernel memory."""


def allow_many() -> None:
    """Raise the limit as far as useful and permitted: the usual 1,024 is a limit of `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def allowed() -> int:
    """Return the limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft


@contextmanager
def loading() -> Iterator[None]:
    """Import in this block without garbage collection: imports make no garbage.

    Collection takes an eighth of their time. Later collections skip what was imported, which would
    stop all threads for 40 ms now and then.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
