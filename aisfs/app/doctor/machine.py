"""Limits of this machine: open files, memory, the system's log."""

import resource
from collections.abc import Iterator

from aisfs.app.display.units import size_text
from aisfs.app.doctor.check import Check, note, ok, wrong
from aisfs.mount.memory import memory_limits
from aisfs.settings import MEMORY_LEAST, MIB, CacheSettings, log_directory
from aisfs.system.logs import SYSLOG_SOCKET
from aisfs.system.memory import MachineMemory

_FEW_FILES, _TOO_FEW_FILES = 4096, 1024
"""Connections to 32 targets at once and open cache files; below the second, reads fail early."""


def machine_checks(cache: CacheSettings) -> Iterator[Check]:
    """Check what a daemon needs to run."""
    yield _open_files()
    yield _memory(cache, MachineMemory())
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


def _memory(cache: CacheSettings, memory: MachineMemory) -> Check:
    available, limits = memory.available(), memory_limits(cache, memory)
    if available is None:
        return ok("memory", "unknown")
    limit = limits.fetched
    found = f"{size_text(max(0, available))} available; fetched bytes take up to {size_text(limit)}"
    if limits.why:
        found += f", as {limits.why}"
    if available < limit:
        least = max(MEMORY_LEAST, available // 2) // MIB
        return wrong("memory", found, f"mount with --memory-limit {least}MiB")
    return ok("memory", found)


def _log() -> Check:
    if SYSLOG_SOCKET.exists():
        return ok("system's log", f"{SYSLOG_SOCKET} takes the log of daemons")
    text = f"no {SYSLOG_SOCKET}: daemons log to {log_directory()} by default"
    return note("system's log", text, "mount with --log-file FILE to have it elsewhere")
