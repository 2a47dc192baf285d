"""Finds the members of a tar by walking its headers: bytes in, rows out.

The scanner is fed the object's bytes in pieces of any size; `seek` skips bytes that it does not need.
Invariants:
- the rows do not depend on how the bytes were cut into pieces;
- no input makes it raise or loop forever; memory grows only with the rows and one header's payload;
- members before damage are kept; the kind and place of the damage are in the index's `warnings`;
- a header counts only if its checksum holds.

A tar inside the tar is scanned by another scanner, which adds to the same rows. None of its bytes are
read twice, and the outer scanner skips the bytes that the inner one does not need.

There are two paths, and the rows must not depend on which of them took a member. The slow one takes one header at a
time, understands every header, and teaches the fast one what to look for. The fast one takes runs of plain files: most
headers of an archive differ only in name, size, mtime and checksum, so the bytes from the type flag on are compared at
once with those of the last plain file, whose sum is known, which leaves 148 bytes to sum. The pax headers of one
writer are even identical, and their only record is the mtime.

Of headers that are too long to be held (GNU tar writes the names of a whole directory into one record by `-H pax -g`,
and extended attributes may have megabytes) a scan reads in passing what it needs, and skips the rest: memory taken is
that of one piece and of the few records that it knows.

`MemberStream` is a scan that keeps no index: members of a tar that goes by, each when its header was found. Its memory
is that of the members found in one piece. Links are left as they are stored, since what they lead to is gone.
"""

from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar
from zlib import adler32

from aisfs.core.archive.tar import (
    BAD_SPARSE,
    BLOCK,
    MAX_SIZE,
    OLD_SPARSE,
    OWN_KEYS,
    ZERO_BLOCK,
    Header,
    Member,
    PaxRecords,
    decimal,
    describe,
    extension_extends,
    extension_holds,
    header_extends,
    number,
    padded,
    parse_header,
    parse_pax,
    pax_time_ns,
    seconds_to_ns,
    set_common,
    sound_records,
    sparse_numbers_hold,
    text,
)
from aisfs.core.index.builder import MemberIndexBuilder
from aisfs.core.index.columns import KIND_BITS
from aisfs.core.index.member_index import (
    EXECUTABLE,
    MAX_LEAD,
    SPARSE,
    TRUNCATED,
    MemberIndex,
    MemberKind,
)
from aisfs.core.names.listing import Form, form_of_content

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


PIECE = 16 << 10
"""Bytes looked at at once: the beginning of a record with all of its value that counts."""
_VALUE_MAX = 8 << 10
"""Bytes of a value that are kept: longer names and targets are not shown, however they end."""
_LENGTH_MAX = 12
_NEWLINE = 0x0A


class LongHeader:
    """One such header while it is read."""

    def __init__(self, role: bytes, header_at: int, start: int, size: int) -> None:
        """Begin at the first byte behind the header's block.

        Args:
            role: What it describes, as in the scanner.
            header_at: Where its block is.
            start: Where its payload is.
            size: Length of the payload.
        """
        self.role = role
        self.header_at = header_at
        self.found: dict[bytes, bytes] = {}
        """The records that a scan knows, each cut; of a long name the name, under the role."""
        self.intact = True
        """False when reading had to stop before the end."""
        self._stop = start + size

    def wanted(self, at: int) -> int:
        """Return how many bytes are needed at once from a place in the payload on; 0 at its end."""
        return min(PIECE, self._stop - at) if at < self._stop else 0

    def read(self, data: bytes, at: int) -> int:
        """Read bytes that are stored at `at`; return the place of the next ones that count."""
        if self.role in (b"path", b"linkpath"):
            self.found[self.role] = text(data[:PIECE])
            return self._stop
        position, stop = 0, self._stop - at
        while position < min(stop, len(data)):
            have, least = min(len(data), stop) - position, min(PIECE, stop - position)
            if not data[position]:  # as in `parse_pax`
                return self._stop
            space = data.find(b" ", position, position + min(_LENGTH_MAX, have))
            length = (decimal(data[position:space]) or 0) if space > 0 else 0
            equals = data.find(b"=", space, position + min(length, have)) if length else -1
            key = data[space + 1 : equals] if equals > 0 else b""
            value_stop = min(position + length - 1, equals + 1 + _VALUE_MAX)
            if not (have >= length > 0 or (key and key not in OWN_KEYS)) and have < least:
                break  # it goes on in the next piece
            sound = 0 < length <= stop - position and (equals > 0 or length > PIECE)
            if not sound or (have >= length and data[position + length - 1] != _NEWLINE):
                self.intact = False
                return self._stop
            if equals > 0:
                self._take(key, data[equals + 1 : value_stop])
            position += length
        return at + position

    def _take(self, key: bytes, value: bytes) -> None:
        # An empty record takes back what global headers say; a member's own says nothing then.
        if key in OWN_KEYS and (value or self.role == b"global"):
            whole = key != b"GNU.sparse.map" or len(value) < _VALUE_MAX
            self.found[key] = value if whole else value.rpartition(b",")[0]


