"""Landed parts that stay in memory: those that are nowhere else, and those whose reader is to come.

What was written past the page cache would have to be read from the disk again, so it stays until a
reader has passed it, until it was not read for a while, or until the memory is needed.

What only a scan has read stays for the readers that may follow. It gives way to everything else, the
latest first: readers come in the order of the scan, and a scan of more than fits would otherwise
replace all that it had read by what is read last.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice

import trio

from aisfs.engine.fetch.object_state import OpenObject
from aisfs.engine.fetch.part import Data, Part

Retained = tuple[Part, OpenObject]

COPIES_MAX = 128 << 20
"""Bytes that wait for readers or for the disk before what is fetched for nobody waits, too: some shards."""
LOOK_SECONDS, LOOKS_MAX = 0.002, 25
"""How often copies are looked at, and how often in vain: a part is pushed in some 20 ms."""
WAIT_SECONDS = 0.25
"""How long to wait at most although copies are passed: they may be those of other readers."""
STUCK_SECONDS = 1.0
"""How long nobody waits after either, so that a twentieth of the rate is lost where nobody reads."""
LOOKS = 64
"""Parts that may be looked at, on average or at once, to find one that was passed."""
SCANNED_SECONDS = 600.0
"""How long what a scan has read waits for readers: they come after the listing, or not at all."""


class RetainedParts:
    """Which parts stay, and which of them goes first. All of it in the trio thread."""

    def __init__(self) -> None:
        """Start without any."""
        self._only: OrderedDict[Part, OpenObject] = OrderedDict()
        """In memory only, the one not used for longest first."""
        self._copies: OrderedDict[Part, OpenObject] = OrderedDict()
        """On disk as well."""
        self._scanned: OrderedDict[Part, tuple[OpenObject, float]] = OrderedDict()
        """In memory only, not read by any reader, and when a scan had read them; the first first."""
        self._scanned_size = 0
        """What these take: they can be many, and small."""
        self._passed: list[Part] = []
        """Some of these that were passed, the first to go last."""
        self._calls = 0
        """How often such a part was wanted since all were looked at."""
        self._seen: dict[Part, int] = {}
        """How many bytes of each copy had been given when `idle` was called last."""
        self._stuck_until = 0.0
        """Until when nobody need wait for copies to be passed."""
        self.losses = 0
        """How often the disk had lost something when copies were compared with it last."""

    def __bool__(self) -> bool:
        return bool(self._only or self._copies or self._scanned)

    def add(self, part: Part, opened: OpenObject, *, on_disk: bool) -> None:
        """Retain a part."""
        (self._copies if on_disk else self._only)[part] = opened

    def use(self, part: Part) -> None:
        """Mark a part, if it is retained, as read just now."""
        for kept in (self._only, self._copies):
            if part in kept:
                kept.move_to_end(part)
        self._unscan(part)

    def scanned(
        self, opened: OpenObject, pieces: Iterable[Data | Part], now: float
    ) -> list[Retained]:
        """Mark parts that are retained in memory only as read by a scan just now.

        Returns:
            Those to drop: the disk cache was spared them, and is to get them with their neighbours once
            a reader comes.
        """
        unread = [p for p in pieces if isinstance(p, Part) and p in self._only and not p.given]
        spent = [part for part in unread if opened.cache is not None and not part.to_disk]
        for part in unread:
            self._scanned[part] = self._only.pop(part), now
            self._scanned_size += part.cost
        return [(part, opened) for part in spent]

    def _unscan(self, part: Part) -> None:
        if part in self._scanned:
            self._only[part], _ = self._scanned.pop(part)
            self._scanned_size -= part.cost

    def remove(self, part: Part) -> None:
        """Stop retaining a part, if it was."""
        self._only.pop(part, None)
        self._copies.pop(part, None)
        if self._scanned.pop(part, None) is not None:
            self._scanned_size -= part.cost
        self._seen.pop(part, None)

    def first_to_go(self, reading: OpenObject | None = None) -> Retained | None:
        """Return what is missed least when memory is needed.

        That is what can be had from the disk, then what a reader has passed, then what only a scan has
        read. If memory is needed to read ahead in an object, nothing that was scanned of that object goes:
        its reader comes to that first.
        """
        if self._copies:
            return next(iter(self._copies.items()))
        if self._scanned:
            passed = self._first_passed()
            if passed is not None:
                return passed, self._only.get(passed) or self._scanned[passed][0]
            last = next(reversed(self._scanned))
            opened = self._scanned[last][0]
            return (last, opened) if opened is not reading else None
        return next(iter(self._only.items()), None)

    def _first_passed(self) -> Part | None:
        """Return a part in memory only that a reader has passed, or whose members were all pushed."""
        self._calls += 1
        if not self._passed and LOOKS * self._calls >= len(self._only) + len(self._scanned):
            self._calls = 0
            found = [part for kept in (self._only, self._scanned) for part in kept if part.passed]
            self._passed = found[::-1]
        while self._passed:
            part = self._passed.pop()
            if part in self._only or part in self._scanned:
                return part
        return None

    def copies(self) -> list[Retained]:
        """Return those that are on disk as well."""
        return list(self._copies.items())

    @property
    def overfull(self) -> bool:
        """Whether there are so many copies that others had better be had from the disk."""
        return self._copies_size > 2 * COPIES_MAX

    @property
    def _copies_size(self) -> int:
        return sum(part.cost for part in self._copies)

    async def wait_for_readers(
        self, drop: Callable[[list[Retained]], None], unwritten: Callable[[], int]
    ) -> None:
        """Wait while there are many copies, as long as readers or pushes pass them; `drop` those.

        Otherwise what fetches and what passes would drift apart, as far as memory permits. So would the
        thread that writes: what is `unwritten` counts as well, and memory for it would be new memory.
        """
        looks, until = 0, trio.current_time() + WAIT_SECONDS
        before = unwritten()
        began = self._waiting_size + before
        while (
            self._waiting_size + (lag := unwritten()) > COPIES_MAX
            and (now := trio.current_time()) >= self._stuck_until
        ):
            if passed := self.passed() + self._scanned_and_passed():
                drop(passed)
                looks = 0
            elif lag < before:
                before, looks = lag, 0
            elif looks == LOOKS_MAX:  # those who listed a folder do not read it, or not yet
                self._stuck_until = now + STUCK_SECONDS
            elif now >= until:
                if self._waiting_size + lag >= began:  # others go on, and this is not theirs
                    self._stuck_until = now + STUCK_SECONDS
                return
            else:
                await trio.sleep(LOOK_SECONDS)
                looks += 1

    def passed(self) -> list[Retained]:
        """Return the copies that a reader has passed."""
        return [kept for kept in self._copies.items() if kept[0].passed]

    @property
    def _waiting_size(self) -> int:
        return self._copies_size + self._scanned_size

    def _scanned_and_passed(self) -> list[Retained]:
        """Return those in memory only that were scanned lately, and pushed nearly whole."""
        some = islice(reversed(self._scanned.items()), LOOKS)
        return [(part, opened) for part, (opened, _) in some if _is_spent(part)]

    def idle(self, now: float) -> list[Retained]:
        """Return the copies that were there at the last call and were not read since.

        Also what was scanned too long ago, and no reader came for it.
        """
        idle = [kept for kept in self._copies.items() if self._seen.get(kept[0]) == kept[0].given]
        self._seen = {part: part.given for part in self._copies}
        for part in [part for part in self._scanned if part.given and not _is_spent(part)]:
            self._unscan(part)
        for part, (opened, since) in self._scanned.items():
            if now - since < SCANNED_SECONDS:
                break
            idle.append((part, opened))
        return idle


def _is_spent(part: Part) -> bool:
    """Return whether the page cache has nearly all of it: what it has not would have to be fetched again."""
    return part.passed and part.pushed * 8 >= len(part.range) * 7
