"""Tar headers as values: blocks and pax records decoded, sparse maps, and one member described by all of them.

The scanner finds the bytes; this module decides which records count, and which take precedence. It is the only one that knows
byte positions in tar headers. Its functions are pure; they return None for invalid bytes and never raise, because the scanner
decides whether those are damage. It also compares the bytes of a member with the index that said where they are.

Sparse members are files stored without their holes, in the four formats of GNU tar:

- the old GNU type `S`: the map is in the header and in extension blocks after it;
- pax 0.0: one record per number; pax 0.1: one record with all numbers; pax 1.0: decimal lines
  before the data. Version 1.0 is current; the others occur in old archives.

A scan only needs the logical size and where the member ends. The map is read together with the member, from its first bytes
(`MemberIndex.span`). So `sparse_segments` returns the map, and `segments_of` the stored bytes that a read needs. Bytes outside
of all segments are zeros.
"""

import re
from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple
from zlib import adler32

from aisfs.core.index.columns import HiddenName, normalise
from aisfs.core.index.member_index import EXECUTABLE, SPARSE, MemberIndex, MemberKind
from aisfs.errors import ShardDamaged

BLOCK = 512
ZERO_BLOCK = bytes(BLOCK)

SIZE_FIELD = slice(124, 136)
MAX_SIZE = 2**63 - 1
"""Larger sizes fit neither `off_t` nor the columns of an index."""

_SPACES = 8 * 0x20  # the checksum field counts as eight blanks in its own sum


class Header(NamedTuple):
    """The fields of one header block that passed its checksum."""

    name: bytes
    """With the ustar prefix, if the block has one."""
    kind: bytes
    """The type flag, one byte."""
    size: int | None
    """As stored; None when the field is not a number."""
    mtime_ns: int
    executable: bool
    target: bytes
    """Link name."""
    prefixed: bool
    """Whether the ustar prefix contributed to the name."""


class PaxRecords(NamedTuple):
    """The records of a pax header."""

    pairs: list[tuple[bytes, bytes]]
    """In stored order; keys can repeat (sparse 0.0)."""
    intact: bool
    """False when parsing had to stop before the end."""


def text(field: bytes) -> bytes:
    """Return a text field up to its first NUL."""
    return field.partition(b"\0")[0]


def number(field: bytes) -> int | None:
    """Return a numeric field, which is octal with blanks and NULs around it, or base-256."""
    if field[0] & 0x80:
        # Two's complement whose top bit is the mark and whose next bit is the sign.
        bits = 8 * len(field) - 1
        value = int.from_bytes(field, "big") - (1 << bits)
        return value - (1 << bits) if field[0] & 0x40 else value
    digits = text(field).strip()
    if not digits:
        return 0
    # int() alone would also accept signs, underscores and 0o.
    if not digits.isdigit():
        return None
    try:
        return int(digits, 8)
    except ValueError:
        return None


def decimal(digits: bytes) -> int | None:
    """Return a number of a pax record; None if it is invalid or longer than any 64-bit number."""
    significant = digits.lstrip(b"0")
    return int(significant or b"0") if digits.isdigit() and len(significant) <= 20 else None


def seconds_to_ns(seconds: int | None) -> int:
    """Return the seconds of an mtime field in nanoseconds, clamped to 64 bits; 0 if invalid."""
    if seconds is None:
        return 0
    return max(-MAX_SIZE, min(MAX_SIZE, seconds * 1_000_000_000))


def pax_time_ns(value: bytes) -> int | None:
    """Return a pax time such as `1700000000.25` in exact nanoseconds; None if it is malformed."""
    whole, _, fraction = value.partition(b".")
    negative = whole.startswith(b"-")
    if not (whole[negative:] + fraction).isdigit():
        return _float_time_ns(value)
    digits = (whole[negative:] + fraction[:9].ljust(9, b"0")).lstrip(b"0")
    if len(digits) > 28:
        return None
    ns = min(MAX_SIZE, int(digits or b"0"))
    return -ns if negative else ns


def _float_time_ns(value: bytes) -> int | None:
    """Return a time as Python writes it near the epoch, such as `5e-05`, in nanoseconds."""
    try:
        ns = float(value) * 1e9
    except ValueError:
        return None
    return int(ns) if abs(ns) < MAX_SIZE and b"_" not in value else None


