"""Keeps the last warnings and errors of a daemon, and passes those of its start on."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from aisfs.redaction import shown

KEPT = 20
"""Different texts; `aisfs status` shows them all, on one screen."""
TEXT_MAX = 700
"""Characters of each: together they fit into an extended attribute, which takes 64 KiB."""


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning, and how often it came."""

    time: float
    """Of the last time, in seconds since the epoch."""
    level: str
    text: str
    count: int


class RecentWarnings(logging.Handler):
    """A log handler that remembers the last different texts from WARNING up, without secrets."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        super().__init__(logging.WARNING)
        self.listener: Callable[[str, str], None] | None = None
        """Told of the level and text of each that is not among those remembered."""
        self._found: dict[str, Warned] = {}

    def attach(self) -> None:
        """Receive what all modules log from now on."""
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Remember a record. The caller holds this handler's lock."""
        try:
            line = record.getMessage().encode(errors="backslashreplace").decode()
            text = " ".join(shown(line).split())
            text = text[: TEXT_MAX - 1] + "…" if len(text) > TEXT_MAX else text
            known = self._found.pop(text, None)
            level = record.levelname.lower()
            count = known.count + 1 if known is not None else 1
            self._found[text] = Warned(time.time(), level, text, count)
            if len(self._found) > KEPT:
                del self._found[next(iter(self._found))]
            if known is None and self.listener is not None:
                self.listener(level, text)
        except Exception:  # noqa: BLE001 - what is logged must not fail what logs
            self.handleError(record)

    def all(self) -> list[Warned]:
        """Return what is remembered, the oldest first."""
        self.acquire()
        try:
            return list(self._found.values())
        finally:
            self.release()
