"""`aisfs index --move`: moves published indexes from beside their shards into the bucket of indexes.

It moves all of them, also those of shards that changed or are gone: programs that read the bucket would trip over them.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import trio

from aisfs.core.index.published import decode_published, encode_published
from aisfs.core.names.listing import INDEX_DIRECTORY, IndexPlace, published_key, shard_of_published
from aisfs.core.names.sources import DatasetSource, GlobPattern, KeyFilter, ShardPattern
from aisfs.engine.dataset.shard_set import read_shard_list
from aisfs.engine.index_sources import IndexBucket
from aisfs.errors import (
    BucketNotFound,
    ConfigError,
    IndexRefused,
    InvalidName,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotFound,
    ProtocolError,
    Stale,
)
from aisfs.model import Bucket, ObjectInfo
from aisfs.mount.setup import load_cluster, read_shards
from aisfs.mount.source import open_source
from aisfs.stores.pipeline import all_of
from aisfs.stores.port import ObjectStore, pages_of
from aisfs.work.publishing import Shelf, explained, put

_MOST_BYTES = 256 << 20
"""No index is longer."""
_OF_ONE = (InvalidName, IsADirectory, NameTooLong, NotADirectory, ProtocolError, Stale)
"""What is wrong with one index, and not with all."""

Beside = tuple[Bucket, str, ObjectInfo]
"""The bucket of a shard, its key, and the index beside it."""


@dataclass(slots=True)
class Moved:
    """What was done, or would be."""

    bucket: Bucket
    """Where the indexes are now."""
    moved: list[str] = field(default_factory=list)
    dropped: int = 0
    """How many of these were there already, as good or better."""
    left: dict[str, str] = field(default_factory=dict)
    """By index, why it was left where it is."""


async def move_indexes(
    words: Sequence[str], settings: Mapping[str, object], *, jobs: int, dry_run: bool
) -> Moved:
    """Move the indexes that lie beside the shards of SOURCEs; a run that was ended is continued by the next.

    Raises:
        ConfigError: there is no bucket for them, or a SOURCE makes no sense.
        AisfsError: one failed with what all would fail with.
    """
    source = read_shards(words, settings)
    cluster = load_cluster(source, settings)
    async with open_source(source, cluster, may_be_unlistable=True) as opened:
        own = opened.index_bucket
        if own is None:
            raise ConfigError(
                "--move: there is no bucket for them without AIStore, or with --index-bucket ''"
            )
        shelf, moved = Shelf(opened.store, own), Moved(own.bucket)
        found = {
            (bucket, shard): (bucket, shard, info)
            async for bucket, shard, info in _all_beside(source, opened.store, own)
        }

        async def one(beside: Beside) -> None:
            bucket, _, info = beside
            name = f"{bucket}/{info.key}"
            try:
                needed = dry_run or await _move(shelf, own, beside)
                moved.dropped += not needed
                moved.moved.append(name)
            except BucketNotFound:
                raise
            except NotFound:  # another run was faster
                pass
            except _OF_ONE as error:
                moved.left[name] = str(error)

        await all_of((partial(one, beside) for beside in found.values()), jobs)
    return moved


async def _all_beside(
    source: DatasetSource, store: ObjectStore, own: IndexBucket
) -> AsyncIterator[Beside]:
    """Yield the indexes beside shards that a source names, or could name if they were there."""
    patterns = [pattern for word in source.words for pattern in word.patterns]
    for pattern in patterns:
        if pattern.listing and pattern.bucket is not None:
            info = await store.head(pattern.bucket, pattern.directory + pattern.rest)
            patterns += await read_shard_list(pattern, info, store)
        elif pattern.bucket is not None and pattern.bucket != own.bucket:
            async for shard, info in _beside(pattern, pattern.bucket, source.keys, store):
                yield pattern.bucket, shard, info


async def _beside(
    pattern: ShardPattern, bucket: Bucket, keys: KeyFilter, store: ObjectStore
) -> AsyncIterator[tuple[str, ObjectInfo]]:
    key, cut = pattern.directory + pattern.rest, len(pattern.directory)
    if pattern.one:
        with suppress(NotFound):
            if keys.wants(pattern.rest):
                yield key, await store.head(bucket, published_key(key))
        return
    glob = GlobPattern(pattern.rest) if pattern.rest else None

    def wants(shard: str) -> bool:
        return keys.wants(shard[cut:]) and (glob is None or glob.matches(shard[cut:]))

    def enters(directory: str) -> bool:
        path = directory[cut:]
        if path[:-1].rpartition("/")[2] == INDEX_DIRECTORY:
            return True
        return keys.enters(path) and (glob is None or glob.enters(path))

    pending = [pattern.directory]
    while pending:
        async for page in pages_of(store, bucket, pending.pop()):
            for info in page.objects:
                shard = shard_of_published(info.key)
                if shard is not None and wants(shard):
                    yield shard, info
            pending += filter(enters, page.directories)


async def _move(shelf: Shelf, own: IndexBucket, beside: Beside) -> bool:
    """Move one; return whether it was needed there."""
    bucket, shard, info = beside
    if info.size > _MOST_BYTES:
        raise InvalidName(f"{info.size} bytes are no published index")
    store, place = shelf.store, await shelf.place(bucket)
    data = await _read(store, bucket, info)
    now = await _head(store, bucket, shard)
    if now is not None:
        data = await trio.to_thread.run_sync(_as_in, place, data, now)
    with explained(own):
        there = await _find(store, place, shard)
    wanted = there is None
    if there not in (None, data) and now is not None:
        wanted = await trio.to_thread.run_sync(_is_better, place, data, there, now)
    if wanted:
        await put(shelf, place.bucket, place.key(shard), data)
        with explained(own):
            there = await _find(store, place, shard)
        if there != data:
            raise Stale(f"{place.bucket}/{place.key(shard)} is not what was written there")
    with suppress(NotFound):
        await store.remove(bucket, info.key)
    return wanted


async def _head(store: ObjectStore, bucket: Bucket, shard: str) -> ObjectInfo | None:
    try:
        return await store.head(bucket, shard)
    except NotFound:
        return None


async def _find(store: ObjectStore, place: IndexPlace, shard: str) -> bytes | None:
    try:
        return await _read(store, place.bucket, await store.head(place.bucket, place.key(shard)))
    except NotFound:
        return None


async def _read(store: ObjectStore, bucket: Bucket, info: ObjectInfo) -> bytes:
    data = bytearray(info.size)
    if data:
        await store.read_range(bucket, info, 0, memoryview(data))
    return bytes(data)


def _as_in(place: IndexPlace, data: bytes, shard: ObjectInfo) -> bytes:
    """Return an index as it would have been published in a place, if it is of the shard as it is now."""
    if _is_good(place, data, shard):
        return data
    try:
        found = decode_published(data, shard)
        return encode_published(
            shard, found.index, found.labels, found.scan, renewable=place.renewable
        )
    except (IndexRefused, ValueError):
        return data


def _is_good(place: IndexPlace, data: bytes, shard: ObjectInfo) -> bool:
    try:
        decode_published(data, shard, renewable=place.renewable)
    except IndexRefused:
        return False
    return True


def _is_better(place: IndexPlace, data: bytes, there: bytes, shard: ObjectInfo) -> bool:
    """Return whether an index is of the shard as it is now, and the one that is there is not."""
    return _is_good(place, data, shard) and not _is_good(place, there, shard)
