"""Whole objects into AIStore: in one request, or in parts that go in parallel.

Nothing is reported done that the cluster has not confirmed: by the checksum in the reply to a PUT,
or by a HEAD where the reply was lost or says nothing, and after the parts were put together.
A failed upload in parts is aborted, and leaves nothing.

Must not know: HTTP, requests, errnos.
"""

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import trio

from aisfs.ais import changes
from aisfs.ais.checksums import DEFAULT_TYPE, checksum_of, is_known
from aisfs.ais.counted_body import BodyDelivered
from aisfs.ais.exchange import SMALL
from aisfs.ais.session import Session
from aisfs.ais.transport import Line
from aisfs.ais.wire import BucketFacts, Reply, Request
from aisfs.errors import (
    AisfsError,
    BucketNotFound,
    NotFound,
    ProtocolError,
    Unavailable,
    Unsupported,
)
from aisfs.model import NO_CUSTOM, Bucket, ObjectInfo, Provider
from aisfs.store.content import PartOfContent, in_memory, pieces_of
from aisfs.store.custom import encode_custom, stamp_of
from aisfs.store.port import Content, Progress
from aisfs.store.retry import Movement, Retrier

log = logging.getLogger(__name__)

_MOST_PARTS = 9_000
"""Parts of one upload; the clouds behind AIStore take 10,000."""
_PARTS_AT_ONCE = 8
"""Enough to keep several disks of a target busy."""
_TYPE_OF_PARTS = "crc32c"
"""The checksum that AIStore computes of what was put together, but of new versions of others."""
_ABORT_SECONDS = 10.0
"""How long a cancelled upload may take to remove its parts."""


@dataclass(frozen=True, slots=True)
class Upload:
    """What is to be written."""

    bucket: Bucket
    key: str
    content: Content
    custom: Mapping[str, str] = field(default_factory=lambda: NO_CUSTOM)
    progress: Progress = lambda done: None

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}"


