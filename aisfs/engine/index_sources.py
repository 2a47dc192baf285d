"""Where the index of a shard may come from without a scan: published indexes, and AIStore's own.

A new source gets a class here or beside, with the method of `IndexSource`, and a place in the order that `aisfs.mount.services`
gives to the indexer. An index that is refused is no error: the shard is scanned.

Published indexes (`core.index.published`) lie beside their shards or in a bucket of their own. Their directory is listed once,
so a shard without an index costs no request of its own; where it cannot be listed, as on many web servers, indexes are looked up
by their names. Indexes are read in growing batches, in the order of their keys: a reader that opens many shards gets most of
them with few requests, and one that opens one shard gets only that. What is read ahead stays as bytes until its shard is opened.
If the bucket of indexes is missing, or may not be read, one request finds that out for all shards.

AIStore's own indexes are in a system bucket, which most clusters do not have. So that bucket is listed for each directory of
shards, once in a while. A cluster that lacks it, or does not permit reading it, is not asked again by this mount.
"""

import logging
import math
from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import trio
from cachetools import LRUCache

from aisfs.cache.files import IndexCache
from aisfs.cache.names import Dated, DirectoryId, SingleFlight
from aisfs.core.index.builder import NestedTars
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import (
    LabelColumn,
    ScanRules,
    decode_published,
    most_bytes,
)
from aisfs.core.names.listing import Form, IndexPlace, Listing, place_in
from aisfs.engine.disk import unattended
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    BucketNotFound,
    IndexOutdated,
    IndexRefused,
    NotFound,
    Stale,
    Unsupported,
)
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.ais.requests import shard_index_location
from aisfs.stores.ais.shard_index import MAX_BYTES, decode_shard_index
from aisfs.stores.pipeline import all_of
from aisfs.stores.port import ObjectStore, pages_of

T = TypeVar("T")

KEPT = "kept"
"""The origin of an index that was found in the index cache."""

FormedShard = tuple[Bucket, ObjectInfo, Form]
"""A version of a shard, and its form."""


@dataclass(frozen=True, slots=True)
class FoundIndex:
    """What a source knows of a shard."""

    index: MemberIndex
    labels: Mapping[str, LabelColumn] = field(default_factory=dict)
    """Columns of labels by the name of their rule: see `Indexer.labels`."""
    encoded: bytes | None = None
    """The index as `core.index.codec` encodes it, if it was found like that."""
    origin: str = KEPT
    """In one word, where it was found."""


class IndexSource(Protocol):
    """Knows the indexes of some shards."""

    async def find(self, bucket: Bucket, shard: ObjectInfo, form: Form) -> FoundIndex | None:
        """Return the index of exactly this version; None if it has to be found elsewhere."""
        ...

    async def find_many(
        self, shards: Sequence[FormedShard], use: Callable[[int, FoundIndex], T | None]
    ) -> list[T | None]:
        """Return what `use` makes of the indexes of some shards, much faster than one by one.

        Args:
            shards: The shards.
            use: Called with the position of a shard and its index, in a worker thread.

        Returns:
            None where `use` returned it, and for a shard that has to be asked for with `find`.
        """
        ...


log = logging.getLogger(__name__)


class IndexBucket:
    """That bucket, as far as it can be used."""

    def __init__(self, bucket: Bucket, by_uuid: Callable[[Bucket], Awaitable[Bucket]]) -> None:
        """Ask nothing yet.

        Args:
            bucket: Its name.
            by_uuid: Returns a bucket of another cluster under the name that this has everywhere.
        """
        self.bucket = bucket
        self._by_uuid = by_uuid
        self._places: dict[Bucket, IndexPlace] = {}
        self._unusable_until = 0.0
        self._denied = False

    async def place(self, bucket: Bucket) -> IndexPlace:
        """Return where the indexes of a bucket's shards are.

        Raises:
            AisfsError: the cluster does not say which other cluster has the bucket.
        """
        known = self._places.get(bucket)
        if known is None:
            named = await self._by_uuid(bucket) if bucket.cluster else bucket
            known = self._places[bucket] = place_in(self.bucket, named)
        return known

    @property
    def usable(self) -> bool:
        """Whether it may be there."""
        return trio.current_time() >= self._unusable_until

    def leave(self, error: AisfsError, seconds: float) -> None:
        """Do without it for a while, since it is missing or may not be read; say the latter once."""
        self._unusable_until = trio.current_time() + seconds
        level = logging.DEBUG
        if isinstance(error, AccessDenied) and not self._denied:
            level, self._denied = logging.INFO, True
        log.log(level, "%s: published indexes are not used from there: %s", self.bucket, error)


