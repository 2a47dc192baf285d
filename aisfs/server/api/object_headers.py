"""Headers of object requests and replies: attributes, custom metadata, ranges."""

import re

from aisfs.server.failures import Failure, Headers
from aisfs.server.messages import REPEATED, Request
from aisfs.server.storage.bucket import Found

_RANGE = re.compile(r"(\d*)-(\d*)")


def attributes(found: Found) -> Headers:
    """Give the headers that describe an object in GET and PUT replies."""
    record = found.record
    headers = [("Ais-Atime", str(found.atime_ns))]
    if record.checksum:
        headers.append(("Ais-Checksum-Type", record.checksum_type))
        headers.append(("Ais-Checksum-Value", record.checksum))
    if record.version:
        headers.append(("Ais-Version", record.version))
    headers += [("Ais-Custom-Md", f"{k}={v}") for k, v in record.custom.items()]
    return headers


def chunk_headers(count: int, largest: int) -> Headers:
    """Say in what parts an object was uploaded."""
    return [("Ais-Chunks-Count", str(count)), ("Ais-Chunks-Max-Chunk-Size", str(largest))]


def custom_pairs(request: Request) -> dict[str, str]:
    """Read the custom metadata of a PUT; one pair per header line."""
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
    """Read a Range header; returns offset and length.

    Raises:
        Failure: 416 in AIStore's wordings.
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