def parse_header(block: bytes) -> Header | None:
    """Return the fields of a block of 512 bytes; None if its checksum is wrong."""
    if not checksum_holds(block):
        return None
    name = text(block[:100])
    prefixed = False
    # GNU's magic is "ustar  \0"; its archives may have times in the place of the prefix.
    if block[345] and block[257:263] == b"ustar\0":
        name = text(block[345:500]) + b"/" + name
        prefixed = True
    mode = number(block[100:108])
    return Header(
        name=name,
        kind=block[156:157],
        size=number(block[SIZE_FIELD]),
        mtime_ns=seconds_to_ns(number(block[136:148])),
        executable=bool(mode is not None and mode & 0o111),
        target=text(block[157:257]),
        prefixed=prefixed,
    )


def checksum_holds(block: bytes) -> bool:
    """Return whether the stored checksum is the byte sum, unsigned or (old Sun tar) signed."""
    stored = number(block[148:156])
    if stored is None:
        return False
    counted = block[:148] + block[156:]
    unsigned = byte_sum(counted[:252]) + byte_sum(counted[252:]) + _SPACES
    if unsigned == stored:
        return True
    negative = sum(1 for byte in counted if byte & 0x80)
    return unsigned - 256 * negative == stored


def byte_sum(part: bytes) -> int:
    """Return the sum of at most 256 bytes: the low half of Adler-32 is 1 + the sum mod 65521.

    256 bytes of 255 sum to 65280, so nothing is lost to the modulus.
    """
    return (adler32(part) & 0xFFFF) - 1


def parse_pax(payload: bytes, only: Container[bytes] | None = None, most: int = 0) -> PaxRecords:
    """Return the `<length> <key>=<value>` records of a pax payload.

    Args:
        payload: all of it.
        only: keys of the records to return; None for all.
        most: after how many of them to stop; 0 for none.
    """
    pairs: list[tuple[bytes, bytes]] = []
    position = 0
    while position < len(payload) and payload[position]:
        space = payload.find(b" ", position, position + 12)
        length = decimal(payload[position:space]) if space > 0 else None
        if length is None:
            return PaxRecords(pairs, intact=False)
        stop = position + length
        equals = payload.find(b"=", space, stop)
        if stop > len(payload) or equals < 0 or payload[stop - 1] != 0x0A:
            return PaxRecords(pairs, intact=False)
        key = payload[space + 1 : equals]
        if only is None or key in only:
            if most and len(pairs) == most:
                return PaxRecords(pairs, intact=False)
            pairs.append((key, payload[equals + 1 : stop - 1]))
        position = stop
    return PaxRecords(pairs, intact=True)


def padded(size: int) -> int:
    """Return `size` rounded up to whole blocks."""
    return (size + BLOCK - 1) & -BLOCK


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


OLD_SPARSE = b"S"
_COMMON_KEYS = (b"path", b"linkpath", b"mtime")
"""The recognized records of global pax headers."""
OWN_KEYS = frozenset((*_COMMON_KEYS, b"size")) | SPARSE_KEYS
"""The recognized records of a member's own pax headers."""

_KINDS = {
    b"0": MemberKind.FILE,
    b"\0": MemberKind.FILE,
    b"7": MemberKind.FILE,  # contiguous
    OLD_SPARSE: MemberKind.FILE,
    b"1": MemberKind.HARDLINK,
    b"2": MemberKind.SYMLINK,
    b"5": MemberKind.DIRECTORY,
    b"D": MemberKind.DIRECTORY,  # GNU, with a list of names as payload
}
BAD_SPARSE = "an unknown or malformed sparse header"
_DEVICES = (b"3", b"4", b"6")
_NO_PAYLOAD = (b"1", b"2", b"3", b"4", b"5", b"6")
"""Types without data, even if their size field is not 0."""


class Member(NamedTuple):
    """One member as the archive describes it."""

    name: bytes
    hidden: str
    """Why it cannot be shown; empty when it can."""
    flags: int
    """Kind and flags as in the index."""
    size: int
    """The size users see."""
    stored: int
    """Bytes of data in the archive."""
    mtime_ns: int
    target: bytes | None
    """The target of a link."""

    @property
    def sparse(self) -> bool:
        """Whether the data is stored without its holes."""
        return bool(self.flags & SPARSE)


