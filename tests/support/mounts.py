"""Mounts aisfs for a test with the real command line and leaves nothing behind.

A test that hangs inside a file operation cannot be interrupted by a signal (the kernel waits for
the daemon, and only a fatal signal ends that), so each mount carries a watchdog that kills its
daemon when the deadline passes: every waiting call then ends with an error and the test fails.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

from tests.support.preloaded import Preloader, Started

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "aisfs")
COMMAND_LIMIT = 90.0
"""Seconds until a command counts as hung; not a statement about speed."""
PATIENCE = 60.0
"""Seconds until something counts as never happening: a daemon that shares two cores with twenty programs
once took more than 20 to end. Not a statement about speed."""
_modes = {"fastpath": True}
_SUSPICIOUS = re.compile(
    r"\b(WARNING|ERROR|CRITICAL)\b|Traceback|Exception ignored|level=(warn|err)"
)
_OCTAL = re.compile(rb"\\([0-7]{3})")


class MountFailedError(Exception):
    """`aisfs mount` refused; what it said is for the test to check."""

    def __init__(self, returncode: int, stderr: str) -> None:
        super().__init__(f"aisfs mount ended with {returncode}: {stderr!r}")
        self.returncode = returncode
        self.stderr = stderr


@dataclass
class Mount:
    """A mounted aisfs."""

    path: Path
    pids: list[int]
    log_files: list[Path]
    environment: dict[str, str]
    process: Started | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """The daemon: the process that holds /dev/fuse."""
        assert self.pids, "no daemon was found for this mount"
        return self.pids[0]

    def log(self) -> str:
        return "".join(file.read_text(errors="replace") for file in self.log_files if file.exists())

    def is_mounted(self) -> bool:
        return is_mountpoint(self.path)

    def wait_until_gone(self, seconds: float = PATIENCE) -> bool:
        """Wait until neither the mount nor its daemon exists; False when they stay."""
        return eventually(lambda: not self.is_mounted() and not self.living(), seconds)

    @property
    def keeper(self) -> int:
        """The process that starts the daemon again."""
        return self.process.pid if self.process is not None else self.pids[1]

    def daemon_now(self) -> int:
        """The daemon of the moment, of a mount with a keeper."""
        now: list[int] = []

        def has_begun() -> bool:
            keeper = str(self.keeper)
            children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
            now[:] = daemons(self.path, [keeper, *children])
            return len(now) > 1 and now[0] != self.keeper  # as which it looks at first

        assert eventually(has_begun), "no daemon was started again"
        self.pids = [*dict.fromkeys([*self.pids, *now])]
        return now[0]

    def living(self) -> list[int]:
        if self.process is not None:
            self.process.poll()
        return [pid for pid in self.pids if _is_alive(pid)]


def environment(
    extra: Mapping[str, str] | None = None, *, home: Path | None = None
) -> dict[str, str]:
    """What a daemon or command sees: nothing inherited that could change its behaviour.

    Mounts end with their daemon, so that one that crashes is a failed test and not a restart.
    """
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(home or "/nonexistent"),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "AISFS_KEEPER": "no",
        **(extra or {}),
    }


_OF_SOME = ("commands",)
"""Packages whose modules are imported by the commands and mounts that need them."""
_preloader = Preloader(
    "aisfs",
    (
        "tests.support.checked_locks",
        "tests.support.dying_daemon",
        "aisfs.mount.run",
        *(
            f"aisfs.{package}.{module.stem}"
            for package in _OF_SOME
            for module in sorted((REPOSITORY / "aisfs" / package).glob("[!_]*.py"))
        ),
        "aisfs.mount.transforming",
        "aisfs.stores.by_fsspec",
        "aisfs.stores.hub",
        "rich.console",
        "rich.progress",
        "statistics",
        "wcmatch.glob",
    ),
    env=environment(),
)


def run(
    *command: str | bytes | os.PathLike[str],
    timeout: float = COMMAND_LIMIT,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end with its output kept; a hang is a failure of the test."""
    env = dict(env) if env is not None else environment()

    def start(out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, cwd=cwd
        )

    return finish(start, command, timeout)


