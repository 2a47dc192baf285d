"""Buckets without a mount: `aisfs ls`, a page of the listing at a time, `aisfs mb` and `aisfs rm`.

Names come in the order of their keys, bytewise, as AIStore and `LC_ALL=C sort` order them. What a mount does
not show is not listed either.
"""

import os
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import groupby
from pathlib import Path
from shlex import quote

from aisfs.core.names.listing import (
    SHARD_DIRECTORY_SUFFIX,
    UNLISTED,
    Refusal,
    check_new_bucket,
    entry_name,
    is_shard,
    odd_component,
    refusal,
)
from aisfs.core.names.sources import (
    BucketSource,
    DatasetSource,
    DirectorySource,
    Everything,
    GlobPattern,
    ShardPattern,
    Source,
    SourceArg,
    missing_path,
    parse_source,
    parse_sources,
)
from aisfs.engine.dataset.shard_set import read_shard_list, what_is_there
from aisfs.engine.overlay import Probes
from aisfs.errors import (
    AccessDenied,
    AlreadyExists,
    ConfigError,
    InvalidName,
    IsADirectory,
    NotFound,
    SourceMissing,
    Unsupported,
)
from aisfs.model import SERVED, Bucket, ObjectInfo, Page, Provider
from aisfs.mount.setup import (
    check_endpoint,
    existing,
    load,
    load_cluster,
    may_be_directory,
    read_lists,
    read_shards,
)
from aisfs.mount.source import OpenSource, open_source
from aisfs.settings import ClusterSettings
from aisfs.stores.pipeline import all_of
from aisfs.stores.port import ObjectStore, pages_of
from aisfs.stores.registry import as_served, refuse_read_only
from aisfs.work.publishing import Shelf, remove_with_index


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look for one SOURCE."""

    text: str
    """As it was typed; empty where none was."""
    source: Source
    """What has to exist: a whole bucket, or a local directory."""
    prefix: str = ""
    """The directory, or the object, of that bucket; empty, or ends in `/`."""
    provider: Provider | None = None
    """Whose buckets are meant, where all of them are."""


def find_listed(words: Sequence[str], files_from: str) -> Place:
    """Return what a list file stands for; the one word, if there is one, is the directory of its lines.

    Raises:
        ConfigError: it cannot be read, or makes no sense.
    """
    return Place("", read_shards(words, {"files_from": files_from}))


def find_place(text: str | None, settings: Mapping[str, object], *, lists: bool = True) -> Place:
    """Return what one argument stands for; without one, all buckets.

    Args:
        text: As typed.
        settings: The options that were given, by name of the setting.
        lists: Whether a list of shards stands for these, and not for itself.

    Raises:
        ConfigError: it makes no sense.
        SourceMissing: there is no such local file or directory.
    """
    if text is None:
        return Place("", Everything())
    scheme, separator, rest = text.partition("://")
    if separator and not rest:
        return Place(text, Everything(), provider=_provider(text, scheme))
    listed = read_lists([text]) if lists else {}
    exists = existing(settings)
    source = parse_sources([text], is_directory=os.path.isdir, lists=listed, exists=exists)
    if isinstance(source, DatasetSource) and not listed:
        first, *more = source.words[0].patterns
        is_list = lists and first.bucket is not None and first.listing
        is_one = first.one and not more and not is_list
        if is_one and may_be_directory(text, first):
            return _one(text, first)
    match source:
        case DirectorySource(path):
            return _local(text, path)
        case BucketSource(bucket, prefix):
            return Place(text, BucketSource(bucket, ""), prefix)
    return Place(text, source)


def _one(text: str, pattern: ShardPattern) -> Place:
    """Return the place of one key, which may also be a directory."""
    path = pattern.directory + pattern.rest
    if pattern.bucket is None:
        return _local(text, Path(path))
    return Place(text, BucketSource(pattern.bucket, ""), f"{path}/")


def _provider(text: str, scheme: str) -> Provider:
    known = ", ".join(f"{provider.scheme}://" for provider in SERVED)
    try:
        provider = Provider.parse(scheme)
    except ValueError:
        raise ConfigError(f"{text}: unknown provider {scheme!r}; use one of {known}") from None
    if provider.is_direct:
        raise ConfigError(f"{text}: only AIStore lists its buckets ({known}); name one")
    return provider


def _local(text: str, path: Path) -> Place:
    if path.is_dir():
        return Place(text, DirectorySource(path))
    if not path.exists():
        raise SourceMissing(missing_path(path, "file or directory"))
    return Place(text, DirectorySource(path.parent, path.name), f"{path.name}/")


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
    return _Contents(store, refused, recursive=recursive).of_prefix(bucket, prefix, "")


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
            yield [_named_so(bucket, found, text)]
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
            shard = prefix.removesuffix("/").removesuffix(os.fsdecode(SHARD_DIRECTORY_SUFFIX))
            if is_shard(os.fsencode(shard)) and await self._find(bucket, shard):
                there += f"; {_inspect(f'{bucket}/{shard}')}"
            raise SourceMissing(f"{bucket}/{prefix}: no such object or directory; {there}")
        yield [_named_so(bucket, found, text)]

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


def _named_so(bucket: Bucket, found: ObjectInfo, text: str) -> Entry:
    """Return the entry of an object that a SOURCE names.

    Raises:
        SourceMissing: the SOURCE asks for what is in a shard.
    """
    if text.endswith("/") and is_shard(os.fsencode(found.key)):
        raise SourceMissing(f"{text} is a shard: {_inspect(text)}")
    return _entry(bucket, found.key, found, text)


def _inspect(shard: str) -> str:
    return f"`aisfs inspect {quote(shard.rstrip('/'))}` shows what it contains"


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


async def make_buckets(
    texts: Sequence[str], settings: Mapping[str, object], *, may_exist: bool
) -> list[str]:
    """Make buckets; return those of them that were not there.

    Args:
        texts: As typed.
        settings: The options that were given, by name of the setting.
        may_exist: Accept those that are there.

    Raises:
        ConfigError: AIStore makes no bucket of such a name; then none is made.
        AlreadyExists: one is there; those before it are made.
    """
    buckets = [_parse(text) for text in texts]
    made = []
    cluster = load_cluster(Everything(), settings)
    async with open_source(Everything(), cluster, may_be_unlistable=True) as opened:
        for bucket in buckets:
            try:
                await opened.store.create_bucket(bucket)
                made.append(str(bucket))
            except AlreadyExists as error:
                if not may_exist:
                    raise AlreadyExists(f"{bucket} exists; --exist-ok accepts that") from error
    return made


def _parse(text: str) -> Bucket:
    source = parse_source(text)
    if not isinstance(source, BucketSource):
        raise ConfigError(f"{text}: write a bucket as ais://NAME")
    if source.prefix:
        raise ConfigError(f"{text}: a bucket's name has no `/`; directories need not be made")
    try:
        check_new_bucket(source.bucket)
    except (InvalidName, Unsupported) as error:
        raise ConfigError(str(error)) from error
    return source.bucket


_Doomed = tuple[Bucket, ObjectInfo]
"""An object that is to be removed."""


@dataclass(slots=True)
class Removal:
    """What is removed."""

    keys: list[str] = field(default_factory=list)
    """The whole name of each object."""
    size: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Names in directories that cannot be paths, which stay, by reason."""


