"""Headers of object requests and replies: attributes, custom metadata, ranges."""

import re
from email.utils import formatdate

from aisfs.server.failures import Failure, Headers
from aisfs.server.messages import REPEATED, Request, base36
from aisfs.server.storage.bucket import Found
from aisfs.server.storage.records import Record

_RANGE = re.compile(r"(\d*)-(\d*)")


def attributes(found: Found) -> Headers:
    """Return the headers that describe an object in GET and PUT replies."""
    record = found.record
    headers = [("Ais-Atime", str(found.atime_ns)), *_checksum(record)]
    if record.version:
        headers.append(("Ais-Version", record.version))
    return headers + _custom(record)


def by_property(found: Found, location: str) -> dict[str, Headers]:
    """Return the headers of each property that a HEAD can ask for."""
    record = found.record
    count, largest = record.chunks or (0, 0)
    chunks = [("Ais-Chunks-Count", str(count)), ("Ais-Chunks-Max-Chunk-Size", str(largest))]
    return {
        "name": [],
        "size": [],
        "ec": [],
        "checksum": _checksum(record),
        "atime": [("Ais-Atime", str(found.atime_ns))],
        "version": [("Ais-Version", record.version)] if record.version else [],
        "custom": _custom(record),
        "last-modified": [("Last-Modified", http_date(found.mtime_ns))],
        "etag": [("Etag", etag(found))],
        "copies": [("Ais-Mirror-Copies", "1"), ("Ais-Mirror-Paths", "/")],
        "location": [("Ais-Location", location)],
        "chunked": chunks if count else [],
    }


def _checksum(record: Record) -> Headers:
    pairs = [("Ais-Checksum-Type", record.checksum_type), ("Ais-Checksum-Value", record.checksum)]
    return pairs if record.checksum else []


def _custom(record: Record) -> Headers:
    return [("Ais-Custom-Md", f"{k}={v}") for k, v in record.custom.items()]


def http_date(time_ns: int) -> str:
    """Return a time as HTTP's headers have it."""
    return formatdate(time_ns // 10**9, usegmt=True)


def etag(found: Found) -> str:
    """Return the ETag of an object, with its quotes."""
    record = found.record
    if record.checksum_type == "md5":
        return f'"{record.checksum}"'
    return f'"v1-{record.checksum or record.version}-{base36(found.mtime_ns)}"'


def custom_pairs(request: Request) -> dict[str, str]:
    """Return the custom metadata of a PUT, which has one pair per header line."""
    raw = request.header("Ais-Custom-Md")
    pairs = {}
    for line in raw.split(REPEATED) if raw else []:
        name, equals, value = (
            line.encode("latin-1").decode("utf-8", "surrogateescape").partition("=")
        )
        if not equals:
            text = f'custom metadata: invalid format "{line}" (expecting key=value)'
            raise Failure(400, text)
        pairs[name.strip()] = value.strip()
    return pairs


def parse_range(asked: str, size: int, uri: str) -> tuple[int, int]:
    """Return the offset and length that a Range header asks for.

    Raises:
        Failure: 416, worded as AIStore does.
    """
    if not asked.startswith("bytes="):
        raise Failure(416, f'read range "{asked}" is invalid (prefix)')
    spec = asked.removeprefix("bytes=").strip()
    if "," in spec:
        raise Failure(416, f"cannot multi-range read {uri} - operation not supported", "ErrUnsupp")
    match = _RANGE.fullmatch(spec)
    if not match or not (match[1] or match[2]):
        raise Failure(416, f'read range "{asked}" is invalid (-)')
    if not match[1]:
        length = min(int(match[2]), size)
        return size - length, length
    start = int(match[1])
    if match[2] and int(match[2]) < start:
        raise Failure(416, f'read range "{spec}" is invalid (end)')
    if start >= size:
        text = f"size={size}: not satisfiable range [{spec}]"
        headers = [("Content-Range", f"bytes */{size}")]
        raise Failure(416, text, "ErrRangeNotSatisfiable", headers=headers)
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    return start, last - start + 1
