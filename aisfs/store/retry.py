"""Attempts that are repeated until one succeeds, fails for good, or a deadline has passed.

Must not know: what an error means beyond `error.transient`.
"""

import itertools
import logging
import math
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from aisfs.errors import AisfsError, DeadlineExceeded, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE = 0.1
"""Seconds; about what a target needs to drop out of, or into, the cluster map."""
_LONGEST_PAUSE = 5.0
"""Seconds; a cluster that is back should not be left waiting for long."""


class Retrier:
    """Runs an attempt until it succeeds, fails for good, or a deadline has passed."""

    def __init__(
        self,
        *,
        deadline: float,
        rng: random.Random | None = None,
        on_retry: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the terms.

        Args:
            deadline: Seconds that a call may take in all, its retries included.
            rng: Where the jitter comes from.
            on_retry: Called before each attempt but the first of a call.
        """
        self._on_retry = on_retry
        self._deadline = deadline
        self._rng = rng or random.Random()

    async def run(
        self,
        subject: str,
        attempt: Callable[[], Awaitable[T]],
        *,
        final: Callable[[], bool] = lambda: False,
        movement: "ProgressDeadline | None" = None,
        cut: bool = True,
    ) -> T:
        """Run `attempt`.

        Args:
            subject: What it is about, in messages.
            attempt: One try.
            final: Asked after a failure: is no further try wanted?
            movement: Postpones the deadline, each time something new was achieved.
            cut: Cancel the attempt that is under way at the deadline.
        """
        movement = movement or ProgressDeadline()
        movement.begin(self._deadline)
        last: AisfsError | None = None
        for number in itertools.count(1):
            with movement.until_deadline() if cut else trio.CancelScope():
                try:
                    return await attempt()
                except AisfsError as error:
                    if not error.transient or final():
                        raise
                    last = error
            wanted = last.pause if isinstance(last, Unavailable) else 0.0
            pause = max(self._pause(number), wanted)
            if trio.current_time() + pause >= movement.deadline:
                break
            level = logging.INFO if number == 1 else logging.DEBUG
            log.log(level, "try %d failed, next in %.2f s: %s", number, pause, last)
            await trio.sleep(pause)
            self._on_retry()
        reason = f"last error: {last}" if last else "no answer at all"
        raise DeadlineExceeded(
            f"{subject}: given up after {self._deadline:g} s; {reason}"
        ) from last

    def _pause(self, number: int) -> float:
        # From half to the whole, so that clients thrown out together do not return together.
        longest = min(_FIRST_PAUSE * 2.0 ** min(number - 1, 16), _LONGEST_PAUSE)
        return longest * self._rng.uniform(0.5, 1.0)


class ProgressDeadline:
    """A deadline that is postponed whenever more was done than ever before."""

    def __init__(self, more: float = 0.0) -> None:
        """Take the seconds that are added to each span."""
        self._more = more
        self.deadline = math.inf
        self._span = math.inf
        self._most = 0
        self._scope = trio.CancelScope()

    def begin(self, span: float) -> None:
        """Start with a deadline `span` seconds from now."""
        self._span = span + self._more
        self.deadline = trio.current_time() + self._span

    def until_deadline(self) -> trio.CancelScope:
        """Return a scope that is cancelled then."""
        self._scope = trio.CancelScope(deadline=self.deadline)
        return self._scope

    def told(self, done: int) -> None:
        """Postpone it, if `done` is more than ever. Only in the trio thread."""
        if done > self._most:
            self._most = done
            self.deadline = self._scope.deadline = trio.current_time() + self._span
