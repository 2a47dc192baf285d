"""Objects in parts: sent in parallel, some while the rest is not known yet, then put together.

An upload that fails, or is not wanted any more, is aborted, and leaves nothing.

Must not know: HTTP, requests, errnos.
"""

import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import trio

from aisfs.ais import changes
from aisfs.ais.checksums import DEFAULT_TYPE, checksum_of, is_known
from aisfs.ais.line import Line
from aisfs.ais.session import Session
from aisfs.ais.wire import BucketFacts, Reply, Request
from aisfs.errors import (
    AisfsError,
    BucketNotFound,
    NotFound,
    ProtocolError,
    Unavailable,
    Unsupported,
)
from aisfs.model import NO_CUSTOM, Bucket, ObjectInfo
from aisfs.store.content import PartOfContent, pieces_of
from aisfs.store.port import Content, Progress
from aisfs.store.retry import Movement, Retrier

log = logging.getLogger(__name__)

_MOST_PARTS = 9_000
"""Parts of one upload; the clouds behind AIStore take 10,000."""
_MOST_AHEAD = 8_000
"""Of them, those sent ahead; the others are as large as it takes for the rest of the object."""
_LEAST_AHEAD = 5 << 20
"""Bytes; the clouds take no smaller part, but for the last."""
_AHEAD_SHARE = 4
"""A quarter of the part size is sent ahead at once: what is left at the close is at most about that."""
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


