"""Jobs that transform the objects of a bucket, or some of them, into another one."""

import os
from typing import Any

from aisfs.server.api.jobs.buckets import ListJobs, make_like, named_in, target_in
from aisfs.server.api.jobs.etl import Etl, Etls, ObjectErrors
from aisfs.server.api.jobs.registry import (
    ETL_LIST,
    Job,
    JobFailed,
    Registry,
    keep_latest,
)
from aisfs.server.api.objects import Objects
from aisfs.server.failures import Failure, uri_of
from aisfs.server.messages import Reply, Request, text_reply
from aisfs.server.storage.bucket import Bucket, Directories, check_key, keys_below
from aisfs.server.storage.objects import Storage, check_bucket_name, find


class Transforms:
    """Starts them; they run on after the reply."""

    def __init__(
        self,
        storage: Storage,
        objects: Objects,
        registry: Registry,
        etls: Etls,
        lists: ListJobs,
    ) -> None:
        self._storage = storage
        self._objects = objects
        self._registry = registry
        self._etls = etls
        self._lists = lists

    def start(self, request: Request, kind: str, bucket: Bucket, value: dict[str, Any]) -> Reply:
        """Transform a bucket, or the part of it below a prefix; or the selected objects."""
        etl = self._etls.named(str(value.get("id", "")))
        if kind == ETL_LIST:
            to, keys = check_bucket_name(target_in(value)), self._lists.selected(bucket, value)
        else:
            prefix = os.fsencode(str(value.get("prefix", "")))
            to, keys = named_in(request), keys_below(Directories(), bucket, prefix, continued=False)
        is_dry = value.get("dry_run") is True
        if to == bucket.name and not is_dry:
            raise Failure(400, f'cannot {kind} bucket "ais://{to}" onto itself')
        for option in ("synchronize", "non-recurs"):
            if value.get(option):
                raise Failure(501, f"{kind} with {option} - operation not supported", "ErrUnsupp")
        target = bucket
        if not is_dry:
            known = to in self._storage.names()
            target = self._storage.bucket(to) if known else make_like(self._storage, bucket, to)
        job = Job(kind, bucket.name, to, prefix=str(value.get("prefix", "")))
        keep_latest(self._etls.offline, job.uuid, ObjectErrors())
        self._registry.start(job, lambda: self._run(job, etl, bucket, target, list(keys), value))
        return text_reply(job.uuid)

    def _run(
        self,
        job: Job,
        etl: Etl,
        bucket: Bucket,
        target: Bucket,
        keys: list[bytes],
        value: dict[str, Any],
    ) -> None:
        for key in keys:
            self._registry.step(job)
            try:
                job.size += self._transform(etl, bucket, key, target, value)
                job.objects += 1
            except Failure as failure:
                name = uri_of(bucket.name, key)
                told = {"obj_name": name, "msg": failure.message, "ecode": failure.status}
                self._etls.offline[job.uuid].append(told)
                if value.get("coer") is not True or etl.stage != "Running":
                    raise JobFailed(f"{name}: {failure.message}") from failure
                job.errors.append(f"{name}: {failure.message}")

    def _transform(
        self, etl: Etl, bucket: Bucket, key: bytes, target: Bucket, value: dict[str, Any]
    ) -> int:
        if value.get("dry_run") is True:
            return find(bucket, key).size
        new_key = _renamed(key, value)
        check_key(new_key)
        with self._storage.work_file() as work:
            with work.open("xb") as file:
                size = self._etls.write([etl], bucket, key, file)
            self._objects.publish(target, new_key, work, fresh=True)
        return size


def _renamed(key: bytes, value: dict[str, Any]) -> bytes:
    """Return the name of a result: the source's, with another extension and beginning if they are given."""
    stem, dot, extension = os.fsdecode(key).rpartition(".")
    extensions = value.get("ext") or {}
    if dot and isinstance(extensions, dict) and extension in extensions:
        extension = str(extensions[extension]).lstrip(".")
    return os.fsencode(f"{value.get('prepend') or ''}{stem}{dot}{extension}")