def finish(
    start: Callable[[IO[bytes], IO[bytes]], Started],
    command: Sequence[str | bytes | os.PathLike[str]],
    timeout: float = COMMAND_LIMIT,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command, started with the files for its output, to its end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(out, err)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            _reap(process)
            raise AssertionError(f"hung for {timeout:.0f} s: {command!r}") from None
        except BaseException:
            process.kill()
            _reap(process)
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


def succeed(
    *command: str | bytes | os.PathLike[str],
    timeout: float = COMMAND_LIMIT,
    cwd: Path | None = None,
) -> bytes:
    """Run a command that must end with 0 and say nothing on stderr; return its output."""
    done = run(*command, timeout=timeout, cwd=cwd)
    assert done.returncode == 0, (command, done.returncode, done.stderr[-2000:])
    assert done.stderr == b"", (command, done.stderr[-2000:])
    return done.stdout


def python(script: str, *arguments: object, timeout: float = COMMAND_LIMIT) -> bytes:
    """Run Python in a process of its own, for file operations that could hang."""
    return succeed(sys.executable, "-c", script, *map(str, arguments), timeout=timeout)


def aisfs(
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = COMMAND_LIMIT,
) -> subprocess.CompletedProcess[bytes]:
    """Run the command line with an environment that holds only what is given."""
    words = [str(argument) for argument in arguments]
    # A mount without a log would make one of its own, and say where.
    unlogged = {"AISFS_LOG_FILE": os.devnull} if words[:1] == ["mount"] else {}
    env = environment({**unlogged, **(env or {})})

    def start(out: IO[bytes], err: IO[bytes]) -> Started:
        return _preloader.start(*words, stdout=out, stderr=err, env=env, cwd=cwd)

    return finish(start, [*COMMAND, *words], timeout)


def start_aisfs(
    *arguments: str, output: IO[bytes], env: Mapping[str, str], cwd: Path | None = None
) -> Started:
    """Start the command line, and do not wait for its end."""
    return _preloader.start(*arguments, stdout=output, stderr=output, env=env, cwd=cwd)


@contextmanager
def mounting(*, fastpath: bool) -> Iterator[None]:
    """Mount with or without the fast path where a test does not say which."""
    before, _modes["fastpath"] = _modes["fastpath"], fastpath
    try:
        yield
    finally:
        _modes["fastpath"] = before


def eventually(condition, seconds: float = PATIENCE) -> bool:
    """Wait until the condition holds; False when it never does."""
    deadline, pause = time.monotonic() + seconds, 0.005
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return True


def is_mountpoint(path: Path) -> bool:
    """Look into the mount table; the path itself is not touched."""
    wanted = os.fsencode(path)
    with open("/proc/self/mountinfo", "rb") as table:
        return any(_unescape(line.split()[4]) == wanted for line in table)


@contextmanager
def mounted(
    source: str | Sequence[str] | None,
    mountpoint: Path,
    *,
    endpoint: str | None = None,
    options: Sequence[str] = (),
    fastpath: bool | None = None,
    foreground: bool = False,
    keeper: bool = False,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    expected_log: Sequence[str] = (),
    deadline: float = 100.0,
) -> Iterator[Mount]:
    """Mount, yield, unmount, and check that the daemon had nothing to complain about.

    Args:
        source: What to mount, a word or several; None for every bucket of the cluster.
        mountpoint: An existing directory; must be absolute and free of symlinks.
        endpoint: Passed as `--endpoint`.
        options: More arguments of `aisfs mount`.
        fastpath: Whether with the fast path; None is as `mounting` says, else with it.
        foreground: Keep the daemon a child of this process.
        keeper: Have the mount outlive its daemon, as it is by default for people.
        env: Added to the daemon's otherwise minimal environment.
        cwd: Where the command runs.
        expected_log: Patterns of warnings and errors that this test provokes.
        deadline: Seconds until the watchdog kills the daemon.

    Raises:
        MountFailedError: the command ended with another code than 0.
        AssertionError: a mount, a process or an unexpected log line was left behind.
    """
    assert os.path.exists("/dev/fuse"), "these tests need /dev/fuse; a machine without it fails"
    with ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aisfs-test-")))
        words = [source] if isinstance(source, str) else source or []
        arguments = [*words, str(mountpoint)]
        if endpoint is not None:
            arguments += ["--endpoint", endpoint]
        if not (_modes["fastpath"] if fastpath is None else fastpath):
            arguments.append("--no-fastpath")
        arguments += ["--log-file", str(state / "daemon.log"), *options]
        mount = Mount(
            mountpoint,
            [],
            [state / "daemon.log", state / "stderr"],
            environment({**({"AISFS_KEEPER": "yes"} if keeper else {}), **(env or {})}, home=state),
        )
        try:
            start = _start_in_foreground if foreground else _start
            start(mount, arguments, state, cwd)
            watchdog = threading.Timer(deadline, _kill, (mount, "the watchdog ended a hung test"))
            watchdog.daemon = True
            watchdog.start()
            stack.callback(watchdog.cancel)
            yield mount
        except BaseException as error:
            _stop(mount, expected_log)
            for problem in mount.problems:
                error.add_note(problem)
            error.add_note(f"the daemon's log:\n{mount.log()[-4000:]}")
            raise
        _stop(mount, expected_log)
        assert not mount.problems, "\n".join([*mount.problems, mount.log()[-4000:]])


def _start(mount: Mount, arguments: list[str], state: Path, cwd: Path | None) -> None:
    before = set(os.listdir("/proc"))
    with open(state / "stderr", "wb") as stderr:  # a pipe would wait for the daemon to close it
        process = _preloader.start(
            "mount", *arguments, stdout=stderr, stderr=stderr, env=mount.environment,
            cwd=cwd or state,
        )  # fmt: skip
        try:
            code = process.wait(COMMAND_LIMIT)
        except subprocess.TimeoutExpired:
            mount.pids = daemons(mount.path, {*os.listdir("/proc")} - before)
            process.kill()
            _reap(process)
            raise AssertionError("aisfs mount did not return") from None
    mount.pids = daemons(mount.path, {*os.listdir("/proc")} - before)
    if code:
        raise MountFailedError(code, (state / "stderr").read_text(errors="replace"))
    assert mount.is_mounted(), "aisfs mount ended with 0 and nothing is mounted"
    assert mount.pids, "aisfs mount ended with 0 and no process holds the mount"


def _start_in_foreground(mount: Mount, arguments: list[str], state: Path, cwd: Path | None) -> None:
    with open(state / "stderr", "wb") as stderr:
        process = _preloader.start(
            "mount", "--foreground", *arguments, stdout=stderr, stderr=stderr,
            env=mount.environment, cwd=cwd or state,
        )  # fmt: skip
    mount.process = process
    mount.pids = [process.pid]
    ready = eventually(lambda: mount.is_mounted() or process.poll() is not None, COMMAND_LIMIT)
    if process.poll() is not None:
        raise MountFailedError(process.returncode, (state / "stderr").read_text(errors="replace"))
    assert ready, "the mount never appeared"
    assert run("stat", mount.path, timeout=30).returncode == 0


def _stop(mount: Mount, expected_log: Sequence[str]) -> None:
    """Unmount in rising order of force, noting everything that should not have been needed."""
    if mount.is_mounted():
        _unmount(mount)
    if not mount.wait_until_gone():
        mount.problems.append(f"daemon left behind: {mount.living()}")
        _kill(mount, "killed at the end of the test")
        subprocess.run(
            ["fusermount3", "-uz", mount.path], check=False, timeout=30, capture_output=True
        )
        if not mount.wait_until_gone():
            mount.problems.append("mount left behind")
    if mount.process is not None:
        _reap(mount.process)
    expected = [re.compile(pattern) for pattern in expected_log]
    mount.problems += [
        f"unexpected in the log: {line}"
        for line in mount.log().splitlines()
        if _SUSPICIOUS.search(line) and not any(pattern.search(line) for pattern in expected)
    ]


def check_refused(
    arguments: Sequence[str], mountpoint: Path, *, endpoint: str, code: int, said: str
) -> None:
    """Mount what must be refused, with this code and these words among what is said."""
    with (
        pytest.raises(MountFailedError) as caught,
        mounted(arguments, mountpoint, endpoint=endpoint),
    ):
        pass
    assert caught.value.returncode == code
    assert said in caught.value.stderr
    assert "Traceback" not in caught.value.stderr


def _unmount(mount: Mount) -> None:
    try:
        # What `aisfs umount` runs, without starting a Python for each of a thousand mounts.
        done = run("fusermount3", "-u", mount.path, timeout=30)
    except AssertionError as error:
        mount.problems.append(str(error))
    else:
        if done.returncode:
            mount.problems.append(f"umount: {done.returncode} {done.stderr!r}")
    if mount.is_mounted():
        subprocess.run(
            ["fusermount3", "-uz", mount.path], check=False, timeout=30, capture_output=True
        )


def _kill(mount: Mount, reason: str) -> None:
    mount.problems.append(reason)
    for pid in mount.living():
        os.kill(pid, signal.SIGKILL)


def daemons(mountpoint: Path, among: Iterable[str] | None = None) -> list[int]:
    """The aisfs processes of this mountpoint; the one that serves it comes first, and its keeper last.

    To look at each of hundreds of processes takes as long as a tenth of a mount: who can tells `among` which they are.
    """
    wanted = os.fsencode(mountpoint)
    found = []
    for name in os.listdir("/proc") if among is None else among:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        entry = Path("/proc", name)
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            if wanted not in arguments or not _is_alive(int(entry.name)):
                continue
            is_keeper = any(word.endswith(b"/keeper.py") for word in arguments)
            if b"mount" in arguments or is_keeper:
                found.append((is_keeper, not _holds_fuse(entry), int(entry.name)))
        except OSError:
            continue  # it has ended meanwhile
    return [pid for _, _, pid in sorted(found)]


def _holds_fuse(entry: Path) -> bool:
    for fd in (entry / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile; the process is there all the same
            if os.readlink(fd) == "/dev/fuse":
                return True
    return False


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def _reap(process: Started) -> None:
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"process {process.pid} cannot be killed") from None


def _unescape(name: bytes) -> bytes:
    return _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), name)