MAX_META = 1 << 20
"""Most bytes of a pax header or long name that are held; of longer ones only what counts is."""
MAX_HEADER = MAX_LEAD * BLOCK
"""Most bytes of one that is looked at: an index has no room for longer headers before a member."""
_END_LOOK = 1 << 16
"""How far to look for headers past the end mark: six times tar's usual record of 10 KiB."""
_LEAST_LOOK, _MOST_LOOK = 4 << 10, 1 << 16
"""Bytes copied at once: among large members little more than their headers, among small ones as much
as malloc reuses. Larger blocks are new memory each time, which costs half a second per gigabyte."""
_PLAIN = (b"0", b"7")
_META = {b"x": b"pax", b"X": b"pax", b"g": b"global", b"L": b"path", b"K": b"linkpath"}
_TOO_LONG = f"{-(-MAX_HEADER >> 20)} MiB"
_LONG_LEAD = f"headers over {_TOO_LONG}"


class TarScanner:
    """Scans one object. Feed it the bytes from `needed` on, in order, then call `finish`."""

    def __init__(
        self,
        object_size: int,
        *,
        ignore_zeros: bool = False,
        nesting: int = 0,
        start: int = 0,
        rows: MemberIndexBuilder | None = None,
    ) -> None:
        """Start a scan.

        Args:
            object_size: where the tar ends, to detect truncated members: the length of the object,
                or less for a tar inside it.
            ignore_zeros: continue after end marks, for archives that were joined with `cat`.
            nesting: how many levels of tars in tars are opened.
            start: where the tar starts.
            rows: the rows to add to, for a tar inside another.
        """
        self._object_size = object_size
        self._ignore_zeros = ignore_zeros
        self._nesting = nesting
        self._rows = rows if rows is not None else MemberIndexBuilder(object_size)
        self._offset = start
        """The offset of the next fed byte."""
        self._position = start
        """The offset of the next header."""
        self._want = BLOCK
        """How many bytes from `_position` on are needed at once."""
        self._held = bytearray()
        """The bytes from `_position` on that were fed already."""
        self._ended = object_size == start
        self._end_mark: int | None = None
        """The first zero block, until a header follows."""
        self._seen = 0
        """How many valid headers were found."""
        self._unit: int | None = None
        """Where the headers of the next member start."""
        self._extending: tuple[Member, int] | None = None
        """An old sparse member whose extension blocks are being read, and where its header is."""
        self._reading: LongHeader | None = None
        """A header that is too long to be held."""
        self._long, self._own = dict[bytes, bytes](), dict[bytes, bytes]()
        """What headers say of the next member, the last ones of each kind as in GNU tar: long names,
        and pax records, which count more."""
        self._sparse = True
        """Whether the numbers in the sparse records are numbers."""
        self._globals: dict[bytes, bytes] = {}
        self._plain = PlainRuns(self._rows, object_size, leave=b".tar" if nesting else b"")
        self._candidate: tuple[int, int] | None = None
        """For a member that may be a tar, whose first block is next: where it ends, and where the
        header after it is."""
        self._inner: TarScanner | None = None
        """Scans the tar that was opened last, until that is finished."""

    def __repr__(self) -> str:
        return (
            f"<TarScanner: {len(self._rows)} members, {self.needed} of {self._object_size} bytes>"
        )

    @property
    def needed(self) -> int:
        """The offset of the next byte needed; the object's size when nothing more is needed."""
        if self._ended:
            return self._object_size
        if self._inner is not None:
            return self._inner.needed
        return min(self._position + len(self._held), self._object_size)

    @property
    def rows(self) -> MemberIndexBuilder:
        """The rows found so far."""
        return self._rows

    @property
    def end_mark(self) -> int | None:
        """Where the zeros begin that end the tar, as far as is known."""
        return self._end_mark

    @property
    def end(self) -> int:
        """Where the zeros that end the tar are, or would be: the place for another member."""
        return self._position if self._end_mark is None else self._end_mark

    @property
    def done(self) -> bool:
        """Whether further bytes would change nothing."""
        return self.needed >= self._object_size

    def seek(self, offset: int) -> None:
        """Set the offset of the next fed byte, which may be anything up to `needed`.

        Raises:
            ValueError: the offset is after `needed`: those bytes must not be skipped.
        """
        if not 0 <= offset <= self.needed:
            raise ValueError(f"the scan needs byte {self.needed}, cannot seek to {offset}")
        self._offset = offset

    def feed(self, data: bytes | memoryview) -> None:
        """Scan the next bytes of the object."""
        start = self._offset
        self._offset = stop = min(start + len(data), self._object_size)
        view, most = memoryview(data), _LEAST_LOOK
        while not self._ended and (needed := self.needed) < stop:
            end = min(needed + most, stop)
            self._feed_piece(bytes(view[needed - start : end - start]), needed)
            dense = self.needed - end < most
            most = min(4 * most, _MOST_LOOK) if dense else _LEAST_LOOK

    def _feed_piece(self, piece: bytes, start: int) -> None:
        """Scan a piece that starts with the first byte needed."""
        if self._inner is not None:
            self._feed_inner(self._inner, piece, start)
        elif self._held:
            missing = self._want - len(self._held)
            self._held += piece[:missing]
            if len(piece) >= missing:
                held = bytes(self._held)
                self._held.clear()
                self._scan(held, self._position)
        else:
            self._scan(piece, start)

    def _feed_inner(self, inner: "TarScanner", piece: bytes, start: int) -> None:
        """Feed the inner tar its part of a piece."""
        needed = inner.needed
        inner.seek(needed)
        inner.feed(piece[needed - start : inner._object_size - start])
        if inner.done:
            self._close_inner(inner)

    def _close_inner(self, inner: "TarScanner") -> None:
        inner._conclude()
        self._rows.close_tar()
        self._inner = None

    def end_at(self, size: int, warning: str = "") -> None:
        """Set the real length of an object that was announced as longer; then call `finish`.

        Args:
            size: The length, all of which was fed.
            warning: Why it ends there, if that is a defect.
        """
        scanner: TarScanner | None = self
        while scanner is not None:
            scanner._object_size = min(size, scanner._object_size)
            scanner = scanner._inner
        if self._inner is not None:
            self._close_inner(self._inner)
        cut = self._rows.cut(size)
        if warning:
            self._rows.warn(warning)
        if cut is not None:
            self._rows.warn(truncation(*cut, size))
        if size == 0:
            self._ended = True

    def finish(self, form: Form = Form.TAR) -> MemberIndex:
        """Return the index of what was found. The scanner cannot be used afterwards."""
        self._conclude()
        return self._rows.build(form=form)

    def _conclude(self) -> None:
        """Add the warnings for a tar that ends here."""
        if self._inner is not None:
            self._close_inner(self._inner)
        if self._candidate is not None and self.done:  # the held bytes are not a header
            self._ended = True
        if not self._ended:
            if not self.done:
                self._rows.warn(f"the scan stopped at byte {self.needed} of {self._object_size}")
            elif any(self._held):
                at = self._position
                held = bytes(self._held)
                self._rows.warn(
                    f"truncated in the header at byte {at}" if self._seen else _no_tar(held)
                )
            elif self._unit is not None:
                self._rows.warn(f"the headers at byte {self._unit} have no member")
            self._ended = True

    def _scan(self, data: bytes, base: int) -> None:
        """Scan as much as possible of `data`, which starts at `base`, and hold the rest."""
        position = self._position - base
        while not self._ended and self._inner is None and position + self._want <= len(data):
            if self._rows.full:
                self._end(f"too many members: nothing from byte {base + position} on is shown")
                break
            if self._undisturbed:
                position = self._plain.scan(data, position, base)
                if position + self._want > len(data):
                    break
            position = self._scan_header(data, position, base)
        self._position = base + position
        if self._inner is None:
            self._held += data[position:]

    @property
    def _undisturbed(self) -> bool:
        """Whether no earlier header affects the next one, as the fast path requires."""
        return (
            self._unit is None
            and self._end_mark is None
            and self._candidate is None
            and not self._globals
        )

    # The slow path -------------------------------------------------------------------------------

    def _scan_header(self, data: bytes, position: int, base: int) -> int:
        """Handle the block at `position`; return where the next one is.

        That is `position` itself if more bytes are needed (`_want` was raised) or the scan ended.
        """
        block = data[position : position + BLOCK]
        at = base + position
        if self._reading is not None:
            return self._read_on(self._reading, data, position, base)
        if self._candidate is not None:
            return self._look_inside(block, at, *self._candidate) - base
        if self._extending is not None:
            return self._take_extension(block, at) - base
        if block == ZERO_BLOCK:
            self._take_zeros(at)
            return position + BLOCK
        header = parse_header(block)
        if header is None:
            self._take_nonsense(block, at)
            return position
        if self._end_mark is not None and not self._ignore_zeros:
            self._end(
                f"the archive ends at byte {self._end_mark}, but another header follows at byte"
                f" {at}: what follows is shown with --ignore-zeros only"
            )
            return position
        self._end_mark = None
        self._seen += 1
        if self._unit is None:
            self._unit = at
        if header.kind in _META:
            return self._take_meta(header, data, position, base)
        return self._take_member(header, block, at) - base

    def _take_zeros(self, at: int) -> None:
        if self._unit is not None:
            self._rows.warn(f"the headers at byte {self._unit} have no member")
            self._forget_unit()
        if self._end_mark is None:
            self._end_mark = at
        elif not self._ignore_zeros and at - self._end_mark >= _END_LOOK:
            self._ended = True

    def _take_nonsense(self, block: bytes, at: int) -> None:
        """End the scan at a block that is not a header."""
        if not self._seen:
            self._end(_no_tar(block))
        elif self._end_mark is None:
            self._end(f"damaged header at byte {at}: nothing from there on is shown")
        else:
            self._ended = True  # anything may follow the end mark

    def _take_meta(self, header: Header, data: bytes, position: int, base: int) -> int:
        """Handle a header that describes the next member, or all following ones."""
        at = base + position
        if header.size is None or not 0 <= header.size <= MAX_SIZE:
            self._end(_no_size(at))
            return position
        stop = position + BLOCK + header.size
        following = position + BLOCK + padded(header.size)
        if base + stop > self._object_size:
            self._end(f"truncated in the header at byte {at}")
            return position
        role = _META[header.kind]
        if header.size > MAX_HEADER:
            # Any other leaves its member with too many headers.
            if role == b"global":
                self._rows.warn(f"the header at byte {at} is skipped: it has over {_TOO_LONG}")
                self._end_of_globals()
            return following
        if header.size > MAX_META:
            self._reading = LongHeader(role, at, at + BLOCK, header.size)
            self._want = self._reading.wanted(at + BLOCK)
            return position + BLOCK
        if stop > len(data):
            self._want = stop - position
            return position
        self._want = BLOCK
        payload = data[position + BLOCK : stop]
        if role in (b"path", b"linkpath"):
            self._long[role] = text(payload)
            return following
        records = parse_pax(payload)
        self._take_records(role, at, records)
        if role == b"pax" and len(records.pairs) == 1 and records.intact:
            self._plain.learn_pax(data[position : position + BLOCK], payload)
        return following

    def _read_on(self, header: LongHeader, data: bytes, position: int, base: int) -> int:
        """Read another piece of a long header; return the position of the next one, or of what follows."""
        at = header.read(data[position:], base + position)
        self._want = header.wanted(at)
        if self._want:
            return at - base
        self._reading, self._want = None, BLOCK
        if header.role in (b"path", b"linkpath"):
            self._long |= header.found
        else:
            records = PaxRecords(list(header.found.items()), header.intact)
            self._take_records(header.role, header.header_at, records)
        return header.header_at + padded(at - header.header_at) - base

    def _take_records(self, role: bytes, at: int, records: PaxRecords) -> None:
        """Use the records of the pax header at `at`."""
        if not records.intact:
            self._rows.warn(f"{PAX_WARNING} {at} has a malformed record")
        pairs = sound_records(records.pairs)
        if len(pairs) < len(records.pairs):
            self._rows.warn(malformed_time(at))
        if role == b"global":
            set_common(self._globals, pairs)
            self._end_of_globals()
        else:
            self._own = {key: value for key, value in pairs if value and key in OWN_KEYS}
            self._sparse = sparse_numbers_hold(pairs)

    def _end_of_globals(self) -> None:
        """Begin the headers of the next member after a global header, unless some came before it."""
        if not self._long and not self._own:
            self._unit = None

    def _take_member(self, header: Header, block: bytes, at: int) -> int:
        """Handle the header of a member; return where the next header is."""
        member = describe(header, block, self._long | self._own, self._globals)
        if member is None:
            self._end(_no_size(at))
            return at
        if member.sparse and not self._sparse:
            member = member._replace(hidden=BAD_SPARSE)
        if header.kind in _PLAIN and not header.prefixed:
            self._plain.learn_file(block)
        if header.kind == OLD_SPARSE and header_extends(block):
            self._extending = (member, at)
            return at + BLOCK
        return self._add(member, at, at + BLOCK)

    def _take_extension(self, block: bytes, at: int) -> int:
        """Skip an extension block of an old sparse header; return where the next block is."""
        assert self._extending is not None
        member, header_at = self._extending
        if not extension_holds(block):
            member = member._replace(hidden=BAD_SPARSE)
            self._extending = member, header_at
        if extension_extends(block):
            return at + BLOCK
        self._extending = None
        return self._add(member, header_at, at + BLOCK)

    def _add(self, member: Member, at: int, data_start: int) -> int:
        """Add or count a member and reset the values for it; return where it ends."""
        lead = (data_start - (at if self._unit is None else self._unit)) // BLOCK
        self._forget_unit()
        data_stop = data_start + member.stored
        following = data_start + padded(member.stored)
        flags = member.flags
        hidden = member.hidden or (_LONG_LEAD if lead > MAX_LEAD else "")
        if hidden:
            self._rows.skip(hidden)
            if hidden in (BAD_SPARSE, _LONG_LEAD):
                self._rows.warn(f"the member at byte {at} is skipped: it has {hidden}")
        else:
            if data_stop > self._object_size:
                flags |= TRUNCATED
            shown = self._rows.add(
                member.name,
                data_start,
                lead,
                member.size,
                member.mtime_ns,
                flags,
                target=member.target,
                stored_stop=data_stop if member.sparse else None,
            )
            if shown and self._nesting and member.stored >= BLOCK and self._rows.last_opens:
                self._candidate = data_stop, following
        if data_stop > self._object_size:
            self._rows.warn(truncation(member.name, data_stop, self._object_size))
        return following if self._candidate is None else data_start

    def _look_inside(self, block: bytes, at: int, stop: int, following: int) -> int:
        """Open the member that starts at `at` if it is a tar; return where the next header is."""
        self._candidate = None
        tar = form_of_content(block) is Form.TAR or block == ZERO_BLOCK or parse_header(block)
        if tar:
            self._rows.open_tar()
            inner = self._inner = TarScanner(
                min(stop, self._object_size),
                ignore_zeros=self._ignore_zeros,
                nesting=self._nesting - 1,
                start=at,
                rows=self._rows,
            )
            self._feed_inner(inner, block, at)
        return following

    def _forget_unit(self) -> None:
        self._unit, self._long, self._own, self._sparse = None, {}, {}, True

    def _end(self, message: str) -> None:
        self._rows.warn(message)
        self._ended = True


