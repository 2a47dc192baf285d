"""The scan of a shard, as it streams by or from one header to the next.

It reads through the fetcher, so that what it has streamed need not be fetched again by a reader. It
runs in worker threads, part by part; the trio thread goes on answering.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from aisfs.cache.format import CONTENT_MAX
from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.archive.zip import ZipScanner
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import LabelColumn, ScanRules
from aisfs.core.names.formats import Form
from aisfs.core.views.sample_views import UNUSABLE, LabelScan, label_column, label_rows, read_label
from aisfs.core.views.spec import LabelRule
from aisfs.engine.fetch.fetcher import Fetcher
from aisfs.engine.fetch.part import Data
from aisfs.engine.read.header_scan import TarFeeder, TarSight
from aisfs.engine.read.unpacker import Unpacker
from aisfs.errors import ShardDamaged
from aisfs.model import Bucket, ObjectInfo

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
