"""The jobs of a cluster: start, describe and stop them.

Questions are repeated until they are answered. A start is sent once: where its reply was lost, the
cluster is asked whether the job is there.

What the cluster says of its jobs, as values.

Each target tells what it has done itself; here these are put together. Times are text as Go writes
it, numbers are strings, and a list without entries may be `null`.

Requests about the cluster's jobs: start, describe, stop.

dSort has a path of its own; all other jobs are started on a bucket and described by the cluster.

Must not know: HTTP, requests, errnos.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode

import msgspec

from aisfs.errors import ConfigError, JobNotFound, NotFound, ProtocolError, Unavailable
from aisfs.http.connections import ConnectionSet
from aisfs.http.exchange import Reply
from aisfs.model import Bucket, Provider
from aisfs.redaction import shown
from aisfs.stores.ais.cluster import Session
from aisfs.stores.ais.requests import (
    CLUSTER,
    JSON,
    SORTS,
    Request,
    bucket_path,
    bucket_query,
    encode_json,
    get_range,
    shard_index_location,
)
from aisfs.stores.ais.shard_index import HEAD_BYTES, parse_indexed_version
from aisfs.stores.pipeline import Retrier

SORT_ID = "srt-"
"""How the id of a dSort job begins."""
INDEX_SHARD = "index-shard"
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{1,60}")
_START_SECONDS = 60.0
"""A start is answered once each target has prepared the job."""
_MOST_JOBS = 32 << 20
"""Bytes: thousands of jobs, with the statistics of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SortRequest:
    """What dSort is to do; the fields are those of its specification."""

    source: Bucket
    target: Bucket
    template: str = ""
    """Names of the input shards, without their extension; empty if `names` lists them."""
    names: Sequence[str] = ()
    """Names of the input shards, with their extension."""
    output: str
    """Template of the names of the output shards, without their extension."""
    shard_size: int
    kind: str
    decreasing: bool = False
    seed: str = ""
    key_extension: str = ""
    key_type: str = ""
    description: str = ""


def start_sort(asked: SortRequest) -> Request:
    """Start a dSort job; the reply is its id.

    A shard that is missing ends the job, since its samples would be missing from the copy. The type
    of sorter must be named: AIStore 5.0 refuses a specification without.
    """
    chosen: dict[str, Any] = (
        {"objnames": list(asked.names)} if asked.names else {"template": asked.template}
    )
    spec = {
        "description": asked.description,
        "input_bck": _bucket(asked.source),
        "output_bck": _bucket(asked.target),
        "input_format": chosen,
        "input_extension": ".tar",
        "output_format": asked.output,
        "output_extension": ".tar",
        "output_shard_size": str(asked.shard_size),
        "algorithm": {
            "kind": asked.kind,
            "decreasing": asked.decreasing,
            "seed": asked.seed,
            "extension": asked.key_extension,
            "content_key_type": asked.key_type,
        },
        "dsorter_type": "dsort_general",
        "Config": {"missing_shards": "abort", "duplicated_records": "warn"},
    }
    subject = f"the sort of {asked.source}"
    headers, body = {"Content-Type": JSON}, encode_json(spec)
    return Request("POST", SORTS, "", subject, headers, body, patience=_START_SECONDS)


def list_sorts() -> Request:
    """Ask for all dSort jobs that the cluster remembers."""
    return Request("GET", SORTS, "", "sorts", most_reply=_MOST_JOBS)


def describe_sort(uuid: str) -> Request:
    """Ask what each target has done of a dSort job."""
    query = urlencode({"uuid": check_id(uuid)})
    return Request("GET", SORTS, query, f"job {uuid}", most_reply=_MOST_JOBS)


def abort_sort(uuid: str) -> Request:
    """Stop a dSort job."""
    query = urlencode({"uuid": check_id(uuid)})
    return Request("DELETE", f"{SORTS}/abort", query, f"job {uuid}")


def index_shards(bucket: Bucket, prefix: str) -> Request:
    """Start the job that indexes the shards of a bucket or prefix; the reply is its id."""
    message = {"action": INDEX_SHARD, "name": "", "value": {"prefix": prefix}}
    headers, body = {"Content-Type": JSON}, encode_json(message)
    subject = f"the index of {bucket}/{prefix}"
    path, query = bucket_path(bucket), bucket_query(bucket)
    return Request("POST", path, query, subject, headers, body, patience=_START_SECONDS)


def describe_jobs(*, uuid: str = "", kind: str = "") -> Request:
    """Ask each target for one job, those of a kind, or all that it remembers."""
    asked = {"id": check_id(uuid) if uuid else "", "kind": kind}
    query = urlencode({"what": "qryxstats"})
    headers, body = {"Content-Type": JSON}, encode_json(asked)
    subject = f"job {uuid}" if uuid else "jobs"
    return Request("GET", CLUSTER, query, subject, headers, body, most_reply=_MOST_JOBS)


