"""`aisfs jobs`: which jobs the cluster runs and has run."""

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from aisfs.app.jobs.connection import open_cluster
from aisfs.app.jobs.watch import Display, follow
from aisfs.errors import Unsupported
from aisfs.stores.ais.jobs import INDEX_SHARD, SORT, Job, Jobs


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
