"""Contents read once more from end to end, and compared with what they should be.

Whatever differs is removed. It takes as long as the disk, so it belongs on a worker thread.
"""

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aisfs.cache.disk.bookkeeping import Bookkeeper
from aisfs.cache.disk.format import SEGMENT, Damaged, EntryId
from aisfs.cache.disk.segment_file import sums_of
from aisfs.cache.disk.segments import Segment
from aisfs.core.checksums import hasher_for_cache
from aisfs.model import ByteRange

_CHUNK = 1024 * 1024


Progress = Callable[[int, int], None]
"""Told how many bytes are done, and of how many."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `verify_all` found."""

    segments: int
    bytes: int
    """Verified bytes of objects."""
    damaged: int
    """Segments that were dropped."""
    unknown: int
    """Segments that could not be read, or not be dropped."""


def can_verify(entry: EntryId) -> bool:
    """Say whether AIStore told a checksum that can be computed here."""
    return hasher_for_cache(entry.checksum) is not None


def verify_whole(bookkeeper: Bookkeeper, entry: EntryId, computed: str | None) -> bool:
    """Compare a complete entry with the checksum AIStore told; drop it if they differ.

    Args:
        bookkeeper: Where it is.
        entry: What to verify; `can_verify`.
        computed: The checksum of the bytes as they came; None reads them from the disk.

    Returns:
        False if they differ; True also if it turns out to be damaged, and is not complete any more,
        or if the disk fails.
    """
    numbers = entry.numbers(ByteRange(0, entry.size))
    segments = [bookkeeper.resident.segments.get(entry.key(number)) for number in numbers]
    try:
        if computed is None:
            computed = _read(bookkeeper, entry, filter(None, segments))
    except Damaged:
        return True
    except (OSError, sqlite3.Error) as error:
        bookkeeper.health.trouble(error)
        return True
    if computed == entry.checksum.partition(":")[2].lower():
        return True
    try:
        bookkeeper.remove([segment for segment in segments if segment is not None])
    except (OSError, sqlite3.Error) as error:
        bookkeeper.health.trouble(error)
    return False


def _read(bookkeeper: Bookkeeper, entry: EntryId, segments: Iterable[Segment]) -> str:
    hasher = hasher_for_cache(entry.checksum)
    assert hasher is not None, "only what can be verified is"
    for segment in segments:
        file = bookkeeper.open(segment)
        stop = min(segment.start + SEGMENT, entry.size)
        for start in range(segment.start, stop, _CHUNK):
            hasher.update(file.read(start, min(start + _CHUNK, stop)))
    return hasher.hexdigest()


def verify_all(bookkeeper: Bookkeeper, progress: Progress | None = None) -> CheckReport:
    """Read everything and drop what is damaged."""
    with bookkeeper.resident.lock:
        segments = list(bookkeeper.resident.segments.values())
    total = sum(segment.bytes for segment in segments)
    done = verified = damaged = unknown = 0
    for place, segment in enumerate(segments):
        if bookkeeper.health.broken:
            unknown += len(segments) - place
            break
        try:
            file = bookkeeper.open(segment)
            for start, stop, sums in bookkeeper.ledger.pieces(segment.id):
                try:
                    found = sums_of(file, ByteRange(start, stop))
                except OSError as error:
                    raise bookkeeper.drop(segment, error) from None
                if found != sums:
                    raise bookkeeper.drop(segment, f"bytes {start} to {stop} have changed")
                verified += stop - start
        except Damaged:
            damaged += 1
        except (OSError, sqlite3.Error) as error:
            unknown += 1
            bookkeeper.health.trouble(error)
        done += segment.bytes
        if progress is not None:
            progress(done, total)
    return CheckReport(len(segments), verified, damaged, unknown)
