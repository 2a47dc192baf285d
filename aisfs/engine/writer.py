"""Brings what was written into the store, and changes names there.

Nothing here decides when; the file system does. What a call reports done, the store has confirmed;
after an error the store holds what it held before.
"""

import logging
from contextlib import suppress

import trio

from aisfs.core.journal import StagedRecord, version_text
from aisfs.core.stamps import stamped
from aisfs.engine.ahead import Ahead
from aisfs.engine.staging import StagedFile, StagingArea
from aisfs.errors import CrossDevice, EmptyMember, NotFound
from aisfs.model import Bucket, ObjectInfo, Page
from aisfs.store.content import BytesContent
from aisfs.store.port import WritableStore

log = logging.getLogger(__name__)

EMPTY_TAR = bytes(1024)
"""Two blocks of zeros: a shard without members, to which AIStore appends."""


class Writer:
    """Writes to the store."""

    def __init__(
        self, store: WritableStore, staging: StagingArea, services: trio.Nursery, *, endpoint: str
    ) -> None:
        """Write to `store` what is in `staging`.

        Args:
            store: What to write to.
            staging: Where files are until then.
            services: Runs what sends large files while they are written.
            endpoint: What the records say about `store`.
        """
        self._store = store
        self._staging = staging
        self._ahead = Ahead(store, services)
        self._endpoint = endpoint
        self._shards: dict[tuple[Bucket, str], trio.Lock] = {}
        """Held while a member is appended to a shard; such calls must not overlap."""

    # staged files ----------------------------------------------------------------------------

    def new(self) -> StagedFile:
        """Give an empty staged file."""
        staged = self._staging.create()
        self._ahead.watch(staged)
        return staged

    def record(
        self,
        staged: StagedFile,
        bucket: Bucket,
        key: str,
        *,
        member: str,
        base: ObjectInfo | None,
        mode: int | None,
    ) -> None:
        """Write down what a staged file is to become, before a change to it is acknowledged."""
        upload = staged.sent_ahead.name if staged.sent_ahead is not None else ""
        base_text = version_text(base)
        staged.mark_dirty(
            StagedRecord(self._endpoint, bucket, key, member, base_text, mode, upload=upload)
        )

    async def load(self, bucket: Bucket, info: ObjectInfo) -> StagedFile:
        """Stage the content of a version of an object.

        Raises:
            Stale, NotFound: it is another version by now, or gone.
            OutOfSpace: it does not fit.
        """
        staged = self._staging.create()
        position = 0

        def take(piece: memoryview) -> None:
            nonlocal position
            staged.fill(position, piece)
            position += len(piece)

        try:
            if info.size:
                staged.truncate(info.size)
                await self._store.stream(bucket, info, take)
        except BaseException:
            staged.discard()
            raise
        return staged

    # objects ---------------------------------------------------------------------------------

    async def head(self, bucket: Bucket, key: str) -> ObjectInfo:
        """Describe the current version of an object."""
        return await self._store.head(bucket, key)

    async def upload(
        self,
        bucket: Bucket,
        key: str,
        staged: StagedFile,
        *,
        base: ObjectInfo | None,
        mtime_ns: int,
        mode: int | None,
    ) -> ObjectInfo:
        """Make the staged content the object's, whole."""
        custom = stamped(base.custom if base else {}, mtime_ns=mtime_ns, mode=mode)
        ahead = await self._ahead.take(staged)
        try:
            return await self._store.upload(
                bucket, key, staged.content(), custom=custom, ahead=ahead
            )
        finally:
            if ahead is not None:
                await ahead.abandon()

    async def set_attributes(
        self, bucket: Bucket, info: ObjectInfo, *, mtime_ns: int, mode: int | None
    ) -> ObjectInfo:
        """Keep mode and time with a version that is there.

        Raises:
            Unsupported: the bucket keeps neither.
        """
        custom = stamped(info.custom, mtime_ns=mtime_ns, mode=mode)
        return await self._store.set_custom(bucket, info, custom)

    async def remove(self, bucket: Bucket, key: str) -> None:
        """Remove an object, or find that it is gone already."""
        with suppress(NotFound):
            await self._store.remove(bucket, key)

    async def rename(self, bucket: Bucket, key: str, new_key: str) -> ObjectInfo:
        """Give an object another name; what had that name is gone."""
        return await self._store.rename(bucket, key, new_key)

    async def objects_below(self, bucket: Bucket, prefix: str, limit: int) -> list[ObjectInfo]:
        """Find all objects whose keys start with `prefix`, as they are now.

        Raises:
            CrossDevice: there are more than `limit`.
        """
        found: list[ObjectInfo] = []
        directories = [prefix]
        while directories:
            directory = directories.pop()
            token = ""
            while True:
                page: Page = await self._store.list_page(bucket, directory, token=token)
                found += page.objects
                directories += page.directories
                if len(found) > limit:
                    raise CrossDevice(
                        f"{bucket}/{prefix}: more than {limit} objects; see --rename-dir-limit"
                    )
                token = page.next_token
                if not token:
                    break
        return found

    # shards ----------------------------------------------------------------------------------

    async def make_shard(self, bucket: Bucket, key: str) -> ObjectInfo:
        """Make a shard without members."""
        return await self._store.upload(bucket, key, BytesContent(EMPTY_TAR))

    async def append(
        self, bucket: Bucket, shard: str, member: str, staged: StagedFile
    ) -> ObjectInfo:
        """Append a member to a shard; gives the shard as it is then.

        Raises:
            EmptyMember: it is empty, which AIStore refuses.
        """
        if not staged.size:
            raise EmptyMember(f"{bucket}/{shard}: AIStore appends no empty member ({member})")
        lock = self._shards.setdefault((bucket, shard), trio.Lock())
        try:
            async with lock:
                return await self._store.append_member(bucket, shard, member, staged.content())
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._shards.pop((bucket, shard), None)
