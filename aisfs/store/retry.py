"""Retries, as a decorator of any store: a call ends in success, a permanent error, or in time.

The deadline is the promise of invariant I10: whatever the store below does, a call comes back. It
bounds each single call; a stream, which may rightly take longer, is cut there and goes on in
ranges of one version, each with a deadline of its own, so that no byte comes twice.

A write is safe to repeat: an upload writes the same whole object, and what else a store reports as
`Unavailable` either had no effect or may have it twice. An upload has its deadline from the last
new byte that went out, and the time a server takes to read it all again. Copying and renaming may rightly take a server
longer than any deadline: what is under way ends by itself, and only no further try begins after it.

Must not know: what an error means beyond `error.transient`.
"""

import itertools
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import trio

from aisfs.errors import AisfsError, BucketNotFound, DeadlineExceeded, NotFound
from aisfs.model import NO_CUSTOM, Bucket, Keys, ObjectInfo, Page, Provider
from aisfs.store.content import PIECE
from aisfs.store.port import Announce, Content, Progress, Sink, UploadAhead, WritableStore

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE = 0.1
"""Seconds; about what a target needs to drop out of, or into, the cluster map."""
_LONGEST_PAUSE = 5.0
"""Seconds; a cluster that is back should not be left waiting for long."""
_RESUME_PIECE = 8 << 20
"""Bytes asked for at once after a stream broke: costs little memory, hides the latency."""


_BYTES_A_SECOND = 50e6
"""A server that has all bytes may be silent while it reads them again, at least as fast as this."""


class Retrier:
    """Runs an attempt until it succeeds, fails for good, or a deadline has passed."""

    def __init__(self, *, deadline: float, rng: random.Random | None = None) -> None:
        """Take the terms.

        Args:
            deadline: Seconds that a call may take in all, its retries included.
            rng: Where the jitter comes from.
        """
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
            pause = self._pause(number)
            if trio.current_time() + pause >= movement.deadline:
                break
            level = logging.INFO if number == 1 else logging.DEBUG
            log.log(level, "try %d failed, next in %.2f s: %s", number, pause, last)
            await trio.sleep(pause)
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
        """Have a deadline `span` seconds from now."""
        self._span = span + self._more
        self.deadline = trio.current_time() + self._span

    def until_deadline(self) -> trio.CancelScope:
        """Give a scope that is cancelled then."""
        self._scope = trio.CancelScope(deadline=self.deadline)
        return self._scope

    def told(self, done: int) -> None:
        """Postpone it, if `done` is more than ever. Only in the trio thread."""
        if done > self._most:
            self._most = done
            self.deadline = self._scope.deadline = trio.current_time() + self._span


