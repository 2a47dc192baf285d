"""Uploads over lines that are slow or dead, of which obstore tells nothing, to moto."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest
import trio

from aisfs.errors import AisfsError, DeadlineExceeded
from aisfs.model import Bucket, Provider
from aisfs.settings import ClusterSettings
from aisfs.stores import cloud_uploads
from aisfs.stores.cloud import CloudStore
from aisfs.stores.pipeline import CallPipeline
from aisfs.stores.port import BytesContent, Upload
from tests.support.clouds import S3, moto
from tests.support.slow_line import SlowLine, slow_line

SMALL, LARGE = bytes(3_000_000), bytes(12_000_000)
"""Sent at once, and in parts."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with moto() as cloud:
        yield cloud


@pytest.fixture
def line(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowLine]:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with slow_line(s3.url, 1e6) as line:
        monkeypatch.setenv("AWS_ENDPOINT_URL", line.url)
        yield line


class Sent:
    """A store behind a line, and what it sent."""

    def __init__(self, s3: S3, deadline: float = 1) -> None:
        self.counted: Counter[str] = Counter()
        settings = ClusterSettings(read_timeout=0.6, part_size=5 << 20, io_timeout=deadline)
        self.store = CloudStore(settings, lambda kind, n: self.counted.update({kind: n}))
        self.pipeline = CallPipeline(self.store, deadline=deadline)
        self.bucket = Bucket(s3.make_bucket(), Provider.S3)

    async def upload(self, data: bytes, **more: str) -> None:
        await self.pipeline.upload(Upload(self.bucket, "k", BytesContent(data), **more))


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["whole", "parts"])
async def test_a_slow_line_outlives_every_deadline(s3: S3, line: SlowLine, data: bytes):
    """The time that it needs is several times that of `--io-timeout`."""
    sent = Sent(s3)
    with trio.fail_after(60):
        await sent.upload(data, only_new="mine")
    assert s3.get(sent.bucket.name, "k") == data
    assert sent.counted["put"] <= 5, "nothing was sent twice"
    await sent.store.aclose()


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["whole", "parts"])
async def test_a_dead_line_ends_an_upload(s3: S3, line: SlowLine, data: bytes):
    sent = Sent(s3, deadline=2)
    line.is_dead = True
    before = time.monotonic()
    with trio.fail_after(30), pytest.raises(DeadlineExceeded):
        await sent.upload(data)
    assert time.monotonic() - before < 20
    assert s3.get(sent.bucket.name, "k") is None
    await sent.store.aclose()


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["whole", "parts"])
async def test_a_dead_connection_ends_though_the_cloud_answers_others(
    s3: S3, line: SlowLine, data: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cloud_uploads, "_SLOWEST", 2e6)
    sent = Sent(s3, deadline=2)
    line.dead_from = 100_000
    with trio.fail_after(60), pytest.raises(AisfsError):
        await sent.upload(data)
    line.dead_from = None
    assert s3.get(sent.bucket.name, "k") is None
    await sent.store.aclose()
