"""Uploads written files, and changes names in the store.

The file system decides when. What a call reports done, the store has confirmed; after an error the store holds what it held
before.

Large files are sent while they are written, so that their close waits for the last part only. A part is sent once all of it was
written in order, and only once: AIStore destroys what it gets twice. So when bytes change afterwards, or it is unknown whether a
part arrived, what was sent is thrown away, and the upload at the close sends all. Nothing of it is visible before: an error here
only means parts that the close sends.
"""

import logging
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from aisfs.core.names.listing import INDEX_DIRECTORY, IndexPlace, shard_of_published
from aisfs.engine.disk import unattended
from aisfs.engine.index_sources import IndexBucket
from aisfs.engine.shards import Indexer
from aisfs.engine.writing.appender import END_MARK, Appender, NewMember, load
from aisfs.engine.writing.journal import CONTENT_MAX
from aisfs.engine.writing.on_disk import StagedRecord
from aisfs.engine.writing.staging import NEVER, StagedFile, StagingArea
from aisfs.errors import (
    AisfsError,
    BucketNotFound,
    CrossDevice,
    InvalidName,
    NotFound,
    Stale,
    Unsupported,
)
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.port import BytesContent, Upload, UploadAhead, WritableStore, pages_of
from aisfs.stores.posix_metadata import with_posix_metadata
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)

_PARTS_AT_ONCE = 2
"""Of one file: one is read and summed up while another is on its way."""


@dataclass(eq=False, slots=True)
class _Sending:
    """A file whose parts are being sent."""

    staged: StagedFile
    record: StagedRecord
    """What it was to become when it began."""
    upload: UploadAhead | None = None
    claimed: bool = False
    """Whether the caller of `take` ends `upload`; no more parts are begun then."""
    failed: bool = False
    """Whether a part could not be sent; nor are others then."""
    look: trio.Event = field(default_factory=trio.Event)
    """Set when there may be something to do."""
    over: trio.Event = field(default_factory=trio.Event)
    """Set when no part is under way any more."""


class EarlyUploader:
    """Sends parts of files that are being written."""

    def __init__(self, store: WritableStore, services: trio.Nursery) -> None:
        """Send to `store`, by tasks of `services`."""
        self._store = store
        self._services = services
        self._token = trio.lowlevel.current_trio_token()
        self._sending: dict[StagedFile, _Sending] = {}

    def watch(self, staged: StagedFile) -> None:
        """Send a staged file as soon as it is large."""
        staged.call_at(self._store.ahead_above + 1, self._call)

    async def take(self, staged: StagedFile) -> UploadAhead | None:
        """Return what of a file was sent, for the upload that ends it; None when nothing was.

        Nothing of it is sent ahead again before it is twice as long.
        """
        sending = self._sending.get(staged)
        if sending is None:
            return None
        sending.claimed = True
        sending.look.set()
        try:
            await sending.over.wait()
        except BaseException:
            sending.claimed = False
            if sending.over.is_set() and sending.upload is not None:
                await sending.upload.abandon()
            raise
        staged.sent_ahead = None
        staged.call_at(max(2 * staged.in_order, self._store.ahead_above + 1))
        return sending.upload

    @any_thread
    def _call(self, staged: StagedFile) -> None:
        """Schedule a look at a file."""
        self._token.run_sync_soon(self._look_at, staged)

    def _look_at(self, staged: StagedFile) -> None:
        staged.call_at(NEVER)
        sending, record = self._sending.get(staged), staged.record
        if sending is not None:
            sending.look.set()
        elif record and not record.member and not self._services.cancel_scope.cancel_called:
            sending = self._sending[staged] = _Sending(staged, record)
            what = f"sending {record.name} while it is written"
            self._services.start_soon(unattended, what, partial(self._serve, sending))

    async def _serve(self, sending: _Sending) -> None:
        staged, record = sending.staged, sending.record
        try:
            sending.upload = await self._store.begin_upload(record.bucket, record.key)
            if sending.upload is not None and staged.is_dirty:
                staged.sent_ahead = sending.upload
                staged.note_upload(sending.upload.name)
                await self._send(sending, sending.upload)
        finally:
            del self._sending[staged]
            sending.over.set()
            if sending.upload is not None and not sending.claimed:
                await sending.upload.abandon()

    async def _send(self, sending: _Sending, upload: UploadAhead) -> None:
        """Send parts until the file is closed or not wanted any more, or what was sent is lost."""
        staged, free = sending.staged, trio.Semaphore(_PARTS_AT_ONCE)
        # A descriptor of its own: the file may be removed while a part is read. What another file
        # has in its place by then may be sent too, to an upload that is thrown away.
        content = replace(staged.content(), descriptor=os.dup(staged.content().descriptor))

        async def send(part: Callable[[], Awaitable[None]]) -> None:
            try:
                await part()
            except AisfsError as error:
                log.info("%s: sent when it is closed: %s", sending.record.name, error)
                sending.failed = True
            free.release()

        try:
            async with trio.open_nursery() as parts:
                while not sending.claimed and not upload.is_lost:
                    sending.look = trio.Event()
                    if not staged.is_dirty:
                        parts.cancel_scope.cancel()
                        return
                    wanted = upload.wants
                    if not sending.failed:
                        staged.call_at(wanted, self._call)
                    if sending.failed or staged.in_order < wanted:
                        await sending.look.wait()
                        continue
                    staged.call_at(NEVER)
                    await free.acquire()
                    if not sending.claimed:
                        part = upload.next_part(replace(content, size=wanted))
                        parts.start_soon(send, part)
        finally:
            os.close(content.descriptor)


