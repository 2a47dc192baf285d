"""A member index as bytes and back, so that a shard is scanned only once.

    magic, layout version, CRC-32 of all that follows
    length of the inflated rest, length of the description in it
    deflated: the description (msgpack), the names, the other columns

100,000 members have to load in milliseconds, so no step of decoding handles single rows, except in
`accumulate`: columns are split and joined by slices with a step, and arithmetic on a column is
arithmetic on big integers that have a value in every lane.
- Numbers: `zip_columns`, as values or as differences, whichever deflates better.
- Names: a block of rows becomes a matrix, short names padded with NULs, written column by column:
  of `sample_000123.image.jpg` two columns change often and the others rarely.
- Offsets follow from sizes and header counts, except where something hidden lies in between.

Invariants:
- `decode(encode(index))` equals `index`, and `encode` refuses what `decode` would refuse;
- any other bytes, also damaged ones, raise `DamagedIndex` and no other error;
- nothing is inflated beyond the stated length, which is at most `MAX_INFLATED`.

The CRC detects damage, not malice. `decode` makes sure of the form only, and takes `Limits` for
indexes from elsewhere; whether the rows can be those of a shard is decided by `published`.
"""

import struct
import zlib
from array import array
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

import msgspec

from aisfs.core.index.columns import MemberColumns
from aisfs.core.index.member_index import MAX_ROWS, MemberIndex
from aisfs.core.index.zip_columns import (
    LEVEL,
    SAMPLE,
    TURN,
    Numbers,
    Packing,
    Planes,
    array_in_turns,
    array_of,
    deflated_size,
    differences_of,
    divisor_of,
    little_endian,
    ones_of,
    read_numbers,
    scaled_up,
    sums_of,
    turns,
    write_numbers,
)
from aisfs.core.names.listing import Form

MAX_INFLATED = 1 << 30
"""Longest inflated form: over 20 million members with usual names, more than a scan accepts."""

_MAGIC = b"AISX"
_LAYOUT = 1
_MARK = struct.Struct("<4sBI")
_LENGTHS = struct.Struct("<QI")
_BLOCK = 512
_SURROGATES = "surrogatepass"
_NAME_ROWS = 8192
"""Rows of one matrix of names, so that a long name widens one block and not all of them."""
_WASTE = 3
"""A matrix may be this many times larger than the names in it; inflating it costs time too."""
_MAX_ROWS = 2 * MAX_ROWS
"""Columns of equal values take no bytes, so the number of rows needs its own limit."""


class DamagedIndex(ValueError):
    """These bytes are not an index, or are damaged."""


class Limits(NamedTuple):
    """The most that decoding may take, so that a few bytes cannot fill memory."""

    rows: int
    described: int
    """Bytes of the description."""
    inflated: int
    """Bytes of all."""


_OWN = Limits(_MAX_ROWS, MAX_INFLATED, MAX_INFLATED)
"""Of indexes from our own cache."""


# The description -----------------------------------------------------------------------------

_Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_ROWS)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Stop = Annotated[int, msgspec.Meta(ge=0)]
"""An offset plus a size; a member may claim to be longer than any object, so below 2^64."""


class _Description(msgspec.Struct, array_like=True, frozen=True):
    """Everything but the planes."""

    object_size: _Offset
    rows: _Count
    warnings: list[bytes]
    skipped: list[tuple[bytes, int]]
    name_widths: list[_Count]
    """For each block of rows the width of its matrix; 0 when the names are simply joined."""
    columns: Annotated[list[Numbers], msgspec.Meta(min_length=5, max_length=5)]
    """Name lengths, sizes, leads, mtimes and flags; their planes follow in this order."""
    unit: Literal[1, 512]
    """The divisor of all offsets: in a tar whole blocks."""
    jumps: dict[_Count, int]
    """For rows whose data does not follow the previous row as expected: how many units after it."""
    targets: dict[_Count, bytes]
    contents: dict[_Count, _Count]
    stored_stops: dict[_Count, _Stop]
    form: Form = Form.TAR
    packing: tuple[bytes, bytes, bytes] | None = None


_decode_description = msgspec.msgpack.Decoder(_Description).decode


