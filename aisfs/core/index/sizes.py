"""A published table of what transformations give: size and checksum of each result, by what was transformed and how.

docs/FORMATS.md has the layout. What is read was written by others, so every length is checked.
"""

import struct
import zlib
from collections.abc import Mapping
from hashlib import sha256
from itertools import chain

from aisfs.errors import IndexRefused

_MAGIC = b"AISFSETL"
_LAYOUT = 1
_HEAD = struct.Struct("<8sBQ")
_SHA256 = 32
DIGEST = 16
"""Bytes of what says what was transformed, and how; and of the checksum of a result."""
_ROW = 2 * DIGEST + 8
ROWS_MOST = 1_000_000
"""Results of one table: as many as a cache directory remembers."""
BYTES_MOST = _HEAD.size + _SHA256 + ROWS_MOST * _ROW + (64 << 10)
"""Of the whole table: deflated, what cannot be made smaller grows a little."""

Row = tuple[int, bytes]
"""Size and checksum of a result."""


def encode_sizes(rows: Mapping[bytes, Row]) -> bytes:
    """Return the table of these results, by digest."""
    digests = sorted(rows)
    sizes = b"".join(rows[each][0].to_bytes(8, "little") for each in digests)
    planes = b"".join(sizes[plane::8] for plane in range(8))  # the upper ones are zeros
    columns = b"".join(chain(digests, (rows[each][1] for each in digests), [planes]))
    data = _HEAD.pack(_MAGIC, _LAYOUT, len(digests)) + zlib.compress(columns)
    return data + sha256(data).digest()


def decode_sizes(data: bytes) -> dict[bytes, Row]:
    """Return the results of a table.

    Raises:
        IndexRefused: it is damaged, or of another layout.
    """
    if len(data) < _HEAD.size + _SHA256 or sha256(data[:-_SHA256]).digest() != data[-_SHA256:]:
        raise IndexRefused("its checksum is wrong")
    magic, layout, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or layout != _LAYOUT:
        raise IndexRefused("it is no table of sizes of this layout")
    if count > ROWS_MOST:
        raise IndexRefused(f"{count} results are too many")
    inflater = zlib.decompressobj()
    try:
        columns = inflater.decompress(data[_HEAD.size : -_SHA256], count * _ROW + 1)
    except zlib.error as error:
        raise IndexRefused(str(error)) from error
    if len(columns) != count * _ROW or not inflater.eof or inflater.unused_data:
        raise IndexRefused("its length is wrong")
    contents, planes = count * DIGEST, 2 * count * DIGEST
    sizes = bytearray(8 * count)
    for plane in range(8):
        sizes[plane::8] = columns[planes + plane * count : planes + (plane + 1) * count]
    found: dict[bytes, Row] = {}
    for at, (size,) in enumerate(struct.iter_unpack("<q", sizes)):
        if size < 0:
            raise IndexRefused("a size is negative")
        start = at * DIGEST
        content = columns[contents + start : contents + start + DIGEST]
        found[columns[start : start + DIGEST]] = (size, content)
    return found