def stop_job(uuid: str) -> Request:
    """Stop one job."""
    message = {"action": "stop", "name": "", "value": {"ID": check_id(uuid)}}
    headers, body = {"Content-Type": JSON}, encode_json(message)
    return Request("PUT", CLUSTER, "", f"job {uuid}", headers, body)


def check_id(uuid: str) -> str:
    """Return the id of a job, which a user may have typed.

    Raises:
        ConfigError: it can be none.
    """
    if not _JOB_ID.fullmatch(uuid):
        raise ConfigError(f"{uuid!r} is not the id of a job; `aisfs jobs` lists them")
    return uuid


def _bucket(bucket: Bucket) -> dict[str, Any]:
    cluster, _, name = bucket.namespace.removeprefix("@").partition("#")
    space = {"uuid": cluster, "name": name}
    return {"name": bucket.name, "provider": bucket.provider.value, "namespace": space}


SORT = "dsort"
_REPLIED_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_,-]{0,99}")
_COUNT = re.compile(r"([a-z-]+):(\d{1,18})")
_MOST_TEXT = 300
"""Characters of one message of a job that are passed on."""


class JobState(StrEnum):
    """How far a job is."""

    RUNNING = "running"
    IDLE = "idle"
    """It waits for more work, and ends by itself when none comes."""
    FINISHED = "finished"
    ABORTED = "aborted"
    """It was stopped, by a user or by an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job, over all targets."""

    id: str
    kind: str
    state: JobState
    source: str
    """The bucket it reads, as a URL; empty if it is about none."""
    target: str
    """The bucket it writes to, if that is another one."""
    started: datetime | None
    ended: datetime | None
    step: str = ""
    """What it is doing, where it goes through phases."""
    done: int = 0
    """How much of the step is done, in shards or objects."""
    total: int = 0
    """Out of how many; 0 if that is unknown."""
    size: int = 0
    """Bytes that it has read."""
    created: int = 0
    """Objects that it has written."""
    counts: dict[str, int]
    """What else it counts, by AIStore's names."""
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    description: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in (JobState.FINISHED, JobState.ABORTED)

    @property
    def failed(self) -> bool:
        """Whether it ended before its work was done."""
        return self.state is JobState.ABORTED


class _Space(msgspec.Struct):
    uuid: str = ""
    name: str = ""


class _Bucket(msgspec.Struct):
    name: str = ""
    provider: str = ""
    namespace: _Space = msgspec.field(default_factory=_Space)

    def __str__(self) -> str:
        if not self.name:
            return ""
        space = f"@{self.namespace.uuid}" if self.namespace.uuid else ""
        space += f"#{self.namespace.name}" if self.namespace.name else ""
        schemes = {provider.value: provider.scheme for provider in Provider}
        scheme = schemes.get(self.provider, self.provider or "ais")
        return f"{scheme}://{space}{'/' if space else ''}{self.name}"


class _Stats(msgspec.Struct, rename={"objects": "loc-objs", "size": "loc-bytes"}):
    objects: int = 0
    size: int = 0


class _Snap(
    msgspec.Struct,
    rename={
        "start": "start-time",
        "end": "end-time",
        "source": "src-bck",
        "target": "dst-bck",
        "message": "ctlmsg",
        "error": "err",
        "abort_error": "abort-err",
    },
):
    id: str
    kind: str = ""
    start: str = ""
    end: str = ""
    bck: _Bucket = msgspec.field(default_factory=_Bucket)
    source: _Bucket = msgspec.field(default_factory=_Bucket)
    target: _Bucket = msgspec.field(default_factory=_Bucket)
    message: str = ""
    error: str = ""
    abort_error: str = ""
    stats: _Stats = msgspec.field(default_factory=_Stats)
    aborted: bool = False
    is_idle: bool = False


class _Extraction(msgspec.Struct):
    finished: bool = False
    total_count: int = 0
    extracted_count: int = 0
    extracted_size: int = 0
    extracted_record_count: int = 0


class _Sorting(msgspec.Struct):
    finished: bool = False


class _Creation(msgspec.Struct):
    running: bool = False
    finished: bool = False
    to_create: int = 0
    created_count: int = 0


class _Metrics(msgspec.Struct):
    local_extraction: _Extraction = msgspec.field(default_factory=_Extraction)
    meta_sorting: _Sorting = msgspec.field(default_factory=_Sorting)
    shard_creation: _Creation = msgspec.field(default_factory=_Creation)
    description: str = ""
    warnings: list[str] | None = None
    errors: list[str] | None = None


