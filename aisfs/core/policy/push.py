"""Which members of a shard to store into the kernel's page cache before they are read.

The kernel only requests what it does not have, so a successful push is invisible. An ordered reader is
visible when it reaches a member that was not pushed: the one after the window, or the marker, which is
left out in the middle so that there is time to continue. Each such READ of a stream doubles its window;
READs of pushed members shrink it, and finally pause pushing.

A member read at random causes the rest of its sample to be pushed; some dozens cause the whole shard.

The pusher takes a batch of rows (`next`), stores them and reports the result (`settle`), so that a
READ that overtakes a push is not taken for a dropped page. Not thread-safe; calls take microseconds,
except `listed` with many rows.

What is in the page cache is an estimate (`PageCacheMap`). The kernel drops pages silently; only a READ of a
member that should be cached shows it. Then most likely everything of that age is gone, so the generation ends
and all members count as absent. Each row has one byte: whether the kernel knows the inode, whether the row
was pushed and not read since, and the generation in which it entered the page cache.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.views.samples import sample_rows

_KNOWN = 1
_PUSHED = 2
_STEP = 4
"""One generation: the upper six bits of the byte count them; 0 is never."""
_WITHOUT_KNOWN = bytes(value for value in range(256) if not value & _KNOWN)
_WITH_KNOWN = bytes(value for value in range(256) if value & _KNOWN)
_WITH_PUSHED = bytes(value for value in range(256) if value & _PUSHED)
_LEARN = bytes(value | _KNOWN for value in range(256))
_PASS = bytes(value & ~_PUSHED for value in range(256))
_ONLY_KNOWN = bytes(value & _KNOWN for value in range(256))


class PageCacheMap:
    """The rows of one shard."""

    def __init__(self, rows: int) -> None:
        """Start with `rows` rows that are not cached."""
        self._state = bytearray(rows)
        self._age = _STEP

    def __len__(self) -> int:
        return len(self._state)

    # inodes ----------------------------------------------------------------------------------

    def know(self, rows: Sequence[int]) -> None:
        """Record that the kernel knows the inodes of these rows."""
        state = self._state
        if isinstance(rows, range) and rows.step == 1:
            state[rows.start : rows.stop] = state[rows.start : rows.stop].translate(_LEARN)
        else:
            for row in rows:
                state[row] |= _KNOWN

    def unknown(self, row: int) -> None:
        """Record that the kernel does not know the inode of a row."""
        self._state[row] &= ~_KNOWN

    def known(self) -> int:
        """Return how many rows have inodes that the kernel knows."""
        return len(self._state.translate(None, _WITHOUT_KNOWN))

    # pages -----------------------------------------------------------------------------------

    def there(self, row: int) -> bool:
        """Return whether the row should be in the page cache."""
        return self._state[row] >= self._age

    def absent(self, row: int) -> bool:
        """Return whether the row can be pushed and is probably not in the page cache."""
        state = self._state[row]
        return state < self._age and bool(state & _KNOWN)

    def all_absent(self, start: int, stop: int) -> bool:
        """Return whether `absent` holds for all rows of a range."""
        states = self._state[start:stop]
        return max(states) < self._age and not states.translate(None, _WITH_KNOWN)

    def read(self, row: int) -> bool:
        """Record a READ, which caches the row; return whether it had been pushed."""
        pushed = bool(self._state[row] & _PUSHED)
        self._state[row] = _KNOWN | self._age
        return pushed

    def pushed(self, row: int) -> None:
        """Record that a row was pushed."""
        self._state[row] = _KNOWN | _PUSHED | self._age

    def pushed_run(self, start: int, stop: int) -> bool:
        """Record that a range of rows was pushed; return False, without effect, if one was cached."""
        if max(self._state[start:stop]) >= self._age:
            return False
        self._state[start:stop] = bytes((_KNOWN | _PUSHED | self._age,)) * (stop - start)
        return True

    def take_pushed(self, start: int, stop: int) -> int:
        """Return how many rows of a range were pushed and not read; they count as read from now on."""
        rows = self._state[start:stop]
        pushed = len(rows) - len(rows.translate(None, _WITH_PUSHED))
        if pushed:
            self._state[start:stop] = rows.translate(_PASS)
        return pushed

    def end_generation(self) -> None:
        """Treat all rows as absent from the page cache."""
        if self._age + _STEP > 255:
            self._state = self._state.translate(_ONLY_KNOWN)
            self._age = 0
        self._age += _STEP


WINDOW_FIRST = 8
WINDOW_MAX = 512
WINDOW_BYTES = 8 << 20
"""Most bytes ahead of one reader: 2 ms of pushing small members, 4 ms of large ones."""
PAGE = 4096
BATCH_ROWS = 256
BATCH_BYTES = 2 << 20
"""Most rows and bytes of a batch: a millisecond of work."""
RUN_LEAST = 64
"""Rows that are worth a look at all of them at once; smaller windows are gone through row by row."""


@dataclass(slots=True)
class PushCounts:
    """Counts of pushed members; the use of samples and whole shards is often unknown."""

    pushed: int = 0
    bytes: int = 0
    used: int = 0
    """An ordered reader passed them without a READ."""
    wasted: int = 0
    """They were READ anyway, or the stream ended before them."""


def footprint(size: int) -> int:
    """Return the bytes of page cache that a file of `size` bytes takes."""
    return -(-size // PAGE) * PAGE


class PushableRows:
    """Which rows of a shard can be pushed and are probably not in the page cache."""

    __slots__ = ("index", "pages")

    def __init__(self, index: MemberIndex, pages: PageCacheMap) -> None:
        self.index = index
        self.pages = pages

    def wanted(self, row: int) -> bool:
        """Return whether to push a row."""
        if not self.pages.absent(row):
            return False
        index = self.index
        return index.plain(row) and 0 < index.size(row) <= WINDOW_BYTES

    def all_small(self, start: int, stop: int) -> bool:
        """Return whether all rows of a range are wanted, and take a page each."""
        index = self.index
        small = index.all_plain(start, stop) and index.sizes_within(start, stop, PAGE)
        return small and self.pages.all_absent(start, stop)


class Stream:
    """One reader going through a shard."""

    __slots__ = ("ahead", "at", "behind_marker", "bytes_left", "bytes_max", "has_gaps", "marker",
                 "misses", "pushed", "rows_left", "scanned", "seen", "stalled", "top", "wasted", "window")  # fmt: skip

    def __init__(self, at: int, top: int, *, seen: bool = True) -> None:
        """Begin after the row `top`."""
        self.at = at
        """The row that was read last, as far as READs show."""
        self.top = top
        """Rows up to here were pushed or skipped."""
        self.window = 0
        """Rows ahead of the reader; 0 until a second READ confirms that there is one."""
        self.rows_left = 0
        self.bytes_left = self.bytes_max = WINDOW_BYTES
        self.seen = seen
        """Whether there was a READ. Where there was only a listing, missing bytes are not waited for."""
        self.scanned = False
        """Whether the window is what a scan left in memory. What is missing there only a READ will bring."""
        self.has_gaps = False
        """Whether rows up to `top` were skipped because their bytes were missing."""
        self.misses = 0
        """How many batches in a row began with such a row."""
        self.marker = -1
        """The row left out in the middle of the window."""
        self.stalled = False
        """Whether the bytes of the next row are missing."""
        self.ahead = self.behind_marker = 0
        """Bytes pushed and not known to be read: in all, and after the marker."""
        self.pushed = self.wasted = 0
        """Rows of this window that were pushed, and that were pushed in vain."""

    def open_window(self, rows: int, size: int = WINDOW_BYTES) -> None:
        """Begin a window of so many rows behind `top`, and of at most `size` bytes."""
        self.window = self.rows_left = rows
        self.bytes_left = self.bytes_max = size

    def skip(self, stored: int) -> int:
        """Return how many rows to leave out, as the one behind those `stored` is missing.

        More with each batch that brings nothing: what is missing lies together.
        """
        self.has_gaps = True
        self.misses = 0 if stored else self.misses + 1
        return min(1 << self.misses, BATCH_ROWS)

    def put_back(self, rows: Sequence[int], cost: int) -> None:
        """Put the last rows, of `cost` bytes, back into the window."""
        self.rows_left += self.top - (rows[0] - 1)
        self.bytes_left += cost
        self.top = rows[0] - 1
        if self.marker > self.top:
            self.marker, self.behind_marker = -1, 0
        elif self.marker >= 0:
            self.behind_marker -= cost

    @property
    def pending(self) -> bool:
        """Whether rows of the window are still to be pushed."""
        return self.rows_left > 0 and self.bytes_left > 0 and not self.stalled

    def advance(self, rows: int, cost: int) -> None:
        """Go on by so many rows; of these `cost` bytes are to be pushed."""
        self.top += rows
        self.rows_left -= rows
        self.bytes_left -= cost
        if self.marker >= 0:
            self.behind_marker += cost

    def choose(self, rows: PushableRows, room: int) -> Sequence[int]:
        """Return the next rows to push, a batch of at most `room` bytes."""
        if count := self._small_ones(rows, room):
            self.advance(count, count * PAGE)
            return range(self.top - count + 1, self.top + 1)
        batch: list[int] = []
        taken = 0
        wanted, size, end = rows.wanted, rows.index.size, len(rows.index)
        marked = not self.window or self.marker >= 0
        while self.pending and len(batch) < BATCH_ROWS and taken < BATCH_BYTES:
            row = self.top + 1
            if row >= end:
                self.rows_left = 0
                break
            if wanted(row):
                if not marked and self.at_middle:
                    self.marker, marked = row, True
                else:
                    cost = footprint(size(row))
                    if cost > self.bytes_left and self.bytes_left < self.bytes_max:
                        self.bytes_left = 0
                        break
                    if taken + cost > room:
                        break
                    taken += cost
                    batch.append(row)
                    self.advance(1, cost)
                    continue
            self.advance(1, 0)
        return batch

    def _small_ones(self, rows: PushableRows, room: int) -> int:
        """Return how many of the next rows to push as they are, as all of them are small."""
        count = min(self.rows_left, BATCH_ROWS, min(self.bytes_left, room) // PAGE)
        if self.window and self.marker < 0:
            count = min(count, self.until_middle)
        start = self.top + 1
        count = min(count, len(rows.index) - start)
        if self.stalled or count < RUN_LEAST:
            return 0
        return count if rows.all_small(start, start + count) else 0

    @property
    def until_middle(self) -> int:
        """Return how many rows of a page each there are at least before the middle of the window."""
        return min(
            self.rows_left - self.window // 2, (self.bytes_left - self.bytes_max // 2) // PAGE
        )

    @property
    def at_middle(self) -> bool:
        """Return whether half of the window is pushed, which is where the marker belongs."""
        return 2 * self.rows_left <= self.window or 2 * self.bytes_left <= self.bytes_max


STREAMS = 8
"""Most readers distinguished in one shard."""
GAP_MAX = 16
MEMBERS_PER_GAP = 2000
"""Rows after a window where its reader may appear: one per so many members, at most `GAP_MAX`.
Eight streams then mistake 5 % of random reads for order in a shard of any size."""
RANDOM_READS = 32
"""READs out of order before the whole shard is pushed: opening a few images is no epoch."""
REPEAT = 16
"""Most members per READ out of order if the whole shard was pushed and dropped before."""
REST_FIRST = 64
REST_MAX = 4096
"""READs without pushing after a shard's pushes were wasted; doubled each time."""
SAMPLES_MAX = 64
"""Most parts of samples waiting to be pushed; older ones are dropped."""


