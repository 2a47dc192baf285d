"""The end of an upload in parts: they become an object, which is not believed before it was verified.

Must not know: HTTP, requests, errnos.
"""

import logging
from contextlib import suppress
from functools import partial
from itertools import accumulate

import trio

from aisfs.ais.absence import changing, check_newest
from aisfs.ais.client_port import Session
from aisfs.ais.protocol import write_requests
from aisfs.ais.sending import Upload, checksum_as
from aisfs.core.checksums import is_known
from aisfs.errors import (
    AisfsError,
    BucketNotFound,
    NotFound,
    ProtocolError,
    Stale,
    Unavailable,
    Unproven,
)
from aisfs.http.connections import ConnectionSet
from aisfs.model import ObjectInfo
from aisfs.store.at_once import all_of
from aisfs.store.retry import Retrier

log = logging.getLogger(__name__)

_TYPE_OF_PARTS = "crc32c"
"""The checksum that AIStore computes of what was put together, but of new versions of others."""


class MultipartCommit:
    """Makes objects of parts."""

    def __init__(self, session: Session, retrier: Retrier) -> None:
        """Be a part of the client `session`; `retrier` tries again what changes nothing."""
        self._session = session
        self._retrier = retrier

    async def complete(self, upload: Upload, name: str, sizes: list[int]) -> ObjectInfo:
        """Complete the upload of parts of these sizes, and verify the result.

        Raises:
            Unavailable: it is not known to be what was sent; sent once more, it may be.
        """
        if upload.bucket.is_local:  # again and again, rather than all parts again
            await self._retrier.run(str(upload), partial(self._check_newest, upload))
        unclear, expected = await self._put_together(upload, name, sizes)
        if unclear is not None:
            log.info("%s: asking whether it was put together: %s", upload, unclear)
        head = partial(self._session.head, upload.bucket, upload.key)
        try:
            info = await self._retrier.run(str(upload), head)
        except NotFound:
            raise unclear or Unavailable(f"{upload}: the cluster lost the parts") from None
        kind = info.checksum.partition(":")[0]
        if info.size != upload.content.size or (unclear and not is_known(kind)):
            raise unclear or Unavailable(f"{upload}: the cluster put other parts together")
        if is_known(kind):
            if kind != _TYPE_OF_PARTS or not expected:
                expected = await self._sum(upload, kind)
            if expected != info.checksum:
                raise unclear or Unavailable(f"{upload}: the cluster has other bytes")
        await self._read_back(upload, info, sizes)
        return info

    async def _check_newest(self, upload: Upload) -> None:
        def check(connections: ConnectionSet) -> None:
            transport = self._session.transport
            check_newest(transport, connections, upload.bucket, upload.key, writes=True)

        await self._session.run(str(upload), check, upload.bucket)

    async def _read_back(self, upload: Upload, info: ObjectInfo, sizes: list[int]) -> None:
        """Compare the last byte of each part: an object that lost one has its size and checksum.

        Raises:
            Unavailable: one cannot be had, or is another.
        """
        bucket, content = upload.bucket, upload.content
        lasts = [stop - 1 for stop in accumulate(sizes)]
        sent, found = bytearray(len(lasts)), bytearray(len(lasts))

        def read_sent() -> None:
            for at, last in enumerate(lasts):
                content.read_into(last, memoryview(sent)[at : at + 1])

        await trio.to_thread.run_sync(read_sent)

        async def read(at: int) -> None:
            byte = memoryview(found)[at : at + 1]
            attempt = partial(self._session.read_range, bucket, info, lasts[at], byte)
            await self._retrier.run(str(upload), attempt)
            if found[at] != sent[at]:
                raise Unavailable(f"{upload}: the cluster has another part {at + 1}")

        try:
            await all_of(partial(read, at) for at in range(len(lasts)))
        except BucketNotFound:
            raise
        except Stale as error:
            now = await self._session.head(bucket, upload.key)
            if now.same_bytes(info):
                raise Unavailable(f"{upload}: the cluster changed it: {error}") from error
            log.info("%s: overwritten by somebody else as soon as it was there", upload)
        except (NotFound, ProtocolError) as error:
            raise Unavailable(f"{upload}: the cluster lost a part of it: {error}") from error

    async def _put_together(
        self, upload: Upload, name: str, sizes: list[int]
    ) -> tuple[Unavailable | None, str]:
        """Complete the upload; return why the result is unclear, and the checksum to expect.

        The cluster reads all of the object for its checksum, and meanwhile so do we.
        """
        request = write_requests.complete_parts(upload.bucket, upload.key, name, sizes)
        failed: AisfsError | None = None
        expected = ""

        transport = self._session.transport

        def work(connections: ConnectionSet) -> None:
            with (
                changing(transport, connections, (upload.bucket, upload.key)),
                transport.readiness.undisturbed(request.subject),
            ):
                transport.fetch(connections, request)

        async def sum_up() -> None:
            nonlocal expected
            with suppress(AisfsError):  # it is computed once more, if it is wanted
                expected = await self._sum(upload, _TYPE_OF_PARTS)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sum_up)
            try:
                await self._session.run(request.subject, work, upload.bucket)
            except BucketNotFound as error:
                failed = error
            except NotFound as error:
                # Lost; or put together already, by the same request that something repeated.
                failed = Unavailable(f"{upload}: the cluster forgot the parts: {error}")
            except AisfsError as error:
                failed = error
        # Where targets joined or left, a HEAD shows it, and it may be lost later.
        if failed is not None and (
            not isinstance(failed, Unavailable) or isinstance(failed, Unproven)
        ):
            raise failed
        return failed, expected

    async def _sum(self, upload: Upload, kind: str) -> str:
        return await self._session.run(
            str(upload), lambda connections: checksum_as(kind, upload.content, connections)
        )
