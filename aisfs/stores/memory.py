"""A store in memory, for the tests of everything above the port.

Behaves like an `ais://` bucket as far as the port can tell: versions count up, listings are sorted
bytewise, names may be object and directory at once. What tests need besides: counted calls, pages
as small as wanted, and a hook that is awaited before each call to delay it or make it fail.
"""

import zlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import trio
from msgspec import structs

from aisfs.core.names.listing import check_new_bucket, check_new_key
from aisfs.errors import AlreadyExists, BucketNotFound, NotFound, Stale, Unsupported
from aisfs.model import Bucket, Keys, ObjectInfo, Page, Provider
from aisfs.stores.port import (
    Arrived,
    PlainStore,
    Sink,
    Upload,
    check_expected,
)
from aisfs.stores.posix_metadata import encode_custom

T = TypeVar("T")

Hook = Callable[[str, Bucket | None, str], Awaitable[None]]
"""Awaited with the method's name, the bucket and the key or prefix; what it raises, the call raises."""

_NS = 1_000_000_000
_CREATED_NS = 1_700_000_000 * _NS
"""The time buckets begin, so that the times of a test are the same every time."""


class _Contents:
    """The objects of one bucket."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[ObjectInfo, bytes]] = {}
        # Never forgotten, so that a key deleted and put again is another version.
        self.versions: Counter[str] = Counter()
        self._sorted: list[bytes] | None = None

    def changed(self) -> None:
        self._sorted = None

    def sorted_keys(self) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(_raw(key) for key in self.objects)
        return self._sorted


class MemoryStore(PlainStore):
    """Buckets of objects in memory."""

    def __init__(
        self,
        *,
        page_size: int = 1000,
        piece_size: int = 1 << 20,
        hook: Hook | None = None,
        sink_in_thread: bool = True,
        batches: bool = False,
    ) -> None:
        """Start without buckets.

        Args:
            page_size: Most entries of a page.
            piece_size: Most bytes a sink gets at once.
            hook: See `Hook`; may be replaced at any time.
            sink_in_thread: Call sinks, and read contents, in a worker thread, as the port says. A MockClock that
                jumps takes a wait for a thread for idleness: say False there.
            batches: Have requests for many objects.
        """
        self.batches = batches
        self.page_size = page_size
        self.piece_size = piece_size
        self.hook = hook
        self.sink_in_thread = sink_in_thread
        self.calls: Counter[str] = Counter()
        """Calls by name of the method, failed ones included."""
        self.bytes_read = 0
        """Bytes handed out by `read_range`, `read_many`, `read_ranges` and `stream`."""
        self.bytes_written = 0
        """Bytes taken in by `upload`."""
        self.closed = False
        self._buckets: dict[Bucket, _Contents] = {}

    # What tests do to it ----------------------------------------------------------------------

    def add_bucket(self, bucket: Bucket) -> None:
        """Create an empty bucket, unless it is there."""
        self._buckets.setdefault(bucket, _Contents())

    def put(self, bucket: Bucket, key: str, data: bytes) -> ObjectInfo:
        """Write one object, and its bucket when there is none; every call is a new version."""
        self.add_bucket(bucket)
        contents = self._buckets[bucket]
        contents.versions[key] += 1
        version = contents.versions[key]
        info = ObjectInfo(
            key,
            len(data),
            str(version),
            f"crc32:{zlib.crc32(data):08x}",
            _CREATED_NS + (version - 1) * _NS,
        )
        contents.objects[key] = (info, bytes(data))
        contents.changed()
        return info

    def delete(self, bucket: Bucket, key: str) -> None:
        """Delete one object.

        Raises:
            KeyError: there is none.
        """
        del self._buckets[bucket].objects[key]
        self._buckets[bucket].changed()

    def delete_bucket(self, bucket: Bucket) -> None:
        """Delete a bucket and all its objects.

        Raises:
            KeyError: there is none.
        """
        del self._buckets[bucket]

    # The port ---------------------------------------------------------------------------------

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """List the buckets, sorted."""
        await self._enter("list_buckets", None, "")
        return sorted(b for b in self._buckets if provider is None or b.provider is provider)

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        """List one page of the directory `prefix`."""
        await self._enter("list_page", bucket, prefix)
        contents = self._contents(bucket)
        keys, start = contents.sorted_keys(), _raw(prefix)
        page = Page([], [], "")
        position = _after(keys, _raw(token)) if token else bisect_left(keys, start)
        last = ""
        while position < len(keys) and keys[position].startswith(start):
            if len(page.objects) + len(page.directories) == self.page_size:
                return Page(page.objects, page.directories, last)
            name, slash, _ = keys[position][len(start) :].partition(b"/")
            last = _text(start + name + slash)
            if slash:
                page.directories.append(last)
                position = _after(keys, _raw(last))
            else:
                page.objects.append(contents.objects[last][0])
                position += 1
        return page

    async def first_keys(
        self, bucket: Bucket, prefix: str, most: int, *, sure: bool = False
    ) -> Keys:
        """Return `most` keys at most of objects below the directory `prefix`."""
        await self._enter("first_keys", bucket, prefix)
        keys = self._contents(bucket).sorted_keys()
        start, stop = bisect_left(keys, _raw(prefix)), _after(keys, _raw(prefix) or b"\xff" * 4)
        found = [_text(key) for key in keys[start:stop]]
        return Keys(found[:most], len(found) <= most)

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """Describe the current version of one object."""
        await self._enter("head", bucket, key)
        return self._object(bucket, key)[0]

    async def read_range(
        self,
        bucket: Bucket,
        expected: ObjectInfo,
        start: int,
        buffer: memoryview,
        arrived: Arrived | None = None,
    ) -> None:
        """Fill `buffer` with the bytes from `start` on of exactly the version `expected`."""
        if not 0 <= start < start + len(buffer) <= expected.size:
            raise ValueError(f"{len(buffer)} bytes from {start} on of {expected.size}")
        await self._enter("read_range", bucket, expected.key)
        data = self._version(bucket, expected)
        buffer[:] = data[start : start + len(buffer)]
        self.bytes_read += len(buffer)

    async def read_many(
        self, bucket: Bucket, wanted: Sequence[tuple[ObjectInfo, memoryview]]
    ) -> list[bool]:
        """Fill buffers with those of the objects that are still these versions."""
        await self._enter("read_many", bucket, "")
        if not self.batches:
            raise Unsupported(f"{bucket}: no requests for many objects")
        filled = []
        for info, buffer in wanted:
            try:
                buffer[:] = self._version(bucket, info)
                self.bytes_read += len(buffer)
                filled.append(True)
            except (Stale, NotFound):
                filled.append(False)
        return filled

    async def read_ranges(
        self, bucket: Bucket, wanted: Sequence[tuple[ObjectInfo, int, memoryview]]
    ) -> list[bool]:
        """Fill buffers with ranges of those of the objects that are still these versions."""
        await self._enter("read_ranges", bucket, "")
        if not self.batches:
            raise Unsupported(f"{bucket}: no requests for many ranges")
        filled = []
        for info, start, buffer in wanted:
            try:
                buffer[:] = self._version(bucket, info)[start : start + len(buffer)]
                self.bytes_read += len(buffer)
                filled.append(True)
            except (Stale, NotFound):
                filled.append(False)
        return filled

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """Send the whole object, version `expected`, to `sink`."""
        await self._enter("stream", bucket, expected.key)
        data = memoryview(self._version(bucket, expected))
        for start in range(0, len(data), self.piece_size):
            piece = data[start : start + self.piece_size]
            if self.sink_in_thread:
                await trio.to_thread.run_sync(sink, piece)
            else:
                await trio.lowlevel.checkpoint()
                sink(piece)
            self.bytes_read += len(piece)

    async def create_bucket(self, bucket: Bucket) -> None:
        """Make an empty bucket."""
        check_new_bucket(bucket)
        await self._enter("create_bucket", bucket, "")
        if bucket in self._buckets:
            raise AlreadyExists(f"{bucket}: the bucket exists")
        self.add_bucket(bucket)

    async def upload(self, upload: Upload) -> ObjectInfo:
        """Write one object whole, or not at all."""
        bucket, key = upload.bucket, upload.key
        check_new_key(bucket, key)
        encode_custom(upload.custom, "")
        await self._enter("upload", bucket, key)
        self._contents(bucket)
        data = await self._in_thread(lambda: _bytes_of(upload, self.piece_size))
        there = self._buckets[bucket].objects.get(key)
        upload.check(there and there[0])
        self.bytes_written += len(data)
        return self._write(bucket, key, data, upload.custom)

    async def remove(self, bucket: Bucket, key: str) -> None:
        """Delete one object."""
        await self._enter("remove", bucket, key)
        self._object(bucket, key)
        self.delete(bucket, key)

    async def copy(self, bucket: Bucket, key: str, to_bucket: Bucket, new_key: str) -> ObjectInfo:
        """Copy an object."""
        if (bucket, key) == (to_bucket, new_key):
            raise ValueError(f"{bucket}/{key}: copied onto itself")
        check_new_key(to_bucket, new_key)
        await self._enter("copy", bucket, key)
        info, data = self._object(bucket, key)
        self._contents(to_bucket)
        return self._write(to_bucket, new_key, data, info.custom)

    async def rename(
        self, bucket: Bucket, key: str, new_key: str, *, expected: ObjectInfo | None = None
    ) -> ObjectInfo:
        """Rename an object."""
        if key == new_key:
            raise ValueError(f"{bucket}/{key}: renamed to itself")
        check_new_key(bucket, new_key)
        await self._enter("rename", bucket, key)
        info, data = self._object(bucket, key)
        check_expected(f"{bucket}/{key}", expected, info)
        self.delete(bucket, key)
        return self._write(bucket, new_key, data, info.custom)

    async def set_custom(
        self, bucket: Bucket, expected: ObjectInfo, custom: Mapping[str, str]
    ) -> ObjectInfo:
        """Replace the custom metadata of the content `expected`."""
        encode_custom(custom, "")
        await self._enter("set_custom", bucket, expected.key)
        info, data = self._object(bucket, expected.key)
        check_expected(f"{bucket}/{expected.key}", expected, info)
        info = structs.replace(info, custom=dict(custom))
        self._buckets[bucket].objects[expected.key] = (info, data)
        return info

    async def aclose(self) -> None:
        """Do nothing; there are no connections."""
        self.closed = True

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work) if self.sink_in_thread else work()

    def _write(
        self, bucket: Bucket, key: str, data: bytes, custom: Mapping[str, str]
    ) -> ObjectInfo:
        info = structs.replace(self.put(bucket, key, data), custom=dict(custom))
        self._buckets[bucket].objects[key] = (info, data)
        return info

    async def _enter(self, method: str, bucket: Bucket | None, name: str) -> None:
        self.calls[method] += 1
        await trio.lowlevel.checkpoint()
        if self.hook:
            await self.hook(method, bucket, name)

    def _contents(self, bucket: Bucket) -> _Contents:
        try:
            return self._buckets[bucket]
        except KeyError:
            raise BucketNotFound(f"{bucket}: no such bucket") from None

    def _object(self, bucket: Bucket, key: str) -> tuple[ObjectInfo, bytes]:
        try:
            return self._contents(bucket).objects[key]
        except KeyError:
            raise NotFound(f"{bucket}/{key}: no such object") from None

    def _version(self, bucket: Bucket, expected: ObjectInfo) -> bytes:
        info, data = self._object(bucket, expected.key)
        if not expected.same_content(info):
            raise Stale(f"{bucket}/{expected.key}: changed")
        return data


def _bytes_of(upload: Upload, piece_size: int) -> bytes:
    data = bytearray(upload.content.size)
    for start in range(0, len(data), piece_size):
        piece = memoryview(data)[start : start + piece_size]
        upload.content.read_into(start, piece)
        upload.progress(start + len(piece))
    return bytes(data)


def _after(keys: list[bytes], name: bytes) -> int:
    """Find the first key after the entry `name`; after a directory, all it holds is passed."""
    if name.endswith(b"/"):
        return bisect_left(keys, name[:-1] + b"0")  # the character next to "/"
    return bisect_right(keys, name)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