class BegunUpload:
    """An upload in parts; see `UploadAhead`."""

    def __init__(self, parts: "Parts", bucket: Bucket, key: str, name: str, step: int) -> None:
        self._parts = parts
        self.bucket = bucket
        self.key = key
        self.name = name
        self.over = False
        """Whether it was put together, or aborted, or tried to."""
        self._step = step
        self._begun = 0
        """Parts that were sent ahead, or tried to, each of `_step` bytes."""
        self._sent: set[int] = set()
        self._spoiled: set[int] = set()

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}"

    @property
    def wants(self) -> int:
        """See `UploadAhead`."""
        return (self._begun + 1) * self._step if self._begun < _MOST_AHEAD else sys.maxsize

    def next_part(self, content: Content) -> Callable[[], Awaitable[None]]:
        """See `UploadAhead`."""
        number = self._begun
        self._begun += 1
        part = PartOfContent(content, number * self._step, self._step)

        async def send() -> None:
            await self._parts.send(self, number, part, once=True)
            self._sent.add(number)

        return send

    def spoil(self, start: int, stop: int) -> None:
        """See `UploadAhead`."""
        begun = self._begun
        if start < begun * self._step:
            self._spoiled.update(range(start // self._step, min(-(-stop // self._step), begun)))

    async def abandon(self) -> None:
        """See `UploadAhead`."""
        if not self.over:
            self.over = True
            await self._parts.abort(self)

    def fits(self, size: int) -> bool:
        """Say whether a content of `size` bytes goes in parts, beginning with those sent ahead.

        Not when some were changed and no reply to them came: they might come after what replaces them.
        """
        unclear = set(range(self._begun)) - self._sent
        fits = size > self._parts.above and self._begun * self._step <= size
        return fits and not unclear & self._spoiled

    def split(self, content: Content) -> list[PartOfContent]:
        """Cut a content into parts, those that were sent ahead as they are."""
        size, ahead = content.size, self._begun * self._step
        step = max(self._step, -(-(size - ahead) // (_MOST_PARTS - self._begun)))
        starts = [*range(0, ahead, self._step), *range(ahead, size, step)]
        stops = [*starts[1:], size]
        return [
            PartOfContent(content, start, stop - start)
            for start, stop in zip(starts, stops, strict=True)
        ]

    def has(self, number: int) -> bool:
        """Say whether the cluster has a part as it is now."""
        return number in self._sent and number not in self._spoiled


class Parts:
    """Uploads in parts."""

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
        self._are_known = True

    @property
    def above(self) -> int:
        """Bytes above which an object goes in parts."""
        return self._part_size if self._are_known else sys.maxsize

    async def begin(self, bucket: Bucket, key: str, *, ahead: bool) -> BegunUpload | None:
        """Begin; None when the cluster does not know how."""
        if not self._are_known:
            return None
        request = changes.start_parts(bucket, key)

        def work(line: Line) -> str:
            reply = self._session.transport.fetch(line, request)
            return changes.parse_upload_id(reply, request.subject)

        try:
            name = await self._session.run(request.subject, work, bucket)
        except (Unsupported, ProtocolError) as error:
            log.warning(
                "%s/%s: sent in one piece, the cluster takes no parts: %s", bucket, key, error
            )
            self._are_known = False
            return None
        step = max(self._part_size // _AHEAD_SHARE, _LEAST_AHEAD) if ahead else self._part_size
        return BegunUpload(self, bucket, key, name, step)

    async def finish(self, upload: Upload, begun: BegunUpload) -> ObjectInfo:
        """Send the parts that the cluster has not, and have them put together."""
        begun.over = True
        done = False
        try:
            sizes = await self._send_rest(upload, begun)
            info = await self._complete(upload, begun, sizes)
            done = True
            return info
        except BucketNotFound:
            raise
        except NotFound as error:
            raise Unavailable(f"{upload}: the cluster forgot the parts") from error
        finally:
            if not done:
                await self.abort(begun)

    async def _send_rest(self, upload: Upload, begun: BegunUpload) -> list[int]:
        parts = begun.split(upload.content)
        tally, limiter = _Tally(upload.progress), trio.CapacityLimiter(_PARTS_AT_ONCE)
        failed: list[AisfsError] = []

        async def send(number: int, part: PartOfContent) -> None:
            async with limiter:
                try:
                    await self.send(begun, number, part, partial(tally.told, number))
                except AisfsError as error:
                    failed.append(error)
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for number, part in enumerate(parts):
                if not begun.has(number):
                    nursery.start_soon(send, number, part)
        if failed:
            raise failed[0]
        return [part.size for part in parts]

    async def send(
        self,
        begun: BegunUpload,
        number: int,
        part: PartOfContent,
        progress: Progress = lambda done: None,
        *,
        once: bool = False,
    ) -> None:
        """Send one part, counted from 0; sent again it replaces the one before."""
        subject = f"{begun}, part {number + 1}"
        token, movement = trio.lowlevel.current_trio_token(), Movement()

        def told(sent: int) -> None:
            token.run_sync_soon(movement.told, sent)
            progress(sent)

        def work(line: Line) -> None:
            facts = self._session.facts_of(line, begun.bucket)
            checksum = checksum_for(facts, part, line)
            name = begun.name
            request = changes.put_part(begun.bucket, begun.key, name, number + 1, checksum)
            send_content(self._session, line, request, part, told)

        attempt = partial(self._session.run, subject, work, begun.bucket)
        await self._retrier.run(subject, attempt, final=lambda: once, movement=movement)

    async def _complete(self, upload: Upload, begun: BegunUpload, sizes: list[int]) -> ObjectInfo:
        unclear, expected = await self._put_together(upload, begun, sizes)
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
        self, upload: Upload, begun: BegunUpload, sizes: list[int]
    ) -> tuple[Unavailable | None, str]:
        """Have the parts put together; gives why that is unclear, and the checksum to expect.

        The cluster reads all of the object for its checksum, and meanwhile so do we.
        """
        request = changes.complete_parts(upload.bucket, upload.key, begun.name, sizes)
        failed: AisfsError | None = None
        expected = ""

        transport = self._session.transport

        def work(line: Line) -> None:
            with transport.readiness.undisturbed(request.subject):
                transport.fetch(line, request)

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
            str(upload), lambda line: _checksum_as(kind, upload.content, line)
        )

    async def abort(self, begun: BegunUpload) -> None:
        """Throw the parts away; what stays in the cluster is logged."""
        name = begun.name
        attempt = partial(self.forget, begun.bucket, begun.key, name)
        with trio.move_on_after(_ABORT_SECONDS, shield=True) as scope:
            try:
                await self._retrier.run(str(begun), attempt)
            except NotFound:
                return
            except AisfsError as error:
                log.warning("%s: its parts %s stay in the cluster: %s", begun, name, error)
        if scope.cancelled_caught:
            log.warning("%s: its parts %s stay in the cluster: no answer", begun, name)

    async def forget(self, bucket: Bucket, key: str, name: str) -> None:
        """Throw the parts of an upload away.

        Raises:
            NotFound: there is none of that name.
        """
        request = changes.abort_parts(bucket, key, name)

        def work(line: Line) -> None:
            self._session.transport.fetch(line, request)

        await self._session.run(request.subject, work, bucket)


class _Tally:
    """How much of all parts was sent; what went ahead is no progress of this upload."""

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


def send_content(
    session: Session, line: Line, request: Request, content: Content, progress: Progress
) -> Reply:
    """Send a request with a content, and receive its reply."""
    pieces: Iterator[memoryview] = pieces_of(content, progress)
    return session.transport.upload(line, request, content.size, pieces)


def checksum_for(facts: BucketFacts, content: Content, line: Line) -> str:
    """Compute what the bucket wants to know; empty when it keeps none."""
    if not facts.keeps_checksums:
        return ""
    kind = facts.checksum_type
    return _checksum_as(kind if is_known(kind) else DEFAULT_TYPE, content, line)


def _checksum_as(kind: str, content: Content, line: Line) -> str:
    return checksum_of(content, kind, lambda: not line.lifeline.is_cut)
