"""`aisfs jobs`: lists the cluster's jobs, starts them for other commands, and watches them.

A job that is watched shows its progress and is stopped on Ctrl-C. A second Ctrl-C stops the waiting, not the job, which the
cluster was asked to stop by then.

For `aisfs index --server`, the job `index-shard` runs on all targets at once. Afterwards each index is compared with its shard,
since a job may end well and still have left shards out: those that were read at that moment, and those that it could not read.
"""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from aisfs.core.names.sources import DatasetSource
from aisfs.errors import AisfsError, AlreadyExists, BucketNotFound, JobNotFound, Unsupported
from aisfs.model import Bucket, ObjectInfo
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from aisfs.stores.ais.etls import Etls
from aisfs.stores.ais.jobs import INDEX_SHARD, SORT, Job, Jobs
from aisfs.stores.ais.requests import SYSTEM_BUCKET, shard_index_location
from aisfs.stores.pipeline import CallPipeline, all_of
from aisfs.stores.port import ObjectStore, pages_of

if TYPE_CHECKING:
    from aisfs.work.shards import FoundShards


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster: its jobs, its ETLs, and its objects."""

    jobs: Jobs
    etls: Etls
    store: ObjectStore


@asynccontextmanager
async def open_cluster(endpoint: str | None) -> AsyncIterator[Cluster]:
    """Connect to the cluster of an option or the environment; nothing is asked yet.

    Raises:
        NoEndpoint: neither names one.
    """
    settings = ClusterSettings.load({"endpoint": endpoint})
    client = AISClient(settings)
    try:
        store = CallPipeline(client, deadline=settings.io_timeout)
        yield Cluster(
            Jobs(client, deadline=settings.io_timeout),
            Etls(client, deadline=settings.io_timeout),
            store,
        )
    finally:
        with trio.CancelScope(shield=True):
            await client.aclose()


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


@dataclass(frozen=True, slots=True)
class Row:
    """One job, as text for people."""

    id: str
    kind: str
    state: str
    progress: str
    started: str
    what: str
    note: str


async def list_jobs(endpoint: str | None, *, every: bool) -> list[Job]:
    """Return the jobs that the cluster remembers, the running ones first, then the latest.

    Args:
        endpoint: The cluster.
        every: Also those that aisfs never starts.
    """
    async with open_cluster(endpoint) as cluster:
        found = await cluster.jobs.sorts()
        others = await _others(cluster.jobs, every=every)
    known = {job.id for job in found}
    found += [job for job in others if job.id not in known]
    found.sort(key=lambda job: job.started.timestamp() if job.started else 0.0, reverse=True)
    return sorted(found, key=lambda job: job.over)


async def _others(jobs: Jobs, *, every: bool) -> list[Job]:
    if every:
        return await jobs.others()
    try:
        return await jobs.others(INDEX_SHARD)
    except Unsupported:  # a cluster before 4.5
        return []


async def watch_job(endpoint: str | None, uuid: str, console: Console) -> Job:
    """Show the progress of a job until it is over.

    Raises:
        JobNotFound: the cluster does not know it.
    """
    async with open_cluster(endpoint) as cluster:
        with Display(console) as display:
            return await follow(cluster.jobs, uuid, display.show)


async def cancel_job(endpoint: str | None, uuid: str) -> None:
    """Have the cluster stop a job.

    Raises:
        JobNotFound: the cluster does not know it, or it has ended.
    """
    async with open_cluster(endpoint) as cluster:
        await cluster.jobs.stop(uuid)


def row_of(job: Job) -> Row:
    """Return a job as text."""
    progress = f"{job.done:,} of {job.total:,}" if job.total else f"{job.done:,}"
    if job.kind == SORT and job.over:
        progress = f"{job.counts.get('shards', 0):,} to {job.created:,}"
    notes = [*job.errors, *job.warnings]
    more = f" (and {len(notes) - 1} more)" if len(notes) > 1 else ""
    return Row(
        id=job.id,
        kind=job.kind,
        state=job.state if job.over or not job.step else job.step,
        progress=progress,
        started=f"{job.started.astimezone():%Y-%m-%d %H:%M:%S}" if job.started else "",
        what=f"{job.source} to {job.target}" if job.target else job.source,
        note=notes[0] + more if notes else "",
    )


def as_json(job: Job) -> dict[str, Any]:
    """Return a job for scripts."""
    return {
        "id": job.id,
        "kind": job.kind,
        "state": job.state.value,
        "source": job.source,
        "target": job.target,
        "started": job.started.isoformat() if job.started else None,
        "ended": job.ended.isoformat() if job.ended else None,
        "step": job.step,
        "done": job.done,
        "total": job.total or None,
        "bytes": job.size,
        "created": job.created,
        "counts": job.counts,
        "warnings": list(job.warnings),
        "errors": list(job.errors),
        "description": job.description,
    }


_INSTEAD = (
    "`aisfs index SOURCE --publish` builds indexes on this machine and keeps them beside the shards"
)
_DONE = ("index", "re-stale", "skip-indexed", "skip-busy")
"""What the job counts of the shards that it has passed."""


@dataclass(slots=True)
class Coverage:
    """Which of the shards have an index afterwards."""

    shards: int = 0
    current: int = 0
    """Those whose index is of exactly their version."""
    stale: list[str] = field(default_factory=list)
    """Shards whose index is of an earlier version."""
    without: list[str] = field(default_factory=list)
    """Shards without an index."""
    unbound: list[str] = field(default_factory=list)
    """Shards without a checksum, whose index may be of any version and is never used."""
    jobs: list[Job] = field(default_factory=list)
    interrupted: bool = False
    """Whether the jobs were stopped by Ctrl-C."""

    @property
    def complete(self) -> bool:
        """Whether all of them have one."""
        return self.current == self.shards

    @property
    def errors(self) -> list[str]:
        """What the jobs could not do."""
        return [error for job in self.jobs for error in job.errors]


async def build_shard_indexes(
    words: Sequence[str],
    settings: Mapping[str, object],
    endpoint: str | None,
    console: Console,
    *,
    jobs: int = 8,
    build: bool = True,
) -> Coverage:
    """Have the cluster index the shards of SOURCE arguments, and count those that have an index.

    The jobs work on whole directories, and so may index more than these shards.

    Args:
        words: SOURCE arguments.
        settings: The options that choose shards among them.
        endpoint: The cluster.
        console: Where progress is shown.
        jobs: How many indexes are looked at at once.
        build: Whether to start jobs, or only to count.

    Raises:
        Unsupported: the cluster is older than 4.5, which has no such job.
        AlreadyExists: such a job is running there.
    """
    from aisfs.work.shards import find_plain_tars, read_cluster_shards  # what a mount lists with

    source = read_cluster_shards(words, settings, "use `aisfs index --publish`")
    coverage = Coverage()
    async with open_cluster(endpoint) as cluster:
        found = await find_plain_tars(source, cluster.store)
        coverage.shards = len(found.shards)
        if build:
            with Display(console, len(found.shards)) as display:
                await _build(source, found, cluster.jobs, display, coverage)
        await _look(found, cluster, coverage, jobs)
    return coverage


async def _build(
    source: DatasetSource, found: "FoundShards", jobs: Jobs, display: Display, coverage: Coverage
) -> None:
    """Run one job for each directory, one after the other: each runs on all targets."""
    for prefix in prefixes_of(source, found.shards):
        start = partial(_start, jobs, found.bucket, prefix)
        ended = await run_to_end(jobs, start, display, _counted)
        coverage.jobs.append(ended.job)
        if ended.stopped:
            coverage.interrupted = True
            return


async def _start(jobs: Jobs, bucket: Bucket, prefix: str) -> str:
    try:
        return await jobs.start_index(bucket, prefix)
    except Unsupported as error:
        raise Unsupported(f"{error}; it came with AIStore 4.5. {_INSTEAD}") from error
    except AlreadyExists as error:
        raise AlreadyExists(f"{error}; `aisfs jobs` shows it") from error


def prefixes_of(source: DatasetSource, shards: Sequence[ObjectInfo] = ()) -> list[str]:
    """Return the prefixes that hold all shards of a source, none of which begins with another.

    A single shard is a prefix of its own: but many jobs take longer than one over their directory.

    Args:
        source: The source.
        shards: All its shards, which say where those of a list in the bucket are.
    """
    patterns = [pattern for word in source.words for pattern in word.patterns]
    directories = {
        pattern.directory + (pattern.rest if pattern.one and _is_alone(source) else "")
        for pattern in patterns
        if not pattern.listing
    }
    if any(pattern.listing for pattern in patterns):
        directories |= {shard.key[: shard.key.rfind("/") + 1] for shard in shards}
    ordered: list[str] = []
    for prefix in sorted(directories):
        if not ordered or not prefix.startswith(ordered[-1]):
            ordered.append(prefix)
    return ordered


def _is_alone(source: DatasetSource) -> bool:
    return sum(len(word.patterns) for word in source.words) == 1


def _counted(job: Job) -> Job:
    """Return the job with its progress in shards, of which AIStore only counts those indexed anew."""
    done = sum(job.counts.get(name, 0) for name in _DONE)
    return replace(job, done=done or job.done, step="indexing shards")


async def _look(found: "FoundShards", cluster: Cluster, coverage: Coverage, jobs: int) -> None:
    """Compare each shard with what its index says."""
    directories = {shard.key.rpartition("/")[0] for shard in found.shards}
    existing: set[str] = set()
    for directory in directories:
        existing |= await _indexes_in(found, directory, cluster)

    async def one(shard: ObjectInfo) -> None:
        name = f"{found.bucket}/{shard.key}"
        said = await cluster.jobs.indexed_version(found.bucket, shard.key)
        checksum = shard.checksum.partition(":")[2]
        if said is None:
            coverage.without.append(name)
        elif not checksum:
            coverage.unbound.append(name)
        elif said == (checksum, shard.size):
            coverage.current += 1
        else:
            coverage.stale.append(name)

    indexed = [shard for shard in found.shards if shard.key in existing]
    coverage.without += [
        f"{found.bucket}/{shard.key}" for shard in found.shards if shard.key not in existing
    ]
    await all_of((partial(one, shard) for shard in indexed), jobs)


async def _indexes_in(found: "FoundShards", directory: str, cluster: Cluster) -> set[str]:
    """Return the shards of a directory that have some index."""
    _, place = shard_index_location(found.bucket, f"{directory}/" if directory else "")
    above = place.removesuffix(".idx")
    start = len(above) - len(f"{directory}/" if directory else "")
    there: set[str] = set()
    try:
        async for page in pages_of(cluster.store, SYSTEM_BUCKET, above):
            there |= {info.key[start:].removesuffix(".idx") for info in page.objects}
    except BucketNotFound:  # nothing was ever indexed
        return set()
    return there