LIST_SECONDS = 60.0
"""How long a listing of indexes is used at least; one published meanwhile is not missed but late."""
FAILED_SECONDS = 5.0
"""Until indexes are looked for again after a failure of the store, which was retried before."""
DIRECTORIES_MAX = 1000
BATCH_MOST = 64
"""Indexes of one request."""
BATCH_BYTES = 16 << 20
"""Bytes of one request; an index of 1,000 members takes some 5 KB."""
AHEAD_BYTES = 64 << 20
"""Of one directory, read ahead and not asked for yet: shards may be opened in any order. Beyond that
each index is read by itself."""
BATCH_LEAST = 8
"""As for other batches: fewer are read one by one, at once."""

_ABSENT = (NotFound, AccessDenied)
"""Answers. Many sites refuse any name that begins with a dot, and S3 any missing name to clients that may not list."""

TryDirectory = Callable[[Bucket, str], Dated[Listing] | None]
"""Returns the listing of a directory if it is known."""


@dataclass(eq=False)
class _Directory:
    """The indexes of the shards of one directory."""

    place: IndexPlace
    infos: dict[str, ObjectInfo]
    expires: float
    unread: list[str]
    """In order."""
    batch: int = 1
    """How many to read with the next request."""
    pending: dict[str, trio.Event] = field(default_factory=dict)
    ahead: dict[str, bytes] = field(default_factory=dict)
    """Read and not asked for yet."""
    ahead_bytes: int = 0
    """Their length."""
    listed: bool = True
    """Whether `infos` has all there are; otherwise what was found by name so far."""
    absent: set[str] = field(default_factory=set)
    """What was looked up by name and is not there."""
    told: bool = False
    """Whether it was said that an index is outdated."""
    failure_told: bool = False
    """Whether it was said that the store failed."""
    refused: set[ObjectInfo] = field(default_factory=set)
    """Versions of shards for which the index is not good."""


class _Read(NamedTuple):
    """The index of one shard, as bytes."""

    wanted: FormedShard
    directory: _Directory | None
    data: bytes | None

    def decode(self, scan: ScanRules) -> FoundIndex:
        """Return the index. In a worker thread.

        Raises:
            IndexRefused: it is not good.
        """
        _, shard, form = self.wanted
        assert self.data is not None, "the caller has made sure"
        assert self.directory is not None, "it has the data"
        renewable = self.directory.place.renewable
        found = decode_published(self.data, shard, scan, renewable=renewable)
        if found.index.form is not form:
            raise IndexOutdated(f"it is of a {found.index.form.name}, not of a {form.name}")
        return FoundIndex(found.index, found.labels, found.encoded, "published")