def _no_tar(start: bytes) -> str:
    form = form_of_content(start)
    hint = ""
    if form is not None and form is not Form.TAR:
        hint = f", but like {form.label}: --magic goes by content"
    return f"not a tar: it does not start with a tar header{hint}"


def _no_size(at: int) -> str:
    return f"the header at byte {at} has no valid size: nothing from there on is shown"


_USUAL_MODE = 0o644


class StreamedMember(NamedTuple):
    """One member."""

    name: bytes
    """As stored."""
    kind: MemberKind
    offset: int
    """Where its data starts."""
    stop: int
    """Where its stored form ends."""
    size: int
    """The size users see: another one than that of the stored form if it is sparse."""
    lead: int
    """Header blocks before the data."""
    mtime_ns: int
    mode: int
    sparse: bool
    truncated: bool


class _Found(MemberIndexBuilder):
    """Takes the rows of a scanner and gives them away."""

    def __init__(self, object_size: int) -> None:
        super().__init__(object_size)
        self.members: list[StreamedMember] = []
        self.left_out: dict[str, int] = {}
        """Members of kinds that are no files, directories or links, by what they are."""
        self.warnings: list[str] = []

    @property
    def full(self) -> bool:
        return False

    def warn(self, message: str) -> None:
        super().warn(message)
        self.warnings = self._warnings

    def skip(self, reason: str) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def extend(
        self,
        names: list[bytes],
        offsets: Sequence[int],
        leads: Sequence[int],
        sizes: Sequence[int],
        mtimes: Sequence[int],
        flags: bytes | bytearray,
    ) -> None:
        for row in zip(names, offsets, leads, sizes, mtimes, flags, strict=True):
            self.add(*row)

    def add(
        self,
        name: bytes,
        offset: int,
        lead: int,
        size: int,
        mtime_ns: int,
        flags: int,
        *,
        target: bytes | None = None,
        stored_stop: int | None = None,
    ) -> bool:
        kind = MemberKind(flags & KIND_BITS)
        if kind is MemberKind.FILE and not size and name.endswith(b"/"):
            kind = MemberKind.DIRECTORY
        stop = offset + size if stored_stop is None else stored_stop
        self.members.append(
            StreamedMember(name, kind, offset, stop, size, lead, mtime_ns, _USUAL_MODE,
                           bool(flags & SPARSE), bool(flags & TRUNCATED))
        )  # fmt: skip
        return True


