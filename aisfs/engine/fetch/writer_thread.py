"""One thread for work that may lag behind: writing what was fetched to disk.

A reader has its bytes before they are written. The thread mostly waits for the disk (docs/adr/0020);
at a lower priority it would fall behind where processors are few, and all that waits takes memory.
"""

import contextlib
import logging
import queue
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import trio

from aisfs.errors import AisfsError
from aisfs.system.threads import start_service_thread

log = logging.getLogger(__name__)

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
