"""Names of a directory, by one complete listing, or one by one where a listing would cost too much; and all buckets.

A lookup lists the first page of its directory. In nearly all directories that is the whole of it,
so the next lookups and every `stat` are answered without a request. In a larger directory single
names are requested (HEAD, and a listing of one entry below the name), until there were so many that
listing all of it would have been cheaper.
"""

import logging
import os
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

import trio
from cachetools import LRUCache, TTLCache

from aisfs import errors
from aisfs.cache.files import ListingCache
from aisfs.cache.names import (
    WOULD_WAIT,
    Dated,
    DirectoryId,
    MetadataCache,
    NameId,
    SingleFlight,
    WouldWait,
)
from aisfs.core.names.listing import (
    ArrivingListing,
    Listed,
    Listing,
    ListingBounds,
    ListingBuilder,
    Wanted,
    child_key,
    refusal,
)
from aisfs.engine.disk import unattended
from aisfs.engine.fetcher import Hooks
from aisfs.engine.overlay import Overlay, Probes
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    BucketNotFound,
    InvalidName,
    NotFound,
    ProtocolError,
    untraced,
)
from aisfs.metrics import Metrics
from aisfs.model import Bucket, ObjectInfo, Page
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
        """List again next time; a list that is under way is not kept either."""
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


log = logging.getLogger(__name__)

SINGLE_LOOKUPS = 32
"""Names of a large directory requested singly before all of it is listed. A page of 10,000 entries
costs the cluster about as much as some tens of HEADs."""
LARGE_DIRECTORIES_MAX = 10_000
AT_ONCE_MAX = 500
"""Entries that take less time than handing them to a thread."""

ResultT = TypeVar("ResultT")


class _Asked(NamedTuple):
    """When a listing was asked for."""

    changes: int
    """How many changes this mount had made."""
    refreshes: int
    """How often something had been refreshed."""
    since: float


MADE_AHEAD = 16
"""Objects that are made ahead of look-ups in order: twice as many as are transformed at once, since some take longer."""
LOOKED_THROUGH = 1000
"""Names among which those are looked for that come next: most may be known."""


DIRECTORIES_IN_ORDER = 256

PAGES_AHEAD = 3
"""Pages of a listing that came and that nobody reads yet. One more is on its way, or waits to be added: readers need not wait
for the store unless they are faster."""
UNASKED_SECONDS = 60.0
"""How long a listing waits for readers: a program looks at a thousand names between two questions."""
SHARED_SECONDS = 1.0
"""How long others join a listing under way at least, whatever the time to live."""
WAITING_MAX = 16
"""Listings that wait so: at least 20 MB each with pages of 10,000 names."""


