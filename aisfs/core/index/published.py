"""The published index of a shard: bytes that spare other machines its scan.

    magic, layout version, length of the header
    header (msgpack): which shard, how it was scanned, lengths of the sections
    the members, as `codec` writes them
    for each rule of labels: its column
    SHA-256 of all of it

docs/FORMATS.md describes every byte. Invariants:
- decoding returns what `encode_published` was given, or raises `IndexRefused` and no other error;
- an index is input, not truth: what is returned passed `plausible`, so a scan could have found it;
- memory taken stays in proportion to the bytes given and the size of the shard;
- equal input gives equal bytes (with the same zlib).
"""

import os
import re
import struct
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from operator import lt
from typing import Annotated

import msgspec

from aisfs.core.archive.formats import Form
from aisfs.core.index.codec import DamagedIndex, Limits, decode, encode, inflated
from aisfs.core.index.columns import KIND_BITS
from aisfs.core.index.integer_codec import (
    TURN,
    Numbers,
    Planes,
    array_in_turns,
    progression,
    read_numbers,
    turns,
    write_numbers,
)
from aisfs.core.index.label_column import CONTENT_MAX, LabelColumn
from aisfs.core.index.member_index import MAX_ROWS, MemberIndex, MemberKind
from aisfs.core.index.nested_tars import MAX_NESTING, NestedTars
from aisfs.core.index.plausible import Implausible, check_content, check_count, check_index
from aisfs.errors import IndexOutdated, IndexRefused
from aisfs.model import ObjectInfo

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
            "it is of another version of the shard, or nothing tells versions apart"
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
) -> bytes:
    """Return the published form of an index.

    Raises:
        ValueError: it cannot be published, for a reason that `decode_published` would refuse it for.
    """
    named = sorted((_raw(rule), column) for rule, column in labels.items())
    members = encode(index, level=_LEVEL)
    columns = [_encode_labels(column) for _, column in named]
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
) -> PublishedIndex:
    """Return what a published index says of exactly this version of a shard.

    Args:
        data: Its bytes, which are not trusted.
        shard: The shard as it is now.
        scan: The options to which the index must correspond; None to take any.
        renewable: See `IndexPlace`.

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
        labels: dict[str, LabelColumn] = {}
        for rule, length in header.labels:
            left = _LABELS_A_ROW * len(index) - sum(len(one.rows) for one in labels.values())
            column = _decode_labels(sections.take(length), index, left)
            labels[rule.decode(errors=_SURROGATES)] = column
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
        raise DamagedIndex("its checksum does not hold")
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
    check_index(index)
    return index


# Labels ----------------------------------------------------------------------------------------


class _Labels(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Everything of a column of labels but the planes."""

    count: _Rows
    rows: Numbers
    ids: Numbers
    table: list[bytes]


_decode_label_header = msgspec.msgpack.Decoder(_Labels).decode


def _encode_labels(column: LabelColumn) -> bytes:
    # As 64-bit numbers, of which it is tried whether their differences take less.
    rows, row_planes = write_numbers(array_in_turns("q", turns(column.rows)))
    ids, id_planes = write_numbers(column.ids)
    header = msgspec.msgpack.encode(_Labels(len(column.rows), rows, ids, column.table))
    raw = b"".join((header, row_planes, id_planes))
    return _LENGTHS.pack(len(raw), len(header)) + zlib.compress(raw, _LEVEL)


def _decode_labels(data: memoryview, index: MemberIndex, left: int) -> LabelColumn:
    """Return a column, of `left` labels at most, that a scan of these members could have found."""
    if len(data) < _LENGTHS.size:
        raise DamagedIndex("the labels end too soon")
    length, header_length = _LENGTHS.unpack_from(data)
    most = _ROOM + min(_MOST_DEFLATED * len(data), _INFLATED_A_ROW * len(index))
    described = _ROOM + _MOST_DESCRIBED * len(data)
    if not 0 < header_length <= min(length, described) or length > most:
        raise DamagedIndex(f"labels cannot inflate to {length} bytes")
    parts = Planes(inflated(data[_LENGTHS.size :], length))
    header = _decode_label_header(parts.take(header_length))
    if header.count > min(len(index), left):
        raise DamagedIndex("there are more labels than members")
    rows = _read_rows(header, parts)
    ids = read_numbers(header.ids, header.count, "I", parts)
    table = header.table
    if parts.left or len(set(table)) != len(table) or list(map(bytes.strip, table)) != table:
        raise DamagedIndex("the labels make no sense")
    if max(map(len, table), default=0) > CONTENT_MAX:
        raise DamagedIndex("the labels make no sense")
    if list(dict.fromkeys(ids)) != list(range(len(table))):
        raise DamagedIndex("the labels are not in the order of the members")
    _check_labelled(rows, index)
    return LabelColumn(rows, ids, table)


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


def _check_labelled(rows: "array[int]", index: MemberIndex) -> None:
    """Check that labels are those of members that can have one, in their order."""
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
