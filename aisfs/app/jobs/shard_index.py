"""Has the cluster index shards: its job `index-shard` runs on all targets at once.

Afterwards each index is compared with its shard, since a job may end well and still have left shards
out: those that were read at that moment, and those that it could not read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from rich.console import Console

from aisfs.app.jobs.connection import Cluster, open_cluster
from aisfs.app.jobs.shards import FoundShards, find_plain_tars, read_cluster_shards
from aisfs.app.jobs.watch import Display, run_to_end
from aisfs.core.names.sources import DatasetSource
from aisfs.errors import AlreadyExists, BucketNotFound, Unsupported
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.ais.jobs import Job, Jobs
from aisfs.stores.ais.shard_index import SYSTEM_BUCKET, shard_index_location
from aisfs.stores.pipeline import each
from aisfs.stores.port import pages_of

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
    source: DatasetSource, found: FoundShards, jobs: Jobs, display: Display, coverage: Coverage
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


async def _look(found: FoundShards, cluster: Cluster, coverage: Coverage, jobs: int) -> None:
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
    await each(jobs, [partial(one, shard) for shard in indexed])


async def _indexes_in(found: FoundShards, directory: str, cluster: Cluster) -> set[str]:
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
