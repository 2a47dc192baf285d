"""Reads contents once more from end to end, and removes what does not match its checksum.

This takes as long as the disk needs, so it belongs on a worker thread.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from aisfs.cache.disk.bookkeeping import Bookkeeper
from aisfs.cache.disk.format import SEGMENT, Damaged, EntryId
from aisfs.cache.disk.segment_file import sums_of
from aisfs.core.checksums import Hasher
from aisfs.core.ranges import pieces
from aisfs.model import ByteRange

_CHUNK = 1024 * 1024


Progress = Callable[[int, int], None]
"""Called with the bytes that are done, and the total."""


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


def verify_object(
    bookkeeper: Bookkeeper, entry: EntryId, computed: str | None, hasher: Hasher
) -> bool:
    """Compare a complete entry with the checksum from AIStore; drop it if they differ.

    Args:
        bookkeeper: Has the entry.
        entry: What to verify.
        computed: The checksum of the bytes as they came; None reads them from the disk.
        hasher: Computes that checksum.

    Returns:
        False if they differ; True also if it turns out to be damaged, and is not complete any more,
        or if the disk fails.
    """
    keys = [key for key, _ in entry.parts(ByteRange(0, entry.size))]
    segments = [each for each in map(bookkeeper.resident.segments.get, keys) if each is not None]
    try:
        if computed is None:
            for segment in segments:
                file = bookkeeper.open(segment)
                stop = min(segment.start + SEGMENT, entry.size)
                for chunk in pieces(ByteRange(segment.start, stop), _CHUNK):
                    hasher.update(file.read(chunk.start, chunk.stop))
            computed = hasher.hexdigest()
        if computed == entry.checksum.partition(":")[2].lower():
            return True
        bookkeeper.remove(segments)
    except Damaged:
        return True
    except (OSError, sqlite3.Error) as error:
        bookkeeper.health.trouble(error)
        return computed is None
    return False


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
