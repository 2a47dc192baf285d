"""Reads of open objects and members: what to fetch for this read, and what ahead of it.

An object is read with a read-ahead window. Members of a shard that are read in the order of the tar
count as one sequential read of the shard. Members read in any other order are fetched together with
their sample, since a program that opens an image wants its label too; or alone, once it turns out that
the rest of the sample is not read.

The methods whose names begin with `try` answer at once or not at all, from any thread. If such a read
makes more bytes worth fetching, the trio thread fetches them. It is woken rarely, because waking it for
each read would cost more than the read.

Opening a member finds out where its bytes lie; the result is kept, so no read looks again. Two kinds of members are no plain
ranges: sparse ones, stored without their holes, which are zeros; and those of zips, found behind their own headers, inflated,
and compared with their checksums. A small member of a zip is read as a whole and verified before any of it is returned. A stored
one can then be read like a range of its object; an inflated one stays in memory for a while.
"""

import logging
import lzma
import os
import time
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio
from cachetools import LRUCache

from aisfs.core.archive.decompression import member_decompressor
from aisfs.core.archive.tar import SparseSegment, segments_of, sparse_segments
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.zip_columns import LOCAL_HEADER, Stored, data_offset
from aisfs.core.names.listing import STORED
from aisfs.core.policy.shard_readers import Access, MemberOrder
from aisfs.core.views.samples import SPAN_MAX, sample_span
from aisfs.engine.buffers import PART_MAX
from aisfs.engine.fetcher import Fetcher
from aisfs.engine.parts import Data, OpenObject, Reading, Received
from aisfs.engine.prefetcher import Prefetcher
from aisfs.engine.unpacker import Unpacker
from aisfs.errors import ShardDamaged
from aisfs.model import Bucket, ByteRange, ObjectInfo, aligned
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.threads import any_thread


class MemberReads:
    """How the members of one version of a shard are read. Does not hold its index in memory."""

    __slots__ = ("in_order", "opened", "order", "reported_until", "shard")

    def __init__(self, shard: ObjectInfo, opened: OpenObject, members: int) -> None:
        """Start without any read.

        Args:
            shard: The version.
            opened: What the offsets of its index refer to: the object, or what it is decompressed.
            members: How many it has.
        """
        self.shard = shard
        self.opened = opened
        self.order = MemberOrder(members)
        self.in_order = False
        """Whether members are being read in the order of the tar."""
        self.reported_until = 0.0
        """Until when the trio thread need not hear of it again."""

    def __str__(self) -> str:
        return f"{self.bucket}/{self.shard.key}"

    @property
    def bucket(self) -> Bucket:
        """The bucket of the shard."""
        return self.opened.bucket


MemberId = tuple[Bucket, ObjectInfo, int]


@dataclass(frozen=True, slots=True)
class OpenMember:
    """A member to be read."""

    reads: MemberReads
    index: MemberIndex
    row: int
    in_order: bool
    """Whether the members of the shard are read in the order of the tar."""

    @property
    def id(self) -> MemberId:
        """What distinguishes it from all other members."""
        return self.reads.bucket, self.reads.shard, self.row


HEAD = 64 * 1024
"""Bytes read first for the map of a member; four times as many each time it is longer."""
MAPS_MAX = 64
"""Maps kept, so that reading a member in order fetches its map once."""


