"""Checks that the rows of an index can be those that a scan finds in a shard of that size.

An index from elsewhere may say anything. What passes here is as safe to use as a scan of an unknown
shard: names are paths, links stay inside, data lies in the shard, and members of a tar do not overlap.
That the shard really has these members is not known; reading them shows it.

The rows of usual shards are checked by operations on whole columns, `TURN` rows at a time; only rows
of rare kinds are looked at one by one.
"""

from itertools import compress

from aisfs.core.archive.formats import METHODS, STORED, Form
from aisfs.core.index.builder import MAX_REASONS, MAX_WARNINGS
from aisfs.core.index.columns import KIND_BITS, OPENED, MemberColumns
from aisfs.core.index.integer_codec import TURN, extremes, lanes_of, ones_of, turns
from aisfs.core.index.member_index import (
    EXECUTABLE,
    SPARSE,
    TRUNCATED,
    MemberIndex,
    MemberKind,
)
from aisfs.core.index.nested_tars import MAX_NESTING, NestedTars
from aisfs.core.index.paths import MAX_DEPTH, HiddenName, all_tidy, normalise
from aisfs.core.index.regular_names import regular_names
from aisfs.core.index.zip_columns import LOCAL_HEADER

MAX_TEXT = 4096
"""Most bytes of one of them; a scan shows 200 of a name."""

TAR_ROW = 256
"""Least bytes of a tar for each row: a header, but a tar inside it has a row for its folder too."""
_ZIP_ROW = 46
_ROWS_FREE = 256
"""Rows that any index may have; more need bytes."""
_ROWS_A_BYTE = 64
"""Most members for a byte of the index; equal ones need 1/20 of a byte each."""
_ROWS_A_COMPRESSED_BYTE = 2
"""Most members for a byte of a compressed shard: empty ones that are numbered take 1.3 bytes each in xz."""
_CONTENT_FREE = 1 << 20
_EXPANSION = {Form.TAR_GZ: 1032, Form.TAR_LZ4: 256}
"""Longest content of a compressed shard, in lengths of the shard: what deflate and lz4 can reach."""
_MOST_EXPANSION = 1 << 16
"""That of others, which have no end: bzip2 reaches 45,000 with zeros, zstd 33,000."""
_REASONS_FREE = 8
"""Reasons that are counted without a limit, when all rows are there."""

_BLOCK = 512
_MAX_SIZE = 2**63 - 1
_KNOWN_FLAGS = KIND_BITS | EXECUTABLE | SPARSE | TRUNCATED | OPENED
_PLAIN = bytes(kind | mode for kind in (0, MemberKind.DIRECTORY) for mode in (0, EXECUTABLE))
"""Flags of rows that can be checked in bulk."""
_IS_DIRECTORY = bytes(flags & KIND_BITS == MemberKind.DIRECTORY for flags in range(256))
_OF_ZIPS = bytes(sorted({*_PLAIN, TRUNCATED, TRUNCATED | EXECUTABLE}))
_FILE, _DIRECTORY = int(MemberKind.FILE), int(MemberKind.DIRECTORY)
_SYMLINK, _HARDLINK = int(MemberKind.SYMLINK), int(MemberKind.HARDLINK)


class Implausible(ValueError):
    """No scan finds this."""


