"""dSort: the members of many shards sorted, or shuffled, into shards of a given size.

A job is finished before its id is returned. Supported: plain tars, sorted by name or shuffled.
"""

import os
import random
import re
import secrets
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from cachetools import FIFOCache

from aisfs.server.api import archives
from aisfs.server.api.cluster import JOBS_KEPT
from aisfs.server.api.jobs import MOST_NAMES, count_names, expand
from aisfs.server.api.objects import Objects
from aisfs.server.failures import Failure, unsupported, uri_of
from aisfs.server.messages import Reply, Request, json_reply, text_reply
from aisfs.server.names import check_key
from aisfs.server.storage.bucket import Bucket
from aisfs.server.storage.objects import Storage

_SIZE = re.compile(r"(\d{1,15})\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_OURS = {"provider": "ais", "namespace": {"uuid": "", "name": ""}}


class _Place(msgspec.Struct):
    name: str


class _Template(msgspec.Struct):
    template: str


class _Algorithm(msgspec.Struct):
    kind: str = "alphanumeric"
    decreasing: bool = False
    seed: str = ""


class Spec(msgspec.Struct):
    """The request; fields that the server does not use are ignored."""

    input_bck: _Place
    output_bck: _Place
    input_format: _Template
    output_format: str
    output_shard_size: str
    input_extension: str
    output_extension: str
    algorithm: _Algorithm = msgspec.field(default_factory=_Algorithm)
    description: str = ""


@dataclass(frozen=True, slots=True)
class _Member:
    shard: bytes
    info: tarfile.TarInfo


@dataclass(frozen=True, slots=True)
class _Record:
    """Members whose names differ only in the extension, in the order they were found."""

    parts: dict[str, _Member]

    @property
    def members(self) -> list[_Member]:
        return list(self.parts.values())


class Sorts:
    """Runs sorts and remembers the latest ones."""

    def __init__(self, storage: Storage, objects: Objects, node_id: str) -> None:
        self._storage = storage
        self._objects = objects
        self._node_id = node_id
        self._done = FIFOCache[str, dict[str, Any]](JOBS_KEPT)

    def serve(self, request: Request, rest: str) -> Reply:
        """Run a sort, describe one or all, or forget one."""
        asked = request.query.get("uuid", "")
        if rest:
            raise unsupported(f"{request.method} {request.path}")
        if request.method == "POST":
            return self._start(request)
        if request.method == "GET" and not asked:
            wanted = archives.matcher("regexp", request.query.get("regex", ""))
            found = [job for job in self._done.values() if wanted(job["Metrics"]["description"])]
            jobs = [{k: v for k, v in job.items() if k != "Metrics"} for job in found]
            return json_reply(jobs, "text/plain")
        if asked not in self._done:
            raise Failure(404, f"%!s(<nil>): [dsort] {asked} does not exist")
        if request.method == "GET":
            return json_reply({self._node_id: self._done[asked]}, "text/plain")
        request.drain()
        self._done.pop(asked, None)
        return Reply()

    def _start(self, request: Request) -> Reply:
        try:
            spec = msgspec.json.decode(request.body(), type=Spec)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            text = f"p[{{node}}]: failed to unmarshal dsort request, err: {error}"
            raise Failure(400, text, "wrapError") from error
        if {spec.input_extension, spec.output_extension} != {".tar"}:
            raise unsupported("sorting anything but .tar")
        source = self._storage.bucket(spec.input_bck.name)
        target = self._storage.bucket(spec.output_bck.name)
        began = time.time_ns()
        shards, records = _extract(source, spec)
        _order(records, spec.algorithm)
        created = 0
        names = expand(spec.output_format)
        for members in _split(records, _bytes(spec.output_shard_size)):
            if (name := next(names, None)) is None:
                raise Failure(400, f"output_format {spec.output_format!r} has too few names")
            self._write(source, target, os.fsencode(name + spec.output_extension), members)
            created += 1
        job = _info(spec, began, shards, [m for r in records for m in r.members], created)
        self._done[job["id"]] = job
        return text_reply(job["id"])

    def _write(self, source: Bucket, target: Bucket, key: bytes, members: list[_Member]) -> None:
        check_key(key)
        with self._storage.work_file() as work:
            with tarfile.open(work, "w", format=tarfile.PAX_FORMAT) as tar:
                for member in members:
                    with os.fdopen(source.open(member.shard), "rb") as file:
                        file.seek(member.info.offset_data)
                        tar.addfile(member.info, file)
            self._objects.publish(target, key, work)


def _extract(bucket: Bucket, spec: Spec) -> tuple[int, list[_Record]]:
    """Return how many shards exist, and their records; the first of equal members counts."""
    shards, records = 0, dict[str, _Record]()
    if count_names(spec.input_format.template) > MOST_NAMES:
        raise Failure(400, f"the template stands for more than {MOST_NAMES:,} names")
    for name in expand(spec.input_format.template):
        key = os.fsencode(name + spec.input_extension)
        if (found := bucket.find(key)) is None:
            continue  # AIStore warns by default, and continues
        bucket.load(key, found)
        shards += 1
        for info in _members(bucket, key):
            stem, dot, extension = info.name.rpartition(".")
            record = records.setdefault(stem if dot else info.name, _Record({}))
            record.parts.setdefault(dot + extension, _Member(key, info))
    ordered = sorted(records.items())
    return shards, [record for _, record in ordered]


def _members(bucket: Bucket, key: bytes) -> list[tarfile.TarInfo]:
    with (
        os.fdopen(bucket.open(key), "rb") as file,
        archives.open_tar(file, archives.Format.TAR) as tar,
    ):
        try:
            return [info for info in tar if info.isreg()]
        except archives.BROKEN as error:
            raise Failure(400, f"{uri_of(bucket.name, key)}: archive/tar: {error}") from error


def _order(records: list[_Record], algorithm: _Algorithm) -> None:
    """Put records, which are sorted by name, into the requested order."""
    if algorithm.kind == "shuffle":
        random.Random(algorithm.seed or None).shuffle(records)
    elif algorithm.kind not in ("", "none", "alphanumeric"):
        raise unsupported(f"sorting by {algorithm.kind}")
    elif algorithm.decreasing:
        records.reverse()


def _split(records: list[_Record], limit: int) -> Iterator[list[_Member]]:
    """Yield the members of each new shard; it is full when its contents reach the limit."""
    members: list[_Member] = []
    size = 0
    for record in records:
        members += record.members
        size += sum(member.info.size for member in record.members)
        if size >= limit:
            yield members
            members, size = [], 0
    if members:
        yield members


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise Failure(400, f"invalid output_shard_size {text!r}")
    return int(found[1]) << (10 * " KMGT".index(found[2].upper() or " "))


def _info(
    spec: Spec, began: int, shards: int, members: list[_Member], created: int
) -> dict[str, Any]:
    """Return AIStore's report on a finished job."""
    now = time.time_ns()
    size = sum(member.info.size for member in members)
    phase = {"started_time": _time(began), "end_time": _time(now), "finished": True}
    return {
        "id": f"srt-{secrets.token_urlsafe(6)}",
        "src-bck": {"name": spec.input_bck.name, **_OURS},
        "dst-bck": {"name": spec.output_bck.name, **_OURS},
        "started_time": _time(began),
        "finish_time": _time(now),
        "started_meta_sorting": began,
        "started_shard_creation": began,
        "finished_shard_creation": now,
        "loc-objs": str(created),
        "loc-bytes": str(size),
        "Metrics": {
            "local_extraction": {
                **phase,
                "extracted_count": str(shards),
                "extracted_record_count": str(len(members)),
            },
            "shard_creation": {**phase, "created_count": str(created)},
            "description": spec.description,
        },
        "aborted": False,
        "archived": True,
    }


def _time(time_ns: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ns // 10**9))
