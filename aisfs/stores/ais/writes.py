"""Changes of AIStore's objects: uploads whole and in parts, delete, copy, rename, custom metadata.

Nothing is reported done that the cluster has not confirmed: by the checksum in the reply to a PUT,
or by a HEAD where the reply was lost or says nothing, and after parts were put together.

- **Parts** (`Parts`, `BegunUpload`) are sent in parallel, some while the rest is not known yet. AIStore destroys a
  part whose number arrives twice, says 200 to both, and puts together an object with the right size and checksum and a
  hole. So no part is sent again that the cluster may have: an upload with such a part is aborted, and another one sends
  all parts. What was put together (`MultipartCommit`) is not believed before a byte of each part was read back. An
  upload that fails, or is not wanted any more, is aborted, and leaves nothing.
- **Copy and rename** (`Mutations`) may say yes and lose the object. So a rename is a copy, a look at the
  copy, and only then a delete; and what the cluster does not copy goes through this machine.

Must not know: HTTP, requests, errnos.
"""

import logging
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import accumulate

import trio
from cachetools import LRUCache

from aisfs.core.names.listing import check_new_bucket
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    AlreadyExists,
    BucketNotFound,
    NotFound,
    OutOfSpace,
    ProtocolError,
    Stale,
    Unavailable,
    Unproven,
    Unsupported,
)
from aisfs.http.connections import ConnectionSet
from aisfs.http.exchange import SMALL, BodyDelivered, Reply
from aisfs.model import DEFAULT_TYPE, Bucket, ObjectInfo, Provider, is_known
from aisfs.stores.ais import requests
from aisfs.stores.ais.absence import WRITE_AGE, changing, check_newest
from aisfs.stores.ais.cluster import Session
from aisfs.stores.ais.requests import BucketFacts, Request
from aisfs.stores.pipeline import ProgressDeadline, Retrier, all_of
from aisfs.stores.port import (
    Content,
    FileContent,
    PartOfContent,
    Progress,
    Sink,
    Upload,
    check_expected,
    checksum_of,
    in_memory,
    pieces_of,
)
from aisfs.stores.posix_metadata import encode_custom, stamp_of
from aisfs.system.locks import Rank, ranked_lock

log = logging.getLogger(__name__)

Fetch = Callable[[Bucket, ObjectInfo, Sink], Awaitable[None]]
Store = Callable[[Upload], Awaitable[ObjectInfo]]
Check = Callable[[], Awaitable[None]]
"""Raises what `check_condition` does."""


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
        await self._do(requests.create_bucket(bucket), bucket)

    async def destroy_bucket(self, bucket: Bucket) -> None:
        """Destroy a bucket with all that is in it."""
        await self._do(requests.destroy_bucket(bucket), bucket)

    async def remove(self, bucket: Bucket, key: str) -> None:
        """Delete one object."""
        await self._do(requests.delete_object(bucket, key), bucket, key)

    async def copy(self, bucket: Bucket, key: str, to_bucket: Bucket, new_key: str) -> ObjectInfo:
        """Copy an object and make sure that the copy is one."""
        source = await self._session.head(bucket, key, latest=bucket.is_attached)
        return await self._copied(bucket, source, to_bucket, new_key)

    async def rename(
        self, bucket: Bucket, key: str, new_key: str, expected: ObjectInfo | None
    ) -> ObjectInfo:
        """Copy, make sure, delete what was copied."""
        source = await self._session.head(bucket, key, latest=bucket.is_attached)
        check_expected(f"{bucket}/{key}", expected, source)
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
        """Replace the custom metadata of the content `expected`.

        Raises:
            Stale: the object has another one by now.
        """
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
        await self._do(requests.patch_custom(bucket, expected.key, text), bucket, expected.key)
        now = await self._session.head(bucket, expected.key)
        check_expected(f"{bucket}/{expected.key}", expected, now)
        return now

    async def with_custom(
        self, bucket: Bucket, info: ObjectInfo, custom: Mapping[str, str]
    ) -> ObjectInfo:
        """Make sure that an object just written has this custom metadata, where any is kept.

        AIStore ignores it when the object was there already, and merges it when it copies. What another client
        has written since is not what was written here.
        """
        if info.custom == custom:
            return info
        try:
            return await self.set_custom(bucket, info, custom)
        except (Unsupported, AccessDenied, Stale) as error:
            log.debug("%s/%s: without custom metadata: %s", bucket, info.key, error)
            return info

    # Parts of these ---------------------------------------------------------------------------

    async def _copied(
        self, bucket: Bucket, source: ObjectInfo, to_bucket: Bucket, new_key: str
    ) -> ObjectInfo:
        copied = None
        if not requests.may_be_lost(new_key):
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
            request = requests.copy_object(bucket, source, place, new_key)
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
            return await self._store(Upload(to_bucket, new_key, content, source.custom))

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


