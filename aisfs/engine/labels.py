"""Labels of a plain tar whose index is known: only the members that hold them are fetched.

Where the cluster has GetBatch, one request brings the labels of a whole shard: a thousand ranges, each a header block and a
content. The reply has nothing but the order to say which range is which, so it is compared with the index: a member that is not
the expected one means that one of the two is wrong. Labels in the disk cache are read there. All others are fetched range by
range, several at once, and neighbours together.

A reply that makes no sense costs time, never a label: ranges follow, which are of one version of
the shard. If these do not fit the index either, the index is wrong, and the shard has to be scanned.
"""

import logging
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import trio

from aisfs.cache.block_cache import BlockCache
from aisfs.cache.directory import EntryId
from aisfs.core.archive.tar import MemberPlace, member_places
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import LabelColumn
from aisfs.core.views.sample_views import label_rows, labels_at, read_label
from aisfs.core.views.spec import LabelRule
from aisfs.engine.fetcher import Fetcher
from aisfs.engine.parts import OpenObject
from aisfs.errors import AccessDenied, AisfsError, ProtocolError, Unsupported
from aisfs.model import Bucket, ByteRange, ObjectInfo, RangeSet
from aisfs.stores.pipeline import all_of
from aisfs.stores.port import ObjectStore

log = logging.getLogger(__name__)

LEAST = 16
"""Ranges from which a GetBatch is worth its redirect and its job on every target of the cluster."""
MOST = 2000
"""Ranges of one GetBatch. AIStore 5.0 took 80 to 460 ms for a thousand; the deadline of a call is far."""
BATCH_BYTES = 8 << 20
"""Bytes of one GetBatch, but for a single label: the targets hold them in memory, and so do we."""
GAP = 16 << 10
"""Bytes between two labels that are fetched rather than skipped: headers and small parts of samples. Pictures
are larger, and must not be fetched for their labels however slow requests are."""
SPAN = 1 << 20
"""Bytes of labels and gaps in one range, but for a single label."""
RANGES_AT_ONCE = 8
"""Of one shard; several shards are read at once."""
FAILURES = 3
"""Batches in a row that fail before none is tried for a while."""
PAUSE_SECONDS = 60.0
"""Such a while: the targets of a cluster that is short of memory refuse batches."""


