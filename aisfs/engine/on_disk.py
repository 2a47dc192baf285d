"""Parts and the disk cache: what of one is there, and how the rest gets there. For worker threads."""

from aisfs.cache.blocks import BlockCache
from aisfs.cache.entry import EntryId
from aisfs.cache.reservation import Reservation
from aisfs.engine.parts import Part
from aisfs.model import ByteRange


def look(
    cache: BlockCache, entry: EntryId, part: Part, keep: bool
) -> list[tuple[ByteRange, Reservation | None]]:
    """Take what is on disk and, if asked to, reserve room for the rest. Runs in a worker thread.

    Returns:
        What is missing, each with its reservation; None where it is not to be kept.
    """
    whole = cache.read(entry, part.range)
    if whole is not None:
        part.content = whole
        return []
    room = part.allocate()
    missing = cache.missing(entry, part.range)
    position = part.range.start
    gaps: list[ByteRange] = []
    for gap in [*missing, ByteRange(part.range.stop, part.range.stop)]:
        between = ByteRange(position, gap.start)
        if between:
            there = cache.read(entry, between)
            if there is None:  # it turned out to be damaged, or was evicted
                gap = ByteRange(position, gap.stop)
            else:
                start = position - part.range.start
                room[start : start + len(between)] = there
        if gap:
            gaps.append(gap)
        position = gap.stop
    return [(gap, cache.reserve(entry, gap) if keep else None) for gap in gaps]


def store(
    cache: BlockCache,
    entry: EntryId,
    part: Part,
    fetched: list[tuple[ByteRange, Reservation | None]],
) -> bool:
    """Write what was fetched to disk; says whether all of it is there. Runs in a worker thread."""
    stored = True
    for gap, reservation in fetched:
        if reservation is None:
            return False
        start = gap.start - part.range.start
        content = part.content[start : start + len(gap)]
        reservation.write(gap.start, content)
        stored = reservation.publish(gap, content) and stored
    if stored and not cache.missing(entry, ByteRange(0, entry.size)):
        cache.verify_whole(entry)
    return stored