class SparseReader:
    """Reads ranges of sparse members."""

    def __init__(self, fetcher: Fetcher) -> None:
        """Read what is stored through `fetcher`."""
        self._fetcher = fetcher
        self._maps: LRUCache[MemberId, tuple[SparseSegment, ...]] = LRUCache(MAPS_MAX)

    async def read(self, member: OpenMember, wanted: ByteRange) -> bytearray:
        """Lay the stored segments over zeros.

        Raises:
            ShardDamaged: the tar ends within the member, or it has no usable map.
        """
        index, row, opened = member.index, member.row, member.reads.opened
        length = max(min(wanted.stop, index.size(row)) - wanted.start, 0)
        content = bytearray(length)
        base, end = index.span(row).start, index.end_of(row)
        for segment in segments_of(await self._map(member), wanted.start, length):
            at = base + segment.stored
            if at + segment.length > end:
                raise ShardDamaged(f"the tar ends at byte {end}, within this member")
            stored = ByteRange(at, at + segment.length)
            start = segment.offset - wanted.start
            content[start : start + segment.length] = await self._fetcher.start(
                opened, stored
            ).wait()
        return content

    async def _map(self, member: OpenMember) -> tuple[SparseSegment, ...]:
        segments = self._maps.get(member.id)
        index, row, size = member.index, member.row, HEAD
        span = index.span(row)
        while segments is None:
            stop = min(span.start + size, span.stop, index.end_of(row))
            wanted = ByteRange(span.start, stop)
            head = await self._fetcher.start(member.reads.opened, wanted).wait()
            segments = sparse_segments(bytes(head), index.size(row))
            if segments is None and stop < span.start + size:
                raise ShardDamaged(
                    f"member {os.fsdecode(index.name(row))!r} has no usable sparse map"
                )
            size *= 4
        self._maps[member.id] = segments
        return segments


WHOLE_MAX = PART_MAX
"""Content of a member that is verified before it is given away, bytes: what one GET brings."""
INFLATED_MAX = 64 << 20
"""Inflated content kept in memory, bytes: that of some hundred images, each read more than once by
a reader that asks for a page first."""
INFLATED_SHARE = 8
"""It takes at most one part in so many of the limit on memory."""
PLACES_MAX = 100_000
"""Members for which it is remembered where their data starts."""
EARLY_MAX = 8 << 20
"""How far ahead of its turn a piece of a large member is held until those before it are read, bytes:
two windows of the kernel's read-ahead, whose pieces are answered in any order. It asks for the next
one when the first page of this one is looked at, there or not."""
SUMS_MAX = 16
"""Large members whose checksum is followed at a time; each may hold `EARLY_MAX` bytes."""
_INLINE_MAX = 32 * 1024
"""What is inflated without a thread, which costs more than the work, bytes."""

Fetch = Callable[[OpenMember, ByteRange], Awaitable[Data]]
"""Returns a range of the zip, for a member."""
Inflate = Callable[[MemberReads, ByteRange, Stored, ByteRange], Awaitable[Data]]
"""Returns a range of what is compressed at a range of the zip."""


class _RunningSum:
    """The checksum of a large member, as far as it was read from its start on."""

    def __init__(self) -> None:
        self.position = 0
        self.crc = 0
        self.damaged = False
        self._early: dict[int, Data] = {}
        """Pieces that came before their turn, by where they start."""

    def add(self, start: int, data: Data, member: Stored) -> None:
        """Follow what is given to readers.

        Raises:
            ShardDamaged: all of it has been seen, now or before, and is not what it should be.
        """
        if not start and not self.damaged:
            self.position = self.crc = 0
        if start == self.position:
            self._take(data)
        elif self.position < start < self.position + EARLY_MAX:
            self._early[start] = bytes(data)
        while (piece := self._early.pop(self.position, None)) is not None:
            self._take(piece)
        if self.position == member.size:
            self.damaged = self.crc != member.crc
            self._early.clear()
        if self.damaged:  # the kernel asks again for what it failed to read ahead
            raise ShardDamaged(_CRC)

    def _take(self, data: Data) -> None:
        self.crc = zlib.crc32(data, self.crc)
        self.position += len(data)


