"""Reader-writer locks by object name, as AIStore's targets keep them.

A GET holds its object for reading until the last byte has left; whatever changes the object waits
for that. Readers pass while a writer waits (as in AIStore), so a writer can starve but nobody
can deadlock: one request takes at most two locks, always in key order.
"""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class _Holders:
    readers: int = 0
    writing: bool = False
    waiting: int = 0


class ObjectLocks:
    """All locks of a server; an entry exists only while somebody holds or wants it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: dict[Hashable, _Holders] = {}

    def acquire_read(self, name: Hashable) -> None:
        """Wait until nobody writes the object, then hold it for reading."""
        with self._changed:
            held = self._wait_while(name, lambda h: h.writing)
            held.readers += 1

    def release_read(self, name: Hashable) -> None:
        """Give up one reader's hold."""
        with self._changed:
            held = self._held[name]
            held.readers -= 1
            self._forget(name, held)

    def acquire_write(self, name: Hashable) -> None:
        """Wait until nobody uses the object, then hold it alone."""
        with self._changed:
            held = self._wait_while(name, lambda h: h.writing or h.readers > 0)
            held.writing = True

    def release_write(self, name: Hashable) -> None:
        """Give up the sole hold."""
        with self._changed:
            held = self._held[name]
            held.writing = False
            self._forget(name, held)

    @contextmanager
    def writing(self, *names: Hashable) -> Iterator[None]:
        """Hold all these objects alone; in one order everywhere, so that two never cross."""
        taken: list[Hashable] = []
        try:
            for name in sorted(set(names), key=repr):
                self.acquire_write(name)
                taken.append(name)
            yield
        finally:
            for name in reversed(taken):
                self.release_write(name)

    @contextmanager
    def reading(self, name: Hashable) -> Iterator[None]:
        """Hold one object for reading."""
        self.acquire_read(name)
        try:
            yield
        finally:
            self.release_read(name)

    def state(self, name: Hashable) -> str:
        """Say `free`, `read` or `write`."""
        with self._changed:
            held = self._held.get(name)
            if held is None:
                return "free"
            return "write" if held.writing else "read" if held.readers else "free"

    def __len__(self) -> int:
        return len(self._held)

    def _wait_while(self, name: Hashable, busy: Callable[[_Holders], bool]) -> _Holders:
        held = self._held.get(name)
        if held is None:
            held = self._held[name] = _Holders()
        held.waiting += 1
        try:
            while busy(held):
                self._changed.wait()
        finally:
            held.waiting -= 1
        return held

    def _forget(self, name: Hashable, held: _Holders) -> None:
        if held.waiting:
            self._changed.notify_all()
        elif not held.readers and not held.writing:
            del self._held[name]