class Arriving:
    """A listing under way, for readers who begin before its end: they get objects as pages come.

    It asks for few pages more than its furthest reader has got, and for all if somebody wants the whole listing.
    """

    def __init__(self) -> None:
        """Begin without names."""
        self.listing: ArrivingListing | None = None
        """What has come; None before the first of several pages."""
        self.begun = self.expires = 0.0
        """When names began to come, and until when they may be believed."""
        self.shared_until = float("inf")
        """Until when others may join it who have not read of it yet."""
        self.whole: Dated[Listing] | None = None
        """In the end all there is."""
        self.error: Exception | None = None
        """Why it is not complete."""
        self.over = trio.Event()
        self.scope = trio.CancelScope()
        self.all_wanted = 0
        """How many wait for the whole listing."""
        self.waits = False
        """Whether nobody asked for the next page yet."""
        self.waited = 0.0
        """Seconds."""
        self._ends: list[int] = []
        """How many names there were after each page."""
        self._got = 0
        """How many the furthest reader has."""
        self._news, self._asked = trio.Event(), trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    @any_thread
    def read(self, offset: int) -> Dated[Listing]:
        """Return what has come, to a reader who has all up to `offset`."""
        assert self.listing is not None, "readers begin with the first names"
        got = self.listing.read_at(offset)
        if got > self._got:
            self._got = got
            if self.waits:  # is set before the last look at `_got`
                self._token.run_sync_soon(self.ask)
        return Dated(self.listing, self.expires)

    async def more(self, offset: int) -> bool:
        """Wait for names behind an offset; False if this has no more of them.

        Raises:
            AisfsError: the listing is not complete.
        """
        while not self.over.is_set():
            if self.listing is not None:
                self.read(offset)
                if self.listing.read_at(offset) < len(self.listing):
                    return True
            await self._news.wait()
        if self.error is not None:
            raise untraced(self.error)
        return False

    async def until_over(self) -> None:
        """Have it go on to its end.

        Raises:
            AisfsError: it is not complete.
        """
        self.all_wanted += 1
        self.ask()
        try:
            await self.over.wait()
        finally:
            self.all_wanted -= 1
        if self.error is not None:
            raise untraced(self.error)

    def ask(self) -> None:
        """Have it looked whether the next page is wanted."""
        self._asked.set()

    def page_came(self) -> None:
        """Let readers have what was added."""
        assert self.listing is not None, "pages are added to it"
        self._ends.append(len(self.listing))
        self._news.set()
        self._news = trio.Event()

    def end(self) -> None:
        """Have no more."""
        self.over.set()
        self._news.set()
        self.scope.cancel()

    @property
    def is_wanted(self) -> bool:
        """Whether the next page is."""
        unread = len(self._ends) - bisect_right(self._ends, self._got)
        return self.all_wanted > 0 or unread < PAGES_AHEAD

    async def wanted(self) -> bool:
        """Wait until the next page is wanted; False if nobody asks for long."""
        self._asked, self.waits = trio.Event(), True
        try:
            while not self.is_wanted:
                with trio.move_on_after(UNASKED_SECONDS) as unasked:
                    await self._asked.wait()
                if unasked.cancelled_caught:
                    return False
                self._asked = trio.Event()
            return True
        finally:
            self.waits = False


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
        kept: ListingCache | None = None,
    ) -> None:
        """List through `store` what is `wanted`; shared requests run in `nursery`.

        A change of this mount is shown for `change_ttl` seconds, unless it is listed before. Large
        listings are `kept` for other mounts, and those of other mounts are used: only for a mount
        that changes nothing.
        """
        self.kept = kept
        self._nursery = nursery
        self._dropped = float("-inf")
        """When something turned out to have changed: older listings of other mounts are not used."""
        self._drops: LRUCache[DirectoryId, float] = LRUCache(LARGE_DIRECTORIES_MAX)
        """When that was in each directory."""
        self._refreshes = 0
        self._wanted = wanted
        self._store = store
        self._probes = Probes(store)
        self.cache = cache
        self._clock = clock
        self._metrics = metrics
        self.list_ttl = list_ttl
        """Seconds a listing may be believed."""
        self._listings: SingleFlight[DirectoryId, Dated[Listing]] = SingleFlight(
            nursery, wanted_only=True
        )
        self._arriving: dict[DirectoryId, Arriving] = {}
        """Those that readers begin to read meanwhile."""
        self._first_pages: SingleFlight[DirectoryId, Dated[Listing] | None] = SingleFlight(
            nursery, wanted_only=True
        )
        self.buckets = BucketList(store, nursery, list_ttl=list_ttl, clock=clock)
        self._single_lookups: TTLCache[DirectoryId, list[bytes]] = TTLCache(
            LARGE_DIRECTORIES_MAX, list_ttl, clock
        )
        self._made_last: LRUCache[DirectoryId, int] = LRUCache(DIRECTORIES_IN_ORDER)
        """The place of the name whose size was asked for last."""
        self._making: set[NameId] = set()
        """What is made ahead."""
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
        believed = self.cache.listing(directory)
        if believed is None:
            believed = await self._listings.fetch(directory, lambda: self._list(directory))
        return self.overlay.merge(directory, believed)

    async def first_names(self, bucket: Bucket, prefix: str) -> Dated[Listing] | Arriving:
        """Return a whole directory, or what has come of it as soon as there are names.

        Not for a mount that changes anything: what it changes meanwhile is not looked for here.

        Raises:
            AisfsError: see `directory`.
        """
        directory = (bucket, prefix)
        believed = self.cache.listing(directory)
        if believed is not None:
            return believed
        arriving = self._shared(directory)
        if arriving is None:
            if directory in self._listings:  # somebody waits for all of it
                return await self.directory(bucket, prefix)
            arriving = self._arriving[directory] = Arriving()
            self._nursery.start_soon(self._arrive, directory, arriving)
        if await arriving.more(0):
            return arriving
        return arriving.whole or await self.directory(bucket, prefix)

    def _shared(self, directory: DirectoryId) -> Arriving | None:
        """Return the listing under way, unless it waited so long for its readers that nobody else may believe it."""
        arriving = self._arriving.get(directory)
        if arriving is None or self._clock() < arriving.shared_until:
            return arriving
        self._end(directory, arriving)
        return None

    async def _arrive(self, directory: DirectoryId, arriving: Arriving) -> None:
        try:
            with arriving.scope:
                arriving.whole = await self._list_anew(directory, arriving)
        except Exception as error:  # noqa: BLE001 - raised in all readers
            arriving.error = untraced(error)
        finally:
            self._end(directory, arriving)

    def _end(self, directory: DirectoryId, arriving: Arriving | None) -> None:
        """Give no more of a listing under way."""
        if arriving is not None and self._arriving.get(directory) is arriving:
            del self._arriving[directory]
            if arriving.whole is None:
                self._keep_given(directory, arriving)
            arriving.end()

    def _keep_given(self, directory: DirectoryId, arriving: Arriving) -> None:
        """Have later listings keep the offsets of what was given of one that is not completed."""
        last, given = self.cache.last_listing(directory), arriving.listing
        if given is not None and (last is None or len(last.value) < len(given)):
            dropped = last is not None and last.expires == float("-inf")
            self.cache.keep_order(directory, given.so_far(), dropped=dropped)

    @any_thread
    def try_directory(self, bucket: Bucket, prefix: str) -> Dated[Listing] | None:
        """Return the listing of a directory if it may be believed. Does not wait."""
        believed = self.cache.listing((bucket, prefix))
        return self.overlay.try_merge((bucket, prefix), believed) if believed is not None else None

    def believed_until(self, bucket: Bucket, prefix: str) -> float | None:
        """Return until when a directory need not be listed again; None if it has to be now."""
        believed = self.cache.listing((bucket, prefix))
        return believed.expires if believed is not None else None

    async def find(
        self, bucket: Bucket, prefix: str, name: bytes, *, hidden: bool = True, sized: bool = True
    ) -> Dated[Listed] | None:
        """Return what `name` stands for in the directory `prefix`, None when it is missing.

        Args:
            bucket: The bucket.
            prefix: The directory.
            name: The name in it.
            hidden: Whether to ask for a name that the listing lacks, if the bucket hides names.
            sized: Whether the size of an object is needed, for which it may have to be made.
        """
        known = self.try_find(bucket, prefix, name, hidden=hidden, sized=sized)
        if known is not WOULD_WAIT:
            return known
        directory, asked = (bucket, prefix), self.overlay.changes
        listed = self.cache.listing(directory) or await self._cheap_listing(directory)
        found = _in_listing(listed, name) if listed is not None else None
        if listed is None or (found is None and hidden and bucket.hides_names):
            found = await self._find_singly(bucket, prefix, name)
        if found is not None and sized and not _is_sized(found.value):
            listing = listed.value if listed is not None and name in listed.value else None
            found = await self._sized(directory, listing, name, found)
        # It may have been changed while the store was asked, whose answer is cached.
        self.overlay.outlast(directory, asked)
        changed = self.overlay.try_find(directory, name)
        return found if changed is WOULD_WAIT else changed

    @any_thread
    def try_find(
        self, bucket: Bucket, prefix: str, name: bytes, *, hidden: bool = True, sized: bool = True
    ) -> Dated[Listed] | WouldWait | None:
        """Return what `name` stands for if that may be believed; see `find`. Does not wait."""
        changed = self.overlay.try_find((bucket, prefix), name)
        if changed is not WOULD_WAIT:
            return changed
        if refusal(name):
            return None
        listed = self.cache.listing((bucket, prefix))
        if listed is not None:
            in_listing = _in_listing(listed, name)
            if in_listing is not None and sized and not _is_sized(in_listing.value):
                return WOULD_WAIT
            if in_listing is not None or not (hidden and bucket.hides_names):
                return in_listing
        found = self.cache.found((bucket, prefix, name))
        if found is not None:
            return WOULD_WAIT if sized and not _is_sized(found.value) else found
        return None if self.cache.is_missing((bucket, prefix, name)) else WOULD_WAIT

    async def _sized(
        self, directory: DirectoryId, listing: Listing | None, name: bytes, found: Dated[Listed]
    ) -> Dated[Listed] | None:
        """Return what was found of an object without a size with its size; None if it is gone.

        Where names are asked for in the order of the listing, those that come next are made meanwhile.
        """
        if listing is not None:
            self._make_ahead(directory, listing, name)
        info = await self._make(directory, listing, name, found.value)
        return Dated(info, found.expires) if info is not None else None

    async def _make(
        self, directory: DirectoryId, listing: Listing | None, name: bytes, listed: Listed
    ) -> ObjectInfo | None:
        assert listed is not None, "directories have no size"
        try:
            info = await self._store.sized(directory[0], listed)
        except NotFound:
            self.drop(*directory, name)
            return None
        if listing is not None:
            listing.size_became_known(name, info)
        else:
            self.cache.keep_found((*directory, name), info)
        return info

    def _make_ahead(self, directory: DirectoryId, listing: Listing, name: bytes) -> None:
        before = self._made_last.get(directory)
        place = listing.place(name, 0 if before is None else before + 1)
        if place is None:
            return
        self._made_last[directory] = place
        if before is None or not before < place < before + LOOKED_THROUGH:
            return
        if place <= before + 1 + MADE_AHEAD or not listing.unsized(before + 1, place):
            following = listing.unsized(place + 1, place + LOOKED_THROUGH)
            for each, listed in following[:MADE_AHEAD]:
                self._start_making((*directory, each), listing, listed)

    def _start_making(self, place: NameId, listing: Listing, listed: ObjectInfo) -> None:
        if place in self._making:
            return
        self._making.add(place)

        async def make() -> None:
            try:
                await self._make((place[0], place[1]), listing, place[2], listed)
            finally:
                self._making.discard(place)

        what = f"making {place[0]}/{listed.key} ahead"  # a lookup will run into its errors too
        self._nursery.start_soon(unattended, what, make)

    async def check_bucket(self, bucket: Bucket) -> float:
        """Return until when the bucket may be believed to exist; asks when it is not listed.

        Raises:
            BucketNotFound: it does not exist.
        """
        with suppress(AccessDenied):
            known = await self.buckets.get()
            if bucket in known.value:
                return known.expires
        await self._probes.is_occupied(bucket, "")
        return self._clock() + self.list_ttl

    def last_listing(self, bucket: Bucket, prefix: str) -> Listing | None:
        """Return the last listing of a directory however old. Does not wait."""
        last = self.cache.last_listing((bucket, prefix))
        return last.value if last is not None else None

    def drop(self, bucket: Bucket, prefix: str, name: bytes) -> None:
        """Believe nothing about this name and its directory: something turned out to have changed."""
        self._dropped = self._drops[bucket, prefix] = self._clock()
        with self.overlay.namespace_lock:
            self.cache.drop((bucket, prefix), name)
            self.overlay.drop_settled((bucket, prefix), name)

    async def refresh(self, bucket: Bucket | None, prefix: str = "") -> None:
        """Believe nothing about a directory and those below it, or about any if `bucket` is None.

        Replies to what is being asked of the store now are not kept either: only the tasks that wait get them. Listings kept
        for other mounts are removed.
        """

        def within(directory: DirectoryId) -> bool:
            return bucket is None or (directory[0] == bucket and directory[1].startswith(prefix))

        self._refreshes += 1
        self._dropped = self._clock()
        self.buckets.forget()
        self._listings.detach()
        for directory, arriving in list(self._arriving.items()):
            self._end(directory, arriving)
        self._first_pages.detach()
        self._single_lookups.clear()
        with self.overlay.namespace_lock:
            self.cache.drop_all(within)
            self.overlay.drop_all_settled(within)
        if self.kept is not None:
            await trio.to_thread.run_sync(self.kept.forget)

    async def _cheap_listing(self, directory: DirectoryId) -> Dated[Listing] | None:
        """List the directory if that is at most one page, or was earned by many single lookups."""
        if self.list_ttl == 0:
            return None
        asked = self._single_lookups.get(directory)
        if asked is None:
            return await self._first_pages.fetch(directory, lambda: self._list_one_page(directory))
        if len(asked) >= SINGLE_LOOKUPS:
            with suppress(errors.Unsupported):  # some web servers list nothing
                return await self.directory(*directory)
        return None

    async def _list(self, directory: DirectoryId) -> Dated[Listing]:
        while (arriving := self._shared(directory)) is not None:
            await arriving.until_over()
            if arriving.whole is not None:
                return arriving.whole
        return await self._list_anew(directory)

    async def _list_anew(
        self, directory: DirectoryId, arriving: Arriving | None = None
    ) -> Dated[Listing]:
        recalled = await self._recall(directory)
        if recalled is not None:
            return recalled
        with self.overlay.listing() as changes:
            asked = _Asked(changes, self._refreshes, self._clock())
            page = await self._probes.first_page(directory)
            return await self._list_on(directory, page, asked, arriving)

    async def _recall(self, directory: DirectoryId) -> Dated[Listing] | None:
        """Return what another mount listed so lately that it may be believed; only at first."""
        if self.kept is None or self.cache.last_listing(directory) is not None:
            return None
        found = await trio.to_thread.run_sync(self.kept.get, *directory)
        if found is None or self._clock() - found[1] <= self._dropped:
            return None
        arriving = self._arriving.get(directory)
        if arriving is not None and arriving.listing is not None:  # with other offsets, perhaps
            return None
        if self.cache.last_listing(directory) is not None:  # meanwhile, and so may that
            return None
        return self.cache.keep_listing(directory, found[0], self._clock() - found[1])

    async def _list_one_page(self, directory: DirectoryId) -> Dated[Listing] | None:
        recalled = await self._recall(directory)
        if recalled is not None:
            return recalled
        with self.overlay.listing() as changes:
            asked = _Asked(changes, self._refreshes, self._clock())
            page = await self._probes.peek(directory)
            if not page.complete:  # listing it has to wait for the store, single names need not
                return None
            if not page.next_token:
                return await self._list_on(directory, page, asked)
        self._single_lookups[directory] = []
        return None

    async def _list_on(
        self, directory: DirectoryId, page: Page, asked: _Asked, arriving: Arriving | None = None
    ) -> Dated[Listing]:
        """Make the listing that begins with `page`, and believe it from now on."""
        expected, last = self._expected(directory), self.cache.last_listing(directory)
        before = last.value if last is not None else self.overlay.order_of(directory)
        builder = await self._build(directory, page, arriving, before)
        try:
            await self._check_complete(directory, builder, expected, last)
        except ProtocolError as error:
            log.info("listed again: %s", error)  # names may come and go while they are listed
            if arriving is not None:
                self._keep_given(directory, arriving)
            builder = await self._build(directory, await self._probes.first_page(directory))
            await self._check_complete(directory, builder, expected, last)
        removed = self.overlay.removed
        unclear = builder.ambiguous | (builder.directories & removed.within(directory))
        if unclear:
            occupied = await self._probes.occupied(directory, unclear)
            self._probes.note_beside(directory, builder.ambiguous & occupied)
            builder.drop(unclear - occupied)
            for name in occupied:  # another client has put something into these
                removed.discard(directory, name)
        kept = await self._keep(directory, builder, asked, before, arriving)
        self.overlay.listed(directory, asked.changes)
        # A directory that has an object beside it must be asked for in another way: see `Probes`.
        if self.kept is not None and page.next_token and not builder.ambiguous:
            put = partial(self.kept.put, *directory, kept.value, self._clock() - asked.since)
            self._nursery.start_soon(trio.to_thread.run_sync, put)
        return kept

    async def _build(
        self,
        directory: DirectoryId,
        page: Page,
        arriving: Arriving | None = None,
        before: Listing | None = None,
    ) -> ListingBuilder:
        """Add all pages of a listing, `page` being the first; if there are several, let readers of `arriving` have them."""
        builder = ListingBuilder(directory[1], self._wanted)
        bounds = ListingBounds("/".join(map(str, directory)))
        bounds.check(page.names, page.next_token)
        if arriving is not None and page.next_token:
            arriving.begun = self._clock()
            arriving.expires = arriving.begun + self.list_ttl
            arriving.shared_until = arriving.begun + max(self.list_ttl, SHARED_SECONDS)
            arriving.listing = builder.show(before)

        async def add() -> None:
            known = builder.objects
            await _work(_size(page), partial(builder.add, page))
            if arriving is not None and arriving.listing is not None and not arriving.over.is_set():
                builder.shown(arriving.listing, known)
                arriving.page_came()

        while page.next_token:
            if arriving is not None and not arriving.is_wanted:
                await self._until_wanted(directory, arriving)
            page = await self._page_behind(directory, page, add)
            bounds.check(page.names, page.next_token)
        await add()
        return builder

    async def _until_wanted(self, directory: DirectoryId, arriving: Arriving) -> None:
        """Wait until somebody wants the next page, and end the listing if nobody does."""
        waiting = [(place, each) for place, each in self._arriving.items() if each.waits]
        if len(waiting) >= WAITING_MAX:
            self._end(*waiting[0])
        since = self._clock()
        if not await arriving.wanted():
            self._end(directory, arriving)
            await trio.lowlevel.checkpoint()
        arriving.waited += self._clock() - since

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
        """Return what is known to be in a directory and must be listed."""
        if directory[0].hides_names:
            return {}
        asked = self._single_lookups.get(directory, [])
        found = ((name, self.cache.found((*directory, name))) for name in asked)
        known = {name: dated.value for name, dated in found if dated is not None}
        return known | self.overlay.stored(directory)

    async def _page_behind(
        self, directory: DirectoryId, page: Page, add: Callable[[], Awaitable[None]]
    ) -> Page:
        """Request the page behind `page`, which `add` adds to the listing meanwhile."""
        failure: AisfsError
        async with trio.open_nursery() as nursery:
            nursery.start_soon(add)
            try:
                return await self._store.list_page(*directory, token=page.next_token)
            except AisfsError as error:  # out of the nursery it would come in a group
                failure = error
        raise failure

    async def _keep(
        self,
        directory: DirectoryId,
        builder: ListingBuilder,
        asked: _Asked,
        before: Listing | None,
        arriving: Arriving | None,
    ) -> Dated[Listing]:
        """Believe a listing from now on, which was begun when `before` was the last. Does not wait after that."""
        while True:
            if self._arriving.get(directory) is not arriving:
                self._end(directory, self._arriving.get(directory))
            last = self.cache.last_listing(directory)
            finish = partial(_finish, builder, last, before)
            listing, changed = await _work(len(builder), finish)
            others = self._arriving.get(directory) not in (None, arriving)
            if self.cache.last_listing(directory) == last and not others:
                break  # else offsets could be used twice, or news be lost
        if asked.refreshes != self._refreshes:
            return Dated(listing, self._clock())
        for reason, count in listing.refused.items():
            self._metrics.names_refused.labels(reason.value).inc(count)
            log.info("%s/%s: %d names not shown: %s", *directory, count, reason)
        shown = arriving.listing.given(builder.ambiguous) if arriving and arriving.listing else []
        changed += [name for name in shown if listing[name] is None]  # they were given as files
        since = self._since(arriving, is_as_given=not changed)
        if arriving is not None and self._is_overtaken(directory, listing, asked):
            self.cache.keep_order(directory, listing, dropped=True)
            kept = Dated(listing, self._clock())
        else:
            kept = self.cache.keep_listing(directory, listing, since)
        if changed:
            # What this mount shows already is no news.
            news = [n for n in changed if not self.overlay.shows(directory, listing, n)]
            self._hooks.listing_changed(*directory, news)
        return kept

    def _is_overtaken(self, directory: DirectoryId, listing: Listing, asked: _Asked) -> bool:
        """Return whether newer answers contradict a listing that was asked for then."""
        if self._drops.get(directory, float("-inf")) >= asked.since:
            return True
        if directory[0].hides_names:
            return False
        names = self._single_lookups.get(directory, [])
        found = ((name, self.cache.found((*directory, name))) for name in names)
        return any(
            dated is not None and not _agree(listing, name, dated.value) for name, dated in found
        )

    def _since(self, arriving: Arriving | None, *, is_as_given: bool) -> float:
        """Return from when on a listing that is complete now is believed.

        The time in which it waited for readers does not count. If that leaves enough, it is believed as long as what was given
        of it: the kernel goes on with that then, since it tells listings apart by this time.
        """
        now = self._clock()
        if arriving is None or arriving.listing is None:
            return now
        is_young = now - arriving.begun < self.list_ttl / 2
        return arriving.begun if is_young and is_as_given else now - arriving.waited

    async def _find_singly(self, bucket: Bucket, prefix: str, name: bytes) -> Dated[Listed] | None:
        """Ask for one name, and believe the answer unless something is refreshed meanwhile."""
        place, refreshes = (bucket, prefix, name), self._refreshes
        self._single_lookups.get((bucket, prefix), []).append(name)
        try:
            listed = await self._ask_for(bucket, prefix, name)
        except (NotFound, InvalidName):
            if refreshes == self._refreshes:
                self.cache.keep_missing(place)
            return None
        if refreshes != self._refreshes:
            return Dated(listed, self._clock())
        return self.cache.keep_found(place, listed)

    async def is_missing(
        self, bucket: Bucket, prefix: str, name: bytes, *, only_object: bool = False
    ) -> bool:
        """Return whether the store has nothing of this name now, whatever is believed about it.

        What it has is believed from now on.

        Args:
            bucket: The bucket.
            prefix: The directory.
            name: What is about to be made in it.
            only_object: Whether a directory of that name does not matter.

        Raises:
            Unavailable, DeadlineExceeded: the store cannot say now.
        """
        try:
            if only_object:
                listed: Listed = await self._store.head(bucket, child_key(prefix, name))
            else:
                listed = await self._ask_for(bucket, prefix, name)
        except BucketNotFound:
            raise
        except (NotFound, InvalidName):
            return True
        log.info("%s/%r: another client has made it", bucket, prefix + os.fsdecode(name))
        self.drop(bucket, prefix, name)
        self.cache.keep_found((bucket, prefix, name), listed)
        return False

    async def _ask_for(self, bucket: Bucket, prefix: str, name: bytes) -> Listed:
        """Return what the store has under a name; raise NotFound or InvalidName if it has nothing."""
        return await self._probes.find((bucket, prefix), name, self._shows)

    def _shows(self, key: str) -> bool:
        return self._wanted is None or self._wanted(key)


