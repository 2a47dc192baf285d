"""Frames of the journal of acknowledged files: bytes and records that are safe on the local disk.

A journal is frames, one after the other, and zeros behind them. A frame carries the content of one file, or
none, and ends earlier frames: their files are in the store, were removed, or have newer content here. A
frame that is cut off or damaged ends the journal: nothing behind it was acknowledged.

    magic  CRC-32 of all that follows  serial  mtime in ns  number of ended frames, bytes of record and content
    serials of ended frames    record (`core.staged.record`)    content
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from aisfs.core.staged.record import StagedRecord

_MAGIC = b"aisJ"
_HEAD = struct.Struct("<4sIQqIII")
_CHECKED = 8
"""Where the bytes begin that the checksum covers."""
_TIME_MOST = (1 << 63) - 1
"""Nanoseconds that fit into a frame: 292 years around 1970. Files may be of any other time."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a journal."""

    serial: int
    """Of two frames the later one has the higher number."""
    mtime_ns: int
    ended: tuple[int, ...]
    """Serials of frames that this one ends."""
    record: StagedRecord | None
    """What the content is to become; None if the frame only ends others."""
    start: int
    """Where the content begins in the journal."""
    size: int
    """Bytes of content."""


def encode(
    serial: int, mtime_ns: int, ended: Sequence[int], record: bytes = b"", content: bytes = b""
) -> bytes:
    """Return a frame; `record` is encoded, and empty if the frame only ends others.

    A time that does not fit is the nearest that does.
    """
    mtime_ns = max(-_TIME_MOST, min(mtime_ns, _TIME_MOST))
    ends = struct.pack(f"<{len(ended)}Q", *ended) if ended else b""
    head = _HEAD.pack(_MAGIC, 0, serial, mtime_ns, len(ended), len(record), len(content))
    body = b"".join((head[_CHECKED:], ends, record, content))
    return b"".join((_MAGIC, zlib.crc32(body).to_bytes(4, "little"), body))


def content_at(frame: bytes, size: int) -> int:
    """Return where the content of so many bytes begins in an encoded frame."""
    return len(frame) - size


def decode(journal: memoryview) -> Iterator[Frame]:
    """Yield the whole frames of a journal."""
    start = 0
    while start + _HEAD.size <= len(journal):
        magic, checksum, serial, mtime_ns, ends, recorded, size = _HEAD.unpack_from(journal, start)
        place = start + _HEAD.size + 8 * ends
        stop = place + recorded + size
        whole = magic == _MAGIC and stop <= len(journal)
        if not whole or zlib.crc32(journal[start + _CHECKED : stop]) != checksum:
            return
        ended = struct.unpack_from(f"<{ends}Q", journal, start + _HEAD.size)
        text = bytes(journal[place : place + recorded])
        record = StagedRecord.decode(text) if text else None
        yield Frame(serial, mtime_ns, ended, record, place + recorded, size)
        start = stop


def live(frames: Iterable[Frame]) -> list[Frame]:
    """Return the frames with content that none ends, in order; of one object only the last."""
    found: dict[tuple[object, ...], Frame] = {}
    by_serial: dict[int, tuple[object, ...]] = {}
    for frame in sorted(frames, key=lambda each: each.serial):
        for serial in frame.ended:
            ended = by_serial.pop(serial, None)
            if ended is not None:
                del found[ended]
        record = frame.record
        if record is not None:
            place = (record.endpoint, record.bucket, record.key)
            previous = found.pop(place, None)
            if previous is not None:
                del by_serial[previous.serial]
            found[place] = frame
            by_serial[frame.serial] = place
    return list(found.values())
