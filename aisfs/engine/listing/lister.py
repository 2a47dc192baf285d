"""Names of a directory: by one complete listing, or one by one where a listing would cost too much.

A lookup lists the first page of its directory. In nearly all directories that is the whole of it,
so the next lookups and every `stat` are answered without a request. In a larger directory single
names are requested (HEAD, and a listing of one entry below the name), until there were so many that
listing all of it would have been cheaper.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import trio
from cachetools import LRUCache, TTLCache

from aisfs.cache.metadata_cache import WOULD_WAIT, Dated, DirectoryId, MetadataCache, WouldWait
from aisfs.cache.single_flight import SingleFlight
from aisfs.core.namespace.keys import child_key, child_prefix, refusal
from aisfs.core.namespace.listing import Listed, Listing, ListingBounds, ListingBuilder, Wanted
from aisfs.engine.hooks import Hooks
from aisfs.engine.listing.overlay import Overlay
from aisfs.engine.listing.probes import Probes
from aisfs.errors import AccessDenied, AisfsError, InvalidName, NotFound, ProtocolError
from aisfs.metrics import Metrics
from aisfs.model import Bucket, Page, Provider
from aisfs.process.threads import any_thread
from aisfs.store.port import ObjectStore

log = logging.getLogger(__name__)

SINGLE_LOOKUPS = 32
"""Names of a large directory requested singly before all of it is listed. A page of 10,000 entries
costs the cluster about as much as some tens of HEADs."""
LARGE_DIRECTORIES_MAX = 10_000
AT_ONCE_MAX = 500
"""Entries that take less time than handing them to a thread."""

ResultT = TypeVar("ResultT")


class Lister:
    """Answers what is in a directory of a bucket, with this mount's own changes."""

    def __init__(
        self,
        store: ObjectStore,
        cache: MetadataCache,
        nursery: trio.Nursery,
        *,
        list_ttl: float,
        clock: Callable[[], float],
        metrics: Metrics,
        wanted: Wanted | None = None,
        hooks: Hooks | None = None,
        change_ttl: float = 0.0,
    ) -> None:
        """List through `store` what is `wanted`; shared requests run in `nursery`.

        A change of this mount is shown for `change_ttl` seconds, unless it is listed before.
        """
        self._wanted = wanted
        self._store = store
        self._probes = Probes(store)
        self._cache = cache
        self._clock = clock
        self._metrics = metrics
        self.list_ttl = list_ttl
        """Seconds a listing may be believed."""
        self._listings: SingleFlight[DirectoryId, Dated[Listing]] = SingleFlight(
            nursery, wanted_only=True
        )
        self._first_pages: SingleFlight[DirectoryId, Dated[Listing] | None] = SingleFlight(
            nursery, wanted_only=True
        )
        self._bucket_lists: SingleFlight[str, Dated[list[Bucket]]] = SingleFlight(nursery)
        self._buckets: Dated[list[Bucket]] | None = None
        self._single_lookups: TTLCache[DirectoryId, list[bytes]] = TTLCache(
            LARGE_DIRECTORIES_MAX, list_ttl, clock
        )
        self._beside: LRUCache[DirectoryId, None] = LRUCache(LARGE_DIRECTORIES_MAX)
        """Directories that have the name of an object."""
        self._hooks = hooks or Hooks()
        self.overlay = Overlay(
            self._probes, cache, list_ttl=list_ttl, change_ttl=change_ttl, clock=clock
        )

    async def directory(self, bucket: Bucket, prefix: str) -> Dated[Listing]:
        """Return the whole directory, listed within the time to live; complete or an error.

        Raises:
            BucketNotFound: the bucket is missing. A prefix without entries is an empty listing.
        """
        directory = (bucket, prefix)
        believed = self._cache.listing(directory)
        if believed is None:
            believed = await self._listings.fetch(directory, lambda: self._list(directory))
        return self.overlay.merge(directory, believed)

    @any_thread
    def try_directory(self, bucket: Bucket, prefix: str) -> Dated[Listing] | None:
        """Return the listing of a directory if it may be believed. Does not wait."""
        believed = self._cache.listing((bucket, prefix))
        return self.overlay.try_merge((bucket, prefix), believed) if believed is not None else None

    def believed_until(self, bucket: Bucket, prefix: str) -> float | None:
        """Return until when a directory need not be listed again; None if it has to be now."""
        believed = self._cache.listing((bucket, prefix))
        return believed.expires if believed is not None else None

    async def find(self, bucket: Bucket, prefix: str, name: bytes) -> Dated[Listed] | None:
        """Return what `name` stands for in the directory `prefix`, None when it is missing."""
        known = self.try_find(bucket, prefix, name)
        if known is not WOULD_WAIT:
            return known
        directory, asked = (bucket, prefix), self.overlay.changes
        listed = await self._cheap_listing(directory)
        if listed is not None:
            found = _in_listing(listed, name)
        else:
            found = await self._find_singly(bucket, prefix, name)
        # It may have been changed while the store was asked, whose answer is cached.
        self.overlay.outlast(directory, asked)
        changed = self.overlay.try_find(directory, name)
        return found if changed is WOULD_WAIT else changed

    @any_thread
    def try_find(
        self, bucket: Bucket, prefix: str, name: bytes
    ) -> Dated[Listed] | WouldWait | None:
        """Return what `name` stands for if that may be believed. Does not wait."""
        changed = self.overlay.try_find((bucket, prefix), name)
        if changed is not WOULD_WAIT:
            return changed
        if refusal(name):
            return None
        listed = self._cache.listing((bucket, prefix))
        if listed is not None:
            return _in_listing(listed, name)
        found = self._cache.found((bucket, prefix, name))
        if found is not None:
            return found
        return None if self._cache.is_missing((bucket, prefix, name)) else WOULD_WAIT

    async def buckets(self) -> Dated[list[Bucket]]:
        """Return all buckets the token may list, sorted.

        Raises:
            AccessDenied: it may list none; single buckets may still be open to it.
        """
        return self.try_buckets() or await self._bucket_lists.fetch("", self._list_buckets)

    @any_thread
    def try_buckets(self) -> Dated[list[Bucket]] | None:
        """Return all buckets if the list may be believed. Does not wait."""
        known = self._buckets
        return known if known is not None and self._clock() < known.expires else None

    async def check_bucket(self, bucket: Bucket) -> float:
        """Return until when the bucket may be believed to exist; asks when it is not listed.

        Raises:
            BucketNotFound: it does not exist.
        """
        with suppress(AccessDenied):
            known = await self.buckets()
            if bucket in known.value:
                return known.expires
        await self._probes.is_occupied(bucket, "")
        return self._clock() + self.list_ttl

    def last_listing(self, bucket: Bucket, prefix: str) -> Listing | None:
        """Return the last listing of a directory however old. Does not wait."""
        last = self._cache.last_listing((bucket, prefix))
        return last.value if last is not None else None

    def drop(self, bucket: Bucket, prefix: str, name: bytes) -> None:
        """Believe nothing about this name and its directory: something turned out to have changed."""
        with self.overlay.namespace_lock:
            self._cache.drop((bucket, prefix), name)
            self.overlay.drop_settled((bucket, prefix), name)

    async def _list_buckets(self) -> Dated[list[Bucket]]:
        found = sorted(await self._store.list_buckets())
        self._buckets = Dated(found, self._clock() + self.list_ttl)
        return self._buckets

    async def _cheap_listing(self, directory: DirectoryId) -> Dated[Listing] | None:
        """List the directory if that is at most one page, or was earned by many single lookups."""
        if self.list_ttl == 0:
            return None
        asked = self._single_lookups.get(directory)
        if asked is None:
            return await self._first_pages.fetch(directory, lambda: self._list_one_page(directory))
        if len(asked) >= SINGLE_LOOKUPS:
            return await self.directory(*directory)
        return None

    async def _list(self, directory: DirectoryId) -> Dated[Listing]:
        with self.overlay.listing() as asked:
            return await self._list_on(directory, await self._first_page(directory), asked)

    async def _list_one_page(self, directory: DirectoryId) -> Dated[Listing] | None:
        with self.overlay.listing() as asked:
            page = await self._first_page(directory)
            if not page.next_token:
                return await self._list_on(directory, page, asked)
        self._single_lookups[directory] = []
        return None

    async def _list_on(self, directory: DirectoryId, page: Page, asked: int) -> Dated[Listing]:
        """Make the listing that begins with `page`, and believe it from now on.

        It was requested after `asked` changes of this mount.
        """
        expected, last = self._expected(directory), self._cache.last_listing(directory)
        builder = await self._build(directory, page)
        try:
            await self._check_complete(directory, builder, expected, last)
        except ProtocolError as error:
            log.info("listed again: %s", error)  # names may come and go while they are listed
            builder = await self._build(directory, await self._first_page(directory))
            await self._check_complete(directory, builder, expected, last)
        removed = self.overlay.removed
        unclear = builder.ambiguous | (builder.directories & removed.within(directory))
        if unclear:
            occupied = await self._probes.occupied(directory, unclear)
            self._note_beside(directory, builder.ambiguous & occupied)
            builder.drop(unclear - occupied)
            for name in occupied:  # another client has put something into these
                removed.discard(directory, name)
        kept = await self._keep(directory, builder)
        self.overlay.listed(directory, asked)
        return kept

    async def _first_page(self, directory: DirectoryId) -> Page:
        if self._is_beside(directory):
            return await self._probes.page(directory)
        return await self._store.list_page(*directory)

    def _is_beside(self, directory: DirectoryId) -> bool:
        """Return whether an object is known to have the name of a directory, or of one above it."""
        bucket, prefix = directory
        ends = (at + 1 for at, character in enumerate(prefix) if character == "/")
        return bool(self._beside) and any((bucket, prefix[:end]) in self._beside for end in ends)

    def _note_beside(self, directory: DirectoryId, names: Iterable[bytes]) -> None:
        """Remember directories that have the name of an object."""
        bucket, prefix = directory
        if bucket.provider is Provider.AIS:
            self._beside.update({(bucket, child_prefix(prefix, name)): None for name in names})

    async def _build(self, directory: DirectoryId, page: Page) -> ListingBuilder:
        """Add all pages of a listing, `page` being the first."""
        builder = ListingBuilder(directory[1], self._wanted)
        bounds = ListingBounds("/".join(map(str, directory)))
        bounds.check(page.names, page.next_token)
        while page.next_token:
            page = await self._page_behind(directory, page, builder)
            bounds.check(page.names, page.next_token)
        await _work(_size(page), partial(builder.add, page))
        return builder

    async def _check_complete(
        self,
        directory: DirectoryId,
        builder: ListingBuilder,
        expected: dict[bytes, Listed],
        last: Dated[Listing] | None,
    ) -> None:
        """Check names that were there, and that a listing lacks.

        Raises:
            ProtocolError: it is not complete.
        """
        lacking = {name: listed for name, listed in expected.items() if name not in builder}
        if last is not None:
            lacking |= await _work(len(last.value), partial(builder.lacking, last.value))
        await self._probes.check_gone(directory, lacking)

    def _expected(self, directory: DirectoryId) -> dict[bytes, Listed]:
        """Return what is known to be in a directory, whatever was listed."""
        asked = self._single_lookups.get(directory, [])
        found = ((name, self._cache.found((*directory, name))) for name in asked)
        known = {name: dated.value for name, dated in found if dated is not None}
        return known | self.overlay.stored(directory)

    async def _page_behind(
        self, directory: DirectoryId, page: Page, builder: ListingBuilder
    ) -> Page:
        """Request the page behind `page`, which is added to the listing meanwhile."""
        failure: AisfsError
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_work, _size(page), partial(builder.add, page))
            try:
                return await self._store.list_page(*directory, token=page.next_token)
            except AisfsError as error:  # out of the nursery it would come in a group
                failure = error
        raise failure

    async def _keep(self, directory: DirectoryId, builder: ListingBuilder) -> Dated[Listing]:
        """Believe a listing from now on. Does not wait after that."""
        while True:
            last = self._cache.last_listing(directory)
            finish = partial(_finish, builder, last)
            listing, changed = await _work(len(builder), finish)
            if self._cache.last_listing(directory) == last:
                break  # else offsets could be used twice, or news be lost
        for reason, count in listing.refused.items():
            self._metrics.names_refused.labels(reason.value).inc(count)
            log.info("%s/%s: %d names not shown: %s", *directory, count, reason)
        kept = self._cache.keep_listing(directory, listing)
        if changed:
            # What this mount shows already is no news.
            news = [n for n in changed if not self.overlay.shows(directory, listing, n)]
            self._hooks.listing_changed(*directory, news)
        return kept

    async def _find_singly(self, bucket: Bucket, prefix: str, name: bytes) -> Dated[Listed] | None:
        directory = (bucket, prefix)
        asked = self._single_lookups.get(directory)
        if asked is not None:
            asked.append(name)
        try:
            below, key = child_prefix(prefix, name), child_key(prefix, name)
            sure = self._is_beside(directory)
            if self._shows(below) and await self._probes.is_occupied(bucket, below, sure=sure):
                if await self._probes.may_be_object(bucket, key):
                    self._note_beside(directory, [name])
                return self._cache.keep_found((*directory, name), None)
            if not self._shows(key):
                self._cache.keep_missing((*directory, name))
                return None
            info = await self._store.head(bucket, key)
        except (NotFound, InvalidName):
            self._cache.keep_missing((*directory, name))
            return None
        return self._cache.keep_found((*directory, name), info)

    def _shows(self, key: str) -> bool:
        return self._wanted is None or self._wanted(key)


async def _work(entries: int, work: Callable[[], ResultT]) -> ResultT:
    """Do what takes its time for each of so many entries, without holding up other tasks."""
    return await trio.to_thread.run_sync(work) if entries > AT_ONCE_MAX else work()


def _size(page: Page) -> int:
    return len(page.objects) + len(page.directories)


def _finish(builder: ListingBuilder, last: Dated[Listing] | None) -> tuple[Listing, list[bytes]]:
    """Make the listing that follows `last`; return also what differs from what is believed."""
    if last is None:
        return builder.finish(), []
    listing = builder.finish(last.value)
    if last.expires != float("-inf"):  # its time was over: nobody believes it any more
        return listing, []
    return listing, listing.changes_since(last.value)


def _in_listing(listed: Dated[Listing], name: bytes) -> Dated[Listed] | None:
    listing = listed.value
    return Dated(listing[name], listed.expires) if name in listing else None
