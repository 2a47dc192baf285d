"""Small objects that are wanted together, fetched with one request for many of them.

Only this module decides whether that is worth it. Each object stays a part of its own to the fetcher: it is looked for on disk,
kept and handed to its readers by itself, and what a batch did not bring is read singly. So the worst a batch can be is useless;
a store whose first batches are useless gets no more of them.

A part that begins takes a seat; it then either asks the store for its bytes or leaves. Once the
`BatchWindow` is closed and every seat has done one or the other, the request is sent.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from aisfs.engine.parts import Source
from aisfs.errors import AccessDenied, AisfsError, ProtocolError, Unsupported
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.port import Arrived, ObjectStore

log = logging.getLogger(__name__)

LEAST = 8
"""Objects for which a batch is worth its redirect and its work on every target of the cluster."""
MOST = 64
"""Objects of one batch: its reader waits for all of them."""
SIZE_MAX = 256 * 1024
"""Bytes of an object in a batch at most; larger ones keep a connection busy by themselves."""


class Batches:
    """Fetches many small objects with one request, as long as the store does that."""

    def __init__(self, store: ObjectStore, services: trio.Nursery) -> None:
        """Ask `store`; requests run in `services`."""
        self.store = store
        self.services = services
        self._given_up = False

    @contextmanager
    def gathering(self) -> Iterator["BatchWindow | None"]:
        """Gather parts that are begun in the block; None where reading them singly is better.

        Nothing may be awaited in the block.
        """
        if self._given_up:
            yield None
            return
        window = BatchWindow(self)
        try:
            yield window
        finally:
            window.close()

    def give_up(self, reason: str) -> None:
        """Read all objects singly from now on."""
        if not self._given_up:
            log.info("objects are read one by one from now on: %s", reason)
        self._given_up = True


class BatchWindow:
    """Assigns seats in batches, `MOST` in each."""

    def __init__(self, batches: Batches) -> None:
        """Start without any."""
        self._shared = batches
        self._batches: dict[Bucket, _Batch] = {}

    def seat(self, bucket: Bucket, info: ObjectInfo) -> "BatchSlot | None":
        """Return a seat for a whole object; None if it is too large for a batch."""
        if info.size > SIZE_MAX:
            return None
        batch = self._batches.get(bucket)
        if batch is None or batch.seats == MOST:
            if batch is not None:
                batch.close()
            batch = self._batches[bucket] = _Batch(self._shared, bucket)
        batch.seats += 1
        batch.awaited += 1
        return BatchSlot(batch, info)

    def close(self) -> None:
        """Send what is complete; no more parts come."""
        for batch in self._batches.values():
            batch.close()


@dataclass(eq=False, slots=True)
class _Waiting:
    """A part that came to ask for its bytes."""

    info: ObjectInfo
    buffer: memoryview
    done: trio.Event = field(default_factory=trio.Event)
    filled: bool = False


class _Batch:
    """Parts that share a request."""

    def __init__(self, batches: Batches, bucket: Bucket) -> None:
        self.bucket = bucket
        self.store = batches.store
        self.seats = 0
        self.awaited = 0
        """Seats whose part neither came nor left."""
        self._batches = batches
        self._closed = False
        self._waiting: list[_Waiting] = []

    def close(self) -> None:
        self._closed = True
        self._go()

    def came(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        self.left()

    def left(self) -> None:
        self.awaited -= 1
        self._go()

    def _go(self) -> None:
        if not self._closed or self.awaited or not self._waiting:
            return
        if len(self._waiting) < LEAST:
            self._release()
        else:
            self._batches.services.start_soon(self._fetch)

    async def _fetch(self) -> None:
        """Fetch for all. Never raises but Cancelled."""
        waiting = self._waiting
        try:
            wanted = [(one.info, one.buffer) for one in waiting]
            filled = await self.store.read_many(self.bucket, wanted)
            for one, there in zip(waiting, filled, strict=True):
                one.filled = there
            if not any(filled):
                self._batches.give_up(
                    f"a batch brought none of {len(filled)} objects; it takes checksums"
                )
        except (Unsupported, AccessDenied, ProtocolError) as error:
            self._batches.give_up(str(error))
        except AisfsError as error:
            log.debug("a batch failed, its objects are read one by one: %s", error)
        except Exception:
            log.exception("a batch failed: this is a bug in aisfs, please report it")
        finally:
            self._release()

    def _release(self) -> None:
        for one in self._waiting:
            one.done.set()


class BatchSlot:
    """The place of one part in a batch."""

    def __init__(self, batch: _Batch, info: ObjectInfo) -> None:
        """Use a place that is counted already."""
        self._batch = batch
        self._info = info
        self._awaited = True

    async def run(self, fetch: Callable[[Source], Awaitable[None]]) -> None:
        """Run `fetch`, which asks for bytes or does not need any."""
        try:
            await fetch(self._read)
        finally:
            if self._awaited:
                self._awaited = False
                self._batch.left()

    async def _read(self, start: int, buffer: memoryview, arrived: Arrived) -> None:
        """Fill a buffer, with others of the batch if it is for all of the object."""
        if self._awaited and len(buffer) == self._info.size:
            waiting = _Waiting(self._info, buffer)
            self._awaited = False
            self._batch.came(waiting)
            await waiting.done.wait()
            if waiting.filled:
                return
        await self._batch.store.read_range(self._batch.bucket, self._info, start, buffer, arrived)