class MemberStream:
    """Feed it all bytes of a tar, in order."""

    def __init__(self, size: int) -> None:
        """Begin with a tar of so many bytes."""
        self._found = _Found(size)
        self._scanner = TarScanner(size, rows=self._found)
        self._at = 0
        self._last = b""
        """The end of what went by, where the header may begin that ends in the next piece."""

    def feed(self, piece: bytes | bytearray | memoryview) -> list[StreamedMember]:
        """Take the next bytes; return the members whose headers end in them, in order."""
        start, tail = self._at - len(self._last), self._last
        self._scanner.feed(memoryview(piece))
        self._at += len(piece)
        self._last = (tail + bytes(piece[-BLOCK:]))[-BLOCK:]
        found, self._found.members = self._found.members, []
        whole = memoryview(piece)

        def mode_of(member: StreamedMember) -> StreamedMember:
            at = member.offset - BLOCK - start
            field = (
                (tail + bytes(whole[:BLOCK]))[at:] if at < len(tail) else whole[at - len(tail) :]
            )
            mode = number(bytes(field[100:108])) if not member.sparse else None
            return member if mode is None else member._replace(mode=mode & 0o7777)

        return [mode_of(member) for member in found]

    def finish(self) -> None:
        """End: all bytes were fed."""
        self._scanner.finish()

    @property
    def end(self) -> int:
        """Where the zeros that end the tar are, or where it is damaged."""
        return self._scanner.end

    @property
    def ended(self) -> bool:
        """Whether no member comes any more; the data of the last one may."""
        return self._scanner.done or self._scanner.end_mark is not None

    @property
    def damaged(self) -> bool:
        """Whether members that come would not be found."""
        return self._scanner.done and self._scanner.end_mark is None

    @property
    def warnings(self) -> list[str]:
        """What is wrong with it, as far as is known."""
        return self._found.warnings

    @property
    def left_out(self) -> dict[str, int]:
        """Members that are no files, directories or links: what they are, and how many."""
        return self._found.left_out
