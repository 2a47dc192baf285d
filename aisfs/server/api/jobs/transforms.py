"""Jobs that transform the objects of a bucket, or some of them, into another one."""

import os
from typing import Any

from aisfs.server.api.jobs.buckets import ListJobs, make_like, named_in, target_in
from aisfs.server.api.jobs.etl import MOST_ERRORS, Etl, Etls, ObjectErrors
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
            to = check_bucket_name(target_in(value))
            keys = list(self._lists.selected(bucket, value))
        else:
            to, prefix = named_in(request), os.fsencode(str(value.get("prefix", "")))
            keys = list(keys_below(Directories(), bucket, prefix, continued=False))
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
        errors = ObjectErrors(maxlen=MOST_ERRORS)
        keep_latest(self._etls.offline, job.uuid, errors)
        goes_on = value.get("coer") is True

        def work() -> None:
            for key in keys:
                self._registry.step(job)
                name = uri_of(bucket.name, key)
                try:
                    job.size += self._transform(etl, bucket, key, target, value)
                    job.objects += 1
                except Failure as failure:
                    errors.append(
                        {"obj_name": name, "msg": failure.message, "ecode": failure.status}
                    )
                    if not goes_on or etl.stage != "Running":
                        raise JobFailed(f"{name}: {failure.message}") from failure
                    job.errors.append(f"{name}: {failure.message}")

        self._registry.start(job, work)
        return text_reply(job.uuid)

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
