"""`aisfs sort`: a sorted or shuffled copy of shards, which the cluster makes with dSort.

What dSort cannot take is refused before anything is sent, since dSort answers some mistakes with silence. It also overwrites
whatever has the names of its output, so those names are looked up first.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from aisfs.core.names.sources import BucketSource, DatasetSource
from aisfs.core.views.packing import ShardNames
from aisfs.errors import (
    AlreadyExists,
    BucketNotFound,
    ConfigError,
    JobFailed,
    Unsupported,
)
from aisfs.model import Bucket, ObjectInfo
from aisfs.mount.setup import existing
from aisfs.stores.ais.jobs import Job, SortRequest
from aisfs.work.display import counted
from aisfs.work.jobs import Cluster, Display, Ended, open_cluster, run_to_end
from aisfs.work.pack import parse_shards, shards_there
from aisfs.work.shards import FoundShards, find_plain_tars, read_cluster_shards

KINDS = {"name": "alphanumeric", "md5": "md5", "content": "content"}
"""By the words of `--by`, the algorithm of dSort."""
_WITHOUT = (
    "this build of AIStore has no dSort (tag dsort): `aisfs mount --view shards --shuffle SEED` shows "
    "shuffled shards without a copy"
)
_MOST_NAMED = 3
_EXAMPLE = "ais://BUCKET/PREFIX/shard-{000000..000999}.tar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How samples are ordered."""

    by: str = "name"
    shuffled: bool = False
    seed: int | None = None
    decreasing: bool = False
    extension: str = ""
    """The member whose content is the key, for `by` content."""
    key_type: str = "string"

    def check(self) -> None:
        """Refuse what cannot be combined.

        Raises:
            ConfigError: the message names the options.
        """
        if self.shuffled and (self.by != "name" or self.decreasing or self.extension):
            raise ConfigError("--shuffle goes with none of --by, --decreasing and --key")
        if (self.by == "content") != bool(self.extension):
            raise ConfigError("--by content needs --key EXT, and --key needs --by content")
        if self.seed is not None and self.seed < 0:
            raise ConfigError("--shuffle SEED: a seed is not negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class SortPlan:
    """What `aisfs sort` sorts, and where it writes."""

    source: DatasetSource
    target: Bucket
    names: ShardNames
    order: Order
    shard_size: int | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sort that can be started."""

    request: SortRequest
    found: FoundShards
    warnings: list[str]


def plan_sort(
    words: Sequence[str],
    target: str,
    settings: Mapping[str, object],
    *,
    order: Order,
    shard_size: int | None,
) -> SortPlan:
    """Return what `aisfs sort SOURCE… TARGET` is to do.

    Raises:
        ConfigError: an argument makes no sense, or dSort cannot do it.
    """
    order.check()
    place, names = parse_shards(target, existing(settings))
    if not isinstance(place, BucketSource) or place.bucket.store:
        raise ConfigError(f"{target}: the cluster writes the shards: write {_EXAMPLE}")
    if not names.width:
        raise ConfigError(f"{target}: TARGET needs a range for the numbers, as in {_EXAMPLE}")
    if shard_size is not None and shard_size < 1:
        raise ConfigError("--shard-size: at least one byte")
    instead = "use `aisfs unpack` and `aisfs pack --shuffle SEED`"
    source = read_cluster_shards(words, settings, instead)
    return SortPlan(
        source=source, target=place.bucket, names=names, order=order, shard_size=shard_size
    )


async def describe(plan: SortPlan, endpoint: str | None) -> list[str]:
    """Return what would be done, as lines; nothing is started.

    Raises:
        AisfsError: the cluster cannot be asked, or the sort would be refused.
    """
    async with open_cluster(endpoint) as cluster:
        prepared = await _prepare(plan, cluster)
    asked, found = prepared.request, prepared.found
    how = f"by {plan.order.by}"
    if plan.order.shuffled:
        how = "shuffled" if plan.order.seed is None else f"shuffled with seed {plan.order.seed}"
    most = found.size // asked.shard_size + 1
    return [
        f"{counted(len(found.shards), 'shard')} of {found.bucket}, {found.size} bytes, {how}",
        f"to at most {counted(most, 'shard')} of {asked.shard_size} bytes: {plan.target}/{plan.names}",
        *prepared.warnings,
    ]


async def sort(plan: SortPlan, endpoint: str | None, console: Console, *, detach: bool) -> Ended:
    """Start the job and follow it to its end, unless it is to be left alone.

    Raises:
        Unsupported: the build of the cluster has no dSort.
        AlreadyExists: TARGET names shards that exist.
        JobFailed: it ended before its work was done; the message says what is left of it.
    """
    async with open_cluster(endpoint) as cluster:
        prepared = await _prepare(plan, cluster)
        with Display(console) as display:
            for warning in prepared.warnings:
                display.say(warning)
            start = partial(_start, cluster, prepared)
            if detach:
                return Ended(await cluster.jobs.describe(await start()), interrupted=False)
            ended = await run_to_end(cluster.jobs, start, display)
        for warning in ended.job.warnings[:_MOST_NAMED]:
            display.say(f"warning: {warning}")
        if not ended.stopped:
            _check_result(plan, ended.job, await _existing(plan, cluster))
    return ended


async def _start(cluster: Cluster, prepared: Prepared) -> str:
    try:
        return await cluster.jobs.start_sort(prepared.request)
    except Unsupported as error:
        raise Unsupported(f"{error}; {_WITHOUT}") from error


async def _prepare(plan: SortPlan, cluster: Cluster) -> Prepared:
    """Find the shards, and make sure that nothing is overwritten."""
    found = await find_plain_tars(plan.source, cluster.store)
    if there := await _existing(plan, cluster):
        some = ", ".join(info.key for info in there[:_MOST_NAMED])
        more = ", …" if len(there) > _MOST_NAMED else ""
        raise AlreadyExists(
            f"{plan.target}/{plan.names}: {len(there)} of these exist ({some}{more}), and dSort would "
            "overwrite them: choose other names, or remove them first"
        )
    size = plan.shard_size or max(1, -(-found.size // len(found.shards)))
    last = plan.names.last
    if last is None:
        last = int("9" * plan.names.width)
    count, most = last - plan.names.first + 1, found.size // size + 1
    warnings = []
    if most > count:
        warnings.append(
            f"up to {counted(most, 'shard')} of {size} bytes, but TARGET has {count} names: should they not do, "
            "nothing is written"
        )
    if found.missing:
        warnings.append(f"{len(found.missing)} shards that SOURCE names do not exist")
    width = plan.names.width
    output = f"{plan.names.before}{{{plan.names.first:0{width}d}..{last:0{width}d}}}"
    order = plan.order
    request = SortRequest(
        source=found.bucket,
        target=plan.target,
        template=(template := _template(plan.source, found)),
        names=() if template else [shard.key for shard in found.shards],
        output=output + plan.names.after.removesuffix(".tar"),
        shard_size=size,
        kind="shuffle" if order.shuffled else KINDS[order.by],
        decreasing=order.decreasing,
        seed="" if order.seed is None else str(order.seed),
        key_extension=f".{order.extension.lstrip('.')}" if order.extension else "",
        key_type=order.key_type if order.extension else "",
        # If the reply to the start is lost, this says which job was meant.
        description=f"aisfs sort {secrets.token_hex(8)}",
    )
    return Prepared(request, found, warnings)


def _template(source: DatasetSource, found: FoundShards) -> str:
    """Return the one template that stands for exactly these shards, without `.tar`; or nothing."""
    if len(source.words) > 1 or "://" not in (text := source.words[0].text):
        return ""
    try:
        _, names = parse_shards(text)
    except ConfigError:
        return ""
    last = str(names.last)
    if names.last is None or len(last) > names.width or f"..{last:0>{names.width}}}}" not in text:
        return ""
    keys = [names.name(index) for index in range(names.last - names.first + 1)]
    if not names.width or keys != [shard.key for shard in found.shards]:
        return ""
    return str(names).removesuffix(".tar")


async def _existing(plan: SortPlan, cluster: Cluster) -> list[ObjectInfo]:
    """Return the shards there are with the names of the target; its bucket may not exist yet."""
    try:
        there = await shards_there(cluster.store, plan.target, plan.names)
    except BucketNotFound:
        return []
    return [info for _, info in there]


def _check_result(plan: SortPlan, job: Job, there: list[ObjectInfo]) -> None:
    """Refuse a job that did not do all of its work."""
    written = f"{len(there)} shards of {plan.target}/{plan.names} are written"
    if job.failed:
        reason = "; ".join(job.errors) or "the cluster does not say why"
        if "exceeds expected number of shards" in reason:
            reason += ": widen the range of TARGET, or raise --shard-size"
        elif "key is missing" in reason:
            reason += ": each sample needs the member of --key"
        elif "invalid syntax" in reason:
            reason += ": not each --key is of this --key-type"
        left = f"; {written} and stay" if there else "; nothing is written"
        raise JobFailed(f"job {job.id}: {reason}{left}")
    if not job.created:
        raise JobFailed(f"job {job.id} ended and has written no shard")
    if len(there) < job.created:
        raise JobFailed(f"job {job.id} ended with {job.created} shards, but only {written}")
