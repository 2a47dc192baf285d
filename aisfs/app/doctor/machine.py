"""Limits of this machine: open files, memory, the system's log."""

import re
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from aisfs.app.display.units import size_text
from aisfs.app.doctor.check import Check, note, ok, wrong
from aisfs.config import MIB, CacheSettings, log_directory
from aisfs.process.logs import SYSLOG_SOCKET

MEMORY = Path("/proc/meminfo")
CGROUP, CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")

_FEW_FILES, _TOO_FEW_FILES = 4096, 1024
"""Connections to 32 targets at once and open cache files; below the second, reads fail early."""


def machine_checks(cache: CacheSettings) -> Iterator[Check]:
    """Check what a daemon needs to run."""
    yield _open_files()
    yield _memory(int(cache.memory_limit))
    yield _log()


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return ok("open files", "no limit")
    found = f"limit {soft:,}, which the daemon raises up to {hard:,}"
    cure = (
        "raise the hard limit: ulimit -Hn 65536 as root, limits.conf, or LimitNOFILE= of the unit"
    )
    if hard < _TOO_FEW_FILES:
        return wrong("open files", f"hard limit of only {hard:,}", cure)
    return note("open files", found, cure) if hard < _FEW_FILES else ok("open files", found)


def _memory(limit: int) -> Check:
    available = _available()
    if available is None:
        return ok("memory", "unknown")
    found = f"{size_text(available)} available; fetched bytes take up to {size_text(limit)}"
    if available < limit:
        return wrong(
            "memory", found, f"mount with --memory-limit {max(16, available // MIB // 2)}MiB"
        )
    return ok("memory", found)


def _available() -> int | None:
    """Return the bytes that may still be taken, of the machine and of our cgroup."""
    found = []
    with suppress(OSError):
        line = re.search(r"^MemAvailable:\s*(\d+) kB$", MEMORY.read_text(), re.MULTILINE)
        found += [int(line[1]) << 10] if line else []
    with suppress(OSError, ValueError):
        group = re.search(r"^0::/(.*)$", CGROUP.read_text(), re.MULTILINE)
        if group:
            folder = CGROUPS / group[1]
            most = int((folder / "memory.max").read_text())  # or the word max
            found.append(max(0, most - int((folder / "memory.current").read_text())))
    return min(found, default=None)


def _log() -> Check:
    if SYSLOG_SOCKET.exists():
        return ok("system's log", f"{SYSLOG_SOCKET} takes the log of daemons")
    text = f"no {SYSLOG_SOCKET}: daemons log to {log_directory()} by default"
    return note("system's log", text, "mount with --log-file FILE to have it elsewhere")
