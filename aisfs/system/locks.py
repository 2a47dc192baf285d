"""Ranked locks: a thread that holds one may wait only for locks of a higher rank.

So no deadlock of locks is possible. docs/CONCURRENCY.md describes each lock. Tests check the order
(`check_order`); otherwise these are Python's own locks.

Also directories and files that only their owner can read, whatever the umask: staged files exist nowhere else, and logs
name objects.
"""

import logging
import os
import threading
from enum import IntEnum, auto
from pathlib import Path
from types import TracebackType
from typing import Protocol

log = logging.getLogger(__name__)


class Rank(IntEnum):
    """Every lock, in the order in which they may be held together; the first is the outermost."""

    UNPACKED_PATHS = auto()
    NAMESPACE = auto()
    PUSHES = auto()
    DIRECTORY_ATTRIBUTES = auto()
    INODES = auto()
    JOURNAL = auto()
    CONTENT = auto()
    STAGED_RECORD = auto()
    STAGING_ROOM = auto()
    INDEXES = auto()
    MEMBER_READS = auto()
    UNPACKED_CONTENTS = auto()
    OPEN_OBJECTS = auto()
    READ_AHEAD = auto()
    ARRIVALS = auto()
    LISTING_VALIDITY = auto()
    METADATA = auto()
    CACHE_SYNC = auto()
    CACHE_LEDGER = auto()
    CACHE_LEDGER_READS = auto()
    CACHE_SEGMENTS = auto()
    CACHE_DIRECT_WRITES = auto()
    TRANSFORM_RESULTS = auto()
    HIDDEN_FILES = auto()
    UPLOAD_PROGRESS = auto()
    ORIGINALS = auto()
    READINESS = auto()
    UPLOAD_PACE = auto()
    SOCKETS = auto()
    METRICS_CONNECTIONS = auto()


class Lock(Protocol):
    """What is used of `threading.Lock`."""

    def acquire(self, blocking: bool = True) -> bool:
        """Return whether it was taken."""
        ...

    def release(self) -> None:
        """Release it."""
        ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class RankedLock:
    """A lock that fails when a thread waits for it out of order."""

    def __init__(self, rank: Rank, *, again: bool) -> None:
        """Start unheld. `again` makes it reentrant."""
        self._rank = rank
        self._again = again
        self._lock: Lock = threading.RLock() if again else threading.Lock()

    def acquire(self, blocking: bool = True) -> bool:
        """Return whether it was taken.

        Raise AssertionError if waiting for it is out of order. Not waiting is always in order.
        """
        held = _held_locks()
        if blocking and held and not (self._again and self in held):
            highest = max(lock._rank for lock in held)
            if highest >= self._rank:
                message = f"{self._rank.name} waited for while {highest.name} is held"
                log.critical("locks out of order: %s", message)
                raise AssertionError(message)
        taken = self._lock.acquire(blocking)
        if taken:
            held.append(self)
        return taken

    def release(self) -> None:
        """Release it."""
        _held_locks().remove(self)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


_of_thread = threading.local()
_checking = False


def _held_locks() -> list[RankedLock]:
    try:
        held: list[RankedLock] = _of_thread.held
    except AttributeError:
        held = _of_thread.held = []
    return held


def check_order() -> None:
    """Make all locks created from now on check the order."""
    global _checking
    _checking = True


def ranked_lock(rank: Rank) -> Lock:
    """Return a new lock."""
    return RankedLock(rank, again=False) if _checking else threading.Lock()


def ranked_rlock(rank: Rank) -> Lock:
    """Return a new reentrant lock."""
    return RankedLock(rank, again=True) if _checking else threading.RLock()


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents, unless it exists.

    Raises:
        OSError: it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """Open a file for `open`; only its owner can read a new one."""
    return os.open(path, flags, 0o600)
