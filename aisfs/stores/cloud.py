"""Buckets of S3, Google Cloud Storage and Azure as a store, to read and to write.

Versions are ETags: a range is asked for with `If-Match`, and what the answer says of the object is
compared again, so no file mixes two versions even where a server ignores the condition.

A cloud keeps no custom metadata in its listings, and changes it only by copying: this store has none.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import obstore
import trio
from msgspec import structs

from aisfs.core.names.listing import check_new_key
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    CrossDevice,
    FileTooLarge,
    InvalidName,
    NotFound,
    ProtocolError,
    Stale,
    Unavailable,
    Unsupported,
)
from aisfs.model import Bucket, Keys, ObjectInfo, Page, Provider
from aisfs.settings import ClusterSettings
from aisfs.settings.clouds import remember_secrets
from aisfs.stores.cloud_client import (
    REFUSED,
    Client,
    Clients,
    Futures,
    check_version,
    cloud_errors,
    condition,
    described,
    make_clients,
    version_of,
)
from aisfs.stores.cloud_listings import Listings, is_odd
from aisfs.stores.cloud_uploads import Uploads
from aisfs.stores.pipeline import Retrier
from aisfs.stores.port import (
    Arrived,
    Count,
    PlainStore,
    Sink,
    Upload,
    check_expected,
    uncounted,
)
from aisfs.stores.posix_metadata import encode_custom

_PIECE = 1 << 20
"""Bytes given to a sink at once; as the HTTP client does."""
_ODD_PIECE = 16 << 20
"""Bytes asked for at once of an object that boto3 reads, which takes a thread for it."""
_COPY_MOST = 5 << 30
"""Bytes that S3 copies with one request."""
_COPIED_A_SECOND = 20e6
"""A cloud that copies may be silent meanwhile; slower than any of them."""

_T = TypeVar("_T")


class CloudStore(PlainStore):
    """All buckets of one cloud that the environment has credentials for."""

    def __init__(self, settings: ClusterSettings, count: Count = uncounted) -> None:
        """Take the settings; a bucket's client is made when it is first asked for.

        Args:
            settings: Timeouts, limits, and whether to send credentials.
            count: Told of each request, since clouds charge for them by class.
        """
        remember_secrets()
        self._settings = settings
        self._count = count
        self._clients: dict[Bucket, Clients] = {}
        self._there: set[Bucket] = set()
        """Buckets that have answered: then a key that is not found is one that is not there."""
        self._limiter = trio.CapacityLimiter(settings.max_connections)
        self._retrier = Retrier(deadline=settings.io_timeout)
        self._futures = Futures()
        self._listings = Listings(self._futures, count, settings)
        self._uploads = Uploads(self._futures, count, settings)
        self._odd_keys = self._listings.odd_keys

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """Refuse: which buckets there are is told to accounts, not to readers of one bucket."""
        raise Unsupported("buckets of a cloud are not listed; name one")

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        """List the directory `prefix`."""
        if prefix and not prefix.endswith("/"):
            raise InvalidName(f"{bucket}/{prefix}: a directory prefix ends in '/'")
        async with self._limiter:
            page = await self._listings.page(self._reads(bucket), bucket, prefix, token)
        self._there.add(bucket)
        return page

    async def first_keys(
        self, bucket: Bucket, prefix: str, most: int, *, sure: bool = False
    ) -> Keys:
        """Return `most` keys at most of objects below the directory `prefix`."""
        async with self._limiter:
            client = self._reads(bucket)
            keys = await self._listings.first_keys(client, bucket, prefix, most, sure=sure)
        self._there.add(bucket)
        return keys

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """Describe the current version of one object."""
        subject = self._subject(bucket, key)
        client = self._reads(bucket)
        await self._check_spelling(bucket, key)
        if is_odd(bucket, key):
            return await self._of_odd(bucket, partial(self._odd_keys.head, bucket, key))
        async with self._limiter:
            self._count("head", 1)
            try:
                with cloud_errors(subject):
                    meta = await self._futures.wait(obstore.head_async, client, key)
            except NotFound as error:
                found: AisfsError = error
            except ProtocolError as error:
                found = await self._why_refused(bucket, key, error)
                if not isinstance(found, NotFound):
                    raise found from None
            else:
                self._there.add(bucket)
                info = described(meta)
                if not info.version and not info.mtime_ns:  # obstore does without them
                    raise Unavailable(f"{subject}: the answer does not describe an object")
                return info
        await self._check_bucket(bucket)
        raise found

    async def _why_refused(self, bucket: Bucket, key: str, refused: ProtocolError) -> AisfsError:
        """Return why a HEAD was refused: its reply has no body that tells, that to a GET has."""
        self._count("get", 1)
        try:
            with cloud_errors(self._subject(bucket, key)):
                await self._futures.wait(obstore.get_async, self._reads(bucket), key)
        except AisfsError as error:
            return error
        return refused

    async def read_range(
        self,
        bucket: Bucket,
        expected: ObjectInfo,
        start: int,
        buffer: memoryview,
        arrived: Arrived | None = None,
    ) -> None:
        """Fill `buffer` with the bytes from `start` on of exactly the version `expected`."""
        stop = start + len(buffer)
        if not 0 <= start < stop <= expected.size:
            raise ValueError(f"{len(buffer)} bytes from {start} on of {expected.size}")
        subject = self._subject(bucket, expected.key)
        client = self._reads(bucket)
        if is_odd(bucket, expected.key):
            read = partial(self._odd_keys.read, bucket, expected, start, len(buffer))
            buffer[:] = await self._of_odd(bucket, read)
            return
        async with self._limiter:
            result = await self._get(client, bucket, expected, {"range": (start, stop)})
            check_version(subject, expected, result.meta)
            if result.range != (start, stop):
                raise Unavailable(f"{subject}: sent {result.range}, not {(start, stop)}")
            with cloud_errors(subject):
                data = await self._futures.wait(result.bytes_async)
        if len(data) != len(buffer):
            raise Unavailable(f"{subject}: sent {len(data)} of {len(buffer)} bytes")
        buffer[:] = memoryview(data)

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """Send the whole object, version `expected`, to `sink` as the bytes arrive."""
        subject = self._subject(bucket, expected.key)
        client = self._reads(bucket)
        if is_odd(bucket, expected.key):
            await self._stream_odd(bucket, expected, sink)
            return
        done = 0
        async with self._limiter:
            result = await self._get(client, bucket, expected, {})
            check_version(subject, expected, result.meta)
            pieces = result.stream(min_chunk_size=_PIECE)
            while True:
                try:
                    with cloud_errors(subject):
                        piece = await self._futures.wait(pieces.__anext__)
                except StopAsyncIteration:
                    break
                done += len(piece)
                if done > expected.size:
                    break
                await trio.to_thread.run_sync(sink, memoryview(piece))
        if done != expected.size:
            raise Unavailable(f"{subject}: sent {done} of {expected.size} bytes")

    async def _stream_odd(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        if not expected.size and not expected.same_content(await self.head(bucket, expected.key)):
            raise Stale(f"{bucket}/{expected.key}: the object changed")
        for start in range(0, expected.size, _ODD_PIECE):
            size = min(_ODD_PIECE, expected.size - start)
            read = partial(self._odd_keys.read, bucket, expected, start, size)
            await trio.to_thread.run_sync(sink, memoryview(await self._of_odd(bucket, read)))

    async def _of_odd(self, bucket: Bucket, call: Callable[[], Awaitable[_T]]) -> _T:
        """Have boto3 do what concerns a key that obstore refuses."""
        try:
            async with self._limiter:
                return await call()
        except NotFound:
            await self._check_bucket(bucket)
            raise

    async def _get(
        self, client: Client, bucket: Bucket, expected: ObjectInfo, options: dict[str, object]
    ) -> Any:  # noqa: ANN401
        await self._check_spelling(bucket, expected.key)
        self._count("get", 1)
        call = partial(obstore.get_async, client, expected.key)
        try:
            with cloud_errors(f"{bucket}/{expected.key}"):
                return await self._futures.wait(call, options={**options, **condition(expected)})
        except NotFound:
            await self._check_bucket(bucket)
            raise
        except Stale:  # Azure says so of an object that is gone, too
            with cloud_errors(f"{bucket}/{expected.key}"):
                self._count("head", 1)
                await self._futures.wait(obstore.head_async, client, expected.key)
            raise

    async def create_bucket(self, bucket: Bucket) -> None:
        """Refuse: buckets are made with the cloud's own tools, which know of regions and owners."""
        raise Unsupported(f"{bucket}: make it with the cloud's own tools")

    async def upload(self, upload: Upload) -> ObjectInfo:
        """Write one object whole, or not at all."""
        bucket, key, size = upload.bucket, upload.key, upload.content.size
        _check_new(bucket, key)
        encode_custom(upload.custom, "")  # what no store takes is refused here, too
        subject, client = self._subject(bucket, key), self._writes(bucket)
        await self._check_spelling(bucket, key)
        if is_odd(bucket, key) and size > self._settings.part_size:
            raise FileTooLarge(f"{subject}: a file of such a name has at most --part-size bytes")
        async with self._limiter:
            if is_odd(bucket, key):
                etag: str | None = await self._odd_keys.upload(upload)
            else:
                etag = await self._uploads.send(client, upload)
        # Only this is repeated: the content is there.
        info = await self._retrier.run(subject, partial(self.head, bucket, key))
        version = version_of(etag)
        if info.version == version and info.size != size:
            raise Unavailable(f"{subject}: the cloud says that it has stored it, and has not")
        if version and info.version != version:  # somebody has written it since
            return structs.replace(info, size=size, version=version)
        return info

    async def remove(self, bucket: Bucket, key: str) -> None:
        """Delete one object, or the marker of a directory."""
        client = self._writes(bucket)
        if key.endswith("/"):
            async with self._limiter:
                await self._listings.remove_marker(bucket, key)
            return
        if bucket.provider is Provider.S3:  # which does not say whether there was one
            await self.head(bucket, key)
        await self._delete(client, bucket, key)

    async def copy(self, bucket: Bucket, key: str, to_bucket: Bucket, new_key: str) -> ObjectInfo:
        """Copy an object within its bucket; the cloud does it."""
        if (bucket, key) == (to_bucket, new_key):
            raise ValueError(f"{bucket}/{key}: a copy onto itself")
        return await self._copy(bucket, await self.head(bucket, key), to_bucket, new_key)

    async def _copy(
        self, bucket: Bucket, info: ObjectInfo, to_bucket: Bucket, new_key: str
    ) -> ObjectInfo:
        key = info.key
        _check_new(to_bucket, new_key)
        await self._check_spelling(to_bucket, new_key)
        subject, client = self._subject(bucket, key), self._writes(bucket)
        if bucket != to_bucket:
            await self._check_bucket(to_bucket)
            raise CrossDevice(f"{subject}: {to_bucket} is another bucket")
        if info.size > _COPY_MOST and bucket.provider is Provider.S3:
            raise CrossDevice(f"{subject}: S3 copies no object above 5 GiB at once")
        before = await self._head_or_none(to_bucket, new_key)
        if is_odd(bucket, key) or is_odd(bucket, new_key):
            await self._of_odd(bucket, partial(self._odd_keys.copy, bucket, key, new_key))
        else:
            call = partial(obstore.copy_async, client, key, new_key)
            await self._change(bucket, "copy", call, subject, info.size)
        check = partial(self._copied, bucket, new_key, info, before)
        if bucket.provider is not Provider.AZ:
            return await check()
        # Azure may copy later than it answers; until then the new blob is empty.
        seconds = self._settings.io_timeout + info.size / _COPIED_A_SECOND
        return await Retrier(deadline=seconds).run(subject, check)

    async def _copied(
        self, bucket: Bucket, key: str, info: ObjectInfo, before: ObjectInfo | None
    ) -> ObjectInfo:
        """Describe the copy of an object.

        Raises:
            Unavailable: there is none: obstore takes any answer for a copy that has the status of success.
        """
        copied = await self._head_or_none(bucket, key)
        if (
            copied is None
            or copied.size != info.size
            or (copied == before and copied.version != info.version)
        ):
            raise Unavailable(
                f"{bucket}/{info.key}: the cloud says that it has copied it, and has not"
            )
        return copied

    async def rename(
        self, bucket: Bucket, key: str, new_key: str, *, expected: ObjectInfo | None = None
    ) -> ObjectInfo:
        """Copy an object and delete the old one."""
        if key == new_key:
            raise ValueError(f"{bucket}/{key}: a rename to itself")
        source = await self.head(bucket, key)
        check_expected(f"{bucket}/{key}", expected, source)
        info = await self._copy(bucket, source, bucket, new_key)

        async def delete() -> None:
            # A large copy takes minutes. What somebody else wrote meanwhile stays.
            if source.same_content(await self.head(bucket, key)):
                await self._delete(self._writes(bucket), bucket, key)

        # Only this is repeated: nothing could be copied again after a removal whose answer was lost.
        with suppress(NotFound):
            await self._retrier.run(f"{bucket}/{key}", delete)
        return info

    async def set_custom(
        self, bucket: Bucket, expected: ObjectInfo, custom: Mapping[str, str]
    ) -> ObjectInfo:
        """Refuse: there is none."""
        encode_custom(custom, "")
        await self.head(bucket, expected.key)
        raise Unsupported(f"{bucket}: no custom metadata is kept there")

    async def aclose(self) -> None:
        """Cancel the listings under way; obstore's connections go with its clients."""
        self._listings.close()
        self._clients.clear()

    async def _delete(self, client: Client, bucket: Bucket, key: str) -> None:
        if is_odd(bucket, key):
            await self._of_odd(bucket, partial(self._odd_keys.remove, bucket, key))
            return
        call = partial(obstore.delete_async, client, key)
        await self._change(bucket, "delete", call, self._subject(bucket, key))

    async def _change(
        self,
        bucket: Bucket,
        kind: str,
        call: Any,  # noqa: ANN401
        subject: str,
        size: int = 0,
    ) -> None:
        """Make a call that changes something; renames and copies have no other deadline."""
        seconds = self._settings.io_timeout + size / _COPIED_A_SECOND
        try:
            async with self._limiter:
                self._count(kind, 1)
                with trio.move_on_after(seconds) as scope, cloud_errors(subject):
                    await self._futures.wait(call)
        except NotFound:
            await self._check_bucket(bucket)
            raise
        if scope.cancelled_caught:
            raise Unavailable(f"{subject}: no answer to a {kind} within {seconds:.0f} s")

    async def _head_or_none(self, bucket: Bucket, key: str) -> ObjectInfo | None:
        try:
            return await self.head(bucket, key)
        except NotFound:
            return None

    async def _check_bucket(self, bucket: Bucket) -> None:
        """Raise `BucketNotFound` if it is the bucket that is missing."""
        if bucket not in self._there:
            await self._listings.first_keys(self._reads(bucket), bucket, "", 1)
            self._there.add(bucket)

    async def _check_spelling(self, bucket: Bucket, key: str) -> None:
        """Refuse a name of which a redirect of AIStore's `/s3` makes another: `a` of `a?b`.

        Otherwise the other object would be read, or deleted.
        """
        if "?" not in key or bucket.provider is not Provider.S3:
            return
        if not await self._listings.has_etags(self._reads(bucket), bucket):
            raise InvalidName(
                f"{bucket}/{key}: AIStore would take what is before the ? for the name: mount it by "
                "--endpoint and ais://BUCKET instead"
            )

    def _subject(self, bucket: Bucket, key: str) -> str:
        """Return what messages call an object.

        Raises:
            NotFound: obstore would take the key for another one, or no object has such a key.
        """
        subject = f"{bucket}/{key}"
        try:
            key.encode()
        except UnicodeEncodeError:
            raise NotFound(f"{subject}: no cloud has such a name") from None
        if not key or (REFUSED.search(key) and not is_odd(bucket, key)):
            raise NotFound(f"{subject}: no such object")
        return subject

    def _reads(self, bucket: Bucket) -> Client:
        return self._clients_of(bucket).reads

    def _writes(self, bucket: Bucket) -> Client:
        if self._settings.anonymous:
            raise AccessDenied(f"{bucket}: nothing is written with --anonymous")
        return self._clients_of(bucket).writes

    def _clients_of(self, bucket: Bucket) -> Clients:
        if bucket not in self._clients:
            self._clients[bucket] = make_clients(bucket, self._settings)
        return self._clients[bucket]


def _check_new(bucket: Bucket, key: str) -> None:
    """Check that a new object may have this name; see `check_new_key`."""
    check_new_key(bucket, key)
    if REFUSED.search(key) and not is_odd(bucket, key):
        raise InvalidName(f"{bucket}/{key}: boto3 writes such names, and is not installed")