class RetryingStore:
    """A store that tries again."""

    def __init__(
        self, inner: WritableStore, *, deadline: float, rng: random.Random | None = None
    ) -> None:
        """Wrap `inner`.

        Args:
            inner: The store that does the work; closed along with this one.
            deadline: Seconds that a call may take in all, its retries included.
            rng: Where the jitter comes from.
        """
        self._inner = inner
        self._retrier = Retrier(deadline=deadline, rng=rng)

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """List the buckets this client may see."""
        return await self._retrier.run("buckets", partial(self._inner.list_buckets, provider))

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        """List one page of the directory `prefix`."""
        attempt = partial(self._inner.list_page, bucket, prefix, token=token)
        return await self._retrier.run(f"{bucket}/{prefix}", attempt)

    async def first_keys(
        self, bucket: Bucket, prefix: str, most: int, *, sure: bool = False
    ) -> Keys:
        """Give `most` keys at most of objects below the directory `prefix`."""
        attempt = partial(self._inner.first_keys, bucket, prefix, most, sure=sure)
        return await self._retrier.run(f"{bucket}/{prefix}", attempt)

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """Describe the current version of one object."""
        attempt = partial(self._inner.head, bucket, key, latest=latest)
        return await self._retrier.run(f"{bucket}/{key}", attempt)

    async def read_range(
        self, bucket: Bucket, expected: ObjectInfo, start: int, buffer: memoryview
    ) -> None:
        """Fill `buffer` with the bytes from `start` on of exactly the version `expected`."""
        attempt = partial(self._inner.read_range, bucket, expected, start, buffer)
        await self._retrier.run(f"{bucket}/{expected.key}", attempt)

    async def read_many(
        self, bucket: Bucket, wanted: Sequence[tuple[ObjectInfo, memoryview]]
    ) -> list[bool]:
        """Fill buffers with whole objects; tried once, since what is missing can be read singly."""
        attempt = partial(self._inner.read_many, bucket, wanted)
        return await self._retrier.run(f"objects of {bucket}", attempt, final=lambda: True)

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """Send the whole object, version `expected`, to `sink`, each byte once."""
        counted = _CountingSink(sink)

        async def attempt() -> None:
            try:
                await self._inner.stream(bucket, expected, counted)
            except AisfsError as error:
                # Once bytes were handed over, only ranges can go on from there; and what the
                # sink itself raised is not the store's to repeat.
                if counted.failed or not error.transient or not counted.taken:
                    raise
                log.info("%s/%s: resumed at %d: %s", bucket, expected.key, counted.taken, error)

        try:
            await self._retrier.run(
                f"{bucket}/{expected.key}", attempt, final=lambda: counted.failed
            )
        except DeadlineExceeded:
            if counted.failed or not counted.taken:
                raise
            # It moves, it is merely long: the rest comes in pieces, each with its own deadline.
        if counted.taken < expected.size:
            await self._resume(bucket, expected, counted)

    async def upload(
        self,
        bucket: Bucket,
        key: str,
        content: Content,
        *,
        custom: Mapping[str, str] = NO_CUSTOM,
        progress: Progress | None = None,
        ahead: UploadAhead | None = None,
        announce: Announce | None = None,
    ) -> ObjectInfo:
        """Write one object whole, or not at all."""
        token = trio.lowlevel.current_trio_token()
        movement = ProgressDeadline(content.size / _BYTES_A_SECOND)

        def told(done: int) -> None:
            if content.size > PIECE:  # else nothing moves before it is done
                token.run_sync_soon(movement.told, done)
            if progress:
                progress(done)

        attempt = partial(
            self._inner.upload,
            bucket,
            key,
            content,
            custom=custom,
            progress=told,
            ahead=ahead,
            announce=announce,
        )
        return await self._retrier.run(f"{bucket}/{key}", attempt, movement=movement)

    @property
    def ahead_above(self) -> int:
        """Bytes above which `begin_upload` may be of use."""
        return self._inner.ahead_above

    async def begin_upload(self, bucket: Bucket, key: str) -> UploadAhead | None:
        """Begin to write an object; tried once, since `upload` needs it not."""
        attempt = partial(self._inner.begin_upload, bucket, key)
        return await self._retrier.run(f"{bucket}/{key}", attempt, final=lambda: True)

    async def abandon_upload(self, bucket: Bucket, key: str, name: str) -> None:
        """Throw away what was sent of an upload."""
        attempt = partial(self._inner.abandon_upload, bucket, key, name)
        await self._retrier.run(f"{bucket}/{key}", attempt)

    async def remove(self, bucket: Bucket, key: str) -> None:
        """Delete one object."""
        tries = 0

        async def attempt() -> None:
            nonlocal tries
            tries += 1
            try:
                await self._inner.remove(bucket, key)
            except BucketNotFound:
                raise
            except NotFound:
                # A try before this one may have done it and lost the answer.
                if tries == 1:
                    raise

        await self._retrier.run(f"{bucket}/{key}", attempt)

    async def copy(self, bucket: Bucket, key: str, to_bucket: Bucket, new_key: str) -> ObjectInfo:
        """Copy an object."""
        attempt = partial(self._inner.copy, bucket, key, to_bucket, new_key)
        return await self._retrier.run(f"{bucket}/{key}", attempt, cut=False)

    async def rename(self, bucket: Bucket, key: str, new_key: str) -> ObjectInfo:
        """Give an object another name."""
        attempt = partial(self._inner.rename, bucket, key, new_key)
        return await self._retrier.run(f"{bucket}/{key}", attempt, cut=False)

    async def set_custom(
        self, bucket: Bucket, expected: ObjectInfo, custom: Mapping[str, str]
    ) -> ObjectInfo:
        """Replace the custom metadata of the content `expected`."""
        attempt = partial(self._inner.set_custom, bucket, expected, custom)
        return await self._retrier.run(f"{bucket}/{expected.key}", attempt)

    async def aclose(self) -> None:
        """Close the store below."""
        await self._inner.aclose()

    async def _resume(self, bucket: Bucket, expected: ObjectInfo, sink: "_CountingSink") -> None:
        buffer = memoryview(bytearray(min(_RESUME_PIECE, expected.size - sink.taken)))
        while sink.taken < expected.size:
            piece = buffer[: min(len(buffer), expected.size - sink.taken)]
            await self.read_range(bucket, expected, sink.taken, piece)
            await trio.to_thread.run_sync(sink, piece)


class _CountingSink:
    """A sink that knows how many bytes it took, and whether it failed itself."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.taken = 0
        self.failed = False

    def __call__(self, piece: memoryview) -> None:
        try:
            self._sink(piece)
        except BaseException:
            self.failed = True
            raise
        self.taken += len(piece)
