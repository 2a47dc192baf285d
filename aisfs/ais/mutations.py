"""What changes objects without uploading them: delete, copy, rename, custom metadata.

AIStore's copy and rename may say yes and lose the object. So a rename is a copy, a look at the
copy, and only then a delete; and what the cluster does not copy goes through this machine.

Must not know: HTTP, requests, errnos.
"""

import logging
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from aisfs.ais.absence import changing
from aisfs.ais.client_port import Session
from aisfs.ais.protocol import write_requests
from aisfs.ais.protocol.requests import Request
from aisfs.core.names.listing import check_new_bucket
from aisfs.errors import (
    AccessDenied,
    BucketNotFound,
    NotFound,
    OutOfSpace,
    ProtocolError,
    Unsupported,
)
from aisfs.http.connections import ConnectionSet
from aisfs.model import Bucket, ObjectInfo
from aisfs.store.content import FileContent
from aisfs.store.custom import encode_custom, stamp_of
from aisfs.store.port import Sink
from aisfs.store.retry import Retrier

log = logging.getLogger(__name__)

Fetch = Callable[[Bucket, ObjectInfo, Sink], Awaitable[None]]
Store = Callable[..., Awaitable[ObjectInfo]]


class Mutations:
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

    async def create_bucket(self, bucket: Bucket) -> None:
        """Make an empty bucket."""
        check_new_bucket(bucket)
        await self._do(write_requests.create_bucket(bucket), bucket)

    async def destroy_bucket(self, bucket: Bucket) -> None:
        """Destroy a bucket with all that is in it."""
        await self._do(write_requests.destroy_bucket(bucket), bucket)

    async def remove(self, bucket: Bucket, key: str) -> None:
        """Delete one object."""
        await self._do(write_requests.delete_object(bucket, key), bucket, key)

    async def copy(self, bucket: Bucket, key: str, to_bucket: Bucket, new_key: str) -> ObjectInfo:
        """Copy an object and make sure that the copy is one."""
        source = await self._session.head(bucket, key, latest=bucket.is_attached)
        return await self._copied(bucket, source, to_bucket, new_key)

    async def rename(self, bucket: Bucket, key: str, new_key: str) -> ObjectInfo:
        """Copy, make sure, delete what was copied."""
        source = await self._session.head(bucket, key, latest=bucket.is_attached)
        renamed = await self._copied(bucket, source, bucket, new_key)

        async def remove() -> None:
            try:
                # A large copy takes minutes. What somebody else wrote meanwhile stays, as if it
                # had been written after the rename.
                if source.same_content(await self._session.head(bucket, key)):
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
        if (
            bucket.is_attached
        ):  # it is kept with AIStore's copy, which has to be there, of this version
            await self._session.head(bucket, expected.key, latest=True)
        await self._do(
            write_requests.patch_custom(bucket, expected.key, text), bucket, expected.key
        )
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

    # Parts of these ---------------------------------------------------------------------------

    async def _copied(
        self, bucket: Bucket, source: ObjectInfo, to_bucket: Bucket, new_key: str
    ) -> ObjectInfo:
        copied = None
        if not write_requests.may_be_lost(new_key):
            copied = await self._copy_within(bucket, source, to_bucket, new_key)
        if copied is None:
            log.info("%s/%s: copied to %s through this machine", bucket, source.key, new_key)
            copied = await self._copy_through(bucket, source, to_bucket, new_key)
        return await self.with_custom(to_bucket, copied, source.custom)

    async def _copy_within(
        self, bucket: Bucket, source: ObjectInfo, to_bucket: Bucket, new_key: str
    ) -> ObjectInfo | None:
        """Copy inside the cluster; return None when it is not certain that this made a copy."""
        # Without a checksum only the size can prove a copy, and only where it was not there before.
        before = None if source.checksum else await self._find(to_bucket, new_key)
        try:
            place = to_bucket
            if to_bucket.cluster:
                look_up = partial(self._session.remotes.by_uuid, bucket=to_bucket)
                place = await self._session.run(str(to_bucket), look_up)
            request = write_requests.copy_object(bucket, source, place, new_key)
            await self._do(request, bucket, source.key, (to_bucket, new_key))
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
            return await self._store(to_bucket, new_key, content, custom=source.custom)

    async def _find(self, bucket: Bucket, key: str) -> ObjectInfo | None:
        try:
            return await self._session.head(bucket, key)
        except BucketNotFound:
            raise
        except NotFound:
            return None

    async def _do(
        self, request: Request, bucket: Bucket, key: str = "", *also: tuple[Bucket, str]
    ) -> None:
        """Send a request about an object, which changes `also` these."""
        transport = self._session.transport

        def work(connections: ConnectionSet) -> None:
            objects = ((bucket, key), *also) if key else ()
            with (
                changing(transport, connections, *objects),
                transport.readiness.undisturbed(request.subject),
            ):
                transport.fetch(connections, request)

        await self._session.run(request.subject, work, bucket, key)
