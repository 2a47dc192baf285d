"""The published index of a shard: bytes that spare its scan, other machines and later mounts of this one.

    magic, layout version, length of the header
    header (msgpack): which shard, how it was scanned, lengths of the sections
    the members, as `codec` writes them
    for each rule of labels: its column
    SHA-256 of all of it

docs/FORMATS.md describes every byte. Invariants:
- decoding returns what `encode_published` was given, or raises `IndexRefused` and no other error;
- memory taken stays in proportion to the bytes given and the size of the shard;
- equal input gives equal bytes (with the same zlib);
- an index is input, not truth, and may say anything. What passes `check_index` could have been found by a scan of a
  shard of that size: names are paths, links stay inside, data lies in the shard, and members of a tar do not overlap.
  That the shard really has these members is not known; reading them shows it. The rows of usual shards are checked by
  operations on whole columns, `TURN` rows at a time; only rows of rare kinds are looked at one by one.

Here is also what other programs want to know of a shard: the index that DALI's `wds2idx` writes (a line of text for
each sample with extension, offset, size and name of each component), and the number of samples for wids. Both go
through regular files in the order of the tar, and begin a sample where the key changes.
"""

import os
import re
import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import compress, groupby, islice
from operator import lt
from typing import Annotated

import msgspec

from aisfs.core.index.builder import MAX_NESTING, MAX_REASONS, MAX_WARNINGS, NestedTars
from aisfs.core.index.codec import DamagedIndex, Limits, decode, encode, inflated
from aisfs.core.index.columns import (
    KIND_BITS,
    MAX_DEPTH,
    OPENED,
    HiddenName,
    MemberColumns,
    all_tidy,
    normalise,
    regular_names,
)
from aisfs.core.index.member_index import (
    EXECUTABLE,
    MAX_ROWS,
    SPARSE,
    TRUNCATED,
    MemberIndex,
    MemberKind,
)
from aisfs.core.index.zip_columns import (
    LOCAL_HEADER,
    TURN,
    Numbers,
    Planes,
    array_in_turns,
    extremes,
    lanes_of,
    ones_of,
    progression,
    read_numbers,
    turns,
    write_numbers,
)
from aisfs.core.names.listing import METHODS, STORED, Form
from aisfs.errors import IndexOutdated, IndexRefused, Unsupported
from aisfs.model import ObjectInfo

CONTENT_MAX = 1 << 20
"""Most bytes of a member that is read for a label; a caption or its JSON has a thousand."""


@dataclass(frozen=True, slots=True)
class LabelColumn:
    """The labels of some members of one shard."""

    rows: "array[int]"
    """Ascending."""
    ids: "array[int]"
    """The label of each row, as a position in `table`."""
    table: list[bytes]
    """Each label once."""

    def by_row(self) -> dict[int, bytes]:
        """Return the label of each row."""
        return {row: self.table[i] for row, i in zip(self.rows, self.ids, strict=True)}

    def find(self, row: int) -> bytes | None:
        """Return the label of a row; None if it has none."""
        at = bisect_left(self.rows, row)
        there = at < len(self.rows) and self.rows[at] == row
        return self.table[self.ids[at]] if there else None


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


SCAN_RULES = 3
"""To be raised when scans show members differently than before: older indexes are not used then."""

_COUNTER = re.compile(r"[0-9]{1,10}")
"""A version that says how often an object was overwritten."""
_MAGIC = b"AISFSIDX"
_LAYOUT = 1
_START = struct.Struct("<8sBI")
_LENGTHS = struct.Struct("<II")
_DIGEST = sha256().digest_size
_LEVEL = 9  # written once, read by many
_ROOM = 1 << 16
"""Bytes that any index may take; beyond that it needs a reason."""
_MOST_DEFLATED = 512
"""Longest inflated form, in lengths of the deflated one. Names that differ in one digit reach 200."""
_MOST_DESCRIBED = 32
"""Longest inflated description, and longest table of labels, in lengths of the deflated section: each value in
them becomes an object of Python, which takes twenty times as much. Links with one target reach 12."""
_LABELS_A_ROW = 8
"""Labels of all rules together for each member; a rule whose labels are all alike takes 40 bytes."""
_DESCRIBED_A_ROW = 96
"""Bytes of the description for each member, on average: hard links take 30, symlinks their target."""
_INFLATED_A_ROW = 4096
"""Bytes of all for each member, on average: as much as the longest name."""
_OF_FILES = bytes(
    flags for flags in range(256) if flags & KIND_BITS in (MemberKind.FILE, MemberKind.HARDLINK)
)
_MOST_ENCODING = 32
_MOST_RULES = 64
_MOST_RULE = 1024
_MOST_BYTES = 256 << 20
_SURROGATES = "surrogatepass"


