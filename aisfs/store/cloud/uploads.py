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
from aisfs.store.cloud.clients import Client
from aisfs.store.cloud.errors import cloud_errors
from aisfs.store.cloud.futures import Futures, settled
from aisfs.store.port import Content, Count, Progress

log = logging.getLogger(__name__)

PART_LEAST = 5 << 20
"""Bytes; S3 takes no smaller part but the last."""
_PART_USUAL = 16 << 20
"""Bytes; hides the latency of a request, and a few of them are little memory."""
_PARTS_MOST = 9_000
"""S3 and Azure take 10,000 and 50,000."""
_AT_ONCE = 4
"""Parts under way, each of which is in memory."""
_SLOWEST = 1e6
"""Bytes a second that a link has at least: obstore does not tell how much of a request was sent, and a
connection that leads nowhere any more would take all of the time that the call and its retries have."""
_ABORT_SECONDS = 5.0
"""To tell the cloud to drop the parts of an upload that was cancelled; else they stay, as after a crash."""
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
        self._is_conditional = True
        """Whether the cloud is not known to lack `If-None-Match: *`."""

    async def send(
        self,
        client: Client,
        key: str,
        content: Content,
        subject: str,
        progress: Progress | None,
        only_new: str = "",
    ) -> str | None:
        """Write an object, and return its ETag; for `only_new` see `WritableStore.upload`.

        obstore completes no upload in parts on a condition. So for large contents, and in a cloud that
        has no conditions, it is only looked whether somebody has made the object meanwhile.
        """
        marks = {_MADE_BY: only_new} if only_new else {}
        look = partial(self._is_own, client, key, subject, only_new) if only_new else None
        if content.size > self._part_size:
            return await self._in_parts(client, key, content, subject, progress, marks, look)
        whole = partial(self._whole, client, key, content, subject, progress, marks)
        if look is None:
            return await whole()
        if not self._is_conditional:
            await look()
            return await whole()
        try:
            return await whole(mode="create")
        except AlreadyExists:
            if not await look():  # what S3 says of two writers at once, too
                raise Unavailable(f"{subject}: somebody else writes it, too") from None
            return await whole()
        except Unsupported as error:
            await look()
            etag = await whole()
            log.warning("O_EXCL may overwrite what other clients make: %s", error)
            self._is_conditional = False
            return etag

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

    async def _whole(
        self,
        client: Client,
        key: str,
        content: Content,
        subject: str,
        progress: Progress | None,
        marks: dict[str, str],
        mode: str = "overwrite",
    ) -> str | None:
        data = await trio.to_thread.run_sync(_read, content, 0, content.size)
        self._count("put", 1)
        call = partial(obstore.put_async, client, key, data, use_multipart=False)
        seconds = self._silence + content.size / _SLOWEST
        with trio.move_on_after(seconds) as scope, cloud_errors(subject):
            result = await self._futures.wait(call, mode=mode, attributes=marks)
        if scope.cancelled_caught:
            raise Unavailable(f"{subject}: no answer within {seconds:.0f} s")
        if progress is not None:
            await trio.to_thread.run_sync(progress, content.size)
        return result["e_tag"]

    async def _in_parts(
        self,
        client: Client,
        key: str,
        content: Content,
        subject: str,
        progress: Progress | None,
        marks: dict[str, str],
        at_end: Callable[[], Awaitable[object]] | None,
    ) -> str | None:
        least = -(-content.size // _PARTS_MOST)
        size = max(min(self._part_size, _PART_USUAL), PART_LEAST, least)
        self._count("put", 2 + -(-content.size // size))
        failed: AisfsError | None = None
        etag: str | None = None
        async with trio.open_nursery() as nursery:
            parts = _Parts(content, size, self._futures.loop, nursery, progress, at_end)
            call = partial(obstore.put_async, client, key, parts, use_multipart=True)
            call = partial(call, attributes=marks)
            try:
                with cloud_errors(subject):
                    future = self._futures.begin(call, chunk_size=size, max_concurrency=_AT_ONCE)
                    await _settled_or_aborted(future, parts)
                    etag = future.result()["e_tag"]
            except AisfsError as error:  # a nursery would put it into a group
                failed = error
            except _Stopped:
                assert parts.failure is not None, "nothing else stops it"
            nursery.cancel_scope.cancel()
        if parts.failure is not None:
            raise parts.failure
        if failed is not None:
            raise failed
        if progress is not None:
            await trio.to_thread.run_sync(progress, content.size)
        return etag


async def _settled_or_aborted(future: "asyncio.Future[Any]", parts: "_Parts") -> None:
    """Wait for an upload; a cancellation has obstore tell the cloud to drop its parts."""
    try:
        await settled(future, keep=True)
    except trio.Cancelled:
        parts.stop()
        with trio.CancelScope(shield=True), trio.move_on_after(_ABORT_SECONDS):
            await settled(future, keep=True)
        future.cancel()
        raise


class _Parts:
    """The parts of a content, each read when obstore asks for it."""

    def __init__(
        self,
        content: Content,
        size: int,
        loop: asyncio.AbstractEventLoop,
        nursery: trio.Nursery,
        progress: Progress | None,
        at_end: Callable[[], Awaitable[object]] | None,
    ) -> None:
        self._content = content
        self._size = size
        self._loop = loop
        self._nursery = nursery
        self._progress = progress
        self._at_end = at_end
        self._at = 0
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
        elif self._at >= self._content.size:
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
        start, size = self._at, min(self._size, self._content.size - self._at)
        self._at += size
        try:
            data = await trio.to_thread.run_sync(_read, self._content, start, size)
            if self._progress is not None:
                # What is under way besides this part was not all received yet.
                sent = max(0, start - (_AT_ONCE - 1) * self._size)
                await trio.to_thread.run_sync(self._progress, sent)
        except Exception as error:  # noqa: BLE001 - comes out of `send`
            self.failure = error
            if not future.done():
                future.set_exception(_Stopped())
            return
        if not future.done():
            future.set_result(data)


def _read(content: Content, start: int, size: int) -> bytearray:
    data = bytearray(size)
    content.read_into(start, memoryview(data))
    return data
