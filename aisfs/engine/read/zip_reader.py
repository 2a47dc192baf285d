"""Members of zips: found behind their own headers, inflated, and compared with their checksums.

A small member is read as a whole and verified before any of it is given away. One that is stored as
it is can then be read like a range of its object; one that was inflated stays in memory for a while.
"""

import lzma
import zlib
from collections.abc import Awaitable, Callable
from functools import partial

import trio
from cachetools import LRUCache

from aisfs.core.archive.decompression import member_decompressor
from aisfs.core.index.zip_columns import LOCAL_HEADER, Stored, data_offset
from aisfs.core.names.formats import STORED
from aisfs.engine.fetch.buffers import PART_MAX
from aisfs.engine.fetch.part import Data
from aisfs.engine.read.open_member import MemberId, MemberReads, OpenMember
from aisfs.errors import ShardDamaged
from aisfs.model import ByteRange

WHOLE_MAX = PART_MAX
"""Content of a member that is verified before it is given away, bytes: what one GET brings."""
INFLATED_MAX = 64 << 20
"""Inflated content kept in memory, bytes: that of some hundred images, each read more than once by
a reader that asks for a page first."""
INFLATED_SHARE = 8
"""It takes at most one part in so many of the limit on memory."""
PLACES_MAX = 100_000
"""Members of which is remembered where their data starts."""
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
            raise ShardDamaged(f"{opened.reads}: member {index.name(row)!r}: {error}") from None

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
