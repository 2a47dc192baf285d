"""What changes objects without uploading them: delete, copy, rename, append, custom metadata.

AIStore's copy and rename may say yes and lose the object. So a rename is a copy, a look at the
copy, and only then a delete; and what the cluster does not copy goes through this machine.

Must not know: HTTP, requests, errnos.
"""

import logging
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping

from aisfs.ais import changes
from aisfs.ais.checksums import DEFAULT_TYPE, checksum_of, hasher_of
from aisfs.ais.session import Session
from aisfs.ais.transport import Line
from aisfs.ais.wire import Request
from aisfs.errors import (
    AccessDenied,
    BucketNotFound,
    NotFound,
    OutOfSpace,
    ProtocolError,
    Unavailable,
    Unsupported,
)
from aisfs.model import Bucket, ObjectInfo
from aisfs.store.content import FileContent, pieces_of
from aisfs.store.custom import encode_custom, stamp_of
from aisfs.store.port import Content, Sink
from aisfs.store.retry import Retrier

log = logging.getLogger(__name__)

_PIECE = 1 << 20

Fetch = Callable[[Bucket, ObjectInfo, Sink], Awaitable[None]]
Store = Callable[[Bucket, str, Content, Mapping[str, str]], Awaitable[ObjectInfo]]


class Edits:
    """Changes objects."""

    def __init__(self, session: Session, retrier: Retrier, fetch: Fetch, store: Store) -> None:
        """Prepare.

        Args:
            session: The client this is a part of.
            retrier: Tries again what must not be left half done.
            fetch: Streams an object.
            store: Uploads one.
        """
        self._session = session
        self._retrier = retrier
        self._fetch = fetch
        self._store = store

    async def remove(self, bucket: Bucket, key: str) -> None:
        """Delete one object."""
        await self._do(changes.delete_object(bucket, key), bucket)

    async def copy(self, bucket: Bucket, key: str, to_bucket: Bucket, new_key: str) -> ObjectInfo:
        """Copy an object and make sure that the copy is one."""
        source = await self._session.head(bucket, key)
        copied = None
        if not changes.may_be_lost(new_key):
            copied = await self._copy_within(bucket, source, to_bucket, new_key)
        if copied is None:
            log.info("%s/%s: copied to %s through this machine", bucket, key, new_key)
            copied = await self._copy_through(bucket, source, to_bucket, new_key)
        return await self.with_custom(to_bucket, copied, source.custom)

    async def rename(self, bucket: Bucket, key: str, new_key: str) -> ObjectInfo:
        """Copy, make sure, delete."""
        renamed = await self.copy(bucket, key, bucket, new_key)

        async def remove() -> None:
            try:
                await self.remove(bucket, key)
            except BucketNotFound:
                raise
            except NotFound:
                return  # by somebody else, or by a try whose reply was lost

        await self._retrier.run(f"{bucket}/{key}", remove)
        return renamed

    async def set_custom(
        self, bucket: Bucket, expected: ObjectInfo, custom: Mapping[str, str]
    ) -> ObjectInfo:
        """Replace the custom metadata of the content `expected`."""
        stamp = stamp_of(expected)
        text = encode_custom(custom, stamp)
        if not stamp:
            raise Unsupported(
                f"{bucket}/{expected.key}: the bucket keeps neither versions nor checksums, so "
                "nothing would tell for which content custom metadata was written"
            )
        await self._do(changes.patch_custom(bucket, expected.key, text), bucket)
        return await self._session.head(bucket, expected.key)

    async def with_custom(
        self, bucket: Bucket, info: ObjectInfo, custom: Mapping[str, str]
    ) -> ObjectInfo:
        """Make sure that an object just written has this custom metadata, where any is kept.

        AIStore ignores it when the object was there already, and merges it when it copies.
        """
        if info.custom == custom:
            return info
        try:
            return await self.set_custom(bucket, info, custom)
        except (Unsupported, AccessDenied) as error:
            log.debug("%s/%s: without custom metadata: %s", bucket, info.key, error)
            return info

    async def append_member(
        self, bucket: Bucket, key: str, member: str, content: Content
    ) -> ObjectInfo:
        """Append a member to a shard, once, and make sure that it grew."""
        subject = f"{bucket}/{key}"
        if not content.size:
            raise Unsupported(f"{subject}: AIStore appends no empty member: {member!r}")
        before = await self._find(bucket, key)
        request = changes.append_member(bucket, key, member, before.size if before else 0)

        def work(line: Line) -> None:
            pieces = pieces_of(content)
            self._session.transport.upload(line, request, content.size, pieces)

        unclear: Unavailable | None = None
        try:
            await self._session.run(subject, work, bucket)
        except Unavailable as error:
            unclear = error
        after = await self._retrier.run(subject, lambda: self._find(bucket, key))
        grew = after is not None and (before is None or after.size > before.size)
        if after and grew and not unclear:
            return after
        if after and await self._has_member(bucket, after, member, content):
            return await self._marked(bucket, after) if before else after
        if grew:
            raise ProtocolError(f"{subject}: nobody knows whether {member!r} was appended")
        # As it was: it may be tried again.
        raise unclear or Unavailable(f"{subject}: the cluster did not append {member!r}")

    # Parts of these ---------------------------------------------------------------------------

    async def _copy_within(
        self, bucket: Bucket, source: ObjectInfo, to_bucket: Bucket, new_key: str
    ) -> ObjectInfo | None:
        """Let the cluster copy; None when that did not make a copy for certain."""
        # Without a checksum only the size can prove a copy, and only where it was not there before.
        before = None if source.checksum else await self._find(to_bucket, new_key)
        try:
            await self._do(changes.copy_object(bucket, source, to_bucket, new_key), bucket)
        except (Unsupported, ProtocolError) as error:
            log.info("%s/%s: not copied by the cluster: %s", bucket, source.key, error)
            return None
        after = await self._find(to_bucket, new_key)
        if after is None or after.size != source.size:
            return None
        if source.checksum:
            return after if after.checksum == source.checksum else None
        return after if before is None or before.size != source.size else None

    async def _copy_through(
        self, bucket: Bucket, source: ObjectInfo, to_bucket: Bucket, new_key: str
    ) -> ObjectInfo:
        with tempfile.TemporaryFile(prefix="aisfs-copy-") as file:

            def sink(piece: memoryview) -> None:
                try:
                    file.write(piece)
                    file.flush()
                except OSError as error:
                    raise OutOfSpace(
                        f"{bucket}/{source.key}: copied through {tempfile.gettempdir()}, "
                        f"where it does not fit: {error.strerror}"
                    ) from error

            await self._fetch(bucket, source, sink)
            content = FileContent(file.fileno(), source.size, f"{bucket}/{source.key}")
            return await self._store(to_bucket, new_key, content, source.custom)

    async def _marked(self, bucket: Bucket, shard: ObjectInfo) -> ObjectInfo:
        """Make a difference where AIStore shows none; else caches would keep what they have."""
        await self._do(changes.mark_appended(bucket, shard.key, f"{time.time_ns():x}"), bucket)
        return await self._session.head(bucket, shard.key)

    async def _has_member(
        self, bucket: Bucket, shard: ObjectInfo, member: str, content: Content
    ) -> bool:
        """Say whether a member of this path has these bytes."""
        if content.size > shard.size:
            return False
        request = changes.get_member(bucket, shard.key, member, shard.size)

        def work(line: Line) -> bool:
            hasher, size = hasher_of(DEFAULT_TYPE), 0
            with self._session.transport.open(line, request) as body:
                buffer = memoryview(bytearray(_PIECE))
                while got := body.read_into(buffer):
                    hasher.update(buffer[:got])
                    size += got
            wanted = checksum_of(content, DEFAULT_TYPE)
            return size == content.size and f"{DEFAULT_TYPE}:{hasher.hexdigest()}" == wanted

        async def attempt() -> bool:
            return await self._session.run(request.subject, work, bucket)

        try:
            return await self._retrier.run(request.subject, attempt)
        except NotFound:
            return False

    async def _find(self, bucket: Bucket, key: str) -> ObjectInfo | None:
        try:
            return await self._session.head(bucket, key)
        except BucketNotFound:
            raise
        except NotFound:
            return None

    async def _do(self, request: Request, bucket: Bucket) -> None:
        def work(line: Line) -> None:
            self._session.transport.fetch(line, request)

        await self._session.run(request.subject, work, bucket)
