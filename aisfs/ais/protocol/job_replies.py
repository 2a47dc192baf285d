"""What the cluster says of its jobs, as values. Pure, like `requests`.

Each target tells what it has done itself; here these are put together. Times are text as Go writes
it, numbers are strings, and a list without entries may be `null`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from aisfs.ais.protocol.job_requests import SORT_ID
from aisfs.errors import JobNotFound, ProtocolError
from aisfs.http.exchange import Reply
from aisfs.model import Provider
from aisfs.redaction import shown

SORT = "dsort"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_,-]{0,99}")
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
    if not _ID.fullmatch(text):
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
