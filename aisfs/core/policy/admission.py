"""Which entries stay in a cache that is smaller than the data.

Training reads the same data repeatedly, in epochs. With room for a part of it, LRU evicts each entry
shortly before it is wanted again. Here the cache is filled and then kept: a resident is evicted only
for a key with a better claim. A key gains a claim by being requested twice, `distance` bytes apart
(counting all requests of all keys), while
- the resident was idle for longer than that distance, and no resident idle for at least about half
  as long was requested in between. Then the data set of the resident is no longer in use: one that
  is still read in epochs would have requested some old resident every few requests;
- or the key was requested three times, and the resident was idle for `_HOTTER` times the longer
  distance: the key is simply hotter.
So a scan, which requests each key once, only gets free space; shuffled and cyclic epochs replace
almost nothing; and a new data set gets the cache as soon as its second epoch starts.

Requests of keys that are not resident are remembered in a bounded list of ghosts. When there are
too many, a sample chosen by hash is kept (SHARDS, Waldspurger et al., FAST 2015), because keeping
the youngest would, like LRU, forget each key shortly before it returns. A key outside the sample is
assumed to have the claim of the last key in the sample.

Invariants: `used <= limit`; a pinned entry is never a victim; no call visits all residents.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar
from zlib import crc32

KeyT = TypeVar("KeyT", bound=Hashable)

Claim = tuple[int | None, int | None]
"""The distances between the last uses of a key, the latest first; None where there was no use."""
_NO_CLAIM: Claim = (None, None)

GHOSTS = 16_384
"""Most keys remembered without being resident: some 6 MiB, and a sample that estimates shares of a
million keys to one percent."""
_HOTTER = 4
"""In shuffled epochs two successive distances add up to at least one epoch, and no key in use is
idle for more than two: by chance the longer distance is never below a quarter of that."""
_CHANCES = 4
"""How many requests of old residents have to be missing before they count as unused: by chance so
many are missing in e^-4 = 2 % of the cases."""
_CORRELATED = 256
"""Requests of one key within 1/256 of the limit are one use (a label, then its image; two workers):
40 MiB of 10 GiB, more than some dozens of workers read at a time."""
_FORGOTTEN = 4
"""A ghost is dropped when idle for so many times all known bytes, enough for the slowest reader."""
_SCALES = 128
"""Half octaves of 64 bits of bytes."""
_HASHES = 1 << 32
_MIX = 0x9E3779B1  # 2^32 divided by the golden ratio: spreads the linear CRC of numbered names


class _Entry:
    """The recorded use of one key."""

    __slots__ = ("before", "distance", "first", "kept_reused", "last", "pins", "proven",
                 "served", "size")  # fmt: skip

    def __init__(self, size: int, now: int) -> None:
        self.size = size
        self.last = now
        """Clock of the latest request."""
        self.first = now
        """Clock of the first request of the current use."""
        self.served = 0
        """Bytes requested in this use."""
        self.distance: int | None = None
        """From the start of the previous use to the start of this one; None if there was none."""
        self.before: int | None = None
        """The distance before that."""
        self.kept_reused = 0
        """Of a resident: the cache's `_reused` at the latest request."""
        self.proven = False
        """Of a resident: whether it was requested again since it was admitted."""
        self.pins = 0

    @property
    def claim(self) -> Claim:
        return self.distance, self.before

    def request(self, size: int, whole: int, now: int, correlated: int) -> None:
        """Count a request in the current use, or start the next one if that read everything."""
        elapsed = now - self.first
        if self.served >= max(whole, self.size) and elapsed > correlated:
            self.before = self.distance
            self.distance = elapsed
            self.first = now
            self.served = 0
        self.served += size
        self.last = now


