"""Contents sent to a cloud through obstore: small ones at once, others in parts, several at a time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import obstore
import trio

from aisfs.config import ClusterSettings
from aisfs.errors import AisfsError, AlreadyExists, NotFound, Unavailable, Unsupported
from aisfs.model import Bucket, Provider
from aisfs.store.cloud.boto3_client import has_boto3
from aisfs.store.cloud.clients import Client
from aisfs.store.cloud.conditional_parts import ABORT_SECONDS, AT_ONCE, ConditionalParts
from aisfs.store.cloud.errors import cloud_errors
from aisfs.store.cloud.futures import Futures, settled
from aisfs.store.cloud.sending import Sending
from aisfs.store.port import Content, Count, Progress

log = logging.getLogger(__name__)

PART_LEAST = 5 << 20
"""Bytes; S3 takes no smaller part but the last."""
_PART_USUAL = 16 << 20
"""Bytes; hides the latency of a request, and a few of them are little memory."""
_PARTS_MOST = 9_000
"""S3 and Azure take 10,000 and 50,000."""
_LOOKS = 3
"""How often the cloud is asked whether it answers, in the time that it may be silent."""
_MADE_BY = "aisfsupload"
"""Metadata of an object that was to be a new one: `only_new`. Azure takes no hyphen in such a name."""


class _Stopped(Exception):
    """The upload was cancelled."""


class Uploads:
    """Sends contents."""

    def __init__(self, futures: Futures, count: Count, settings: ClusterSettings) -> None:
        self._futures = futures
        self._count = count
        self._part_size = settings.part_size
        self._silence = settings.read_timeout or settings.io_timeout
        self._conditional = ConditionalParts(settings)
        self._is_conditional = True
        """Whether the cloud is not known to lack `If-None-Match: *`."""

    async def send(
        self,
        client: Client,
        bucket: Bucket,
        key: str,
        content: Content,
        progress: Progress | None,
        only_new: str = "",
    ) -> str | None:
        """Write an object, and return its ETag; for `only_new` see `WritableStore.upload`."""
        subject = f"{bucket}/{key}"
        marks = {_MADE_BY: only_new} if only_new else {}
        sending = Sending(client, key, content, subject, progress, marks)
        look = partial(self._is_own, client, key, subject, only_new) if only_new else None
        in_parts = content.size > self._part_size
        if look is None:
            return await (self._in_parts(sending, None) if in_parts else self._whole(sending))
        if in_parts:
            return await self._new_in_parts(bucket, sending, look)
        if not self._is_conditional:
            await look()
            return await self._whole(sending)
        try:
            return await self._whole(sending, mode="create")
        except AlreadyExists:
            if not await look():  # what S3 says of two writers at once, too
                raise Unavailable(f"{subject}: somebody else writes it, too") from None
            return await self._whole(sending)
        except Unsupported as error:
            await look()
            etag = await self._whole(sending)
            self._refused(error)
            return etag

    async def _new_in_parts(
        self, bucket: Bucket, sending: Sending, look: Callable[[], Awaitable[bool]]
    ) -> str | None:
        """Write a large object that is to be new: on a condition where boto3 knows how to.

        obstore completes no upload in parts on a condition. Elsewhere it is looked just before.
        """
        is_new = not await look()  # else an earlier try has sent it, perhaps with other content
        if is_new and bucket.provider is Provider.S3 and self._is_conditional and has_boto3():
            size = self._part_of(sending)
            send = partial(self._conditional.send, bucket, sending, size, look)
            try:
                return await self._answered(sending, lambda _: send())
            except Unsupported as error:
                self._refused(error)
        return await self._in_parts(sending, look)

    def _refused(self, error: AisfsError) -> None:
        log.warning("O_EXCL may overwrite what other clients make: %s", error)
        self._is_conditional = False

    async def _is_own(self, client: Client, key: str, subject: str, only_new: str) -> bool:
        """Return whether there is an object, of an earlier try.

        Raises:
            AlreadyExists: there is one of somebody else.
        """
        self._count("head", 1)
        call = partial(obstore.get_async, client, key, options={"head": True})
        try:
            with cloud_errors(subject):
                found = await self._futures.wait(call)
        except NotFound:
            return False
        if found.attributes.get(_MADE_BY) != only_new:
            raise AlreadyExists(f"{subject}: another client has made it meanwhile")
        return True

    async def _whole(self, sending: Sending, mode: str = "overwrite") -> str | None:
        data = await sending.read(0, sending.content.size)
        self._count("put", 1)
        sending.begin(len(data))

        async def send(_: trio.Nursery) -> str | None:
            call = partial(obstore.put_async, sending.client, sending.key, data)
            call = partial(call, attributes=sending.marks, use_multipart=False, mode=mode)
            with cloud_errors(sending.subject):
                return (await self._futures.wait(call))["e_tag"]

        return await self._answered(sending, send)

    async def _in_parts(
        self, sending: Sending, at_end: Callable[[], Awaitable[object]] | None
    ) -> str | None:
        size = self._part_of(sending)

        async def send(nursery: trio.Nursery) -> str | None:
            parts = _Parts(sending, size, self._futures.loop, nursery, at_end)
            call = partial(obstore.put_async, sending.client, sending.key, parts)
            call = partial(call, attributes=sending.marks, use_multipart=True, chunk_size=size)
            try:
                with cloud_errors(sending.subject):
                    future = self._futures.begin(call, max_concurrency=AT_ONCE)
                    await _settled_or_aborted(future, parts)
                    etag: str | None = future.result()["e_tag"]
                    return etag
            except (AisfsError, _Stopped) as error:
                raise parts.failure or error from None

        return await self._answered(sending, send)

    def _part_of(self, sending: Sending) -> int:
        """Return the size of the parts, and count them, the beginning and the end."""
        total = sending.content.size
        size = max(min(self._part_size, _PART_USUAL), PART_LEAST, -(-total // _PARTS_MOST))
        self._count("put", 2 + -(-total // size))
        sending.begin(0)
        return size

    async def _answered(
        self, sending: Sending, send: Callable[[trio.Nursery], Awaitable[str | None]]
    ) -> str | None:
        """Send until it is done, or the cloud is silent for too long."""
        failed: Exception | None = None
        etag: str | None = None
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(self._silence) as scope:
                nursery.start_soon(self._watch, sending, scope)
                try:
                    etag = await send(nursery)
                except Exception as error:  # noqa: BLE001 - a nursery would put it into a group
                    failed = error
            nursery.cancel_scope.cancel()
        if scope.cancelled_caught:
            failed = Unavailable(f"{sending.subject}: the cloud is silent")
        if failed is not None:
            raise failed
        await sending.tell(sending.content.size)
        return etag

    async def _watch(self, sending: Sending, scope: trio.CancelScope) -> None:
        """Let an upload go on for as long as the cloud answers others, and a slow line needs."""
        confirmed = 0
        while True:
            await trio.sleep(self._silence / _LOOKS)
            slowly = sending.sent_slowly()
            if sending.confirmed > confirmed:
                confirmed = sending.confirmed
            elif slowly is None or not await self._answers(sending):
                continue
            else:
                await sending.tell(slowly)
            scope.deadline = trio.current_time() + self._silence

    async def _answers(self, sending: Sending) -> bool:
        self._count("head", 1)
        try:
            with cloud_errors(sending.subject):
                await self._futures.wait(obstore.head_async, sending.client, sending.key)
        except AisfsError as error:
            return not error.transient
        return True


async def _settled_or_aborted(future: "asyncio.Future[Any]", parts: "_Parts") -> None:
    """Wait for an upload; a cancellation has obstore tell the cloud to drop its parts."""
    try:
        await settled(future, keep=True)
    except trio.Cancelled:
        parts.stop()
        with trio.CancelScope(shield=True), trio.move_on_after(ABORT_SECONDS):
            await settled(future, keep=True)
        future.cancel()
        raise


class _Parts:
    """The parts of a content, each read when obstore asks for it."""

    def __init__(
        self,
        sending: Sending,
        size: int,
        loop: asyncio.AbstractEventLoop,
        nursery: trio.Nursery,
        at_end: Callable[[], Awaitable[object]] | None,
    ) -> None:
        self._sending = sending
        self._content = sending.content
        self._size = size
        self._loop = loop
        self._nursery = nursery
        self._at_end = at_end
        self._stopped = False
        self._asked: asyncio.Future[Any] | None = None
        self.failure: Exception | None = None

    def __aiter__(self) -> "_Parts":
        return self

    def __anext__(self) -> "asyncio.Future[Any]":
        """Return the future of the next part. In a thread of obstore, which waits for it."""
        future = self._loop.create_future()
        self._loop.call_soon_threadsafe(self._begin, future)
        return future

    def stop(self) -> None:
        """Have obstore drop what was sent, when it asks for the next part."""
        self._stopped = True
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(_Stopped())

    def _begin(self, future: "asyncio.Future[Any]") -> None:
        self._asked = future
        if self._stopped:
            future.set_exception(_Stopped())
        elif self._sending.handed >= self._content.size:
            self._nursery.start_soon(self._end, future)
        else:
            self._nursery.start_soon(self._fill, future)

    async def _end(self, future: "asyncio.Future[Any]") -> None:
        """Let obstore complete the upload, unless `at_end` has something against it."""
        over: Exception = StopAsyncIteration()
        try:
            if self._at_end is not None:
                await self._at_end()
        except AisfsError as error:
            self.failure, over = error, _Stopped()
        if not future.done():
            future.set_exception(over)

    async def _fill(self, future: "asyncio.Future[Any]") -> None:
        start = self._sending.handed
        size = min(self._size, self._content.size - start)
        self._sending.handed += size
        # What is under way besides this part was not all received yet.
        sent = max(0, start - (AT_ONCE - 1) * self._size)
        self._sending.confirm(sent)
        try:
            data = await self._sending.read(start, size)
            await self._sending.tell(sent)
        except Exception as error:  # noqa: BLE001 - comes out of `send`
            self.failure = error
            if not future.done():
                future.set_exception(_Stopped())
            return
        if not future.done():
            future.set_result(data)
