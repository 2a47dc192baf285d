"""Contents sent to a cloud through obstore: small ones at once, others in parts, several at a time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import obstore
import trio

from aisfs.errors import AisfsError, AlreadyExists, NotFound, Stale, Unavailable, Unsupported
from aisfs.model import ObjectInfo
from aisfs.settings import ClusterSettings
from aisfs.stores.cloud_client import Client, Futures, cloud_errors, described, settled
from aisfs.stores.port import Content, Count, Upload

log = logging.getLogger(__name__)

PART_LEAST = 5 << 20
"""Bytes; S3 takes no smaller part but the last."""
_PART_USUAL = 16 << 20
"""Bytes; hides the latency of a request, and a few of them are little memory."""
_PARTS_MOST = 9_000
"""S3 and Azure take 10,000 and 50,000."""
_AT_ONCE = 4
"""Parts under way, each of which is in memory."""
_SLOWEST = 100e3
"""Bytes a second that a line sends at least of one upload; obstore does not tell how much it has sent."""
_LOOKS = 4
"""How often the cloud is asked whether it answers, in the time that it may be silent."""
_ABORT_SECONDS = 5.0
"""To tell the cloud to drop the parts of an upload that was cancelled; else they stay, as after a crash."""
MADE_BY = "aisfsupload"
"""Metadata of an object that was to be a new one: `only_new`. Azure takes no hyphen in such a name."""


_Version = dict[str, str]
"""What is to be replaced, as obstore takes it: `e_tag` and `version`, where the cloud has them."""


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

    async def send(self, client: Client, upload: Upload) -> str | None:
        """Write an object, and return its ETag; see `Upload`.

        obstore completes no upload in parts on a condition. So for large contents, and in a cloud that
        has no conditions, it is only looked whether somebody has changed the object meanwhile.
        """
        sending = _Sending(client, upload)
        look = partial(self._look, sending) if upload.is_conditional else None
        if upload.content.size > self._part_size:
            return await self._in_parts(sending, look)
        whole = partial(self._whole, sending)
        if look is None:
            return await whole()
        mode = await look() if upload.replaces is not None else "create"
        if not self._is_conditional:
            await look()
            return await whole()
        try:
            return await whole(mode=mode)
        except (AlreadyExists, Stale):
            # What S3 says of two writers at once, too: then it is as it was, or not there, for a moment more.
            mode = await look()
            try:
                if mode != "create":
                    return await whole(mode=mode)
            except (AlreadyExists, Stale):
                pass
            raise Unavailable(f"{upload}: somebody else writes it, too") from None
        except Unsupported as error:
            await look()
            etag = await whole()
            log.warning("what other clients write at the same time may be overwritten: %s", error)
            self._is_conditional = False
            return etag

    async def _look(self, sending: "_Sending") -> str | _Version:
        """Return the mode in which what is there now may be replaced.

        Raises:
            AlreadyExists, Stale: it may not; it is not of an earlier try, whose answer was lost.
        """
        self._count("head", 1)
        upload = sending.upload
        call = partial(obstore.get_async, sending.client, upload.key, options={"head": True})
        try:
            with cloud_errors(str(upload)):
                found = await self._futures.wait(call)
        except NotFound:
            upload.check(None)
            return "create"
        there = described(found.meta)
        if upload.replaces is None:
            own = found.attributes.get(MADE_BY) == upload.only_new
        else:
            own = not there.same_content(upload.replaces) and await self._has(sending, there)
        if not own:
            upload.check(there)
        return {name: text for name in ("e_tag", "version") if (text := found.meta[name])}

    async def _has(self, sending: "_Sending", there: ObjectInfo) -> bool:
        """Return whether an object has the bytes of an upload already."""
        upload = sending.upload
        content = upload.content
        if there.size != content.size or content.size > self._part_size:
            return False
        self._count("get", 1)
        call = partial(obstore.get_async, sending.client, upload.key)
        with cloud_errors(str(upload)):
            result = await self._futures.wait(call)
            data = await self._futures.wait(result.bytes_async)
        wanted = await trio.to_thread.run_sync(_read, content, 0, content.size)
        return memoryview(data) == wanted

    async def _whole(self, sending: "_Sending", mode: str | _Version = "overwrite") -> str | None:
        content = sending.upload.content
        data = await trio.to_thread.run_sync(_read, content, 0, content.size)
        self._count("put", 1)
        sending.begin(content.size)
        return await self._put(sending, lambda _: data, use_multipart=False, mode=mode)

    async def _in_parts(
        self, sending: "_Sending", at_end: Callable[[], Awaitable[object]] | None
    ) -> str | None:
        total = sending.upload.content.size
        size = max(min(self._part_size, _PART_USUAL), PART_LEAST, -(-total // _PARTS_MOST))
        self._count("put", 2 + -(-total // size))
        sending.begin(0)

        def body(nursery: trio.Nursery) -> _Parts:
            return _Parts(sending, size, self._futures.loop, nursery, at_end)

        return await self._put(
            sending, body, use_multipart=True, chunk_size=size, max_concurrency=_AT_ONCE
        )

    async def _put(
        self,
        sending: "_Sending",
        body: Callable[[trio.Nursery], "bytearray | _Parts"],
        **options: object,
    ) -> str | None:
        """Have obstore send a body until it is done, or the cloud is silent for too long."""
        failed: Exception | None = None
        etag: str | None = None
        async with trio.open_nursery() as nursery:
            sent = body(nursery)
            parts = sent if isinstance(sent, _Parts) else None
            call = partial(obstore.put_async, sending.client, sending.upload.key, sent)
            call = partial(call, attributes=sending.marks, **options)
            with trio.move_on_after(self._silence) as scope:
                nursery.start_soon(self._watch, sending, scope)
                try:
                    with cloud_errors(str(sending.upload)):
                        future = self._futures.begin(call)
                        await _settled_or_aborted(future, parts)
                        etag = future.result()["e_tag"]
                except (AisfsError, _Stopped) as error:  # a nursery would put it into a group
                    failed = error
            nursery.cancel_scope.cancel()
        if parts is not None and parts.failure is not None:
            failed = parts.failure
        elif scope.cancelled_caught:
            failed = Unavailable(f"{sending.upload}: the cloud is silent")
        if failed is not None:
            raise failed
        await sending.tell(sending.upload.content.size)
        return etag

    async def _watch(self, sending: "_Sending", scope: trio.CancelScope) -> None:
        """Let an upload go on for as long as the cloud answers others, and a slow line needs."""
        confirmed = 0
        while True:
            await trio.sleep(self._silence / _LOOKS)
            slowly, answered = sending.sent_slowly(), False
            if slowly is not None and sending.confirmed == confirmed:
                with trio.move_on_after(self._silence / _LOOKS):  # its line may be full, or dead
                    answered = await self._answers(sending)
            if sending.confirmed > confirmed:
                confirmed = sending.confirmed
            elif slowly is not None and answered:
                await sending.tell(slowly)
            else:
                continue
            scope.deadline = trio.current_time() + self._silence

    async def _answers(self, sending: "_Sending") -> bool:
        self._count("head", 1)
        try:
            with cloud_errors(str(sending.upload)):
                await self._futures.wait(obstore.head_async, sending.client, sending.upload.key)
        except AisfsError as error:
            return not error.transient
        return True


async def _settled_or_aborted(future: "asyncio.Future[Any]", parts: "_Parts | None") -> None:
    """Wait for an upload; a cancellation has obstore tell the cloud to drop its parts."""
    try:
        await settled(future, keep=parts is not None)
    except trio.Cancelled:
        if parts is not None:
            parts.stop()
            with trio.CancelScope(shield=True), trio.move_on_after(_ABORT_SECONDS):
                await settled(future, keep=True)
            future.cancel()
        raise


@dataclass
class _Sending:
    """One try of an upload, and what is known of how far it is."""

    client: Client
    upload: Upload
    handed: int = 0
    """Bytes that obstore was given."""
    confirmed: int = 0
    """Bytes that the cloud is known to have."""
    _since: float = 0.0
    """When the cloud last confirmed any."""

    @property
    def marks(self) -> dict[str, str]:
        """Metadata by which a later try knows this one."""
        return {MADE_BY: self.upload.only_new} if self.upload.only_new else {}

    def begin(self, handed: int) -> None:
        """Start to count."""
        self.handed, self.confirmed, self._since = handed, 0, trio.current_time()

    def confirm(self, size: int) -> None:
        """Note that the cloud has the first `size` bytes."""
        if size > self.confirmed:
            self.confirmed, self._since = size, trio.current_time()

    def sent_slowly(self) -> int | None:
        """Return how much the slowest line would have sent; None if that is all it was given."""
        sent = self.confirmed + int((trio.current_time() - self._since) * _SLOWEST)
        return sent if sent < self.handed else None

    async def tell(self, sent: int) -> None:
        """Tell how much was sent."""
        await trio.to_thread.run_sync(self.upload.progress, sent)


class _Parts:
    """The parts of a content, each read when obstore asks for it."""

    def __init__(
        self,
        sending: _Sending,
        size: int,
        loop: asyncio.AbstractEventLoop,
        nursery: trio.Nursery,
        at_end: Callable[[], Awaitable[object]] | None,
    ) -> None:
        self._sending = sending
        self._content = sending.upload.content
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
        sent = max(0, start - (_AT_ONCE - 1) * self._size)
        self._sending.confirm(sent)
        try:
            data = await trio.to_thread.run_sync(_read, self._content, start, size)
            await self._sending.tell(sent)
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
