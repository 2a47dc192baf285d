"""Requests whose caller is being ended: Ctrl-C must end a program that waits for a cluster.

The kernel says INTERRUPT for any signal, and the caller then gets what we answer. EINTR is right only
for one that is being ended. It is wrong for a signal that the program handles, such as the timer of a
profiler: programs do not expect `read` of a file, and never `stat`, to fail for that, and the kernel
does not repeat the call. So we look which signal is pending. The kernel says it only once, so requests
that were not ended are looked at again (`check`).
"""

import errno
import time
from collections.abc import Callable

from aisfs.fuse.callers import is_ending
from aisfs.fuse.fastpath.dispatcher import Reply
from aisfs.fuse.fastpath.pending import Pending
from aisfs.fuse.wire import abi
from aisfs.fuse.wire.abi import Opcode

ASKING = frozenset(
    {
        Opcode.LOOKUP,
        Opcode.GETATTR,
        Opcode.READLINK,
        Opcode.READ,
        Opcode.STATFS,
        Opcode.GETXATTR,
        Opcode.LISTXATTR,
        Opcode.OPENDIR,
        Opcode.READDIR,
        Opcode.READDIRPLUS,
        Opcode.ACCESS,
    }
)
"""Requests that leave nothing behind. Any other may happen although its caller was told EINTR."""
LISTING = frozenset({Opcode.OPENDIR, Opcode.READDIR, Opcode.READDIRPLUS})
UNSEEN_SECONDS = 10.0
"""How long after a signal the request of a program is answered whose signals cannot be seen, since it
is in another PID namespace. A program that handles the signal nearly always has its answer by then; one
that was killed waits this long."""


class Interrupts:
    """Ends requests early."""

    def __init__(self, pending: Pending) -> None:
        """Look after the requests in `pending`."""
        self._pending = pending
        self._spared: dict[int, float] = {}
        """Requests that were interrupted and go on, and since when, in seconds of `time.monotonic`."""
        self.reply: Callable[[int, Reply], None] = lambda *_: None
        """Answers a request; set before the first one comes."""
        self.listing_left: Callable[[], None] = lambda: None
        """Told when a reader of a directory waits no more; likewise."""

    def interrupt(self, unique: int) -> None:
        """End a request if its caller is being ended, and else keep an eye on it. From the dispatcher."""
        self._look_at(unique, time.monotonic())

    def _look_at(self, unique: int, since: float) -> None:
        request = self._pending.get(unique)
        if request is None or request.opcode not in ASKING:
            return
        ending = is_ending(request.pid) if request.pid else None
        if ending is None:
            ending = time.monotonic() - since >= UNSEEN_SECONDS
        if not ending:
            self._spared[unique] = since
            return
        opcode = request.opcode
        if request.cancel is None:  # pyfuse3 will answer all the same, and may have counted
            self._pending.interrupted[unique] = opcode
        if self._pending.take(unique) is None:
            self._pending.interrupted.pop(unique, None)
            return
        self.reply(opcode, (abi.error_reply(unique, errno.EINTR),))
        if request.cancel is not None:
            request.cancel()
        if opcode in LISTING:
            self.listing_left()

    def check(self) -> None:
        """Look again at requests that were interrupted and go on; not in the dispatcher."""
        for unique in list(self._spared):
            self._look_at(unique, self._spared.pop(unique))
