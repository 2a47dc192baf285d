"""Retries, as a decorator of any store: a call ends in success, a permanent error, or in time.

The deadline is the promise of invariant I10: whatever the store below does, a call comes back. It
bounds each single call; a stream, which may rightly take longer, is cut there and goes on in
ranges of one version, each with a deadline of its own, so that no byte comes twice.

Must not know: what an error means beyond `error.transient`.
"""

import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import trio

from aisfs.errors import AisfsError, DeadlineExceeded
from aisfs.model import Bucket, ObjectInfo, Page, Provider
from aisfs.store.port import ObjectStore, Sink

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE = 0.1
"""Seconds; about what a target needs to drop out of, or into, the cluster map."""
_LONGEST_PAUSE = 5.0
"""Seconds; a cluster that is back should not be left waiting for long."""
_RESUME_PIECE = 8 << 20
"""Bytes asked for at once after a stream broke: costs little memory, hides the latency."""


class RetryingStore:
    """A store that tries again."""

    def __init__(
        self, inner: ObjectStore, *, deadline: float, rng: random.Random | None = None
    ) -> None:
        """Wrap `inner`.

        Args:
            inner: The store that does the work; closed along with this one.
            deadline: Seconds that a call may take in all, its retries included.
            rng: Where the jitter comes from.
        """
        self._inner = inner
        self._deadline = deadline
        self._rng = rng or random.Random()

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """List the buckets this client may see."""
        return await self._retry("buckets", partial(self._inner.list_buckets, provider))

    async def list_page(
        self, bucket: Bucket, prefix: str, *, token: str = "", page_size: int = 0
    ) -> Page:
        """List one page of the directory `prefix`."""
        attempt = partial(self._inner.list_page, bucket, prefix, token=token, page_size=page_size)
        return await self._retry(f"{bucket}/{prefix}", attempt)

    async def head(self, bucket: Bucket, key: str) -> ObjectInfo:
        """Describe the current version of one object."""
        return await self._retry(f"{bucket}/{key}", partial(self._inner.head, bucket, key))

    async def read_range(
        self, bucket: Bucket, expected: ObjectInfo, start: int, buffer: memoryview
    ) -> None:
        """Fill `buffer` with the bytes from `start` on of exactly the version `expected`."""
        attempt = partial(self._inner.read_range, bucket, expected, start, buffer)
        await self._retry(f"{bucket}/{expected.key}", attempt)

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
            await self._retry(f"{bucket}/{expected.key}", attempt, counted)
        except DeadlineExceeded:
            if counted.failed or not counted.taken:
                raise
            # It moves, it is merely long: the rest comes in pieces, each with its own deadline.
        if counted.taken < expected.size:
            await self._resume(bucket, expected, counted)

    async def aclose(self) -> None:
        """Close the store below."""
        await self._inner.aclose()

    async def _resume(self, bucket: Bucket, expected: ObjectInfo, sink: "_CountingSink") -> None:
        buffer = memoryview(bytearray(min(_RESUME_PIECE, expected.size - sink.taken)))
        while sink.taken < expected.size:
            piece = buffer[: min(len(buffer), expected.size - sink.taken)]
            await self.read_range(bucket, expected, sink.taken, piece)
            await trio.to_thread.run_sync(sink, piece)

    async def _retry(
        self,
        subject: str,
        attempt: Callable[[], Awaitable[T]],
        sink: "_CountingSink | None" = None,
    ) -> T:
        """Run `attempt` until it succeeds, fails for good, or the deadline has passed."""
        deadline = trio.current_time() + self._deadline
        last: AisfsError | None = None
        for number in itertools.count(1):
            with trio.move_on_at(deadline):
                try:
                    return await attempt()
                except AisfsError as error:
                    if not error.transient or (sink and sink.failed):
                        raise
                    last = error
                pause = self._pause(number)
                if trio.current_time() + pause < deadline:
                    level = logging.INFO if number == 1 else logging.DEBUG
                    log.log(level, "try %d failed, next in %.2f s: %s", number, pause, last)
                    await trio.sleep(pause)
                    continue
            break
        reason = f"last error: {last}" if last else "no answer at all"
        raise DeadlineExceeded(
            f"{subject}: given up after {self._deadline:g} s; {reason}"
        ) from last

    def _pause(self, number: int) -> float:
        # From half to the whole, so that clients thrown out together do not return together.
        longest = min(_FIRST_PAUSE * 2.0 ** min(number - 1, 16), _LONGEST_PAUSE)
        return longest * self._rng.uniform(0.5, 1.0)


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
