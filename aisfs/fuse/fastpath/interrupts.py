"""Requests whose caller wants to go: Ctrl-C must end a read that waits for a cluster.

The kernel says INTERRUPT for any signal, and the caller then gets what we answer. EINTR is right for
one that is being ended. It is wrong for a timer of a profiler or a child that ended: programs do not
expect `read` of a file, and never `stat`, to fail for that. So we look which signal is pending. The
kernel says it only once, so requests that were not ended are looked at again (`check`).
"""

import errno
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
        Opcode.READDIR,
        Opcode.READDIRPLUS,
        Opcode.ACCESS,
    }
)
"""Requests that leave nothing behind. Any other may happen although its caller was told EINTR."""
LISTING = frozenset({Opcode.READDIR, Opcode.READDIRPLUS})


class Interrupts:
    """Ends requests early."""

    def __init__(self, pending: Pending) -> None:
        """Look after the requests in `pending`."""
        self._pending = pending
        self._spared: set[int] = set()
        self.reply: Callable[[int, Reply], None] = lambda *_: None
        """Answers a request; set before the first one comes."""
        self.listing_left: Callable[[], None] = lambda: None
        """Told when a reader of a directory waits no more; likewise."""

    def interrupt(self, unique: int) -> None:
        """End a request if its caller is being ended, and else keep an eye on it. From the dispatcher."""
        request = self._pending.get(unique)
        if request is None or request.opcode not in ASKING:
            return
        if request.pid and is_ending(request.pid) is False:
            self._spared.add(unique)
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
            self._spared.discard(unique)
            self.interrupt(unique)
