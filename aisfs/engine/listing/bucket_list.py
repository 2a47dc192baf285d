"""All buckets, listed within the time to live."""

from collections.abc import Callable

import trio

from aisfs.cache.names import Dated, SingleFlight
from aisfs.model import Bucket
from aisfs.stores.port import ObjectStore
from aisfs.system.threads import any_thread


class BucketList:
    """The buckets that the token may list, sorted."""

    def __init__(
        self,
        store: ObjectStore,
        nursery: trio.Nursery,
        *,
        list_ttl: float,
        clock: Callable[[], float],
    ) -> None:
        """List through `store`; shared requests run in `nursery`."""
        self._store = store
        self.list_ttl = list_ttl
        self._clock = clock
        self._requests: SingleFlight[str, Dated[list[Bucket]]] = SingleFlight(nursery)
        self._latest: Dated[list[Bucket]] | None = None
        self._forgotten = 0
        """How often the list was forgotten."""

    async def get(self) -> Dated[list[Bucket]]:
        """Return all buckets.

        Raises:
            AccessDenied: the token may list none; single buckets may still be open to it.
        """
        return self.try_get() or await self._requests.fetch("", self._list)

    @any_thread
    def try_get(self) -> Dated[list[Bucket]] | None:
        """Return all buckets if the list may be believed. Does not wait."""
        latest = self._latest
        return latest if latest is not None and self._clock() < latest.expires else None

    def forget(self) -> None:
        """List anew next time; nor is a list kept that is under way."""
        self._forgotten += 1
        self._latest = None
        self._requests.detach()

    async def _list(self) -> Dated[list[Bucket]]:
        forgotten = self._forgotten
        found = sorted(await self._store.list_buckets())
        if forgotten != self._forgotten:
            return Dated(found, self._clock())
        self._latest = Dated(found, self._clock() + self.list_ttl)
        return self._latest