async def check_condition(session: Session, upload: Upload, earlier: ObjectInfo | None) -> None:
    """Make sure that an upload may replace what is there now. AIStore has no conditional writes.

    What an `earlier` try has sent, whose reply was lost, may be replaced.

    Raises:
        AlreadyExists, Stale: it may not.
        Unproven: what is there may be an older copy.
    """
    if not upload.is_conditional:
        return
    # Now, since between the HEAD and the PUT another client's change is overwritten: that is to be short.
    await _check_newest(session, upload, age=WRITE_AGE)
    try:
        now = await session.head(upload.bucket, upload.key, latest=True)
    except BucketNotFound:
        raise
    except NotFound:
        upload.check(None)
        return
    try:
        upload.check(now)
    except (AlreadyExists, Stale):
        if await _is_own(session, upload, earlier, now):
            return
        await _check_newest(session, upload, age=0.0)  # else an older copy would count as a change
        raise


async def _check_newest(session: Session, upload: Upload, *, age: float | None = None) -> None:
    def check(connections: ConnectionSet) -> None:
        check_newest(
            session.transport, connections, upload.bucket, upload.key, writes=True, age=age
        )

    await session.run(str(upload), check, upload.bucket)


async def _is_own(
    session: Session, upload: Upload, sent: ObjectInfo | None, now: ObjectInfo
) -> bool:
    """Return whether an object is what an upload, or one before it, has sent."""
    kind = now.checksum.partition(":")[0]
    if not is_known(kind):
        return False
    if sent is not None and (sent.size, sent.checksum) == (now.size, now.checksum):
        return True

    def sum_up(connections: ConnectionSet) -> str:
        return checksum_as(kind, upload.content, connections)

    same_size = now.size == upload.content.size
    return same_size and await session.run(str(upload), sum_up) == now.checksum


def send_content(
    session: Session,
    connections: ConnectionSet,
    request: Request,
    content: Content,
    progress: Progress,
) -> Reply:
    """Send a request with a content, and receive its reply."""
    pieces: Iterator[memoryview] = pieces_of(content, progress)
    return session.transport.upload(connections, request, content.size, pieces)


def checksum_for(facts: BucketFacts, content: Content, connections: ConnectionSet) -> str:
    """Compute what the bucket wants to know; empty when it keeps none."""
    if not facts.keeps_checksums:
        return ""
    kind = facts.checksum_type
    return checksum_as(kind if is_known(kind) else DEFAULT_TYPE, content, connections)


def checksum_as(kind: str, content: Content, connections: ConnectionSet) -> str:
    """Compute the checksum of a content; what comes out is of no use once its connections were aborted."""
    return checksum_of(content, kind, lambda: not connections.sockets.is_aborted)


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
            await self._retrier.run(str(upload), partial(_check_newest, self._session, upload))
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
        request = requests.complete_parts(upload.bucket, upload.key, name, sizes)
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
        request = requests.start_parts(bucket, key)

        def work(connections: ConnectionSet) -> str:
            reply = self._session.transport.fetch(connections, request)
            return requests.parse_upload_id(reply, request.subject)

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

    async def finish(self, upload: Upload, begun: BegunUpload, check: Check) -> ObjectInfo:
        """Send the parts that the cluster has not, and have them put together if `check` agrees."""
        begun.over = True
        done = False
        try:
            sizes = await self._send_rest(upload, begun)
            await check()
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
            request = requests.put_part(begun.bucket, begun.key, name, number + 1, checksum)
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
        request = requests.abort_parts(bucket, key, name)

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


SENT_MAX = 1000
"""Objects of which the last upload is remembered, some 1 KB each."""


