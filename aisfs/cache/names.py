"""Listings and names in memory, each for its time to live, and one fetch of each for all callers.

A listing answers for all names in its directory during `list_ttl`, a single object that was looked
up for `attr_ttl`, a name that was missing for `negative_ttl`. Seconds are those of a given clock,
which tests can move. One lock, held for microseconds, guards everything.

The first caller for a key starts the fetch as a task of the service nursery (`SingleFlight`), and waits for it like
every later caller. So a caller that is cancelled does not disturb the others. A failure is raised in
all callers that wait, and is then forgotten: the next caller starts again.
"""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Generic, TypeVar

import msgspec
import trio
from cachetools import LRUCache, TTLCache

from aisfs.core.names.listing import Listed, Listing
from aisfs.errors import Unavailable, untraced
from aisfs.model import Bucket
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.logs import request_log
from aisfs.system.threads import any_thread

DirectoryId = tuple[Bucket, str]
"""A bucket and the prefix of a directory in it."""
NameId = tuple[Bucket, str, bytes]
"""A directory and a name in it."""

LISTED_ENTRIES_MAX = 4_000_000
"""Entries in all listings together; some 0.4 KB each, so 1.6 GB at worst."""
NAMES_MAX = 100_000
"""Single names, as many as mountpoint-s3 keeps in its negative cache."""

ValueT = TypeVar("ValueT")


class WouldWait(Enum):
    """The answer of a `try_…` that would have to ask the store; None is a name that is missing."""

    WOULD_WAIT = "would wait"


WOULD_WAIT = WouldWait.WOULD_WAIT


class Dated(msgspec.Struct, Generic[ValueT], frozen=True):
    """A value and the time at which it expires."""

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
        """Start empty."""
        self._lock = ranked_lock(Rank.METADATA)
        self._clock = clock
        self._attr_ttl = attr_ttl
        self._list_ttl = list_ttl
        self._listings: LRUCache[DirectoryId, Dated[Listing]] = LRUCache(
            LISTED_ENTRIES_MAX, getsizeof=lambda dated: len(dated.value) + 1
        )
        self._found: TTLCache[NameId, Dated[Listed]] = TTLCache(NAMES_MAX, attr_ttl, clock)
        self._missing: TTLCache[NameId, bool] = TTLCache(NAMES_MAX, negative_ttl, clock)

    def set_ttls(self, *, attr_ttl: float, list_ttl: float, negative_ttl: float) -> None:
        """Use other times to live; what was found by name is forgotten, listings end sooner if they must."""
        latest = self._clock() + list_ttl
        with self._lock:
            self._attr_ttl, self._list_ttl = attr_ttl, list_ttl
            self._found = TTLCache(NAMES_MAX, attr_ttl, self._clock)
            self._missing = TTLCache(NAMES_MAX, negative_ttl, self._clock)
            for directory, dated in list(self._listings.items()):
                self._listings[directory] = Dated(dated.value, min(dated.expires, latest))

    def listing(self, directory: DirectoryId) -> Dated[Listing] | None:
        """Return the listing of a directory, unless it has expired."""
        dated = self.last_listing(directory)
        return dated if dated is not None and self._clock() < dated.expires else None

    def last_listing(self, directory: DirectoryId) -> Dated[Listing] | None:
        """Return the last listing of a directory, however old; a dropped one expired at -inf."""
        with self._lock:
            try:
                return self._listings[directory]  # `get` looks for it twice
            except KeyError:
                return None

    def keep_listing(
        self, directory: DirectoryId, listing: Listing, since: float
    ) -> Dated[Listing]:
        """Keep a complete listing of this time, unless it is too large, and return it with its expiry."""
        dated = Dated(listing, since + self._list_ttl)
        if len(listing) < LISTED_ENTRIES_MAX:
            with self._lock:
                self._listings[directory] = dated
        return dated

    def keep_order(self, directory: DirectoryId, listing: Listing, *, dropped: bool) -> None:
        """Keep what the next listing of a directory is ordered like, and what nobody may believe, or it has been `dropped`."""
        if len(listing) < LISTED_ENTRIES_MAX:
            expires = float("-inf") if dropped else self._clock() - 1
            with self._lock:
                self._listings[directory] = Dated(listing, expires)

    def found(self, name: NameId) -> Dated[Listed] | None:
        """Return what a single lookup of a name found, unless that has expired."""
        with self._lock:
            return self._found.get(name)

    def keep_found(self, name: NameId, listed: Listed) -> Dated[Listed]:
        """Keep what a single lookup of a name found."""
        dated = Dated(listed, self._clock() + self._attr_ttl)
        with self._lock:
            self._found[name] = dated
            self._missing.pop(name, None)
        return dated

    def is_missing(self, name: NameId) -> bool:
        """Return whether a lookup found the name missing, not longer ago than its time to live."""
        with self._lock:
            return name in self._missing

    def keep_missing(self, name: NameId) -> None:
        """Keep that the name is missing."""
        with self._lock:
            self._missing[name] = True

    def drop(self, directory: DirectoryId, name: bytes | None = None) -> None:
        """Expire the listing of a directory, and what is known of one name in it."""
        with self._lock:
            dated = self._listings.get(directory)
            if dated is not None:
                self._listings[directory] = Dated(dated.value, float("-inf"))
        if name is not None:
            self.forget((*directory, name))

    def drop_all(self, within: Callable[[DirectoryId], bool]) -> None:
        """Expire the listings of some directories, and forget all single names in them."""
        with self._lock:
            for directory, dated in list(self._listings.items()):
                if within(directory):
                    self._listings[directory] = Dated(dated.value, float("-inf"))
            for names in (self._found, self._missing):
                for bucket, prefix, name in list(names):
                    if within((bucket, prefix)):
                        names.pop((bucket, prefix, name), None)

    def forget(self, name: NameId) -> None:
        """Forget what a single lookup of a name found."""
        with self._lock:
            self._found.pop(name, None)
            self._missing.pop(name, None)


