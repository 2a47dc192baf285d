"""The conditions of requests: `If-Match` and its kin, for what is read and what is written."""

from collections.abc import Callable
from email.utils import parsedate_to_datetime

from aisfs.server.api.object_headers import etag
from aisfs.server.api.s3.errors import S3Error, invalid, not_offered
from aisfs.server.failures import Headers
from aisfs.server.messages import Request
from aisfs.server.storage.bucket import Found

_ANY = "*"


def check_reading(request: Request, found: Found, headers: Headers, prefix: str = "") -> None:
    """Check the conditions of a GET or HEAD, or those with a prefix, of the source of a copy.

    Raises:
        Failure: 304, with these headers, or 412.
    """
    modified = found.mtime_ns // 10**9
    match, none_match, since, unchanged_since = (
        request.header(prefix + name)
        for name in ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")
    )
    if match:
        if not _matches(match, found):
            raise _failed("If-Match")
    elif unchanged_since and (at := _seconds(unchanged_since)) is not None and modified > at:
        raise _failed("If-Unmodified-Since")
    if none_match:
        unchanged = _matches(none_match, found)
    else:
        at = _seconds(since) if since else None
        unchanged = at is not None and modified <= at
    if unchanged and prefix:
        raise _failed("If-None-Match")
    if unchanged:
        raise S3Error(304, "NotModified", "not modified", headers=headers)


def check_writing(request: Request) -> Callable[[Found | None], None] | None:
    """Return what raises a Failure unless the present object may be replaced; None without conditions.

    Raises:
        Failure: the conditions are none that S3 has for writing.
    """
    match, none_match = request.header("If-Match"), request.header("If-None-Match")
    if none_match and none_match.strip() != _ANY:
        raise not_offered("If-None-Match with an ETag, for writing,")
    if match and none_match:
        raise invalid("If-Match and If-None-Match exclude each other")
    if not match and not none_match:
        return None

    def check(now: Found | None) -> None:
        if none_match and now is not None:
            raise _failed("If-None-Match")
        if match and now is None:
            raise S3Error(404, "NoSuchKey", "there is no object to match")
        if match and now is not None and not _matches(match, now):
            raise _failed("If-Match")

    return check


def _matches(asked: str, found: Found) -> bool:
    tags = [tag.strip().removeprefix("W/").strip('"') for tag in asked.split(",")]
    return _ANY in tags or etag(found).strip('"') in tags


def _seconds(text: str) -> int | None:
    try:
        return int(parsedate_to_datetime(text).timestamp())
    except (ValueError, OverflowError):
        return None  # a date that is none is ignored, as HTTP says


def _failed(condition: str) -> S3Error:
    return S3Error(412, "PreconditionFailed", f"the condition {condition} does not hold")
