"""Ranges of content that readers wait for while it is made."""

from dataclasses import dataclass, field

import trio


@dataclass(slots=True, eq=False)
class WantedRange:
    """A range that a reader waits for."""

    start: int
    buffer: memoryview
    done: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + len(self.buffer)


def hand_over(wanted: WantedRange, position: int, data: memoryview) -> None:
    """Copy what of `data`, which starts at `position`, is wanted."""
    start = max(wanted.start, position)
    stop = min(wanted.stop, position + len(data))
    if start < stop:
        piece = data[start - position : stop - position]
        wanted.buffer[start - wanted.start : stop - wanted.start] = piece
        if stop == wanted.stop:
            wanted.done.set()


def fail_all(waiting: list[WantedRange], error: Exception) -> None:
    """Let all readers fail, and wait for none of them any more."""
    for wanted in waiting:
        wanted.error = error
        wanted.done.set()
    waiting.clear()
