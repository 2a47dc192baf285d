"""The processes behind mounts, found without asking them."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROCESSES = Path("/proc")


class Daemon(NamedTuple):
    """A process that serves a mount."""

    pid: int
    stopped: bool
    """Whether it was stopped by a signal."""


def daemons() -> dict[str, Daemon]:
    """Return the daemon behind each mountpoint that a command line names."""
    found: dict[str, Daemon] = {}
    for entry in PROCESSES.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"mount" not in words:
                    continue
                state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                if state not in "ZX":
                    daemon = Daemon(int(entry.name), state in "Tt")
                    found |= {word.decode(errors="surrogateescape"): daemon for word in words}
    return found
