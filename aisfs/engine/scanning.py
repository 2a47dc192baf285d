"""The scan of a shard without an index: its bytes as one stream, or from one header to the next.

The scan reads through the fetcher, so that a reader need not fetch again what was streamed. It
runs in worker threads, part by part; the trio thread goes on answering.

The stream of a plain tar fills the disk cache. Where the cache could not keep the data anyway, data is skipped if that is
cheaper: `core.policy.shard_readers` decides by what the fetcher has measured of the link.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio
from cachetools import LRUCache

from aisfs.cache.directory import CONTENT_MAX
from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.archive.zip import ZipScanner
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import LabelColumn, ScanRules
from aisfs.core.names.listing import Form
from aisfs.core.policy.shard_readers import (
    UNMEASURED,
    ScanPace,
    break_even,
    fits,
    step,
    too_long,
)
from aisfs.core.views.sample_views import UNUSABLE, LabelScan, label_column, label_rows, read_label
from aisfs.core.views.spec import LabelRule
from aisfs.engine.buffers import FIRST_PART
from aisfs.engine.fetcher import STREAM_BYTES, Fetcher
from aisfs.engine.listing import Lister
from aisfs.engine.parts import Data, OpenObject
from aisfs.engine.unpacker import Unpacker
from aisfs.errors import ShardDamaged
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.settings import Scan

log = logging.getLogger(__name__)

STREAMS = 4
"""Shards streamed at once at most: each keeps several requests busy."""
STREAMED_MAX = 128 << 20
"""Bytes of all shards streamed at once, unless it is one. Of more, all would be whole later, and take as
much more memory until then: with four of 55 MB at once, eight readers took 1,009 MB; with two, 310."""
WALKS = 16
"""Shards at once whose headers are read: each waits for one request at a time."""
AT_ONCE_MAX = 64 << 10
"""Bytes that are scanned in less time than handing them to a thread takes."""
LEARNED_MAX = 4 << 20
"""Bytes of the longest first piece of a scan. What is under way of it is in vain where this shard has larger members."""
LOG_SECONDS = 10.0
"""Between lines of the log about scans that skip data."""
DIRECTORIES_MAX = 1000
"""Directories for which it is remembered how much data they have, and how their shards are best read."""


class TarSight:
    """Shows a tar to the scans of its members and of its labels."""

    def __init__(self, scanner: TarScanner, labels: LabelScan | None = None) -> None:
        """Feed `scanner`, and `labels` behind it."""
        self._scanner = scanner
        self._labels = labels

    @property
    def needed(self) -> int:
        """The first byte that has to be looked at; the size of the tar if there is none."""
        label = self._labels.needed if self._labels is not None else None
        return self._scanner.needed if label is None else min(label, self._scanner.needed)

    def feed(self, start: int, data: memoryview) -> None:
        """Look at bytes in their order."""
        self._scanner.feed(data)
        if self._labels is not None:
            self._labels.feed(start, data)

    def look(self, start: int, data: memoryview, even: int, within: int) -> int:
        """Look at those bytes that are needed; return how many lay in stretches longer than `even`.

        Args:
            start: Where the bytes are in the tar, at most at the first that is needed.
            data: The bytes.
            even: The break-even.
            within: The length of the piece that they are a part of.
        """
        stop, skippable = start + len(data), 0
        position, length = max(start, min(self.needed, stop)), step(within)
        while position < stop:
            end = min(position + length, stop)
            self._scanner.seek(position)
            self.feed(position, data[position - start : end - start])
            needed = self.needed
            if needed - end > even:
                skippable += min(needed, stop) - end
            position = max(end, min(needed, stop))
        return skippable


@dataclass(slots=True)
class ScanReport:
    """What scans of plain tars have cost."""

    streamed: int = 0
    """Shards that were read whole."""
    walked: int = 0
    """Shards whose data was skipped where that was cheaper."""
    walked_size: int = 0
    """Their bytes."""
    walked_read: int = 0
    """How many of these were read."""
    latency: float | None = None
    """Seconds of a small request, as last measured."""
    rate: float | None = None
    """Bytes a second, as last measured."""
    even: int = 0
    """Longer data was skipped last."""


class StreamTurns:
    """Lets few shards be streamed at once, in the order in which they came."""

    def __init__(self) -> None:
        """Start without any."""
        self._next = trio.Lock()
        self._ended = trio.Event()
        self._sizes: list[int] = []
        """Of those under way."""

    @asynccontextmanager
    async def take(self, size: int) -> AsyncIterator[None]:
        """Wait until a shard of `size` bytes may be streamed, which the block does."""
        async with self._next:
            while self._sizes and (
                len(self._sizes) == STREAMS or sum(self._sizes) + size > STREAMED_MAX
            ):
                await self._ended.wait()
            self._sizes.append(size)
        try:
            yield
        finally:
            self._sizes.remove(size)
            self._ended.set()
            self._ended = trio.Event()


class TarFeeder:
    """Reads plain tars for their scans."""

    def __init__(
        self, fetcher: Fetcher, lister: Lister | None = None, *, mode: Scan = Scan.AUTO
    ) -> None:
        """Read through `fetcher`.

        Args:
            fetcher: Reads the tars, and has measured the link.
            lister: Knows how much data lies beside a tar.
            mode: What the user wants.
        """
        self._fetcher = fetcher
        self._lister = lister
        self._mode = mode
        self._expected: int | None = None
        self._sizes: LRUCache[tuple[Bucket, str], tuple[object, int]] = LRUCache(DIRECTORIES_MAX)
        self._lengths: LRUCache[tuple[Bucket, str], int] = LRUCache(DIRECTORIES_MAX)
        """Of the pieces in which the latest shard was read at its end: the next one begins with such."""
        self._turns = StreamTurns()
        self._walks = 0
        """Walks under way."""
        self._logged = float("-inf")
        self.report = ScanReport()

    def expect(self, total: int) -> None:
        """Count on readers of so many bytes, all shards of a dataset together."""
        self._expected = total

    @property
    def at_once(self) -> int:
        """How many shards are best scanned at once."""
        cache = self._fetcher.cache
        fitting = cache is not None and fits(self._expected or 0, cache.limit)
        return STREAMS if self._mode is Scan.STREAM or (self._auto and fitting) else WALKS

    @property
    def _auto(self) -> bool:
        return self._mode is Scan.AUTO

    async def feed(self, bucket: Bucket, shard: ObjectInfo, sight: TarSight) -> None:
        """Show a tar to its scans.

        Raises:
            Stale: the shard changed meanwhile.
        """
        opened = self._fetcher.open(bucket, shard)
        if self._mode is Scan.STREAM or (self._auto and await self._is_kept(opened)):
            self.report.streamed += 1
            async with self._turns.take(shard.size):
                async for start, data in self._fetcher.stream(opened, as_whole=True):
                    await trio.to_thread.run_sync(sight.feed, start, memoryview(data))
            return
        self.report.walked += 1
        self._walks += 1
        try:
            await self._walk(opened, sight)
        finally:
            self._walks -= 1

    async def _is_kept(self, opened: OpenObject) -> bool:
        """Return whether the data around a shard would be in the disk cache when it has been read."""
        if opened.cache is None or opened.entry is None:
            return False
        total = self._expected
        if total is None:
            total = await self._size_around(opened.bucket, opened.info)
        return fits(max(total, opened.info.size), opened.cache.limit)

    async def _size_around(self, bucket: Bucket, shard: ObjectInfo) -> int:
        """Return the bytes of all objects in a shard's directory, as it was last listed."""
        directory = _directory(bucket, shard)
        listing = self._lister.last_listing(*directory) if self._lister is not None else None
        if listing is None:
            return shard.size
        known, total = self._sizes.get(directory, (None, 0))
        if known is not listing:
            total = await trio.to_thread.run_sync(listing.total_size)
            self._sizes[directory] = listing, total
        return total

    async def _walk(self, opened: OpenObject, sight: TarSight) -> None:
        size, read, looked_until = opened.info.size, 0, 0
        link, report = self._fetcher.link, self.report
        directory = _directory(opened.bucket, opened.info)
        pace = ScanPace(size, self._lengths.get(directory, 0))
        report.walked_size += size
        while (needed := sight.needed) < size:
            report.latency, report.rate = link.latency, link.rate
            even = break_even(report.latency, report.rate, self._walks)
            # What lies between is the rest of a member. If it is not worth skipping, its reader finds
            # all of the member in memory.
            rest = needed - looked_until
            piece = pace.next_piece(looked_until if 0 < rest <= (even or 0) else needed, even)
            report.even = even or UNMEASURED
            looked, skippable = await self._look(opened, piece, sight, report.even)
            looked_until = piece.start + looked
            pace.observe(looked, skippable)
            read += looked
            report.walked_read += looked
        self._lengths[directory] = min(pace.length, LEARNED_MAX)
        self._tell(opened, read)

    async def _look(
        self, opened: OpenObject, piece: ByteRange, sight: TarSight, even: int
    ) -> tuple[int, int]:
        """Look at a piece; return how much of it was read, and how much of that could be skipped."""
        looked = total = 0
        # What is too small to be worth its place on disk comes again with the data around it.
        parts = self._fetcher.stream(
            opened,
            piece,
            at_once=STREAM_BYTES // self._walks,
            to_disk=len(piece) >= FIRST_PART,
        )
        async with aclosing(parts):
            async for start, data in parts:
                view = memoryview(data)
                if len(view) <= AT_ONCE_MAX:
                    skippable = sight.look(start, view, even, len(piece))
                else:
                    skippable = await trio.to_thread.run_sync(
                        sight.look, start, view, even, len(piece)
                    )
                looked += len(view)
                total += skippable
                if too_long(len(view), skippable):
                    break
        return looked, total

    def _tell(self, opened: OpenObject, read: int) -> None:
        """Log what was skipped, now and then."""
        now, report = trio.current_time(), self.report
        level = logging.DEBUG
        if now - self._logged >= LOG_SECONDS:
            self._logged, level = now, logging.INFO
        log.log(
            level,
            "scan of %s/%s: read %d of %d bytes, skipped data of more than %d bytes"
            " (a request takes %s, the link carries %s)",
            opened.bucket, opened.info.key, read, opened.info.size, report.even,
            "?" if report.latency is None else f"{1000 * report.latency:.1f} ms",
            "?" if report.rate is None else f"{report.rate / 1e6:.0f} MB/s",
        )  # fmt: skip


