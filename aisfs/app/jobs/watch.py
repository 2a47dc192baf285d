"""Follows a job to its end, shows how far it is, and stops it on Ctrl-C.

A second Ctrl-C stops the waiting, not the job, which the cluster was asked to stop by then.
"""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from aisfs.errors import AisfsError, JobNotFound
from aisfs.stores.ais.jobs import Job, Jobs

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 2.0
"""Seconds between questions: each asks every target, and a job that takes long needs few."""
_LINES = 10
"""Lines about one step where there is no terminal: one for each tenth."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job was left."""

    job: Job
    interrupted: bool
    """Whether Ctrl-C was pressed; the job may have ended before it took effect."""

    @property
    def stopped(self) -> bool:
        """Whether it was stopped by Ctrl-C, or is stopping."""
        return self.interrupted and (self.job.failed or not self.job.over)


class Display:
    """A bar on a terminal, lines elsewhere."""

    def __init__(self, console: Console, total: int = 0) -> None:
        """Show on `console`; `total` counts where the job knows no total of its own."""
        self._console = console
        self._total = total
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task("waiting", total=None)
        self._shown = ("", -1)

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def show(self, job: Job) -> None:
        """Show how far a job is."""
        step, total = job.step or job.kind, job.total or self._total
        if self._console.is_terminal:
            self._bar.update(self._task, description=step, completed=job.done, total=total or None)
            return
        part = job.done * _LINES // total if total else 0
        if (step, part) != self._shown:
            self._shown = step, part
            self.say(f"{step}: {job.done:,} of {total:,}" if total else step)

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(f"aisfs: {text}", markup=False, highlight=False, soft_wrap=True)


async def follow(jobs: Jobs, uuid: str, show: Callable[[Job], None]) -> Job:
    """Return a job once it is over.

    Raises:
        JobNotFound: the cluster does not know it, or does not any more.
    """
    pause = _FIRST_PAUSE
    while True:
        job = await jobs.describe(uuid)
        show(job)
        if job.over:
            return job
        await trio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


async def run_to_end(
    jobs: Jobs,
    start: Callable[[], Awaitable[str]],
    display: Display,
    counted: Callable[[Job], Job] = lambda job: job,
) -> Ended:
    """Start a job and follow it to its end; on Ctrl-C have the cluster stop it, and wait until it has.

    Args:
        jobs: The cluster's.
        start: Starts the job, and returns its id.
        display: Where its progress is shown.
        counted: Returns the job with its progress, where that is counted in a way of its own.

    Raises:
        AisfsError: the job cannot be started, or the cluster cannot be asked any more.
        KeyboardInterrupt: Ctrl-C was pressed twice before the job was there.
    """
    # From the start on, since nothing else would stop a job that is there a moment later.
    with trio.open_signal_receiver(signal.SIGINT) as signals:
        running = _Running(jobs, display, counted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.listen, signals, nursery)
            await running.run(start)
            nursery.cancel_scope.cancel()
    if running.failure is not None:
        raise running.failure
    if running.job is None:
        raise KeyboardInterrupt
    return Ended(running.job, running.interrupted)


class _Running:
    """One job that is followed, and stopped on Ctrl-C."""

    def __init__(self, jobs: Jobs, display: Display, counted: Callable[[Job], Job]) -> None:
        self._jobs = jobs
        self._display = display
        self._counted = counted
        self._uuid = ""
        self.interrupted = False
        self.job: Job | None = None
        """What was last known of it."""
        self.failure: AisfsError | None = None

    async def run(self, start: Callable[[], Awaitable[str]]) -> None:
        """Start the job and follow it."""
        try:
            self._uuid = await start()
            self._display.say(f"started job {self._uuid}")
            if self.interrupted:
                await self._stop()
            await follow(self._jobs, self._uuid, self._show)
        except AisfsError as error:  # a nursery would put it into a group
            self.failure = error

    async def listen(self, signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
        """Stop the job on the first signal, and the waiting on the second."""
        async for _ in signals:
            if self.interrupted:
                self._display.say(
                    "not waiting any more; `aisfs jobs` shows what becomes of the job"
                )
                nursery.cancel_scope.cancel()
                return
            self.interrupted = True
            if self._uuid:
                nursery.start_soon(self._stop)

    async def _stop(self) -> None:
        self._display.say(f"asking the cluster to stop job {self._uuid} …")
        try:
            with suppress(JobNotFound):  # it has just ended
                await self._jobs.stop(self._uuid)
        except AisfsError as error:
            self._display.say(f"{error}; press Ctrl-C again not to wait")

    def _show(self, job: Job) -> None:
        self.job = job
        self._display.show(self._counted(job))
