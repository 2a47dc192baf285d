"""`aisfs etl`: lists, defines, starts and stops ETLs, and has them transform objects into other ones.

A transformation that is stored either succeeds or fails, unlike one that is read: of that, AIStore may append an
error to what it has sent. What it would do without an error is refused here: of a name with `?`, `#` or `%` it
transforms nothing, unless the ETL pulls.
"""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from aisfs.core.names.urls import split_url
from aisfs.errors import ConfigError, JobFailed, JobNotFound, NotFound, SourceMissing, Unsupported
from aisfs.model import SERVED, Bucket
from aisfs.stores.ais.etls import PULLED, RUNNING, Details, Etl, Etls
from aisfs.stores.ais.requests import may_be_lost
from aisfs.work.buckets import list_from
from aisfs.work.jobs import Cluster, Display, Ended, open_cluster, run_to_end

_UNSAFE = frozenset("?#%")
_MOST_NAMED = 3

T = TypeVar("T")
Change = Callable[[Etls], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Shown:
    """An ETL, and what the cluster says of it while it runs."""

    etl: Etl
    details: Details | None


async def ask(endpoint: str | None, question: Callable[[Etls], Awaitable[T]]) -> T:
    """Return what the ETLs of a cluster answer."""
    async with open_cluster(endpoint) as cluster:
        return await question(cluster.etls)


async def show(etls: Etls, name: str) -> Shown:
    """Describe one ETL."""
    found = await etls.one(name)
    return Shown(found, await etls.details(name) if found.stage == RUNNING else None)


def read_definition(path: Path) -> dict[str, Any]:
    """Return what a file defines.

    Raises:
        ConfigError: it cannot be read, or is no definition.
    """
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not JSON ({error}); of YAML, `yq -o json {path}` makes it"
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise ConfigError(f'{path}: write {{"name": "…", "runtime": {{"image": "…"}}}}')
    return found


@dataclass(frozen=True, slots=True)
class Plan:
    """What `aisfs etl run` transforms: an object, or all below a prefix, and where it writes."""

    etl: str
    arguments: str
    source: Bucket
    key: str
    """Of an object; a prefix is empty, or ends in `/`."""
    target: Bucket
    to: str
    """Name of the result, or what names of results begin with."""

    @property
    def is_single(self) -> bool:
        """Whether one object is meant."""
        return bool(self.key) and not self.key.endswith("/")


def plan_run(etl: str, source: str, target: str, arguments: str) -> Plan:
    """Return what `aisfs etl run ETL SOURCE TARGET` is to do.

    Raises:
        ConfigError: an argument makes no sense, or AIStore cannot do it.
    """
    bucket, key = _place(source)
    to_bucket, to = _place(target)
    plan = Plan(etl, arguments, bucket, key, to_bucket, to)
    if may_be_lost(to):
        raise ConfigError(f"{target}: AIStore loses what is copied to a name with `%` or `?`")
    if plan.is_single:
        if not to or to.endswith("/"):
            to += key.rpartition("/")[2]
        if (bucket, key) == (to_bucket, to):
            raise ConfigError(f"{target}: the result needs another name than its source")
        return Plan(etl, arguments, bucket, key, to_bucket, to)
    if arguments:
        raise ConfigError("--args: AIStore passes arguments on for single objects only")
    if bucket == to_bucket:
        raise ConfigError(f"{target}: results of more than one object go to another bucket")
    return plan


def _place(text: str) -> tuple[Bucket, str]:
    if "://" not in text:
        raise ConfigError(f"{text}: write ais://BUCKET, ais://BUCKET/PREFIX/ or ais://BUCKET/KEY")
    bucket, path = split_url(text)
    if bucket.provider not in SERVED:
        raise ConfigError(f"{text}: only AIStore has ETLs: write ais://BUCKET/…")
    return bucket, path.removeprefix("/")


async def transform(plan: Plan, endpoint: str | None, console: Console) -> Ended | None:
    """Transform what was planned; return how the job ended that several objects need.

    Raises:
        Unsupported: the cluster has no ETLs, or would transform nothing of a name.
        SourceMissing: there is nothing to transform.
        JobFailed: not all could be transformed.
    """
    async with open_cluster(endpoint) as cluster:
        # Before anything else: of what a cluster without ETLs says to the rest, much is misleading.
        found = await cluster.etls.one(plan.etl)
        if found.stage != RUNNING:
            text = f"the ETL {plan.etl} is {found.stage}: `aisfs etl start {plan.etl}`"
            raise JobNotFound(text)
        if plan.is_single:
            await _transform_one(plan, cluster)
            return None
        keys = [
            entry.info.key
            async for batch in list_from(
                cluster.store, plan.source, plan.key, Counter(), recursive=True
            )
            for entry in batch
            if entry.info is not None
        ]
        if not keys:
            raise SourceMissing(f"{plan.source}/{plan.key}: no objects")
        await _check_names(plan, cluster.etls, keys)
        with Display(console, len(keys)) as display:
            places = plan.source, plan.key, plan.target, plan.to
            start = partial(cluster.etls.start_transform, plan.etl, *places)
            ended = await run_to_end(cluster.jobs, start, display)
    if ended.stopped:
        return ended
    job = ended.job
    if job.failed or job.errors:
        reason = "; ".join(job.errors) or "the cluster does not say why"
        raise JobFailed(f"job {job.id}: {job.done} of {len(keys)} were transformed: {reason}")
    return ended


async def _transform_one(plan: Plan, cluster: Cluster) -> None:
    try:
        await cluster.store.head(plan.source, plan.key)
    except NotFound as error:
        raise SourceMissing(
            f"{error}; for all objects below it, write {plan.source}/{plan.key}/"
        ) from error
    await _check_names(plan, cluster.etls, [plan.key])
    places = plan.source, plan.key, plan.target, plan.to
    await cluster.etls.transform(plan.etl, plan.arguments, *places)


async def _check_names(plan: Plan, etls: Etls, keys: Sequence[str]) -> None:
    """Refuse names of which AIStore would transform nothing, and say that it was successful."""
    unsafe = [key for key in keys if not _UNSAFE.isdisjoint(key)]
    if not unsafe:
        return
    details = await etls.details(plan.etl)
    if details.definition.get("communication") != PULLED:
        some = ", ".join(unsafe[:_MOST_NAMED]) + (", …" if len(unsafe) > _MOST_NAMED else "")
        raise Unsupported(
            f"AIStore transforms nothing of a name with `?`, `#` or `%`, and reports no error ({some}): "
            f"rename them, or define {plan.etl} with {PULLED}"
        )