@dataclass(frozen=True, slots=True)
class ScanRules:
    """The options that decide which members a scan shows."""

    ignore_zeros: bool = False
    nesting: int = 0
    """How many tars deep tars are opened that are members."""
    encoding: str = ""
    """Of names in zips that do not say theirs."""


@dataclass(frozen=True, slots=True)
class PublishedIndex:
    """What a published index says."""

    index: MemberIndex
    labels: Mapping[str, LabelColumn]
    """Columns of labels by source and text of their rules."""
    scan: ScanRules
    encoded: bytes
    """The members as `codec` writes them."""


def most_bytes(shard: ObjectInfo) -> int:
    """Return the length beyond which an index is not even fetched."""
    return min(_MOST_BYTES, _ROOM + shard.size)


# The header ------------------------------------------------------------------------------------

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Rows = Annotated[int, msgspec.Meta(ge=0, le=2 * MAX_ROWS)]
_Rule = Annotated[bytes, msgspec.Meta(min_length=1, max_length=_MOST_RULE)]


class _Identity(msgspec.Struct, array_like=True, frozen=True):
    """Which bytes a shard has, as far as any machine can tell."""

    size: _Size
    checksum: bytes
    """As in `ObjectInfo`; what counts if both know it."""
    version: bytes
    """What counts if not both know a checksum."""
    name: bytes
    """The last component of the key: versions are those of one name."""


