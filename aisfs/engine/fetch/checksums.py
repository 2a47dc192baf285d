"""Checksums of whole objects, computed while their parts are in memory.

To compute one at the end would mean to read the object from the disk again. For one thread, which
is given parts nearly in order.
"""

import weakref
from collections import OrderedDict
from dataclasses import dataclass, field

from aisfs.cache.format import EntryId
from aisfs.core.checksums import Hasher, hasher_for_cache
from aisfs.engine.fetch.part import Part

OBJECTS_MAX = 64
"""Objects under way at once, about; of a forgotten one the disk is read."""
EARLY_MAX = 64
"""Parts of one object that came before the one that is due: those of a full window, and more."""


@dataclass(slots=True)
class _Sum:
    hasher: Hasher
    upto: int = 0
    """What is in the checksum: the first so many bytes."""
    early: dict[int, weakref.ref[Part]] = field(default_factory=dict)
    """By where they start. They hold no memory: one that goes leaves a gap that nothing fills."""


class RunningSums:
    """The checksums of the objects that are being fetched."""

    def __init__(self) -> None:
        """Start without any."""
        self._sums: OrderedDict[EntryId, _Sum] = OrderedDict()

    def add(self, entry: EntryId, part: Part) -> None:
        """Add a landed part of an object."""
        running = self._sums.get(entry)
        if running is None or part.range.start < running.upto:
            # Bytes that come once more are on the disk in place of those that were summed up.
            hasher = hasher_for_cache(entry.checksum)
            if hasher is None:
                return
            running = self._sums[entry] = _Sum(hasher)
            if len(self._sums) > OBJECTS_MAX:
                self._sums.popitem(last=False)
        self._sums.move_to_end(entry)
        if len(running.early) < EARLY_MAX:
            running.early[part.range.start] = weakref.ref(part)
        while (reference := running.early.pop(running.upto, None)) is not None:
            due = reference()
            if due is None:
                return
            running.hasher.update(due.content)
            running.upto = due.range.stop

    def finish(self, entry: EntryId) -> str | None:
        """Return the checksum of an object in hexadecimal digits; None if not all of it came by."""
        running = self._sums.pop(entry, None)
        if running is None or running.upto != entry.size:
            return None
        return running.hasher.hexdigest()
