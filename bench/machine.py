"""What a run was made on, so that two of them are compared only when they may be."""

import os
import platform
import shutil
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench import reclaim
from bench.server import REPOSITORY

PACKAGES = (
    "aisfs", "pyfuse3", "trio", "requests", "urllib3", "gunicorn", "aistore", "webdataset",
    "torch", "ratarmountcore",
)  # fmt: skip


def describe(directory: Path) -> dict[str, Any]:
    """Describe machine and software.

    Args:
        directory: where the run keeps its data; its disk and file system count.
    """
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
            "kernel": platform.release(),
            "system": _system(),
            "file_system": _file_system(directory),
            "load": os.getloadavg()[0],
            "reclaim": reclaim.describe(),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: _package(name) for name in PACKAGES},
            "fusermount3": _first_line("fusermount3", "--version"),
            "curl": _first_line("curl", "--version"),
            "rclone": _first_line("rclone", "version"),
            "s3fs": _first_line("s3fs", "--version"),
        },
        "git": git_state(),
    }


def git_state() -> str:
    """Give the commit, with `+changes` when the tree is not that commit."""
    commit = _git("rev-parse", "--verify", "--quiet", "HEAD") or "no commit"
    return f"{commit}{'+changes' if _git('status', '--porcelain') else ''}"


def _git(*words: str) -> str:
    command = ["git", "--no-optional-locks", *words]
    with suppress(OSError):
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=REPOSITORY, timeout=60
        )
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _system() -> str:
    with suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    return ""


def _file_system(directory: Path) -> str:
    best, found = -1, "unknown"
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        fields, _, rest = line.partition(" - ")
        where = fields.split()[4]
        if len(where) > best and directory.is_relative_to(where):
            best, found = len(where), rest.split()[0]
    return found


def _package(name: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(name)
    return None


def _first_line(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=20,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        lines = (done.stdout or done.stderr).strip().splitlines()
        return lines[0][:120] if lines else None
    return None
