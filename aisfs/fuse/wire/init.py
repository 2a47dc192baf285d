"""INIT, when the mount begins: what the kernel can, and what it is asked to do.

pyfuse3 negotiates; here it is made to ask for what the fast path expects.
"""

from collections.abc import Callable

from aisfs.fuse.wire import abi
from aisfs.fuse.wire.abi import InitFlag


class Negotiation:
    """The one INIT of a mount."""

    def __init__(
        self,
        on_offer: Callable[[InitFlag], None],
        *,
        without: InitFlag,
        wanted: InitFlag,
        max_message: int,
        background: int,
    ) -> None:
        """Wait for it.

        Args:
            on_offer: Told once what the kernel can.
            without: What pyfuse3 asks the kernel to do, and the handlers do not expect.
            wanted: What it does not know to ask for, and the handlers do expect, if offered.
            max_message: Bytes of data that a message to pyfuse3 or back may carry.
            background: Requests that the kernel may send without waiting for answers.
        """
        self._on_offer = on_offer
        self._without = without
        self._wanted = wanted
        self._offered = InitFlag(0)
        self._max_message = max_message
        self._background = background

    def offered(self, message: memoryview) -> None:
        """Record the kernel's request."""
        self._offered = abi.init_flags(message)
        self._on_offer(self._offered)

    def agreed(self, message: memoryview) -> bytes:
        """Return pyfuse3's reply with what it does not know to ask for."""
        reply = abi.init_reply(message)
        flags = reply.all_flags & ~self._without | self._wanted & self._offered
        return abi.with_init(
            message,
            reply.with_flags(flags)._replace(
                max_background=self._background,
                congestion_threshold=self._background * 3 // 4,
                max_write=min(reply.max_write, self._max_message),
            ),
        )
