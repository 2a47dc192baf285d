"""What the kernel may believe of a directory that can change, and how it learns that it may not.

The kernel keeps a listing until the directory's mtime differs from the one it saw when it listed.
In a mount that is only read, the kernel opens directories without asking. So the mtime we show changes
exactly when the listing that the kernel holds stops being believed, and its attributes may be kept until
then and no longer: it drops the listing by itself, without being told and without asking before.

    mtime while listing k is believed = when listing k-1 stopped being believed

In a mount that can be written, the mtime tells programs when an entry changed. There the kernel asks
whenever a directory is opened, and is told then whether to drop what it holds (`take_expired`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.threads import any_thread


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One listing that the kernel may hold. Seconds of the clock."""

    since: float | None
    """When the one before stopped being believed; None for the first."""
    until: float
    expires: float
    """`until` as it was at first: tells this listing from the next."""


MISSING_MAX = 100_000
"""Missing names that the kernel may keep at once, as many as `MetadataCache` keeps."""


@any_thread
class ListingValidity:
    """Directories by inode number, and the names that are missing in them."""

    def __init__(self, clock: Callable[[], float], list_ttl: float) -> None:
        """Know of no listing; one may be believed for `list_ttl` seconds."""
        self._clock = clock
        self.list_ttl = list_ttl
        self._lock = ranked_lock(Rank.LISTING_VALIDITY)
        self._turns: dict[int, _Epoch] = {}
        self._missing: dict[tuple[int, bytes], float] = {}
        """Until when the kernel keeps each, about in this order."""
        self.refreshes = 0
        """How often listings under way became too old to be kept by the kernel."""

    def listed(self, ino: int, expires: float) -> None:
        """Record that the kernel is given a listing which may be believed until `expires`."""
        with self._lock:
            before = self._turns.get(ino)
            if before is None:
                self._turns[ino] = _Epoch(None, expires, expires)
            elif before.expires != expires:
                since = min(before.until, self._clock())
                self._turns[ino] = _Epoch(since, expires, expires)

    def dropped(self, ino: int) -> None:
        """Record that the listing the kernel may hold turned out to be wrong."""
        with self._lock:
            turn = self._turns.get(ino)
            if turn is not None:
                until = min(turn.until, self._clock())
                self._turns[ino] = _Epoch(turn.since, until, turn.expires)

    def changed(self, ino: int) -> None:
        """Record that this mount changed an entry, of a directory whose mtime says so by this alone."""
        now = self._clock()
        with self._lock:
            turn = self._turns.get(ino, _Epoch(None, now, now))
            self._turns[ino] = _Epoch(turn.since, now, turn.expires)

    def refreshed(self, directories: Iterable[int]) -> None:
        """Record that no listing of some directories may be kept, nor the rest of one under way."""
        for ino in directories:
            self.dropped(ino)
        self.refreshes += 1

    def missing(self, ino: int, name: bytes, timeout: float) -> float:
        """Record that the kernel is told that a name is missing.

        Returns:
            The seconds it may keep that: `timeout`, or 0 when there would be too many to take back.
        """
        if not timeout:
            return 0.0
        now = self._clock()
        with self._lock:
            while len(self._missing) >= MISSING_MAX:
                oldest = next(iter(self._missing))
                if now < self._missing[oldest]:
                    return 0.0
                del self._missing[oldest]
            self._missing.pop((ino, name), None)
            self._missing[ino, name] = now + timeout
        return timeout

    def missing_names(self) -> list[tuple[int, bytes]]:
        """Return the directory and name of each missing name that the kernel may keep."""
        now = self._clock()
        with self._lock:
            return [place for place, until in self._missing.items() if now < until]

    def take_expired(self, ino: int) -> bool:
        """Return whether the kernel may hold a listing that is not believed any more.

        It is told once, since it could already hold another listing when it is told again.
        """
        with self._lock:
            turn = self._turns.get(ino)
            if turn is None or self._clock() < turn.until:
                return False
            del self._turns[ino]
            return True

    def forgotten(self, ino: int) -> None:
        """Forget a directory that the kernel forgot, and its listing with it."""
        with self._lock:
            self._turns.pop(ino, None)

    def of(self, ino: int, expires: float | None) -> tuple[float | None, float]:
        """Return since when the directory is as it is, None if always, and for how many seconds.

        Args:
            ino: The directory.
            expires: Until when its listing may be believed that the kernel would get if it asked
                now; None if it would have to be listed, and then be believed from that moment.
        """
        now = self._clock()
        ahead = self.list_ttl if expires is None else max(expires - now, 0.0)
        with self._lock:
            turn = self._turns.get(ino)
            if turn is None:
                return None, ahead
            if now < turn.until:
                return turn.since, turn.until - now
            return turn.until, ahead
