"""The job `move-bck`: a bucket gets another name.

As in AIStore 5.0 the objects are copied to a new bucket, which is there when the job's id is returned,
and the old one is destroyed at the end, with whatever was written to it meanwhile. A job that does not
get to its end destroys the new bucket instead.
"""

from contextlib import suppress

from aisfs.server.api.jobs.destination import make_like
from aisfs.server.api.jobs.registry import MOVE, Job, Registry
from aisfs.server.failures import Failure
from aisfs.server.messages import Reply, text_reply
from aisfs.server.storage.bucket import Bucket
from aisfs.server.storage.keys import Directories, keys_below
from aisfs.server.storage.objects import Storage


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
