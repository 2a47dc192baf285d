"""The process behind a request: is it being ended?"""

import signal
from pathlib import Path

ENDING = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGKILL, signal.SIGALRM}
)
"""Signals that end what a program is doing. SIGALRM is how programs give up waiting."""
_PENDING = (b"SigPnd:", b"ShdPnd:")
_BLOCKED = b"SigBlk:"


def is_ending(pid: int) -> bool | None:
    """Return whether a signal that ends it waits for a thread; None when nothing is to be seen of it.

    It may be gone, or of another user where /proc hides those.
    """
    try:
        # Bytes: its first line is the name of the program, in whatever encoding that is.
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    waiting = blocked = 0
    for line in status.splitlines():
        if line.startswith(_PENDING):
            waiting |= int(line.split()[1], 16)
        elif line.startswith(_BLOCKED):
            blocked = int(line.split()[1], 16)
    return any((waiting & ~blocked) >> (number - 1) & 1 for number in ENDING)
