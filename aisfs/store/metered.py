"""A decorator of the port that counts calls, seconds and bytes."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from aisfs.metrics import Metrics
from aisfs.model import Bucket, ObjectInfo, Page, Provider
from aisfs.store.port import ObjectStore, Sink


class MeteredStore:
    """Passes every call on and counts it."""

    def __init__(self, inner: ObjectStore, metrics: Metrics) -> None:
        """Count the calls of `inner` in `metrics`."""
        self._inner = inner
        self._metrics = metrics

    @contextmanager
    def _timed(self, call: str) -> Iterator[None]:
        started = trio.current_time()
        try:
            yield
        finally:
            self._metrics.store_seconds.labels(call).observe(trio.current_time() - started)

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """See `ObjectStore`."""
        with self._timed("list_buckets"):
            return await self._inner.list_buckets(provider)

    async def list_page(
        self, bucket: Bucket, prefix: str, *, token: str = "", page_size: int = 0
    ) -> Page:
        """See `ObjectStore`."""
        with self._timed("list_page"):
            return await self._inner.list_page(bucket, prefix, token=token, page_size=page_size)

    async def head(self, bucket: Bucket, key: str) -> ObjectInfo:
        """See `ObjectStore`."""
        with self._timed("head"):
            return await self._inner.head(bucket, key)

    async def read_range(
        self, bucket: Bucket, expected: ObjectInfo, start: int, buffer: memoryview
    ) -> None:
        """See `ObjectStore`."""
        with self._timed("read_range"):
            await self._inner.read_range(bucket, expected, start, buffer)
        self._metrics.bytes_fetched.inc(len(buffer))

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """See `ObjectStore`."""
        with self._timed("stream"):
            await self._inner.stream(bucket, expected, sink)
        self._metrics.bytes_fetched.inc(expected.size)

    async def aclose(self) -> None:
        """See `ObjectStore`."""
        await self._inner.aclose()