class Uploads:
    """Writes whole objects."""

    def __init__(self, session: Session, retrier: Retrier, part_size: int) -> None:
        """Prepare.

        Args:
            session: The client this is a part of.
            retrier: Tries the parts of one upload again.
            part_size: Bytes; larger objects go in parts of this size, or of a larger one when
                there would be too many.
        """
        self._session = session
        self._retrier = retrier
        self._part_size = part_size
        self._can_take_parts = True

    async def upload(self, upload: Upload) -> ObjectInfo:
        """Write one object; its custom metadata may still be that of before."""
        if upload.content.size > self._part_size and self._can_take_parts:
            upload_id = await self._start_parts(upload)
            if upload_id:
                return await self._in_parts(upload, upload_id)
        return await self._whole(upload)

    # In one request ---------------------------------------------------------------------------

    async def _whole(self, upload: Upload) -> ObjectInfo:
        def work(line: Line) -> tuple[ObjectInfo | None, str]:
            facts = self._session.facts_of(line, upload.bucket)
            content = in_memory(upload.content) if upload.content.size <= SMALL else upload.content
            checksum, custom = _checksum(content, facts, line), ""
            if upload.custom and checksum:
                meant = ObjectInfo(upload.key, upload.content.size, checksum=checksum)
                custom = encode_custom(upload.custom, stamp_of(meant))
            request = changes.put_object(
                upload.bucket, upload.key, checksum=checksum, custom=custom
            )
            try:
                reply = self._send(line, request, content, upload.progress)
            except BodyDelivered as error:
                log.info("%s: asking whether it was written: %s", upload, error)
                # On another line: this one's connection is of no more use.
                if not checksum:
                    raise
                return None, checksum
            size = upload.content.size
            return changes.parse_written(reply, upload.bucket, upload.key, size, facts), checksum

        info, checksum = await self._session.run(str(upload), work, upload.bucket)
        if info is None or upload.bucket.provider is not Provider.AIS:
            info = await self._confirmed(upload)
        wanted = ObjectInfo(upload.key, upload.content.size, checksum=checksum)
        if not info.same_bytes(wanted):
            raise Unavailable(f"{upload}: what the cluster has is not what was sent")
        return info

    def _send(self, line: Line, request: Request, content: Content, progress: Progress) -> Reply:
        pieces = pieces_of(content, progress)
        return self._session.transport.upload(line, request, content.size, pieces)

    async def _confirmed(self, upload: Upload) -> ObjectInfo:
        try:
            return await self._session.head(upload.bucket, upload.key)
        except NotFound as error:
            raise Unavailable(f"{upload}: the cluster did not keep what was sent") from error

    # In parts ---------------------------------------------------------------------------------

    async def _start_parts(self, upload: Upload) -> str:
        """Begin; empty when the cluster does not know how."""
        request = changes.start_parts(upload.bucket, upload.key)

        def work(line: Line) -> str:
            reply = self._session.transport.fetch(line, request)
            return changes.parse_upload_id(reply, request.subject)

        try:
            return await self._session.run(request.subject, work, upload.bucket)
        except (Unsupported, ProtocolError) as error:
            log.warning("%s: sent in one piece, the cluster takes no parts: %s", upload, error)
            self._can_take_parts = False
            return ""

    async def _in_parts(self, upload: Upload, upload_id: str) -> ObjectInfo:
        done = False
        try:
            sizes = await self._send_parts(upload, upload_id)
            info = await self._complete(upload, upload_id, sizes)
            done = True
            return info
        except BucketNotFound:
            raise
        except NotFound as error:
            raise Unavailable(f"{upload}: the cluster forgot the parts") from error
        finally:
            if not done:
                await self._abort(upload, upload_id)

    async def _send_parts(self, upload: Upload, upload_id: str) -> list[int]:
        size = upload.content.size
        step = max(self._part_size, -(-size // _MOST_PARTS))
        parts = [
            PartOfContent(upload.content, start, min(step, size - start))
            for start in range(0, size, step)
        ]
        tally, limiter = _Tally(upload.progress), trio.CapacityLimiter(_PARTS_AT_ONCE)
        failed: list[AisfsError] = []

        async def send(number: int, part: PartOfContent) -> None:
            async with limiter:
                try:
                    await self._send_part(upload, upload_id, number, part, tally)
                except AisfsError as error:
                    failed.append(error)
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for number, part in enumerate(parts, start=1):
                nursery.start_soon(send, number, part)
        if failed:
            raise failed[0]
        return [part.size for part in parts]

    async def _send_part(
        self, upload: Upload, upload_id: str, number: int, part: PartOfContent, tally: "_Tally"
    ) -> None:
        token, movement = trio.lowlevel.current_trio_token(), Movement()

        def progress(sent: int) -> None:
            token.run_sync_soon(movement.told, sent)
            tally.told(number, sent)

        def work(line: Line) -> None:
            facts = self._session.facts_of(line, upload.bucket)
            checksum = _checksum(part, facts, line)
            request = changes.put_part(upload.bucket, upload.key, upload_id, number, checksum)
            self._send(line, request, part, progress)

        subject = f"{upload}, part {number}"
        attempt = partial(self._session.run, subject, work, upload.bucket)
        await self._retrier.run(subject, attempt, movement=movement)

    async def _complete(self, upload: Upload, upload_id: str, sizes: list[int]) -> ObjectInfo:
        unclear, expected = await self._put_together(upload, upload_id, sizes)
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
        return info

    async def _put_together(
        self, upload: Upload, upload_id: str, sizes: list[int]
    ) -> tuple[Unavailable | None, str]:
        """Have the parts put together; gives why that is unclear, and the checksum to expect.

        The cluster reads all of the object for its checksum, and meanwhile so do we.
        """
        request = changes.complete_parts(upload.bucket, upload.key, upload_id, sizes)
        failed: AisfsError | None = None
        expected = ""

        def work(line: Line) -> None:
            self._session.transport.fetch(line, request)

        async def sum_up() -> None:
            nonlocal expected
            with suppress(AisfsError):  # it is computed once more, if it is wanted
                expected = await self._sum(upload, _TYPE_OF_PARTS)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sum_up)
            try:
                await self._session.run(request.subject, work, upload.bucket)
            except AisfsError as error:
                failed = error
        if failed is not None and not isinstance(failed, Unavailable):
            raise failed
        return failed, expected

    async def _sum(self, upload: Upload, kind: str) -> str:
        return await self._session.run(
            str(upload), lambda line: _checksum_as(upload.content, kind, line)
        )

    async def _abort(self, upload: Upload, upload_id: str) -> None:
        request = changes.abort_parts(upload.bucket, upload.key, upload_id)

        def work(line: Line) -> None:
            self._session.transport.fetch(line, request)

        with trio.move_on_after(_ABORT_SECONDS, shield=True) as scope:
            try:
                attempt = partial(self._session.run, request.subject, work, upload.bucket)
                await self._retrier.run(request.subject, attempt)
            except NotFound:
                return
            except AisfsError as error:
                log.warning("%s: its parts %s stay in the cluster: %s", upload, upload_id, error)
        if scope.cancelled_caught:
            log.warning("%s: its parts %s stay in the cluster: no answer", upload, upload_id)


class _Tally:
    """How much of all parts was sent."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._sent: dict[int, int] = {}
        self._total = 0

    def told(self, number: int, sent: int) -> None:
        with self._lock:
            self._total += sent - self._sent.get(number, 0)
            self._sent[number] = sent
            self._progress(self._total)


def _checksum(content: Content, facts: BucketFacts, line: Line) -> str:
    """Compute what the bucket wants to know; empty when it keeps none."""
    if not facts.keeps_checksums:
        return ""
    kind = facts.checksum_type
    return _checksum_as(content, kind if is_known(kind) else DEFAULT_TYPE, line)


def _checksum_as(content: Content, kind: str, line: Line) -> str:
    return checksum_of(content, kind, lambda: not line.lifeline.is_cut)
