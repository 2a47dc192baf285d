"""The published index of one shard: looked at and written."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import trio

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import (
    LabelColumn,
    PublishedIndex,
    ScanRules,
    decode_published,
    encode_published,
    most_bytes,
)
from aisfs.core.names.listing import IndexPlace, is_shard
from aisfs.engine.dataset.shard_set import Shard
from aisfs.engine.index_sources import IndexBucket
from aisfs.errors import (
    AccessDenied,
    AlreadyExists,
    BucketNotFound,
    IndexOutdated,
    IndexRefused,
    InvalidName,
    NotFound,
    Stale,
    Unsupported,
)
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.port import BytesContent, ObjectStore, WritableStore

MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where indexes are published: in their bucket, beside their shards, or elsewhere, to be brought there."""

    store: WritableStore
    own: IndexBucket | None = None
    """The bucket of indexes; None for beside the shards."""
    elsewhere: Bucket | None = None
    """What has them instead."""
    shards: str = ""
    """The directory of all shards, for which `elsewhere` stands."""

    async def place(self, bucket: Bucket) -> IndexPlace:
        """Return where the indexes of a bucket's shards are published."""
        if self.own is None:
            return IndexPlace(bucket)
        with explained(self.own):
            return await self.own.place(bucket)

    def key(self, place: IndexPlace, shard: Shard) -> tuple[Bucket, str]:
        """Return the bucket and the key of a shard's index."""
        key = place.key(shard.info.key)
        if self.elsewhere is None:
            return place.bucket, key
        return self.elsewhere, key.removeprefix(self.shards)


@contextmanager
def explained(own: IndexBucket) -> Iterator[None]:
    """Say of a token that may not what the bucket is for, and what there is instead."""
    try:
        yield
    except AccessDenied as error:
        raise AccessDenied(
            f"{error}: published indexes go into {own.bucket}, which this token may not make, read or"
            " write: have it made (aisfs mb) and permitted, name another bucket with --index-bucket, or"
            " put them beside the shards with --index-bucket ''"
        ) from error


@dataclass(frozen=True, slots=True)
class Found:
    """What is published of a shard."""

    index: PublishedIndex | str
    """Of exactly this version; otherwise why what there is is of no use."""
    beside: bool = False
    """Whether an index was found beside the shard, though there is a bucket for it."""


async def find_published(shelf: Shelf, shard: Shard, scan: ScanRules) -> Found:
    """Look where it is published now, then beside the shard, where it was published once."""
    place = await shelf.place(shard.bucket)
    if shelf.own is None:
        return Found(await _find_at(shelf.store, *shelf.key(place, shard), place, shard, scan))
    with explained(shelf.own):
        found = await _find_at(shelf.store, *shelf.key(place, shard), place, shard, scan)
    if isinstance(found, PublishedIndex):
        return Found(found)
    place = IndexPlace(shard.bucket)
    beside = await _find_at(shelf.store, *shelf.key(place, shard), place, shard, scan)
    there = beside != MISSING
    return Found(beside if isinstance(beside, PublishedIndex) or found == MISSING else found, there)


async def _find_at(
    store: ObjectStore, bucket: Bucket, key: str, place: IndexPlace, shard: Shard, scan: ScanRules
) -> PublishedIndex | str:
    try:
        info = await store.head(bucket, key)
        if info.size > most_bytes(shard.info):
            return f"damaged: {info.size} bytes are too many for an index of it"
        data = bytearray(info.size)
        if data:
            await store.read_range(bucket, info, 0, memoryview(data))
    except (NotFound, Stale):  # an index that is replaced right now is not there either
        return MISSING
    try:
        renewable = place.renewable
        decode = partial(decode_published, bytes(data), shard.info, scan, renewable=renewable)
        return await trio.to_thread.run_sync(decode)
    except IndexOutdated as error:
        return f"stale: {error}"
    except IndexRefused as error:
        return f"damaged: {error}"


async def publish(
    store: ObjectStore,
    shelf: Shelf,
    shard: Shard,
    index: MemberIndex,
    labels: Mapping[str, LabelColumn],
    scan: ScanRules,
) -> None:
    """Publish an index, if the shard still is the version that was scanned.

    Args:
        store: Has the shard.
        shelf: Where its index goes.
        shard: As it was scanned.
        index: Its members.
        labels: Columns of their labels, by rule.
        scan: How it was scanned.

    Raises:
        Stale: it is not.
        Unsupported: such an index cannot be published.
    """
    now = await store.head(shard.bucket, shard.info.key)
    if not _is_same(shard.info, now):
        raise Stale(f"{shard.bucket}/{shard.info.key} changed while it was scanned; run it again")
    place = await shelf.place(shard.bucket)
    encode = partial(encode_published, now, index, labels, scan, renewable=place.renewable)
    try:
        data = await trio.to_thread.run_sync(encode)
    except ValueError as error:
        raise Unsupported(str(error)) from error
    await put(shelf, *shelf.key(place, shard), data)


async def put(shelf: Shelf, bucket: Bucket, key: str, data: bytes) -> None:
    """Write an index; make the bucket of indexes if it is missing."""
    upload = partial(shelf.store.upload, bucket, key, BytesContent(data))
    if shelf.own is None:
        await upload()
        return
    with explained(shelf.own):
        try:
            await upload()
        except BucketNotFound:
            with suppress(AlreadyExists):  # another client was faster
                await shelf.store.create_bucket(bucket)
            await upload()


def _is_same(before: ObjectInfo, now: ObjectInfo) -> bool:
    versions = before.version and now.version
    return before.same_bytes(now) and (not versions or before.version == now.version)


async def remove_with_index(shelf: Shelf, bucket: Bucket, key: str) -> None:
    """Remove an object, and what is published as its index, wherever that lies.

    Raises:
        NotFound: there is no such object.
    """
    await shelf.store.remove(bucket, key)
    if not is_shard(os.fsencode(key.rpartition("/")[2])):
        return
    places = [IndexPlace(bucket)] + ([await shelf.place(bucket)] if shelf.own is not None else [])
    for place in places:
        # Without permission it stays, and is of no use to anybody.
        with suppress(NotFound, BucketNotFound, AccessDenied, InvalidName, Unsupported):
            await shelf.store.remove(place.bucket, place.key(key))
