"""Requests of the kernel that the dispatcher handed on, until they are answered.

The thread that takes a request out answers it, and no other does: its `pop` of a dict is one step of the
interpreter, so threads need no lock for it.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Request:
    """One request under way."""

    unique: int
    opcode: int
    pid: int
    """The process that waits for it; 0 when it is in another namespace."""
    since: float = field(default_factory=time.monotonic)
    cancel: Callable[[], None] | None = None
    """Ends the work on it. Called from any thread."""


class Pending:
    """The requests under way."""

    def __init__(self) -> None:
        """Start with none."""
        self._requests: dict[int, Request] = {}
        self.interrupted: dict[int, int] = {}
        """Requests answered with EINTR whose real answer is still to come, with their opcodes."""

    def __len__(self) -> int:
        return len(self._requests)

    def add(
        self, unique: int, opcode: int, pid: int, cancel: Callable[[], None] | None = None
    ) -> None:
        """Record a request before it is handed on."""
        self._requests[unique] = Request(unique, opcode, pid, cancel=cancel)

    def get(self, unique: int) -> Request | None:
        """Look at a request."""
        return self._requests.get(unique)

    def all(self) -> list[Request]:
        """Return all requests."""
        return list(self._requests.values())

    def take(self, unique: int) -> Request | None:
        """Take a request out to answer it; None when another thread did already."""
        return self._requests.pop(unique, None)

    def oldest(self) -> float | None:
        """Return since when the oldest request waits, in seconds of `time.monotonic`."""
        return min((request.since for request in self.all()), default=None)
