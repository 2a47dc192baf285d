"""Finds the members of a zip by its central directory: a few ranges of bytes in, rows out.

    scanner = ZipScanner(size)
    while (wanted := scanner.wanted) is not None:
        scanner.feed(…the bytes of `wanted`…)
    index = scanner.finish()

Invariants:
- no input raises or makes it loop; the directory is never held as a whole;
- entries before damage in the directory are kept; the damage is in the index's `warnings`;
- rows are in the order of the data, not of the directory;
- a row's data lies before the directory, or the row is marked as truncated.
"""

import stat
import struct
from array import array
from calendar import timegm
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from operator import le
from typing import NamedTuple
from zlib import crc32

from aisfs.core.index.builder import MemberIndexBuilder
from aisfs.core.index.member_index import EXECUTABLE, TRUNCATED, MemberIndex, MemberKind
from aisfs.core.index.zip_columns import LOCAL_HEADER, Packing
from aisfs.core.names.listing import METHODS, STORED, Form
from aisfs.model import ByteRange

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


_END = struct.Struct("<4sHHHHIIH")
_END_MAGIC = b"PK\x05\x06"
_LOCATOR = struct.Struct("<4sIQI")
_LOCATOR_MAGIC = b"PK\x06\x07"
_END64 = struct.Struct("<4sQHHIIQQQQ")
_END64_MAGIC = b"PK\x06\x06"
_TAIL = 128 * 1024
"""Bytes read first: enough for the longest comment and its record, and for most directories."""
_PIECE = 4 << 20
"""Bytes of the directory read at once."""
_MAX_SIZE = 2**63 - 1