KeyT = TypeVar("KeyT")


class _Flight(Generic[ValueT]):
    __slots__ = ("answerers", "done", "error", "scope", "value", "waiting")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.scope = trio.CancelScope()
        self.waiting = 0
        self.answerers = request_log.noted()
        self.value: list[ValueT] = []
        self.error: Exception | None = None


class SingleFlight(Generic[KeyT, ValueT]):
    """Shares the results of fetches that are under way."""

    def __init__(self, nursery: trio.Nursery, *, wanted_only: bool = False) -> None:
        """Run fetches in `nursery`; with `wanted_only` a fetch ends when its last caller is cancelled."""
        self._nursery = nursery
        self._wanted_only = wanted_only
        self._flights: dict[KeyT, _Flight[ValueT]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._flights

    def detach(self) -> None:
        """Let the next caller for any key start a new fetch; those that wait get what they wait for."""
        self._flights.clear()

    async def fetch(self, key: KeyT, work: Callable[[], Awaitable[ValueT]]) -> ValueT:
        """Return what `work` returns, or join the flight already under way for `key`.

        Raises:
            Exception: whatever `work` raised; each waiter gets a copy of the error.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight()
            self._nursery.start_soon(self._run, key, flight, work)
        flight.waiting += 1
        try:
            await flight.done.wait()
        finally:
            flight.waiting -= 1
            if self._wanted_only and not flight.waiting and not flight.done.is_set():
                flight.scope.cancel()
                self._forget(key, flight)
        request_log.note(*flight.answerers)
        if flight.error is not None:
            raise untraced(flight.error)
        return flight.value[0]

    async def _run(
        self, key: KeyT, flight: _Flight[ValueT], work: Callable[[], Awaitable[ValueT]]
    ) -> None:
        try:
            with flight.scope:
                flight.value.append(await work())
        except Exception as error:  # noqa: BLE001 - raised in all callers that wait
            flight.error = untraced(error)
        finally:
            self._forget(key, flight)
            if not flight.value and flight.error is None:
                flight.error = Unavailable("the mount is ending")
            flight.done.set()

    def _forget(self, key: KeyT, flight: _Flight[ValueT]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
