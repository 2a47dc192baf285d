"""Stores members of shards into the kernel's page cache, as `core.policy.push` decides.

The threads that answer requests report what happened. They must wait for nothing, not even for
this: an event goes into a queue, and a thread that finds the lock free works through it. The storing
itself is a job of the notifier, one batch of rows at a time, so that invalidations get between. A
push is a hint: it may be dropped at any point (invariant I6).

Pushed pages are clean and the kernel may drop them, but they are charged to this daemon's control
group and push other pages out. So the room is a share of what the machine, and each group above
this process, has to spare; pages that can be dropped count as spare. This is read at most once a second.
"""

import logging
import time
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Protocol

from aisfs.core.names.inodes import member_number, split_member
from aisfs.core.policy.push import PushCounts, ShardPush
from aisfs.engine.parts import Data
from aisfs.filesystem.filesystem import Members, OpenShard
from aisfs.fuse.abi import STORE_HEADER, store_messages, store_pairs
from aisfs.metrics import Metrics
from aisfs.model import ByteRange
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.memory import MachineMemory
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)

EVENTS_MAX = 10_000
"""Events that may wait; a thread that finds so many drops its own."""
SHARDS_MAX = 1000
ROWS_MAX = 2_000_000
"""Shards, and members of all of them, that are kept in mind: their indexes stay in memory so long,
80 bytes a member."""
LISTED_MAX = 32 << 20
"""Bytes of shards that were listed and wait for a reader before they are pushed. While folders are listed both
processors may be busy with that; while files are read there is time. Too little to hold up the scans of more."""
LISTED_SHARD_MAX = 16 << 20
"""Larger shards do not wait: their bytes would take the memory that those of the next ones are to be received into."""
PIECE = 1 << 20
"""Larger members are stored in pieces of so many bytes, a multiple of the page."""
SPAN_MAX = 4 << 20
"""Rows that lie in so many bytes are looked for all at once."""
COPIED = 16 << 10
"""Members up to this many bytes are copied together before they are sent."""


class Sender(Protocol):
    """The thread that sends notifications to the kernel."""

    @property
    def closing(self) -> bool:
        """Whether jobs should come to an end."""
        ...

    def put(self, job: Callable[[], None]) -> None:
        """Run a job in the thread."""
        ...

    def store(self, ino: int, offset: int, data: Data) -> bool:
        """Put bytes into the page cache of an inode; returns whether the kernel knew it."""
        ...

    def send_all(self, messages: Iterable[Data | tuple[Data, Data]]) -> list[int]:
        """Send messages for the kernel; returns the places of those it refused."""
        ...


class _Shard:
    """A shard with members the kernel knows."""

    __slots__ = ("ahead", "decide", "first", "members")

    def __init__(self, first: int, members: OpenShard, decide: ShardPush) -> None:
        self.first = first
        self.members = members
        self.decide = decide
        self.ahead = 0
        """Bytes pushed ahead of readers, when last looked at."""