class PublishedSource:
    """Reads published indexes, from one place for each bucket of shards."""

    def __init__(
        self,
        store: ObjectStore,
        services: trio.Nursery,
        scan: ScanRules,
        *,
        list_ttl: float,
        own: IndexBucket | None = None,
        try_directory: TryDirectory = lambda bucket, prefix: None,
    ) -> None:
        """Read them from `store`; requests run in `services`.

        Args:
            store: Has the indexes.
            services: Outlives every reader.
            scan: The options that an index must have been made with.
            list_ttl: Seconds that a listing of indexes is used.
            own: The bucket that has the indexes; None for those beside the shards.
            try_directory: Knows directories without indexes; those are not listed.
        """
        self._store = store
        self._services = services
        self._scan = scan
        self._list_ttl = max(list_ttl, LIST_SECONDS)
        self._own = own
        self._lists = trio.CapacityLimiter(math.inf if own is None else 1)
        """How many are listed at once: one until it is known that the bucket of indexes can be."""
        self._try_directory = try_directory
        self._directories: LRUCache[DirectoryId, _Directory] = LRUCache(DIRECTORIES_MAX)
        self._listings: SingleFlight[DirectoryId, _Directory] = SingleFlight(services)
        self._decoding = trio.CapacityLimiter(1)
        """Threads that decode at once only wait for each other, and that takes time too."""

    async def find(self, bucket: Bucket, shard: ObjectInfo, form: Form) -> FoundIndex | None:
        """Return the index published for exactly this version, if there is one and it is good."""
        (found,) = await self.find_many([(bucket, shard, form)], lambda _, found: found)
        return found

    async def find_many(
        self, shards: Sequence[FormedShard], use: Callable[[int, FoundIndex], T | None]
    ) -> list[T | None]:
        """Return what `use` makes of the indexes of some shards; see `IndexSource.find_many`."""
        await self._look_up(shards)
        made: list[T | None] = []
        while len(made) < len(shards):
            some: list[_Read] = []
            for wanted in shards[len(made) :]:
                some.append(await self._read_of(wanted, len(shards)))
                if sum(len(one.data or b"") for one in some) >= BATCH_BYTES:
                    break
            made += await self._use(some, partial(_from, len(made), use))
        return made

    async def _read_of(self, wanted: FormedShard, along: int) -> "_Read":
        """Return the bytes of a shard's index, if it has one; read those of so many shards at once."""
        bucket, shard, _ = wanted
        directory = await self._directory(bucket, _directory_of(shard))
        if directory is None or shard in directory.refused:
            return _Read(wanted, None, None)
        key = directory.place.key(shard.key)
        info = directory.infos.get(key)
        if info is None:
            return _Read(wanted, None, None)
        if not 0 < info.size <= most_bytes(shard):
            why = f"{info.size} bytes are no index of a shard of {shard.size}"
            self._refused(shard, directory, IndexRefused(why))
            return _Read(wanted, None, None)
        directory.batch = max(directory.batch, min(along, BATCH_MOST))
        return _Read(wanted, directory, await self._read(directory, key))

    async def _use(
        self, some: Sequence["_Read"], use: Callable[[int, FoundIndex], T | None]
    ) -> list[T | None]:
        """Decode indexes and use them, in one call of a thread."""

        def decode_all() -> list[T | IndexRefused | None]:
            made: list[T | IndexRefused | None] = []
            for at, one in enumerate(some):
                try:
                    made.append(None if one.data is None else use(at, one.decode(self._scan)))
                except IndexRefused as refused:
                    made.append(refused)
            return made

        if all(one.data is None for one in some):
            return [None] * len(some)
        good: list[T | None] = []
        made = await trio.to_thread.run_sync(decode_all, limiter=self._decoding)
        for one, result in zip(some, made, strict=True):
            if isinstance(result, IndexRefused) and one.directory is not None:
                self._refused(one.wanted[1], one.directory, result)
            good.append(None if isinstance(result, IndexRefused) else result)
        return good

    def _refused(self, shard: ObjectInfo, directory: _Directory, refused: IndexRefused) -> None:
        """Say why a shard is scanned: once for each bad index, once for all outdated ones.

        Its index is not read again before the directory is listed again.
        """
        directory.refused.add(shard)
        outdated = isinstance(refused, IndexOutdated)
        level = logging.INFO if outdated and directory.told else logging.WARNING
        directory.told = directory.told or outdated
        anew = "; publish it anew: aisfs index --publish" if outdated else ""
        line = "%s/%s: this published index is not used, the shard is scanned: %s%s"
        place = directory.place
        log.log(level, line, place.bucket, place.key(shard.key), refused, anew)

    # Which there are -----------------------------------------------------------------------------

    async def _directory(self, bucket: Bucket, prefix: str) -> _Directory | None:
        if self._own is not None and not self._own.usable:
            return None
        known = self._directories.get((bucket, prefix))
        if known is not None and trio.current_time() < known.expires:
            return known
        above = self._try_directory(bucket, prefix)
        if above is not None and not above.value.has_indexes:
            return None
        listed = await self._listings.fetch((bucket, prefix), partial(self._list, bucket, prefix))
        listed.told = listed.told or (known is not None and known.told)
        return listed

    async def _look_up(self, shards: Sequence[FormedShard]) -> None:
        """Look for the indexes of shards whose directories of indexes are not to be listed."""
        wanted: list[tuple[_Directory, str]] = []
        for bucket, shard, _ in shards:
            directory = await self._directory(bucket, _directory_of(shard))
            if directory is None or directory.listed:
                continue
            key = directory.place.key(shard.key)
            if key not in directory.infos and key not in directory.absent:
                wanted.append((directory, key))

        async def one(directory: _Directory, key: str) -> None:
            bucket = directory.place.bucket
            try:
                info = await self._store.head(bucket, key)
            except _ABSENT as error:
                log.debug("%s/%s: not to be had: %s", bucket, key, error)
                directory.absent.add(key)
                return
            except AisfsError as error:  # asked for again with the next shard that is opened
                self._failed(directory, error)
                return
            if key not in directory.infos and info.size:
                insort(directory.unread, key)
            directory.infos[key] = info

        await all_of((partial(one, *each) for each in wanted), BATCH_MOST)

    async def _list(self, bucket: Bucket, prefix: str) -> _Directory:
        async with self._lists:
            return await self._list_now(bucket, prefix)

    async def _list_now(self, bucket: Bucket, prefix: str) -> _Directory:
        place, infos = IndexPlace(bucket), dict[str, ObjectInfo]()
        listed, seconds, failed, began = True, self._list_ttl, None, trio.current_time()
        try:
            if self._own is not None:
                place = await self._own.place(bucket)
            if self._own is None or self._own.usable:
                async for page in pages_of(self._store, place.bucket, place.directory(prefix)):
                    infos.update((info.key, info) for info in page.objects)
                self._lists.total_tokens = math.inf
        except Unsupported as error:
            log.debug("%s", error)
            listed = False
        except _ABSENT as error:
            if self._own is not None:
                self._own.leave(error, seconds)
            else:
                log.info("%s/%s: its published indexes cannot be listed: %s", bucket, prefix, error)
            infos.clear()
        except AisfsError as error:
            infos.clear()
            # As long as it took at least: who waits for a store that is down does so half of the time.
            seconds, failed = max(FAILED_SECONDS, trio.current_time() - began), error
        unread = sorted(key for key, info in infos.items() if info.size)
        found = _Directory(place, infos, trio.current_time() + seconds, unread, listed=listed)
        if failed is not None:
            known = self._directories.get((bucket, prefix))
            found.failure_told = known is not None and known.failure_told
            self._failed(found, failed)
        self._directories[bucket, prefix] = found
        return found

    def _failed(self, directory: _Directory, error: AisfsError) -> None:
        """Say, once for a directory, that shards are scanned which may have indexes."""
        level = logging.DEBUG if directory.failure_told else logging.WARNING
        directory.failure_told = True
        line = "%s: published indexes cannot be had now, and shards without are scanned: %s"
        log.log(level, line, directory.place.bucket, error)

    # What they say -------------------------------------------------------------------------------

    async def _read(self, directory: _Directory, key: str) -> bytes | None:
        """Return the bytes of a listed index; None if it is gone or cannot be read."""
        if key not in directory.ahead and key not in directory.pending:
            batch = self._batch(directory, key)
            done = trio.Event()
            directory.pending.update(dict.fromkeys(batch, done))
            fetch = partial(self._fetch, directory, batch, done)
            self._services.start_soon(unattended, "reading published indexes", fetch)
        if key in directory.pending:
            await directory.pending[key].wait()
        data = directory.ahead.pop(key, None)
        directory.ahead_bytes -= len(data or b"")
        return data

    def _batch(self, directory: _Directory, key: str) -> list[str]:
        """Return the key and those to read along, which count as read then."""
        most, directory.batch = directory.batch, min(2 * directory.batch, BATCH_MOST)
        unread, batch, size = directory.unread, [key], directory.infos[key].size
        at = bisect_left(unread, key)
        if unread[at : at + 1] == [key]:
            del unread[at]
        room = min(BATCH_BYTES, AHEAD_BYTES - directory.ahead_bytes)
        following = unread[at : at + most - 1]
        for other in following + unread[: min(at, most - 1 - len(following))]:
            size += directory.infos[other].size
            if size > room:
                break
            batch.append(other)
        behind = min(len(following), len(batch) - 1)
        del unread[at : at + behind]
        del unread[: len(batch) - 1 - behind]
        return batch

    async def _fetch(self, directory: _Directory, keys: list[str], done: trio.Event) -> None:
        try:
            wanted = [
                (info, memoryview(bytearray(info.size)))
                for info in map(directory.infos.__getitem__, keys)
            ]
            filled = await self._read_many(directory, wanted)
            for key, (info, buffer), there in zip(keys, wanted, filled, strict=True):
                if there:
                    directory.ahead[key] = bytes(buffer)
                    directory.ahead_bytes += info.size
        finally:
            for key in keys:
                del directory.pending[key]
            done.set()

    async def _read_many(
        self, directory: _Directory, wanted: list[tuple[ObjectInfo, memoryview]]
    ) -> list[bool]:
        """Fill the buffers; return which of them were filled."""
        bucket = directory.place.bucket
        filled = [False] * len(wanted)
        if len(wanted) >= BATCH_LEAST:
            try:
                filled = await self._store.read_many(bucket, wanted)
            except Unsupported:
                pass
            except AisfsError as error:
                log.debug("a batch failed, its indexes are read one by one: %s", error)

        async def read(at: int) -> None:
            info, buffer = wanted[at]
            try:
                await self._store.read_range(bucket, info, 0, buffer)
                filled[at] = True
            except (*_ABSENT, Stale) as error:  # replaced or removed since it was listed
                if self._own is not None and isinstance(error, AccessDenied | BucketNotFound):
                    self._own.leave(error, self._list_ttl)
                else:
                    log.info("%s/%s cannot be read: %s", bucket, info.key, error)
            except AisfsError as error:
                self._failed(directory, error)

        await all_of(partial(read, at) for at, there in enumerate(filled) if not there)
        return filled


