"""The job `summary-bck`: how many objects buckets have, and of which sizes.

The first request starts it; others with its id return what was counted so far (206) or all of it (200).
"""

import os
import shutil
from dataclasses import dataclass
from typing import Any

from aisfs.server.api.jobs.registry import ID, SUMMARY, Job, Registry, bucket_json
from aisfs.server.failures import Failure
from aisfs.server.messages import Reply, json_reply, text_reply
from aisfs.server.storage.bucket import Bucket
from aisfs.server.storage.keys import Directories, keys_below
from aisfs.server.storage.objects import Storage


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
