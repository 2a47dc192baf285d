"""The jobs of a cluster: start, describe and stop them.

Questions are repeated until they are answered. A start is sent once: where its reply was lost, the
cluster is asked whether the job is there.

Must not know: HTTP, requests, errnos.
"""

from dataclasses import replace

from aisfs.ais.client_port import Session
from aisfs.ais.protocol import job_replies, job_requests
from aisfs.ais.protocol.job_replies import Job
from aisfs.ais.protocol.job_requests import SortRequest
from aisfs.ais.protocol.requests import Request, get_range
from aisfs.ais.protocol.shard_index import (
    HEAD_BYTES,
    parse_indexed_version,
    shard_index_location,
)
from aisfs.errors import JobNotFound, NotFound, Unavailable
from aisfs.http.connections import ConnectionSet
from aisfs.http.exchange import Reply
from aisfs.model import Bucket
from aisfs.store.retry import Retrier


class Jobs:
    """The jobs of the cluster that a client is connected to."""

    def __init__(self, session: Session, *, deadline: float) -> None:
        """Send requests through `session`; a question may take `deadline` seconds in all."""
        self._session = session
        self._retrier = Retrier(deadline=deadline)

    async def sorts(self) -> list[Job]:
        """Return all dSort jobs that the cluster remembers; none where its build has no dSort."""
        jobs = job_replies.parse_sorts(await self._ask(job_requests.list_sorts()))
        return [job if job.over else await self._detailed(job) for job in jobs]

    async def others(self, kind: str = "") -> list[Job]:
        """Return the jobs of one kind, or of all kinds, that the cluster remembers."""
        request = job_requests.describe_jobs(kind=kind)
        return job_replies.parse_jobs(await self._ask(request), request.subject)

    async def describe(self, uuid: str) -> Job:
        """Describe one job.

        Raises:
            JobNotFound: the cluster does not know it.
        """
        if job_replies.is_sort(uuid):
            return job_replies.parse_sort(await self._ask(job_requests.describe_sort(uuid)), uuid)
        request = job_requests.describe_jobs(uuid=uuid)
        found = job_replies.parse_jobs(await self._ask(request), request.subject)
        if not found:
            raise JobNotFound(f"job {uuid}: no such job")
        return found[0]

    async def start_sort(self, asked: SortRequest) -> str:
        """Start a dSort job; its description is to be one that no other job has.

        Raises:
            Unsupported: the build of the cluster has no dSort.
        """
        request = job_requests.start_sort(asked)
        try:
            return job_replies.parse_job_id(await self._send(request), request.subject)
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
        request = job_requests.index_shards(bucket, prefix)
        return job_replies.parse_job_id(await self._send(request), request.subject)

    async def stop(self, uuid: str) -> None:
        """Tell a job to stop; it may take a while until it has.

        Raises:
            JobNotFound: the cluster does not know it, or it has ended.
        """
        job = await self.describe(uuid)  # AIStore says nothing of an id that is unknown
        if job.over:
            raise JobNotFound(f"job {uuid}: it has already ended ({job.state})")
        is_sort = job_replies.is_sort(uuid)
        await self._ask(job_requests.abort_sort(uuid) if is_sort else job_requests.stop_job(uuid))

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

    async def _ask(self, request: Request) -> Reply:
        return await self._retrier.run(request.subject, lambda: self._send(request))

    async def _send(self, request: Request) -> Reply:
        transport = self._session.transport

        def work(connections: ConnectionSet) -> Reply:
            return transport.fetch(connections, request)

        return await self._session.run(request.subject, work)
