"""Content that has to be read from its start: compressed tars, large members of zips, objects sent only whole.

A compressed stream can only be read from its start on. So it is decompressed once, by a pass, into
the disk cache, where it is an entry of its own; evicting a part of it costs another pass when the
part is read. Readers wait for a pass and get their bytes as it goes by, whether or not the cache
takes them: a pass always serves those that wait, and one without waiting readers ends when the
cache takes nothing. An object that a store sends only whole is such content too, made by copying it.

The codec runs in a worker thread, which asks the trio thread for compressed bytes when it needs
some. What is decompressed never exceeds a share of the cache; room is reserved piece by piece.
"""

import io
import logging
import time
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial

import trio
from cachetools import LRUCache, TTLCache
from msgspec import structs

from aisfs.cache.block_cache import BlockCache
from aisfs.cache.directory import CONTENT_MAX, EntryId, content_id
from aisfs.core.archive.decompression import Codec, Inflater, Piece, open_codec, read_piece
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.zip_columns import Stored
from aisfs.core.names.listing import Form
from aisfs.engine.fetcher import Fetcher
from aisfs.engine.parts import Cached, Data, OpenObject, whole_stream
from aisfs.errors import AisfsError, ArchiveTooLarge, ShardDamaged, Unavailable, Unsupported
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.stores.port import Arrived
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.threads import any_thread


@dataclass(slots=True, eq=False)
class WantedRange:
    """A range that a reader waits for."""

    start: int
    buffer: memoryview
    done: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + len(self.buffer)


def hand_over(wanted: WantedRange, position: int, data: memoryview) -> None:
    """Copy what of `data`, which starts at `position`, is wanted."""
    start = max(wanted.start, position)
    stop = min(wanted.stop, position + len(data))
    if start < stop:
        piece = data[start - position : stop - position]
        wanted.buffer[start - wanted.start : stop - wanted.start] = piece
        if stop == wanted.stop:
            wanted.done.set()


def fail_all(waiting: list[WantedRange], error: Exception) -> None:
    """Let all readers fail, and wait for none of them any more."""
    for wanted in waiting:
        wanted.error = error
        wanted.done.set()
    waiting.clear()


log = logging.getLogger(__name__)

PIECE = 2 << 20
"""Bytes decompressed at once: what a reader waits for at least, and a whole number of the cache's
checksums."""
SHARE = 0.75
"""Of the cache one archive's content may take; the rest is for its index and for other readers."""
PASSES = 4
"""Passes at once. Each keeps a processor busy and holds 34 MiB, more over a link with latency."""
PASS_BYTES = 64 << 20
"""A pass for so many bytes of the limit on memory: `xz -9` takes as much besides."""
PROGRESS_SECONDS = 10.0
CONTENTS_MAX = 10_000
"""Contents whose waiting readers are remembered."""
REFUSED_SECONDS = 300.0
"""An archive that was too large is not tried again for so long: each try would fill the cache."""

OpenCodec = Callable[[io.RawIOBase], Codec]
Feed = Callable[[int, memoryview], None]
"""Receives where the next decompressed bytes start, and these, in a worker thread; the view is only
valid during the call."""


class _Compressed(io.RawIOBase):
    """Compressed bytes as a file; read in a worker thread, fed from the trio thread."""

    def __init__(self, stream: AsyncGenerator[tuple[int, Data], None]) -> None:
        self._stream = stream
        self._left = memoryview(b"")
        self.done = 0
        """Bytes read so far."""

    async def _next(self) -> memoryview:
        async for _, data in self._stream:
            return memoryview(data)
        return memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: "bytearray | memoryview", /) -> int:  # type: ignore[override]
        """Copy what is there, after waiting for more if nothing is."""
        if not self._left:
            self._left = trio.from_thread.run(self._next)
        length = min(len(buffer), len(self._left))
        buffer[:length] = self._left[:length]
        self._left = self._left[length:]
        self.done += length
        return length


