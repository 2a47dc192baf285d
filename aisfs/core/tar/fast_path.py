"""The fast path through a tar: runs of plain files whose headers resemble the last one.

Most headers of an archive differ only in name, size, mtime and checksum. So the bytes from the type
flag on are compared at once with those of the last plain file, whose sum is known, which leaves 148
bytes to sum. The pax headers of one writer are even identical, and their only record is the mtime.
Any other header is left to the slow path in `scanner`. The rows must not depend on which path took a
member.
"""

from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar
from zlib import adler32

from aisfs.core.index.builder import MemberIndexBuilder
from aisfs.core.index.member_index import EXECUTABLE, TRUNCATED
from aisfs.core.tar.header import (
    BLOCK,
    MAX_SIZE,
    number,
    padded,
    pax_time_ns,
    seconds_to_ns,
    text,
)

_MEMO = 1 << 14
"""Entries after which a memo is cleared: more than there are distinct checksums."""
_TEMPLATES = 64
"""Pax headers remembered; webdataset's differ only in the length of a float."""
_SHOWN_NAME = 200
PAX_WARNING = "the pax header at byte"
"""How warnings begin that cost no member."""

_TAIL = 156  # the type flag, where the part that members have in common starts
_NO_TAIL = b"\xff" * (BLOCK - _TAIL)  # no header has this type
_SIZE = slice(124, 136)
_CHECKSUM = slice(148, 156)
_SECOND = 1_000_000_000
_NO_PAX = (_NO_TAIL, 0, 0)
_SCALES = [10 ** max(0, 20 - length) for length in range(21)]
"""By length of a time such as `1700000000.25`: the factor from its digits to nanoseconds."""

_Value = TypeVar("_Value")


class _Memo(dict[bytes, _Value]):
    """Decoded fields; most values repeat, and a lookup takes a third of the time of decoding."""

    def __init__(self, decode: Callable[[bytes], _Value]) -> None:
        super().__init__()
        self._decode = decode

    def __missing__(self, field: bytes) -> _Value:
        if len(self) >= _MEMO:
            self.clear()
        value = self[field] = self._decode(field)
        return value


class _PaxTemplate(NamedTuple):
    """A known pax header, with a payload of a single mtime record."""

    opening: bytes
    """The whole header and the record up to the time."""
    start: int
    """Where the time starts, counted from the header."""
    stop: int
    """Where the newline after it is."""


