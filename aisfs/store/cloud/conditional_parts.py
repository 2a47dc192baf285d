"""Large objects of S3 that are to be new: sent with boto3, since obstore completes no upload in parts on a
condition."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from aisfs.config import ClusterSettings
from aisfs.errors import AisfsError, NotFound, Stale, Unavailable
from aisfs.model import Bucket
from aisfs.store.at_once import all_of
from aisfs.store.cloud.boto3_client import boto3_errors, make_client
from aisfs.store.cloud.sending import Sending
from aisfs.store.retry import Retrier

AT_ONCE = 4
"""Parts under way, each of which is in memory."""
_SILENCE = 300.0
"""Seconds until the thread of a request ends that nobody waits for any more. A slow line takes long to send
what the kernel has of a part; that it is not dead is found otherwise."""
ABORT_SECONDS = 5.0
"""To tell the cloud to drop the parts of an upload that was cancelled; else they stay, as after a crash."""


class ConditionalParts:
    """Sends contents in parts, which S3 puts together if there is no such object."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._retrier = Retrier(deadline=settings.io_timeout)
        self._client: Any = None

    async def send(
        self, bucket: Bucket, sending: Sending, size: int, look: Callable[[], Awaitable[bool]]
    ) -> str:
        """Write an object, and return its ETag.

        Args:
            bucket: Where.
            sending: What.
            size: Bytes of a part.
            look: Raises `AlreadyExists` if there is such an object of another client.

        Raises:
            AlreadyExists: there is one of another client.
            Unsupported: the service knows no such condition.
        """
        place = {"Bucket": bucket.name, "Key": sending.key}
        ask = partial(self._ask, sending.subject)
        begun = await ask("create_multipart_upload", **place, Metadata=sending.marks)
        place["UploadId"] = begun["UploadId"]
        try:
            parts = await self._send_parts(sending, size, place)
            end = partial(ask, "complete_multipart_upload", **place, IfNoneMatch="*")
            done = await end(MultipartUpload={"Parts": parts})
        except (Stale, NotFound):
            await self._abort(sending, place)
            await look()  # the reply to an earlier try of the end may have been lost
            raise Unavailable(f"{sending.subject}: what became of it is not known") from None
        except BaseException:
            await self._abort(sending, place)
            raise
        etag: str = done["ETag"]
        return etag

    async def _send_parts(
        self, sending: Sending, size: int, place: dict[str, str]
    ) -> list[dict[str, object]]:
        starts = range(0, sending.content.size, size)
        parts: list[dict[str, object]] = [{} for _ in starts]
        done = 0

        async def send(at: int) -> None:
            nonlocal done
            data = await sending.read(starts[at], min(size, sending.content.size - starts[at]))
            sending.handed += len(data)
            put = partial(self._ask, sending.subject, "upload_part", **place, PartNumber=at + 1)
            reply = await put(Body=data)
            parts[at] = {"PartNumber": at + 1, "ETag": reply["ETag"]}
            done += len(data)
            sending.confirm(done)
            await sending.tell(done)

        await all_of([partial(send, at) for at in range(len(parts))], AT_ONCE)
        return parts

    async def _abort(self, sending: Sending, place: dict[str, str]) -> None:
        with trio.CancelScope(shield=True), trio.move_on_after(ABORT_SECONDS), suppress(AisfsError):
            await self._ask(sending.subject, "abort_multipart_upload", **place)

    async def _ask(self, subject: str, name: str, **words: object) -> dict[str, Any]:
        call = partial(trio.to_thread.run_sync, self._call, subject, name, words)
        attempt = partial(call, abandon_on_cancel=True)
        return await self._retrier.run(subject, attempt, cut=False)  # a slow line needs longer

    def _call(self, subject: str, name: str, words: dict[str, object]) -> dict[str, Any]:
        with boto3_errors(subject):
            if self._client is None:
                self._client = make_client(self._settings, _SILENCE)
            reply: dict[str, Any] = getattr(self._client, name)(**words)
            return reply
