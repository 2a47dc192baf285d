"""Processes that start with their modules loaded: thousands of them are what a test run consists of.

To start `aisfs mount` takes 0.6 s of processor time, and nearly all of it is imports. So a process
of Python imports them once, waits, and forks for each command it is asked for. What runs is as real
as what `subprocess.Popen` starts: a process of its own, with its own arguments (in /proc, too),
environment, directory, descriptors, session, signals and exit code; test_preloaded.py compares them.
It differs in four ways:

- Its parent is the `Preloader`'s process, which says how it ended.
- Whatever was read from the environment while loading is as the `Preloader` was told. A command whose
  environment differs in more than `_READ_LATE` is therefore started anew.
- Sets of strings are in the same order in all processes of one `Preloader`.
- At its end modules are not taken apart, and what is still open is closed by the kernel.

That a command starts at all is shown where it is started anew: tests/mount/test_lifecycle.py and
whatever else uses `COMMAND`, the demo, the recipes.

The process runs this module as `__main__`. It ends, and leaves its children alone, when the other
end of its socket is closed; the kernel does that when pytest is killed.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

_REPOSITORY = Path(__file__).resolve().parents[2]
_READ_LATE = (
    "AIS_",
    "AISFS_",
    "XDG_",
    "HOME",
    "PYTEST_CURRENT_TEST",
    "DIES_AT_NOTE",
    "AWS_",
    "AZURE_",
    "GOOGLE_",
    "HF_",
    "MOTO_",
    "STORAGE_",
    *(f"{kind}_PROXY" for kind in ("ALL", "HTTP", "HTTPS", "NO")),
    *(f"{kind}_proxy" for kind in ("all", "http", "https", "no")),
)
"""How the names of variables begin that nothing reads while it is loaded."""
_WORDS_MAX = 8192
"""Bytes of a command line: room for it in /proc, which only the start of a process can make."""
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals that a process ignores if who starts it does."""
_MESSAGE_MAX = 1 << 17
_START_SECONDS = 90.0
"""A loaded machine needs seconds for the imports. Not a statement about speed."""
_STATUS = struct.Struct("?i")
"""What is said of a process: has it ended, and with which code; before that its id."""


class Process:
    """What tests use of `subprocess.Popen`."""

    def __init__(self, args: Sequence[str], status: int, stdin: IO[bytes] | None) -> None:
        self.args = args
        self.stdin = stdin
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._status = status
        weakref.finalize(self, os.close, status)
        self._wait(_START_SECONDS)
        ended, self.pid = self._read()
        if ended:
            raise ChildProcessError(f"{args} was not started; stderr says why")

    def poll(self) -> int | None:
        """Give the exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends; give its exit code, or minus the signal."""
        self._wait(timeout)
        with self._lock:
            if self.returncode is None:
                _, self.returncode = self._read()
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout: float | None) -> None:
        """Wait until there is something to read, and be it that there never will be more."""
        waiting = select.poll()
        waiting.register(self._status, select.POLLIN)
        if not waiting.poll(None if timeout is None else timeout * 1000):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)

    def _read(self) -> tuple[bool, int]:
        message = os.read(self._status, _STATUS.size)
        if not message:
            raise ChildProcessError(f"the process that started {self.args} has ended")
        ended, number = _STATUS.unpack(message)
        return ended, number


Started = Process | subprocess.Popen[bytes]


