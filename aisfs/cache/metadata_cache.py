"""What is known about names, for as long as the user allows it to be believed.

A listing answers for all names in its directory during `list_ttl`; a single object that was asked
for by name is believed for `attr_ttl`, a name that was missing for `negative_ttl`. Seconds are
those of the clock given, so tests can move it. One lock, held for microseconds, guards all of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from cachetools import LRUCache, TTLCache

from aisfs.core.namespace.listing import Listed, Listing
from aisfs.model import Bucket
from aisfs.process.locks import Rank, ranked_lock
from aisfs.process.threads import any_thread

DirectoryId = tuple[Bucket, str]
"""A bucket and the prefix of a directory in it."""
NameId = tuple[Bucket, str, bytes]
"""A directory and a name in it."""

LISTED_ENTRIES_MAX = 4_000_000
"""Entries in all remembered listings together; about 0.4 KB each, so 1.6 GB at the very worst."""
NAMES_MAX = 100_000
"""Single names remembered; mountpoint-s3 bounds its negative cache alike."""

ValueT = TypeVar("ValueT")


class WouldWait(Enum):
    """The answer of a `try_…` that would have to ask the store; None is a name that is missing."""

    WOULD_WAIT = "would wait"


WOULD_WAIT = WouldWait.WOULD_WAIT


@dataclass(frozen=True, slots=True)
class Dated(Generic[ValueT]):
    """A value and the moment from which on it must be asked for again."""

    value: ValueT
    expires: float


@any_thread
class MetadataCache:
    """Listings, single names and missing names, each with its time to live in seconds."""

    def __init__(
        self,
        *,
        attr_ttl: float,
        list_ttl: float,
        negative_ttl: float,
        clock: Callable[[], float],
    ) -> None:
        """Remember nothing yet."""
        self._lock = ranked_lock(Rank.METADATA)
        self._clock = clock
        self._attr_ttl = attr_ttl
        self._list_ttl = list_ttl
        self._listings: LRUCache[DirectoryId, Dated[Listing]] = LRUCache(
            LISTED_ENTRIES_MAX, getsizeof=lambda dated: len(dated.value) + 1
        )
        self._found: TTLCache[NameId, Dated[Listed]] = TTLCache(NAMES_MAX, attr_ttl, clock)
        self._missing: TTLCache[NameId, bool] = TTLCache(NAMES_MAX, negative_ttl, clock)

    def listing(self, directory: DirectoryId) -> Dated[Listing] | None:
        """Give the listing of a directory while it may be believed."""
        dated = self.last_listing(directory)
        return dated if dated is not None and self._clock() < dated.expires else None

    def last_listing(self, directory: DirectoryId) -> Dated[Listing] | None:
        """Give the last listing of a directory however old; one that was dropped expired at -inf."""
        with self._lock:
            return self._listings.get(directory)

    def keep_listing(self, directory: DirectoryId, listing: Listing) -> Dated[Listing]:
        """Remember a complete listing; a directory too large to remember is given back only."""
        dated = Dated(listing, self._clock() + self._list_ttl)
        if len(listing) < LISTED_ENTRIES_MAX:
            with self._lock:
                self._listings[directory] = dated
        return dated

    def found(self, name: NameId) -> Dated[Listed] | None:
        """Give what a name asked for singly stood for."""
        with self._lock:
            return self._found.get(name)

    def keep_found(self, name: NameId, listed: Listed) -> Dated[Listed]:
        """Remember what a name stands for."""
        dated = Dated(listed, self._clock() + self._attr_ttl)
        with self._lock:
            self._found[name] = dated
            self._missing.pop(name, None)
        return dated

    def is_missing(self, name: NameId) -> bool:
        """Say whether the name was missing a moment ago."""
        with self._lock:
            return name in self._missing

    def keep_missing(self, name: NameId) -> None:
        """Remember that the name is missing."""
        with self._lock:
            self._missing[name] = True

    def drop(self, directory: DirectoryId, name: bytes | None = None) -> None:
        """Believe nothing about a directory, nor about one name in it, any more."""
        with self._lock:
            dated = self._listings.get(directory)
            if dated is not None:
                self._listings[directory] = Dated(dated.value, float("-inf"))
        if name is not None:
            self.forget((*directory, name))

    def forget(self, name: NameId) -> None:
        """Believe no longer what a name asked for singly stood for."""
        with self._lock:
            self._found.pop(name, None)
            self._missing.pop(name, None)