def _directory(bucket: Bucket, shard: ObjectInfo) -> tuple[Bucket, str]:
    """Return where a shard lies."""
    prefix, slash, _ = shard.key.rpartition("/")
    return bucket, prefix + slash


ReadContent = Callable[[Bucket, ObjectInfo, MemberIndex, int], Awaitable[Data]]
"""Reads all of a member, which a row of the index stands for."""
ReadLocal = Callable[[int, int], bytes]
"""Returns the bytes at an offset of a local file; fewer than asked for only at its end."""

_USUAL = ScanRules()
LOCAL_READ = 256 << 10
"""Bytes of a local tar read at once: some hundred small members, or the header of a large one."""


class ShardScanner:
    """Makes indexes by reading shards."""

    def __init__(
        self,
        fetcher: Fetcher,
        unpacker: Unpacker,
        feeder: TarFeeder | None = None,
        *,
        rules: ScanRules = _USUAL,
    ) -> None:
        """Read shards through `fetcher`.

        Args:
            fetcher: Reads the shards.
            unpacker: Opens what is compressed as a whole.
            feeder: Reads plain tars; without it they are read as by default.
            rules: What decides which members are shown.
        """
        self._fetcher = fetcher
        self._unpacker = unpacker
        self.feeder = feeder or TarFeeder(fetcher)
        self._rules = rules
        self.nesting = rules.nesting

    async def scan(self, bucket: Bucket, shard: ObjectInfo, form: Form) -> MemberIndex:
        """Return the index of a shard.

        Raises:
            Stale: the shard changed meanwhile.
        """
        if form is Form.ZIP:
            return await self._scan_zip(bucket, shard)
        return await self._scan_tar(bucket, shard, form, self._scanner(shard.size, form))

    async def scan_labels(
        self,
        bucket: Bucket,
        shard: ObjectInfo,
        form: Form,
        rule: LabelRule,
        read: ReadContent,
    ) -> tuple[MemberIndex, LabelColumn]:
        """Return the index of a shard and the labels in its contents, both from one pass.

        Raises:
            Stale: the shard changed meanwhile.
        """
        if form is Form.ZIP:  # its members are read one by one
            index = await self._scan_zip(bucket, shard)
            return index, await read_labels(rule, index, partial(read, bucket, shard, index))
        scanner = self._scanner(shard.size, form)
        labels = LabelScan(rule, scanner.rows)
        index = await self._scan_tar(bucket, shard, form, scanner, labels)
        return index, await trio.to_thread.run_sync(labels.finish, index)

    def rescan_local(self, index: MemberIndex, size: int, read: ReadLocal) -> MemberIndex:
        """Return the index of a plain tar on the local disk, with the tars inside it if those are
        opened. For a worker thread.
        """
        if not self.nesting:
            return index
        scanner = self._scanner(size, Form.TAR)
        scan_local(scanner, size, read)
        return scanner.finish()

    def _scanner(self, size: int, form: Form) -> TarScanner:
        # How long the content of a compressed one is, is known when it has all been seen.
        size = CONTENT_MAX if form.compressed else size
        return TarScanner(size, ignore_zeros=self._rules.ignore_zeros, nesting=self.nesting)

    async def _scan_zip(self, bucket: Bucket, shard: ObjectInfo) -> MemberIndex:
        """Read the directory of a zip, which is all at its end."""
        scanner = ZipScanner(shard.size, self._rules.encoding)
        opened = self._fetcher.open(bucket, shard)
        while (wanted := scanner.wanted) is not None:
            data = await self._fetcher.start(opened, wanted).wait()
            await trio.to_thread.run_sync(scanner.feed, memoryview(data))
        return await trio.to_thread.run_sync(scanner.finish)

    async def _scan_tar(
        self,
        bucket: Bucket,
        shard: ObjectInfo,
        form: Form,
        scanner: TarScanner,
        labels: LabelScan | None = None,
    ) -> MemberIndex:
        """Scan a tar as it streams by, decompressed if it has to be."""
        sight = TarSight(scanner, labels)
        if form.compressed:
            end = await self._unpacker.stream(bucket, shard, form, sight.feed)
            warning = f"damaged behind byte {end.size} of its content: {end.damage}"
            # A name such as x.tgz may be wrong.
            warning += "" if end.size else "; --magic goes by content, not by the name"
            scanner.end_at(end.size, warning if end.damage else "")
            return await trio.to_thread.run_sync(scanner.finish, form)
        await self.feeder.feed(bucket, shard, sight)
        return await trio.to_thread.run_sync(scanner.finish)


async def read_labels(
    rule: LabelRule, index: MemberIndex, read: Callable[[int], Awaitable[Data]]
) -> LabelColumn:
    """Read labels member by member; a damaged one has none."""
    labels = []
    for row in label_rows(rule, index):
        try:
            label = read_label(rule, bytes(await read(row)))
        except ShardDamaged:
            label = UNUSABLE
        labels.append((row, label))
    return label_column(labels)


def scan_local(scanner: TarScanner, size: int, read: ReadLocal) -> None:
    """Feed a scanner what it needs of a tar on the local disk."""
    while (start := scanner.needed) < size:
        scanner.seek(start)
        scanner.feed(read(start, LOCAL_READ))