async def _work(entries: int, work: Callable[[], ResultT]) -> ResultT:
    """Do what takes its time for each of so many entries, without holding up other tasks."""
    return await trio.to_thread.run_sync(work) if entries > AT_ONCE_MAX else work()


def _size(page: Page) -> int:
    return len(page.objects) + len(page.directories)


def _finish(
    builder: ListingBuilder, last: Dated[Listing] | None, order: Listing | None
) -> tuple[Listing, list[bytes]]:
    """Make the listing that follows `last`, or else is ordered like `order`; return also what differs from what is believed."""
    if last is None:
        return builder.finish(order), []
    listing = builder.finish(last.value)
    if last.expires != float("-inf"):  # its time was over: nobody believes it any more
        return listing, []
    return listing, listing.changes_since(last.value)


def _agree(listing: Listing, name: bytes, found: Listed) -> bool:
    """Return whether a name is listed as what a look-up found."""
    if name not in listing:
        return False
    listed = listing[name]
    if listed is None or found is None:
        return listed is found
    return listed.same_content(found) or not (listed.is_sized and found.is_sized)


def _in_listing(listed: Dated[Listing], name: bytes) -> Dated[Listed] | None:
    listing = listed.value
    return Dated(listing[name], listed.expires) if name in listing else None


def _is_sized(listed: Listed) -> bool:
    return listed is None or listed.is_sized
