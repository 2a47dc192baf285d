"""What every call of a mount passes on its way to the store: a deadline, retries, and counters.

The deadline is the promise of invariant I10: whatever the store below does, a call comes back. It
bounds each single call; a stream, which may rightly take longer, is cancelled there and goes on in
ranges of one version, each with a deadline of its own, so that no byte comes twice.

A write is safe to repeat: an upload writes the same whole object, and what else a store reports as
`Unavailable` either had no effect or may have it twice. An upload has its deadline from the last
new byte that went out, and the time a server takes to read it all again. Copying and renaming may
rightly take a server longer than any deadline: an attempt under way ends by itself, and only no
further attempt begins after it. Metrics count a call once, with all
its attempts.

`Retrier` is the one way to try again. A store has one of its own for a step of a call that is too long to
be repeated whole: a part of an upload, the HEAD after one, the files that an index names. What it cannot carry:
the parts that obstore sends, which only obstore can send again; a directory of the local disk that somebody
removes at the same moment, which is no failure of a store; and files that were closed and wait, which are
sent again long after the deadline of a call.

Where a store has ranges, a stream that broke goes on with these. Where it sends objects only whole, it
begins again, and what was taken before is passed over. Each byte reaches the sink once.

`all_of` runs several requests, or pieces of a command's work, at once.

Must not know: what an error means beyond `error.transient`.
"""

import itertools
import logging
import math
import os
import random
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import trio

from aisfs.core.policy.link import TokenBucket
from aisfs.errors import (
    AisfsError,
    AlreadyExists,
    BucketNotFound,
    DeadlineExceeded,
    NoRanges,
    NotFound,
    Stale,
    Unavailable,
)
from aisfs.metrics import Metrics
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.port import (
    PIECE,
    Arrived,
    Content,
    ObjectStore,
    Sink,
    Upload,
    UploadAhead,
    WritableStore,
)
from aisfs.system.logs import NETWORK, request_log

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE = 0.1
"""Seconds; about what a target needs to drop out of, or into, the cluster map."""
_LONGEST_PAUSE = 5.0
"""Seconds; a cluster that is back should not be left waiting for long."""


