"""Objects that a store sends only whole, as streams to be read piece by piece."""

from collections.abc import AsyncGenerator

import trio

from aisfs.cache.block_cache import BlockCache
from aisfs.cache.format import EntryId
from aisfs.engine.fetch.object_state import Source
from aisfs.errors import NoRanges, Unavailable
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.port import ObjectStore

Cached = tuple[BlockCache, EntryId, Source]
"""Where an object is on disk, and what brings it there."""

_AHEAD = 4
"""Pieces that wait for the reader: a stream is not held up by each write to the disk."""


def not_to_be_had(bucket: Bucket, info: ObjectInfo) -> Cached:
    """Refuse to read an object that the store sends only whole."""
    raise NoRanges(f"{bucket}/{info.key}: the store sends it only whole")


async def whole_stream(
    store: ObjectStore, bucket: Bucket, info: ObjectInfo, services: trio.Nursery
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield all of an object as (offset, bytes), no faster than the caller takes it.

    Args:
        store: Has the object.
        bucket: Where it is.
        info: Its version.
        services: Outlives the caller.
    """
    send, receive = trio.open_memory_channel[bytes](_AHEAD)
    token = trio.lowlevel.current_trio_token()
    scope = trio.CancelScope()
    failed: list[Exception] = []

    def take(piece: memoryview) -> None:
        # The stream is held up here; it goes on, by an error, as soon as nobody receives any more.
        trio.from_thread.run(send.send, bytes(piece), trio_token=token)

    async def pump() -> None:
        with scope, send:
            try:
                await store.stream(bucket, info, take)
            except trio.BrokenResourceError:
                pass
            except Exception as error:  # noqa: BLE001 - raised where it is received
                failed.append(error)

    services.start_soon(pump)
    position = 0
    try:
        async for piece in receive:
            yield position, piece
            position += len(piece)
    finally:
        receive.close()
        scope.cancel()
    if failed:
        raise failed[0]
    if position < info.size:
        raise Unavailable("the mount is going away")