class _Sort(msgspec.Struct, rename={"source": "src-bck", "target": "dst-bck"}):
    id: str
    source: _Bucket = msgspec.field(default_factory=_Bucket)
    target: _Bucket = msgspec.field(default_factory=_Bucket)
    started_time: str = ""
    finish_time: str = ""
    metrics: _Metrics | None = msgspec.field(default=None, name="Metrics")
    aborted: bool = False
    archived: bool = False


# Not strict: the server writes its 64-bit numbers as strings.
_decode_snaps = msgspec.json.Decoder(dict[str, list[_Snap] | None], strict=False).decode
_decode_sorts = msgspec.json.Decoder(list[_Sort] | None, strict=False).decode
_decode_sort = msgspec.json.Decoder(dict[str, _Sort] | list[None], strict=False).decode


def parse_job_id(reply: Reply, subject: str) -> str:
    """Read the id of a job that was started."""
    text = reply.body.decode("ascii", "replace").strip()
    if not _REPLIED_ID.fullmatch(text):
        raise ProtocolError(f"{subject}: the id of the job is {shown(text)[:_MOST_TEXT]!r}")
    return text


def parse_sorts(reply: Reply) -> list[Job]:
    """Read the list of dSort jobs."""
    try:
        found = _decode_sorts(_text_of(reply)) or []
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ProtocolError(f"sorts: an answer that makes no sense: {error}") from error
    return [_merged_sort([sort]) for sort in found]


def parse_sort(reply: Reply, uuid: str) -> Job:
    """Read what each target says of a dSort job.

    Raises:
        JobNotFound: none knows it, or the build has no dSort and answers with an empty list.
    """
    try:
        found = _decode_sort(_text_of(reply))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ProtocolError(f"job {uuid}: an answer that makes no sense: {error}") from error
    if not isinstance(found, dict) or not found:
        raise JobNotFound(f"job {uuid}: no such job")
    return _merged_sort(list(found.values()))


def parse_jobs(reply: Reply, subject: str) -> list[Job]:
    """Read what each target says of its jobs; dSort's are told in more detail elsewhere."""
    try:
        found = _decode_snaps(_text_of(reply))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ProtocolError(f"{subject}: an answer that makes no sense: {error}") from error
    by_id: dict[str, list[_Snap]] = defaultdict(list)
    for snaps in found.values():
        for snap in snaps or ():
            by_id[snap.id].append(snap)
    return [_merged_snaps(snaps) for snaps in by_id.values()]


def _text_of(reply: Reply) -> str:
    # Messages quote names and contents: they need not be UTF-8.
    return reply.body.decode("utf-8", "replace")


def is_sort(uuid: str) -> bool:
    """Return whether an id is that of a dSort job."""
    return uuid.startswith(SORT_ID)


def _merged_sort(parts: list[_Sort]) -> Job:
    """Put together what targets say; the proxy's list has only the metrics of one of them."""
    first = parts[0]
    metrics = [part.metrics or _Metrics() for part in parts]
    over = all(part.archived for part in parts)
    aborted = any(part.aborted for part in parts)
    extraction = [m.local_extraction for m in metrics]
    creation = [m.shard_creation for m in metrics]
    read = sum(each.extracted_count for each in extraction)
    created = sum(each.created_count for each in creation)
    if any(each.running or each.finished for each in creation):
        step, done, total = "writing shards", created, sum(each.to_create for each in creation)
    elif all(each.finished for each in extraction):
        step, done, total = "sorting", 0, 0
    else:
        # Each target goes through all names, and reads those that are its own.
        step, done, total = "reading shards", read, max(each.total_count for each in extraction)
    state = JobState.RUNNING if not over else JobState.FINISHED
    ended = [moment for part in parts if (moment := _moment(part.finish_time))]
    started = [moment for part in parts if (moment := _moment(part.started_time))]
    return Job(
        id=first.id,
        kind=SORT,
        state=JobState.ABORTED if aborted and over else state,
        source=str(first.source),
        target=str(first.target),
        started=min(started, default=None),
        ended=max(ended, default=None) if over else None,
        step=step,
        done=done,
        total=total,
        size=sum(each.extracted_size for each in extraction),
        created=created,
        counts={
            "shards": read,
            "records": sum(each.extracted_record_count for each in extraction),
        },
        warnings=_texts(text for m in metrics for text in m.warnings or ()),
        errors=_texts(text for m in metrics for text in m.errors or ()),
        description=shown(first.metrics.description if first.metrics else ""),
    )


