"""dSort: the members of many shards sorted, or shuffled, into shards of a given size.

Supported: plain tars, by template or by list; a prefix is accepted and, as in AIStore, finds nothing.
A specification that makes AIStore's handler panic gets no answer here either.

The rules are AIStore's. A record is what has one name up to the first dot of its last component, in
one shard: the same name in two shards is two records. Of two members with one name, the later one
stays. Sorting by `md5` sorts by name, since AIStore appends the checksum of nothing to the name.
"""

import hashlib
import os
import random
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from aisfs.server.api import archives
from aisfs.server.api.jobs.buckets import BRACES, MOST_NAMES, count_names, expand
from aisfs.server.api.jobs.registry import (
    DSORT,
    NEVER,
    Job,
    JobFailed,
    Registry,
    bucket_json,
    keep_latest,
    new_id,
    written,
)
from aisfs.server.api.objects import Objects
from aisfs.server.failures import Failure, unsupported, uri_of
from aisfs.server.messages import Reply, Request, json_reply, text_reply
from aisfs.server.storage.bucket import Bucket, check_key
from aisfs.server.storage.objects import Storage

Key = bytes | int | float | None
Reaction = Callable[[str], None]
"""Does what is configured for an event: nothing, a warning, or an error that ends the job."""

KINDS = ("", "alphanumeric", "md5", "shuffle", "content", "none")
KEY_TYPES = ("int", "float", "string")
_NO_MD5 = hashlib.md5(usedforsecurity=False).digest()


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How records are ordered."""

    kind: str
    decreasing: bool = False
    seed: str = ""
    extension: str = ""
    key_type: str = "string"


@dataclass(frozen=True, slots=True)
class Member:
    """A member, and the shard that has it."""

    shard: bytes
    info: tarfile.TarInfo


@dataclass(slots=True)
class Record:
    """Members whose names differ only in the extension."""

    name: str
    key: Key = None
    parts: dict[str, Member] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of the contents."""
        return sum(member.info.size for member in self.parts.values())


def extension_of(name: str) -> str:
    """Return what follows the first dot of the last component, with the dot."""
    base = name.rpartition("/")[2]
    _, dot, rest = base.partition(".")
    return dot + rest


def extract(bucket: Bucket, key: bytes, algorithm: Algorithm, duplicate: Reaction) -> list[Record]:
    """Return the records of one shard.

    Raises:
        JobFailed: it is damaged, or has a name or a key that cannot be.
    """
    records: dict[str, Record] = {}
    try:
        with (
            os.fdopen(bucket.open(key), "rb") as file,
            archives.open_tar(file, archives.Format.TAR) as tar,
        ):
            for info in tar:
                if info.isreg():
                    _add(records, key, info, tar, algorithm, duplicate)
    except (Failure, *archives.BROKEN) as error:
        where = uri_of(bucket.name, key)
        raise JobFailed(f"failed to extract shard {where}: archive/tar: {error}") from error
    return list(records.values())


def _add(
    records: dict[str, Record],
    shard: bytes,
    info: tarfile.TarInfo,
    tar: tarfile.TarFile,
    algorithm: Algorithm,
    duplicate: Reaction,
) -> None:
    if info.name.startswith("/") or ".." in info.name.split("/"):
        raise JobFailed(f'invalid archive record name "{info.name}"')
    extension = extension_of(info.name)
    name = info.name.removesuffix(extension) if extension else info.name
    record = records.setdefault(name, Record(name))
    if record.parts.pop(extension, None) is not None:
        duplicate(f'record "{info.name}" is duplicated')
    if algorithm.kind != "content":
        whole = info.name.encode("utf-8", "surrogateescape")
        key: Key = whole + _NO_MD5 if algorithm.kind == "md5" else whole
        record.key = key if record.key is None else record.key
    elif extension == algorithm.extension:
        content = tar.extractfile(info)
        assert content is not None, "a regular file has a content"
        record.key = _key(content.read(), algorithm.key_type)
    record.parts[extension] = Member(shard, info)


def _key(content: bytes, kind: str) -> Key:
    if kind == "string":
        return content
    text = content.decode("utf-8", "replace")
    try:
        if text != text.strip():  # Go takes no blanks, and a label often ends in a line break
            raise ValueError
        return int(text) if kind == "int" else float(text)
    except ValueError as error:
        parser = "ParseInt" if kind == "int" else "ParseFloat"
        raise JobFailed(f'strconv.{parser}: parsing "{text[:40]}": invalid syntax') from error