COPY_MAX = 16 << 20
"""Bytes of a file whose content is kept here for its next change; fetching more costs less than sending it again."""
COPIES_MAX = 8
"""Files of which there are such copies, each of which has two open files: as many logs as one program writes at once."""
INDEX_BUCKET_SECONDS = 60.0
"""How long the bucket of indexes stays missing."""


class Writer:
    """Writes to the store."""

    def __init__(
        self,
        store: WritableStore,
        staging: StagingArea,
        services: trio.Nursery,
        *,
        endpoint: str,
        ignore_zeros: bool = False,
        indexer: Indexer | None = None,
        index_bucket: IndexBucket | None = None,
    ) -> None:
        """Write to `store` what is in `staging`.

        Args:
            store: What to write to.
            staging: Where files are until then.
            services: Runs what sends large files while they are written.
            endpoint: What the records say about `store`.
            ignore_zeros: See `Appender`.
            indexer: See `Appender`.
            index_bucket: Has the published indexes, if they do not lie beside the shards.
        """
        self._store = store
        self._services = services
        self._index_bucket = index_bucket
        self.staging = staging
        """Where files are until they are uploaded."""
        self._ahead = EarlyUploader(store, services)
        self._copies: OrderedDict[tuple[Bucket, str], tuple[ObjectInfo, StagedFile]] = OrderedDict()
        """Files that were changed in part and are on the local disk still, and their versions."""
        self.endpoint = endpoint
        """What the records say about the store."""
        self.appender = Appender(
            store, staging, services, ignore_zeros=ignore_zeros, indexer=indexer
        )

    # staged files ----------------------------------------------------------------------------

    def new(self) -> StagedFile:
        """Return an empty staged file."""
        staged = self.staging.create()
        self._ahead.watch(staged)
        return staged

    def resume(self, staged: StagedFile) -> None:
        """Go on with a file that a daemon before has staged; what it has sent of it is thrown away."""
        self._ahead.watch(staged)
        record = staged.record
        if record is not None and record.upload:
            abandon = partial(self._store.abandon_upload, record.bucket, record.key, record.upload)
            self._services.start_soon(unattended, f"parts of {record.name}", abandon)

    async def load(self, bucket: Bucket, info: ObjectInfo) -> StagedFile:
        """Stage the content of a version of an object that is to be changed in part.

        Raises:
            Stale, NotFound: it is another version by now, or gone.
            OutOfSpace: it does not fit.
        """
        version, staged = self._copies.pop((bucket, info.key), (None, None))
        if version is not None and staged is not None:
            told = (version.version and info.version) or (version.checksum and info.checksum)
            if self.staging.reuse(staged) and told and version.same_content(info):
                return staged
            staged.discard()
        staged = await load(self._store, self.staging, bucket, info)
        staged.is_loaded = True
        return staged

    def let_go(self, bucket: Bucket, info: ObjectInfo | None, staged: StagedFile) -> None:
        """Free a file, or keep it for its next change if it is the version `info` of what was loaded.

        So a log that is opened for each line is fetched once.
        """
        if info is None or not staged.is_loaded or staged.size > COPY_MAX:
            staged.discard()
            return
        self._drop_copy(bucket, info.key)
        self._copies[bucket, info.key] = info, staged
        self.staging.keep(staged)
        if len(self._copies) > COPIES_MAX:
            self._drop_copy(*next(iter(self._copies)))

    def _drop_copy(self, bucket: Bucket, key: str) -> None:
        _, staged = self._copies.pop((bucket, key), (None, None))
        if staged is not None:
            self.staging.reuse(staged)
            staged.discard()

    # objects ---------------------------------------------------------------------------------

    async def head(self, bucket: Bucket, key: str) -> ObjectInfo:
        """Describe the current version of an object."""
        return await self._store.head(bucket, key)

    async def upload(self, upload: Upload, staged: StagedFile | None) -> ObjectInfo:
        """Make something the object's content, whole; if it is `staged`, some of it may have been sent."""
        if staged is None:
            return await self._store.upload(upload)
        ahead = await self._ahead.take(staged)
        try:
            upload = replace(upload, ahead=ahead, announce=staged.note_upload)
            return await self._store.upload(upload)
        finally:
            if ahead is not None:
                await ahead.abandon()

    @property
    def journaled_most(self) -> int:
        """Bytes of the largest file that may wait there: larger ones are sent before they are closed."""
        return min(CONTENT_MAX, self._store.ahead_above)

    async def set_attributes(
        self, bucket: Bucket, info: ObjectInfo, *, mtime_ns: int, mode: int | None
    ) -> ObjectInfo:
        """Store mode and time with a version that is there.

        Raises:
            Unsupported: the bucket keeps neither.
        """
        custom = with_posix_metadata(info.custom, mtime_ns=mtime_ns, mode=mode)
        return await self._store.set_custom(bucket, info, custom)

    async def remove(self, bucket: Bucket, key: str) -> None:
        """Remove an object, or find that it is gone already."""
        self._drop_copy(bucket, key)
        with suppress(NotFound):
            await self._store.remove(bucket, key)

    async def rename(
        self, bucket: Bucket, key: str, new_key: str, *, expected: ObjectInfo | None = None
    ) -> ObjectInfo:
        """Rename an object; what had the new name is gone.

        Raises:
            Stale: it is not `expected` any more.
        """
        return await self._store.rename(bucket, key, new_key, expected=expected)

    async def objects_below(self, bucket: Bucket, prefix: str, limit: int) -> list[ObjectInfo]:
        """Find all objects whose keys start with `prefix`, as they are now.

        Raises:
            CrossDevice: there are more than `limit`.
        """
        found: dict[str, ObjectInfo] = {}
        directories = [prefix]
        while directories:
            within: set[str] = set()
            async for page in pages_of(self._store, bucket, directories.pop()):
                found |= {info.key: info for info in page.objects}
                within.update(page.directories)
                if len(found) > limit:
                    raise CrossDevice(
                        f"{bucket}/{prefix}: more than {limit} objects; see --rename-dir-limit"
                    )
            directories += within
        return list(found.values())

    async def remove_indexes(self, bucket: Bucket, prefix: str) -> bool:
        """Remove the published indexes of a directory if there is nothing else in it; return whether."""
        indexes: list[str] = []
        others: set[str] = set()
        own = f"{prefix}{INDEX_DIRECTORY}/"
        async for page in pages_of(self._store, bucket, prefix):
            if any(info.key != prefix for info in page.objects):  # which is a marker
                return False
            others.update(page.directories)
        for directory in others - {own}:  # AIStore goes on listing empty ones
            if await self._occupied(bucket, directory):
                return False
        async for page in pages_of(self._store, bucket, own):
            indexes += [info.key for info in page.objects]
            if any(shard_of_published(info.key) is None for info in page.objects):
                return False
            for directory in page.directories:
                if await self._occupied(bucket, directory):
                    return False
        for key in indexes:
            with suppress(NotFound):
                await self._store.remove(bucket, key)
        return bool(indexes)

    async def drop_indexes(self, bucket: Bucket, prefix: str) -> None:
        """Remove the indexes of a directory that is gone from the bucket of indexes, if that works."""

        async def drop(place: IndexPlace) -> None:
            async for page in pages_of(self._store, place.bucket, place.directory(prefix)):
                for info in page.objects:
                    await self.remove(place.bucket, info.key)

        await self._at_indexes(bucket, drop)

    async def move_indexes(self, bucket: Bucket, prefix: str, new_prefix: str, limit: int) -> None:
        """Rename those of a directory that was renamed, if that works."""

        async def move(place: IndexPlace) -> None:
            above, new_above = place.directory(prefix), place.directory(new_prefix)
            for info in await self.objects_below(place.bucket, above, limit):
                await self.rename(place.bucket, info.key, new_above + info.key[len(above) :])

        await self._at_indexes(bucket, move)

    async def _at_indexes(
        self, bucket: Bucket, work: Callable[[IndexPlace], Awaitable[None]]
    ) -> None:
        """Do something about a bucket's indexes in the bucket of indexes: what is left there is harmless."""
        own = self._index_bucket
        if own is None or not own.usable:
            return
        try:
            await work(await own.place(bucket))
        except BucketNotFound as error:
            own.leave(error, INDEX_BUCKET_SECONDS)
        except AisfsError as error:
            log.info("%s: indexes of %s stay as they are: %s", own.bucket, bucket, error)

    async def remove_marker(self, bucket: Bucket, prefix: str) -> bool:
        """Remove the marker of a directory if there is nothing else in it; return whether."""
        if (await self._store.first_keys(bucket, prefix, 2, sure=True)).found != [prefix]:
            return False
        try:
            await self.remove(bucket, prefix)
        except (InvalidName, Stale, Unsupported) as error:
            log.warning("an object has the name of the empty directory, and stays: %s", error)
            return False
        return True

    async def _occupied(self, bucket: Bucket, prefix: str) -> bool:
        return bool((await self._store.first_keys(bucket, prefix, 1, sure=True)).found)

    async def create_bucket(self, bucket: Bucket) -> None:
        """Make an empty bucket; `check_new_bucket` has passed its name."""
        await self._store.create_bucket(bucket)

    # shards ----------------------------------------------------------------------------------

    async def make_shard(self, bucket: Bucket, key: str, only_new: str) -> ObjectInfo:
        """Make a shard without members.

        Raises:
            AlreadyExists: another client has made it meanwhile.
        """
        shard = Upload(bucket, key, BytesContent(END_MARK), only_new=only_new)
        return await self._store.upload(shard)

    async def append(
        self,
        bucket: Bucket,
        shard: str,
        member: str,
        staged: StagedFile | None,
        *,
        mtime_ns: int,
        mode: int | None,
        again: bool = False,
    ) -> ObjectInfo:
        """Add a member to a shard, without `staged` a directory; return the shard as it is then.

        With `again` it takes the place of what was appended under this name before.
        """
        content = staged.content() if staged is not None else None
        new = NewMember(member, content, mode, mtime_ns, replaces=again)
        return await self.appender.append(bucket, shard, new)