class _Header(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    shard: _Identity
    scan_rules: int
    ignore_zeros: bool
    nesting: Annotated[int, msgspec.Meta(ge=0, le=MAX_NESTING)]
    form: Form
    rows: _Rows
    members: _Size
    """Length of the section."""
    labels: Annotated[list[tuple[_Rule, _Size]], msgspec.Meta(max_length=_MOST_RULES)]
    """Rule and length of each section, ordered by rule."""
    encoding: Annotated[str, msgspec.Meta(max_length=_MOST_ENCODING)] = ""
    """As in `ScanRules`."""


_decode_header = msgspec.msgpack.Decoder(_Header).decode


def _identity(shard: ObjectInfo, *, renewable: bool) -> _Identity:
    version = shard.version
    # A directory's versions are time and inode number, and a copy has another inode.
    if not shard.checksum and version.startswith(f"{shard.mtime_ns}-"):
        version = f"{shard.mtime_ns}"
    if renewable and _COUNTER.fullmatch(version):
        version = f"{version}@{shard.mtime_ns}"
    name = shard.key.rpartition("/")[2]
    # The ETag of a cloud is that of its web server, which sends the quotes along.
    raw = _raw(version.strip('"'))
    return _Identity(shard.size, _raw(shard.checksum), raw, os.fsencode(name))


def _raw(text: str) -> bytes:
    return text.encode(errors=_SURROGATES)


def _check_identity(said: _Identity, shard: ObjectInfo, *, renewable: bool) -> None:
    now = _identity(shard, renewable=renewable)
    if said.size != now.size:
        raise IndexOutdated(f"it is of a shard of {said.size} bytes, not {now.size}")
    # The type is not compared: listings may state that of the bucket, not that of the object.
    then, here = (one.checksum.rpartition(b":")[2] for one in (said, now))
    if then and here:
        if then != here:
            raise IndexOutdated("it is of another version of the shard")
    elif (
        not said.version
        or said.name != now.name
        or not _is_version(said.version, now.version, shard)
    ):
        raise IndexOutdated(
            "it is of another version of the shard, or nothing distinguishes versions"
        )


def _is_version(said: bytes, now: bytes, shard: ObjectInfo) -> bool:
    if said == now:
        return True
    # An index that was made in a web server's directory has the file's time of change.
    of_web = shard.version.startswith('"') or shard.version.endswith(" GMT")
    return of_web and said.isdigit() and said[:-9] == b"%d" % (shard.mtime_ns // 10**9)


# Both ways -------------------------------------------------------------------------------------


def encode_published(
    shard: ObjectInfo,
    index: MemberIndex,
    labels: Mapping[str, LabelColumn],
    scan: ScanRules,
    *,
    renewable: bool = False,
    level: int = _LEVEL,
    encoded: bytes | None = None,
) -> bytes:
    """Return the published form of an index.

    Args:
        shard: This version has the members.
        index: The members.
        labels: Columns of labels by source and text of their rules.
        scan: How the members were found.
        renewable: See `IndexPlace`.
        level: Of deflation.
        encoded: The members as `codec` writes them, if that is known.

    Raises:
        ValueError: it cannot be published, for a reason that `decode_published` would refuse it for.
    """
    named = sorted((_raw(rule), column) for rule, column in labels.items())
    members = encoded or encode(index, level=level)
    columns = [_encode_labels(column, level) for _, column in named]
    header = msgspec.msgpack.encode(
        _Header(
            _identity(shard, renewable=renewable),
            SCAN_RULES,
            scan.ignore_zeros,
            scan.nesting,
            index.form,
            len(index),
            len(members),
            [(rule, len(data)) for (rule, _), data in zip(named, columns, strict=True)],
            scan.encoding,
        )
    )
    data = b"".join((_START.pack(_MAGIC, _LAYOUT, len(header)), header, members, *columns))
    data += sha256(data).digest()
    try:
        decode_published(data, shard, scan, renewable=renewable)
    except IndexRefused as refused:
        raise ValueError(f"{shard.key}: its index cannot be published: {refused}") from None
    return data


def decode_published(
    data: bytes | memoryview,
    shard: ObjectInfo,
    scan: ScanRules | None = None,
    *,
    renewable: bool = False,
    trusted: bool = False,
    rules: Container[str] | None = None,
) -> PublishedIndex:
    """Return what a published index says of exactly this version of a shard.

    Args:
        data: Its bytes.
        shard: The shard as it is now.
        scan: The options to which the index must correspond; None to take any.
        renewable: See `IndexPlace`.
        trusted: Whether this machine wrote the bytes. Then their checksum says that they are what
            `encode_published` checked.
        rules: By which labels are wanted; None for all.

    Raises:
        IndexRefused: with the reason; `IndexOutdated` when it was good once, or for other options.
    """
    view = memoryview(data)
    try:
        header, sections = _split(view)
        _check_identity(header.shard, shard, renewable=renewable)
        check_count(header.rows, header.form, header.members, shard.size)
        members = bytes(sections.take(header.members))
        index = _decode_members(header, members, shard)
        if not trusted:
            check_index(index)
        labels: dict[str, LabelColumn] = {}
        for raw, length in header.labels:
            rule, section = raw.decode(errors=_SURROGATES), sections.take(length)
            if rules is not None and rule not in rules:
                continue
            left = _LABELS_A_ROW * len(index) - sum(len(one.rows) for one in labels.values())
            labels[rule] = column = _decode_labels(section, len(index), left)
            if not trusted:
                _check_labels(column, index)
        if sections.left:
            raise DamagedIndex("something follows the last section")
    except (DamagedIndex, Implausible, msgspec.MsgspecError, OverflowError, ValueError) as error:
        raise IndexRefused(str(error)) from None
    found = ScanRules(header.ignore_zeros, header.nesting, header.encoding)
    if scan is not None:
        _check_scan(found, scan, index)
    return PublishedIndex(index, labels, found, members)


def _split(data: memoryview) -> tuple[_Header, Planes]:
    """Return the header and the sections of bytes whose checksum holds."""
    if len(data) < _START.size + _DIGEST:
        raise DamagedIndex(f"{len(data)} bytes are no index")
    magic, layout, length = _START.unpack_from(data)
    if (magic, layout) != (_MAGIC, _LAYOUT):
        if magic == _MAGIC and layout > _LAYOUT:
            raise IndexOutdated("it was made by a newer version of aisfs")
        raise DamagedIndex(f"it is no index of layout {_LAYOUT}")
    if sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise DamagedIndex("its checksum is wrong")
    rest = Planes(data[_START.size : -_DIGEST])
    header = _decode_header(rest.take(length))
    if header.scan_rules != SCAN_RULES:
        raise IndexOutdated("it was made by another version of aisfs")
    rules = [rule for rule, _ in header.labels]
    if rules != sorted(set(rules)):
        raise DamagedIndex("its labels are not in order")
    return header, rest


def _check_scan(found: ScanRules, wanted: ScanRules, index: MemberIndex) -> None:
    # How deep tars are opened makes no difference where no member is named like one.
    nested = found.nesting != wanted.nesting and index.form is not Form.ZIP
    other = found.encoding != wanted.encoding and index.form is Form.ZIP
    if (
        found.ignore_zeros != wanted.ignore_zeros
        or (nested and any(map(NestedTars.opens, index.names())))
        or (other and not index.columns.names.isascii())
    ):
        raise IndexOutdated(
            "it was made with other options (--ignore-zeros, --recursive, --encoding)"
        )


def _decode_members(header: _Header, data: bytes, shard: ObjectInfo) -> MemberIndex:
    limits = Limits(
        header.rows,
        _ROOM + min(_MOST_DESCRIBED * len(data), _DESCRIBED_A_ROW * header.rows),
        _ROOM + min(_MOST_DEFLATED * len(data), _INFLATED_A_ROW * header.rows),
    )
    index = decode(data, limits)
    if len(index) != header.rows or index.form is not header.form:
        raise DamagedIndex("it does not have the members that its header says")
    if index.form.compressed:
        check_content(header.rows, index.form, index.object_size, shard.size)
    elif index.object_size != shard.size:
        raise DamagedIndex("its members are of a shard of another size")
    return index


# Labels ----------------------------------------------------------------------------------------


class _Labels(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Everything of a column of labels but the planes."""

    count: _Rows
    rows: Numbers
    ids: Numbers
    table: list[bytes]


_decode_label_header = msgspec.msgpack.Decoder(_Labels).decode


def _encode_labels(column: LabelColumn, level: int) -> bytes:
    # As 64-bit numbers, of which it is tried whether their differences take less.
    rows, row_planes = write_numbers(array_in_turns("q", turns(column.rows)))
    ids, id_planes = write_numbers(column.ids)
    header = msgspec.msgpack.encode(_Labels(len(column.rows), rows, ids, column.table))
    raw = b"".join((header, row_planes, id_planes))
    return _LENGTHS.pack(len(raw), len(header)) + zlib.compress(raw, level)


def _decode_labels(data: memoryview, members: int, left: int) -> LabelColumn:
    """Return a column, of `left` labels at most."""
    if len(data) < _LENGTHS.size:
        raise DamagedIndex("the labels end too soon")
    length, header_length = _LENGTHS.unpack_from(data)
    most = _ROOM + min(_MOST_DEFLATED * len(data), _INFLATED_A_ROW * members)
    described = _ROOM + _MOST_DESCRIBED * len(data)
    if not 0 < header_length <= min(length, described) or length > most:
        raise DamagedIndex(f"labels cannot inflate to {length} bytes")
    parts = Planes(inflated(data[_LENGTHS.size :], length))
    header = _decode_label_header(parts.take(header_length))
    if header.count > min(members, left):
        raise DamagedIndex("there are more labels than members")
    rows = _read_rows(header, parts)
    ids = read_numbers(header.ids, header.count, "I", parts)
    if parts.left:
        raise DamagedIndex("the labels make no sense")
    return LabelColumn(rows, ids, header.table)


def _read_rows(header: _Labels, parts: Planes) -> "array[int]":
    """Return the rows of labels, which often are as far from each other."""
    first, step, count = header.rows.first, header.rows.base, header.count
    if first is not None and not header.rows.width and 0 <= first < 2**32 and 0 < step < 2**32:
        return progression(range(first, first + step * count, step))
    return array_in_turns("I", turns(read_numbers(header.rows, count, "q", parts)))


def _as_slice(rows: "array[int]") -> slice | None:
    """Return what selects these rows, if they ascend evenly; None otherwise."""
    first, last = rows[0], rows[-1]
    step = rows[1] - first if len(rows) > 1 else 1
    even = range(first, last + 1, step) if step > 0 else range(0)
    evenly = len(even) == len(rows) and rows == progression(even)
    return slice(first, last + 1, step) if evenly else None


def _check_labels(column: LabelColumn, index: MemberIndex) -> None:
    """Check that labels are those of members that can have one, in their order."""
    rows, table = column.rows, column.table
    if len(set(table)) != len(table) or list(map(bytes.strip, table)) != table:
        raise DamagedIndex("the labels make no sense")
    if max(map(len, table), default=0) > CONTENT_MAX:
        raise DamagedIndex("the labels make no sense")
    if list(dict.fromkeys(column.ids)) != list(range(len(table))):
        raise DamagedIndex("the labels are not in the order of the members")
    flags, sizes = index.columns.flags, index.columns.sizes
    for some in turns(rows):
        evenly = _as_slice(some)
        if some[-1] >= len(index) or not (evenly or all(map(lt, some, islice(some, 1, None)))):
            raise DamagedIndex("a label belongs to no member")
        labelled = sizes[evenly] if evenly else list(map(sizes.__getitem__, some))
        if min(labelled) == 0 or max(labelled) > CONTENT_MAX:
            raise DamagedIndex("a label belongs to a member that cannot have one")
        kinds = flags[evenly] if evenly else bytes(map(flags.__getitem__, some))
        if kinds.translate(None, _OF_FILES):
            raise DamagedIndex("a label belongs to no file")
    if any(rows[at - 1] >= rows[at] for at in range(TURN, len(rows), TURN)):
        raise DamagedIndex("a label belongs to no member")


DALI_SUFFIX = ".idx"
"""Of the file beside a shard, in the place of the suffix of the shard."""
"""Of numbers in a DALI index; longer ones lie outside of any tar."""
_BLANK = re.compile(rb"\s")
_WIDS_NAME = re.compile(rb"((?:.*/)?.*?)\..*", re.DOTALL)


def dali_index(index: MemberIndex) -> bytes:
    """Return the index of a plain tar as DALI's `wds2idx` writes it.

    Raises:
        Unsupported: DALI cannot read such a shard, or its index cannot hold a name.
    """
    if index.form is not Form.TAR:
        raise Unsupported("DALI reads plain tars only")
    samples = [list(parts) for _, parts in groupby(_dali_parts(index), key=lambda part: part[0])]
    if not samples:
        raise Unsupported("DALI refuses a shard without samples")
    lines = [b"v1.2 %d" % len(samples)]
    for parts in samples:
        for _, extension, _, _, name in parts:
            if not extension or _BLANK.search(name):
                raise Unsupported(f"DALI's index cannot hold the name {os.fsdecode(name)!r}")
        lines.append(b" ".join(b"%b %d %d %b" % part[1:] for part in parts))
    return b"\n".join([*lines, b""])


def _dali_parts(index: MemberIndex) -> Iterator[tuple[bytes, bytes, int, int, bytes]]:
    """Yield key, extension, offset, size and name of each component, split as `wds2idx` does."""
    for row, name in _files(index):
        # Without a dot this is -1, and `wds2idx` cuts the last byte off the key.
        dot = name.find(b".", name.rfind(b"/") + 1)
        key, extension = name[:dot], name[dot + 1 :]
        if key and not key.endswith(b"/"):
            yield key, extension, index.data_range(row).start, index.size(row), name


def wids_samples(index: MemberIndex) -> int:
    """Return how many samples wids finds in a tar.

    Raises:
        Unsupported: wids cannot read such a shard.
    """
    if index.form is Form.ZIP:
        raise Unsupported("webdataset reads no zips")
    keys = (_WIDS_NAME.fullmatch(name) for _, name in _files(index))
    return sum(1 for _ in groupby(match[1] for match in keys if match is not None))


def _files(index: MemberIndex) -> Iterator[tuple[int, bytes]]:
    """Yield row and name of the regular files, in the order of the tar."""
    names = index.names()
    rows = filter(index.plain, range(len(index)))
    for row in sorted(rows, key=lambda row: index.data_range(row).start):
        yield row, names[row]