def _merged_snaps(parts: list[_Snap]) -> Job:
    first = parts[0]
    ends = [_moment(part.end) for part in parts]
    aborted = any(part.aborted for part in parts)
    if all(ends):
        state = JobState.ABORTED if aborted else JobState.FINISHED
    else:
        idle = all(part.is_idle or end for part, end in zip(parts, ends, strict=True))
        state = JobState.IDLE if idle and not aborted else JobState.RUNNING
    counts: dict[str, int] = defaultdict(int)
    for part in parts:
        for name, count in _COUNT.findall(part.message):
            counts[name] += int(count)
    source = str(first.source) or str(first.bck)
    target = str(first.target)
    started = [moment for part in parts if (moment := _moment(part.start))]
    objects = sum(part.stats.objects for part in parts)
    return Job(
        id=first.id,
        kind=first.kind,
        state=state,
        source=source,
        target="" if target == source else target,
        started=min(started, default=None),
        ended=max(end for end in ends if end) if all(ends) else None,
        done=objects,
        size=sum(part.stats.size for part in parts),
        counts=dict(counts),
        errors=_texts(part.error or part.abort_error for part in parts),
    )


def _moment(text: str) -> datetime | None:
    """Read a time of Go's; None for its zero, and for what is none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.year < 1970:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _texts(found: Iterable[str]) -> tuple[str, ...]:
    """Return messages of the cluster, each once, safe to be printed."""
    return tuple(dict.fromkeys(_printable(text)[:_MOST_TEXT] for text in found if text))


def _printable(text: str) -> str:
    return shown("".join(c if c.isprintable() else " " for c in text).strip())


class Questions:
    """Asks the cluster that a client is connected to."""

    def __init__(self, session: Session, *, deadline: float) -> None:
        """Send requests through `session`; a question may take `deadline` seconds in all."""
        self._session = session
        self._retrier = Retrier(deadline=deadline)

    async def _ask(self, request: Request) -> Reply:
        """Send a request until it is answered."""
        return await self._retrier.run(request.subject, lambda: self._send(request))

    async def _send(self, request: Request) -> Reply:
        """Send a request once."""
        transport = self._session.transport

        def work(connections: ConnectionSet) -> Reply:
            return transport.fetch(connections, request)

        return await self._session.run(request.subject, work)


class Jobs(Questions):
    """The jobs of a cluster."""

    async def sorts(self) -> list[Job]:
        """Return all dSort jobs that the cluster remembers; none where its build has no dSort."""
        jobs = parse_sorts(await self._ask(list_sorts()))
        return [job if job.over else await self._detailed(job) for job in jobs]

    async def others(self, kind: str = "") -> list[Job]:
        """Return the jobs of one kind, or of all kinds, that the cluster remembers."""
        request = describe_jobs(kind=kind)
        return parse_jobs(await self._ask(request), request.subject)

    async def describe(self, uuid: str) -> Job:
        """Describe one job.

        Raises:
            JobNotFound: the cluster does not know it.
        """
        if is_sort(uuid):
            return parse_sort(await self._ask(describe_sort(uuid)), uuid)
        request = describe_jobs(uuid=uuid)
        found = parse_jobs(await self._ask(request), request.subject)
        if not found:
            raise JobNotFound(f"job {uuid}: no such job")
        return found[0]

    async def start_sort(self, asked: SortRequest) -> str:
        """Start a dSort job; its description is to be one that no other job has.

        Raises:
            Unsupported: the build of the cluster has no dSort.
        """
        request = start_sort(asked)
        try:
            return parse_job_id(await self._send(request), request.subject)
        except Unavailable:
            for job in await self.sorts():
                if job.description == asked.description:
                    return job.id
            raise

    async def start_index(self, bucket: Bucket, prefix: str) -> str:
        """Start the job that indexes the shards of a bucket, or of what begins with `prefix`.

        Raises:
            Unsupported: the build of the cluster has no such job.
            AlreadyExists: one is running there.
        """
        request = index_shards(bucket, prefix)
        return parse_job_id(await self._send(request), request.subject)

    async def stop(self, uuid: str) -> None:
        """Tell a job to stop; it may take a while until it has.

        Raises:
            JobNotFound: the cluster does not know it, or it has ended.
        """
        job = await self.describe(uuid)  # AIStore says nothing of an id that is unknown
        if job.over:
            raise JobNotFound(f"job {uuid}: it has already ended ({job.state})")
        sort = is_sort(uuid)
        await self._ask(abort_sort(uuid) if sort else stop_job(uuid))

    async def indexed_version(self, bucket: Bucket, key: str) -> tuple[str, int] | None:
        """Return checksum and size of the shard that its index was built from, if it has one."""
        place, name = shard_index_location(bucket, key)
        request = replace(get_range(place, name, 0, HEAD_BYTES), most_reply=HEAD_BYTES)
        try:
            return parse_indexed_version((await self._ask(request)).body)
        except NotFound:
            return None

    async def _detailed(self, job: Job) -> Job:
        """Describe a running job over all targets."""
        try:
            return await self.describe(job.id)
        except JobNotFound:
            return job