class Uploads:
    """Writes whole objects."""

    def __init__(self, session: Session, parts: Parts) -> None:
        """Write as a part of the client `session`; what is large by `parts`."""
        self._session = session
        self._parts = parts
        self._sent: LRUCache[tuple[Bucket, str], tuple[str, ObjectInfo]] = LRUCache(SENT_MAX)
        """What was last sent on a condition, and `Upload.only_new` of it, until `settle`."""

    async def upload(self, upload: Upload) -> ObjectInfo:
        """Write one object; its custom metadata may still be that of before.

        Raises:
            AlreadyExists, Stale: another client has made or changed it.
        """
        mark, sent = self._sent.get((upload.bucket, upload.key), ("", None))
        earlier = sent if mark == upload.only_new else None
        info = await self._upload(upload, partial(check_condition, self._session, upload, earlier))
        self._note(upload, info)
        return info

    def settle(self, upload: Upload) -> None:
        """Forget what was sent: its writer knows the version. What has the older one must not replace it.

        Not what was to be new: its mark names the writer.
        """
        if not upload.only_new:
            self._sent.pop((upload.bucket, upload.key), None)

    def _note(self, upload: Upload, sent: ObjectInfo) -> None:
        if upload.is_conditional:
            self._sent[upload.bucket, upload.key] = upload.only_new, sent

    async def _upload(self, upload: Upload, check: Check) -> ObjectInfo:
        size, begun = upload.content.size, upload.ahead
        assert begun is None or isinstance(begun, BegunUpload), "made by `begin_upload`"
        if begun is not None and not begun.over:
            if begun.fits(size) and (begun.bucket, begun.key) == (upload.bucket, upload.key):
                return await self._parts.finish(upload, begun, check)
            await begun.abandon()
        if size > self._parts.above:
            begun = await self._parts.begin(upload.bucket, upload.key, ahead=False)
            if begun is not None:
                upload.announce(begun.name)
                return await self._parts.finish(upload, begun, check)
        return await self._whole(upload, check)

    async def _whole(self, upload: Upload, check: Check) -> ObjectInfo:
        await check()
        meant = ObjectInfo(upload.key, upload.content.size)

        def work(connections: ConnectionSet) -> tuple[ObjectInfo | None, str]:
            facts = self._session.facts_of(connections, upload.bucket)
            content = in_memory(upload.content) if upload.content.size <= SMALL else upload.content
            checksum, custom = checksum_for(facts, content, connections), ""
            nonlocal meant
            meant = ObjectInfo(upload.key, upload.content.size, checksum=checksum)
            if upload.custom and checksum:
                custom = encode_custom(upload.custom, stamp_of(meant))
            request = requests.put_object(
                upload.bucket, upload.key, checksum=checksum, custom=custom
            )
            place = upload.bucket, upload.key
            with changing(self._session.transport, connections, place) as change:
                reply = self._sent_whole(connections, request, content, upload, checksum)
                written = None
                if reply is not None:
                    size = upload.content.size
                    written = requests.parse_written(reply, *place, size, facts)
                if upload.bucket.is_local:
                    change.wrote(written, upload.replaces, is_new=bool(upload.only_new))
            return written, checksum

        try:
            info, checksum = await self._session.run(str(upload), work, upload.bucket)
        except BaseException:
            self._note(upload, meant)
            raise
        if info is None or upload.bucket.provider is not Provider.AIS:
            info = await self._confirmed(upload)
        wanted = ObjectInfo(upload.key, upload.content.size, checksum=checksum)
        if not info.same_bytes(wanted):
            raise Unavailable(f"{upload}: what the cluster has is not what was sent")
        return info

    def _sent_whole(
        self,
        connections: ConnectionSet,
        request: Request,
        content: Content,
        upload: Upload,
        checksum: str,
    ) -> Reply | None:
        """Send all of an upload; return None if no answer came, and a HEAD can tell whether it was written."""
        try:
            with self._session.transport.readiness.undisturbed(str(upload)):
                return send_content(self._session, connections, request, content, upload.progress)
        except BodyDelivered as error:
            log.info("%s: asking whether it was written: %s", upload, error)
            # On other connections: this one is of no more use.
            if not checksum:
                raise
            return None

    async def _confirmed(self, upload: Upload) -> ObjectInfo:
        try:
            return await self._session.head(upload.bucket, upload.key)
        except NotFound as error:
            raise Unavailable(f"{upload}: the cluster did not keep what was sent") from error
