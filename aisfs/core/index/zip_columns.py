"""The columns that the members of a zip have beside those of the member index, and columns of numbers as bytes.

A member of a tar is a plain range of its shard. A member of a zip begins with a local header, whose length is only known from
that header, and may be compressed. The index has the start of that header as `offset`; these columns have the rest that reading
needs.

Columns of numbers are written as bytes that deflate well, without handling single values: the smallest value and the greatest
common divisor separately, the rest byte plane by byte plane, which separates the zeros of the high planes from the noise
of the low ones. Arithmetic on a column is arithmetic on a big integer that has a value in every lane.

A call into C holds the GIL to its end while requests of the kernel wait; so calls that visit every
value are made for `TURN` rows at a time.
"""

import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from math import gcd
from typing import Annotated, NamedTuple, TypeVar

import msgspec

LEVEL = 1  # of deflation: level 6 saves a tenth and takes four times as long
TURN = 4096
"""Rows of a column that one call into C visits: 0.1 ms, a fifth of the GIL's switch interval."""
SAMPLE = 4096
"""Values, or bytes of names, of the sample that shows which form deflates better."""


_Column = TypeVar("_Column", bound=Sequence[object])


def turns(column: _Column) -> Iterator[_Column]:
    """Yield a column piece by piece."""
    for start in range(0, len(column), TURN):
        yield column[start : start + TURN]  # type: ignore[misc]  # a piece is of its kind


def array_in_turns(typecode: str, pieces: Iterable[Sequence[int]]) -> "array[int]":
    """Join the pieces of a column.

    Raises:
        OverflowError: a value does not fit the type.
    """
    joined = array(typecode)
    for some in pieces:
        joined.fromlist(list(some))
    return joined


def sums_of(typecode: str, values: "array[int]") -> Iterator["array[int]"]:
    """Yield for each value the sum of all values up to it, piece by piece.

    Raises:
        OverflowError: a sum does not fit the type.
    """
    before = 0
    for some in turns(values):
        some[0] += before
        sums = array(typecode, accumulate(some))
        before = sums[-1]
        yield sums


def differences_of(values: Sequence[int], before: int) -> Iterator[list[int]]:
    """Yield how far each value is from the one before it, piece by piece."""
    for some in turns(values):
        yield list(map(int.__sub__, some, [before, *some[:-1]]))
        before = some[-1]


class Numbers(msgspec.Struct, array_like=True, frozen=True):
    """How a column of numbers is written: `base + scale * lane`, or the sums of that."""

    first: int | None
    """The first value, when the lanes are the differences after it."""
    base: int
    scale: int
    width: Annotated[int, msgspec.Meta(ge=0, le=8)]
    """Byte planes; with none all lanes are 0."""


class Planes:
    """The planes, to be taken one after the other."""

    def __init__(self, raw: memoryview) -> None:
        self.left = raw

    def take(self, length: int) -> memoryview:
        """Return the next bytes.

        Raises:
            ValueError: there are fewer bytes.
        """
        part, self.left = self.left[:length], self.left[length:]
        if len(part) != length:
            raise ValueError("the index ends too soon")
        return part


def write_numbers(values: "array[int]") -> tuple[Numbers, bytes]:
    """Return the description of a column, and its planes."""
    first = None
    # Only times ascend by small steps; for other columns sums cost time and gain nothing.
    differences = _worthy_differences(values) if values.typecode == "q" else None
    if differences is not None:
        first = values[0]
        values = differences
    base, scale, lanes = _scaled(values, ascending=first is not None)
    width = _bytes_of(extremes(lanes)[1])
    return Numbers(first, base, scale, width), _planes(lanes, width)


def _worthy_differences(values: "array[int]") -> "array[int] | None":
    """Return the difference of each value to the previous one, if that deflates better."""
    if _alike(values):
        return None
    try:
        differences = array_in_turns("Q", differences_of(values[1:], values[0]))
    except OverflowError:  # they do not ascend
        return None
    *_, as_values = _scaled(values[:SAMPLE], ascending=False)
    *_, as_differences = _scaled(differences[:SAMPLE], ascending=True)
    pay = deflated_size(_planes(as_differences, 8)) < deflated_size(_planes(as_values, 8))
    return differences if pay else None


