"""Parts of objects in the disk cache: which bytes are there, and how the others get there. For worker threads.

One thread writes fetched bytes, and may lag behind: a reader has its bytes before they are written. The thread mostly waits for
the disk (docs/adr/0020). With a lower priority it would fall behind where processors are few, and what waits for it takes memory.
"""

import contextlib
import logging
import queue
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import trio

from aisfs.cache.block_cache import BlockCache
from aisfs.cache.directory import EntryId
from aisfs.cache.space import Reservation
from aisfs.engine.parts import OpenObject, Part, Retained, RunningSums
from aisfs.errors import AisfsError
from aisfs.model import ByteRange
from aisfs.system.threads import start_service_thread

log = logging.getLogger(__name__)


class WrongContent(Exception):
    """All of an object is there, and its checksum is not the one that AIStore reported."""


Missing = list[tuple[ByteRange, Reservation | None]]
"""What of a part is not on disk, each with the room reserved for it; None where it is not to be kept."""


def look(part: Part, opened: OpenObject) -> Missing:
    """Read what is on disk, and reserve room for the rest if it is to be kept.

    Runs in a worker thread if the object is cached.
    """
    room = part.content or part.allocate()  # a second look: some of what had arrived may be in use
    cache, entry = opened.cache, opened.entry
    if cache is None or entry is None:
        return [(part.range, None)]
    if cache.read(entry, part.range, room) is not None:
        part.from_disk = True
        return []
    missing = cache.missing(entry, part.range)
    position = part.range.start
    gaps: list[ByteRange] = []
    for gap in [*missing, ByteRange(part.range.stop, part.range.stop)]:
        between = ByteRange(position, gap.start)
        if between:
            start = position - part.range.start
            if cache.read(entry, between, room[start : start + len(between)]) is None:
                gap = ByteRange(position, gap.stop)  # it turned out to be damaged, or was evicted
        if gap:
            gaps.append(gap)
        position = gap.stop
    keep = part.to_disk and not opened.cached_by_source
    return [(gap, cache.reserve(entry, gap) if keep else None) for gap in gaps]


def look_for_all(parts: list[Retained]) -> list[Missing | None]:
    """Do that in one worker thread for those of many parts that are wholly missing; None for the others, each of which is
    read from the disk in a thread of its own."""
    found: list[Missing | None] = []
    for part, opened in parts:
        cache, entry = opened.cache, opened.entry
        try:
            gaps = cache.missing(entry, part.range) if cache and entry else [part.range]
            found.append(look(part, opened) if gaps == [part.range] else None)
        except Exception:  # the second look runs into it too, and says so
            log.debug("%s: looked for once more", opened.info.key, exc_info=True)
            found.append(None)
    return found


def store(
    cache: BlockCache,
    entry: EntryId,
    part: Part,
    fetched: list[tuple[ByteRange, Reservation | None]],
    sums: RunningSums,
    *,
    past_page_cache: bool,
) -> bool:
    """Write what was fetched to disk, and return what was reserved for it and not used.

    Runs in one thread.

    Returns:
        Whether all of it is there.

    Raises:
        WrongContent: the object is complete now, and not what it should be; it is dropped.
    """
    stored = True
    for gap, reservation in fetched:
        if reservation is None:
            return False
        start = gap.start - part.range.start
        content = part.content[start : start + len(gap)]
        reservation.write(gap.start, content, past_page_cache=past_page_cache)
        stored = reservation.publish(gap, content) and stored
        reservation.finish()
    if stored:
        sums.add(entry, part)
        complete = not cache.missing(entry, ByteRange(0, entry.size))
        if complete and not cache.verify_object(entry, sums.finish(entry)):
            raise WrongContent
    return stored


def report_wrong(opened: OpenObject) -> None:
    """Log that readers got bytes that are not those of the object."""
    log.error(
        "%s/%s: readers got wrong bytes of version %s: the checksum of all of it is not %s."
        " Nothing of it is kept here; look at the object in AIStore",
        opened.bucket, opened.info.key, opened.info.version or "?", opened.info.checksum,
    )  # fmt: skip


def lost(copies: list[Retained]) -> list[Retained]:
    """Return those that are no longer on disk. Runs in a worker thread."""
    return [
        (part, opened)
        for part, opened in copies
        if opened.cache and opened.entry and opened.cache.missing(opened.entry, part.range)
    ]


ResultT = TypeVar("ResultT")


class _Job(Generic[ResultT]):
    def __init__(self, work: Callable[[], ResultT]) -> None:
        self.work = work
        self.done = trio.Event()
        self.result: list[ResultT] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result.append(self.work())
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self.error = error


class BackgroundThread:
    """Runs functions one after the other."""

    def __init__(self) -> None:
        """Use `background_thread`."""
        self._jobs: queue.SimpleQueue[_Job[object] | None] = queue.SimpleQueue()
        self._token = trio.lowlevel.current_trio_token()
        self._thread = start_service_thread("aisfs writer", self._serve)

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Run `work` after all that came before. A cancelled call lets it run all the same."""
        job = _Job(work)
        self._jobs.put(job)  # type: ignore[arg-type]  # the queue does not look at the result
        await job.done.wait()
        if job.error is not None:
            raise job.error
        return job.result[0]

    async def aclose(self) -> None:
        """End when all that was asked for is done."""
        self._jobs.put(None)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.join)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(job.done.set)


@asynccontextmanager
async def background_thread() -> AsyncIterator[BackgroundThread]:
    """Run a background thread as long as the block."""
    thread = BackgroundThread()
    try:
        yield thread
    finally:
        await thread.aclose()


async def unattended(what: str, work: Callable[[], Awaitable[object]]) -> None:
    """Run what has no waiter. Its errors are logged, and must not end the mount."""
    try:
        await work()
    except AisfsError as error:
        log.info("%s: %s", what, error)
    except Exception:
        log.exception("%s failed: this is a bug in aisfs, please report it", what)
