"""AIStore's own shard indexes as a source: which shards have one is listed, and only those are read.

Most clusters have none, and their targets would be asked for each shard in vain. So the system bucket is
listed for each directory of shards, once in a while; a cluster without that bucket, or one that does not
permit to read it, is not asked again by this mount.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import trio

from aisfs.cache.files import IndexCache
from aisfs.cache.names import SingleFlight
from aisfs.core.index.builder import NestedTars
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.names.formats import Form
from aisfs.engine.read.sources.source import FormedShard, FoundIndex
from aisfs.errors import AccessDenied, AisfsError, BucketNotFound, Unsupported
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.ais.shard_index import MAX_BYTES, decode_shard_index, shard_index_location
from aisfs.stores.port import ObjectStore, pages_of

T = TypeVar("T")

log = logging.getLogger(__name__)

LISTED_SECONDS = 60.0
"""How long a listing is used, as those of other directories: shards that come later may get an index too."""
_Listing = Mapping[str, ObjectInfo]
"""The shard indexes of a directory of shards, by key."""


class ShardIndexSource:
    """Knows what AIStore has indexed, but for times and modes."""

    def __init__(
        self,
        store: ObjectStore,
        services: trio.Nursery,
        *,
        nesting: int,
        kept: IndexCache | None = None,
        demanded: bool = False,
    ) -> None:
        """Read indexes from `store`.

        Args:
            store: Where the shards are.
            services: Where listings are fetched.
            nesting: How many tars deep tars are opened that are members; these indexes hide them.
            kept: Where the indexes are kept, apart from those that know times and modes.
            demanded: Whether the user asked for them, and hears when they cannot be had.
        """
        self._store = store
        self._nesting = nesting
        self._kept = kept
        self._demanded = demanded
        self._given_up = False
        self._flights: SingleFlight[tuple[Bucket, str], _Listing] = SingleFlight(services)
        self._listings: dict[tuple[Bucket, str], tuple[float, _Listing]] = {}

    async def find(self, bucket: Bucket, shard: ObjectInfo, form: Form) -> FoundIndex | None:
        """Return AIStore's index of this version, if there is one and it hides nothing."""
        if form is not Form.TAR:
            return None
        index = await self._get_kept(bucket, shard)
        if index is None:
            index = await self._fetch(bucket, shard)
            if index is not None and self._kept is not None:
                put = partial(self._kept.put, bucket, shard, index)
                await trio.to_thread.run_sync(put)
        if index is None or (self._nesting and any(map(NestedTars.opens, index.names()))):
            return None  # it does not say what is in them
        return FoundIndex(index, origin="aistore")

    async def find_many(
        self, shards: Sequence[FormedShard], use: Callable[[int, FoundIndex], T | None]
    ) -> list[T | None]:
        """Return nothing: these indexes are read one by one."""
        return [None] * len(shards)

    async def _get_kept(self, bucket: Bucket, shard: ObjectInfo) -> MemberIndex | None:
        if self._kept is None:
            return None
        index = await trio.to_thread.run_sync(self._kept.get, bucket, shard)
        return None if index is None else index.stripped()

    async def _fetch(self, bucket: Bucket, shard: ObjectInfo) -> MemberIndex | None:
        if self._given_up:
            return None
        place, key = shard_index_location(bucket, shard.key)
        directory = key[: key.rfind("/") + 1]
        try:
            info = (await self._listing(place, directory)).get(key)
            if info is None or not 0 < info.size <= MAX_BYTES:
                return None
            buffer = bytearray(info.size)
            await self._store.read_range(place, info, 0, memoryview(buffer))
        except (AccessDenied, BucketNotFound, Unsupported) as error:
            self._give_up(error)
            return None
        except AisfsError as error:  # whatever it is, the shard can be scanned
            log.debug("%s/%s: no shard index: %s", bucket, shard.key, error)
            return None
        return await trio.to_thread.run_sync(decode_shard_index, bytes(buffer), shard)

    async def _listing(self, place: Bucket, directory: str) -> _Listing:
        """Return what is listed below a directory of the system bucket."""
        known = self._listings.get((place, directory))
        if known is not None and trio.current_time() < known[0]:
            return known[1]
        return await self._flights.fetch((place, directory), lambda: self._list(place, directory))

    async def _list(self, place: Bucket, directory: str) -> _Listing:
        found: dict[str, ObjectInfo] = {}
        try:
            async for page in pages_of(self._store, place, directory):
                found |= {info.key: info for info in page.objects}
        except (AccessDenied, BucketNotFound, Unsupported):
            raise
        except AisfsError as error:  # not to be asked by each shard of an outage
            log.info("shard indexes cannot be listed for now, shards are scanned: %s", error)
        self._listings[place, directory] = trio.current_time() + LISTED_SECONDS, found
        return found

    def _give_up(self, error: AisfsError) -> None:
        if not self._given_up:
            there = not isinstance(error, BucketNotFound)
            level = logging.WARNING if self._demanded and there else logging.INFO
            log.log(level, "AIStore's shard indexes cannot be read, shards are scanned: %s", error)
        self._given_up = True
