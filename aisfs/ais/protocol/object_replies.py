"""What replies about one object say: its size and version, and whether bytes are those of it.

Nothing is believed for want of a word to the contrary: a length that is not there is not zero, and
bytes without a mark of their version are of no version. Pure, like `aisfs.ais.protocol.requests`.
"""

import re
from dataclasses import replace

from aisfs.ais.protocol.requests import (
    BucketFacts,
    Request,
    last_modified,
    mtime_of_version,
    with_custom,
)
from aisfs.core.checksums import hasher_of, is_known
from aisfs.errors import ProtocolError, Stale, Unavailable
from aisfs.http.exchange import Reply
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.redaction import shown

_MOST_TEXT = 150
"""Characters of what a header says that are passed on; checksums have up to 128."""


def lacks_size(reply: Reply, facts: BucketFacts) -> bool:
    """Return whether a HEAD leaves the size of the object open.

    Servers before 4.2 leave out the length of an empty object, and gateways that of any. So without
    a length, or with none beside the checksum of something, it takes the checksum of nothing.
    """
    if reply.headers.get("content-length", "0") != "0":
        return False
    kind, _, value = _checksum(reply, facts).partition(":")
    if is_known(kind):
        return value.lower() != hasher_of(kind).hexdigest()
    return "content-length" not in reply.headers


def with_size(reply: Reply, first: Reply, request: Request) -> Reply:
    """Complete a HEAD by the reply to a GET of the first byte.

    Raises:
        Unavailable: that is of another version.
        ProtocolError: it does not tell either.
        AisfsError: what else it says.
    """
    subject, total = request.subject, first.headers.get("content-length", "")
    if first.status == 206:
        total = str(_content_range(first, subject)[2])
    elif first.status == 416:
        total = first.headers.get("content-range", "bytes */0").removeprefix("bytes */")
        if total != "0":
            raise ProtocolError(f"{subject}: no first byte of {shown(total)[:_MOST_TEXT]!r} bytes")
    marks = [
        (head, get)
        for name in ("ais-version", "ais-checksum-value")
        if (head := reply.headers.get(name)) and (get := first.headers.get(name))
    ]
    if first.status != 416 and any(head != get for head, get in marks):
        raise Unavailable(f"{subject}: changed while its size was asked for")
    return replace(reply, headers={**reply.headers, "content-length": total})


def parse_object(reply: Reply, bucket: Bucket, key: str, facts: BucketFacts) -> ObjectInfo:
    """Read the reply to a HEAD of an object that does not lack its size."""
    size = _number(reply.headers.get("content-length", "0"), f"{bucket}/{key}")
    version, custom = reply.headers.get("ais-version", ""), reply.headers.get("ais-custom-md", "")
    if bucket.provider is Provider.AIS:
        mtime = mtime_of_version(facts, version)
    else:
        mtime = last_modified(custom)
    info = ObjectInfo(key, size, version, _checksum(reply, facts), mtime)
    return with_custom(info, custom) if custom else info


def parse_first_byte(reply: Reply, bucket: Bucket, key: str, facts: BucketFacts) -> ObjectInfo:
    """Read what the reply to a GET of the first byte says of the whole object.

    Raises:
        ProtocolError: it does not say how large that is.
    """
    subject, size = f"{bucket}/{key}", reply.headers.get("content-length", "")
    headers = dict(reply.headers)
    if reply.status == 206:
        size = str(_content_range(reply, subject)[2])
        if facts.checksum_of_ranges:
            headers.pop("ais-checksum-value", None)
    elif reply.status == 416:
        size = headers.get("content-range", "bytes */0").removeprefix("bytes */")
    return parse_object(
        replace(reply, headers={**headers, "content-length": size}), bucket, key, facts
    )


def check_content(
    reply: Reply, bucket: Bucket, expected: ObjectInfo, facts: BucketFacts, start: int, stop: int
) -> None:
    """Make sure that the body to come is the bytes `[start, stop)` of exactly `expected`.

    Raises:
        Stale: it is another version.
        ProtocolError: it is another range.
        Unavailable: nothing says that it is this version.
    """
    subject = f"{bucket}/{expected.key}"
    length = reply.headers.get("content-length")
    whole = (start, stop) == (0, expected.size)
    # Something between us and the cluster may compress what it lets through.
    if (coding := reply.headers.get("content-encoding", "identity")) != "identity":
        raise ProtocolError(f"{subject}: the bytes came as {shown(coding)[:_MOST_TEXT]!r}")
    if reply.status == 206:
        first, last, size = _content_range(reply, subject)
        if length is not None and _number(length, subject) != last + 1 - first:
            raise ProtocolError(f"{subject}: {length} bytes came for bytes {first}-{last}")
    elif whole:
        # Without a length the body is counted as it comes.
        size = expected.size if length is None else _number(length, subject)
        first, last = start, stop - 1
    else:
        raise ProtocolError(f"{subject}: the whole object came instead of a part of it")
    checksum = _checksum(reply, facts)
    if facts.checksum_of_ranges and reply.status == 206:
        checksum = ""
    if checksum and checksum.partition(":")[2] == expected.checksum.partition(":")[2]:
        # Objects older than a change of the bucket's type keep theirs; listings cannot tell.
        checksum = expected.checksum
    version = reply.headers.get("ais-version", "")
    found = ObjectInfo(expected.key, size, version, checksum)
    if not expected.same_content(found):
        raise Stale(
            f"{subject}: changed on the server (was {_brief(expected)}, is {_brief(found)})"
        )
    by_version = expected.version and version
    by_checksum = expected.checksum and (checksum or reply.headers.get("ais-checksum-value"))
    if (expected.version or expected.checksum) and not (by_version or by_checksum):
        raise Unavailable(f"{subject}: the reply does not say which version its bytes are of")
    if (first, last) != (start, stop - 1):
        raise ProtocolError(f"{subject}: bytes {first}-{last} came instead of {start}-{stop - 1}")


# Nothing is larger than 2**62 bytes, and numbers of thousands of digits are no numbers to Python.
_NUMBER = re.compile(r"[0-9]{1,18}")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


def _content_range(reply: Reply, subject: str) -> tuple[int, int, int]:
    text = reply.headers.get("content-range", "")
    match = _CONTENT_RANGE.fullmatch(text)
    if not match:
        raise ProtocolError(f"{subject}: Content-Range is {shown(text)[:_MOST_TEXT]!r}")
    first, last, size = match.groups()
    return int(first), int(last), int(size)


def _checksum(reply: Reply, facts: BucketFacts) -> str:
    value = reply.headers.get("ais-checksum-value", "")
    kind = reply.headers.get("ais-checksum-type", "") or facts.checksum_type
    return f"{kind}:{value}" if value and kind and kind != "none" else ""


def _number(text: str, subject: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ProtocolError(f"{subject}: a length of {shown(text)[:_MOST_TEXT]!r} bytes")
    return int(text)


def _brief(info: ObjectInfo) -> str:
    known = f"{info.size} bytes, version {shown(info.version)[:_MOST_TEXT] or 'unknown'}"
    return f"{known}, {shown(info.checksum)[:_MOST_TEXT]}" if info.checksum else known
