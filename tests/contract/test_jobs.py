"""Jobs through the client: on the embedded server and, with AIS_ENDPOINT set, on that cluster."""

import io
import tarfile
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from aisfs.errors import BucketNotFound, JobNotFound, Unsupported
from aisfs.model import Bucket
from aisfs.stores.ais.jobs import INDEX_SHARD, Job, Jobs, JobState, SortRequest
from tests.contract.conftest import real_cluster
from tests.contract.subjects import CLUSTER, ClusterSubject

DEADLINE = 60.0


class JobsSubject(ClusterSubject):
    """A cluster with a scratch bucket of shards."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.jobs = Jobs(self.client, deadline=DEADLINE)

    async def end(self, uuid: str) -> Job:
        with trio.fail_after(DEADLINE):
            while not (job := await self.jobs.describe(uuid)).over:  # noqa: ASYNC110
                await trio.sleep(0.1)
        return job

    async def sorted(self, **changes: Any) -> Job:
        wanted = {
            "source": self.bucket,
            "target": self.bucket,
            "template": "in-{0..3}",
            "output": "out/t-{00..99}",
            "shard_size": 1000,
            "kind": "alphanumeric",
            "description": f"contract {self.bucket.name} {changes.get('output', '')}",
        } | changes
        try:
            uuid = await self.jobs.start_sort(SortRequest(**wanted))
        except Unsupported as error:
            pytest.skip(str(error))
        return await self.end(uuid)

    async def members(self, prefix: str) -> list[list[tuple[str, bytes]]]:
        objects, _ = await self.list(prefix)
        found = []
        for info in sorted(objects, key=lambda info: info.key):
            with tarfile.open(fileobj=io.BytesIO(await self.stream(info))) as tar:
                found.append([(member.name, tar.extractfile(member).read()) for member in tar])
        return found


@pytest.fixture(params=["served", real_cluster])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[JobsSubject]:
    endpoint = CLUSTER
    if request.param == "served":
        endpoint = request.getfixturevalue("served").endpoint
    made = JobsSubject(endpoint)
    made.create()
    for number in range(4):
        made.put(f"in-{number}.tar", tar_of(number))
    yield made
    await made.store.aclose()
    made.destroy()


def tar_of(number: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for at in range(5):
            name = f"{(at * 3 + number * 7) % 20:02}{number}"
            for extension, data in (("im.jpg", name.encode() * 100), ("cls", name.encode())):
                header = tarfile.TarInfo(f"{name}.{extension}")
                header.size = len(data)
                tar.addfile(header, io.BytesIO(data))
    return file.getvalue()


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"decreasing": True},
        {"template": "", "names": ["in-3.tar", "in-0.tar", "in-1.tar", "in-2.tar"]},
        {"kind": "content", "key_extension": ".cls", "key_type": "int"},
        {"kind": "shuffle", "seed": "7"},
    ],
    ids=str,
)
async def test_a_sort_tears_no_sample(cluster: JobsSubject, how: dict[str, Any]):
    done = await cluster.sorted(**how)
    assert done.state is JobState.FINISHED
    assert not done.errors
    assert done.counts == {"shards": 4, "records": 40}
    assert (done.source, done.target) == (str(cluster.bucket), str(cluster.bucket))
    shards = await cluster.members("out/")
    assert len(shards) == done.created > 1
    before = [member for shard in await cluster.members("") for member in shard]
    after = [member for shard in shards for member in shard]
    assert Counter(after) == Counter(before)
    # The two members of each sample are neighbours, in one shard.
    for shard in shards:
        names = [name.partition(".")[0] for name, _ in shard]
        assert names[::2] == names[1::2]
    order = [name.partition(".")[0] for name, _ in after][::2]
    if how.get("kind") != "shuffle":
        assert order == sorted(order, reverse="decreasing" in how)


async def test_a_sort_that_cannot_be_done_ends_as_aborted(cluster: JobsSubject):
    for how, reason in [
        ({"output": "few/t-{0..1}"}, "exceeds"),
        ({"template": "in-{0..4}", "output": "gone/t-{0..99}"}, "does not exist"),
    ]:
        done = await cluster.sorted(**how)
        assert done.state is JobState.ABORTED
        assert any(reason in error for error in done.errors), done.errors
        assert not done.created
        with pytest.raises(JobNotFound):
            await cluster.jobs.stop(done.id)
        assert done.id in [job.id for job in await cluster.jobs.sorts()]


async def test_shards_are_indexed(cluster: JobsSubject):
    cluster.put("note.txt", b"text")
    assert await cluster.jobs.indexed_version(cluster.bucket, "in-0.tar") is None
    try:
        uuid = await cluster.jobs.start_index(cluster.bucket, "in-")
    except Unsupported as error:
        pytest.skip(str(error))
    done = await cluster.end(uuid)
    assert (done.state, done.kind, done.source) == (
        *(JobState.FINISHED, INDEX_SHARD, str(cluster.bucket)),
    )
    assert (done.counts["index"], done.done) == (4, 4)
    for number in range(4):
        info = await cluster.store.head(cluster.bucket, f"in-{number}.tar")
        said = await cluster.jobs.indexed_version(cluster.bucket, info.key)
        assert said == (info.checksum.partition(":")[2], info.size)
    cluster.put("in-0.tar", tar_of(9))
    info = await cluster.store.head(cluster.bucket, "in-0.tar")
    assert (await cluster.jobs.indexed_version(cluster.bucket, "in-0.tar"))[0] not in info.checksum
    cluster.delete("in-1.tar")
    assert await cluster.jobs.indexed_version(cluster.bucket, "in-1.tar") is None
    assert uuid in [job.id for job in await cluster.jobs.others(INDEX_SHARD)]
    assert uuid in [job.id for job in await cluster.jobs.others()]
    with pytest.raises(JobNotFound, match="already ended"):
        await cluster.jobs.stop(uuid)


async def test_what_is_not_there(cluster: JobsSubject):
    for uuid in ("srt-nosuchid1", "NoSuchId12"):
        with pytest.raises(JobNotFound):
            await cluster.jobs.describe(uuid)
        with pytest.raises(JobNotFound):
            await cluster.jobs.stop(uuid)
    with pytest.raises(BucketNotFound):
        await cluster.jobs.start_index(Bucket("no-such-bucket-here"), "")
    with pytest.raises(BucketNotFound):
        await cluster.sorted(source=Bucket("no-such-bucket-here"))
