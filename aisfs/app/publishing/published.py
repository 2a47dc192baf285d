"""The published index of one shard: looked at and written."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import trio

from aisfs.core.index.label_column import LabelColumn
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import (
    PublishedIndex,
    ScanRules,
    decode_published,
    encode_published,
    most_bytes,
    published_key,
)
from aisfs.engine.dataset.shard_set import Shard
from aisfs.errors import IndexOutdated, IndexRefused, NotFound, Stale, Unsupported
from aisfs.model import Bucket, ObjectInfo
from aisfs.store.content import BytesContent
from aisfs.store.port import ObjectStore, WritableStore

MISSING = "missing"


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """Where indexes are published: beside their shards, or elsewhere, to be brought there."""

    store: WritableStore
    bucket: Bucket | None = None
    """What has them; None for the buckets of the shards."""
    shards: str = ""
    """The directory of all shards, for which `bucket` stands."""

    def of(self, shard: Shard) -> tuple[Bucket, str]:
        """Return the bucket and the key of a shard's index."""
        key = published_key(shard.info.key)
        if self.bucket is None:
            return shard.bucket, key
        return self.bucket, key.removeprefix(self.shards)


async def find_published(place: IndexPlace, shard: Shard, scan: ScanRules) -> PublishedIndex | str:
    """Return what is published of exactly this version, or why that is of no use."""
    bucket, key = place.of(shard)
    try:
        info = await place.store.head(bucket, key)
        if info.size > most_bytes(shard.info):
            return f"damaged: {info.size} bytes are too many for an index of it"
        data = bytearray(info.size)
        if data:
            await place.store.read_range(bucket, info, 0, memoryview(data))
    except (NotFound, Stale):  # an index that is replaced right now is not there either
        return MISSING
    try:
        decode = partial(decode_published, bytes(data), shard.info, scan)
        return await trio.to_thread.run_sync(decode)
    except IndexOutdated as error:
        return f"stale: {error}"
    except IndexRefused as error:
        return f"damaged: {error}"


async def publish(
    store: ObjectStore,
    place: IndexPlace,
    shard: Shard,
    index: MemberIndex,
    labels: Mapping[str, LabelColumn],
    scan: ScanRules,
) -> None:
    """Publish an index, if the shard still is the version that was scanned.

    Args:
        store: Has the shard.
        place: Where its index goes.
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
    try:
        data = await trio.to_thread.run_sync(encode_published, now, index, labels, scan)
    except ValueError as error:
        raise Unsupported(str(error)) from error
    bucket, key = place.of(shard)
    await place.store.upload(bucket, key, BytesContent(data))


def _is_same(before: ObjectInfo, now: ObjectInfo) -> bool:
    versions = before.version and now.version
    return before.same_bytes(now) and (not versions or before.version == now.version)