class ShardPush:
    """The decisions for one shard."""

    def __init__(self, index: MemberIndex, counts: PushCounts) -> None:
        """Assume an empty page cache; add to `counts`."""
        self.index = index
        self._counts = counts
        self._rows = PageCacheMap(len(index))
        self._pushable = PushableRows(index, self._rows)
        self._gap = min(max(len(index) // MEMBERS_PER_GAP, 1), GAP_MAX)
        self._streams: list[Stream] = []
        """The one that moved last is the last."""
        self._samples: deque[range] = deque(maxlen=SAMPLES_MAX)
        self._strays = 0
        """READs out of order minus READs in order."""
        self._doubts = 0
        """How many of them were of rows that should have been cached."""
        self._patience = RANDOM_READS
        self._whole: int | None = None
        """The next row while the whole shard is being pushed."""
        self._whole_stalled = False
        self._batch: Sequence[int] = []
        self._giver: Stream | None = None
        """The stream that the batch is for; None for a sample or the whole shard."""
        self._of_whole = False
        self._rest = 0
        self._rest_next = REST_FIRST

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def pending(self) -> bool:
        """Whether `next` may return rows."""
        return (
            bool(self._samples)
            or (self._whole is not None and not self._whole_stalled)
            or any(stream.pending for stream in self._streams)
        )

    @property
    def stalled(self) -> bool:
        """Whether a stream or the whole shard waits for bytes."""
        return self._whole_stalled or any(stream.stalled for stream in self._streams)

    @property
    def ahead(self) -> int:
        """Bytes pushed for ordered readers and not known to be read."""
        return sum(stream.ahead for stream in self._streams)

    # what happened ---------------------------------------------------------------------------

    @property
    def awaited(self) -> bool:
        """Whether what is pending is for a reader, and not only because it was listed."""
        return (
            bool(self._samples)
            or (self._whole is not None and not self._whole_stalled)
            or any(stream.seen and stream.pending for stream in self._streams)
        )

    def listed(self, rows: Sequence[int], *, in_memory: bool = False) -> None:
        """Record that the kernel listed these members, so it knows their inodes.

        They are likely to be read next. Bytes that are `in_memory` because of the scan are pushed at
        once, all but the first reader's marker and the last row: the page cache keeps them without
        costing the daemon memory, and is where their reader looks first.
        """
        self._rows.know(rows)
        if rows and len(self._streams) < STREAMS and not self._rest:
            start = rows[0]
            near = self._stream_of(start)
            passed_by = near is not None and not near.seen and start > near.top
            if not self._rows.there(start) and (near is None or (in_memory and passed_by)):
                stream = Stream(start - 1, start - 1, seen=False)
                if in_memory and rows[-1] - start > WINDOW_FIRST:
                    size = self.index.object_size + len(rows) * PAGE
                    stream.open_window(rows[-1] - start, size)
                    stream.scanned = True
                else:
                    stream.open_window(WINDOW_FIRST)
                self._streams.insert(0, stream)

    def read(self, row: int) -> bool:
        """Record a READ of the start of a member; return whether there is something to push.

        READs that bypass the page cache (O_DIRECT) show nothing and must not be recorded.
        """
        dropped = self._rows.there(row) and row not in self._batch
        pushed = self._rows.read(row)
        stream = self._stream_of(row)
        ahead = pushed and stream is not None and row <= stream.top
        # A member pushed long ago may have been read before the kernel dropped it.
        self._counts.wasted += ahead or (pushed and dropped)
        if self._rest:
            self._rest -= 1
            return False
        if stream is None:
            self._doubts += dropped
            self._begin(row)
            return self.pending
        self._strays = max(self._strays - 1, 0)
        if dropped:
            # Only the second one in a row, because single pages are dropped too, and pushing is expensive.
            self._end_generation(row)
        stream.wasted += ahead
        self._follow(stream, row)
        return self.pending

    def landed(self) -> bool:
        """Record that more bytes of the shard arrived; return whether there is something to push."""
        for stream in self._streams:
            stream.stalled = False
        self._whole_stalled = False
        return self.pending

    def abandon(self) -> None:
        """Drop all streams and what is pending for them."""
        while self._streams:
            self._drop(self._streams.pop())
        self._samples.clear()
        self._end_whole()

    # what to do ------------------------------------------------------------------------------

    def next(self, room: int) -> Sequence[int]:
        """Return the next batch of rows to push, in the order of the tar; it may be empty.

        Args:
            room: How many bytes may be pushed.
        """
        assert not self._batch, "settle first"
        self._giver, self._of_whole = None, False
        wanted = self._pushable.wanted
        while self._samples and not self._batch:
            self._batch = [row for row in self._samples.popleft() if wanted(row)]
            if sum(footprint(self.index.size(row)) for row in self._batch) > room:
                self._batch = []
        if self._batch:
            return self._batch
        for stream in reversed(self._streams):
            if stream.pending:
                self._batch = stream.choose(self._pushable, room)
                if self._batch:
                    self._giver = stream
                    return self._batch
        if self._whole is not None and not self._whole_stalled:
            self._of_whole = True
            self._batch = self._walk_whole(self._whole, room)
        return self._batch

    def left_out(self) -> list[int]:
        """Return the rows that a reader will ask for first after the last batch, if that ends a window.

        Of one that was only listed: its reader may come late, when these are only on disk.
        """
        stream = self._giver
        if stream is None or stream.seen or not stream.window or stream.pending:
            return []
        return [row for row in (stream.marker, stream.top + 1) if 0 <= row < len(self)]

    def settle(
        self, stored: int, unknown: Collection[int] = (), *, missing: bool = False
    ) -> tuple[int, int] | None:
        """Report the result for the last batch.

        Args:
            stored: How many of its rows were sent to the kernel; the rest may be returned again.
            unknown: Those rows whose inodes the kernel did not know.
            missing: Whether the bytes of the first row not sent are missing.

        Returns:
            For an ordered reader: the row it was last seen at, and the last row pushed for it.
        """
        batch, stream = self._batch, self._giver
        waits = stream is not None and stream.seen and not stream.scanned
        self._batch = []
        self._stored(batch[:stored], unknown, stream)
        if stored == len(batch):
            pass
        elif stream is not None:
            skipped = 0
            if missing and waits:
                stream.stalled = True
            elif missing:
                skipped = stream.skip(stored)
            if rest := batch[stored + skipped :]:
                stream.put_back(rest, sum(footprint(self.index.size(row)) for row in rest))
        elif self._of_whole:
            self._whole, self._whole_stalled = batch[stored], missing
        if stream is None or not stream.window or (missing and not waits):
            return None
        return stream.at, stream.top

    def _stored(self, rows: Sequence[int], unknown: Collection[int], stream: Stream | None) -> None:
        for row in unknown:
            self._rows.unknown(row)
        if unknown:
            rows = [row for row in rows if row not in unknown]
        if not rows:
            return
        sizes = [size for _, size in self.index.places(rows)]
        self._counts.pushed += len(rows)
        self._counts.bytes += sum(sizes)
        if stream is not None:
            stream.pushed += len(rows)
            stream.ahead += sum(map(footprint, sizes))
        start, stop = rows[0], rows[-1] + 1
        if stop - start == len(rows) and self._rows.pushed_run(start, stop):
            return
        for row in rows:
            if self._rows.there(row):  # a READ overtook it
                self._counts.wasted += 1
            else:
                self._rows.pushed(row)

    # streams ---------------------------------------------------------------------------------

    def _stream_of(self, row: int) -> Stream | None:
        """Return the reader of a READ: the one with the nearest window, within the gap."""
        best, least = None, len(self)
        for stream in self._streams:
            top = stream.top if stream.top > stream.at else stream.at
            if stream.at - self._gap <= row <= top + self._gap:
                distance = abs(row - top)
                if distance < least:
                    best, least = stream, distance
        return best

    def _begin(self, row: int) -> None:
        """Treat a READ as random, and as the first of a new reader."""
        if len(self._streams) == STREAMS:
            self._drop(self._streams.pop(0))
        sample = sample_rows(self.index, row)
        stream = Stream(row, row)
        stream.rows_left = sample.stop - 1 - row
        self._streams.append(stream)
        if sample.start < row:
            self._samples.append(range(sample.start, row))
        self._strays += 1
        if self._whole is None and self._strays >= self._patience:
            self._begin_whole()
        elif self._whole_stalled and self._strays >= RANDOM_READS:
            self._strays = 0
            self._whole_stalled = False

    def _begin_whole(self) -> None:
        """Push all of the shard, if most of it can be pushed."""
        if 2 * self._doubts > self._strays:
            self._rows.end_generation()
        self._strays = self._doubts = 0
        if 2 * self._rows.known() >= len(self):
            self._whole = 0
            self._patience = max(min(2 * self._patience, len(self) // REPEAT), RANDOM_READS)

    def _end_whole(self) -> None:
        self._whole = None
        self._whole_stalled = False
        self._strays = self._doubts = 0

    def _end_generation(self, row: int) -> None:
        """Treat all rows but the one just read as absent from the page cache."""
        self._rows.end_generation()
        self._rows.read(row)

    def _follow(self, stream: Stream, row: int) -> None:
        """Advance a stream to a row."""
        if row <= stream.at:  # another reader of the same stream, slightly behind
            return
        self._counts.used += self._rows.take_pushed(stream.at + 1, row)
        stream.at = row
        stream.seen = True
        stream.stalled = False
        self._streams.remove(stream)
        self._streams.append(stream)
        if row == stream.marker and not stream.has_gaps:
            stream.ahead = stream.behind_marker
            self._extend(stream)
        elif row > stream.top or stream.has_gaps:
            stream.has_gaps = False
            overtaken = stream.rows_left > 0 and stream.bytes_left > 0
            stream.top = row
            stream.ahead = 0
            if overtaken and stream.window:
                self._aim(stream)
            else:
                self._extend(stream)

    def _extend(self, stream: Stream) -> None:
        """Resize the window by the result of the last one, and begin the next."""
        if not stream.window:
            stream.window = WINDOW_FIRST
        elif 2 * stream.wasted > stream.pushed:
            if stream.window == WINDOW_FIRST:
                self._pause()
                return
            stream.window //= 2
        elif stream.pushed:
            stream.window = min(2 * stream.window, WINDOW_MAX)
            self._rest_next = REST_FIRST
        stream.pushed = stream.wasted = 0
        stream.bytes_max, stream.scanned = WINDOW_BYTES, False
        self._aim(stream)

    def _aim(self, stream: Stream) -> None:
        stream.rows_left = stream.at + stream.window - stream.top
        stream.bytes_left = stream.bytes_max - stream.ahead
        stream.marker = -1
        stream.behind_marker = 0

    def _pause(self) -> None:
        """Pause pushing, because pushed members do not stay cached."""
        self.abandon()
        self._rest = self._rest_next
        self._rest_next = min(2 * self._rest_next, REST_MAX)

    def _drop(self, stream: Stream) -> None:
        """End a stream. Rows pushed ahead of it were wasted, unless they were only a sample."""
        if stream.window:
            self._counts.wasted += self._rows.take_pushed(stream.at + 1, stream.top + 1)

    # choosing --------------------------------------------------------------------------------

    def _walk_whole(self, start: int, room: int) -> list[int]:
        """Choose the next rows of the whole shard, which must fit in `room` to begin with."""
        if start == 0 and self.index.object_size + len(self) * PAGE > room:
            self._end_whole()
            return []
        batch: list[int] = []
        taken = 0
        for row in range(start, len(self)):
            if len(batch) == BATCH_ROWS or taken >= BATCH_BYTES:
                self._whole = row
                return batch
            if self._pushable.wanted(row):
                taken += footprint(self.index.size(row))
                if taken > room:
                    break
                batch.append(row)
        self._end_whole()
        return batch
