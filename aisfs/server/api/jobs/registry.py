"""The jobs of a server: started, described, stopped.

As in AIStore, a job that walks over many objects is still running when its id is returned, and its
errors are told by its state alone. Deleting, copying and archiving finish within their request.
"""

import logging
import re
import secrets
import sqlite3
import string
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from aisfs.server.failures import Failure, unsupported
from aisfs.server.messages import Reply, Request, json_reply, text_reply

log = logging.getLogger(__name__)

T = TypeVar("T")

JOBS_KEPT = 1000
NEVER = "0001-01-01T00:00:00Z"
"""How Go writes the end of what is still running."""
DSORT, INDEX_SHARD, MOVE, SUMMARY = "dsort", "index-shard", "move-bck", "summary-bck"
ETL, ETL_LIST = "etl-inline", "etl-listrange"
_KINDS = {
    **dict.fromkeys(("delete-listrange", "copy-bck", "copy-listrange", "archive", "list"), ""),
    **dict.fromkeys(("get-batch", "lru", "rebalance", "prefetch-listrange", "evict-listrange"), ""),
    DSORT: "",
    INDEX_SHARD: "shard-index",
    MOVE: "rename-bucket",
    SUMMARY: "summary",
    ETL: "",
    "etl-bck": "etl-bucket",
    ETL_LIST: "etl-objects",
}
"""Kinds of jobs that a client may name, each with its other name, if it has one."""
_NOT_OFFERED = frozenset(
    {
        *("start", "set-config", "reset-config", "reset-stats", "rotate-logs", "reload-creds"),
        *("shutdown", "decommission", "start-maintenance", "stop-maintenance", "clear-lcache"),
        *("decommission-node", "shutdown-node", "rm-unsafe"),
    }
)
"""What AIStore's cluster does on request besides stopping jobs."""
ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]{7,30}[A-Za-z0-9]")
_LETTERS = string.ascii_letters + string.digits
_USER_ABORT = "user abort"
IDLING = frozenset({"copy-listrange", "archive", "list", "get-batch"})
"""Kinds that wait for more of the same work when they are done, and end only later."""
_IDLE_NS = 20 * 10**9
"""How long they wait."""


class Aborted(Exception):
    """A job was told to stop."""


class JobFailed(Exception):
    """A job cannot go on."""


@dataclass(slots=True)
class Job:
    """One job; its thread writes, requests read."""

    kind: str
    source: str = ""
    """The bucket it works on."""
    target: str = ""
    """The bucket it writes to, if that is another one."""
    uuid: str = field(default_factory=lambda: new_id())
    started: int = field(default_factory=time.time_ns)
    ended: int = 0
    """When it ended, in nanoseconds, or will end if it is idle until then; 0 while it has work."""
    aborted: bool = False
    errors: list[str] = field(default_factory=list)
    objects: int = 0
    size: int = 0
    describe: Callable[[], str] = str
    """Returns what it has done so far, as AIStore's control message."""
    extended: Callable[[], dict[str, Any]] | None = None
    """Returns statistics of its kind."""
    prefix: str = ""
    """What of the bucket it works on."""
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set once it is to stop."""

    @property
    def error(self) -> str:
        """All errors in one text."""
        if len(self.errors) < 2:
            return "".join(self.errors)
        more = len(self.errors) - 1
        return f"{self.errors[0]} (and {more} more error{'s' if more > 1 else ''})"

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return 0 < self.ended <= time.time_ns()

    def did(self, objects: int, size: int) -> None:
        """Count work of one that idles between requests; its time begins anew."""
        self.objects += objects
        self.size += size
        self.ended = time.time_ns() + _IDLE_NS

    def abort(self) -> None:
        """Tell it to stop; what it has done so far stays."""
        if not self.over:
            self.aborted = True
            self.stopped.set()
            if self.ended:  # it is idle: nothing else ends it
                self.ended = time.time_ns()

    def status(self) -> dict[str, Any]:
        """Return the short form of its state."""
        short = {"kind": self.kind, "uuid": self.uuid, "err": self.error}
        return {**short, "end_time": self.ended if self.over else 0, "aborted": self.aborted}

    def snap(self) -> dict[str, Any]:
        """Return what a target tells of it."""
        counts = dict.fromkeys(("out-objs", "out-bytes", "in-objs", "in-bytes"), "0")
        found = {
            "id": self.uuid,
            "kind": self.kind,
            "start-time": written(self.started),
            "end-time": written(self.ended if self.over else 0),
            "bck": bucket_json(self.target or self.source),
            "ctlmsg": self.describe(),
            "err": self.error,
            "abort-err": _USER_ABORT if self.aborted else "",
            "stats": {"loc-objs": str(self.objects), "loc-bytes": str(self.size), **counts},
            "aborted": self.aborted,
            "is_idle": bool(self.ended),
        }
        if self.target:
            found |= {"src-bck": bucket_json(self.source), "dst-bck": bucket_json(self.target)}
        return found | ({"ext": self.extended()} if self.extended else {})


@dataclass(frozen=True, slots=True)
class JobRules:
    """What tests change about jobs."""

    lacking: frozenset[str] = frozenset()
    """Kinds that this build of the server does not know."""
    before_step: Callable[[Job], None] = lambda job: None
    """Called in the job's thread before each shard; may wait, but not once the job is stopped."""


