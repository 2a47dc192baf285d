"""A decorator of the port that counts calls, seconds and bytes."""

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import trio

from aisfs.metrics import Metrics
from aisfs.model import NO_CUSTOM, Bucket, Keys, ObjectInfo, Page, Provider
from aisfs.store.port import Announce, Content, Progress, Sink, UploadAhead, WritableStore

_WORTH_SHOWING = 1 << 20
"""Bytes of an upload that somebody may want to look at while it is under way."""


class MeteredStore:
    """Passes every call on and counts it."""

    def __init__(self, inner: WritableStore, metrics: Metrics) -> None:
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

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        """See `ObjectStore`."""
        with self._timed("list_page"):
            return await self._inner.list_page(bucket, prefix, token=token)

    async def first_keys(
        self, bucket: Bucket, prefix: str, most: int, *, sure: bool = False
    ) -> Keys:
        """See `ObjectStore`."""
        with self._timed("first_keys"):
            return await self._inner.first_keys(bucket, prefix, most, sure=sure)

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """See `ObjectStore`."""
        with self._timed("head"):
            return await self._inner.head(bucket, key, latest=latest)

    async def read_range(
        self, bucket: Bucket, expected: ObjectInfo, start: int, buffer: memoryview
    ) -> None:
        """See `ObjectStore`."""
        with self._timed("read_range"):
            await self._inner.read_range(bucket, expected, start, buffer)
        self._metrics.bytes_fetched.inc(len(buffer))

    async def read_many(
        self, bucket: Bucket, wanted: Sequence[tuple[ObjectInfo, memoryview]]
    ) -> list[bool]:
        """See `ObjectStore`."""
        with self._timed("read_many"):
            filled = await self._inner.read_many(bucket, wanted)
        done = sum(info.size for (info, _), one in zip(wanted, filled, strict=True) if one)
        self._metrics.bytes_fetched.inc(done)
        return filled

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """See `ObjectStore`."""
        with self._timed("stream"):
            await self._inner.stream(bucket, expected, sink)
        self._metrics.bytes_fetched.inc(expected.size)

    async def upload(
        self,
        bucket: Bucket,
        key: str,
        content: Content,
        *,
        custom: Mapping[str, str] = NO_CUSTOM,
        progress: Progress | None = None,
        ahead: UploadAhead | None = None,
        announce: Announce | None = None,
    ) -> ObjectInfo:
        """See `WritableStore`."""
        assert ahead is None or isinstance(ahead, _MeteredAhead), "made by `begin_upload`"
        before = 0 if ahead is None else ahead.sent
        inner = None if ahead is None else ahead.inner
        shown = _Shown(self._metrics, bucket, key) if content.size > _WORTH_SHOWING else None

        def told(done: int) -> None:
            if shown is not None:
                shown.set(min(before + done, content.size), content.size)
            if progress is not None:
                progress(done)

        try:
            told(0)
            with self._timed("upload"):
                info = await self._inner.upload(
                    bucket,
                    key,
                    content,
                    custom=custom,
                    progress=told,
                    ahead=inner,
                    announce=announce,
                )
        finally:
            if shown is not None:
                shown.forget()
        self._metrics.bytes_sent.inc(content.size)
        return info

    @property
    def ahead_above(self) -> int:
        """See `WritableStore`."""
        return self._inner.ahead_above

    async def begin_upload(self, bucket: Bucket, key: str) -> UploadAhead | None:
        """See `WritableStore`."""
        with self._timed("begin_upload"):
            begun = await self._inner.begin_upload(bucket, key)
        return begun and _MeteredAhead(begun, _Shown(self._metrics, bucket, key))

    async def abandon_upload(self, bucket: Bucket, key: str, name: str) -> None:
        """See `WritableStore`."""
        with self._timed("abandon_upload"):
            await self._inner.abandon_upload(bucket, key, name)

    async def remove(self, bucket: Bucket, key: str) -> None:
        """See `WritableStore`."""
        with self._timed("remove"):
            await self._inner.remove(bucket, key)

    async def copy(self, bucket: Bucket, key: str, to_bucket: Bucket, new_key: str) -> ObjectInfo:
        """See `WritableStore`."""
        with self._timed("copy"):
            return await self._inner.copy(bucket, key, to_bucket, new_key)

    async def rename(self, bucket: Bucket, key: str, new_key: str) -> ObjectInfo:
        """See `WritableStore`."""
        with self._timed("rename"):
            return await self._inner.rename(bucket, key, new_key)

    async def set_custom(
        self, bucket: Bucket, expected: ObjectInfo, custom: Mapping[str, str]
    ) -> ObjectInfo:
        """See `WritableStore`."""
        with self._timed("set_custom"):
            return await self._inner.set_custom(bucket, expected, custom)

    async def aclose(self) -> None:
        """See `ObjectStore`."""
        await self._inner.aclose()


class _Shown:
    """How far an upload is, in the metrics until it is forgotten."""

    def __init__(self, metrics: Metrics, bucket: Bucket, key: str) -> None:
        self._metrics = metrics
        self._name = os.fsencode(f"{bucket}/{key}").decode(errors="replace")

    def set(self, sent: int, size: int | None = None) -> None:
        self._metrics.upload_sent.labels(self._name).set(sent)
        if size is not None:
            self._metrics.upload_size.labels(self._name).set(size)

    def forget(self) -> None:
        for gauge in (self._metrics.upload_sent, self._metrics.upload_size):
            with suppress(KeyError):  # a file that two have open may be uploaded twice at once
                gauge.remove(self._name)


class _MeteredAhead:
    """An upload that began before all of its content was known, and how much of it was sent."""

    def __init__(self, inner: UploadAhead, shown: _Shown) -> None:
        self.inner = inner
        self.sent = 0
        self._shown = shown
        self._taken = 0
        shown.set(0)

    @property
    def name(self) -> str:
        """See `UploadAhead`."""
        return self.inner.name

    @property
    def wants(self) -> int:
        """See `UploadAhead`."""
        return self.inner.wants

    def next_part(self, content: Content) -> Callable[[], Awaitable[None]]:
        """See `UploadAhead`."""
        size, self._taken = self.inner.wants - self._taken, self.inner.wants
        send = self.inner.next_part(content)

        async def counted() -> None:
            await send()
            self.sent += size
            self._shown.set(self.sent)

        return counted

    def spoil(self, start: int, stop: int) -> None:
        """See `UploadAhead`."""
        self.inner.spoil(start, stop)

    @property
    def is_lost(self) -> bool:
        """See `UploadAhead`."""
        return self.inner.is_lost

    async def abandon(self) -> None:
        """See `UploadAhead`."""
        self._shown.forget()
        await self.inner.abandon()
