"""Which requests are logged: with debug every one, and who answered it; else only those that were slow.

One for the process, as the levels of `logging` are. A request that is not logged costs a comparison.
"""

import logging
import math
from contextvars import ContextVar
from functools import partial
from typing import Any

from aisfs.process.threads import any_thread

MEMORY, DISK, NETWORK, STAGING = "memory", "disk cache", "network", "staging directory"
"""Who can have answered. A request of the kernel that needed none of the others was answered by memory."""

_answerers: ContextVar[set[str] | None] = ContextVar("answerers", default=None)
"""Of the request that this task or thread works on."""


@any_thread
class RequestLog:
    """Logs requests of the kernel and of the store when they are done."""

    __slots__ = ("_slow", "detailed", "least")

    def __init__(self) -> None:
        """Log none."""
        self.detailed = False
        """Whether all requests are logged, with who answered them."""
        self.least = self._slow = math.inf
        """Seconds from which requests are to be handed to `done`."""

    def configure(self, *, slow: float, detailed: bool) -> None:
        """Log requests that take `slow` seconds (0: none because of that), or all of them."""
        self._slow = slow or math.inf
        self.detailed = detailed
        self.least = 0.0 if detailed else self._slow

    def begin(self) -> None:
        """Begin with a request of the kernel: collect who answers."""
        if self.detailed:
            _answerers.set(set())

    def note(self, *answerers: str) -> None:
        """Note who answered the current request, or a part of it."""
        if self.detailed and (found := _answerers.get()) is not None:
            found.update(answerers)

    def noted(self) -> set[str]:
        """Return who answered the current request so far; what is noted later is added to it."""
        return (_answerers.get() if self.detailed else None) or set()

    def answered(self, log: logging.Logger, operation: str, subject: str, seconds: float) -> None:
        """Log a request of the kernel that took `least` seconds."""
        answerers = ", ".join(sorted(self.noted())) or MEMORY if self.detailed else None
        self.done(log, operation, subject, seconds, answerers)

    def done(
        self,
        log: logging.Logger,
        operation: str,
        subject: str,
        seconds: float,
        answerers: str | None = None,
    ) -> None:
        """Log a request that took `least` seconds.

        Args:
            log: The caller's logger.
            operation: What was asked for.
            subject: What it is about.
            seconds: How long it took.
            answerers: Who answered, if that is known.
        """
        slow = seconds >= self._slow
        fields: dict[str, Any] = {"operation": operation, "subject": subject, "seconds": seconds}
        write = partial(log.log, logging.INFO if slow else logging.DEBUG)
        start = "slow request: " if slow else ""
        if answerers is None:
            write("%s%s of %s took %.6f s", start, operation, subject, seconds, extra=fields)
            return
        fields["answered_by"] = answerers
        text = "%s%s of %s took %.6f s, answered by %s"
        write(text, start, operation, subject, seconds, answerers, extra=fields)


request_log = RequestLog()