class Preloader:
    """Starts `python FLAGS -m MODULE …`, with some modules loaded beforehand."""

    _running: "list[Preloader]" = []  # noqa: RUF012

    def __init__(
        self,
        module: str,
        preload: Sequence[str],
        *,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare; the process starts with the first command.

        Args:
            module: What commands run.
            preload: What is loaded; not `module` itself, which is run anew each time.
            flags: Options of the interpreter.
            env: What the preloaded modules see; None is the environment of this process.
        """
        self._module = module
        self._preload = tuple(preload)
        self._python = (sys.executable, *flags)
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lock = threading.Lock()

    def start(
        self,
        *words: str,
        stdout: IO[bytes] | int,
        stderr: IO[bytes] | int,
        stdin: int = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        start_new_session: bool = False,
    ) -> Started:
        """Start a command as `Popen` does. `stdin` is DEVNULL or PIPE, the others are files."""
        command = [*self._python, "-m", self._module, *words]
        env = dict(os.environ if env is None else env)
        if not self._suits(command, env):
            return subprocess.Popen(
                command, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd,
                start_new_session=start_new_session,
            )  # fmt: skip
        job = _Job(
            command,
            self._module,
            env,
            str(cwd or os.getcwd()),
            _umask(),
            _ignored(),
            start_new_session,
        )
        writer = None
        if stdin == subprocess.PIPE:
            reader, writing = os.pipe()
            writer = open(writing, "wb")  # noqa: SIM115
        else:
            assert stdin == subprocess.DEVNULL
            reader = os.open(os.devnull, os.O_RDONLY)
        status, status_writer = os.pipe()
        outputs = [to if isinstance(to, int) else to.fileno() for to in (stdout, stderr)]
        try:
            message = json.dumps(job).encode()
            socket.send_fds(self._connected(), [message], [reader, *outputs, status_writer])
        finally:
            os.close(reader)
            os.close(status_writer)
        return Process(command, status, writer)

    def _suits(self, command: Sequence[str], env: Mapping[str, str]) -> bool:
        """Whether it can be told from a new process."""
        if sum(len(os.fsencode(word)) + 1 for word in command) > _WORDS_MAX:
            return False
        if self._env is None:
            self._env = dict(os.environ)
        differing = {name for name, _ in env.items() ^ self._env.items()}
        return all(name.startswith(_READ_LATE) for name in differing)

    def _connected(self) -> socket.socket:
        with self._lock:
            if self._control is None:
                self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    self._process = self._start_process(theirs.fileno())
                self._running.append(self)
            return self._control

    def _start_process(self, control: int) -> subprocess.Popen[bytes]:
        words = [str(control), ",".join(self._preload), " " * _WORDS_MAX]
        return subprocess.Popen(
            [*self._python, "-m", __name__, *words], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, env=self._env, cwd=_REPOSITORY, pass_fds=[control],
        )  # fmt: skip

    def end(self) -> None:
        """End the process; what it started goes on."""
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.wait(_START_SECONDS)
            self._control = self._process = None
            self._running.remove(self)

    @classmethod
    def end_all(cls) -> None:
        """End all that run."""
        for preloader in cls._running[:]:
            preloader.end()


def _umask() -> int:
    """Read the mask without changing it for a moment, as os.umask would."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)


def _ignored() -> list[int]:
    return [number for number in _ENDING if signal.getsignal(number) == signal.SIG_IGN]


class _Job(NamedTuple):
    """A command to start."""

    command: list[str]
    module: str
    env: dict[str, str]
    cwd: str
    umask: int
    ignored: list[int]
    """Signals, of `_ENDING`."""
    new_session: bool


def _main() -> None:
    control, preload, _room = sys.argv[1:]
    # Ctrl-C is sent to all of the terminal: pytest tests it, and still needs this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    for name in preload.split(","):
        importlib.import_module(name)
    gc.freeze()  # else the first search of each child copies all its pages
    gc.enable()
    asked_for = _fork_for_each(int(control))
    if asked_for is None:
        return
    job, given = asked_for
    _become(job, given[:3])
    for number in _ENDING:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in job.ignored else usual)
    os.write(given[3], _STATUS.pack(False, os.getpid()))
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    try:
        runpy.run_module(job.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, int | None) and threading.active_count() == 1:
            _leave(end.code or 0)
        raise


def _leave(code: int) -> None:
    """End as Python does, but leave the taking apart of all modules, two thirds of it, to the kernel."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _fork_for_each(control: int) -> tuple[_Job, list[int]] | None:
    """Fork for what is asked for and say how it ends; return, in the child, what was asked for.

    With a job come its standard streams, and the pipe for what is said of it.
    """
    statuses: dict[int, tuple[int, int]] = {}
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    with socket.socket(fileno=control) as requests:
        while True:
            for ready, _ in waiting.poll():
                if ready != control:
                    waiting.unregister(ready)
                    _say_how_it_ended(ready, *statuses.pop(ready))
                    continue
                message, given, _, _ = socket.recv_fds(requests, _MESSAGE_MAX, 4)
                if not message:
                    return None
                pid = os.fork()
                if pid == 0:
                    requests.detach()
                    return _Job(*json.loads(message)), given
                *streams, status = given
                for stream in streams:
                    os.close(stream)
                watched = os.pidfd_open(pid)
                statuses[watched] = (pid, status)
                waiting.register(watched, select.POLLIN)


def _say_how_it_ended(watched: int, pid: int, status: int) -> None:
    _, code = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(status, _STATUS.pack(True, os.waitstatus_to_exitcode(code)))
    os.close(status)
    os.close(watched)


def _become(job: _Job, streams: Sequence[int]) -> None:
    """Make all of this process as the job says; Popen would do it between fork and exec."""
    if job.new_session:
        os.setsid()
    os.chdir(job.cwd)
    os.umask(job.umask)
    os.environ.clear()
    os.environ.update(job.env)
    for standard, stream in enumerate(streams):
        os.dup2(stream, standard)
    _open_streams()
    _show_in_proc(job.command)
    sys.path[0] = os.getcwd()
    sys.argv = [job.module, *job.command[job.command.index(job.module) + 1 :]]
    sys.orig_argv[:] = job.command
    if "trio" in sys.modules:  # it orders tasks by chance, and would in all children alike
        importlib.import_module("trio._core._run")._r.seed()


def _open_streams() -> None:
    """Make sys.stdin, sys.stdout and sys.stderr for what the descriptors are now."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before, mode = getattr(sys, name), "w" if number else "r"
        unbuffered = isinstance(before.buffer, io.RawIOBase)
        binary = open(number, f"{mode}b", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            binary, before.encoding, before.errors, "\n" if number else None,
            before.line_buffering or (binary.isatty() and not unbuffered), before.write_through,
        )  # fmt: skip
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _show_in_proc(command: Sequence[str]) -> None:
    """Write the words over those this process was started with: tests look for processes by them."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # fields 48 and 49 of proc(5)
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    ctypes.memmove(start, words.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    _main()
