"""The process behind a request: is it being ended?"""

import signal
from pathlib import Path

_HARMLESS = {
    signal.SIGCHLD,
    signal.SIGCONT,
    signal.SIGSTOP,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGURG,
    signal.SIGWINCH,
}
"""Signals that end no program that neither handles nor ignores them: signal(7)."""
_FATAL = (1 << 64) - 1 & ~sum(1 << (number - 1) for number in _HARMLESS)
_PENDING = (b"SigPnd:", b"ShdPnd:")
_SURVIVED = (b"SigBlk:", b"SigIgn:", b"SigCgt:")


def is_ending(pid: int) -> bool | None:
    """Return whether a signal that will end the program waits for a thread; None if that cannot be seen.

    A signal that the program handles ends nothing, whichever it is. Of most fatal signals the kernel
    makes a SIGKILL for each thread at once.

    `pid` names the thread. It may be hidden in /proc, or belong to another PID namespace.
    """
    try:
        # Bytes: its first line is the name of the program, in whatever encoding that is.
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    pending = survived = 0
    for line in status.splitlines():
        if line.startswith(_PENDING):
            pending |= int(line.split()[1], 16)
        elif line.startswith(_SURVIVED):
            survived |= int(line.split()[1], 16)
    return bool(pending & ~survived & _FATAL)
