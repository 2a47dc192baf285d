"""Random work on one directory by two caches, against a dict; the limit holds all the time (I3)."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from aisfs.cache import block_cache
from aisfs.cache.block_cache import BlockCache
from aisfs.cache.directory import SEGMENT
from aisfs.model import ByteRange, RangeSet
from tests.cache.block_helpers import KIB, MIB, an_entry, check_accounts, content, du

LIMIT = 5 * MIB
ENTRIES = [
    an_entry("small", size=1000),
    an_entry("a page", size=4096),
    an_entry("some", size=700 * KIB),
    an_entry("much", size=3 * MIB),
    an_entry("two segments", size=SEGMENT + 400 * KIB),
]
entries = st.sampled_from(ENTRIES)
which = st.integers(0, 1)
places = st.floats(0, 1, exclude_max=True)
lengths = st.sampled_from([1, 100, 4096, 5000, 60_000, 300_000, 1_500_000])


def a_range(entry, place, length):
    start = int(place * entry.size)
    if entry.size > SEGMENT and place > 0.5:
        start = SEGMENT - 20_000 + int((place - 0.5) * 100_000)
    return ByteRange(start, min(entry.size, start + length))


def kill(cache):
    """Leave everything as `kill -9` does: locks are gone, the ledger knows of no end."""
    cache._health.broken = True
    cache._bookkeeper.ledger.close()
    fcntl.flock(cache._descriptor, fcntl.LOCK_UN)
    os.close(cache._descriptor)


class TwoCaches(RuleBasedStateMachine):
    """Two caches stand for two daemons; to the locks of files they are."""

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="aisfs-model-"))
        self.caches = [None, None]
        self.published = {entry: RangeSet() for entry in ENTRIES}
        """What was published at any time by anyone: nothing else may be found."""
        self.open = [[], []]
        self.pinned = [set(), set()]

    @initialize()
    def start(self):
        for place in (0, 1):
            self.caches[place] = BlockCache.open(self.directory, LIMIT + place * MIB)

    def teardown(self):
        for cache in self.caches:
            if cache is not None:
                cache.close()
        shutil.rmtree(self.directory)

    @rule(cache=which, entry=entries, place=places, length=lengths)
    def read(self, cache, entry, place, length):
        wanted = a_range(entry, place, length)
        view = self.caches[cache].read(entry, wanted)
        if view is not None:
            assert bytes(view) == content(entry, wanted.start, wanted.stop)
            assert self.published[entry].covers(wanted)

    @rule(cache=which, entry=entries, place=places, length=lengths)
    def missing_agrees_with_read(self, cache, entry, place, length):
        cache = self.caches[cache]
        wanted = a_range(entry, place, length)
        gaps = cache.missing(entry, wanted)
        assert (cache.read(entry, wanted) is None) == bool(gaps)
        for gap in gaps:
            assert wanted.start <= gap.start < gap.stop <= wanted.stop

    @rule(cache=which, entry=entries, place=places, length=lengths)
    def reserve(self, cache, entry, place, length):
        wanted = a_range(entry, place, length)
        reservation = self.caches[cache].reserve(entry, wanted)
        if reservation is not None:
            self.open[cache].append((entry, reservation))

    @rule(cache=which, entry=entries, place=places, length=lengths)
    def keep(self, cache, entry, place, length):
        self.reserve(cache, entry, place, length)
        if self.open[cache] and self.open[cache][-1][1].range == a_range(entry, place, length):
            self.write(cache, -1, 0.0, True)
            self.finish(cache, -1)

    @precondition(lambda self: self.open[0] or self.open[1])
    @rule(cache=which, at=st.integers(0, 99), split=places, publish=st.booleans())
    def write(self, cache, at, split, publish):
        if not self.open[cache]:
            return
        entry, reservation = self.open[cache][at % len(self.open[cache])]
        start = reservation.range.start + int(split * len(reservation.range))
        part = ByteRange(start, reservation.range.stop)
        reservation.write(start, content(entry, start, part.stop))
        if publish:
            self.published[entry].add(part)
            if reservation.publish(part):
                # Nothing can have evicted it: a reservation pins what it writes to.
                view = self.caches[cache].read(entry, part)
                assert bytes(view) == content(entry, part.start, part.stop)

    @precondition(lambda self: self.open[0] or self.open[1])
    @rule(cache=which, at=st.integers(0, 99))
    def finish(self, cache, at):
        if self.open[cache]:
            self.open[cache].pop(at % len(self.open[cache]))[1].finish()

    @rule(cache=which, entry=entries)
    def pin(self, cache, entry):
        self.caches[cache].pin(entry)
        self.pinned[cache].add(entry)
        for each in self.caches:
            each.sync()

    @precondition(lambda self: any(self.pinned))
    @rule(cache=which)
    def unpin(self, cache):
        if self.pinned[cache]:
            entry = self.pinned[cache].pop()
            while self.caches[cache]._resident.pins[entry.digest]:
                self.caches[cache].unpin(entry)

    @rule(cache=which)
    def sync(self, cache):
        self.caches[cache].sync()

    @rule(cache=which)
    def restart(self, cache):
        for _, reservation in self.open[cache]:
            reservation.finish()
        self.caches[cache].close()
        self.reopen(cache)

    @rule(cache=which)
    def be_killed(self, cache):
        kill(self.caches[cache])
        self.reopen(cache)

    def reopen(self, cache):
        self.open[cache].clear()
        self.pinned[cache].clear()
        self.caches[cache] = BlockCache.open(self.directory, LIMIT + cache * MIB)

    @rule(cache=which)
    def clear(self, cache):
        self.caches[cache].clear()

    @rule(cache=which)
    def check_finds_no_damage(self, cache):
        assert self.caches[cache].check().damaged == 0

    @invariant()
    def limit_holds(self):
        assert du(self.directory) <= LIMIT

    @invariant()
    def accounts_agree(self):
        for cache in self.caches:
            if cache is not None:
                check_accounts(cache)

    @invariant()
    def pinned_segments_stay(self):
        for cache, pinned in zip(self.caches, self.pinned, strict=True):
            for entry in pinned:
                for number in entry.numbers(ByteRange(0, entry.size)):
                    segment = cache._resident.segments.get(entry.key(number))
                    assert segment is None or segment.pinned


TestTwoCaches = TwoCaches.TestCase
TestTwoCaches.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_nothing_is_evicted_that_is_pinned(tmp_path, monkeypatch):
    """What admission gives up is never pinned, by this cache or by another one."""
    caches = [BlockCache.open(tmp_path, LIMIT) for _ in range(2)]
    pinned = an_entry("pinned", size=MIB)
    assert block_cache.LEAST < LIMIT
    for cache in caches:
        cache.sync()
    with caches[0].reserve(pinned, ByteRange(0, MIB)) as reservation:
        reservation.write(0, content(pinned))
        reservation.publish(ByteRange(0, MIB))
    caches[0].pin(pinned)
    caches[0].sync()
    caches[1].sync()
    others = [an_entry(f"{n}", size=700 * KIB) for n in range(4)]
    for _ in range(60):
        for entry in others:
            if caches[1].read(entry, ByteRange(0, entry.size)) is None:
                reservation = caches[1].reserve(entry, ByteRange(0, entry.size))
                if reservation is not None:
                    with reservation:
                        reservation.write(0, content(entry))
                        reservation.publish(ByteRange(0, entry.size))
    assert caches[1].counts().rejected
    for cache in caches:
        assert cache.read(pinned, ByteRange(0, MIB)) is not None
        cache.close()