def _directory_of(shard: ObjectInfo) -> str:
    return shard.key[: shard.key.rfind("/") + 1]


def _from(first: int, use: Callable[[int, FoundIndex], T], at: int, found: FoundIndex) -> T:
    return use(first + at, found)


LISTED_SECONDS = 60.0
"""How long a listing is used, as those of other directories: shards that come later may get an index too."""
_AISTORE = "aistore"
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
            kept: Where the indexes are kept.
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
        found = await self._get_kept(bucket, shard)
        if found is None:
            index = await self._fetch(bucket, shard)
            if index is None:
                return None
            if self._kept is not None:
                await trio.to_thread.run_sync(self._kept.put, bucket, shard, index)
            found = FoundIndex(index, origin=_AISTORE)
        if self._nesting and any(map(NestedTars.opens, found.index.names())):
            return None  # it does not say what is in them
        return found

    async def find_many(
        self, shards: Sequence[FormedShard], use: Callable[[int, FoundIndex], T | None]
    ) -> list[T | None]:
        """Return nothing: these indexes are read one by one."""
        return [None] * len(shards)

    async def _get_kept(self, bucket: Bucket, shard: ObjectInfo) -> FoundIndex | None:
        if self._kept is None:
            return None
        get = partial(self._kept.get, bucket, shard, without_attributes=True)
        kept = await trio.to_thread.run_sync(get)
        return FoundIndex(kept.index, kept.labels, origin=_AISTORE) if kept is not None else None

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