class ZipScanner:
    """Scans one object."""

    def __init__(self, object_size: int, encoding: str = "") -> None:
        """Start at the end of an object.

        Args:
            object_size: Its length.
            encoding: Of names that do not say theirs; empty for UTF-8 if they are that, else DOS's.
        """
        self._size = object_size
        self._encoding = encoding
        self._rows = MemberIndexBuilder(object_size)
        self._methods = bytearray()
        self._stored = array("Q")
        self._crcs = array("I")
        self._held = b""
        """Bytes of the directory that were fed and not yet parsed."""
        self._directory = ByteRange(0, 0)
        self._shift = 0
        """Added to stored offsets: the length of data in front of the archive."""
        self._stated = 0
        """The stated number of entries."""
        self._seen = 0
        self._step = self._take_tail
        self.wanted: ByteRange | None = None
        """The bytes to feed next; None at the end."""
        if object_size:
            self.wanted = ByteRange(max(0, object_size - _TAIL), object_size)

    def __repr__(self) -> str:
        return f"<ZipScanner: {self._seen} members, wants {self.wanted}>"

    def feed(self, data: bytes | memoryview) -> None:
        """Scan the bytes of `wanted`."""
        wanted = self.wanted
        if wanted is None or len(data) != len(wanted):
            raise ValueError(f"the scan wants {wanted}, not {len(data)} bytes")
        self._step(bytes(data), wanted.start)

    def finish(self) -> MemberIndex:
        """Return the index of what was found. The scanner is spent."""
        packing = Packing(bytes(self._methods), self._stored, self._crcs)
        index = self._rows.build(form=Form.ZIP, packing=packing)
        offsets = index.columns.offsets
        if all(map(le, offsets, islice(offsets, 1, None))):
            return index
        return index.reordered(sorted(range(len(index)), key=offsets.__getitem__))

    # The end of the archive ----------------------------------------------------------------------

    def _take_tail(self, data: bytes, base: int) -> None:
        """Find the record that ends the archive, searching backwards."""
        at = data.rfind(_END_MAGIC, 0, max(0, len(data) - _END.size + len(_END_MAGIC)))
        if at < 0:
            self._stop("not a zip, or cut off: the record that ends a zip is missing")
            return
        _, _, _, _, entries, length, offset, _ = _END.unpack_from(data, at)
        self._held = data
        where = at - _LOCATOR.size
        if where >= 0 and data.startswith(_LOCATOR_MAGIC, where):
            _, _, end64_at, _ = _LOCATOR.unpack_from(data, where)
            # It directly precedes its locator, even with data in front of the archive.
            found = where - _END64.size
            if found >= 0 and data.startswith(_END64_MAGIC, found):
                self._take_end64(data[found : found + _END64.size], base + found)
                return
            if 0 <= end64_at <= base + where - _END64.size:
                self.wanted = ByteRange(end64_at, end64_at + _END64.size)
                self._step = self._take_end64
                return
        if _FULL32 in (length, offset):
            self._stop("the zip64 record that says where the directory lies is missing")
            return
        self._begin(entries, length, offset, base + at)

    def _take_end64(self, data: bytes, base: int) -> None:
        magic, _, _, _, disk, _, _, entries, length, offset = _END64.unpack(data)
        if magic != _END64_MAGIC or disk:
            self._stop("the zip64 record that says where the directory lies is damaged")
            return
        self._begin(entries, length, offset, base)

    def _begin(self, entries: int, length: int, offset: int, end: int) -> None:
        """Locate the directory, which ends where the end record begins."""
        start = end - length
        if start < 0 or offset > start:
            self._stop(f"a directory of {length} bytes at byte {offset} is not in the archive")
            return
        self._shift = start - offset
        self._stated = entries
        self._directory = ByteRange(start, end)
        tail_start = self._size - len(self._held)
        held, self._held = self._held, b""
        if tail_start <= start:  # it was already fed
            self._take_entries(held[start - tail_start : end - tail_start], start)
        else:
            self._want(start)

    # The directory -------------------------------------------------------------------------------

    def _want(self, start: int) -> None:
        self._step = self._take_entries
        self.wanted = ByteRange(start, min(start + _PIECE, self._directory.stop))
        if not len(self.wanted):
            self._stop(f"the directory ends within its entry {self._seen + 1}")

    def _take_entries(self, data: bytes, base: int) -> None:
        data = self._held + data
        fed = base + len(data) - len(self._held)
        at = 0
        while at < len(data):
            try:
                entry = parse_entry(data, at, self._encoding)
            except IndexError:  # it continues in the next piece
                self._held = data[at:]
                self._want(fed)
                return
            if entry is None:
                where = fed - len(data) + at
                self._stop(f"damaged directory at byte {where}: members from there on are missing")
                return
            if self._rows.full:
                self._stop("too many members: the rest is not shown")
                return
            at += entry.length
            self._seen += 1
            self._add(entry)
        self._held = b""
        if fed < self._directory.stop:
            self._want(fed)
            return
        self._stop("")
        # The old record counts modulo 65536.
        if (self._seen - self._stated) & _FULL16:
            self._rows.warn(f"the directory has {self._seen} entries, not {self._stated}")

    def _add(self, entry: ZipEntry) -> None:
        """Add a member, or count why it is not shown."""
        rows = self._rows
        start = entry.offset + self._shift
        is_file = not entry.flags & MemberKind.DIRECTORY
        if entry.hidden:
            return rows.skip(entry.hidden)
        if is_file and entry.method not in METHODS:
            return rows.skip(f"compression method {entry.method}")
        if not 0 <= start <= _MAX_SIZE or max(entry.size, entry.stored) > _MAX_SIZE:
            return rows.skip("too large")
        flags = entry.flags
        if is_file and start + LOCAL_HEADER + entry.stored > self._directory.start:
            flags |= TRUNCATED
            rows.warn(f"the data of {_shown(entry.name)} does not lie in the archive")
        before = len(rows)
        rows.add(entry.name, start, 0, entry.size, entry.mtime_ns, flags)
        if len(rows) > before:
            self._methods.append(entry.method if is_file else STORED)
            self._stored.append(entry.stored)
            self._crcs.append(entry.crc)
        return None

    def _stop(self, message: str) -> None:
        self.wanted = None
        self._held = b""
        if message:
            self._rows.warn(message)


def _shown(name: bytes) -> str:
    return repr(name[:200].decode(errors="backslashreplace"))
