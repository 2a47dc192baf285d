"""Sparse members: files stored without their holes, in the four formats of GNU tar.

- the old GNU type `S`: the map is in the header and in extension blocks after it;
- pax 0.0: one record per number; pax 0.1: one record with all numbers; pax 1.0: decimal lines
  before the data. Version 1.0 is current; the others occur in old archives.

A scan only needs the logical size and where the member ends. The map is read together with the
member, from its first bytes (`MemberIndex.span`). So `sparse_segments` returns the map, and
`segments_of` the stored bytes that a read needs. Bytes outside of all segments are zeros.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aisfs.core.tar.header import (
    BLOCK,
    MAX_SIZE,
    SIZE_FIELD,
    decimal,
    number,
    padded,
    parse_header,
    parse_pax,
)
from aisfs.errors import ShardDamaged

MAX_SEGMENTS = 1 << 17
"""Most segments of a map, which must not need more memory than the index of a large shard."""
MAX_HEADERS = 1 << 12
"""Most headers before a map; GNU tar writes one or two."""

_MARKS = (b"GNU.sparse.size", b"GNU.sparse.realsize", b"GNU.sparse.major", b"GNU.sparse.map")
"""Any of these records makes a member sparse."""
SPARSE_KEYS = frozenset((*_MARKS, b"GNU.sparse.name", b"GNU.sparse.minor"))
"""The pax records that a scan needs."""

_LOOSE_KEYS = (b"GNU.sparse.offset", b"GNU.sparse.numbytes")
_NUMBER_KEYS = frozenset((*_LOOSE_KEYS, *_MARKS[:3], b"GNU.sparse.minor", b"GNU.sparse.numblocks"))
_NUMBER = re.compile(rb"0*[0-9]{1,20}")
_MAP = re.compile(rb"0*[0-9]{1,20}(,0*[0-9]{1,20})*")
_VERSION_KEYS = (b"GNU.sparse.major", b"GNU.sparse.minor")
_VERSIONS = ((0, 0), (0, 1), (1, 0))
_MAP_KEYS = SPARSE_KEYS | frozenset(_LOOSE_KEYS)
_MOST_RECORDS = 2 * MAX_SEGMENTS + 64
"""More than any map that counts has: with so many it is refused."""

_OLD_MAP = 386  # where the old header's four entries start
_OLD_ENTRIES = 4
_OLD_EXTENDED = 482
_OLD_REAL_SIZE = slice(483, 495)
_ENTRY = 24
_EXTENSION_ENTRIES = 21
_EXTENSION_EXTENDED = 504


class SparseSegment(NamedTuple):
    """A range of data between holes."""

    offset: int
    """Its offset in the logical file."""
    length: int
    stored: int
    """Where its bytes are stored, from the start of the member's span."""


class _TooShort(Exception):
    pass


def header_extends(block: bytes) -> bool:
    """Return whether an extension block follows this old sparse header."""
    return bool(block[_OLD_EXTENDED])


def extension_extends(block: bytes) -> bool:
    """Return whether another extension block follows this one."""
    return bool(block[_EXTENSION_EXTENDED])


def extension_holds(block: bytes) -> bool:
    """Return whether the map in an extension block is of numbers."""
    return _entries_hold(block, 0, _EXTENSION_ENTRIES)


def old_logical_size(block: bytes) -> int | None:
    """Return the logical size in an old sparse header; None if that or its map is malformed."""
    size = number(block[_OLD_REAL_SIZE])
    sound = _entries_hold(block, _OLD_MAP, _OLD_ENTRIES)
    return size if sound and size is not None and 0 <= size <= MAX_SIZE else None


def is_sparse(records: Mapping[bytes, bytes]) -> bool:
    """Return whether pax records say that a member is sparse."""
    return any(key in records for key in _MARKS)


def pax_logical_size(records: Mapping[bytes, bytes]) -> int | None:
    """Return the logical size in sparse records; None if it is malformed or the version unknown."""
    version = tuple(decimal(records.get(key, b"0")) for key in _VERSION_KEYS)
    if version not in _VERSIONS:
        return None
    said = records.get(b"GNU.sparse.size", b"")
    if version == (1, 0) or b"GNU.sparse.map" in records:
        said = records.get(b"GNU.sparse.realsize") or said
    size = decimal(said)
    return size if size is not None and size <= MAX_SIZE else None


