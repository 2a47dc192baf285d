"""Finds the members of a tar by walking its headers: bytes in, rows out.

The scanner is fed the object's bytes in pieces of any size; `seek` skips bytes that it does not need.
Invariants:
- the rows do not depend on how the bytes were cut into pieces;
- no input makes it raise or loop forever; memory grows only with the rows and one header's payload;
- members before damage are kept; the kind and place of the damage are in the index's `warnings`;
- a header counts only if its checksum holds.

A tar inside the tar is scanned by another scanner, which adds to the same rows. None of its bytes are
read twice, and the outer scanner skips the bytes that the inner one does not need.

`fast_path` takes runs of similar members. This module is the slow path, one header at a time, which
understands every header and teaches the fast path what to look for.
"""

from aisfs.core.archive.formats import Form, form_of_content
from aisfs.core.index.builder import MemberIndexBuilder
from aisfs.core.index.member_index import MAX_LEAD, TRUNCATED, MemberIndex
from aisfs.core.tar.fast_path import PAX_WARNING, PlainRuns, malformed_time, truncation
from aisfs.core.tar.header import (
    BLOCK,
    MAX_SIZE,
    ZERO_BLOCK,
    Header,
    PaxRecords,
    padded,
    parse_header,
    parse_pax,
    text,
)
from aisfs.core.tar.long_header import LongHeader
from aisfs.core.tar.member import (
    BAD_SPARSE,
    OLD_SPARSE,
    OWN_KEYS,
    Member,
    describe,
    set_common,
    sound_records,
)
from aisfs.core.tar.sparse import (
    extension_extends,
    extension_holds,
    header_extends,
    sparse_numbers_hold,
)

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