class ZipReader:
    """Reads ranges of members of zips."""

    def __init__(self, fetch: Fetch, inflate: Inflate, memory_limit: int) -> None:
        """Read with `fetch`, and large members that are deflated with `inflate`."""
        kept = min(INFLATED_MAX, memory_limit // INFLATED_SHARE)
        self._fetch = fetch
        self._inflate = inflate
        self._inflated: LRUCache[MemberId, Data] = LRUCache(kept, getsizeof=len)
        self._places: LRUCache[MemberId, int] = LRUCache(PLACES_MAX)
        """Where the data starts of members that are stored as they are, if it was verified."""
        self._sums: LRUCache[MemberId, _RunningSum] = LRUCache(SUMS_MAX)

    async def read(self, opened: OpenMember, wanted: ByteRange) -> Data:
        """Read a range of a member, cut at its end; empty behind the end.

        Raises:
            ShardDamaged: the member is not what its checksum says.
        """
        index, row = opened.index, opened.row
        stop = min(wanted.stop, index.size(row))
        if wanted.start >= stop:
            return b""
        wanted = ByteRange(wanted.start, stop)
        member = index.stored(row)
        try:
            if index.truncated(row):
                raise ShardDamaged("its data does not lie in the archive")
            if max(member.size, member.stored) > WHOLE_MAX:
                return await self._read_large(opened, member, wanted)
            return await self._read_small(opened, member, wanted)
        except ShardDamaged as error:
            raise ShardDamaged(
                f"{opened.reads}: member {os.fsdecode(index.name(row))!r}: {error}"
            ) from None

    async def _read_small(self, opened: OpenMember, member: Stored, wanted: ByteRange) -> Data:
        key = opened.id
        content = self._inflated.get(key)
        if content is None:
            place = self._places.get(key)
            if place is not None:
                return await self._fetch(
                    opened, ByteRange(place + wanted.start, place + wanted.stop)
                )
            data, place = await self._fetch_data(opened, member)
            work = partial(_verified, data, member)
            if max(member.stored, member.size) > _INLINE_MAX:
                content = await trio.to_thread.run_sync(work)
            else:
                content = work()
            if member.method == STORED:
                self._places[key] = place
            elif len(content) <= self._inflated.maxsize:
                self._inflated[key] = content
        return memoryview(content)[wanted.start : wanted.stop]

    async def _read_large(self, opened: OpenMember, member: Stored, wanted: ByteRange) -> Data:
        """Read a member that is too large to be verified first."""
        key = opened.id
        place = self._places.get(key)
        if place is None:
            header = ByteRange(member.start, member.start + LOCAL_HEADER)
            place = self._places[key] = member.start + _offset(await self._fetch(opened, header))
            if place + member.stored > opened.index.object_size:
                raise ShardDamaged("its data does not lie in the archive")
        if member.method != STORED:
            stored = ByteRange(place, place + member.stored)
            return await self._inflate(opened.reads, stored, member, wanted)
        if member.stored != member.size:
            raise ShardDamaged(f"it is not {member.size} bytes long")
        data = await self._fetch(opened, ByteRange(place + wanted.start, place + wanted.stop))
        running = self._sums.get(key)
        if running is None:
            running = self._sums[key] = _RunningSum()
        running.add(wanted.start, data, member)
        return data

    async def _fetch_data(self, opened: OpenMember, member: Stored) -> tuple[Data, int]:
        """Fetch all of a member as it is stored; return also where that starts."""
        span = opened.index.data_range(opened.row)
        head = await self._fetch(opened, span)
        start = _offset(head)
        missing = start + member.stored - len(head)
        if missing > 0:  # its header is longer than those of usual writers
            rest = ByteRange(span.stop, span.stop + missing)
            if rest.stop > opened.index.object_size:
                raise ShardDamaged("its data does not lie in the archive")
            head = b"".join((head, await self._fetch(opened, rest)))
        return memoryview(head)[start : start + member.stored], span.start + start


_CRC = "its content is not what its checksum says"


def _offset(head: Data) -> int:
    offset = data_offset(bytes(head[:LOCAL_HEADER]))
    if offset is None:
        raise ShardDamaged("there is no header where it should start")
    return offset


def _verified(data: Data, member: Stored) -> Data:
    """Inflate what is stored and compare it with its checksum."""
    content = data
    if member.method != STORED:
        try:
            stream = member_decompressor(member.method, member.size)
            content = stream.decompress(bytes(data), member.size + 1)
        except (zlib.error, lzma.LZMAError, OSError, ValueError) as error:
            raise ShardDamaged(f"it does not inflate: {error}") from None
    if len(content) != member.size:
        raise ShardDamaged(f"it is not {member.size} bytes long")
    if zlib.crc32(content) != member.crc:
        raise ShardDamaged(_CRC)
    return content


log = logging.getLogger(__name__)

BLOCK = 4096
"""Reads of objects are fetched in whole pages of the kernel's and of the disk cache."""
LARGE = 128 * 1024
"""A first request of this size is more than a look at a header. For the largest buffer with which
`file`, tarfile or numpy look at one (16 KiB), the kernel reads 64 KiB; for that of cat or cp, 512 KiB."""
ORDERS_MAX = 10_000
"""For how many shards to remember in which order their members are read."""
REPORT_SECONDS = 0.2
"""The trio thread is woken at most this often while an object is read in order."""


class Reader:
    """Reads ranges of objects and of members."""

    def __init__(self, fetcher: Fetcher, prefetcher: Prefetcher, unpacker: Unpacker) -> None:
        """Read through `fetcher`, and report to `prefetcher` which shards are being read.

        Content that has to be decompressed first comes from `unpacker`.
        """
        self._unpacker = unpacker
        self._fetcher = fetcher
        self._prefetcher = prefetcher
        self._zips = ZipReader(self._fetch, self._inflate, fetcher.memory_limit)
        self._sparse = SparseReader(fetcher)
        self._token = trio.lowlevel.current_trio_token()
        self._lock = ranked_lock(Rank.MEMBER_READS)
        """Guards `_orders` and what is in them."""
        self._orders: LRUCache[tuple[Bucket, ObjectInfo], MemberReads] = LRUCache(ORDERS_MAX)

    # opening, without waiting --------------------------------------------------------------------

    @any_thread
    def open_shard(self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex) -> MemberReads:
        """Return how the members of a shard are read.

        Raises:
            Unsupported: it is compressed, and there is no cache.
        """
        with self._lock:
            known = self._orders.get((bucket, shard))
        if known is None:
            if index.form.compressed:
                opened = self._unpacker.open_shard(bucket, shard, index)
            else:
                opened = self._fetcher.open(bucket, shard)
            known = MemberReads(shard, opened, len(index))
            with self._lock:
                known = self._orders.setdefault((bucket, shard), known)
        return known

    @any_thread
    def open_member(
        self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex, row: int, *, again: bool
    ) -> OpenMember:
        """Return a member to read; `again` if it was opened before, and this is another read."""
        reads = self.open_shard(bucket, shard, index)
        if not again and self._observe_opening(reads, row):
            self._report(reads)
        return OpenMember(reads, index, row, reads.in_order)

    def _observe_opening(self, reads: MemberReads, row: int) -> bool:
        """Follow the order of openings; return whether the prefetcher should hear of this one."""
        with self._lock:
            in_order = reads.order.observe(row) is Access.IN_ORDER
            changed, reads.in_order = in_order != reads.in_order, in_order
        return _is_due(reads, at_once=changed)

    def _report(self, reads: MemberReads) -> None:
        if reads.in_order:
            self._prefetcher.in_order(reads.bucket, reads.shard)
        elif not reads.opened.cached_by_source:  # else the object itself is no longer needed
            self._prefetcher.touched(reads.bucket, reads.shard)

    def brings_whole(self, reads: MemberReads) -> bool:
        """Have a shard fetched whole, if all shards beside it fit the cache; return whether it is, or was."""
        if reads.opened.cached_by_source:
            return False
        return self._prefetcher.brings(reads.bucket, reads.shard)

    @any_thread
    def folder_listed(self, bucket: Bucket, shard: ObjectInfo) -> None:
        """Report that the folder of a shard is being listed."""
        self._later(lambda: self._prefetcher.folder_listed(bucket, shard))

    # reading, without waiting --------------------------------------------------------------------

    @any_thread
    def try_read_object(self, bucket: Bucket, info: ObjectInfo, wanted: ByteRange) -> Data | None:
        """Read a range of an object, cut at its end; None when the bytes are not here."""
        wanted = ByteRange(wanted.start, min(wanted.stop, info.size))
        if wanted.start >= wanted.stop:
            return b""
        opened = self._fetcher.open(bucket, info)
        data = opened.try_read(wanted)
        if data is not None and self._observe_read(opened, wanted) and _is_due(opened):
            self._later(lambda: self._prefetcher.in_order(bucket, info))
        return data

    @any_thread
    def when_here(
        self,
        bucket: Bucket,
        info: ObjectInfo,
        wanted: ByteRange,
        then: Callable[[Received], None],
    ) -> bool:
        """Read a range of an object when it has been received, if it is under way: see `OpenObject.when_here`."""
        wanted = ByteRange(wanted.start, min(wanted.stop, info.size))
        if wanted.start >= wanted.stop:  # another version of it is known by now
            return False
        opened = self._fetcher.open(bucket, info)
        if not opened.when_here(wanted, then):
            return False
        far = self._fetcher.high_latency
        with opened.lock:
            plan = opened.read_ahead.observe(wanted, stalled=True, high_latency=far)
        self._fetch_ahead(opened, plan.ahead)
        if plan.sequential and _is_due(opened):
            if wanted.start or len(wanted) >= LARGE:
                self._later(lambda: self._prefetcher.streamed(bucket, info))
            self._later(lambda: self._prefetcher.in_order(bucket, info))
        return True

    @any_thread
    def try_read_member(
        self, reads: MemberReads, index: MemberIndex, row: int, wanted: ByteRange
    ) -> Data | None:
        """Read a range of a member, cut at its end; None when the bytes are not here.

        Raises:
            ShardDamaged: the range lies behind the end of a truncated shard.
        """
        if index.packing is not None or index.sparse(row):
            return None  # its bytes are not stored as they are read
        stored = index.read_range(row, wanted.start, len(wanted))
        if stored.start >= stored.stop:
            return b""
        data = reads.opened.try_read(stored)
        if data is None:
            return None
        # The first read of a member counts as opening it.
        if wanted.start == 0 and self._observe_opening(reads, row):
            self._later(lambda: self._report(reads))
        if reads.in_order:
            self._observe_read(reads.opened, stored)
        return data

    def _observe_read(self, opened: OpenObject, wanted: ByteRange) -> bool:
        """Record a read and start fetching ahead of it; return whether it was sequential."""
        with opened.lock:
            plan = opened.read_ahead.observe(wanted, stalled=False)
        self._fetch_ahead(opened, plan.ahead)
        return plan.sequential

    def pushed(
        self, reads: MemberReads, row: int, last: int, stored: ByteRange, *, stalled: bool
    ) -> None:
        """Record bytes that were pushed, so that their reader need not ask for them.

        Args:
            reads: How the members of the shard are read.
            row: The member this reader is known to have opened last.
            last: The last member it need not ask for.
            stored: The pushed bytes or, if there were none, those that the reader will need next.
            stalled: Whether more would have been pushed, had the bytes been here.
        """
        with self._lock:
            reads.order.pushed(row, last)
        if reads.in_order:
            with reads.opened.lock:
                plan = reads.opened.read_ahead.pushed(stored, stalled=stalled)
            self._fetch_ahead(reads.opened, plan.ahead)

    def _fetch_ahead(self, opened: OpenObject, ahead: ByteRange | None) -> None:
        if ahead is not None:
            self._later(lambda: self._fetcher.ahead(opened, ahead))

    def _later(self, work: Callable[[], None]) -> None:
        """Run `work` in the trio thread."""

        def run() -> None:
            try:
                work()
            except Exception:
                log.exception("reading ahead failed: this is a bug in aisfs, please report it")

        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(run)

    # reading, in the trio thread -----------------------------------------------------------------

    async def read_object(self, bucket: Bucket, info: ObjectInfo, wanted: ByteRange) -> Data:
        """Read a range of an object, cut at its end; empty beyond the end.

        Raises:
            Stale: the object is no longer the version `info`.
        """
        wanted = ByteRange(wanted.start, min(wanted.stop, info.size))
        if wanted.start >= wanted.stop:
            return b""
        opened = self._fetcher.open(bucket, info)
        blocks = aligned(wanted, BLOCK, info.size)
        reading, sequential = self._start(opened, blocks)
        if sequential and (wanted.start or len(wanted) >= LARGE):
            self._prefetcher.streamed(bucket, info)
        data = await reading.wait()
        if sequential and _is_due(opened):
            self._prefetcher.in_order(bucket, info)
        if blocks == wanted:
            return data
        start = wanted.start - blocks.start
        return memoryview(data)[start : start + len(wanted)]

    async def read_whole(
        self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex, row: int
    ) -> Data:
        """Read all of a member, as one of many that are read in order.

        Raises:
            Stale, ShardDamaged: see `read_member`.
        """
        member = OpenMember(self.open_shard(bucket, shard, index), index, row, in_order=True)
        return await self.read_member(member, ByteRange(0, index.size(row)))

    async def read_member(self, member: OpenMember, wanted: ByteRange) -> Data:
        """Read a range of a member, cut at its end; empty beyond the end.

        Raises:
            Stale: the shard has changed meanwhile.
            ShardDamaged: the range lies behind the end of a truncated shard.
        """
        index, row = member.index, member.row
        if index.packing is not None:
            return await self._zips.read(member, wanted)
        try:
            if index.sparse(row):
                return await self._sparse.read(member, wanted)
            stored = index.read_range(row, wanted.start, len(wanted))
        except ShardDamaged as error:
            raise ShardDamaged(f"{member.reads}: {error}") from error
        return await self._fetch(member, stored) if stored else b""

    async def _fetch(self, member: OpenMember, stored: ByteRange) -> Data:
        """Fetch stored bytes of a member, and start to fetch what will probably be read with them."""
        opened, index, row = member.reads.opened, member.index, member.row
        if member.in_order:
            return await self._start(opened, stored)[0].wait()
        span = sample_span(index, row)
        within = span.start <= stored.start and stored.stop <= span.stop
        if not within or len(span) > SPAN_MAX:
            return await self._start(opened, stored)[0].wait()
        reading = self._fetcher.start(opened, stored)
        if not reading.ready and span != stored:
            self._fetcher.ahead(opened, span)
        return await reading.wait()

    def _start(self, opened: OpenObject, wanted: ByteRange) -> tuple[Reading, bool]:
        """Begin a read, with read-ahead; return also whether it belongs to a sequential stream."""
        reading = self._fetcher.start(opened, wanted)
        far = self._fetcher.high_latency
        with opened.lock:
            plan = opened.read_ahead.observe(wanted, stalled=not reading.ready, high_latency=far)
        if plan.ahead is not None:
            self._fetcher.ahead(opened, plan.ahead)
        return reading, plan.sequential

    async def _inflate(
        self, reads: MemberReads, stored: ByteRange, member: Stored, wanted: ByteRange
    ) -> Data:
        opened = self._unpacker.open_member(reads.bucket, reads.shard, stored, member)
        return await self._start(opened, wanted)[0].wait()


def _is_due(read: OpenObject | MemberReads, *, at_once: bool = False) -> bool:
    """Return whether to report again that an object is being read: now and then, or `at_once`."""
    now = time.monotonic()
    if read.reported_until > now and not at_once:
        return False
    read.reported_until = now + REPORT_SECONDS
    return True
