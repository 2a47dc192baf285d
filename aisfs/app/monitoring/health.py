"""Whether a mount serves, and whether its cluster answers."""

from collections.abc import Awaitable, Callable

import trio

from aisfs.errors import AisfsError
from aisfs.metrics import Metrics

PATIENCE_SECONDS = 2.0
"""How long the cluster may take; those who ask usually wait for less than ten seconds."""
KEPT_SECONDS = 5.0
"""How long an answer holds: however many ask, the cluster gets a small request in five seconds."""


class Health:
    """What a mount says when it is asked how it is. For the trio thread."""

    def __init__(self, metrics: Metrics, ping: Callable[[], Awaitable[None]] | None) -> None:
        """Take what asks the cluster for an answer, which is None if the mount needs no cluster."""
        self.metrics = metrics
        self.is_ready = False
        """Whether the mount is up."""
        self._ping = ping
        self._problem = ""
        self._until = float("-inf")

    async def problem(self) -> str:
        """Return what is wrong, in one line; empty if nothing is."""
        if not self.is_ready:
            return "the mount is not ready yet"
        if self._ping is not None and trio.current_time() >= self._until:
            self._problem = await self._ask(self._ping)
            self._until = trio.current_time() + KEPT_SECONDS
        return self._problem

    async def _ask(self, ping: Callable[[], Awaitable[None]]) -> str:
        with trio.move_on_after(PATIENCE_SECONDS):
            try:
                await ping()
            except AisfsError as error:
                return " ".join(str(error).split())
            return ""
        return f"the cluster did not answer within {PATIENCE_SECONDS:g} seconds"
