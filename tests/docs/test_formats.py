"""docs/FORMATS.md: a reader that was written from that page, and knows nothing of aisfs."""

import hashlib
import struct
import zlib

import msgpack

from aisfs.core.index.member_index import MemberIndex
from tests.core.index.test_published import Case, cases
from tests.support.for_each import for_each


def read(data: bytes) -> dict:
    """Return what a published index says."""
    magic, layout, length = struct.unpack_from("<8sBI", data)
    assert (magic, layout) == (b"AISFSIDX", 1)
    assert hashlib.sha256(data[:-32]).digest() == data[-32:]
    header = msgpack.unpackb(data[13 : 13 + length], raw=True)
    shard, rules, ignore_zeros, nesting, form, rows, members, labels, encoding = header
    at = 13 + length
    found = read_members(data[at : at + members])
    assert (len(found["names"]), found["form"]) == (rows, form)
    at += members
    for rule, size in labels:
        found["labels"][rule.decode()] = read_labels(data[at : at + size])
        at += size
    assert at == len(data) - 32
    return found | {"shard": shard, "scan": (rules, ignore_zeros, nesting, encoding)}


def numbers(description: list, rows: int, planes: bytes) -> tuple[list[int], bytes]:
    first, base, scale, width = description
    count = rows if first is None else max(0, rows - 1)
    lanes = [
        sum(planes[plane * count + lane] << 8 * plane for plane in range(width))
        for lane in range(count)
    ]
    rest = planes[width * count :]
    if first is None:
        return [base + scale * lane for lane in lanes], rest
    values = [first] if rows else []
    for lane in lanes:
        values.append(values[-1] + scale * lane)
    return values, rest


def read_members(section: bytes) -> dict:
    magic, layout, crc, length, described = struct.unpack_from("<4sBIQI", section)
    assert (magic, layout, crc) == (b"AISX", 1, zlib.crc32(section[9:]))
    raw = zlib.decompress(section[21:])
    assert len(raw) == length
    (size, rows, warnings, skipped, widths, columns, unit, jumps, targets, contents, stops, form,
     packing) = msgpack.unpackb(raw[:described], raw=True, strict_map_key=False)  # fmt: skip
    planes = raw[described:]
    values = []
    for column in columns:
        some, planes = numbers(column, rows, planes)
        values.append(some)
    lengths, sizes, leads, times, flags = values
    names: list[bytes] = []
    for block, width in enumerate(widths):
        some = lengths[8192 * block : 8192 * (block + 1)]
        taken, planes = (
            planes[: width * len(some) or sum(some)],
            planes[width * len(some) or sum(some) :],
        )
        for at, length in enumerate(some):
            if width:
                names.append(taken[at :: len(some)][:length])
            else:
                names.append(taken[:length])
                taken = taken[length:]
    assert not planes
    offsets: list[int] = []
    for row in range(rows):
        before = -(-sizes[row - 1] // 512) * 512 if row else 0
        step = jumps[row] * unit if row in jumps else 512 * leads[row] + before
        offsets.append((offsets[-1] if row else 0) + step)
    return {
        "size": size, "warnings": warnings, "skipped": skipped, "names": names, "sizes": sizes,
        "leads": leads, "times": times, "flags": flags, "offsets": offsets, "targets": targets,
        "contents": contents, "stops": stops, "form": form, "packing": packing, "labels": {},
    }  # fmt: skip


def read_labels(section: bytes) -> dict[int, bytes]:
    length, described = struct.unpack_from("<II", section)
    raw = zlib.decompress(section[8:])
    assert len(raw) == length
    count, rows, ids, table = msgpack.unpackb(raw[:described], raw=True)
    where, planes = numbers(rows, count, raw[described:])
    which, planes = numbers(ids, count, planes)
    assert not planes
    return {row: table[at] for row, at in zip(where, which, strict=True)}


def said(case: Case) -> dict:
    """What the index of a case says, by its own columns."""
    index: MemberIndex = case.index
    columns, packing = index.columns, index.packing
    return {
        "size": index.object_size,
        "warnings": [text.encode() for text in index.warnings],
        "skipped": [[why.encode(), count] for why, count in index.skipped.items()],
        "names": index.names(),
        "sizes": list(columns.sizes),
        "leads": list(columns.leads),
        "times": list(columns.mtimes),
        "flags": list(columns.flags),
        "offsets": list(columns.offsets),
        "targets": columns.targets,
        "contents": columns.contents,
        "stops": columns.stored_stops,
        "form": index.form,
        "packing": list(packing.to_bytes()) if packing is not None else None,
        "labels": {name: column.by_row() for name, column in case.labels.items()},
        "shard": [case.info.size, case.info.checksum.encode(), b"7", b"b.tar"],
        "scan": (3, False, 8, b""),
    }


@for_each("name", cases())
def test_a_reader_made_from_the_page_reads_a_published_index(name):
    case = cases()[name]
    assert read(case.data) == said(case)
