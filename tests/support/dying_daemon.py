"""Kills a daemon when it notes something for the next one for the so-manieth time, just before or after: `DIES_AT_NOTE`."""

import os
import signal
from itertools import count

from aisfs.filesystem.takeover import NumberLog

DIES_AT = "DIES_AT_NOTE"
"""Twice the number, and 1 more for after; then perhaps a colon, and what is in each note that counts."""
_append = NumberLog._append
_calls = count(1)


def _dying_append(log: NumberLog, record: bytes) -> None:
    """Note, or die."""
    point, _, text = os.environ.get(DIES_AT, "0").partition(":")
    wanted, after = divmod(int(point), 2)
    now = text.encode() in record and next(_calls) == wanted
    if now and not after:
        os.kill(os.getpid(), signal.SIGKILL)
    _append(log, record)
    if now:
        os.kill(os.getpid(), signal.SIGKILL)


NumberLog._append = _dying_append  # type: ignore[method-assign]