class Retrier:
    """Runs an attempt until it succeeds, fails for good, or a deadline has passed."""

    def __init__(
        self,
        *,
        deadline: float,
        rng: random.Random | None = None,
        on_retry: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the terms.

        Args:
            deadline: Seconds that a call may take in all, its retries included.
            rng: Where the jitter comes from.
            on_retry: Called before each attempt but the first of a call.
        """
        self._on_retry = on_retry
        self._deadline = deadline
        self._rng = rng or random.Random()

    async def run(
        self,
        subject: str,
        attempt: Callable[[], Awaitable[T]],
        *,
        final: Callable[[], bool] = lambda: False,
        movement: "ProgressDeadline | None" = None,
        cut: bool = True,
    ) -> T:
        """Run `attempt`.

        Args:
            subject: What it is about, in messages.
            attempt: One try.
            final: Asked after a failure: is no further try wanted?
            movement: Postpones the deadline, each time something new was achieved.
            cut: Cancel the attempt that is under way at the deadline.
        """
        movement = movement or ProgressDeadline()
        movement.begin(self._deadline)
        last: AisfsError | None = None
        for number in itertools.count(1):
            with movement.until_deadline() if cut else trio.CancelScope():
                try:
                    return await attempt()
                except AisfsError as error:
                    if not error.transient or final():
                        raise
                    last = error
            wanted = last.pause if isinstance(last, Unavailable) else 0.0
            pause = max(self._pause(number), wanted)
            if trio.current_time() + pause >= movement.deadline:
                break
            level = logging.INFO if number == 1 else logging.DEBUG
            log.log(level, "try %d failed, next in %.2f s: %s", number, pause, last)
            await trio.sleep(pause)
            self._on_retry()
        reason = f"last error: {last}" if last else "no answer at all"
        raise DeadlineExceeded(
            f"{subject}: given up after {self._deadline:g} s; {reason}"
        ) from last

    def _pause(self, number: int) -> float:
        # From half to the whole, so that clients thrown out together do not return together.
        longest = min(_FIRST_PAUSE * 2.0 ** min(number - 1, 16), _LONGEST_PAUSE)
        return longest * self._rng.uniform(0.5, 1.0)


class ProgressDeadline:
    """A deadline that is postponed whenever more was done than ever before."""

    def __init__(self, more: float = 0.0) -> None:
        """Take the seconds that are added to each span."""
        self._more = more
        self.deadline = math.inf
        self._span = math.inf
        self._most = 0
        self._scope = trio.CancelScope()

    def begin(self, span: float) -> None:
        """Start with a deadline `span` seconds from now."""
        self._span = span + self._more
        self.deadline = trio.current_time() + self._span

    def until_deadline(self) -> trio.CancelScope:
        """Return a scope that is cancelled then."""
        self._scope = trio.CancelScope(deadline=self.deadline)
        return self._scope

    def told(self, done: int) -> None:
        """Postpone it, if `done` is more than ever. Only in the trio thread."""
        if done > self._most:
            self._most = done
            self.deadline = self._scope.deadline = trio.current_time() + self._span


WaitForTurn = Callable[[int], Awaitable[None]]


class CountingSink:
    """A sink that knows how many bytes it took, and whether it failed itself."""

    def __init__(self, sink: Sink) -> None:
        """Pass on to `sink` what it did not have yet."""
        self._sink = sink
        self._position = 0
        self.taken = 0
        self.failed = False

    def restart(self) -> None:
        """Expect the stream from its beginning."""
        self._position = 0

    def __call__(self, piece: memoryview) -> None:
        """Take the next bytes."""
        known = min(max(0, self.taken - self._position), len(piece))
        self._position += len(piece)
        if known == len(piece) and piece:
            return
        try:
            self._sink(piece[known:])
        except BaseException:
            self.failed = True
            raise
        self.taken += len(piece) - known


async def stream_whole(
    store: ObjectStore,
    retrier: Retrier,
    bucket: Bucket,
    expected: ObjectInfo,
    sink: CountingSink,
    wait_for_turn: WaitForTurn | None,
) -> None:
    """Stream an object that cannot be had in ranges; the deadline is postponed while bytes arrive.

    Args:
        store: Has the object.
        retrier: Its deadline is how long nothing new may come.
        bucket: Where the object is.
        expected: Its version.
        sink: Has perhaps taken a part already.
        wait_for_turn: Waits until so many bytes may be fetched.
    """
    token = trio.lowlevel.current_trio_token()
    movement = ProgressDeadline()

    def take(piece: memoryview) -> None:
        if wait_for_turn is not None:
            trio.from_thread.run(wait_for_turn, len(piece), trio_token=token)
        sink(piece)
        token.run_sync_soon(movement.told, sink.taken)

    async def attempt() -> None:
        sink.restart()
        await store.stream(bucket, expected, take)

    subject = f"{bucket}/{expected.key}"
    await retrier.run(subject, attempt, final=lambda: sink.failed, movement=movement)


P = ParamSpec("P")

_RESUME_PIECE = 8 << 20
"""Bytes asked for at once after a stream broke: costs little memory, hides the latency."""
_BYTES_A_SECOND = 50e6
"""A server that has all bytes may be silent while it reads them again, at least as fast as this."""
_ORDINARY = (NotFound, AlreadyExists, Stale, NoRanges)
"""Errors that are answers."""
_WORTH_SHOWING = 1 << 20
"""Bytes of an upload that somebody may want to look at while it is under way."""
_REPEAT_SECONDS = 0.1
"""The kernel asks for a name or a page a second time if the first answer is an error, and a batch or a
stream that fails is followed by single reads: a program would wait two deadlines for its own. So long
after a deadline has passed such a repeat fails at once, and only it: the next question asks the store."""


def _call(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
    *,
    once: bool = False,
    cut: bool = True,
    reads: bool = False,
    counted_as: str = "",
) -> Callable[Concatenate["CallPipeline", P], Coroutine[Any, Any, T]]:
    """Make the pipeline's form of a method of the port.

    Args:
        method: The method, as `WritableStore` declares it; its name is the one in metrics.
        once: Make one attempt only, since the caller does without when it fails.
        cut: Cancel the attempt that is under way at the deadline.
        reads: Do not ask for the kernel's repeat after a deadline has passed; see `_REPEAT_SECONDS`.
        counted_as: Its name in metrics, if not its own.
    """
    name = method.__name__

    @wraps(method)
    async def call(self: "CallPipeline", /, *args: P.args, **kwargs: P.kwargs) -> T:
        attempt = partial(getattr(self._inner, name), *args, **kwargs)
        subject = _subject(args)
        questions = [(name, subject)] if reads else []
        with self._timed(counted_as or name, subject), self._not_at_once(questions):
            return await self._retrier.run(subject, attempt, final=lambda: once, cut=cut)

    return call


def _subject(args: tuple[object, ...]) -> str:
    """Return what a call with these arguments is about, for messages."""
    if not args or not isinstance(args[0], Bucket):
        return "buckets"
    what = args[1] if len(args) > 1 else ""
    key = what.key if isinstance(what, ObjectInfo) else what
    return f"{args[0]}/{key}" if isinstance(key, str) else f"objects of {args[0]}"


def _done_before(
    attempt: Callable[[], Awaitable[None]], done: type[AisfsError]
) -> Callable[[], Awaitable[None]]:
    """Take `done` for success, but of the first try: one before may have done it and lost the answer."""
    tries = 0

    async def again() -> None:
        nonlocal tries
        tries += 1
        try:
            await attempt()
        except BucketNotFound:
            raise
        except done:
            if tries == 1:
                raise

    return again


def _reading(bucket: Bucket, info: ObjectInfo) -> tuple[str, str]:
    """Return the question that every way of reading an object asks."""
    return "read_range", f"{bucket}/{info.key}"


class CallPipeline:
    """A store in front of another one, whose calls it retries and counts."""

    def __init__(
        self,
        inner: WritableStore,
        *,
        deadline: float,
        download_limit: int | None = None,
        metrics: Metrics | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Wrap `inner`.

        Args:
            inner: The store that does the work; closed along with this one.
            deadline: Seconds that a call may take in all, its retries included.
            download_limit: Most bytes that are read in a second; None or 0 for any number.
            metrics: Where calls, seconds and bytes are counted.
            rng: Where the jitter comes from.
        """
        self._inner = inner
        self._downloads = TokenBucket(download_limit) if download_limit else None
        self._metrics = metrics or Metrics()
        self._whole: set[Bucket] = set()
        """Buckets that send some object only whole."""
        self._retrier = Retrier(
            deadline=deadline, rng=rng, on_retry=self._metrics.store_retries.inc
        )
        self._repeat_seconds = min(_REPEAT_SECONDS, deadline)
        self._unanswered: dict[tuple[str, str], tuple[float, int, str]] = {}
        """Until when, and how often yet, a question (call, subject) is a repeat, and what the first one met."""

    list_buckets = _call(WritableStore.list_buckets, reads=True)
    list_page = _call(WritableStore.list_page, reads=True)
    peek_page = _call(WritableStore.peek_page, reads=True, counted_as="list_page")
    first_keys = _call(WritableStore.first_keys, reads=True)
    head = _call(WritableStore.head, reads=True)
    abandon_upload = _call(WritableStore.abandon_upload)
    copy = _call(WritableStore.copy, cut=False)
    rename = _call(WritableStore.rename, cut=False)
    set_custom = _call(WritableStore.set_custom)
    _read_range = _call(WritableStore.read_range, reads=True)
    _read_many = _call(WritableStore.read_many, once=True)
    _read_ranges = _call(WritableStore.read_ranges, once=True)
    _begin_upload = _call(WritableStore.begin_upload, once=True)

    async def sized(self, bucket: Bucket, info: ObjectInfo) -> ObjectInfo:
        """See `ObjectStore`."""
        return await self._inner.sized(bucket, info)

    async def read_range(
        self, bucket: Bucket, expected: ObjectInfo, start: int, buffer: memoryview,
        arrived: Arrived | None = None,
    ) -> None:  # fmt: skip
        """See `ObjectStore`."""
        await self._wait_for_turn(len(buffer))
        try:
            await self._read_range(bucket, expected, start, buffer, arrived)
        except NoRanges:
            self._whole.add(bucket)
            raise
        self._metrics.bytes_fetched.inc(len(buffer))

    async def read_many(
        self, bucket: Bucket, wanted: Sequence[tuple[ObjectInfo, memoryview]]
    ) -> list[bool]:
        """See `ObjectStore`; tried once, since what is missing can be read singly."""
        await self._wait_for_turn(sum(len(buffer) for _, buffer in wanted))
        with self._not_at_once((_reading(bucket, info) for info, _ in wanted), repeats=2):
            filled = await self._read_many(bucket, wanted)
        done = sum(info.size for (info, _), one in zip(wanted, filled, strict=True) if one)
        self._metrics.bytes_fetched.inc(done)
        return filled

    async def read_ranges(
        self, bucket: Bucket, wanted: Sequence[tuple[ObjectInfo, int, memoryview]]
    ) -> list[bool]:
        """See `ObjectStore`; tried once, since what is missing can be read singly."""
        await self._wait_for_turn(sum(len(buffer) for _, _, buffer in wanted))
        with self._not_at_once({_reading(bucket, info) for info, *_ in wanted}, repeats=2):
            filled = await self._read_ranges(bucket, wanted)
        done = sum(len(buffer) for (_, _, buffer), one in zip(wanted, filled, strict=True) if one)
        self._metrics.bytes_fetched.inc(done)
        return filled

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """See `ObjectStore`; each byte reaches the sink once."""
        subject = f"{bucket}/{expected.key}"
        counted = CountingSink(sink)

        async def attempt() -> None:
            try:
                await self._inner.stream(bucket, expected, counted)
            except AisfsError as error:
                # Once bytes were handed over, only ranges can go on from there; and what the
                # sink itself raised is not the store's to repeat.
                if counted.failed or not error.transient or not counted.taken:
                    raise
                log.info("%s: resumed at %d: %s", subject, counted.taken, error)

        with (
            self._timed("stream", subject),
            self._not_at_once([_reading(bucket, expected)], repeats=2),
        ):
            try:
                if bucket not in self._whole and self._downloads is None:  # ranges wait for turns
                    await self._retrier.run(subject, attempt, final=lambda: counted.failed)
            except DeadlineExceeded:
                if counted.failed or not counted.taken:
                    raise
                # It moves, it is merely long: the rest comes in pieces, each with its own deadline.
            try:
                if bucket not in self._whole:
                    await self._resume(bucket, expected, counted)
            except NoRanges:
                self._whole.add(bucket)
            if bucket in self._whole:
                turn = self._wait_for_turn if self._downloads is not None else None
                await stream_whole(self._inner, self._retrier, bucket, expected, counted, turn)
        self._metrics.bytes_fetched.inc(expected.size)

    async def _resume(self, bucket: Bucket, expected: ObjectInfo, sink: "CountingSink") -> None:
        """Send what a stream left out."""
        buffer = memoryview(bytearray(min(_RESUME_PIECE, expected.size - sink.taken)))
        while sink.taken < expected.size:
            piece = buffer[: expected.size - sink.taken]
            await self._wait_for_turn(len(piece))
            read = partial(self._inner.read_range, bucket, expected, sink.taken, piece)
            await self._retrier.run(f"{bucket}/{expected.key}", read)
            await trio.to_thread.run_sync(sink, piece)

    async def _wait_for_turn(self, size: int) -> None:
        """Wait until `size` bytes may be fetched. What carries no bytes of objects never waits."""
        if self._downloads is None:
            return
        try:
            await trio.sleep(self._downloads.take(size, trio.current_time()))
        except BaseException:
            self._downloads.give_back(size)
            raise

    async def upload(self, upload: Upload) -> ObjectInfo:
        """See `WritableStore`; its deadline is postponed while new bytes go out."""
        ahead, size = upload.ahead, upload.content.size
        assert ahead is None or isinstance(ahead, _CountedUpload), "made by `begin_upload`"
        before, inner = (0, None) if ahead is None else (ahead.sent, ahead.inner)
        token = trio.lowlevel.current_trio_token()
        movement = ProgressDeadline(size / _BYTES_A_SECOND)
        gauges = None
        if size > _WORTH_SHOWING:
            gauges = _Gauges(self._metrics, upload.bucket, upload.key)

        def told(done: int) -> None:
            if size > PIECE:  # else nothing moves before it is done
                token.run_sync_soon(movement.told, done)
            if gauges is not None:
                gauges.set(min(before + done, size), size)
            upload.progress(done)

        attempt = partial(self._inner.upload, replace(upload, progress=told, ahead=inner))
        try:
            told(0)
            with self._timed("upload", str(upload)):
                info = await self._retrier.run(str(upload), attempt, movement=movement)
        finally:
            if gauges is not None:
                gauges.forget()
        self._metrics.bytes_sent.inc(size)
        return info

    @property
    def ahead_above(self) -> int:
        """See `WritableStore`."""
        return self._inner.ahead_above

    async def begin_upload(self, bucket: Bucket, key: str) -> UploadAhead | None:
        """See `WritableStore`; tried once, since `upload` does without."""
        begun = await self._begin_upload(bucket, key)
        return begun and _CountedUpload(begun, _Gauges(self._metrics, bucket, key))

    async def create_bucket(self, bucket: Bucket) -> None:
        """See `WritableStore`."""
        attempt = _done_before(partial(self._inner.create_bucket, bucket), AlreadyExists)
        with self._timed("create_bucket", str(bucket)):
            await self._retrier.run(str(bucket), attempt)

    async def remove(self, bucket: Bucket, key: str) -> None:
        """See `WritableStore`."""
        attempt = _done_before(partial(self._inner.remove, bucket, key), NotFound)
        with self._timed("remove", f"{bucket}/{key}"):
            await self._retrier.run(f"{bucket}/{key}", attempt)

    async def aclose(self) -> None:
        """Close the store below."""
        await self._inner.aclose()

    @contextmanager
    def _not_at_once(
        self, questions: Iterable[tuple[str, str]], repeats: int = 1
    ) -> Iterator[None]:
        """Ask the store, unless this repeats a question that has just run into its deadline.

        Args:
            questions: What is asked, as (call, subject).
            repeats: How often each is asked once more if this runs into its deadline.
        """
        asked, now = list(questions), trio.current_time()
        for question in asked:
            until, left, failure = self._unanswered.pop(question, (-math.inf, 0, ""))
            if until > now:
                if left > 1:
                    self._unanswered[question] = until, left - 1, failure
                raise DeadlineExceeded(f"{failure} (not asked again at once)")
        try:
            yield
        except DeadlineExceeded as error:
            now = trio.current_time()
            still = {one: state for one, state in self._unanswered.items() if state[0] > now}
            state = now + self._repeat_seconds, repeats, str(error)
            self._unanswered = still | dict.fromkeys(asked, state)
            raise

    @contextmanager
    def _timed(self, call: str, subject: str) -> Iterator[None]:
        """Count a call, and log it if it is slow or fails."""
        started = trio.current_time()
        request_log.note(NETWORK)
        try:
            yield
        except AisfsError as error:
            self._metrics.store_failures.labels(call, type(error).__name__).inc()
            level = logging.DEBUG if isinstance(error, _ORDINARY) else logging.INFO
            fields = {"operation": call, "subject": subject}
            log.log(level, "%s of %s failed: %s", call, subject, error, extra=fields)
            raise
        finally:
            seconds = trio.current_time() - started
            self._metrics.store_seconds.labels(call).observe(seconds)
            if seconds >= request_log.least:
                request_log.done(log, call, subject, seconds)


class _Gauges:
    """How far one upload is, in the metrics until it is forgotten."""

    def __init__(self, metrics: Metrics, bucket: Bucket, key: str) -> None:
        self._metrics = metrics
        self._name = os.fsencode(f"{bucket}/{key}").decode(errors="replace")

    def set(self, sent: int, size: int | None = None) -> None:
        self._metrics.upload_sent.labels(self._name).set(sent)
        if size is not None:
            self._metrics.upload_size.labels(self._name).set(size)

    def forget(self) -> None:
        for gauge in (self._metrics.upload_sent, self._metrics.upload_size):
            with suppress(KeyError):  # a file that two have open may be uploaded twice at once
                gauge.remove(self._name)


class _CountedUpload:
    """An `UploadAhead`, and how many bytes of it were sent."""

    def __init__(self, inner: UploadAhead, gauges: _Gauges) -> None:
        self.inner = inner
        self.sent = 0
        self._gauges = gauges
        self._begun = 0
        gauges.set(0)

    @property
    def name(self) -> str:
        """See `UploadAhead`."""
        return self.inner.name

    @property
    def wants(self) -> int:
        """See `UploadAhead`."""
        return self.inner.wants

    @property
    def is_lost(self) -> bool:
        """See `UploadAhead`."""
        return self.inner.is_lost

    def next_part(self, content: Content) -> Callable[[], Awaitable[None]]:
        """See `UploadAhead`."""
        size, self._begun = self.inner.wants - self._begun, self.inner.wants
        send = self.inner.next_part(content)

        async def counted() -> None:
            await send()
            self.sent += size
            self._gauges.set(self.sent)

        return counted

    def invalidate(self, start: int, stop: int) -> None:
        """See `UploadAhead`."""
        self.inner.invalidate(start, stop)

    async def abandon(self) -> None:
        """See `UploadAhead`."""
        self._gauges.forget()
        await self.inner.abandon()


_AT_ONCE = 8
"""Enough to keep several disks of a target busy; a small cluster answers as many without delaying others."""


async def all_of(jobs: Iterable[Callable[[], Awaitable[None]]], at_once: int = _AT_ONCE) -> None:
    """Run jobs, some at once; the first error ends the others and is raised alone, not in a group.

    The next job is taken from `jobs` when one has ended: there is no task for each.
    """
    left = iter(jobs)
    failed: list[AisfsError] = []

    async def work(job: Callable[[], Awaitable[None]] | None) -> None:
        while job is not None and not failed:
            try:
                await job()
            except AisfsError as error:
                failed.append(error)
                nursery.cancel_scope.cancel()
            job = next(left, None)

    async with trio.open_nursery() as nursery:
        for first in itertools.islice(left, at_once):
            nursery.start_soon(work, first)
    if failed:
        raise failed[0]