async def remove(
    texts: Sequence[str],
    settings: Mapping[str, object],
    *,
    recursive: bool,
    jobs: int,
    dry_run: bool,
) -> Removal:
    """Remove what SOURCEs name, once all of them were found; see `aisfs ls` for what they stand for.

    Args:
        texts: As typed.
        settings: The options that were given, by name of the setting.
        recursive: Remove all that is in directories, too.
        jobs: Objects to remove at once.
        dry_run: Only find them.

    Raises:
        ConfigError: a SOURCE makes no sense, or names a directory without `recursive`; nothing is removed.
        SourceMissing: there is nothing of that name; nothing is removed.
        AisfsError: one could not be removed.
    """
    done = Removal()
    async with AsyncExitStack() as stack:
        found: list[tuple[OpenSource, list[_Doomed]]] = []
        for text in texts:
            place = find_place(text, settings, lists=False)
            if isinstance(place.source, Everything):
                raise ConfigError(f"{text}: name objects, or directories with --recursive")
            cluster = load_cluster(place.source, settings)
            refuse_read_only(as_served(place.source, cluster), cluster)
            source = open_source(place.source, cluster, may_be_unlistable=True)
            opened = await stack.enter_async_context(source)
            finder = _Finder(opened, done.refused, recursive=recursive)
            doomed = [one async for one in finder.find(place)]
            found.append((opened, doomed))
            done.keys += [f"{bucket}/{info.key}" for bucket, info in doomed]
            done.size += sum(info.size for _, info in doomed)
        if not dry_run:
            for opened, doomed in found:
                shelf = Shelf(opened.store, opened.index_bucket)
                await all_of((partial(_remove, shelf, *one) for one in doomed), jobs)
    return done


async def _remove(shelf: Shelf, bucket: Bucket, info: ObjectInfo) -> None:
    with suppress(NotFound):  # another client was faster
        await remove_with_index(shelf, bucket, info.key)


class _Finder:
    """Finds what a SOURCE names."""

    def __init__(self, opened: OpenSource, refused: Counter[str], *, recursive: bool) -> None:
        self._opened = opened
        self._refused = refused
        self._recursive = recursive

    async def find(self, place: Place) -> AsyncIterator[_Doomed]:
        """Yield the objects of a place.

        Raises:
            SourceMissing: there are none.
        """
        if not isinstance(self._opened.source, DatasetSource):
            key = place.prefix.removesuffix("/")
            async for one in self._named(self._opened.bucket, key, place.text):
                yield one
            return
        for word in self._opened.source.words:
            some = False
            for pattern in word.patterns:
                async for one in self._of_pattern(pattern, word.text):
                    some = True
                    yield one
            if not some:
                raise SourceMissing(f"{word.text}: nothing there has such a name")

    async def _of_pattern(self, pattern: ShardPattern, text: str) -> AsyncIterator[_Doomed]:
        assert pattern.bucket is not None, "local files have a bucket once their root is known"
        if pattern.one or not pattern.rest:
            with suppress(SourceMissing):  # a hole between the others
                key = (pattern.directory + pattern.rest).removesuffix("/")
                async for one in self._named(pattern.bucket, key, text):
                    yield one
            return
        matching = list_matching(self._opened.store, pattern, self._refused)
        async for batch in matching:
            for entry in batch:
                if entry.info is not None:
                    yield entry.bucket, entry.info

    async def _named(self, bucket: Bucket, key: str, text: str) -> AsyncIterator[_Doomed]:
        """Yield the object of this name, or all that is in the directory."""
        store = self._opened.store
        if key and not text.endswith("/"):
            with suppress(NotFound, IsADirectory):
                yield bucket, await store.head(bucket, key)
                return
        prefix = f"{key}/" if key else ""
        if not self._recursive:
            if not (await store.first_keys(bucket, prefix, 1)).found:
                raise SourceMissing(f"{bucket}/{key}: no such object or directory")
            raise ConfigError(f"{text} is a directory: --recursive removes all that is in it")
        async for batch in list_from(store, bucket, prefix, self._refused, recursive=True):
            for entry in batch:
                if entry.info is not None:
                    yield bucket, entry.info
