"""Columns of numbers as bytes that deflate well, and back, without a look at single values.

The smallest value and the greatest common divisor of a column are kept apart; what is left of each
value is written byte plane by byte plane, so that the zeros of the high planes and the noise of the
low ones do not mix. Arithmetic on a whole column is arithmetic on one big integer that has a value
in every lane.
"""

import sys
import zlib
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import gcd
from typing import Annotated

import msgspec

LEVEL = 1  # of deflation: level 6 saves a tenth and takes four times as long
SAMPLE = 4096
"""Values, or bytes of names a row at a time, that show which form deflates better."""


class Numbers(msgspec.Struct, array_like=True, frozen=True):
    """How a column of numbers is written: `base + scale * lane`, or the sums of that."""

    first: int | None
    """The first value, when the lanes are the differences after it."""
    base: int
    scale: int
    width: Annotated[int, msgspec.Meta(ge=0, le=8)]
    """Byte planes; without any all lanes are 0."""


class Planes:
    """Hands out the planes one after the other."""

    def __init__(self, raw: memoryview) -> None:
        self.left = raw

    def take(self, length: int) -> memoryview:
        """Give the next bytes.

        Raises:
            ValueError: there are fewer.
        """
        part, self.left = self.left[:length], self.left[length:]
        if len(part) != length:
            raise ValueError("the index ends too soon")
        return part


def write_numbers(values: "array[int]") -> tuple[Numbers, bytes]:
    """Return how a column is written, and its planes."""
    first = None
    # Only times ascend by small steps; the sums of anything else would cost time for nothing.
    if values.typecode == "q" and _differences_pay(values):
        first = values[0]
        values = array("Q", differences_of(values))
    base, scale, lanes = _scaled(values, ascending=first is not None)
    width = _bytes_of(max(lanes, default=0))
    return Numbers(first, base, scale, width), _planes(lanes, width)


def differences_of(values: Sequence[int]) -> list[int]:
    """Return how far each value is from the one before."""
    return [after - before for before, after in pairwise(values)]


def _differences_pay(values: Sequence[int]) -> bool:
    if len(values) < 2 or min(values) == max(values):
        return False
    differences = differences_of(values)
    if min(differences) < 0:
        return False
    *_, as_values = _scaled(values[:SAMPLE], ascending=False)
    *_, as_differences = _scaled(differences[:SAMPLE], ascending=True)
    return deflated_size(_planes(as_differences, 8)) < deflated_size(_planes(as_values, 8))


def _scaled(values: Sequence[int], *, ascending: bool) -> tuple[int, int, "array[int]"]:
    """Return base, scale and what is left of the values then."""
    low, high = min(values, default=0), max(values, default=0)
    base = low
    if ascending or (low > 0 and low < high and _bytes_of(high) == _bytes_of(high - low)):
        base = 0  # saves nothing, costs an addition
    elif low == high:  # as most columns are
        return base, 1, array("Q", bytes(8 * len(values)))
    lanes = [value - base for value in values] if base else values
    scale = gcd(*lanes) or 1
    return base, scale, array("Q", lanes if scale == 1 else [lane // scale for lane in lanes])


def _bytes_of(value: int) -> int:
    return (value.bit_length() + 7) // 8


def _planes(lanes: "array[int]", width: int) -> bytes:
    data = little_endian(lanes)
    return b"".join([data[plane::8] for plane in range(width)])


def read_numbers(numbers: Numbers, rows: int, typecode: str, parts: Planes) -> "array[int]":
    """Read a column that `write_numbers` wrote.

    Raises:
        ValueError, OverflowError: it did not.
    """
    base, scale, width = numbers.base, numbers.scale, numbers.width
    lane = array(typecode).itemsize
    if numbers.first is not None and rows:
        lanes = _read_lanes(width, rows - 1, "Q", parts)
        lanes = array("Q", accumulate(lanes, initial=0))  # quick while the sums are small
        base = numbers.first
    elif width:
        lanes = _read_lanes(width, rows, "Q" if base < 0 else typecode, parts)
    else:
        return array(typecode, [base]) * rows
    if base < 0:  # one lane would borrow from the next
        return array(typecode, [base + scale * value for value in lanes])
    if not base and scale == 1 and lanes.typecode == typecode:
        return lanes
    together = int.from_bytes(little_endian(lanes), "little") * scale + base * ones_of(rows, lane)
    return array_of(typecode, together.to_bytes(lane * rows, "little"))


def _read_lanes(width: int, rows: int, typecode: str, parts: Planes) -> "array[int]":
    """Put the planes of a column together."""
    lane = array(typecode).itemsize
    if width > lane:
        raise ValueError("the numbers of a column are too large for it")
    planes = parts.take(width * rows)
    data = bytearray(lane * rows)
    for plane in range(width):
        data[plane::lane] = planes[plane * rows : (plane + 1) * rows]
    return array_of(typecode, data)


def ones_of(rows: int, lane: int) -> int:
    """Return the integer that has a 1 in each lane."""
    return int.from_bytes((b"\1" + bytes(lane - 1)) * rows, "little")


def array_of(typecode: str, data: bytes | bytearray) -> "array[int]":
    """Return the values that `little_endian` made these bytes of."""
    values = array(typecode, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def little_endian(values: "array[int]") -> bytes:
    """Return the values as bytes, alike on every machine."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def deflated_size(data: bytes) -> int:
    """Return how long bytes are when deflated."""
    return len(zlib.compress(data, LEVEL))