def check_count(rows: int, form: Form, encoded: int, size: int) -> None:
    """Check the number of rows before anything of that size is made.

    Args:
        rows: Their number.
        form: Of the shard.
        encoded: Bytes in which they are described.
        size: Of the shard.

    Raises:
        Implausible: so many cannot be in it.
    """
    most = _ROWS_FREE + _ROWS_A_BYTE * encoded
    if form.compressed:
        most = min(most, _ROWS_FREE + _ROWS_A_COMPRESSED_BYTE * size)
    else:
        most = min(most, size // (_ZIP_ROW if form is Form.ZIP else TAR_ROW))
    if rows > most:
        raise Implausible(f"{rows} members cannot be in the shard")


def check_content(rows: int, form: Form, content: int, size: int) -> None:
    """Check the length of what a compressed shard is when it is decompressed.

    Raises:
        Implausible: the shard cannot be that, or so many members cannot be in that.
    """
    if content > _CONTENT_FREE + _EXPANSION.get(form, _MOST_EXPANSION) * size:
        raise Implausible(f"the shard cannot decompress to {content} bytes")
    if rows > content // TAR_ROW:
        raise Implausible(f"{rows} members cannot be in the shard")


def check_index(index: MemberIndex) -> None:
    """Check everything but how large the shard is.

    Raises:
        Implausible: no scan returns this index.
    """
    columns = index.columns
    _check_texts(index)
    _check_names(columns)
    if columns.flags.translate(None, bytes(range(_KNOWN_FLAGS + 1))):
        raise Implausible("a member has unknown flags")
    if extremes(columns.mtimes)[0] < -_MAX_SIZE:
        raise Implausible("a member has an impossible time")
    if index.form is Form.ZIP:
        _check_zip(index)
    elif (
        columns.flags.translate(None, _PLAIN)
        or columns.targets
        or columns.contents
        or columns.stored_stops
    ):
        _RowByRow(index, index.names()).check()
    else:
        _check_plain(index)


def _check_texts(index: MemberIndex) -> None:
    if len(index.warnings) > MAX_WARNINGS or len(index.skipped) > MAX_REASONS + _REASONS_FREE:
        raise Implausible("it has too many warnings")
    for text in (*index.warnings, *index.skipped):
        if len(text) > MAX_TEXT or not text.isprintable():
            raise Implausible("a warning is not one line of text")
    if not all(0 < count <= _MAX_SIZE for count in index.skipped.values()):
        raise Implausible("impossible numbers of members are not shown")


def _check_names(columns: MemberColumns) -> None:
    regular = regular_names(columns)
    if regular is not None and b"\0" not in regular.blob and regular.width <= MAX_DEPTH:
        return  # short names, none of which begins with a dot
    names = columns.all_names()
    for start in range(0, len(names), TURN):
        some = names[start : start + TURN]
        if all_tidy(some):
            continue
        for row, name in enumerate(some, start):
            try:
                tidy = normalise(name) == name
            except HiddenName:
                tidy = False
            folder = columns.flags[row] & (KIND_BITS | OPENED) == _DIRECTORY
            if not tidy or not (name or folder):
                raise Implausible(f"member {row} has an impossible name")


# Tars ----------------------------------------------------------------------------------------


def _check_plain(index: MemberIndex) -> None:
    """Check files and directories of a tar, with all values of a column in the lanes of one integer."""
    columns = index.columns
    before = 0
    for at in range(0, len(index), TURN):
        part = slice(at, at + TURN)
        offsets, sizes, leads = map(
            lanes_of, (columns.offsets[part], columns.sizes[part], columns.leads[part])
        )
        flags = columns.flags[part]
        rows = len(flags)
        ones = ones_of(rows, 8)
        tops = ones << 63
        if (offsets | sizes) & tops or (stops := offsets + sizes) & tops:
            raise Implausible("data lies behind the end of the shard")
        earliest = (stops << 64 | before) & (1 << 64 * rows) - 1
        earliest += leads * _BLOCK
        if (
            earliest & tops
            # A lane keeps its top bit if nothing larger is subtracted from the rest of it.
            or (offsets | tops) - earliest & tops != tops
            or (leads | tops) - ones & tops != tops
            or offsets & ones * (_BLOCK - 1)
        ):
            raise Implausible(f"data of members from {at} on overlaps")
        folders = flags.translate(_IS_DIRECTORY)
        if any(folders) and any(compress(columns.sizes[part], folders)):
            raise Implausible("a directory has data")
        before = stops >> 64 * (rows - 1)
    if before > index.object_size:
        raise Implausible("data lies behind the end of the shard")


class _RowByRow:
    """Checks a tar with links, sparse or truncated members, or tars inside."""

    def __init__(self, index: MemberIndex, names: list[bytes]) -> None:
        self._index = index
        self._names = names
        self._columns = index.columns
        self._tars = NestedTars()
        self._open: list[tuple[bytes, int, int]] = []
        """Of each tar that the row lies in: prefix of names, where it ends, and where members
        behind it may start."""
        self._place = 0
        """Where the next member may start."""

    def check(self) -> None:
        columns, names = self._columns, self._names
        kinds = bytes(flags & KIND_BITS for flags in columns.flags)
        for kind, rare in ((_SYMLINK, columns.targets), (_HARDLINK, columns.contents)):
            if kinds.count(kind) != len(rare) or any(kinds[row] != kind for row in rare):
                raise Implausible("not every link has a target")
        holes = [row for row, flags in enumerate(columns.flags) if flags & SPARSE]
        if holes != sorted(columns.stored_stops):
            raise Implausible("the sizes of sparse members are missing")
        folder = b""
        for row, (name, kind) in enumerate(zip(names, kinds, strict=True)):
            self._leave(row, name)
            is_folder = bool(kind == _DIRECTORY and columns.flags[row] & OPENED)
            if is_folder is not bool(folder) or (is_folder and name != folder):
                raise Implausible(f"member {row} is no folder of a tar in the shard")
            folder = b""
            if is_folder:
                self._check_folder(row)
            elif kind == _HARDLINK:
                self._check_hardlink(row, kinds)
            else:
                folder = self._check_member(row, kind)
        if folder:
            raise Implausible("a tar in the shard has no folder")
        self._leave(len(names), b"")
        self._check_tree(kinds)

    def _leave(self, row: int, name: bytes) -> None:
        """Leave the tars that a member of this name is not in."""
        while self._open and not name.startswith(self._open[-1][0]):
            self._tars.end(row)
            self._place = self._open.pop()[2]

    @property
    def _end(self) -> int:
        """Where the tar ends that the row lies in."""
        return self._open[-1][1] if self._open else self._index.object_size

    def _stop(self, row: int) -> int:
        """Return where the data of a file ends, which may be behind the end of its tar."""
        columns = self._columns
        stop = columns.stored_stops.get(row)
        return columns.offsets[row] + columns.sizes[row] if stop is None else stop

    def _check_folder(self, row: int) -> None:
        """Check the folder of the tar in the row before, and enter it."""
        columns, name = self._columns, self._names[row]
        offset, stop = columns.offsets[row], self._stop(row - 1)
        said = (offset, columns.leads[row], columns.sizes[row], columns.mtimes[row])
        meant = (columns.offsets[row - 1], 0, 0, columns.mtimes[row - 1])
        if said != meant or columns.flags[row] != _DIRECTORY | OPENED:
            raise Implausible(f"member {row} is no folder of a tar in the shard")
        self._open.append((name + b"/", min(stop, self._end), _padded(stop)))
        if len(self._open) > MAX_NESTING:
            raise Implausible("tars are in tars too deep")
        self._place = offset

    def _check_hardlink(self, row: int, kinds: bytes) -> None:
        columns = self._columns
        content = columns.contents[row]
        alike = (columns.offsets, columns.leads, columns.sizes, columns.mtimes)
        flags = columns.flags[content] & ~(KIND_BITS | OPENED) | _HARDLINK
        if (
            content >= row
            or kinds[content] != _FILE
            or columns.flags[row] != flags
            or any(column[row] != column[content] for column in alike)
            or columns.stored_stops.get(row) != columns.stored_stops.get(content)
        ):
            raise Implausible(f"member {row} is no link to another one")

    def _check_member(self, row: int, kind: int) -> bytes:
        """Check a member that has a place of its own; return the folder to come if it is opened."""
        columns = self._columns
        offset, flags, size = columns.offsets[row], columns.flags[row], columns.sizes[row]
        lead = columns.leads[row]
        if lead < 1 or offset - lead * _BLOCK < self._place or offset % _BLOCK:
            raise Implausible(f"data of member {row} overlaps")
        if offset > self._end or size > _MAX_SIZE:
            raise Implausible("data lies behind the end of the shard")
        self._place = offset
        if kind != _FILE:
            target = columns.targets.get(row)
            if size != len(target or b"") or flags & (SPARSE | OPENED):
                raise Implausible(f"member {row} is a link or directory with data")
            return b""
        stop = self._stop(row)
        if stop < offset or (stop > self._end) is not bool(flags & TRUNCATED):
            raise Implausible("data lies behind the end of the shard")
        self._place = _padded(stop)
        if not flags & OPENED:
            return b""
        name = self._names[row]
        if flags & SPARSE or not NestedTars.opens(name) or stop - offset < _BLOCK:
            raise Implausible(f"member {row} is no tar")
        return self._tars.begin(row, name)

    def _check_tree(self, kinds: bytes) -> None:
        """Check what depends on all names: which tars have a folder, and where links lead."""
        if not self._tars and not self._columns.targets:
            return
        if self._tars.settle(self._names).tars:
            raise Implausible("a tar in the shard has no folder of its own")
        # Hard links were checked already, and lie in the tree like files.
        as_files = kinds.translate(bytes(0 if kind == _HARDLINK else kind for kind in range(256)))
        found = self._tars.resolve_links(self._names, as_files, self._columns.targets)
        if found.refused or found.targets != self._columns.targets:
            raise Implausible("a link leads out of the shard, nowhere or in circles")


def _padded(stop: int) -> int:
    return stop + _BLOCK - 1 & -_BLOCK


# Zips ----------------------------------------------------------------------------------------


def _check_zip(index: MemberIndex) -> None:
    columns, packing = index.columns, index.packing
    assert packing is not None, "the codec has made sure"
    rare = columns.targets or columns.contents or columns.stored_stops
    if rare or columns.flags.translate(None, _OF_ZIPS) or any(map(max, turns(columns.leads))):
        raise Implausible("a zip has members that zips do not have")
    before = 0
    rows = zip(columns.offsets, columns.sizes, packing.stored, columns.flags, packing.methods,
               strict=True)  # fmt: skip
    for offset, size, stored, flags, method in rows:
        if not before <= offset <= _MAX_SIZE or max(size, stored) > _MAX_SIZE:
            raise Implausible("the members of a zip are not in order")
        before = offset
        if flags & KIND_BITS:
            if size or stored or method != STORED:
                raise Implausible("a directory has data")
        elif method not in METHODS or (
            offset + LOCAL_HEADER + stored > index.object_size and not flags & TRUNCATED
        ):
            raise Implausible("data lies behind the end of the shard")
