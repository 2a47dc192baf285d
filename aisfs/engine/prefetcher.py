"""Fetches whole shards into the cache before they are asked for.

There are three reasons: shards of a directory are read in the order of their names, so the next ones are
fetched; or their folders are listed in that order, so the next one is opened; or all shards of a
directory fit the cache, so the first touch of one is reason enough to have it all. Without a disk cache there is nowhere to put
a shard, and nothing is prefetched.
"""

import os
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import trio
from cachetools import LRUCache, TTLCache

from aisfs.core.names.listing import Listing, is_shard
from aisfs.core.policy.shard_readers import ShardQueue, fits
from aisfs.engine.disk import unattended
from aisfs.engine.fetcher import Fetcher
from aisfs.engine.listing import AT_ONCE_MAX, Lister
from aisfs.engine.parts import OpenObject
from aisfs.model import Bucket, ByteRange, ObjectInfo, RangeSet

DIRECTORIES_MAX = 1000
"""Directories for which it is remembered how their shards are read."""
AT_ONCE = 2
"""Shards prefetched at once; each keeps several requests busy."""
PAUSE_SECONDS = 0.5
"""A reader that did not read on for so long may not come back: then the rest is fetched."""
GUESSED_MAX = 16 << 20
"""Bytes of a shard that is opened because the first one was, perhaps in vain: it comes in some 20 ms."""
AGAIN_SECONDS = 300.0
"""A shard that was fetched whole is not looked at again for so long, should it have been evicted."""


@dataclass(slots=True)
class _Directory:
    """The shards of one directory, as of one listing."""

    listing: Listing
    shards: list[bytes]
    total: int
    queue: ShardQueue
    folder: bytes = b""
    """The shard whose folder was listed last."""


_DirectoryId = tuple[Bucket, str]
_Decide = Callable[[Bucket, ObjectInfo, _Directory], None]


class Prefetcher:
    """Decides with `core.policy.shard_readers`, fetches in the background."""

    def __init__(
        self,
        fetcher: Fetcher,
        lister: Lister,
        services: trio.Nursery,
        *,
        max_shards: int,
        budget: int,
        open_folder: Callable[[Bucket, ObjectInfo], Awaitable[object]] | None = None,
    ) -> None:
        """Prefetch at most `max_shards` shards of `budget` bytes together, ahead of any reader.

        `open_folder` finds the members of a shard; without it folders are not opened early.
        """
        self._fetcher = fetcher
        self._lister = lister
        self._services = services
        self._max_shards = max_shards
        self._budget = budget
        self._directories: LRUCache[_DirectoryId, _Directory] = LRUCache(DIRECTORIES_MAX)
        self._looking: set[_DirectoryId] = set()
        """Directories whose shards are being looked for."""
        self._under_way: set[tuple[Bucket, ObjectInfo]] = set()
        self._done: TTLCache[tuple[Bucket, ObjectInfo], bool] = TTLCache(
            100 * DIRECTORIES_MAX, AGAIN_SECONDS, trio.current_time
        )
        self._limiter = trio.CapacityLimiter(AT_ONCE)
        self._open_folder = open_folder

    def in_order(self, bucket: Bucket, info: ObjectInfo) -> None:
        """An object is being read in order: if it is a shard, perhaps the next ones are wanted soon."""
        if self._prefetches_beside(info):
            self._look_around(bucket, info, self._fetch_following)

    def streamed(self, bucket: Bucket, info: ObjectInfo) -> None:
        """An object is being read in order: if it is a shard, fetch it whole if `touched` would.

        What its reader does not fetch itself: the more is under way, the later comes what it waits for.
        """
        if is_shard(_name(info)):
            self._whole(bucket, info, partial(self._fetch_fitting, after_reader=True))

    def touched(self, bucket: Bucket, info: ObjectInfo) -> None:
        """A shard is being read: if all shards beside it fit the cache, fetch it whole."""
        self._whole(bucket, info, self._fetch_fitting)

    def brings(self, bucket: Bucket, info: ObjectInfo) -> bool:
        """Do the same, and return whether the shard is being fetched whole, or was."""
        self.touched(bucket, info)
        return (bucket, info) in self._under_way or (bucket, info) in self._done

    def _whole(self, bucket: Bucket, info: ObjectInfo, decide: _Decide) -> None:
        if self._fetcher.cache is not None and (bucket, info) not in self._done:
            self._look_around(bucket, info, decide)

    def folder_listed(self, bucket: Bucket, info: ObjectInfo) -> None:
        """The folder of a shard is being listed: the second of two neighbours brings the next one.

        So does the first shard of a directory, if its folder is the first to be listed: a walk begins there.
        """
        if self._prefetches_beside(info):
            self._look_around(bucket, info, self._open_following)

    def _prefetches_beside(self, info: ObjectInfo) -> bool:
        return self._fetcher.cache is not None and self._max_shards > 0 and is_shard(_name(info))

    def _fetch_following(self, bucket: Bucket, info: ObjectInfo, directory: _Directory) -> None:
        name = _name(info)
        for following in directory.queue.opened(
            name, directory.shards, lambda n: _size(directory, n)
        ):
            listed = directory.listing[following]
            if listed is not None:
                self._fetch(bucket, listed)

    def _fetch_fitting(
        self, bucket: Bucket, info: ObjectInfo, directory: _Directory, *, after_reader: bool = False
    ) -> None:
        cache = self._fetcher.cache
        if cache is not None and fits(directory.total, cache.limit):
            if after_reader:
                self._widen(self._fetcher.open(bucket, info))
            self._fetch(bucket, info, after_reader=after_reader)

    def _widen(self, opened: OpenObject) -> None:
        """Widen the window of a reader of an object that is fetched whole: nothing of it is wasted."""
        with opened.lock:
            ahead = opened.read_ahead.widen()
        if ahead is not None:
            self._fetcher.ahead(opened, ahead)

    def _open_following(self, bucket: Bucket, info: ObjectInfo, directory: _Directory) -> None:
        name = _name(info)
        if name == directory.folder:
            return
        before, directory.folder = directory.folder, name
        following, most = _behind(before, name, directory.shards), self._budget
        if not before and directory.shards[:1] == [name]:
            following, most = next(iter(directory.shards[1:]), None), min(GUESSED_MAX, most)
        listed = directory.listing[following] if following is not None else None
        if listed is not None and listed.size <= most and self._open_folder is not None:
            what = f"opening {bucket}/{listed.key} early"
            work = partial(self._open_folder, bucket, listed)
            self._services.start_soon(unattended, what, work)

    def _look_around(self, bucket: Bucket, info: ObjectInfo, decide: _Decide) -> None:
        """Decide on the directory of a shard as it was last listed, if it ever was.

        To find the shards of a large directory takes a while. It is done in a thread, once, and
        only the first decision waits for it: the others would come too late, or come again.
        """
        prefix, slash, _ = info.key.rpartition("/")
        key = (bucket, prefix + slash)
        listing = self._lister.last_listing(*key)
        known = self._directories.get(key)
        if listing is None or key in self._looking:
            return
        if known is not None and known.listing is listing:
            decide(bucket, info, known)
        elif len(listing) <= AT_ONCE_MAX:
            decide(bucket, info, self._learn(key, *_shards(listing)))
        else:
            self._looking.add(key)
            work = partial(self._look, key, listing, partial(decide, bucket, info))
            what = f"looking for shards beside {bucket}/{info.key}"
            self._services.start_soon(unattended, what, work)

    async def _look(
        self, key: _DirectoryId, listing: Listing, decide: Callable[[_Directory], None]
    ) -> None:
        try:
            found = await trio.to_thread.run_sync(_shards, listing)
        finally:
            self._looking.discard(key)
        decide(self._learn(key, *found))

    def _learn(
        self, key: _DirectoryId, listing: Listing, shards: list[bytes], total: int
    ) -> _Directory:
        """Remember the shards of a directory; how they are read carries over to the next listing."""
        known = self._directories.get(key)
        queue = known.queue if known else ShardQueue(self._max_shards, self._budget)
        folder = known.folder if known else b""
        found = self._directories[key] = _Directory(listing, shards, total, queue, folder)
        return found

    def _fetch(self, bucket: Bucket, info: ObjectInfo, *, after_reader: bool = False) -> None:
        key = (bucket, info)
        if key not in self._under_way and key not in self._done:
            self._under_way.add(key)
            what = f"prefetch of {bucket}/{info.key}"
            self._services.start_soon(
                unattended, what, partial(self._run, bucket, info, after_reader)
            )

    async def _run(self, bucket: Bucket, info: ObjectInfo, after_reader: bool) -> None:
        """Fetch all of an object; what goes wrong is left for a reader to find."""
        try:
            opened = self._fetcher.open(bucket, info)
            if after_reader:
                await _readers_pause(opened)
            async with self._limiter:
                await fill(self._fetcher, opened)
            self._done[bucket, info] = True
        finally:
            self._under_way.discard((bucket, info))