class Pusher:
    """Pushes the members of all shards of a mount; an `Observer` of what the kernel reads."""

    def __init__(
        self, sender: Sender, members: Members, room: Callable[[], int], metrics: Metrics
    ) -> None:
        """Push through `sender`.

        Args:
            sender: Its thread never answers a request.
            members: What is in shards, and which of their bytes are there.
            room: Bytes of page cache that may be ahead of all readers together.
            metrics: Told what became of it.
        """
        self._sender = sender
        self._members = members
        self._room = room
        self._metrics = metrics
        self._counts = PushCounts()
        self._reported = PushCounts()
        self._dropped = 0
        self._events: deque[tuple[Callable[[int], None], int]] = deque()
        self._books = ranked_lock(Rank.PUSHES)
        """Guards all below; held for microseconds, never while something is stored."""
        self._shards: OrderedDict[int, _Shard] = OrderedDict()
        """By the first inode number; the one used last is the last."""
        self._ready: OrderedDict[int, _Shard] = OrderedDict()
        """Those that may have something to push."""
        self._stalled: dict[int, _Shard] = {}
        """Those that wait for bytes."""
        self._landings = 0
        """Another number after each time that bytes have landed."""
        self._listed: OrderedDict[int, _Shard] = OrderedDict()
        """Those that were listed, and wait for a reader."""
        self._listed_bytes = 0
        self._reading = False
        """Whether a READ came after the last of them."""
        self._rows = 0
        self._ahead = 0
        self._busy = False
        """Whether a job is with the sender."""
        metrics.before_text.append(self._report)

    # what happened -------------------------------------------------------------------------------

    @any_thread
    def was_read(self, ino: int, offset: int, size: int) -> None:
        """A READ was answered. Only the first of a file counts: large ones take several."""
        parts = split_member(ino) if not offset and size else None
        if parts is not None and not parts[1]:
            self._tell(self._on_read, ino)

    @any_thread
    def was_listed(self, ino: int) -> None:
        """The kernel listed a directory to its end, so it knows the inodes in it."""
        parts = split_member(ino)
        if parts is not None and parts[1]:
            self._tell(self._on_listed, ino)

    @any_thread
    def landed(self) -> None:
        """More bytes are there than before, of whatever object."""
        self._landings += 1  # before looking at those that wait; see `_push`
        if self._stalled:
            self._tell(self._on_landed, 0)

    def _tell(self, handle: Callable[[int], None], about: int) -> None:
        if len(self._events) >= EVENTS_MAX:
            self._dropped += 1
            return
        self._events.append((handle, about))
        self._work_off()

    def _work_off(self) -> None:
        """Handle the events, unless another thread does, which then sees them all."""
        while self._events and self._books.acquire(blocking=False):
            try:
                self._handle_events()
                wake = (bool(self._ready) or self._listed_due) and not self._busy
                self._busy |= wake
            finally:
                self._books.release()
            if wake:
                self._sender.put(self._push)

    # Events; the books are ours --------------------------------------------------------------

    def _handle_events(self) -> None:
        events = self._events
        while events:
            handle, about = events.popleft()
            try:
                handle(about)
            except Exception:  # of a hint, in a thread that the mount cannot do without
                log.exception("a push failed: this is a bug in aisfs, please report it")

    def _shard(self, ino: int) -> _Shard | None:
        """Return what is known of the shard that an inode is in; None when it is not open."""
        first, _, _ = _split(ino)
        shard = self._shards.get(first)
        opened = self._members.find(ino, None if shard is None else shard.members)
        if opened is None:
            return None
        if shard is not None and shard.members is opened:
            self._shards.move_to_end(first)
            return shard
        if shard is not None:
            self._let_go(shard)
        shard = _Shard(first, opened, ShardPush(opened.view.index, self._counts))
        self._shards[first] = shard
        self._rows += len(shard.decide)
        while len(self._shards) > 1 and (self._rows > ROWS_MAX or len(self._shards) > SHARDS_MAX):
            self._let_go(next(iter(self._shards.values())))
        return shard

    def _let_go(self, shard: _Shard) -> None:
        shard.decide.abandon()
        self._ahead -= shard.ahead
        shard.ahead = 0
        self._rows -= len(shard.decide)
        del self._shards[shard.first]
        self._ready.pop(shard.first, None)
        self._stalled.pop(shard.first, None)
        self._end_waiting(shard)

    def _on_read(self, ino: int) -> None:
        self._reading = True
        shard = self._shard(ino)
        _, _, row = _split(ino)
        if shard is not None and row < len(shard.decide) and shard.decide.read(row):
            self._end_waiting(shard)
            self._ready[shard.first] = shard

    def _on_listed(self, ino: int) -> None:
        shard = self._shard(ino)
        if shard is not None:
            rows = shard.members.view.directory(_split(ino)[2]).rows
            in_memory = self._members.in_memory(shard.members, rows)
            shard.decide.listed(rows, in_memory=in_memory)
            if shard.decide.pending:
                if in_memory and shard.first not in self._ready and not shard.decide.awaited:
                    self._wait_for_reader(shard)
                else:
                    self._ready[shard.first] = shard

    def _wait_for_reader(self, shard: _Shard) -> None:
        """Have a listed shard pushed when somebody reads, or when too much waits for that."""
        size = shard.decide.index.object_size
        if size > LISTED_SHARD_MAX:
            self._ready[shard.first] = shard
        elif shard.first not in self._listed:
            self._listed[shard.first] = shard
            self._listed_bytes += size
            self._reading = False

    def _end_waiting(self, shard: _Shard) -> None:
        if self._listed.pop(shard.first, None) is not None:
            self._listed_bytes -= shard.decide.index.object_size

    @property
    def _listed_due(self) -> bool:
        """Whether the shard listed first need not wait any longer."""
        return bool(self._listed) and (self._reading or self._listed_bytes > LISTED_MAX)

    def _on_landed(self, _: int) -> None:
        stalled, self._stalled = self._stalled, {}
        for first, shard in stalled.items():
            if shard.decide.stalled and shard.decide.landed():
                self._ready[first] = shard

    # In the thread of the sender -------------------------------------------------------------

    def _push(self) -> None:
        """Push one batch of rows, and come again for the next."""
        with self._books:
            self._handle_events()
            shard, batch = self._choose()
            self._busy = shard is not None
        if shard is None:
            self._work_off()
            return
        landings = self._landings
        stored, unknown, missing = self._store(shard, batch)
        with self._books:
            reader = shard.decide.settle(stored, unknown, missing=missing)
            left_out = shard.decide.left_out()
            if self._shards.get(shard.first) is shard:
                self._note_ahead(shard)
                if shard.decide.stalled:
                    self._stalled[shard.first] = shard
                    # What landed since the look was told to nobody.
                    if self._landings != landings and shard.decide.landed():
                        self._ready[shard.first] = shard
        for row in left_out:
            self._members.will_be_read(shard.members, row)
        if reader is not None:
            self._members.pushed(shard.members, *reader, batch[:stored], batch[stored:])
        self._work_off()
        self._sender.put(self._push)

    def _choose(self) -> tuple[_Shard | None, Sequence[int]]:
        """Take turns between the shards that have something to push."""
        while (self._ready or self._listed_due) and not self._sender.closing:
            if not self._ready:  # the next one, while nothing is to be done for readers
                shard = next(iter(self._listed.values()))
                self._end_waiting(shard)
                self._ready[shard.first] = shard
            first, shard = self._ready.popitem(last=False)
            self._note_ahead(shard)
            room = self._room() - self._ahead
            batch = shard.decide.next(room)
            if not batch and shard.decide.awaited:
                batch = shard.decide.next(room + self._make_room(shard))
            if batch:
                self._ready[first] = shard
                return shard, batch
        return None, []

    def _note_ahead(self, shard: _Shard) -> None:
        ahead = shard.decide.ahead
        self._ahead += ahead - shard.ahead
        shard.ahead = ahead

    def _make_room(self, keep: _Shard) -> int:
        """Return up what was pushed for the reader that was not seen for longest; returns its bytes."""
        for shard in self._shards.values():
            if shard is not keep and shard.ahead:
                gained = shard.ahead
                shard.decide.abandon()
                self._note_ahead(shard)
                return gained
        return 0

    def _store(self, shard: _Shard, batch: Sequence[int]) -> tuple[int, list[int], bool]:
        """Send rows to the kernel; returns how many, those it does not know, and if bytes lack."""
        places = shard.decide.index.places(batch)
        unknown: list[int] = []
        done = 0
        while done < len(batch):
            # Up to where a buffer ends: what lies in two would have to be copied together.
            border = self._members.border(shard.members, places[done][0])
            stop = max(bisect_right(places, border, lo=done, key=sum), done + 1)
            some = slice(done, stop)
            stored, refused, missing = self._store_together(shard, batch[some], places[some])
            unknown += refused
            done += stored
            if done < stop:
                return done, unknown, missing
        return done, unknown, False

    def _store_together(
        self, shard: _Shard, batch: Sequence[int], places: list[tuple[int, int]]
    ) -> tuple[int, list[int], bool]:
        start, (last, size) = places[0][0] - STORE_HEADER, places[-1]
        # One look for all, where they lie in one piece; rows left out between them are few.
        span = ByteRange(start, last + size)
        longest = max(map(itemgetter(1), places))
        make: Callable[..., Iterable[Data | tuple[Data, Data]]] = store_messages
        found: Data | None = None
        if 0 < len(span) <= SPAN_MAX and start >= 0:
            if longest <= COPIED:
                # The tar's own header in front of a member makes room for the header of the message, so
                # that each message is one piece: the kernel takes those more quickly than two.
                found = self._members.copied(shard.members, span)
            elif longest <= PIECE:
                make, found = store_pairs, self._members.stored(shard.members, span)
        if found is None:
            return self._store_singly(shard, batch, places)
        files = [
            (shard.first | row, at - start, length)
            for row, (at, length) in zip(batch, places, strict=True)
        ]
        refused = self._sender.send_all(make(memoryview(found), files))
        return len(batch), [batch[place] for place in refused], False

    def _store_singly(
        self, shard: _Shard, batch: Sequence[int], places: list[tuple[int, int]]
    ) -> tuple[int, list[int], bool]:
        unknown: list[int] = []
        for at, (row, (start, size)) in enumerate(zip(batch, places, strict=True)):
            if self._sender.closing:
                return at, unknown, False
            data = self._members.stored(shard.members, ByteRange(start, start + size))
            if data is None:
                return at, unknown, True
            if not self._store_member(member_number(shard.first, row), data):
                unknown.append(row)
        return len(batch), unknown, False

    def _store_member(self, ino: int, data: Data) -> bool:
        """Store a member in pieces."""
        view = memoryview(data)
        return all(
            self._sender.store(ino, at, view[at : at + PIECE]) for at in range(0, len(view), PIECE)
        )

    # Metrics; in the thread that shows them ----------------------------------------------------

    def _report(self) -> None:
        """Bring the counters up to date."""
        metrics, now, before = self._metrics, self._counts, self._reported
        self._reported = PushCounts(now.pushed, now.bytes, now.used, now.wasted)
        metrics.pushed_members.inc(self._reported.pushed - before.pushed)
        metrics.pushed_bytes.inc(self._reported.bytes - before.bytes)
        metrics.push_used.inc(self._reported.used - before.used)
        metrics.push_wasted.inc(self._reported.wasted - before.wasted)
        dropped, self._dropped = self._dropped, 0
        metrics.push_dropped.inc(dropped)


def _split(ino: int) -> tuple[int, bool, int]:
    parts = split_member(ino)
    assert parts is not None, f"inode {ino} is not in a shard"
    return parts


FLOOR = 64 << 20
"""Bytes that stay free for others: below that nothing is pushed."""
SHARE = 4
"""A quarter of the rest at most: what is pushed shall still be there when its reader comes."""
SECONDS = 1.0


class PageCacheBudget:
    """Looks at the memory of the machine and of the control groups of this process."""

    def __init__(
        self, root: Path = Path("/"), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Look below `root`, where /proc and /sys are."""
        self._memory = MachineMemory(root)
        self._clock = clock
        self._read_at = -SECONDS
        self._room = 0
        self._told = False

    def room(self) -> int:
        """Return the bytes of page cache that may be pushed and not yet be read; 0 when short."""
        now = self._clock()
        if now - self._read_at >= SECONDS:
            self._read_at = now
            self._room = max(self._available() - FLOOR, 0) // SHARE
        return self._room

    def _available(self) -> int:
        found = self._memory.available()
        if found is None:
            if not self._told:
                log.warning("nothing is pushed into the page cache: %s does not say how much memory"
                            " there is", self._memory.file)  # fmt: skip
            self._told = True
            return 0
        return found