class Admission(Generic[KeyT]):
    """The bookkeeping of one cache: which keys are resident, and which are evicted for others."""

    def __init__(self, limit: int, *, ghosts: int = GHOSTS) -> None:
        """Start empty, with room for `limit` bytes, remembering up to `ghosts` other keys."""
        self.limit = limit
        self.used = 0
        """Bytes of all residents, as granted by `admit` and `grow`."""
        self._clock = 0
        """Bytes requested so far."""
        self._reused = 0
        """Bytes requested again, estimated from the sample."""
        self._idle: OrderedDict[KeyT, _Entry] = OrderedDict()
        """Residents that are not pinned, the longest idle first."""
        self._pinned: dict[KeyT, _Entry] = {}
        self._ghosts: OrderedDict[KeyT, _Entry] = OrderedDict()
        self._ghost_limit = ghosts
        self._ghost_bytes = 0
        self._sampled = _HASHES
        """A key is in the sample if its hash is below this."""
        self._typical = _NO_CLAIM
        """The claim of the last requested ghost, which keys outside the sample are assumed to have."""
        self._hits = [-1] * _SCALES
        """By scale of its previous idle time: clock of the last request of such a resident."""
        self._hits_reused = [0] * _SCALES
        """`_reused` at these requests."""
        self._retry = 0
        """Clock until which a search for victims would find as little as the last one."""

    def __len__(self) -> int:
        return len(self._idle) + len(self._pinned)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._idle or key in self._pinned

    def __repr__(self) -> str:
        return (
            f"<Admission {self.used}/{self.limit} bytes, {len(self)} residents, "
            f"{len(self._pinned)} pinned, {len(self._ghosts)} ghosts>"
        )

    def request(self, key: KeyT, size: int, *, whole: int = 0) -> None:
        """Record an access to `size` bytes of `key`, hit or miss; before `admit`, if that follows.

        `whole` is the length of the whole entry when accesses read parts of it: reading the parts
        one after the other is one use, not many.
        """
        self._clock += size
        now = self._clock
        correlated = self.limit // _CORRELATED
        entry = self._idle.get(key) or self._pinned.get(key)
        if entry is not None:
            scale = _scale(now - entry.last)
            self._reused += size
            self._hits[scale] = now
            self._hits_reused[scale] = entry.kept_reused = self._reused
            entry.proven = True
            entry.request(size, whole, now, correlated)
            if not entry.pins:
                self._idle.move_to_end(key)
            return
        ghost = self._ghosts.get(key)
        if ghost is not None:
            ghost.request(size, whole, now, correlated)
            self._ghosts.move_to_end(key)
            self._typical = ghost.claim
            if ghost.distance is not None:
                self._reused += size * (_HASHES // self._sampled)
        elif _hash(key) < self._sampled:
            ghost = _Entry(max(size, whole), now)
            ghost.served = size
            self._remember(key, ghost)
            self._typical = _NO_CLAIM

    def admit(self, key: KeyT, size: int, *, urgent: bool = False) -> list[KeyT] | None:
        """Decide whether `key` becomes resident with `size` bytes.

        `urgent` entries are expensive to make again: they evict the longest idle residents.

        Returns:
            The victims, which no longer count and must be removed before the room is used
            (without a call of `evicted`); None if `key` is not kept.
        """
        held = self._idle.get(key) or self._pinned.get(key)
        if held is not None:
            return self.grow(key, max(0, size - held.size), urgent=urgent)
        ghost = self._ghosts.get(key)
        if ghost is not None:
            claim = ghost.claim
        else:
            claim = self._typical if _hash(key) >= self._sampled else _NO_CLAIM
        victims = self._make_room(size, claim, urgent)
        if victims is None:
            return None
        entry = self._forget(key)
        if entry is None:
            entry = _Entry(size, self._clock)
            entry.served = size
        entry.size = size
        entry.kept_reused = self._reused
        self._idle[key] = entry
        self.used += size
        return victims

    def grow(self, key: KeyT, extra: int, *, urgent: bool = False) -> list[KeyT] | None:
        """Decide whether the resident `key` may grow by `extra` bytes; return what `admit` returns.

        None leaves it unchanged. The key itself is never a victim.
        """
        entry = self._idle.pop(key, None)
        if entry is None:
            entry = self._pinned[key]
        victims = self._make_room(extra, entry.claim, urgent)
        if victims is not None:
            entry.size += extra
            self.used += extra
        if not entry.pins:
            entry.last = self._clock  # growing is use; also keeps `_idle` in order
            self._idle[key] = entry
        return victims

    def resize(self, key: KeyT, size: int) -> None:
        """Correct the size of a resident, even past the limit; no effect for other keys."""
        entry = self._idle.get(key) or self._pinned.get(key)
        if entry is not None:
            self.used += size - entry.size
            entry.size = size

    def pin(self, key: KeyT) -> None:
        """Keep the resident `key` until it is unpinned as often as it was pinned."""
        entry = self._pinned.get(key)
        if entry is None:
            entry = self._pinned[key] = self._idle.pop(key)
        entry.pins += 1

    def unpin(self, key: KeyT) -> None:
        """Undo one `pin`; no effect for a key that was evicted meanwhile."""
        entry = self._pinned.get(key)
        if entry is None:
            return
        entry.pins -= 1
        if not entry.pins:
            del self._pinned[key]
            entry.last = self._clock  # it was in use until now; also keeps `_idle` in order
            self._idle[key] = entry

    def evicted(self, key: KeyT) -> None:
        """Record that `key` was removed for any reason; no effect for victims already returned."""
        entry = self._idle.pop(key, None) or self._pinned.pop(key, None)
        if entry is not None:
            self._leave(key, entry)

    def residents(self) -> Iterator[tuple[KeyT, int, int]]:
        """Yield (key, size, clock of the last use) of each resident, for `restore`."""
        for group in (self._idle, self._pinned):
            for key, entry in group.items():
                yield key, entry.size, entry.last

    def restore(self, residents: Iterable[tuple[KeyT, int, int]]) -> list[KeyT]:
        """Add what `residents` yielded, in any order, to an empty cache.

        Returns:
            The longest idle entries, for which there is no room.
        """
        left = []
        for key, size, last in sorted(residents, key=lambda item: -item[2]):
            if self.used + size > self.limit:
                left.append(key)
                continue
            entry = _Entry(size, last)
            entry.served = size
            self._idle[key] = entry
            self._idle.move_to_end(key, last=False)
            self.used += size
            self._clock = max(self._clock, last)
        return left

    def _make_room(self, size: int, claim: Claim, urgent: bool) -> list[KeyT] | None:
        """Remove victims until `size` more bytes fit; return all of them, or None."""
        missing = self.used + size - self.limit
        if missing <= 0:
            return []
        if size > self.limit:
            return None
        if not urgent and (claim == _NO_CLAIM or self._clock < self._retry):
            return None
        victims: list[KeyT] = []
        found = 0
        for key, entry in self._idle.items():
            if not urgent and not self._gives_way(entry, claim):
                break
            victims.append(key)
            found += entry.size
            if found >= missing:
                break
        if found < missing:
            self._retry = self._clock + found  # bounds the work, and is less than `size`
            return None
        for key in victims:
            self._leave(key, self._idle.pop(key))
        return victims

    def _gives_way(self, resident: _Entry, claim: Claim) -> bool:
        """Return whether a resident makes room for a key with that claim.

        A resident rarely makes room when one that is idle for longer does not.
        """
        distance, before = claim
        if distance is None:
            return False
        idle = self._clock - resident.last
        if before is not None and idle > _HOTTER * max(distance, before):
            return True
        alike = _scale(idle * 2 // 3)
        quiet = min(idle, self._clock - max(self._hits[alike:]))
        if quiet <= distance:
            return False
        # Requested bytes per expected request of a resident, times the bytes of one resident.
        rarity = self._known() / self.limit * self.used / max(1, len(self))
        if not resident.proven:
            # In a first epoch no resident is requested again, so allow every key its turn, and count
            # only repeated requests, any of which could have been of this resident.
            if idle <= self._known():
                return False
            quiet = self._reused - max(resident.kept_reused, *self._hits_reused[alike:])
        return quiet > _CHANCES * rarity

    def _known(self) -> int:
        """Return the bytes of all keys, resident or not, estimated from the sample."""
        return self.used + self._ghost_bytes * (_HASHES // self._sampled)

    def _leave(self, key: KeyT, entry: _Entry) -> None:
        self.used -= entry.size
        if _hash(key) < self._sampled:
            entry.pins = 0
            entry.proven = False
            entry.distance = entry.before = None
            entry.first = entry.last
            entry.served = entry.size
            self._remember(key, entry)

    def _remember(self, key: KeyT, ghost: _Entry) -> None:
        ghosts = self._ghosts
        ghosts[key] = ghost
        self._ghost_bytes += ghost.size
        oldest = next(iter(ghosts.values()))
        if self._clock - oldest.last > _FORGOTTEN * (self.limit + self._known()):
            self._ghost_bytes -= ghosts.popitem(last=False)[1].size
        if len(ghosts) > self._ghost_limit:
            self._sampled //= 2
            for other in [other for other in ghosts if _hash(other) >= self._sampled]:
                self._forget(other)
        elif len(ghosts) < self._ghost_limit // 4 and self._sampled < _HASHES:
            self._sampled *= 2

    def _forget(self, key: KeyT) -> _Entry | None:
        ghost = self._ghosts.pop(key, None)
        if ghost is not None:
            self._ghost_bytes -= ghost.size
        return ghost


def _scale(idle: int) -> int:
    """Return the number of the half octave of an idle time."""
    bits = idle.bit_length()
    return min(2 * bits + (idle >> (bits - 2) & 1 if bits > 1 else 0), _SCALES - 1)


def _hash(key: Hashable) -> int:
    """Return a hash that, unlike `hash`, is the same in every process, for repeatable tests."""
    data = key if isinstance(key, bytes) else repr(key).encode("utf-8", "backslashreplace")
    return crc32(data) * _MIX % _HASHES
