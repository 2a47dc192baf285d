"""Landed parts that stay in memory: those that are nowhere else, and those whose reader is to come.

What was written past the page cache would have to be read from the disk again, so it stays until a
reader has passed it, until it was not read for a while, or until the memory is needed.
"""

from collections import OrderedDict

from aisfs.engine.fetch.object_state import OpenObject
from aisfs.engine.fetch.part import Part

Retained = tuple[Part, OpenObject]


class RetainedParts:
    """Which parts stay, and which of them goes first. All of it in the trio thread."""

    def __init__(self) -> None:
        """Start without any."""
        self._only: OrderedDict[Part, OpenObject] = OrderedDict()
        """In memory only, the one not used for longest first."""
        self._copies: OrderedDict[Part, OpenObject] = OrderedDict()
        """On disk as well."""
        self._seen: dict[Part, int] = {}
        """How many bytes of each copy had been given when `idle` was called last."""
        self.losses = 0
        """How often the disk had lost something when copies were compared with it last."""

    def __bool__(self) -> bool:
        return bool(self._only or self._copies)

    def add(self, part: Part, opened: OpenObject, *, on_disk: bool) -> None:
        """Retain a part."""
        (self._copies if on_disk else self._only)[part] = opened

    def use(self, part: Part) -> None:
        """Mark a part, if it is retained, as read just now."""
        for kept in (self._only, self._copies):
            if part in kept:
                kept.move_to_end(part)

    def remove(self, part: Part) -> None:
        """Stop retaining a part, if it was."""
        self._only.pop(part, None)
        self._copies.pop(part, None)
        self._seen.pop(part, None)

    def first_to_go(self) -> Retained | None:
        """Return what is missed least when memory is needed: what can be had from the disk."""
        for kept in (self._copies, self._only):
            if kept:
                return next(iter(kept.items()))
        return None

    def copies(self) -> list[Retained]:
        """Return those that are on disk as well."""
        return list(self._copies.items())

    def passed(self) -> list[Retained]:
        """Return the copies that a reader has passed."""
        return [kept for kept in self._copies.items() if kept[0].passed]

    def idle(self) -> list[Retained]:
        """Return the copies that were there at the last call and were not read since."""
        idle = [kept for kept in self._copies.items() if self._seen.get(kept[0]) == kept[0].given]
        self._seen = {part: part.given for part in self._copies}
        return idle