class Registry:
    """Runs jobs, and remembers the latest ones."""

    def __init__(self, node_id: str, rules: JobRules) -> None:
        self.rules = rules
        self._node_id = node_id
        self._jobs: dict[str, Job] = {}

    def finished(self, kind: str, error: str = "", objects: int = 0, size: int = 0) -> Reply:
        """Remember a finished job that went over so many objects; the reply is its id."""
        job = Job(kind, errors=[error] if error else [], ended=time.time_ns())
        job.objects, job.size = objects, size
        if kind in IDLING:
            job.did(0, 0)
        keep_latest(self._jobs, job.uuid, job)
        return text_reply(job.uuid)

    def idling(self, kind: str, source: str) -> Job:
        """Return the job of a kind that waits for more work on a bucket, or begin one."""
        for job in self.running(kind):
            if job.source == source and not job.aborted:
                return job
        job = Job(kind, source)
        job.did(0, 0)
        keep_latest(self._jobs, job.uuid, job)
        return job

    def start(self, job: Job, work: Callable[[], None]) -> None:
        """Run a job in a thread of its own."""
        keep_latest(self._jobs, job.uuid, job)
        name = f"job {job.uuid}"
        threading.Thread(target=self._run, args=(job, work), name=name, daemon=True).start()

    def step(self, job: Job) -> None:
        """Begin the next step of a job.

        Raises:
            Aborted: it was told to stop.
        """
        self.rules.before_step(job)
        if job.stopped.is_set():
            raise Aborted

    def find(self, uuid: str) -> Job | None:
        """Return the job of this id, if it is remembered."""
        return self._jobs.get(uuid)

    def running(self, kind: str) -> list[Job]:
        """Return the running jobs of a kind."""
        return [job for job in list(self._jobs.values()) if job.kind == kind and not job.over]

    @staticmethod
    def _run(job: Job, work: Callable[[], None]) -> None:
        try:
            work()
        except Aborted:
            pass
        except (JobFailed, Failure, OSError, sqlite3.Error, ValueError) as error:
            log.info("%s[%s] failed: %s", job.kind, job.uuid, error)
            job.errors.append(str(error))
            job.aborted = True
        finally:
            job.ended = time.time_ns()

    # Requests -------------------------------------------------------------------------------

    def what(self, request: Request, asked: str) -> Reply:
        """Answer one of the queries about jobs."""
        message = _lowered(request.action())
        uuid, kind = str(message.get("id") or ""), _kind(str(message.get("kind") or ""))
        if asked == "status":
            return self._status(uuid, kind)
        jobs = self._matching(uuid, kind, message)
        if asked == "status_all":
            return json_reply([job.status() for job in jobs if job.kind != DSORT], "text/plain")
        if asked == "running_all":
            return json_reply([f"{job.kind}[{job.uuid}]" for job in jobs if not job.over])
        return json_reply({self._node_id: [job.snap() for job in jobs]})

    def _status(self, uuid: str, kind: str) -> Reply:
        if not uuid and not kind:
            raise Failure(400, "invalid x-")
        found = [job for job in list(self._jobs.values()) if not kind or job.kind == kind]
        job = self._jobs.get(uuid) if uuid else next(iter(reversed(found)), None)
        # The nodes that would know are not told of some kinds.
        if job is None or job.kind in IDLING | {DSORT, SUMMARY}:
            raise Failure(404, f"{{role}}[{{node}}]: x-[{uuid}] does not exist", "ErrNotFound")
        if kind and job.kind != kind:
            raise Failure(400, f"kind mismatch: x-{kind}[{uuid}], expected kind={job.kind}")
        return json_reply(job.status(), "text/plain")

    def _matching(self, uuid: str, kind: str, message: dict[str, Any]) -> list[Job]:
        if uuid and not ID.fullmatch(uuid):
            raise Failure(400, f'invalid xaction (job) UUID "{uuid}"', node="t")
        if kind and (kind not in _KINDS or kind in self.rules.lacking - {DSORT}):
            raise Failure(400, f'invalid xaction (job) kind "{kind}"', node="t")
        active = message.get("show_active")
        place = message.get("bck")
        bucket = str(place.get("name") or "") if isinstance(place, dict) else ""
        jobs = list(self._jobs.values())
        if uuid:
            jobs = [job for job in jobs if job.uuid == uuid and (not kind or job.kind == kind)]
            if not jobs or (active is True and jobs[0].over):
                raise Failure(404, f"xaction ID={uuid} not found", "ErrXactNotFound", node="t")
        return [
            job
            for job in jobs
            if (not kind or job.kind == kind)
            and (not bucket or bucket in (job.source, job.target))
            and (active is not True or not job.over)
        ]

    def change(self, request: Request) -> Reply:
        """Stop jobs; of an id that is unknown AIStore says nothing."""
        if more := request.path.strip("/").partition("v1/cluster/")[2]:
            raise unsupported(f"PUT /v1/cluster/{more}")
        message = request.action()
        action, value = message.get("action"), message.get("value")
        if action in _NOT_OFFERED:
            raise unsupported(f"action {action}")
        if action != "stop":
            raise Failure(400, f'invalid action "{action}"')
        asked = _lowered(value if isinstance(value, dict) else {})
        uuid, kind = str(asked.get("id") or ""), _kind(str(asked.get("kind") or ""))
        if kind and kind not in _KINDS:
            raise Failure(400, f'invalid xaction (job) kind "{kind}": x-{kind}', node="t")
        if uuid and not ID.fullmatch(uuid):
            raise Failure(400, f'invalid xaction (job) UUID "{uuid}": x-[{uuid}]', node="t")
        if not uuid and not kind:
            text = "cannot stop xaction given 'x-' - expecting a valid kind and/or UUID"
            raise Failure(400, text, node="t")
        for job in self.running(kind) if not uuid else filter(None, [self._jobs.get(uuid)]):
            job.abort()
        return Reply()


def keep_latest(known: dict[str, T], uuid: str, value: T) -> None:
    """Add a job to those that are remembered; the oldest go.

    Requests read a plain dictionary in single steps, while others add to it.
    """
    known[uuid] = value
    for old in list(known)[:-JOBS_KEPT]:
        known.pop(old, None)


def new_id() -> str:
    """Return a new id of a job."""
    first = secrets.choice(string.ascii_letters)
    return first + "".join(secrets.choice(_LETTERS) for _ in range(8))


def written(time_ns: int) -> str:
    """Return a time as Go writes it."""
    if not time_ns:
        return NEVER
    moment = datetime.fromtimestamp(time_ns // 10**9, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns % 10**9:09d}Z"


def bucket_json(name: str) -> dict[str, Any]:
    """Return a bucket as AIStore writes it."""
    space = {"uuid": "", "name": ""}
    return {"name": name, "provider": "ais" if name else "", "namespace": space}


def _lowered(message: dict[str, Any]) -> dict[str, Any]:
    return {name.lower(): value for name, value in message.items()}


def _kind(name: str) -> str:
    """Return the kind that this name or other name means."""
    return next((kind for kind, other in _KINDS.items() if name and other == name), name)
