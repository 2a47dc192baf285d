"""Which version of a file a reply is about, and whether it is what was asked for.

A version is what tells contents apart, as the server sent it: a strong ETag, with its quotes, or the
date of the last change. A weak ETag says only that two contents are alike. A file without any of
these has no version.

Must not know: connections, requests.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from aisfs.errors import ProtocolError, Stale, Unsupported
from aisfs.http.exchange import Reply
from aisfs.model import ObjectInfo
from aisfs.redaction import shown

_ETAG = re.compile(r'"[\x21\x23-\x7e\x80-\xff]*"')
_LENGTH = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_MOST_TEXT = 100
"""Characters of a header that are passed on."""


def described(subject: str, key: str, reply: Reply) -> ObjectInfo:
    """Return what the reply to a HEAD, or to a GET of the first byte, says of a file.

    Raises:
        Unsupported: it does not say how long the file is, or the server compresses it on its way.
    """
    size = total_of(subject, reply) if reply.status == 206 else length_of(subject, reply)
    check_plain(subject, reply, stored=size is not None)
    if size is None:
        raise Unsupported(f"{subject}: the server does not say how long it is")
    headers = reply.headers
    return ObjectInfo(key, size, version_of(headers), mtime_ns=_mtime_ns(headers))


def version_of(headers: Mapping[str, str]) -> str:
    """Return the version that a reply is about; empty if it does not say."""
    etag = headers.get("etag", "")
    if _ETAG.fullmatch(etag):
        return etag
    date = headers.get("last-modified", "")
    return date if _date(date) is not None else ""


def conditions(expected: ObjectInfo) -> dict[str, str]:
    """Return the headers with which a server refuses to send another version."""
    if not expected.version:
        return {}
    name = "If-Match" if expected.version.startswith('"') else "If-Unmodified-Since"
    return {name: expected.version}


def check_version(subject: str, expected: ObjectInfo, reply: Reply) -> None:
    """Make sure that a reply is about the version `expected`.

    Raises:
        Stale: it is about another one.
        ProtocolError: it does not say.
    """
    if not expected.version:
        return
    name = "etag" if expected.version.startswith('"') else "last-modified"
    found = reply.headers.get(name, "")
    if not found:
        raise ProtocolError(f"{subject}: the server does not say of which version it sends bytes")
    if found != expected.version:
        version = shown(found)[:_MOST_TEXT]
        raise Stale(f"{subject}: the file changed: its {name} is {version!r} now")


def check_range(subject: str, expected: ObjectInfo, start: int, stop: int, reply: Reply) -> None:
    """Make sure that a reply with status 206 has exactly the bytes that were asked for.

    Raises:
        Stale: the file has another size now.
        ProtocolError: it has other bytes.
    """
    total, length = total_of(subject, reply), length_of(subject, reply)
    check_plain(subject, reply, stored=(total, length) == (expected.size, stop - start))
    if total is not None and total != expected.size:
        raise Stale(f"{subject}: {total} bytes long now, no longer {expected.size}")
    said = reply.headers.get("content-range", "")
    found = _RANGE.fullmatch(said)
    if found is None or (int(found[1]), int(found[2])) != (start, stop - 1):
        wanted = f"bytes {start}-{stop - 1}"
        raise ProtocolError(
            f"{subject}: the server sends {shown(said)[:_MOST_TEXT]!r} for {wanted}"
        )
    if length is not None and length != stop - start:
        raise ProtocolError(f"{subject}: the server sends {length} bytes for {stop - start}")


def check_whole(subject: str, expected: ObjectInfo, reply: Reply) -> None:
    """Make sure that a reply with status 200 has all bytes of the version `expected`.

    Raises:
        Stale: it has those of another version.
        ProtocolError: it has something else.
    """
    length = length_of(subject, reply)
    check_plain(subject, reply, stored=length == expected.size)
    check_version(subject, expected, reply)
    if length is not None and length != expected.size:
        raise Stale(f"{subject}: {length} bytes long now, no longer {expected.size}")


def check_plain(subject: str, reply: Reply, *, stored: bool) -> None:
    """Refuse a body that is not the file itself.

    Args:
        subject: The start of messages.
        reply: The reply.
        stored: Whether its length is that of the file. Then a `Content-Encoding` says how the file is
            stored (Apache's AddEncoding, uploads of s3cmd): its bytes are the file's, as curl saves them.

    Raises:
        Unsupported: it is compressed on its way.
    """
    coding = reply.headers.get("content-encoding", "identity").strip().lower()
    transfer = reply.headers.get("transfer-encoding", "").strip().lower()
    stored = stored and not transfer  # the length of chunks is another one
    for said, is_plain in (
        (coding, stored or coding in ("", "identity")),
        (transfer, transfer in ("", "chunked", "identity")),
    ):
        if not is_plain:
            raise Unsupported(
                f"{subject}: the server compresses what it sends ({shown(said)[:_MOST_TEXT]}),"
                " though it was asked not to: its bytes cannot be told from the file's"
            )


def length_of(subject: str, reply: Reply) -> int | None:
    """Return how long a reply says that its body is; None if it does not say.

    Raises:
        ProtocolError: that makes no sense.
    """
    said = reply.headers.get("content-length")
    if said is None:
        return None
    if _LENGTH.fullmatch(said) is None:
        raise ProtocolError(f"{subject}: a length of {shown(said)[:_MOST_TEXT]!r}")
    return int(said)


def total_of(subject: str, reply: Reply) -> int | None:
    """Return how long the file is of which a reply has a range; None if it does not say.

    Raises:
        ProtocolError: there is no range.
    """
    said = reply.headers.get("content-range", "")
    found = _RANGE.fullmatch(said)
    if found is None:
        raise ProtocolError(
            f"{subject}: the server sends a part of it, but not which: {shown(said)[:_MOST_TEXT]!r}"
        )
    return None if found[3] == "*" else int(found[3])


def _mtime_ns(headers: Mapping[str, str]) -> int:
    date = _date(headers.get("last-modified", ""))
    return 0 if date is None else max(0, int(date.timestamp())) * 1_000_000_000


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
        return date if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, TypeError, OverflowError):
        return None
