"""Child processes that cannot outlive the run, and measurements inside one."""

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from bench.interruptions import SIGNALS, Interrupts

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class NotMeasured(Exception):
    """There is no number for this contender; the text says why."""


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent dies; for `preexec_fn`."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def stop(process: subprocess.Popen[Any], seconds: float = 10.0) -> None:
    """End a process that leads its own group, politely and then not."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    kill_group(process.pid)
    process.wait()


def kill_group(leader: int) -> None:
    """Kill whatever is left of the process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def group_seconds(leader: int) -> float:
    """Return the processor seconds that the processes of a group have used, and their ended children."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == leader:
                    ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def processors() -> tuple[int, int]:
    """Return the ticks that all processors have worked, and those that they have had."""
    with suppress(OSError, ValueError):
        with open("/proc/stat") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # but idle, and waiting for disks
    return 0, 0


def busy_since(before: tuple[int, int]) -> float | None:
    """Return which share of their time all processors have worked since; None if too short to say."""
    worked, had = (now - then for now, then in zip(processors(), before, strict=True))
    return worked / had if had > 0 else None


def isolated(
    work: Callable[[], T],
    *,
    interruptions: Interrupts,
    limit: float,
    log: Path,
    unblock: Callable[[], None] = lambda: None,
) -> T:
    """Run a function in a forked process and give back what it returns, as JSON carries it.

    A peer that crashes, hangs or leaks takes nothing but its own measurement with it, and modules
    imported before are not imported again.

    Args:
        work: the function; it sees everything the caller sees.
        interruptions: holds signals back while the process is being started.
        limit: seconds until the process is killed.
        log: where its standard error goes.
        unblock: called before a hung process is killed, to end what it may hang in.

    Raises:
        NotMeasured: it raised, crashed or hung.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    pid, status = 0, 0
    try:
        with interruptions.held():
            pid = os.fork()
            if pid == 0:
                os.close(read_end)
                _run_child(work, write_end, log)
            with suppress(ProcessLookupError, PermissionError):
                os.setpgid(pid, pid)  # the child does it too; whoever comes first
        os.close(write_end)
        answer, hung = _receive(read_end, limit)
        if hung:
            unblock()
    except BaseException:
        unblock()  # a reader inside a file system dies only when that answers, or goes
        raise
    finally:
        os.close(read_end)
        if pid:
            status = _reap(pid)
    if hung:
        raise NotMeasured(f"hung for {limit:.0f} s")
    if not answer:
        name = signal.Signals(-status).name if status < 0 else f"exit code {status}"
        raise NotMeasured(f"crashed with {name}{_last_words(log)}")
    result = json.loads(answer)
    if "error" in result:
        raise NotMeasured(result["error"])
    value: T = result["value"]
    return value


def _run_child(work: Callable[[], Any], write_end: int, log: Path) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        die_with_parent()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        try:
            answer = {"value": work()}
        except BaseException as error:  # noqa: BLE001 (a broken peer may raise anything)
            traceback.print_exc()
            text = " ".join(str(error).split())
            words = text if isinstance(error, NotMeasured) else f"{type(error).__name__}: {text}"
            answer = {"error": words[:300]}
        data = json.dumps(answer).encode()
        with open(write_end, "wb") as pipe:
            pipe.write(data)
        code = 0
    finally:
        os._exit(code)


def _receive(descriptor: int, limit: float) -> tuple[bytes, bool]:
    pieces: list[bytes] = []
    deadline = time.monotonic() + limit
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return b"", True
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                return b"".join(pieces), False
            pieces.append(piece)
            # Workers of a data loader inherit the pipe; the answer is complete before it closes.
            with suppress(ValueError):
                json.loads(b"".join(pieces))
                return b"".join(pieces), False


def _reap(pid: int) -> int:
    kill_group_after = time.monotonic() + 2.0
    while time.monotonic() < kill_group_after:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            kill_group(pid)  # workers that are still there
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    kill_group(pid)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _last_words(log: Path) -> str:
    with suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        if lines:
            return f": {lines[-1][:200]}"
    return ""
