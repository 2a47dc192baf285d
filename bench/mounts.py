"""`aisfs mount` as a user runs it, always taken down again."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.interruptions import Interrupts
from bench.processes import NotMeasured, die_with_parent, kill_group
from bench.server import REPOSITORY

COMMAND = (sys.executable, "-m", "aisfs")
START_SECONDS = 60.0
STOP_SECONDS = 15.0


@dataclass
class Mount:
    """A mounted file system."""

    path: Path
    process: subprocess.Popen[bytes]
    seconds: float
    """From the start of the command until the first listing of the root."""

    def kill(self) -> None:
        """End the daemon, and its keeper, the hard way: whoever waits for it gets an error."""
        kill_group(self.process.pid)

    def requests(self) -> dict[str, float]:
        """Give how often the kernel has asked the daemon, and how often for bytes."""
        with suppress(OSError):
            text = os.getxattr(self.path, "user.aisfs.stats").decode()
            asked = re.findall(r'^aisfs_operations_total{.*operation="(\w+)"} (\S+)$', text, re.M)
            # Forgetting is not asking, and the attribute is our own question.
            counts = [(what, float(n)) for what, n in asked if "forget" not in what]
            return {
                "requests": sum(n for what, n in counts if what != "getxattr"),
                "reads": sum(n for what, n in counts if what == "read"),
            }
        return {}

    def costs(self) -> dict[str, float]:
        """Give what the daemon has used so far: seconds of processor, most memory in MB."""
        with suppress(OSError, ValueError, IndexError):
            about = json.loads(os.getxattr(self.path, "user.aisfs.about"))
            process = Path(f"/proc/{about['pid']}")  # what was started is perhaps its keeper
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            ticks = int(fields[11]) + int(fields[12])
            peak = re.search(r"VmHWM:\s+(\d+) kB", (process / "status").read_text())
            memory = int(peak[1]) / 1000 if peak else 0.0
            return {"daemon_cpu_s": ticks / os.sysconf("SC_CLK_TCK"), "daemon_mb": memory}
        return {}


@cache
def mount_options() -> frozenset[str]:
    """Give the long options that `aisfs mount` of this version knows."""
    done = subprocess.run(
        [*COMMAND, "mount", "--help-all"],
        check=False,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    return frozenset(re.findall(r"(?<!\S)--[a-z][a-z-]+", done.stdout))


def aisfs_command(
    source: str, path: Path, *, endpoint: str, cache_dir: Path, log: Path, options: Sequence[str]
) -> list[str]:
    """Give the command that mounts in the foreground, with a cache of its own if it has one."""
    command = [*COMMAND, "mount", "--foreground", source, str(path), "--endpoint", endpoint]
    command += ["--log-file", str(log), "--log-level", "warning", *options]
    if "--cache-dir" in mount_options():
        command += ["--cache-dir", str(cache_dir)]
    return command


@contextmanager
def mounted(
    command: Sequence[str], path: Path, *, home: Path, log: Path, interruptions: Interrupts
) -> Iterator[Mount]:
    """Run a command that stays and mounts at `path`; unmount when the block ends.

    Raises:
        NotMeasured: it does not mount.
    """
    process: subprocess.Popen[bytes] | None = None
    start = time.perf_counter()
    try:
        with interruptions.held(), log.open("ab") as stderr:
            process = subprocess.Popen(
                list(command),
                cwd=REPOSITORY,
                env=_environment(home),
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                preexec_fn=die_with_parent,
                start_new_session=True,
            )
        ended = process.poll
        _wait(lambda: is_mounted(path) or ended() is not None, START_SECONDS)
        if ended() is not None or not is_mounted(path):
            tail = log.read_text(errors="replace").strip().splitlines()
            raise NotMeasured(f"it did not mount: {tail[-1] if tail else 'no reason'}")
        os.listdir(path)
        yield Mount(path, process, time.perf_counter() - start)
    finally:
        if process is not None:
            _take_down(path, process)


def _take_down(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Unmount in rising order of force; a daemon told to end while it starts may mount yet."""
    if is_mounted(path):
        _fusermount("-u", path)
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None and process.poll() is None:
            process.send_signal(number)
        seconds = STOP_SECONDS if is_mounted(path) is False or number else 0.2
        if _wait(lambda: process.poll() is not None, seconds):
            break
    kill_group(process.pid)
    process.wait()
    if is_mounted(path):
        _fusermount("-uz", path)


def _fusermount(option: str, path: Path) -> None:
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            ["fusermount3", option, "--", path], check=False, capture_output=True, timeout=20
        )


def is_mounted(path: Path) -> bool:
    """Look into the mount table; a dead mount would not answer a stat."""
    wanted = str(path).replace("\\", "\\134").replace(" ", "\\040")
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    return any(line.split()[4] == wanted for line in lines)


def _environment(home: Path) -> dict[str, str]:
    """What a daemon sees: this `aisfs`, and nothing of the user's cluster or cache."""
    # Those of Amazon's libraries, which rclone reads too, mean another server.
    kept = {n: value for n, value in os.environ.items() if not n.startswith(("AIS_", "AWS_"))}
    return kept | {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
