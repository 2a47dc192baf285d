"""The published indexes of shards that `aisfs pack` writes, whose members are known without reading them."""

from collections.abc import Iterable, Iterator, Sequence

import trio

from aisfs.app.publishing.published import Shelf, find_published, publish
from aisfs.core.archive.tar import BLOCK
from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import LabelColumn, PublishedIndex, ScanRules
from aisfs.core.views.sample_views import LabelScan
from aisfs.core.views.spec import LabelRule
from aisfs.engine.dataset.shard_set import Shard
from aisfs.engine.shards import saved_as
from aisfs.errors import InvalidName, IsADirectory, NameTooLong, NotADirectory, Unsupported
from aisfs.stores.port import Content

RULES = ScanRules()
"""What usual mounts scan by."""
_UNPUBLISHABLE = (InvalidName, IsADirectory, NameTooLong, NotADirectory, Unsupported)
"""What is wrong with the name, or the index, of one shard."""
_LABEL_READ = 64 << 10
"""Bytes of a label read at once; a number has one or two."""


async def publish_packed(
    shelf: Shelf, shard: Shard, content: Content, rules: Sequence[LabelRule]
) -> str:
    """Publish the index of a shard that has just been written, or was there already.

    Returns:
        Why there is no index; empty where there is one.

    Raises:
        AccessDenied: there will be none of any shard.
    """
    found = await find_published(shelf, shard, RULES)
    names = set(map(saved_as, rules))
    if isinstance(found.index, PublishedIndex) and names <= found.index.labels.keys():
        return ""
    index, labels = await trio.to_thread.run_sync(_scan, content, rules)
    try:
        await publish(shelf.store, shelf, shard, index, labels, RULES)
    except _UNPUBLISHABLE as error:
        return str(error)
    return ""


def _scan(
    content: Content, rules: Sequence[LabelRule]
) -> tuple[MemberIndex, dict[str, LabelColumn]]:
    """Scan the headers and the labels of a shard; no other file is opened."""
    scanner = TarScanner(content.size)
    scans = {rule: LabelScan(rule, scanner.rows) for rule in rules}
    while (start := min([scanner.needed, *_needed(scans.values())])) < content.size:
        most = BLOCK if start == scanner.needed else _LABEL_READ
        piece = bytearray(min(most, content.size - start))
        content.read_into(start, memoryview(piece))
        scanner.seek(start)
        scanner.feed(bytes(piece))
        for scan in scans.values():
            scan.feed(start, memoryview(piece))
    index = scanner.finish()
    return index, {saved_as(rule): scan.finish(index) for rule, scan in scans.items()}


def _needed(scans: Iterable[LabelScan]) -> Iterator[int]:
    """Yield the next byte that each scan of labels needs; none of those that need none yet."""
    for scan in scans:
        if scan.needed is not None:
            yield scan.needed
