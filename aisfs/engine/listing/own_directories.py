"""Directories that are there, or not, because of what this mount did, whatever the store lists.

A bucket has no empty directories. One that was made here, or emptied here, is kept in memory; and one
that was removed here is remembered, since AIStore goes on listing it.
"""

from collections import OrderedDict
from collections.abc import Callable

from cachetools import TTLCache

from aisfs.cache.names import DirectoryId
from aisfs.errors import OutOfSpace
from aisfs.model import Bucket

FRESH_SECONDS = 5.0
"""How long a directory that was made here counts as unknown to other clients: `cp -r` and `tar x` fill most
directories in this time. It is not longer, whatever the listing's time to live: others may write into it."""

HELD_MAX = 100_000
"""Empty directories that were made here, and as many that were emptied: some 50 MB in all."""

REMOVED_MAX = 10_000
"""Directories remembered, some 2 MB. Of the oldest the cluster's word counts again: they show as empty."""


class HeldDirectories:
    """Directories that the store does not have, or may not have."""

    def __init__(self, list_ttl: float, clock: Callable[[], float]) -> None:
        """Start without any; `list_ttl` is for how many seconds by `clock` a listing is believed."""
        fresh_seconds = min(list_ttl, FRESH_SECONDS)
        self._made: dict[DirectoryId, None] = {}
        self._fresh: TTLCache[DirectoryId, None] = TTLCache(HELD_MAX, fresh_seconds, clock)
        self._emptied: dict[DirectoryId, None] = {}
        """The one emptied first comes first."""

    def check_room(self, bucket: Bucket, prefix: str) -> None:
        """Make sure that one more may be made.

        Raises:
            OutOfSpace: there are too many with nothing in them.
        """
        if len(self._made) >= HELD_MAX:
            raise OutOfSpace(
                f"{bucket}/{prefix}: {HELD_MAX} directories that were made here are still empty; AIStore "
                "cannot store those, and they take memory: put something into them, or remove some"
            )

    def make(self, bucket: Bucket, prefix: str) -> None:
        """Keep a directory until something is put into it or it is removed."""
        self._emptied.pop((bucket, prefix), None)
        self._made[bucket, prefix] = self._fresh[bucket, prefix] = None

    def is_fresh(self, bucket: Bucket, prefix: str) -> bool:
        """Return whether a directory was made here so lately that nobody else has put anything into it.

        As sure as what was listed then; called with the lock of names held.
        """
        return (bucket, prefix) in self._fresh

    def empty(self, bucket: Bucket, prefix: str) -> DirectoryId | None:
        """Keep a directory from which a name was removed; return one that is dropped for it."""
        if (bucket, prefix) in self._made:
            return None
        self._emptied.pop((bucket, prefix), None)  # it goes to the end
        self._emptied[bucket, prefix] = None
        return next(iter(self._emptied)) if len(self._emptied) > HELD_MAX else None

    def let_go(self, bucket: Bucket, prefix: str) -> None:
        """Drop a directory."""
        self._made.pop((bucket, prefix), None)
        self._emptied.pop((bucket, prefix), None)

    def below(self, bucket: Bucket, prefix: str) -> list[str]:
        """Return those at and below `prefix`."""
        held = [*self._made, *self._emptied]
        return [place for at, place in held if at == bucket and place.startswith(prefix)]


class RemovedDirectories:
    """Names of removed directories, by the directory they were in."""

    def __init__(self) -> None:
        """Start without any."""
        self._within: OrderedDict[DirectoryId, set[bytes]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def within(self, directory: DirectoryId) -> set[bytes]:
        """Return the names removed in a directory."""
        return self._within.get(directory, set())

    def add(self, directory: DirectoryId, name: bytes) -> None:
        """Remember a directory that was removed."""
        names = self._within.setdefault(directory, set())
        self._within.move_to_end(directory)
        self._count += name not in names
        names.add(name)
        while self._count > REMOVED_MAX:
            oldest, some = next(iter(self._within.items()))
            some.pop()
            self._count -= 1
            if not some:
                del self._within[oldest]

    def discard(self, directory: DirectoryId, name: bytes) -> bool:
        """Forget a directory, which is there again; return whether it was remembered."""
        names = self._within.get(directory, set())
        if name not in names:
            return False
        names.remove(name)
        self._count -= 1
        if not names:
            del self._within[directory]
        return True
