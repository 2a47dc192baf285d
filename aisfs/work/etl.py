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
from typing import Annotated, Any, TypeVar

import msgspec
from rich.console import Console

from aisfs.core.names.urls import split_url
from aisfs.errors import ConfigError, JobFailed, JobNotFound, NotFound, SourceMissing, Unsupported
from aisfs.model import SERVED, Bucket
from aisfs.stores.ais.etls import PULLED, RUNNING, Details, Etl, Etls
from aisfs.stores.ais.requests import may_be_lost
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


async def define(definition: dict[str, Any], etls: Etls) -> None:
    """Define an ETL, and wait until it runs."""
    await etls.define(definition["name"], definition)


async def show(etls: Etls, name: str) -> Shown:
    """Describe one ETL."""
    found = await etls.one(name)
    return Shown(found, await etls.details(name) if found.stage == RUNNING else None)


class _Variable(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    value: str = ""
    from_: dict[str, Any] = msgspec.field(default_factory=dict, name="valueFrom")


class _Runtime(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    image: str
    command: list[str] = []
    env: list[_Variable] = []


_Time = Annotated[str, msgspec.Meta(pattern=r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$")]
"""As Go reads it: `1m30s`."""


class _Definition(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What AIStore takes as the definition of an ETL; a field that it does not know, it ignores."""

    name: str
    runtime: _Runtime
    communication: str = ""
    argument: str = ""
    init_timeout: _Time = ""
    obj_timeout: _Time = ""
    support_direct_put: bool = False
    direct_file_access: bool = False
    env: list[_Variable] = []
    resources: dict[str, Any] = {}


def read_definitions(path: Path) -> list[dict[str, Any]]:
    """Return the ETLs that a file of JSON or YAML defines, as `ais etl init` takes it, in the form that AIStore takes.

    Raises:
        ConfigError: it cannot be read, or is no definition.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    try:
        documents = [json.loads(data)]
    except RecursionError as error:
        raise ConfigError(f"{path} is no definition of an ETL") from error
    except ValueError as error:
        if path.suffix == ".json" or data.lstrip()[:1] == b"{":
            raise ConfigError(f"{path} is not JSON: {error}") from error
        documents = _read_yaml(path, data)
    if not documents:
        raise ConfigError(f"{path}: the file is empty")
    return [_definition(str(path), document) for document in documents]


def _read_yaml(path: Path, data: bytes) -> list[Any]:
    """Return the documents of a file, in which every value is a text: AIStore takes `64` as a variable for none else."""
    try:
        import yaml
    except ImportError as error:
        hint = "in a clone of aisfs: pip install '.[yaml]'; JSON needs nothing"
        raise ConfigError(f"{path}: YAML needs PyYAML; {hint}") from error
    try:
        documents = list(yaml.load_all(data, yaml.BaseLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"{path} is neither JSON nor YAML: {said}") from error
    return [document for document in documents if document]  # none behind the last ---


def _definition(place: str, found: object) -> dict[str, Any]:
    """Return what one document defines."""
    if isinstance(found, dict) and found.get("kind") == "Pod":
        raise ConfigError(
            f"{place} is a Pod, which AIStore 5.1 does not take: write name and runtime"
        )
    try:
        definition = msgspec.convert(found, _Definition, strict=False)  # `true` is a text in YAML
    except msgspec.ValidationError as error:
        wanted = "{name: …, runtime: {image: …}}"
        raise ConfigError(f"{place} is no definition of an ETL, {wanted}: {error}") from error
    if definition.communication:  # `hpush` is enough, as for the ais CLI
        definition.communication = f"{definition.communication.partition(':')[0]}://"
    result: dict[str, Any] = msgspec.to_builtins(definition)
    return result


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
        from aisfs.work.buckets import list_from  # what a mount lists with

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
        await _check_objects(plan, cluster.etls, keys)
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
    await _check_objects(plan, cluster.etls, [plan.key])
    places = plan.source, plan.key, plan.target, plan.to
    await cluster.etls.transform(plan.etl, plan.arguments, *places)


async def _check_objects(plan: Plan, etls: Etls, keys: Sequence[str]) -> None:
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