def sound_records(pairs: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return pax records without malformed times, which leave what other headers say, as in GNU tar."""
    return [
        (key, value)
        for key, value in pairs
        if key != b"mtime" or not value or pax_time_ns(value) is not None
    ]


def set_common(common: dict[bytes, bytes], pairs: Iterable[tuple[bytes, bytes]]) -> None:
    """Add the records of another global pax header; an empty value removes a record."""
    for key, value in pairs:
        if key in _COMMON_KEYS:
            common.pop(key, None)
            if value:
                common[key] = value


def describe(
    header: Header, block: bytes, own: Mapping[bytes, bytes], common: Mapping[bytes, bytes]
) -> Member | None:
    """Return the description of a member; None when its size is invalid.

    Args:
        header: its decoded header.
        block: the header as stored.
        own: pax records and long names for this member, without malformed times.
        common: records of global pax headers, likewise.
    """
    name = own.get(b"path") or common.get(b"path") or header.name
    stored = decimal(own[b"size"]) if b"size" in own else header.size
    said = own.get(b"mtime") or common.get(b"mtime")
    time = pax_time_ns(said) if said else None
    kind = _KINDS.get(header.kind)
    if header.kind == b"\0" and name.endswith(b"/"):
        kind = MemberKind.DIRECTORY  # V7 has no type for directories, and stores no data for them
    if header.kind in _NO_PAYLOAD or (header.kind == b"\0" and kind == MemberKind.DIRECTORY):
        stored = 0
    if stored is None or not 0 <= stored <= MAX_SIZE:
        return None
    size, hidden = stored, ""
    flags = EXECUTABLE if header.executable else 0
    if kind == MemberKind.FILE:
        old = header.kind == OLD_SPARSE
        if old or is_sparse(own):
            logical = old_logical_size(block) if old else pax_logical_size(own)
            name = own.get(b"GNU.sparse.name") or name
            flags |= SPARSE
            if logical is None:
                hidden = BAD_SPARSE
            else:
                size = logical
    elif kind is not None:
        size = 0
        flags |= kind
    else:
        hidden = "device" if header.kind in _DEVICES else "unknown type"
    return Member(
        name=name,
        hidden=hidden,
        flags=flags,
        size=size,
        stored=stored,
        mtime_ns=header.mtime_ns if time is None else time,
        target=(own.get(b"linkpath") or common.get(b"linkpath") or header.target)
        if kind in (MemberKind.HARDLINK, MemberKind.SYMLINK)
        else None,
    )


SHORT_NAME = 100
"""Bytes of a name for which a header block has room, if they are ASCII; others may be in blocks before it."""


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """Where a plain tar has a small member: the last of its header blocks, then the content."""

    start: int
    """Of that block."""
    stop: int
    name: bytes
    """The path of the member."""
    alone: bool
    """Whether that block is its only header, and so has to say everything."""

    @property
    def offset(self) -> int:
        """Where the content starts."""
        return self.start + BLOCK

    def __len__(self) -> int:
        return self.stop - self.start

    def content(self, data: memoryview) -> memoryview | None:
        """Return the content out of all bytes of the place; None if they are not those of this member."""
        header = parse_header(bytes(data[:BLOCK]))
        if header is None or (self.alone and header.size != self.stop - self.offset):
            return None
        return data[BLOCK:] if not self.alone or self.is_named_in(data) else None

    def is_named_in(self, data: memoryview) -> bool:
        """Return whether the header has the name of the member, as far as one block can have it."""
        if not self.alone and (len(self.name) > SHORT_NAME or not self.name.isascii()):
            return True  # other blocks have the name
        header = parse_header(bytes(data[:BLOCK]))
        try:
            # Of members of tars in the shard the header knows but the end of the path.
            return header is not None and self.name.endswith(normalise(header.name))
        except HiddenName:
            return False


def member_places(index: MemberIndex, rows: Iterable[int]) -> list[MemberPlace]:
    """Return where an index has members, by offset; without links and what is not stored as it is."""
    columns = index.columns
    places = [
        MemberPlace(
            columns.offsets[row] - BLOCK,
            columns.offsets[row] + columns.sizes[row],
            index.name(row),
            columns.leads[row] == 1,
        )
        for row in rows
        if index.plain(row) and columns.offsets[row] >= BLOCK
    ]
    return sorted(places, key=attrgetter("start"))