def encode(index: MemberIndex, *, level: int = LEVEL) -> bytes:
    """Return the stored form of an index, deflated at a level.

    Raises:
        ValueError: it is too large to be stored, or has impossible numbers.
    """
    columns = index.columns
    if len(index) > _MAX_ROWS or max(map(max, turns(columns.offsets)), default=0) >= 2**63:
        raise ValueError(f"an index of {len(index)} members cannot be stored")
    lengths = array_in_turns("I", differences_of(columns.ends, 0))
    written: list[Numbers] = []
    parts: list[bytes] = []
    flags = array("B", columns.flags)
    for column in (lengths, columns.sizes, columns.leads, columns.mtimes, flags):
        numbers, planes = write_numbers(column)
        written.append(numbers)
        parts.append(planes)
    widths = _write_names(bytes(columns.names), lengths, parts)
    unit: Literal[1, 512] = 1 if divisor_of(columns.offsets) % _BLOCK else 512
    description = _encode_description(
        _Description(
            index.object_size,
            len(index),
            [text.encode(errors=_SURROGATES) for text in index.warnings],
            [(why.encode(errors=_SURROGATES), count) for why, count in index.skipped.items()],
            widths,
            written,
            unit,
            _jumps(columns.offsets, columns.sizes, columns.leads, unit),
            columns.targets,
            columns.contents,
            columns.stored_stops,
            index.form,
            index.packing.to_bytes() if index.packing is not None else None,
        )
    )
    raw = b"".join((description, *parts))
    if len(raw) > MAX_INFLATED:
        raise ValueError(f"an index of {len(index)} members takes {len(raw)} bytes: too many")
    rest = _LENGTHS.pack(len(raw), len(description)) + zlib.compress(raw, level)
    return _MARK.pack(_MAGIC, _LAYOUT, zlib.crc32(rest)) + rest


def _encode_description(description: _Description) -> bytes:
    """Return the description as bytes that `decode` accepts.

    Raises:
        ValueError: it contains a number that `decode` would refuse.
    """
    try:
        data = msgspec.msgpack.encode(description)
        _decode_description(data)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ValueError(f"an index with such numbers cannot be stored: {error}") from None
    return data


def decode(data: bytes | memoryview, limits: Limits = _OWN) -> MemberIndex:
    """Return the index that `encode` encoded, if it keeps within the limits.

    Raises:
        DamagedIndex: these are not the bytes of an index.
    """
    raw, description_length = _inflate(memoryview(data), limits)
    try:
        description = _decode_description(raw[:description_length])
        if description.rows > limits.rows:
            raise DamagedIndex(f"{description.rows} members are too many")
        return _read(description, Planes(raw[description_length:]))
    except DamagedIndex:
        raise
    except (msgspec.MsgspecError, OverflowError, ValueError) as error:
        raise DamagedIndex(f"the description of the index makes no sense: {error}") from None


def _inflate(data: memoryview, limits: Limits) -> tuple[memoryview, int]:
    """Return the inflated rest and how much of it is the description."""
    start = _MARK.size + _LENGTHS.size
    if len(data) < start:
        raise DamagedIndex(f"{len(data)} bytes are no index")
    magic, layout, crc = _MARK.unpack_from(data)
    if (magic, layout) != (_MAGIC, _LAYOUT):
        raise DamagedIndex(f"no index of layout {_LAYOUT}: it starts with {bytes(data[:5])!r}")
    if zlib.crc32(data[_MARK.size :]) != crc:
        raise DamagedIndex("the checksum of the index is wrong")
    length, description_length = _LENGTHS.unpack_from(data, _MARK.size)
    if description_length > limits.described or not (
        0 < description_length <= length <= min(limits.inflated, MAX_INFLATED)
    ):
        raise DamagedIndex(f"an index cannot inflate to {length} bytes")
    return inflated(data[start:], length), description_length


def inflated(data: memoryview, length: int) -> memoryview:
    """Return deflated bytes, which have exactly this length when they are inflated.

    Raises:
        DamagedIndex: they have not.
    """
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(data, max(1, length))  # 0 would mean all
        more = inflater.decompress(inflater.unconsumed_tail, 1)
    except zlib.error as error:
        raise DamagedIndex(f"the index does not inflate: {error}") from None
    if more or len(raw) != length or not inflater.eof or inflater.unused_data:
        raise DamagedIndex("the index does not have the length it states")
    return memoryview(raw)


def _read(description: _Description, parts: Planes) -> MemberIndex:
    rows = description.rows
    lengths, sizes, leads, mtimes, flags = (
        read_numbers(numbers, rows, typecode, parts)
        for numbers, typecode in zip(description.columns, "IQHqB", strict=True)
    )
    ends = _ends(lengths.tobytes()) if rows <= TURN else array_in_turns("I", sums_of("I", lengths))
    names = _read_names(description.name_widths, ends, parts)
    contents = description.contents
    mentioned = (description.jumps, description.targets, description.stored_stops, contents)
    if parts.left or any(max(some, default=-1) >= rows for some in (*mentioned, contents.values())):
        raise DamagedIndex("the columns of the index do not fit together")
    packing = Packing.from_bytes(*description.packing) if description.packing else None
    if (len(packing) if packing is not None else rows) != rows or (packing is None) is (
        description.form is Form.ZIP
    ):
        raise DamagedIndex("the index is of another form than it says")
    columns = MemberColumns()
    columns.names, columns.ends, columns.flags = names, ends, flags.tobytes()
    columns.leads, columns.sizes, columns.mtimes = leads, sizes, mtimes
    columns.offsets = _offsets(sizes, leads, description.jumps, description.unit)
    columns.targets, columns.contents = description.targets, contents
    columns.stored_stops = description.stored_stops
    warnings = tuple(text.decode(errors=_SURROGATES) for text in description.warnings)
    skipped = {why.decode(errors=_SURROGATES): count for why, count in description.skipped}
    size, form = description.object_size, description.form
    return MemberIndex(
        columns, size, warnings, MappingProxyType(skipped), form=form, packing=packing
    )


