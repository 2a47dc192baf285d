"""Ctrl-C and SIGTERM, at moments when they can do no harm."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Somebody asked the run to stop; no peer's `except Exception` may swallow that."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Interrupts:
    """Raises `Interrupted` at most once, and never inside `held()` or after `end()`.

    So what was started is on the list of what must be stopped before anything can interrupt, and
    stopping is not cut short by an impatient second Ctrl-C.
    """

    def __init__(self) -> None:
        self._holders = 0
        self._waiting: int | None = None
        self._over = False

    def begin(self) -> None:
        """Take over the signals that usually end a program."""
        for number in SIGNALS:
            signal.signal(number, self._arrived)

    def end(self) -> None:
        """Ignore them from here on."""
        self._over = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put off an interruption until the block has ended."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
        if self._waiting is not None and not self._holders:
            self._arrived(self._waiting, None)

    def _arrived(self, number: int, _: FrameType | None) -> None:
        if self._over:
            return
        if self._holders:
            self._waiting = number
            return
        self._over = True
        raise Interrupted(number)
