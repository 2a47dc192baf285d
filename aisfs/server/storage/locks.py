"""Reader-writer locks by object name, as AIStore's targets keep them.

A GET holds its object for reading until the last byte is sent, and every change to the object waits
for that. Readers pass a waiting writer (as in AIStore), so a writer can starve. There is no
deadlock, because one request takes at most two locks, always in key order.
"""

import threading
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class _Holders:
    readers: int = 0
    writing: bool = False
    waiting: int = 0


class ObjectLocks:
    """All locks of a server; an entry exists only while a request holds or wants it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: dict[Hashable, _Holders] = {}

    @contextmanager
    def writing(self, *names: Hashable) -> Iterator[None]:
        """Hold all these objects exclusively; in one order everywhere, so that two never cross."""
        with ExitStack() as held:
            for name in sorted(set(names), key=repr):
                held.enter_context(self._holding(name, exclusive=True))
            yield

    @contextmanager
    def trying_to_write(self, name: Hashable) -> Iterator[bool]:
        """Hold one object exclusively if nobody holds it now; yield whether that is so."""
        with self._changed:
            is_free = name not in self._held
            if is_free:
                self._held[name] = _Holders(writing=True)
        try:
            yield is_free
        finally:
            if is_free:
                self._release(name, exclusive=True)

    @contextmanager
    def reading(self, name: Hashable) -> Iterator[None]:
        """Hold one object for reading."""
        with self._holding(name, exclusive=False):
            yield

    def state(self, name: Hashable) -> str:
        """Return `free`, `read` or `write`."""
        with self._changed:
            held = self._held.get(name, _Holders())
            return "write" if held.writing else "read" if held.readers else "free"

    @contextmanager
    def _holding(self, name: Hashable, *, exclusive: bool) -> Iterator[None]:
        with self._changed:
            held = self._held.setdefault(name, _Holders())
            held.waiting += 1
            try:
                while held.writing or (exclusive and held.readers):
                    self._changed.wait()
            finally:
                held.waiting -= 1
            held.writing = exclusive
            held.readers += not exclusive
        try:
            yield
        finally:
            self._release(name, exclusive=exclusive)

    def _release(self, name: Hashable, *, exclusive: bool) -> None:
        with self._changed:
            held = self._held[name]
            held.writing = False  # a reader never holds an object that is being written
            held.readers -= not exclusive
            if held.waiting:
                self._changed.notify_all()
            elif not held.readers:
                del self._held[name]