def sparse_numbers_hold(pairs: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether the sparse records of a pax header have numbers where they should."""
    return all(
        (_MAP if key == b"GNU.sparse.map" else _NUMBER).fullmatch(value)
        for key, value in pairs
        if key in _NUMBER_KEYS or key == b"GNU.sparse.map"
    )


def sparse_segments(head: bytes, size: int) -> tuple[SparseSegment, ...] | None:
    """Return the map of a sparse member.

    Args:
        head: the first bytes of the member's span, any number.
        size: the logical size.

    Returns:
        The segments in order, or None when the map continues after `head`.

    Raises:
        ShardDamaged: there is no valid map.
    """
    try:
        pairs, stored = _find_map(head)
    except _TooShort:
        return None
    segments: list[SparseSegment] = []
    end = 0
    for offset, length in pairs:
        if offset < end or offset + length > size:
            raise ShardDamaged(f"sparse map: {length} bytes at {offset} overlap or pass {size}")
        end = offset + length
        if length:
            segments.append(SparseSegment(offset, length, stored))
            stored += length
    return tuple(segments)


def segments_of(
    segments: tuple[SparseSegment, ...], offset: int, length: int
) -> list[SparseSegment]:
    """Return the parts of segments that a read needs; the rest is zeros."""
    stop = offset + length
    parts: list[SparseSegment] = []
    first = max(0, bisect_right(segments, offset, key=_offset) - 1)
    for at in range(first, len(segments)):
        segment = segments[at]
        if segment.offset >= stop:
            break
        start = max(segment.offset, offset)
        end = min(segment.offset + segment.length, stop)
        if start < end:
            parts.append(SparseSegment(start, end - start, segment.stored + start - segment.offset))
    return parts


def _offset(segment: SparseSegment) -> int:
    return segment.offset


def _find_map(head: bytes) -> tuple[list[tuple[int, int]], int]:
    """Return the (offset, length) pairs and where the data starts."""
    records: dict[bytes, bytes] = {}
    loose: list[int] = []
    position = 0
    for _ in range(MAX_HEADERS):
        block = head[position : position + BLOCK]
        if len(block) < BLOCK:
            raise _TooShort
        header = parse_header(block)
        if header is None:
            break
        position += BLOCK
        if header.kind == b"S":
            return _old_map(block, head, position)
        if header.kind not in (b"x", b"X", b"g", b"L", b"K"):
            return _pax_map(records, loose, head, position)
        size = number(block[SIZE_FIELD])
        if size is None or size < 0:
            break
        payload = head[position : position + size]
        if len(payload) < size:
            raise _TooShort
        position += padded(size)
        if header.kind in (b"x", b"X"):
            pairs = parse_pax(payload, _MAP_KEYS, _MOST_RECORDS).pairs
            records = dict(pairs)  # the last header counts, as in a scan
            loose = [_checked(decimal(value)) for key, value in pairs if key in _LOOSE_KEYS]
    raise ShardDamaged("sparse member without its headers")


def _old_map(header: bytes, head: bytes, position: int) -> tuple[list[tuple[int, int]], int]:
    pairs = _old_entries(header, _OLD_MAP, _OLD_ENTRIES)
    more = header_extends(header)
    while more:
        block = head[position : position + BLOCK]
        if len(block) < BLOCK:
            raise _TooShort
        pairs += _old_entries(block, 0, _EXTENSION_ENTRIES)
        if len(pairs) > MAX_SEGMENTS:
            raise ShardDamaged("sparse map of too many segments")
        position += BLOCK
        more = extension_extends(block)
    return pairs, position


def _entries_hold(block: bytes, start: int, count: int) -> bool:
    try:
        _old_entries(block, start, count)
    except ShardDamaged:
        return False
    return True


def _old_entries(block: bytes, start: int, count: int) -> list[tuple[int, int]]:
    pairs = []
    for at in range(start, start + count * _ENTRY, _ENTRY):
        if not block[at] and not block[at + 12]:  # an unused entry
            break
        pairs.append(
            (_checked(number(block[at : at + 12])), _checked(number(block[at + 12 : at + 24])))
        )
    return pairs


def _pax_map(
    records: Mapping[bytes, bytes], loose: list[int], head: bytes, position: int
) -> tuple[list[tuple[int, int]], int]:
    if b"GNU.sparse.map" in records:
        numbers = [_checked(decimal(part)) for part in records[b"GNU.sparse.map"].split(b",")]
        return _paired(numbers), position
    if decimal(records.get(b"GNU.sparse.major", b"0")):
        return _lines_map(head, position)
    return _paired(loose), position


def _lines_map(head: bytes, start: int) -> tuple[list[tuple[int, int]], int]:
    """Return a map of version 1.0: lines with a count, then offset and length of each segment."""
    numbers: list[int] = []
    position = start
    wanted = 1
    while len(numbers) < wanted:
        newline = head.find(b"\n", position, position + 24)
        if newline < 0:
            if len(head) < position + 24:
                raise _TooShort
            raise ShardDamaged("sparse map with something else than numbers")
        numbers.append(_checked(decimal(head[position:newline])))
        position = newline + 1
        if numbers[0] > MAX_SEGMENTS:
            raise ShardDamaged("sparse map of too many segments")
        wanted = 1 + 2 * numbers[0]
    return _paired(numbers[1:]), start + padded(position - start)


def _paired(numbers: list[int]) -> list[tuple[int, int]]:
    if len(numbers) % 2 or len(numbers) > 2 * MAX_SEGMENTS:
        raise ShardDamaged("sparse map of an odd or unreasonable length")
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _checked(value: int | None) -> int:
    if value is None or not 0 <= value <= MAX_SIZE:
        raise ShardDamaged("sparse map with something else than numbers")
    return value
