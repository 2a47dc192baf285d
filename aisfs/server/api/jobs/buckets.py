"""Jobs over the objects of a bucket: delete, copy and archive them, count them, give the bucket another name.

Those that delete, copy or archive finish within the request that starts them. The first request for a summary
starts it; others with its id return what was counted so far (206) or all of it (200).

As in AIStore 5.0 a rename copies the objects to a new bucket, which is there when the job's id is returned,
and the old one is destroyed at the end, with whatever was written to it meanwhile. A job that does not
get to its end destroys the new bucket instead.
"""

import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aisfs.server.api import archives
from aisfs.server.api.jobs.registry import ID, MOVE, SUMMARY, Job, Registry, bucket_json
from aisfs.server.api.objects import Objects
from aisfs.server.failures import Failure, unsupported, uri_of
from aisfs.server.messages import Reply, Request, json_reply, text_reply
from aisfs.server.storage.bucket import Bucket, Directories, check_key, keys_below
from aisfs.server.storage.objects import Storage, check_bucket_name, find


def named_in(request: Request) -> str:
    """Return the name in `bck_to`, which AIStore writes as `ais/@#/name/`.

    Raises:
        Failure: 400 when there is none, 501 when it is a bucket of another backend or namespace.
    """
    given = request.query.get("bck_to", "")
    if not given:
        raise Failure(400, 'missing "bck_to" query parameter')
    *place, name = given.strip("/").split("/")
    if place[:1] not in ([], ["ais"]) or place[1:] not in ([], ["@#"]):
        raise unsupported(f"{given}: another backend or namespace")
    return check_bucket_name(name)


def make_like(storage: Storage, source: Bucket, name: str) -> Bucket:
    """Make a bucket with the properties of another one.

    Raises:
        Failure: 409 when it exists.
    """
    properties = source.records.properties()
    properties.pop("created", None)
    storage.create(name, properties)
    return storage.bucket(name)


BRACES = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})(?:\.\.0*([1-9]\d{0,17}))?\}")
MOST_NAMES = 1_000_000
"""Most names of one template: about 100 MB of names and some minutes of work."""