def _alike(values: "array[int]") -> bool:
    """Return whether all values are the same, as in most columns."""
    return values.tobytes() == values[:1].tobytes() * len(values)


def extremes(values: "array[int]") -> tuple[int, int]:
    """Return the least and the greatest value; 0 of none."""
    if _alike(values):
        return (values[0], values[0]) if values else (0, 0)
    return min(map(min, turns(values))), max(map(max, turns(values)))


def _scaled(values: "array[int]", *, ascending: bool) -> tuple[int, int, "array[int]"]:
    """Return base, scale and the remaining lanes."""
    low, high = extremes(values)
    base = low
    if ascending or (low > 0 and low < high and _bytes_of(high) == _bytes_of(high - low)):
        base = 0  # saves nothing, costs an addition
    elif low == high:
        return base, 1, array("Q", bytes(8 * len(values)))
    lanes = [value - base for value in values] if base else values
    scale = divisor_of(lanes) or 1
    if scale > 1:
        lanes = [lane // scale for lane in lanes]
    return base, scale, array_in_turns("Q", turns(lanes))


def divisor_of(values: Sequence[int]) -> int:
    """Return the greatest common divisor; 0 of zeros alone."""
    found = 0
    for some in turns(values):
        found = gcd(found, *some)
        if found == 1:
            break
    return found


def _bytes_of(value: int) -> int:
    return (value.bit_length() + 7) // 8


def _planes(lanes: "array[int]", width: int) -> bytes:
    data = little_endian(lanes)
    return b"".join([data[plane::8] for plane in range(width)])


def read_numbers(numbers: Numbers, rows: int, typecode: str, parts: Planes) -> "array[int]":
    """Return a column that `write_numbers` wrote.

    Raises:
        ValueError, OverflowError: it is damaged.
    """
    base, scale, width = numbers.base, numbers.scale, numbers.width
    if numbers.first is not None and rows:
        lanes = array("Q", [0])
        lanes += _read_lanes(width, rows - 1, "Q", parts)
        base = numbers.first
        pieces: Iterable[array[int]] = sums_of("Q", lanes)  # fast while the sums are small
    elif width:
        lanes = _read_lanes(width, rows, "Q" if base < 0 else typecode, parts)
        if not base and scale == 1:
            return lanes
        pieces = turns(lanes)
    else:
        return constant(typecode, base, rows)
    if base < 0:  # a lane would borrow from the next one
        return array_in_turns(typecode, ([base + scale * n for n in some] for some in pieces))
    return scaled_up(typecode, pieces, scale, base)


def scaled_up(
    typecode: str, pieces: Iterable["array[int]"], scale: int, base: int = 0
) -> "array[int]":
    """Return `base + scale * value` for each value of pieces, which have lanes as wide as the type's.

    Raises:
        OverflowError: a value does not fit.
    """
    lane = array(typecode).itemsize
    done = bytearray()
    for some in pieces:
        together = int.from_bytes(little_endian(some), "little") * scale
        if base:
            together += base * ones_of(len(some), lane)
        done += together.to_bytes(lane * len(some), "little")
    return array_of(typecode, done)


def _read_lanes(width: int, rows: int, typecode: str, parts: Planes) -> "array[int]":
    """Return the lanes of a column from its planes."""
    lane = array(typecode).itemsize
    if width > lane:
        raise ValueError("the numbers of a column are too large for it")
    planes = parts.take(width * rows)
    data = bytearray(lane * rows)
    for plane in range(width):
        data[plane::lane] = planes[plane * rows : (plane + 1) * rows]
    return array_of(typecode, data)


@lru_cache(8)
def ones_of(rows: int, lane: int) -> int:
    """Return the integer that has a 1 in each lane."""
    return int.from_bytes((b"\1" + bytes(lane - 1)) * rows, "little")


def lanes_of(values: "array[int]") -> int:
    """Return the integer that has the values in lanes of 64 bits."""
    if _alike(values):
        return values[0] * ones_of(len(values), 8) if values else 0
    data, size = little_endian(values), values.itemsize
    if size < 8:
        wide = bytearray(8 * len(values))
        for plane in range(size):
            wide[plane::8] = data[plane::size]
        data = bytes(wide)
    return int.from_bytes(data, "little")


def constant(typecode: str, value: int, rows: int) -> "array[int]":
    """Return a column of equal values, which must not be changed: indexes may share it."""
    column = _constant if rows <= TURN else _constant.__wrapped__
    return column(typecode, value, rows)


@lru_cache(16)
def _constant(typecode: str, value: int, rows: int) -> "array[int]":
    return array(typecode, [value]) * rows


def progression(rows: range) -> "array[int]":
    """Return the numbers of a range as a column, which must not be changed: indexes may share it."""
    return (_progression if len(rows) <= TURN else _progression.__wrapped__)(rows)


@lru_cache(16)
def _progression(rows: range) -> "array[int]":
    return array_in_turns("I", turns(rows))


def array_of(typecode: str, data: bytes | bytearray) -> "array[int]":
    """Return the values that `little_endian` encoded."""
    values = array(typecode, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def little_endian(values: "array[int]") -> bytes:
    """Return the values as bytes, the same on every machine."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def deflated_size(data: bytes) -> int:
    """Return the deflated length of bytes."""
    return len(zlib.compress(data, LEVEL))


LOCAL_HEADER = 30
"""Bytes of the fixed part of the local header."""
_SLACK = 96
"""Bytes allowed for the extra field of that header; usual writers need 28 or 36."""
_LOCAL = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"


class Stored(NamedTuple):
    """How one member is stored."""

    start: int
    """Where its local header starts."""
    method: int
    stored: int
    """Bytes of its data in the object."""
    size: int
    crc: int
    """CRC-32 of the content."""


class Packing:
    """The columns, with one value for each row of the index."""

    __slots__ = ("crcs", "methods", "stored")

    def __init__(self, methods: bytes, stored: "array[int]", crcs: "array[int]") -> None:
        """Keep the columns, which are bytes, unsigned 64-bit and unsigned 32-bit numbers."""
        self.methods = methods
        self.stored = stored
        self.crcs = crcs

    def __len__(self) -> int:
        return len(self.methods)

    @property
    def nbytes(self) -> int:
        """The memory this takes, roughly."""
        return 13 * len(self.methods)

    def reordered(self, order: Sequence[int]) -> "Packing":
        """Return the same rows in another order."""
        return Packing(
            bytes(map(self.methods.__getitem__, order)),
            array("Q", map(self.stored.__getitem__, order)),
            array("I", map(self.crcs.__getitem__, order)),
        )

    def to_bytes(self) -> tuple[bytes, bytes, bytes]:
        """Return the columns in a form that is the same on every machine."""
        return self.methods, little_endian(self.stored), little_endian(self.crcs)

    @classmethod
    def from_bytes(cls, methods: bytes, stored: bytes, crcs: bytes) -> "Packing":
        """Return the columns that `to_bytes` returned.

        Raises:
            ValueError: the columns are not of one length.
        """
        if (len(stored), len(crcs)) != (8 * len(methods), 4 * len(methods)):
            raise ValueError("the columns of a zip are not of one length")
        return cls(methods, array_of("Q", stored), array_of("I", crcs))


def expected_length(name_length: int, stored: int) -> int:
    """Return how many bytes from the local header on most likely contain the whole member."""
    return LOCAL_HEADER + name_length + _SLACK + stored


def data_offset(head: bytes) -> int | None:
    """Return how far after the start of its local header a member's data starts.

    Args:
        head: The first `LOCAL_HEADER` bytes of that header.

    Returns:
        None if this is not a local header.
    """
    if len(head) < LOCAL_HEADER:
        return None
    magic, name_length, extra_length = _LOCAL.unpack_from(head)
    return LOCAL_HEADER + name_length + extra_length if magic == _LOCAL_MAGIC else None