def order(records: list[Record], algorithm: Algorithm) -> None:
    """Put records into the requested order.

    Raises:
        JobFailed: one has no key.
    """
    if algorithm.kind == "shuffle":
        random.Random(algorithm.seed or None).shuffle(records)
    elif algorithm.kind != "none":
        for record in records:
            if record.key is None and len(records) > 1:
                raise JobFailed(f'key is missing for "{record.name}"')
        records.sort(key=lambda record: record.key, reverse=algorithm.decreasing)  # type: ignore[arg-type,return-value]


def split(
    records: list[Record], limit: int, names: Iterator[str], count: int
) -> list[tuple[str, list[Record]]]:
    """Return names and records of the new shards; one is full when its contents reach the limit.

    Raises:
        JobFailed: there are more shards than names, which are `count`; none is made then.
    """
    if limit <= 0:
        limit = -(-sum(record.size for record in records) // count)
    shards: list[tuple[str, list[Record]]] = []
    begun: list[Record] = []
    size = 0
    for at, record in enumerate(records):
        begun.append(record)
        size += record.size
        if size < limit and at < len(records) - 1:
            continue
        if (name := next(names, None)) is None:
            text = f"number of shards to be created exceeds expected number of shards ({count})"
            raise JobFailed(text)
        shards.append((name, begun))
        begun, size = [], 0
    return shards


def write_shard(bucket: Bucket, records: list[Record], work: Path) -> None:
    """Write the members of records, which are in the shards of `bucket`, into a tar."""
    with tarfile.open(work, "w", format=tarfile.PAX_FORMAT) as tar:
        for record in records:
            for member in record.parts.values():
                with os.fdopen(bucket.open(member.shard), "rb") as file:
                    file.seek(member.info.offset_data)
                    tar.addfile(member.info, file)


_NOT_BUILT = "dsort not enabled (build with -tags=dsort)\n"
_UNITS = " KMGT"
_REACTIONS = ("", "ignore", "warn", "abort")


class _Place(msgspec.Struct):
    name: str = ""
    provider: str = "ais"


class _Selection(msgspec.Struct):
    template: str = ""
    objnames: list[str] | None = None


class _Algorithm(msgspec.Struct):
    kind: str = ""
    decreasing: bool = False
    seed: str = ""
    extension: str = ""
    content_key_type: str = ""


class _Config(msgspec.Struct):
    duplicated_records: str = ""
    missing_shards: str = ""


class Spec(msgspec.Struct):
    """The request; fields that the server does not use are ignored."""

    input_bck: _Place = msgspec.field(default_factory=_Place)
    output_bck: _Place = msgspec.field(default_factory=_Place)
    input_format: _Selection = msgspec.field(default_factory=_Selection)
    output_format: str = ""
    output_shard_size: str = ""
    input_extension: str = ""
    output_extension: str = ""
    algorithm: _Algorithm = msgspec.field(default_factory=_Algorithm)
    description: str = ""
    dsorter_type: str = ""
    dry_run: bool = False
    config: _Config = msgspec.field(default_factory=_Config, name="Config")


@dataclass(slots=True)
class _Phase:
    started: int = 0
    ended: int = 0

    def times(self) -> dict[str, Any]:
        """Return the part that all phases have."""
        stop = self.ended or (time.time_ns() if self.started else 0)
        return {
            "started_time": written(self.started),
            "end_time": written(self.ended),
            "elapsed": stop - self.started,
            "running": bool(self.started and not self.ended),
            "finished": bool(self.ended),
        }


@dataclass(slots=True)
class _Sort:
    """One job and what it has done so far."""

    job: Job
    spec: Spec
    extraction: _Phase = field(default_factory=_Phase)
    sorting: _Phase = field(default_factory=_Phase)
    creation: _Phase = field(default_factory=_Phase)
    total: int = 0
    records: int = 0
    to_create: int = 0
    created: int = 0
    warnings: list[str] = field(default_factory=list)

    def react(self, reaction: str, text: str) -> None:
        """Do what is configured for an event."""
        if reaction == "abort":
            raise JobFailed(text)
        if reaction == "warn":
            self.warnings.append(text)

    def duplicated(self, text: str) -> None:
        """Do what is configured for two members with one name."""
        self.react(self.spec.config.duplicated_records, text)

    def metrics(self) -> dict[str, Any]:
        """Return statistics and state."""
        extracted = {"extracted_count": self.job.objects, "extracted_size": self.job.size}
        return {
            "local_extraction": {
                **self.extraction.times(),
                **_texts(total_count=self.total, extracted_record_count=self.records, **extracted),
                **_texts(extracted_to_disk_count=0, extracted_to_disk_size=0),
            },
            "meta_sorting": {**self.sorting.times()},
            "shard_creation": {
                **self.creation.times(),
                **_texts(to_create=self.to_create, created_count=self.created),
                **_texts(moved_shard_count=0),
            },
            **({"description": self.spec.description} if self.spec.description else {}),
            **({"warnings": self.warnings} if self.warnings else {}),
            **({"errors": self.job.errors} if self.job.errors else {}),
            "aborted": self.job.aborted,
            "archived": bool(self.job.ended),
        }

    def info(self) -> dict[str, Any]:
        """Return AIStore's report."""
        return {
            "id": self.job.uuid,
            "src-bck": bucket_json(self.spec.input_bck.name),
            "dst-bck": bucket_json(self.spec.output_bck.name),
            "started_time": written(self.extraction.started),
            "finish_time": written(self.creation.ended) if self.creation.ended else NEVER,
            "started_meta_sorting": self.extraction.times()["elapsed"],
            "started_shard_creation": self.sorting.times()["elapsed"],
            "finished_shard_creation": self.creation.times()["elapsed"],
            **_texts(**{"loc-objs": self.job.objects, "loc-bytes": self.job.size}),
            "Metrics": self.metrics(),
            "aborted": self.job.aborted,
            "archived": bool(self.job.ended),
        }


class Sorts:
    """Runs sorts and remembers the latest ones."""

    def __init__(
        self, storage: Storage, objects: Objects, registry: Registry, node_id: str
    ) -> None:
        self._storage = storage
        self._objects = objects
        self._registry = registry
        self._node_id = node_id
        self._sorts: dict[str, _Sort] = {}

    def serve(self, request: Request, rest: str) -> Reply:
        """Start a sort, describe one or all, abort or forget one."""
        if DSORT in self._registry.rules.lacking:
            request.drain()
            # Even the query about one job gets the empty list.
            empty = Reply(headers=[("Content-Type", "application/json")], body=b"[]")
            return empty if request.method == "GET" else text_reply(_NOT_BUILT, 501)
        if rest and not (request.method == "DELETE" and rest == "abort"):
            text = f"invalid request URI: '{request.method} {request.path}' from {request.remote}"
            raise Failure(400, text)
        if request.method == "POST":
            return self._start(request)
        asked = request.query.get("uuid", "")
        if request.method == "GET":
            return self._describe(request, asked)
        request.drain()
        sort = self._sorts.get(asked)
        return self._abort(sort, asked) if rest else self._remove(sort, asked)

    def _describe(self, request: Request, asked: str) -> Reply:
        if asked:
            sort = self._sorts.get(asked)
            if sort is None:
                raise Failure(404, f"%!s(<nil>): [dsort] {asked} does not exist")
            return json_reply({self._node_id: sort.info()}, "text/plain")
        wanted = archives.matcher("regexp", request.query.get("regex", ""))
        active = request.query.get("only_active") == "true"
        found = [
            sort.info()
            for _, sort in sorted(self._sorts.items(), key=lambda pair: pair[0])
            if wanted(sort.spec.description) and not (active and sort.job.ended)
        ]
        return json_reply(found, "text/plain")

    def _abort(self, sort: _Sort | None, asked: str) -> Reply:
        if sort is None:
            text = f"{{role}}[{{node}}]: dsort job {asked} does not exist"
            raise Failure(404, text, "ErrNotFound")
        if sort.job.ended:
            raise Failure(410, f"t[{{node}}]: [dsort] {asked} is already archived", node="p")
        if not sort.job.aborted:
            sort.job.errors.append(f"t[{self._node_id}]: [dsort] {asked} aborted")
        sort.job.abort()
        return Reply()

    def _remove(self, sort: _Sort | None, asked: str) -> Reply:
        if sort is None:
            raise Failure(404, f'invalid request: job "{asked}" does not exist')
        if not sort.job.ended:
            raise Failure(400, f"dsort process {asked} still in progress and cannot be removed")
        self._sorts.pop(asked, None)
        return Reply()

    def _start(self, request: Request) -> Reply:
        body = request.body()
        try:
            spec = msgspec.json.decode(body, type=Spec)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            text = f"p[{{node}}]: failed to unmarshal dsort request, err: {error}"
            raise Failure(400, text, "wrapError") from error
        if not spec.input_bck.name:
            raise Failure(400, '[dsort] parse-spec: "input_bck" missing source bucket')
        _check(spec)
        if not {spec.input_extension, spec.output_extension} <= {".tar", ""}:
            raise unsupported("sorting anything but .tar")
        spec.input_extension = spec.output_extension = ".tar"
        source = self._storage.bucket(spec.input_bck.name)
        if not spec.dsorter_type:
            raise Failure(400, "[dsort]: dsorter type is not set")
        spec.output_bck.name = spec.output_bck.name or source.name
        if spec.output_bck.name not in self._storage.names():
            self._storage.create(spec.output_bck.name, {})
        target = self._storage.bucket(spec.output_bck.name)
        job = Job(DSORT, source.name, target.name, uuid=f"srt-{new_id()}")
        sort = _Sort(job, spec)
        job.extended = sort.metrics
        keep_latest(self._sorts, job.uuid, sort)
        self._registry.start(job, lambda: self._run(sort, source, target))
        return text_reply(job.uuid)

    # In the job's thread -----------------------------------------------------------------------

    def _run(self, sort: _Sort, source: Bucket, target: Bucket) -> None:
        found = self._extract(sort, source)
        sort.sorting.started = time.time_ns()
        order(found, _algorithm(sort.spec))
        sort.sorting.ended = time.time_ns()
        self._create(sort, found, source, target)

    def _extract(self, sort: _Sort, source: Bucket) -> list[Record]:
        spec, job, found = sort.spec, sort.job, list[Record]()
        sort.extraction.started = time.time_ns()
        sort.total = _count(spec)
        for name in _inputs(spec):
            self._registry.step(job)
            key = os.fsencode(name)
            state = source.find(key)
            if state is None:
                text = f'shard.do: "{uri_of(source.name, key)}" does not exist'
                sort.react(spec.config.missing_shards, text)
                continue
            with self._storage.locks.reading((source.name, key)):
                source.load(key, state)
                shard = extract(source, key, _algorithm(spec), sort.duplicated)
            found += shard
            job.objects += 1
            job.size += sum(record.size for record in shard)
            sort.records += sum(len(record.parts) for record in shard)
        sort.extraction.ended = time.time_ns()
        return found

    def _create(self, sort: _Sort, found: list[Record], source: Bucket, target: Bucket) -> None:
        spec = sort.spec
        count = count_names(spec.output_format)
        limit = _bytes(spec.output_shard_size)
        shards = split(found, limit, expand(spec.output_format), count)
        sort.creation.started, sort.to_create = time.time_ns(), len(shards)
        for name, members in shards:
            self._registry.step(sort.job)
            key = os.fsencode(name if name.endswith(".tar") else name + spec.output_extension)
            check_key(key)
            with self._storage.work_file() as work:
                write_shard(source, members, work)
                if not spec.dry_run:
                    self._objects.publish(target, key, work)
            sort.created += 1
        sort.creation.ended = time.time_ns()


def _check(spec: Spec) -> None:
    """Check what AIStore's handler of a specification would fail on.

    Raises:
        Failure: something in it cannot be.
    """
    algorithm, reactions = (
        spec.algorithm,
        (spec.config.missing_shards, spec.config.duplicated_records),
    )
    by_content = algorithm.kind == "content"
    wrong = {
        f"algorithm kind {algorithm.kind!r}": algorithm.kind not in KINDS,
        f"seed {algorithm.seed!r}": bool(algorithm.seed) and not algorithm.seed.isdecimal(),
        f"extension {algorithm.extension!r}": by_content
        and not algorithm.extension.startswith("."),
        f"content_key_type {algorithm.content_key_type!r}": by_content
        and algorithm.content_key_type not in KEY_TYPES,
        f"output_format {spec.output_format!r}": not BRACES.search(spec.output_format),
        f"output_shard_size {spec.output_shard_size!r}": not _is_size(spec.output_shard_size),
        f"reactions {reactions!r}": not set(reactions) <= set(_REACTIONS),
        f"more than {MOST_NAMES} shards": _count(spec) > MOST_NAMES,
    }
    for what, is_wrong in wrong.items():
        if is_wrong:
            raise Failure(400, f"[dsort] parse-spec: invalid {what}")


def _is_size(text: str) -> bool:
    try:
        _bytes(text)
    except ValueError:
        return False
    return True


def _algorithm(spec: Spec) -> Algorithm:
    asked = spec.algorithm
    return Algorithm(
        asked.kind, asked.decreasing, asked.seed, asked.extension, asked.content_key_type
    )


def _count(spec: Spec) -> int:
    """Return how many shards a specification names."""
    chosen = spec.input_format
    if chosen.objnames:
        return len(chosen.objnames)
    return count_names(chosen.template) if BRACES.search(chosen.template) else 0


def _inputs(spec: Spec) -> Iterator[str]:
    chosen = spec.input_format
    if chosen.objnames:
        yield from chosen.objnames
    elif BRACES.search(chosen.template):  # a prefix is not implemented there
        for name in expand(chosen.template):
            yield name if name.endswith(".tar") else name + spec.input_extension


def _bytes(text: str) -> int:
    """Read a size as AIStore does; ValueError for what is none."""
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in _UNITS[1:] else ""
    return int(number.removesuffix(unit) or ("0" if not text.strip() else "x")) << (
        10 * _UNITS.index(unit or " ")
    )


def _texts(**numbers: int) -> dict[str, str]:
    """Write 64-bit numbers as AIStore does."""
    return {name: str(number) for name, number in numbers.items()}
