"""`aisfs rm`: objects, and the published indexes of shards, are removed."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial

from aisfs.app.buckets.contents import list_from, list_matching
from aisfs.app.buckets.places import Place, find_place
from aisfs.app.publishing.published import Shelf, remove_with_index
from aisfs.core.names.sources import DatasetSource, Everything, ShardPattern
from aisfs.errors import ConfigError, IsADirectory, NotFound, SourceMissing
from aisfs.model import Bucket, ObjectInfo
from aisfs.mount.plan import load_cluster
from aisfs.mount.source import OpenSource, open_source
from aisfs.stores.pipeline import each
from aisfs.stores.registry import as_served, refuse_read_only

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
                await each(jobs, [partial(_remove, shelf, *one) for one in doomed])
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