class PlainRuns:
    """Adds runs of plain files that resemble headers of the slow path."""

    def __init__(self, rows: MemberIndexBuilder, object_size: int, *, leave: bytes = b"") -> None:
        """Add to `rows`.

        Args:
            rows: where files are added.
            object_size: where the tar ends.
            leave: files with this in their headers are left to the slow path.
        """
        self._rows = rows
        self._leave = leave
        self._object_size = object_size
        self._tail = _NO_TAIL
        self._tail_sum = 0
        self._templates: dict[bytes, _PaxTemplate] = {}
        self._checksums = _Memo(_checksum)
        self._steps = _Memo(_step)
        self._flags = _Memo(_flags)
        self._times = _Memo(_time)

    def learn_file(self, block: bytes) -> None:
        """Accept headers like this one, of a regular file without ustar prefix."""
        self._tail = block[_TAIL:]
        self._tail_sum = sum(self._tail) + 8 * 0x20 - 1

    def learn_pax(self, block: bytes, payload: bytes) -> None:
        """Accept pax headers like this one, if its only record is a time."""
        key = block[_SIZE]
        opening = b"%d mtime=" % len(payload)
        known = len(self._templates) < _TEMPLATES or key in self._templates
        if known and payload.startswith(opening) and len(opening) + 1 < len(payload) < BLOCK:
            start, stop = BLOCK + len(opening), BLOCK + len(payload) - 1
            self._templates[key] = _PaxTemplate(block + opening, start, stop)

    def scan(self, data: bytes, position: int, base: int) -> int:
        """Add files while they resemble the last one; return where the first other header is.

        Args:
            data: bytes of the object, few enough that lists of their members are short.
            position: where in `data` a header is due.
            base: where in the object `data` starts.
        """
        starts_with = data.startswith
        tail, tail_sum, checksums, steps = self._tail, self._tail_sum, self._checksums, self._steps
        size_field, checksum_field, leave = _SIZE, _CHECKSUM, self._leave
        heads: list[bytes] = []
        starts, sizes = list[int](), list[int]()
        times: list[bytes | None] = []
        template: _PaxTemplate | None = None
        opening, time_start, time_stop = _NO_PAX
        last = len(data) - BLOCK
        last_pax = len(data) - 3 * BLOCK
        while position <= last:
            if template is not None and starts_with(opening, position) and position <= last_pax:
                start = position + 2 * BLOCK
                if data[position + time_stop] != 0x0A or not starts_with(tail, start + _TAIL):
                    break
                time = data[position + time_start : position + time_stop]
            elif starts_with(tail, position + _TAIL):
                start = position
                time = None
            else:
                # Try the template for another length of the time.
                found = self._templates.get(data[position + 124 : position + 136])
                if found is None or found is template or position > last_pax:
                    break
                template = found
                opening, time_start, time_stop = found
                continue
            head = data[start : start + _TAIL]
            # The low half of Adler-32 is 1 + the byte sum: 156 bytes cannot reach its modulus.
            if adler32(head) & 0xFFFF != checksums[head[checksum_field]] - tail_sum:
                break
            step, size = steps[head[size_field]]
            if not step or (leave and leave in head):
                break
            heads.append(head)
            starts.append(start)
            sizes.append(size)
            times.append(time)
            position = start + step
        if heads:
            self._add(heads, [base + start + BLOCK for start in starts], sizes, times)
        return position

    def _add(
        self, heads: list[bytes], offsets: list[int], sizes: list[int], times: list[bytes | None]
    ) -> None:
        """Add the files that `scan` collected as rows.

        In the joined heads every 156th byte belongs to one column of the headers. Slicing with a
        step takes less than a nanosecond per header and shows which fields need no decoding.
        """
        count = len(heads)
        joined = b"".join(heads)
        names = [head.partition(b"\0")[0] for head in heads]
        if any(joined[99::_TAIL]):  # a name that fills its field has no NUL
            names = [text(head[:100]) for head in heads]
        if _constant(joined, 100, 108):
            flags = bytearray([self._flags[joined[100:108]]]) * count
        else:
            flags = bytearray([self._flags[head[100:108]] for head in heads])
        if not any(times):
            leads = array("H", [1]) * count
            mtimes = self._header_times(heads, joined)
        elif all(times):
            leads = array("H", [3]) * count
            known = _usual_times([time or b"" for time in times])
            mtimes = self._pax_times(heads, offsets, times) if known is None else known
        else:
            leads = array("H", [3 if time else 1 for time in times])
            mtimes = self._pax_times(heads, offsets, times)
        if offsets[-1] + sizes[-1] > self._object_size:
            flags[-1] |= TRUNCATED
            self._rows.warn(truncation(names[-1], offsets[-1] + sizes[-1], self._object_size))
        self._rows.extend(names, offsets, leads, sizes, mtimes, flags)

    def _pax_times(
        self, heads: list[bytes], offsets: list[int], times: list[bytes | None]
    ) -> list[int]:
        """Return the decoded times of pax records; those of the headers where there is no valid one."""
        decoded = []
        for head, offset, time in zip(heads, offsets, times, strict=True):
            found = pax_time_ns(time) if time else None
            if time and found is None:
                self._rows.warn(malformed_time(offset - 3 * BLOCK))
            decoded.append(self._times[head[136:148]] if found is None else found)
        return decoded

    def _header_times(self, heads: list[bytes], joined: bytes) -> list[int]:
        """Return the decoded mtime fields, usually eleven octal digits and a NUL or blank."""
        if _constant(joined, 136, 148):
            return [self._times[joined[136:148]]] * len(heads)
        if not joined[147::_TAIL].strip(b" \0") and all(
            joined[column::_TAIL].isdigit() for column in range(136, 147)
        ):
            with suppress(ValueError):  # not octal
                return [int(head[136:147], 8) * _SECOND for head in heads]
        return [self._times[head[136:148]] for head in heads]


def _constant(joined: bytes, start: int, stop: int) -> bool:
    """Return whether these columns are the same in all headers."""
    count = len(joined) // _TAIL
    return all(
        joined[column::_TAIL].count(joined[column]) == count for column in range(start, stop)
    )


def _usual_times(times: list[bytes]) -> list[int] | None:
    """Return the decoded times of pax records, if all have ten digits, a dot and a fraction."""
    joined = b"".join(times)
    if (
        joined.count(b".") == len(times)
        and {time[10:11] for time in times} == {b"."}
        and joined.replace(b".", b"").isdigit()
        and max(map(len, times)) < len(_SCALES)
    ):
        return [int(time.replace(b".", b"")) * _SCALES[len(time)] for time in times]
    return None


def malformed_time(at: int) -> str:
    """Return the warning for a time of a pax header that does not count."""
    return f"{PAX_WARNING} {at} has a malformed mtime, which does not count"


def truncation(name: bytes, stop: int, object_size: int) -> str:
    """Return the warning for a member that the object's end truncates."""
    shown = name[:_SHOWN_NAME].decode(errors="backslashreplace")
    return (
        f"truncated: the data of {shown!r} goes to byte {stop}, the tar ends at byte {object_size}"
    )


def _checksum(field: bytes) -> int:
    """Return the stored sum plus that of the field's own bytes, which `scan` compares."""
    value = number(field)
    return -1 << 32 if value is None else value + sum(field)


def _step(field: bytes) -> tuple[int, int]:
    """Return the distance to the next header and the size; the distance is 0 for an invalid size."""
    size = number(field)
    if size is None or not 0 <= size <= MAX_SIZE:
        return 0, 0
    return BLOCK + padded(size), size


def _flags(field: bytes) -> int:
    return EXECUTABLE if (number(field) or 0) & 0o111 else 0


def _time(field: bytes) -> int:
    return seconds_to_ns(number(field))
