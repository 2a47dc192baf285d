"""One entry of a zip's central directory."""

import stat
import struct
from calendar import timegm
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from aisfs.core.index.member_index import EXECUTABLE, MemberKind

ENTRY = 46
"""Bytes of an entry before its name."""
_ENTRY = struct.Struct("<4sBBHHHHHIIIHHHHHII")
_MAGIC = b"PK\x01\x02"
_ENCRYPTED = 1 << 0 | 1 << 6 | 1 << 13
_PATCHED = 1 << 5
_UTF8 = 1 << 11
_UNIX = (3, 19)  # Unix and macOS
_DOS = 0
_DOS_DIRECTORY = 0x10
_FULL32 = 0xFFFFFFFF
_FULL16 = 0xFFFF
_ZIP64 = 0x0001
_UNICODE_NAME = 0x7075
_TIMES = 0x5455
_OLD_TIMES = 0x5855
"""Info-ZIP's older field, which macOS still writes: times of access and of modification."""
_SECOND = 1_000_000_000


class ZipEntry(NamedTuple):
    """The description of one member in the directory."""

    name: bytes
    offset: int
    """Where its local header starts, as stored."""
    stored: int
    size: int
    crc: int
    method: int
    mtime_ns: int
    flags: int
    """The flags of `member_index`."""
    hidden: str
    """Why it cannot be shown; empty when it can."""
    length: int
    """Bytes of this entry."""


def parse_entry(data: bytes, at: int, encoding: str = "") -> ZipEntry | None:
    """Return the entry at a position; None if it is invalid.

    Args:
        data: bytes of the directory.
        at: where the entry starts.
        encoding: of a name that does not say its own; empty for UTF-8 if it is that, else DOS's.

    Raises:
        IndexError: the entry continues after the end of `data`.
    """
    if at + ENTRY > len(data):
        raise IndexError(at)
    (magic, _, system, _, bits, method, time, date, crc, stored, size, name_length, extra_length,
     comment_length, disk, _, attributes, offset) = _ENTRY.unpack_from(data, at)  # fmt: skip
    if magic != _MAGIC:
        return None
    stop = at + ENTRY + name_length + extra_length + comment_length
    if stop > len(data):
        raise IndexError(at)
    name = data[at + ENTRY : at + ENTRY + name_length]
    mtime_ns = _dos_time_ns(date, time)
    extra: dict[int, bytes] = {}
    if extra_length:
        extra = _fields(data[at + ENTRY + name_length : at + ENTRY + name_length + extra_length])
        mtime_ns = _unix_time_ns(extra, mtime_ns)
        if _FULL32 in (size, stored, offset) or disk == _FULL16:
            wide = _widened(extra.get(_ZIP64, b""), size, stored, offset, disk)
            if wide is None:
                return None
            size, stored, offset, disk = wide
    mode = attributes >> 16 if system in _UNIX else 0
    hidden = _refusal(bits, disk, mode)
    flags = EXECUTABLE if mode & 0o111 and stat.S_ISREG(mode) else 0
    if not bits & _UTF8 and (_UNICODE_NAME in extra or not name.isascii()):
        name = _unicode_name(extra.get(_UNICODE_NAME, b""), name) or _decoded(name, encoding)
    if system == _DOS and b"/" not in name:
        name = name.replace(b"\\", b"/")
    if (
        name.endswith(b"/")
        or stat.S_ISDIR(mode)
        or (system == _DOS and attributes & _DOS_DIRECTORY and not size)
    ):
        flags, size, stored = int(MemberKind.DIRECTORY), 0, 0
    return ZipEntry(name, offset, stored, size, crc, method, mtime_ns, flags, hidden, stop - at)


def _unix_time_ns(extra: dict[int, bytes], default: int) -> int:
    """Return the time of modification in UTC that the extra field states."""
    times = extra.get(_TIMES, b"")
    if len(times) >= 5 and times[0] & 1:
        return int.from_bytes(times[1:5], "little", signed=True) * _SECOND
    times = extra.get(_OLD_TIMES, b"")
    if len(times) >= 8:
        return int.from_bytes(times[4:8], "little", signed=True) * _SECOND
    return default


def _refusal(bits: int, disk: int, mode: int) -> str:
    """Return why a member cannot be shown; empty when it can."""
    if bits & _ENCRYPTED:
        return "encrypted"
    if bits & _PATCHED:
        return "a patch"
    if disk:
        return "on another disk"
    if stat.S_ISLNK(mode):
        return "symbolic link in a zip"
    if mode and stat.S_IFMT(mode) and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return "device"
    return ""


def _unicode_name(field: bytes, name: bytes) -> bytes:
    """Return the name that Info-ZIP's Unicode path field states; empty if it is of another name."""
    if field[:1] != b"\1" or int.from_bytes(field[1:5], "little") != crc32(name):
        return b""
    try:
        field[5:].decode()
    except UnicodeDecodeError:
        return b""
    return field[5:]


def _decoded(name: bytes, encoding: str) -> bytes:
    """Return a name without stated encoding as UTF-8; if it is not UTF-8, it is of DOS."""
    for guess in filter(None, (encoding, "utf-8")):
        with suppress(UnicodeError):
            return name.decode(guess).encode()
    return name.decode("cp437").encode()


def _fields(extra: bytes) -> dict[int, bytes]:
    """Return the parts of an extra field by kind; of equal kinds the first one counts."""
    found: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(extra):
        kind = int.from_bytes(extra[at : at + 2], "little")
        length = int.from_bytes(extra[at + 2 : at + 4], "little")
        found.setdefault(kind, extra[at + 4 : at + 4 + length])
        at += 4 + length
    return found


def _widened(
    field: bytes, size: int, stored: int, offset: int, disk: int
) -> tuple[int, int, int, int] | None:
    """Return the numbers, the saturated ones from the zip64 field; None if that lacks one."""
    values = []
    at = 0
    for value, full, width in (
        (size, _FULL32, 8),
        (stored, _FULL32, 8),
        (offset, _FULL32, 8),
        (disk, _FULL16, 4),
    ):
        if value == full:
            if at + width > len(field):
                return None
            value = int.from_bytes(field[at : at + width], "little")
            at += width
        values.append(value)
    return values[0], values[1], values[2], values[3]


@lru_cache(1024)
def _dos_time_ns(date: int, time: int) -> int:
    """Return a local time of unknown zone as if it were UTC; 1970 if it is invalid."""
    day, month, year = date & 0x1F, date >> 5 & 0xF, 1980 + (date >> 9)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return 0
    clock = (time >> 11, time >> 5 & 0x3F, 2 * (time & 0x1F))
    return timegm((year, month, day, *clock)) * _SECOND