@lru_cache(8)
def _ends(lengths: bytes) -> "array[int]":
    """Return where names of these lengths end; the column is shared by the indexes of alike shards."""
    return array_in_turns("I", sums_of("I", array("I", lengths)))


# Names ---------------------------------------------------------------------------------------


def _write_names(blob: bytes, lengths: "array[int]", parts: list[bytes]) -> list[int]:
    """Append each block of rows to the parts; return their widths."""
    widths: list[int] = []
    start = 0
    for first in range(0, len(lengths), _NAME_ROWS):
        some = lengths[first : first + _NAME_ROWS]
        stop = start + sum(some)
        joined = blob[start:stop]
        width = max(some) if _matrix_pays(joined, some) else 0
        widths.append(width)
        parts.append(_matrix(joined, some, width) if width else joined)
        start = stop
    return widths


def _matrix_pays(joined: bytes, lengths: "array[int]") -> bool:
    width = max(lengths)
    if b"\0" in joined or width * len(lengths) > _WASTE * len(joined):
        return False
    few = lengths[: max(1, SAMPLE * len(lengths) // max(1, len(joined)))]
    sample = joined[: sum(few)]
    return deflated_size(_matrix(sample, few, width)) < deflated_size(sample)


def _matrix(joined: bytes, lengths: "array[int]", width: int) -> bytes:
    """Return the names of a block column by column."""
    padded = joined
    if min(lengths) < width:
        names = (joined[start:stop] for start, stop in pairwise(accumulate(lengths, initial=0)))
        padded = b"".join([name.ljust(width, b"\0") for name in names])
    return b"".join([padded[column::width] for column in range(width)])


def _read_names(widths: list[int], ends: "array[int]", parts: Planes) -> bytes:
    """Join the names of all rows."""
    if len(widths) != -(-len(ends) // _NAME_ROWS):
        raise DamagedIndex("the index has names for other members")
    blocks: list[bytes | bytearray | memoryview] = []
    start = 0
    for first, width in zip(range(0, len(ends), _NAME_ROWS), widths, strict=True):
        rows = min(_NAME_ROWS, len(ends) - first)
        stop = ends[first + rows - 1]
        block = parts.take(width * rows or stop - start)
        if width:
            matrix = bytearray(len(block))
            for column in range(width):
                matrix[column::width] = block[column * rows : (column + 1) * rows]
            joined = matrix.translate(None, b"\0")
            if len(joined) != stop - start:
                raise DamagedIndex("the names in the index have other lengths")
            blocks.append(joined)
        else:
            blocks.append(block)
        start = stop
    return b"".join(blocks)


# Offsets -------------------------------------------------------------------------------------


def _offsets(
    sizes: "array[int]", leads: "array[int]", jumps: dict[int, int], unit: int
) -> "array[int]":
    """Return the offsets, which are multiples of the unit."""
    steps = _steps(sizes, leads, unit)
    for row, step in jumps.items():
        steps[row] = step
    return scaled_up("Q", sums_of("Q", steps), unit)


def _steps(sizes: "array[int]", leads: "array[int]", unit: int) -> "array[int]":
    """Return how far each row's data lies after that of the previous row, if nothing is in between.

    Many rows are padded to whole blocks at once: each has 64 bits of one integer.
    """
    done = bytearray()
    before = 0
    for some, some_leads in zip(turns(sizes), turns(leads), strict=True):
        rows = len(some)
        ones = ones_of(rows, 8)
        padded = int.from_bytes(little_endian(some), "little") + ones * (_BLOCK - 1)
        padded &= ones * (2**64 - _BLOCK)
        wide = bytearray(8 * rows)
        narrow = little_endian(some_leads)
        wide[0::8], wide[1::8] = narrow[0::2], narrow[1::2]
        together = (padded << 64) + before + int.from_bytes(wide, "little") * _BLOCK
        together &= (1 << 64 * rows) - 1
        before = padded >> 64 * (rows - 1) & 2**64 - 1
        done += (together >> unit.bit_length() - 1).to_bytes(8 * rows, "little")
    return array_of("q", done)


def _jumps(
    offsets: "array[int]", sizes: "array[int]", leads: "array[int]", unit: int
) -> dict[int, int]:
    """Return by row the steps that differ from the expected ones."""
    with suppress(OverflowError):  # the columns may be of any shard
        if offsets == _offsets(sizes, leads, {}, unit):
            return {}
    found = chain.from_iterable(differences_of(offsets, 0))
    return {
        row: step // unit
        for row, (step, expected) in enumerate(zip(found, _steps(sizes, leads, unit), strict=True))
        if step != expected * unit
    }