class ListJobs:
    """Delete, copy and archive by list, template or prefix."""

    def __init__(self, storage: Storage, objects: Objects, registry: Registry) -> None:
        self._storage = storage
        self._objects = objects
        self._registry = registry

    def delete(self, bucket: Bucket, value: dict[str, Any]) -> Reply:
        """Delete the selected objects; as in AIStore, an empty selector selects all."""
        missing = ""
        for key in list(self.selected(bucket, value)):
            try:
                if not self._storage.delete(bucket, key):
                    missing = f"{uri_of(bucket.name, key)} does not exist"
            except Failure as failure:
                missing = failure.message
        return self._registry.finished("delete-listrange", missing)

    def copy_bucket(self, bucket: Bucket, to: str, value: dict[str, Any]) -> Reply:
        """Copy a bucket, or the part of it below a prefix."""
        if to == bucket.name and value.get("dry_run") is not True:
            raise Failure(400, f'cannot copy-bck bucket "ais://{to}" onto itself')
        prefix = os.fsencode(str(value.get("prefix", "")))
        keys = keys_below(Directories(), bucket, prefix, continued=False)
        return self._copy("copy-bck", bucket, to, list(keys), value)

    def copy_list(self, bucket: Bucket, value: dict[str, Any]) -> Reply:
        """Copy the selected objects."""
        keys = list(self.selected(bucket, value))
        return self._copy(
            "copy-listrange", bucket, check_bucket_name(target_in(value)), keys, value
        )

    def _copy(
        self, kind: str, bucket: Bucket, to: str, keys: list[bytes], value: dict[str, Any]
    ) -> Reply:
        dry = value.get("dry_run", False)
        if not isinstance(dry, bool):
            raise Failure(400, f"{kind}: dry_run must be true or false")
        for option in ("synchronize", "non-recurs"):
            if value.get(option):
                raise unsupported(f"{kind} with {option}")
        if not dry and to not in self._storage.names():
            make_like(self._storage, bucket, to)
        front = os.fsencode(str(value.get("prepend", "")))
        error, count, size = "", 0, 0
        for key in keys:
            try:
                if dry:
                    size += find(bucket, key).size
                else:
                    target = self._storage.bucket(to)
                    size += self._storage.copy(bucket, key, target, front + key).size
                count += 1
            except Failure as failure:
                error = failure.message
        return self._registry.finished(kind, error, count, size)

    def archive(self, bucket: Bucket, value: dict[str, Any]) -> Reply:
        """Pack the selected objects into a tar or tgz."""
        name = str(value.get("archname", ""))
        key = os.fsencode(name)
        check_key(key)
        form = archives.format_of(str(value.get("mime", "")), key, None)
        if form is archives.Format.ZIP:
            raise unsupported("archiving into a zip")
        target = self._storage.bucket(target_in(value) or bucket.name)
        error = ""
        with self._storage.work_file() as work:
            mode = "w:gz" if form is archives.Format.TGZ else "w"
            with tarfile.open(work, mode, format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
                for member in list(self.selected(bucket, value)):
                    found = bucket.find(member)
                    if found is None:
                        error = f"{uri_of(bucket.name, member)} does not exist"
                        continue
                    info = tarfile.TarInfo(member.decode("utf-8", "surrogateescape"))
                    info.size, info.mode, info.mtime = found.size, 0o644, found.mtime_ns // 10**9
                    with os.fdopen(bucket.open(member), "rb") as file:
                        tar.addfile(info, file)
            self._objects.publish(target, key, work)
        return self._registry.finished("archive", error)

    @staticmethod
    def selected(bucket: Bucket, value: dict[str, Any]) -> Iterator[bytes]:
        """Yield the keys that a list, a template or a prefix selects."""
        names, template = value.get("objnames") or [], str(value.get("template") or "")
        if not isinstance(names, list):
            raise Failure(400, "objnames must be a list of names")
        if names:
            yield from (os.fsencode(str(name)) for name in names)
        elif BRACES.search(template):
            if count_names(template) > MOST_NAMES:
                text = f"template {template[:100]!r} stands for more than {MOST_NAMES:,} names"
                raise Failure(400, text)
            yield from (os.fsencode(name) for name in expand(template))
        else:
            prefix = os.fsencode(template)
            yield from keys_below(Directories(), bucket, prefix, continued=False)


def count_names(template: str) -> int:
    """Return how many names a template stands for."""
    count = 1
    for first, last, step in BRACES.findall(template):
        count *= len(range(int(first), int(last) + 1, int(step or 1)))
    return count


def expand(template: str) -> Iterator[str]:
    """Yield the names of a template such as `shard-{000..009..3}.tar`."""
    found = BRACES.search(template)
    if found is None:
        yield template
        return
    width = len(found[1])
    for number in range(int(found[1]), int(found[2]) + 1, int(found[3] or 1)):
        head = f"{template[: found.start()]}{number:0{width}d}"
        yield from (head + tail for tail in expand(template[found.end() :]))


def target_in(value: dict[str, Any]) -> str:
    """Return the name of the bucket that a selection of objects is to go to; empty if there is none."""
    to = value.get("tobck")
    return str(to.get("name", "")) if isinstance(to, dict) else ""


@dataclass(slots=True)
class _Sizes:
    """What was counted of one bucket."""

    bucket: str
    count: int = 0
    total: int = 0
    smallest: int | None = None
    largest: int = 0
    directories: int = 0
    """Bytes of the directories themselves."""

    def add(self, size: int) -> None:
        """Count an object."""
        self.count += 1
        self.total += size
        self.smallest = size if self.smallest is None else min(self.smallest, size)
        self.largest = max(self.largest, size)

    def document(self, disks: int, *, present: bool) -> dict[str, Any]:
        """Return it as AIStore writes it, with the size of all disks."""
        on_disk = self.total + self.directories
        return {
            **bucket_json(self.bucket),
            "ObjCount": {"obj_count_present": str(self.count), "obj_count_remote": "0"},
            "ObjSize": {
                "obj_min_size": self.smallest or 0,
                "obj_avg_size": _divided(self.total, self.count),
                "obj_max_size": self.largest,
            },
            "TotalSize": {
                "size_on_disk": str(on_disk),
                "size_all_present_objs": str(self.total),
                "size_all_remote_objs": "0",
                "total_disks_size": str(disks),
            },
            "used_pct": _divided(on_disk * 100, disks),
            "is_present": present,
        }


class Summaries:
    """Starts summaries and returns their results."""

    def __init__(self, storage: Storage, registry: Registry) -> None:
        self._storage = storage
        self._registry = registry
        self._results: dict[str, list[_Sizes]] = {}

    def serve(self, bucket: Bucket | None, value: dict[str, Any]) -> Reply:
        """Start a summary of a bucket, or of all; or return the results of one by its id."""
        uuid = str(value.get("uuid") or "")
        if not uuid:
            return text_reply(self.start(bucket, str(value.get("prefix") or "")), 202)
        status, found = self.results(uuid, present=False)
        reply = json_reply(found, "text/plain")
        reply.status = status
        return reply

    def start(self, bucket: Bucket | None, prefix: str) -> str:
        """Return the id of a new summary."""
        buckets = [bucket] if bucket else [self._storage.bucket(n) for n in self._storage.names()]
        if not buckets:
            raise Failure(500, "no buckets in the cluster, nothing to do")
        job = Job(SUMMARY, bucket.name if bucket else "", prefix=prefix)
        counted = [(each, _Sizes(each.name)) for each in buckets]
        self._results[job.uuid] = [sizes for _, sizes in counted]
        for old in [uuid for uuid in list(self._results) if not self._registry.find(uuid)]:
            if old != job.uuid:
                self._results.pop(old, None)
        self._registry.start(job, lambda: self._walk(job, counted))
        return job.uuid

    def results(self, uuid: str, *, present: bool) -> tuple[int, list[dict[str, Any]]]:
        """Return the status and the documents of a summary.

        Raises:
            Failure: there is none of this id, or it failed.
        """
        if not ID.fullmatch(uuid):
            raise Failure(400, f'{SUMMARY}: invalid UUID "{uuid}"')
        job, found = self._registry.find(uuid), self._results.get(uuid)
        if job is None or found is None:
            text = f"t[{{node}}]: {SUMMARY} job {uuid} does not exist"
            raise Failure(404, text, "ErrNotFound")
        ended = bool(job.ended)
        if job.errors:
            raise Failure(400, job.error)
        disks = shutil.disk_usage(self._storage.root).total
        return 200 if ended else 206, [sizes.document(disks, present=present) for sizes in found]

    def _walk(self, job: Job, counted: list[tuple[Bucket, _Sizes]]) -> None:
        for bucket, sizes in counted:
            folders = set[bytes]()
            for key in keys_below(Directories(), bucket, os.fsencode(job.prefix), continued=False):
                self._registry.step(job)
                found = bucket.find(key)
                if found is None:
                    continue
                found.check(400)
                sizes.add(found.size)
                job.objects += 1
                job.size += found.size
                if (folder := os.path.dirname(key)) not in folders:
                    folders.add(folder)
                    sizes.directories += _size_of(bucket, folder)


def _size_of(bucket: Bucket, folder: bytes) -> int:
    try:
        return os.stat(bucket.folder + b"/" + folder).st_size
    except OSError:
        return 0


def _divided(number: int, by: int) -> int:
    """Return a quotient, rounded as AIStore does; 0 of nothing."""
    return (number + by // 2) // by if by else 0


class Renames:
    """Renames buckets."""

    def __init__(self, storage: Storage, registry: Registry) -> None:
        self._storage = storage
        self._registry = registry

    def start(self, bucket: Bucket, name: str) -> Reply:
        """Start a job that gives a bucket another name; the reply is its id."""
        if name == bucket.name:
            text = f'cannot rename bucket "ais://{name}" to itself ("ais://{name}")'
            raise Failure(400, text)
        if name in self._storage.names():
            raise Failure(409, f'bucket "ais://{name}" already exists', "ErrBucketAlreadyExists")
        for other in self._registry.running(MOVE):
            if not {other.source, other.target}.isdisjoint((bucket.name, name)):
                text = f'{MOVE}[{other.uuid}] is currently running, cannot run "{MOVE}"'
                text = f"t[{{node}}]: {text}(ais://{bucket.name}) concurrently"
                raise Failure(409, text, "ErrLimitedCoexistence")
        target = make_like(self._storage, bucket, name)
        job = Job(MOVE, bucket.name, name)
        job.describe = lambda: f"mv ais://{bucket.name} => ais://{name}"
        self._registry.start(job, lambda: self._run(job, bucket, target))
        return text_reply(job.uuid)

    def _run(self, job: Job, bucket: Bucket, target: Bucket) -> None:
        try:
            for key in list(keys_below(Directories(), bucket, b"", continued=False)):
                self._registry.step(job)
                self._copy(job, bucket, key, target)
            self._registry.step(job)
        except BaseException:
            with suppress(Failure):
                self._storage.destroy(target.name)
            raise
        self._storage.destroy(bucket.name)

    def _copy(self, job: Job, bucket: Bucket, key: bytes, target: Bucket) -> None:
        try:
            size = self._storage.copy(bucket, key, target, key).size
        except Failure as failure:
            if failure.tcode != "ErrNotFound":
                raise
            return  # deleted meanwhile
        job.objects += 1
        job.size += size
