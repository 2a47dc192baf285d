"""Streams whose bytes reach a sink once, however often they begin again.

Where a store has ranges, a stream that broke goes on with these. Where it sends objects only whole, it
begins again, and what was taken before is passed over.
"""

from collections.abc import Awaitable, Callable

import trio

from aisfs.model import Bucket, ObjectInfo
from aisfs.store.port import ObjectStore, Sink
from aisfs.store.retry import ProgressDeadline, Retrier

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