async def _readers_pause(opened: OpenObject) -> None:
    """Wait while an object is read in order."""
    before: list[int] | None = None
    while True:
        with opened.lock:
            now = opened.read_ahead.positions
        if now == before:
            return
        before = now
        await trio.sleep(PAUSE_SECONDS)


async def fill(fetcher: Fetcher, opened: OpenObject) -> None:
    """Fetch what the disk cache lacks of an object; what it has is not read."""
    if opened.cache is None or opened.entry is None:
        return
    whole = ByteRange(0, opened.info.size)
    lacking = RangeSet(await trio.to_thread.run_sync(opened.cache.missing, opened.entry, whole))
    async for _ in fetcher.stream(opened, as_whole=True, lacking=lacking):
        pass


def _behind(before: bytes, name: bytes, shards: Sequence[bytes]) -> bytes | None:
    """Return the shard that follows two neighbours, up or down the names.

    Down as well: a walk that keeps what it has yet to visit on a stack goes backwards.
    """
    place = bisect_left(shards, name)
    if place and shards[place - 1] == before:
        following = place + 1
    elif shards[place + 1 : place + 2] == [before]:
        following = place - 1
    else:
        return None
    return shards[following] if 0 <= following < len(shards) else None


def _shards(listing: Listing) -> tuple[Listing, list[bytes], int]:
    """Find the shards of a directory, and what they take together."""
    shards = sorted(n for _, n, listed in listing.after(0) if listed and is_shard(n))
    return listing, shards, sum(_object_size(listing, n) for n in shards)


def _name(info: ObjectInfo) -> bytes:
    return os.fsencode(info.key.rpartition("/")[2])


def _object_size(listing: Listing, name: bytes) -> int:
    listed = listing[name]
    return listed.size if listed is not None else 0


def _size(directory: _Directory, name: bytes) -> int:
    return _object_size(directory.listing, name)
