"""Decoding of single tar header blocks and pax records: the only module with their byte positions.

These are pure functions of a few bytes. They return None for invalid bytes and never raise, because
the scanner decides whether those are damage.
"""

from collections.abc import Container
from typing import NamedTuple
from zlib import adler32

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
