"""Objects in parts: sent in parallel, some while the rest is not known yet, then put together.

AIStore destroys a part whose number arrives twice, says 200 to both, and puts together an object
with the right size and checksum and a hole. So no part is sent again that the cluster may have:
an upload with such a part is aborted, and another one sends all parts. And what was put together is
not believed before a byte of each part was read back.

An upload that fails, or is not wanted any more, is aborted, and leaves nothing.

Must not know: HTTP, requests, errnos.
"""

import logging
import sys
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from aisfs.ais.client_port import Session
from aisfs.ais.multipart_commit import MultipartCommit
from aisfs.ais.protocol import write_requests
from aisfs.ais.sending import Upload, check_condition, checksum_for, send_content
from aisfs.errors import (
    AisfsError,
    BucketNotFound,
    NotFound,
    ProtocolError,
    Unavailable,
    Unsupported,
)
from aisfs.http.connections import ConnectionSet
from aisfs.model import Bucket, ObjectInfo
from aisfs.store.at_once import all_of
from aisfs.store.content import PartOfContent
from aisfs.store.port import Content, Progress
from aisfs.store.retry import ProgressDeadline, Retrier
from aisfs.system.locks import Rank, ranked_lock

log = logging.getLogger(__name__)

_MOST_PARTS = 9_000
"""Parts of one upload; the clouds behind AIStore take 10,000."""
_MOST_AHEAD = 8_000
"""Of them, those sent ahead; the others are as large as it takes for the rest of the object."""
_LEAST_AHEAD = 5 << 20
"""Bytes; the clouds take no smaller part, but for the last."""
_AHEAD_SHARE = 4
"""A quarter of the part size is sent ahead at once: what is left at the close is at most about that."""
_ABORT_SECONDS = 10.0
"""How long a cancelled upload may take to remove its parts."""


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
        self.delivered: set[int] = set()
        """Parts that went out whole: the cluster may have them, so they must not be sent again."""
        self.confirmed: set[int] = set()
        """Of them, those that the cluster said it has."""
        self.is_lost = False
        """See `UploadAhead`."""

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
        return partial(self._parts.send, self, number, part, once=True)

    def invalidate(self, start: int, stop: int) -> None:
        """See `UploadAhead`."""
        if start < min(stop, self._begun * self._step):
            self.is_lost = True

    async def abandon(self) -> None:
        """See `UploadAhead`."""
        if not self.over:
            self.over = True
            await self._parts.abort(self)

    def fits(self, size: int) -> bool:
        """Return whether a content of `size` bytes goes in parts, beginning with those sent ahead."""
        return size > self._parts.above and self._begun * self._step <= size and not self.is_lost

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
        self._completion = MultipartCommit(session, retrier)
        self._are_known = True

    @property
    def above(self) -> int:
        """Bytes above which an object goes in parts."""
        return self._part_size if self._are_known else sys.maxsize

    async def begin(self, bucket: Bucket, key: str, *, ahead: bool) -> BegunUpload | None:
        """Begin; None when the cluster does not know how."""
        if not self._are_known:
            return None
        request = write_requests.start_parts(bucket, key)

        def work(connections: ConnectionSet) -> str:
            reply = self._session.transport.fetch(connections, request)
            return write_requests.parse_upload_id(reply, request.subject)

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
            await check_condition(self._session, upload)
            info = await self._completion.complete(upload, begun.name, sizes)
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
        tally = _Tally(upload.progress)
        await all_of(
            partial(self.send, begun, number, part, partial(tally.told, number))
            for number, part in enumerate(parts)
            if number not in begun.confirmed
        )
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
        """Send one part, counted from 0; again only if not all of it went out.

        A target stores a part when its last byte has arrived (protocol notes 0.2, T1).
        """
        subject = f"{begun}, part {number + 1}"
        token, movement = trio.lowlevel.current_trio_token(), ProgressDeadline()

        def told(sent: int) -> None:
            if sent == part.size:
                begun.delivered.add(number)
            token.run_sync_soon(movement.told, sent)
            progress(sent)

        def work(connections: ConnectionSet) -> None:
            facts = self._session.facts_of(connections, begun.bucket)
            checksum = checksum_for(facts, part, connections)
            name = begun.name
            request = write_requests.put_part(begun.bucket, begun.key, name, number + 1, checksum)
            send_content(self._session, connections, request, part, told)

        def is_final() -> bool:
            return once or number in begun.delivered

        async def attempt() -> None:
            if number in begun.delivered:  # and then the deadline passed, and was postponed
                raise Unavailable(f"{subject}: the cluster may have it")
            await self._session.run(subject, work, begun.bucket)

        try:
            await self._retrier.run(subject, attempt, final=is_final, movement=movement)
        except BaseException:
            if number in begun.delivered:
                begun.is_lost = True
            raise
        begun.confirmed.add(number)

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
        request = write_requests.abort_parts(bucket, key, name)

        def work(connections: ConnectionSet) -> None:
            self._session.transport.fetch(connections, request)

        await self._session.run(request.subject, work, bucket)


class _Tally:
    """How much of all parts was sent; what went ahead is no progress of this upload."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = ranked_lock(Rank.UPLOAD_PROGRESS)
        self._sent: dict[int, int] = {}
        self._total = 0

    def told(self, number: int, sent: int) -> None:
        with self._lock:
            self._total += sent - self._sent.get(number, 0)
            self._sent[number] = sent
            self._progress(self._total)