@dataclass(slots=True, eq=False)
class _Content:
    """Something that is made by decompressing."""

    name: str
    cache: BlockCache
    entry: EntryId
    stream: Callable[[], AsyncGenerator[tuple[int, Data], None]]
    """Yields the bytes that it is made of."""
    size: int
    """How many these are."""
    codec: OpenCodec
    limiter: trio.CapacityLimiter
    """Of passes like those that make it."""
    position: int = 0
    """Where the pass under way is; what lies before it has gone by."""
    passing: bool = False
    """Whether there is one."""
    served: bool = False
    """Whether there will be one for those that wait."""
    waiting: list[WantedRange] = field(default_factory=list)
    """For the pass under way."""
    later: list[WantedRange] = field(default_factory=list)
    """For the next one."""
    lock: trio.Lock = field(default_factory=trio.Lock)


@dataclass(frozen=True, slots=True)
class End:
    """How a pass ended."""

    size: int
    """Bytes that were decompressed."""
    damage: str
    """What is wrong behind them; empty when nothing is."""


class Unpacker:
    """Decompresses into the disk cache, and opens what is there."""

    def __init__(
        self, fetcher: Fetcher, services: trio.Nursery, *, cache: BlockCache | None
    ) -> None:
        """Read compressed bytes through `fetcher`, run passes in `services`.

        Args:
            fetcher: Also reads the content.
            services: Outlives every reader.
            cache: Where content is kept; without one nothing can be decompressed.
        """
        self._fetcher = fetcher
        self._services = services
        self._cache = cache
        self._lock = ranked_lock(Rank.UNPACKED_CONTENTS)
        """Guards `_contents`, which the dispatcher uses too; all else is the trio thread's."""
        self._contents: LRUCache[Hashable, _Content] = LRUCache(CONTENTS_MAX)
        self._refused: TTLCache[Hashable, str] = TTLCache(
            CONTENTS_MAX, REFUSED_SECONDS, trio.current_time
        )
        passes = min(max(fetcher.memory_limit // PASS_BYTES, 1), PASSES)
        self._limiter = trio.CapacityLimiter(passes)
        self._whole_limiter = trio.CapacityLimiter(passes)
        """Apart from the other one: what is decompressed may have to be copied first."""
        fetcher.take_whole = self._take_whole

    # What can be opened --------------------------------------------------------------------------

    async def stream(self, bucket: Bucket, shard: ObjectInfo, form: Form, feed: Feed) -> End:
        """Decompress all of a tar into the cache, and pass it to `feed` on the way.

        Raises:
            Unsupported: there is no cache, or no package for the form.
            ArchiveTooLarge: it does not fit into the cache, or takes too much memory.
            Stale: the shard changed meanwhile.
        """
        return await self._pass(self._tar(bucket, shard, form), feed)

    @any_thread
    def open_shard(self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex) -> OpenObject:
        """Return what the offsets of the index of a compressed shard refer to. Does not wait.

        Raises:
            Unsupported: there is no cache, or no package for the form.
        """
        content = self._tar(bucket, shard, index.form)
        return self._open(content, bucket, shard, index.object_size)

    def open_member(
        self, bucket: Bucket, info: ObjectInfo, stored: ByteRange, member: Stored
    ) -> OpenObject:
        """Return the content of a compressed member of a zip, which lies at `stored` of it.

        Raises:
            Unsupported: there is no cache.
            ArchiveTooLarge: it does not fit into the cache.
        """
        what = f"inflated from byte {stored.start}"
        content = self._content(
            bucket,
            info,
            what,
            stored,
            lambda file: Inflater(file, member.method, member.size, member.crc),
        )
        _check_size(content, member.size)
        return self._open(content, bucket, info, member.size)

    def _tar(self, bucket: Bucket, shard: ObjectInfo, form: Form) -> _Content:
        everything = ByteRange(0, shard.size)
        return self._content(bucket, shard, "decompressed", everything, partial(open_codec, form))

    def _content(
        self, bucket: Bucket, info: ObjectInfo, what: str, part: ByteRange, codec: OpenCodec
    ) -> _Content:
        with self._lock:
            known = self._contents.get((bucket, info, what))
        if known is not None:
            return known
        name = f"{bucket}/{info.key}"
        if self._cache is None:
            raise Unsupported(
                f"{name}: it has to be decompressed into the disk cache, and there is none:"
                " give --cache-size and --cache-dir"
            )
        place = self._fetcher.distinguished(bucket, info)
        entry = content_id(place, info, what, CONTENT_MAX)
        if entry is None:
            raise Unsupported(
                f"{name}: it has neither version nor checksum, so it cannot be kept decompressed"
            )
        stream = partial(self._stream, bucket, info, part)
        made = f"{name} ({what})"
        content = _Content(made, self._cache, entry, stream, len(part), codec, self._limiter)
        with self._lock:
            return self._contents.setdefault((bucket, info, what), content)

    def _stream(
        self, bucket: Bucket, info: ObjectInfo, part: ByteRange
    ) -> AsyncGenerator[tuple[int, Data], None]:
        return self._fetcher.stream(self._fetcher.open(bucket, info), part, held_up=False)

    def _take_whole(self, bucket: Bucket, info: ObjectInfo) -> Cached:
        """Return where an object is on disk that its store sends only whole, and what brings it there.

        Raises:
            Unsupported: there is no cache, or nothing distinguishes the version from others.
            ArchiveTooLarge: it does not fit into the cache.
        """
        name = f"{bucket}/{info.key}"
        entry = content_id(self._fetcher.distinguished(bucket, info), info, "whole", CONTENT_MAX)
        if self._cache is None or entry is None:
            lacks = "no disk cache: give --cache-size" if entry else "no version of it is known"
            raise Unsupported(f"{name}: the server sends files only whole, and there is {lacks}")
        limit = int(self._cache.limit * SHARE)
        if info.size > limit:
            raise ArchiveTooLarge(
                f"{name}: the server sends files only whole, and {info.size >> 20} MiB are more than"
                f" the {limit >> 20} MiB that the disk cache may hold of one: give a larger --cache-size"
            )
        stream = partial(whole_stream, self._fetcher.store, bucket, info, self._services)
        made = _Content(
            name, self._cache, entry, stream, info.size, io.BufferedReader, self._whole_limiter
        )
        with self._lock:
            content = self._contents.setdefault((bucket, info, "whole"), made)
        return self._cache, replace(entry, size=info.size), partial(self._read, content)

    def _open(self, content: _Content, bucket: Bucket, info: ObjectInfo, size: int) -> OpenObject:
        cached = (content.cache, replace(content.entry, size=size))
        source = partial(self._read, content)
        return self._fetcher.open_content(bucket, structs.replace(info, size=size), source, cached)

    # Reading -------------------------------------------------------------------------------------

    async def _read(
        self, content: _Content, start: int, buffer: memoryview, _: Arrived | None = None
    ) -> None:
        """Fill a buffer with what is not in the cache."""
        wanted = WantedRange(start, buffer)
        gone_by = content.passing and start < content.position
        if gone_by:
            there = ByteRange(wanted.start, wanted.stop)
            read = partial(content.cache.read, content.entry, there, buffer)
            if await trio.to_thread.run_sync(read) is not None:
                return
        gone_by = content.passing and start < content.position
        (content.later if gone_by else content.waiting).append(wanted)
        if not content.served:
            content.served = True
            self._services.start_soon(self._serve, content)
        await wanted.done.wait()
        if wanted.error is not None:
            raise wanted.error

    async def _serve(self, content: _Content) -> None:
        """Make passes until no reader waits. Raises nothing but Cancelled."""
        error: Exception = Unavailable("the mount is ending")
        try:
            while content.waiting or content.later:
                end = await self._pass(content)
                error = ShardDamaged(f"{content.name} ends at byte {end.size}: {end.damage}")
                fail_all(content.waiting, error)
        except AisfsError as failure:
            error = failure
        except Exception as failure:
            log.exception("decompressing failed: this is a bug in aisfs, please report it")
            error = failure
        finally:
            content.served = False
            fail_all(content.waiting, error)
            fail_all(content.later, error)

    # Passes --------------------------------------------------------------------------------------

    async def _pass(self, content: _Content, feed: Feed | None = None) -> End:
        """Decompress from the start: to the end, or until no reader gains by it."""
        refused = self._refused.get(content.entry)
        if refused is not None:
            raise ArchiveTooLarge(refused)
        cache = content.cache
        async with content.lock, content.limiter:
            content.passing, content.position = True, 0
            content.waiting += content.later
            content.later = []
            pinned = replace(content.entry, size=cache.limit)
            cache.pin(pinned)
            stream = content.stream()
            try:
                async with aclosing(stream):
                    return await self._decompress(content, _Compressed(stream), feed)
            except ArchiveTooLarge as error:
                self._refused[content.entry] = str(error)
                await trio.to_thread.run_sync(cache.drop, content.entry)
                raise
            finally:
                content.passing = False
                cache.unpin(pinned)

    async def _decompress(
        self, content: _Content, compressed: _Compressed, feed: Feed | None
    ) -> End:
        try:
            codec = content.codec(compressed)
        except Unsupported as error:
            raise Unsupported(f"{content.name}: {error}") from None
        buffer = memoryview(bytearray(PIECE))
        started = told = time.monotonic()
        while True:
            piece, kept = await trio.to_thread.run_sync(self._step, content, codec, buffer, feed)
            stop = content.position + piece.length
            for wanted in content.waiting:
                hand_over(wanted, content.position, buffer[: piece.length])
            content.waiting = [wanted for wanted in content.waiting if not wanted.done.is_set()]
            content.position = stop
            now = time.monotonic()
            if piece.length < len(buffer):
                log.info("%s: %d bytes in %.1f s", content.name, stop, now - started)
                return End(stop, piece.damage)
            if now - told >= PROGRESS_SECONDS:
                told = now
                share = 100 * compressed.done // max(1, content.size)
                log.info("%s: %d %%, %d MiB so far", content.name, share, stop >> 20)
            if feed is None and not content.waiting and (content.later or not kept):
                return End(stop, "")

    def _step(
        self, content: _Content, codec: Codec, buffer: memoryview, feed: Feed | None
    ) -> tuple[Piece, bool]:
        """Decompress a piece, feed it and retain it. Runs in a worker thread."""
        try:
            piece = read_piece(codec, buffer)
        except ArchiveTooLarge as error:
            raise ArchiveTooLarge(f"{content.name}: {error}") from None
        there = ByteRange(content.position, content.position + piece.length)
        _check_size(content, there.stop)
        if not there:
            return piece, True
        if feed is not None:
            feed(there.start, buffer[: piece.length])
        return piece, _retain(content, there, buffer)


def _retain(content: _Content, there: ByteRange, data: memoryview) -> bool:
    """Write what the cache does not have; return whether it has all of it then."""
    for gap in content.cache.missing(content.entry, there):
        reservation = content.cache.reserve(content.entry, gap, urgent=True)
        if reservation is None:
            return False
        with reservation:
            made = data[gap.start - there.start : gap.stop - there.start]
            reservation.write(gap.start, made)
            if not reservation.publish(gap, made):
                return False
    return True


def _check_size(content: _Content, size: int) -> None:
    limit = int(content.cache.limit * SHARE)
    if size > limit:
        raise ArchiveTooLarge(
            f"{content.name}: more than {limit >> 20} MiB, which is what the disk cache may"
            " hold of one archive: give a larger --cache-size"
        )