class LabelReader:
    """Fetches labels, and nothing else of their shards."""

    def __init__(self, store: ObjectStore, fetcher: Fetcher) -> None:
        """Send batches to `store`, and read everything else through `fetcher`."""
        self._store = store
        self._fetcher = fetcher
        self._paused_until = 0.0
        self._failures = 0
        self._proven = False
        """Whether a batch was answered with ranges: older servers send whole shards."""
        self._proof = trio.Lock()

    async def read(
        self, bucket: Bucket, shard: ObjectInfo, rule: LabelRule, index: MemberIndex
    ) -> LabelColumn | None:
        """Return the labels of a plain tar; None if the index does not fit the shard.

        Raises:
            Stale: the shard changed meanwhile.
        """
        rows = await trio.to_thread.run_sync(label_rows, rule, index)
        contents = await self.contents(bucket, shard, index, rows)
        if contents is None:
            log.warning("%s/%s: its index does not fit it: scanned instead", bucket, shard.key)
            return None

        def column() -> LabelColumn:
            return labels_at(index, {at: read_label(rule, data) for at, data in contents.items()})

        return await trio.to_thread.run_sync(column)

    async def contents(
        self, bucket: Bucket, shard: ObjectInfo, index: MemberIndex, rows: Sequence[int]
    ) -> dict[int, bytes] | None:
        """Return the contents of small members of a plain tar, by their offset; None if the index does
        not fit the shard. Members that are stored incompletely or in another form are left out.

        Raises:
            Stale: the shard changed meanwhile.
        """
        places = await trio.to_thread.run_sync(member_places, index, rows)
        opened = self._fetcher.open(bucket, shard)
        cached = await trio.to_thread.run_sync(_cached, opened, places)
        cached |= {place.start for place in places if _landed(opened, place)}
        contents: dict[int, bytes] = {}
        missing = [place for place in places if place.start not in cached]
        if self._batching and _batch_pays(missing):
            await self._read_batches(opened, missing, contents)
        rest = [place for place in places if place.offset not in contents]
        if not await self._read_ranges(opened, rest, contents):
            return None
        return contents

    # With GetBatch -------------------------------------------------------------------------------

    async def _read_batches(
        self, opened: OpenObject, places: Sequence[MemberPlace], contents: dict[int, bytes]
    ) -> None:
        """Read what batches bring."""
        if not self._proven:
            async with self._proof:
                if self._batching and not self._proven:
                    first, places = places[:LEAST], places[LEAST:]
                    self._proven = await self._read_batch(opened, first, contents)
            if not self._proven:
                return
        for batch in _batches(places):
            if not (self._batching and await self._read_batch(opened, batch, contents)):
                return

    async def _read_batch(
        self, opened: OpenObject, places: Sequence[MemberPlace], contents: dict[int, bytes]
    ) -> bool:
        """Read the labels of one batch; return whether all of them came."""
        room = memoryview(bytearray(sum(len(place) for place in places)))
        wanted: list[tuple[ObjectInfo, int, memoryview]] = []
        used = 0
        for place in places:
            length = len(place)
            wanted.append((opened.info, place.start, room[used : used + length]))
            used += length
        try:
            filled = await self._store.read_ranges(opened.bucket, wanted)
        except (Unsupported, AccessDenied) as error:
            self._give_up(logging.INFO, str(error))
            return False
        except ProtocolError as error:
            self._give_up(logging.WARNING, f"GetBatch cannot be trusted here: {error}")
            return False
        except AisfsError as error:
            log.debug("labels are read range by range: %s", error)
            self._note_failure()
            return False
        for place, (_, _, data), came in zip(places, wanted, filled, strict=True):
            content = place.content(data) if came else None
            if content is not None and place.is_named_in(data):
                contents[place.offset] = bytes(content)
            elif came and content is None:
                what = f"{opened.bucket}/{opened.info.key}: {os.fsdecode(place.name)!r} is not at {place.offset}"
                self._give_up(logging.WARNING, f"index and GetBatch contradict each other: {what}")
                return False
        if not all(filled):
            self._note_failure()
            return False
        self._failures = 0
        return True

    @property
    def _batching(self) -> bool:
        """Whether batches are tried."""
        return trio.current_time() >= self._paused_until

    def _note_failure(self) -> None:
        self._failures += 1
        if self._failures >= FAILURES:
            self._failures = 0
            self._pause(PAUSE_SECONDS, "several batches in a row did not bring everything")

    def _give_up(self, level: int, reason: str) -> None:
        self._pause(math.inf, reason, level)

    def _pause(self, seconds: float, reason: str, level: int = logging.INFO) -> None:
        if self._batching:
            until = "from now on" if seconds == math.inf else f"for {seconds:.0f} s"
            log.log(level, "labels are read range by range %s: %s", until, reason)
            self._paused_until = trio.current_time() + seconds

    # Range by range ------------------------------------------------------------------------------

    async def _read_ranges(
        self, opened: OpenObject, places: Sequence[MemberPlace], contents: dict[int, bytes]
    ) -> bool:
        """Read labels with requests for the ranges they lie in; return whether the index is right."""
        fits = True

        async def read(group: Sequence[MemberPlace]) -> None:
            nonlocal fits
            if fits and not await self._read_range(opened, group, contents):
                fits = False

        await all_of((partial(read, group) for group in _spans(places)), RANGES_AT_ONCE)
        return fits

    async def _read_range(
        self, opened: OpenObject, group: Sequence[MemberPlace], contents: dict[int, bytes]
    ) -> bool:
        """Read neighbours with one request; return whether all of them are what the index says."""
        span = ByteRange(group[0].start, max(place.stop for place in group))
        data = memoryview(await self._fetcher.start(opened, span).wait(by_reader=False))
        for place in group:
            content = place.content(data[place.start - span.start : place.stop - span.start])
            if content is None:
                return False
            contents[place.offset] = bytes(content)
        return True


def _landed(opened: OpenObject, place: MemberPlace) -> bool:
    """Return whether a place is in memory, or on its way there."""
    return any(
        part.range.start <= place.start and place.stop <= part.range.stop
        for part in opened.overlapping(ByteRange(place.start, place.stop))
    )


def _cached(opened: OpenObject, places: Iterable[MemberPlace]) -> set[int]:
    """Return the starts of the places that are in the disk cache. In a worker thread."""
    if opened.cache is None or opened.entry is None:
        return set()
    return _present(opened.cache, opened.entry, opened.info.size, places)


def _present(
    cache: BlockCache, entry: EntryId, size: int, places: Iterable[MemberPlace]
) -> set[int]:
    there = RangeSet([ByteRange(0, size)])
    for gap in cache.missing(entry, ByteRange(0, size)):
        there.subtract(gap)
    if not there.total:
        return set()
    return {place.start for place in places if there.covers(ByteRange(place.start, place.stop))}


def _batch_pays(places: Sequence[MemberPlace]) -> bool:
    """Return whether these places are worth a batch: each is, or few are neighbours."""
    spans = sum(1 for _ in _spans(places))
    return spans >= max(LEAST, len(places) // 4)


def _spans(places: Sequence[MemberPlace]) -> Iterator[list[MemberPlace]]:
    """Yield places, which are in order, in groups of neighbours that at most `GAP` bytes lie between."""
    group: list[MemberPlace] = []
    for place in places:
        if group and (place.start - group[-1].stop > GAP or place.stop - group[0].start > SPAN):
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _batches(places: Sequence[MemberPlace]) -> Iterator[list[MemberPlace]]:
    """Yield places in groups for one batch each."""
    batch: list[MemberPlace] = []
    size = 0
    for place in places:
        length = len(place)
        if batch and (len(batch) >= MOST or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(place)
        size += length
    if batch:
        yield batch
