"""`aisfs ls`: what is in buckets and directories, a page of the listing at a time.

Names come in the order of their keys, bytewise, as AIStore and `LC_ALL=C sort` order them. What a mount does
not show is not listed either.
"""

import os
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby

from aisfs.app.buckets.places import Place
from aisfs.core.names.listing import UNLISTED, Refusal, entry_name, is_shard, odd_component, refusal
from aisfs.core.names.sources import (
    BucketSource,
    DatasetSource,
    DirectorySource,
    Everything,
    GlobPattern,
    ShardPattern,
    SourceArg,
)
from aisfs.engine.dataset.shard_set import read_shard_list, what_is_there
from aisfs.engine.overlay import Probes
from aisfs.errors import AccessDenied, ConfigError, IsADirectory, NotFound, SourceMissing
from aisfs.model import Bucket, ObjectInfo, Page
from aisfs.mount.plan import check_endpoint, load
from aisfs.mount.source import OpenSource, open_source
from aisfs.settings import ClusterSettings
from aisfs.stores.port import ObjectStore, pages_of

FEW = 8
"""Keys of a directory that are asked for one by one; for more of them, the directory is listed."""


class Kind(StrEnum):
    """What an entry is."""

    BUCKET = "bucket"
    DIRECTORY = "directory"
    SHARD = "shard"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a listing."""

    kind: Kind
    url: str
    """The whole name, which is a SOURCE again; that of a directory ends in `/`."""
    path: str
    """The same below the SOURCE that was listed."""
    bucket: Bucket
    info: ObjectInfo | None = None
    """Of an object or a shard."""


Batches = AsyncGenerator[list[Entry], None]
_Below = Callable[[str], bool]


async def list_place(
    place: Place, settings: Mapping[str, object], refused: Counter[str], *, recursive: bool
) -> Batches:
    """Yield what one SOURCE has, in batches.

    Args:
        place: What the SOURCE stands for.
        settings: The options that were given, by name of the setting.
        refused: Counts the keys that cannot be paths, by reason.
        recursive: List the objects at any depth, and no directories.

    Raises:
        AisfsError: it does not exist, cannot be reached, or makes no sense.
    """
    cluster = load(ClusterSettings, settings)
    check_endpoint(place.source, cluster)
    async with open_source(place.source, cluster, may_be_unlistable=True) as opened:
        async for batch in list_opened(opened, place, refused, recursive=recursive):
            yield batch


async def list_opened(
    opened: OpenSource, place: Place, refused: Counter[str], *, recursive: bool
) -> Batches:
    """Yield what a place has whose source is open; see `list_place`."""
    contents = _Contents(opened.store, refused, recursive=recursive)
    match opened.source:
        case Everything():
            buckets = sorted(await opened.store.list_buckets(place.provider), key=str)
            yield [Entry(Kind.BUCKET, str(bucket), str(bucket), bucket) for bucket in buckets]
        case BucketSource() | DirectorySource():
            async for batch in contents.of_prefix(opened.bucket, place.prefix, place.text):
                yield batch
        case DatasetSource(words):
            async for batch in contents.of_words(words):
                yield batch


def list_from(
    store: ObjectStore, bucket: Bucket, prefix: str, refused: Counter[str], *, recursive: bool
) -> Batches:
    """Yield what is below a prefix of a bucket of a store; see `list_place`."""
    return _Contents(store, refused, recursive=recursive).of_prefix(bucket, prefix, prefix)


def list_matching(store: ObjectStore, pattern: ShardPattern, refused: Counter[str]) -> Batches:
    """Yield the objects that match a pattern."""
    assert pattern.bucket is not None, "local files have a bucket once their root is known"
    contents = _Contents(store, refused, recursive=True)
    return contents.matching(pattern.bucket, pattern.directory, GlobPattern(pattern.rest))


class _Contents:
    """Lists what is in one store."""

    def __init__(self, store: ObjectStore, refused: Counter[str], *, recursive: bool) -> None:
        self._store = store
        self._probes = Probes(store)
        self._refused = refused
        self._recursive = recursive
        self._beside: set[str] = set()
        """Directories that have the name of an object: AIStore's listings of them lack names."""

    async def of_prefix(self, bucket: Bucket, prefix: str, text: str) -> Batches:
        """Yield what is below a prefix, or the object of that name, which is then called `text`."""
        if not prefix:
            async for batch in self._directory(bucket, "", ""):
                yield batch
            return
        found = await self._find(bucket, prefix.removesuffix("/"))
        if found is not None and bucket.path:  # a file is no directory as well
            yield [_entry(bucket, found.key, found, text)]
            return
        if found is not None and bucket.is_local:
            self._beside.add(prefix)
        some = False
        async for batch in self._directory(bucket, prefix, prefix):
            some = True
            yield batch
        if some:
            return
        if found is None:
            there, _ = await what_is_there(bucket, prefix, self._store)
            raise SourceMissing(f"{bucket}/{prefix}: no such object or directory; {there}")
        yield [_entry(bucket, found.key, found, text)]

    async def of_words(self, words: tuple[SourceArg, ...]) -> Batches:
        """Yield the keys that braces, globs and lists name, in the order in which they do."""
        for word in words:
            some = False
            for place, patterns in groupby(word.patterns, _place):
                async for batch in self._of_patterns(place, list(patterns)):
                    some = True
                    yield batch
            if not some:
                bucket, directory, _ = _place(word.patterns[0])
                there, _ = await what_is_there(bucket, directory, self._store)
                raise SourceMissing(f"{word.text}: nothing there has such a name; {there}")

    async def _of_patterns(
        self, place: tuple[Bucket, str, bool], patterns: list[ShardPattern]
    ) -> Batches:
        """Yield what patterns of one directory name; all of them name single keys, or none does."""
        bucket, directory, single = place
        if single and len(patterns) > FEW:
            async for batch in self._chosen(bucket, directory, [p.rest for p in patterns]):
                yield batch
            return
        for pattern in patterns:
            if pattern.listing and (found := await self._of_list(bucket, pattern)) is not None:
                inner = found
            elif single:
                inner = self._of_key(bucket, directory + pattern.rest)
            elif pattern.rest:
                inner = self.matching(bucket, directory, GlobPattern(pattern.rest))
            else:
                inner = self._whole(self._directory(bucket, directory, directory))
            async for batch in inner:
                yield batch

    async def _of_key(self, bucket: Bucket, key: str) -> Batches:
        with suppress(SourceMissing):  # a hole between the others
            async for batch in self._whole(self.of_prefix(bucket, f"{key}/", "")):
                yield batch

    async def _of_list(self, bucket: Bucket, pattern: ShardPattern) -> Batches | None:
        """Return what a list of shards in a bucket names; None for other JSON."""
        info = await self._find(bucket, pattern.directory + pattern.rest)
        if info is None:
            return None
        try:
            shards = await read_shard_list(pattern, info, self._store)
        except ConfigError:
            return None
        return self.of_words((SourceArg(str(pattern), tuple(shards)),))

    async def _chosen(self, bucket: Bucket, directory: str, names: list[str]) -> Batches:
        """Yield those entries of a directory that are named, in the order of the names."""
        wanted = {directory + name for name in names}
        found: dict[str, Entry] = {}
        async for batch in self._level(bucket, directory):
            for key, info in batch:
                if info is not None and key in wanted:
                    found[key] = _entry(bucket, key, info)
        chosen = [found[directory + name] for name in names if directory + name in found]
        if chosen:
            yield chosen

    async def matching(self, bucket: Bucket, directory: str, glob: GlobPattern) -> Batches:
        """Yield what matches below a directory, with whole names."""
        cut = len(directory)
        async for batch in self._tree(bucket, directory, lambda key: glob.enters(key[cut:])):
            found = [(key, info) for key, info in batch if glob.matches(key[cut:])]
            if found:
                yield [_entry(bucket, key, info) for key, info in found]

    async def _whole(self, batches: Batches) -> Batches:
        """Yield entries with their whole names."""
        async for batch in batches:
            yield [replace(each, path=each.url) for each in batch]

    async def _directory(self, bucket: Bucket, prefix: str, base: str) -> Batches:
        """Yield what is in a directory, with names below `base`."""
        deep = self._tree(bucket, prefix, lambda key: True)
        async for batch in deep if self._recursive else self._level(bucket, prefix):
            yield [_entry(bucket, key, info, key[len(base) :]) for key, info in batch]

    async def _tree(
        self, bucket: Bucket, prefix: str, enters: _Below
    ) -> AsyncIterator[list[tuple[str, ObjectInfo | None]]]:
        """Yield the objects below a prefix, in the order of their keys."""
        async for batch in self._level(bucket, prefix):
            objects: list[tuple[str, ObjectInfo | None]] = []
            for key, info in batch:
                if info is not None:
                    objects.append((key, info))
                    continue
                if objects:
                    yield objects
                    objects = []
                if enters(key):
                    async for inner in self._tree(bucket, key, enters):
                        yield inner
            if objects:
                yield objects

    async def _level(
        self, bucket: Bucket, prefix: str
    ) -> AsyncIterator[list[tuple[str, ObjectInfo | None]]]:
        """Yield keys and prefixes in a directory, sorted, each once; no batch is empty.

        Names that a page has are held back until the next page, which may repeat some and bring
        others between them, begins behind them.
        """
        held: dict[str, ObjectInfo | None] = {}
        before: list[str] = []
        async for page in self._pages(bucket, prefix):
            new = self._shown(prefix, page)
            if not new:
                continue
            first = min(map(os.fsencode, new))
            ready = [name for name in held if os.fsencode(name) < first]
            batch = await self._settled(bucket, prefix, ready, before)
            if batch:
                yield [(name, held[name]) for name in batch]
                before = batch
            for name in ready:
                del held[name]
            held.update(new)
        batch = await self._settled(bucket, prefix, list(held), before)
        if batch:
            yield [(name, held[name]) for name in batch]

    async def _pages(self, bucket: Bucket, prefix: str) -> AsyncIterator[Page]:
        ends = (at + 1 for at, character in enumerate(prefix) if character == "/")
        if self._beside and any(prefix[:end] in self._beside for end in ends):
            yield await self._probes.page((bucket, prefix))
            return
        async for page in pages_of(self._store, bucket, prefix):
            yield page

    def _shown(self, prefix: str, page: Page) -> dict[str, ObjectInfo | None]:
        """Return the entries of a page that a mount would list."""
        shown: dict[str, ObjectInfo | None] = {}
        if page.left_out:
            self._refused[Refusal.NO_FILE.value] += page.left_out
        self._refused.update(filter(None, (odd_component(prefix, key) for key in page.unusable)))
        for info in page.objects:
            if info.key != prefix:  # the zero-size marker some tools leave for a directory
                self._add(shown, prefix, info.key, info)
        for directory in page.directories:
            if entry_name(prefix, directory) != UNLISTED:
                self._add(shown, prefix, directory, None)
        return shown

    def _add(
        self,
        shown: dict[str, ObjectInfo | None],
        prefix: str,
        key: str,
        info: ObjectInfo | None,
    ) -> None:
        reason = refusal(entry_name(prefix, key))
        if info is not None and key.endswith("/"):
            reason = Refusal.EMPTY_COMPONENT
        if reason is None:
            shown[key] = info
        else:
            self._refused[reason.value] += 1

    async def _settled(
        self, bucket: Bucket, prefix: str, names: list[str], before: list[str]
    ) -> list[str]:
        """Return names in order, without directories that are gone.

        AIStore lists a directory after its last object was removed. Where an object has its name,
        that is asked for, as a mount does.
        """
        objects = {*names, *before}
        doubtful = [name for name in names if name.endswith("/") and name[:-1] in objects]
        gone: set[str] = set()
        if doubtful:
            by_name = {entry_name(prefix, name): name for name in doubtful}
            occupied = await self._probes.occupied((bucket, prefix), by_name.keys())
            gone = {name for each, name in by_name.items() if each not in occupied}
            if bucket.is_local:
                self._beside.update(by_name[each] for each in occupied)
        return sorted((name for name in names if name not in gone), key=os.fsencode)

    async def _find(self, bucket: Bucket, key: str) -> ObjectInfo | None:
        try:
            return await self._store.head(bucket, key)
        except (NotFound, IsADirectory, AccessDenied):
            return None


def _place(pattern: ShardPattern) -> tuple[Bucket, str, bool]:
    assert pattern.bucket is not None, "local files have a bucket once their root is known"
    return pattern.bucket, pattern.directory, pattern.one and not pattern.listing


def _entry(bucket: Bucket, key: str, info: ObjectInfo | None, path: str | None = None) -> Entry:
    url = f"{bucket}/{key}"
    if info is None:
        kind = Kind.DIRECTORY
    else:
        kind = Kind.SHARD if is_shard(os.fsencode(key.rpartition("/")[2])) else Kind.OBJECT
    return Entry(kind, url, url if path is None else path, bucket, info)
