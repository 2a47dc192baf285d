"""The temporary directory, the server and the mount: set up one by one, always taken down."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bench.interruptions import Interrupts
from demo.failures import DemoError
from demo.shell import Shell, kill_group, say

REPOSITORY = Path(__file__).resolve().parents[1]
BUCKET = "pets"
START_SECONDS = 60.0
"""A loaded two-core machine needs seconds for the imports alone."""
STOP_SECONDS = 10.0
_MARK = "AISFS_DEMO"
_KEPT = ("AIS_CLIENT_CA",)
"""What of the user's settings holds: whom a `--source` of the user's own is trusted by."""
_SOCKET = "/aisfs-demo-12345678/tmp/pymp-12345678/listener-12345678"
_LONGEST_SOCKET = 107
_VERSUS_PROXIES = "127.0.0.1,localhost"


class Stage:
    """Where the demo plays; get one from `stage()`."""

    def __init__(self, directory: Path, stack: ExitStack, interruptions: Interrupts) -> None:
        self.directory = directory
        self.mountpoint = directory / "mnt"
        self.shell = Shell(directory, _environment(directory), interruptions)
        self._stack = stack
        self._interruptions = interruptions
        self._server: subprocess.Popen[str] | None = None

    def start_server(self) -> str:
        """Run `aisfs serve` in the background.

        Returns:
            The URL where it answers.
        """
        (self.directory / "store").mkdir()
        command = "aisfs serve store --port 0"
        output = self.directory / "server"
        say(f"$ {command} &")
        with self._interruptions.held():
            server = self._server = self.shell.start(command, output=output)
            self._stack.callback(_stop, server)
        _wait(lambda: "\n" in output.read_text() or server.poll() is not None, START_SECONDS)
        url, newline, _ = output.read_text().partition("\n")
        if not newline:
            complaints = output.with_suffix(".err").read_text().strip().splitlines()
            reason = complaints[-1] if complaints else f"no URL in {START_SECONDS:.0f} seconds"
            raise DemoError(f"`{command}` failed: {reason}")
        say(url)
        return url

    def mount(self, source: str, endpoint: str | None, options: str = "") -> None:
        """Run `aisfs mount`, of a cluster or of whatever needs none."""
        if not self.mountpoint.exists():
            self.mountpoint.mkdir()
            self._stack.callback(_clear_mount, self.directory, self.mountpoint)
        where = f" --endpoint {endpoint}" if endpoint is not None else ""
        self.shell.run(f"aisfs mount {source} mnt{where} --log-file mount.log{options}")

    def unmount(self) -> None:
        """Run `aisfs umount`, as a user does, and see that it worked."""
        self.shell.run("aisfs umount mnt")
        if not _wait(lambda: not _marked(self.directory, b"mount"), STOP_SECONDS):
            raise DemoError("`aisfs umount mnt` left the process of the mount behind")

    def stop_server(self) -> None:
        """End the server as Ctrl-C in its terminal does.

        Raises:
            DemoError: it does not end, or had already ended.
        """
        assert self._server is not None, "start_server() comes first"
        ended = self._server.poll()
        if ended is not None:
            raise DemoError(f"the server had already ended with code {ended}")
        if _stop(self._server) not in (0, 128 + signal.SIGINT, -signal.SIGINT):
            raise DemoError(f"the server ended with code {self._server.returncode}")

    def keep(self) -> None:
        """Say how to end what runs, and leave it."""
        assert self._server is not None, "start_server() comes first"
        umount, directory = (
            shlex.quote(str(path))
            for path in (Path(sys.executable).with_name("aisfs"), self.directory)
        )
        say(
            f"\nFor a look around, ais://{BUCKET} stays mounted, writable:\n  {directory}/mnt\n"
            "These end the mount and the server:\n"
            f"  {umount} umount {directory}/mnt\n"
            f"  kill {self._server.pid} && rm -rf --one-file-system {directory}"
        )
        self._interruptions.end()
        self._stack.pop_all()

    def what_the_mount_said(self) -> str | None:
        """Give the last complaint in the mount's log."""
        with suppress(OSError):
            lines = (self.directory / "mount.log").read_text(errors="replace").splitlines()
            return next((x for x in reversed(lines) if " WARNING " in x or " ERROR " in x), None)
        return None


@contextmanager
def stage(interruptions: Interrupts) -> Iterator[Stage]:
    """Open a temporary directory; whatever happens, nothing of it is left behind."""
    stack = ExitStack()
    try:
        with interruptions.held():
            directory = Path(tempfile.mkdtemp(prefix="aisfs-demo-", dir=_base())).resolve()
            stack.callback(_remove, directory)
        (directory / "tmp").mkdir()
        yield Stage(directory, stack, interruptions)
    finally:
        try:
            interruptions.end()
        finally:  # an interruption at the very last moment changes nothing
            stack.close()


def _base() -> Path:
    """Choose where temporary directories go: where the user says, if sockets fit there too.

    torch's workers hand over their batches through sockets in TMPDIR; with a path that is too long
    for one they would wait for ever.
    """
    base = Path(tempfile.gettempdir()).resolve()
    return base if len(os.fsencode(base)) + len(_SOCKET) <= _LONGEST_SOCKET else Path("/tmp")


def _environment(directory: Path) -> dict[str, str]:
    """What commands see: this `aisfs`, nothing of the user's cluster, and a mark to find them by."""
    inherited = dict(os.environ)  # noqa: TID251 (aisfs.settings is for aisfs, this is a program)
    kept = {
        name: value
        for name, value in inherited.items()
        if name in _KEPT or not name.startswith("AIS_")
    }
    path = [str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]
    modules = [str(REPOSITORY), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join(modules),
        "PYTHONUNBUFFERED": "1",  # the losses appear as they are computed
        "TMPDIR": str(directory / "tmp"),  # torch makes a directory there and forgets it
        "XDG_CACHE_HOME": str(directory / "cache"),  # what the mount keeps is gone with the demo
        "XDG_STATE_HOME": str(directory / "state"),  # where it stages what is written
        "NO_PROXY": _VERSUS_PROXIES,
        "no_proxy": _VERSUS_PROXIES,
        _MARK: str(directory),
    }


def _stop(server: subprocess.Popen[str]) -> int:
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            server.wait(STOP_SECONDS)
    kill_group(server)  # its workers, should they have stayed
    return server.wait()


def _clear_mount(directory: Path, mountpoint: Path) -> None:
    """Take the mount down in rising order of force; in the normal course it is gone already.

    A daemon that was interrupted while it started may still be about to mount: it is told to stop
    too, and the mount table is read again after its end.
    """
    if _is_mounted(mountpoint):
        _fusermount("-u", mountpoint)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _marked(directory, b"mount"):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if _wait(lambda: not _marked(directory, b"mount"), STOP_SECONDS):
            break
    if _is_mounted(mountpoint):
        _fusermount("-uz", mountpoint)


def _fusermount(option: str, mountpoint: Path) -> None:
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            ["fusermount3", option, "--", mountpoint],
            check=False,
            capture_output=True,
            timeout=STOP_SECONDS,
        )


def _remove(directory: Path) -> None:
    if _is_mounted(directory / "mnt"):  # never delete through a mount
        print(f"demo: {directory}/mnt cannot be unmounted and stays", file=sys.stderr)
        return
    shutil.rmtree(directory, ignore_errors=True)


def _marked(directory: Path, word: bytes) -> list[int]:
    """Find our processes with `word` on their command line.

    A daemon leaves its session and its parent, but not the environment it was started with.
    """
    mark = f"{_MARK}={directory}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it has ended meanwhile, or is none of ours
            ours = mark in (entry / "environ").read_bytes().split(b"\0")
            if ours and word in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def _is_mounted(path: Path) -> bool:
    """Look into the mount table; a dead mount would not answer a stat."""
    wanted = str(path).replace("\\", "\\134").replace(" ", "\\040")
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    return any(line.split()[4] == wanted for line in lines)


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)  # noqa: TID251 (no event loop here)
    return True
