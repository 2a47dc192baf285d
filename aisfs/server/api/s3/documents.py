"""XML documents of the S3 API, and its errors: a code for each failure."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Union

from aisfs.server.failures import Failure, Headers
from aisfs.server.messages import Reply, Request

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
Element = tuple[str, Union[str, int, bool, "Sequence[Element]"]]
"""A name, and text or further elements."""

_ESCAPED = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&#34;",
    "\t": "&#x9;",
    "\n": "&#xA;",
    "\r": "&#xD;",
}
_SPECIAL = re.compile(r'[&<>"\x00-\x1f\ud800-\udfff\ufffe\uffff]')


_OF_AISTORE = {
    "ErrNotFound": "NoSuchKey",
    "ErrBckNotFound": "NoSuchBucket",
    "ErrBucketAlreadyExists": "BucketAlreadyOwnedByYou",
    "ErrRangeNotSatisfiable": "InvalidRange",
    "ErrUnsupp": "NotImplemented",
    "ErrBadCksum": "BadDigest",
}
"""The codes for errors that AIStore gives a type."""
_TYPES = ("ErrLmetaNotFound", "ErrMv", "ErrNotFound")
"""Types that are the code of an error which is not 404."""
_OF_STATUS = {
    304: "NotModified",
    400: "InvalidRequest",
    401: "AccessDenied",
    403: "AccessDenied",
    404: "NoSuchKey",
    405: "MethodNotAllowed",
    416: "InvalidRange",
    501: "NotImplemented",
    503: "SlowDown",
}
"""The codes for all others."""


class S3Error(Failure):
    """A failure with a code of S3."""

    def __init__(
        self, status: int, code: str, message: str, *, headers: Headers | None = None
    ) -> None:
        super().__init__(status, message, headers=headers)
        self.code = code


def invalid(message: str) -> S3Error:
    """Return the error for a value that has no meaning."""
    return S3Error(400, "InvalidArgument", message)


def not_offered(what: str) -> S3Error:
    """Return the error for what this server does not do."""
    return S3Error(501, "NotImplemented", f"{what} is not offered by this server")


def code_of(failure: Failure) -> str:
    """Return the code of a failure, which may be one of AIStore's."""
    if isinstance(failure, S3Error):
        return failure.code
    if failure.tcode in _TYPES and failure.status != 404:
        return failure.tcode
    return _OF_AISTORE.get(failure.tcode) or _OF_STATUS.get(failure.status, "InternalError")


def render(name: str, content: Sequence[Element], namespace: str = NAMESPACE) -> bytes:
    """Return a document; characters that XML cannot have become U+FFFD, as in Go."""
    parts = ['<?xml version="1.0" encoding="UTF-8"?>\n', f"<{name}"]
    parts.append(f' xmlns="{namespace}">' if namespace else ">")
    _append(parts, content)
    parts.append(f"</{name}>")
    return "".join(parts).encode()


def xml_reply(name: str, content: Sequence[Element]) -> Reply:
    """Return a reply with a document."""
    return Reply(headers=[("Content-Type", "application/xml")], body=render(name, content))


def time_text(time_ns: int) -> str:
    """Return a time as S3's documents have it."""
    moment = datetime.fromtimestamp(time_ns // 10**9, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns // 10**6 % 1000:03d}Z"


def error_document(failure: Failure, request: Request, node_id: str) -> Reply:
    """Return the reply for a failure; one to a HEAD, or with status 304, has no body."""
    if failure.status == 304 or request.method == "HEAD":
        return Reply(failure.status, failure.headers)
    message = failure.message.replace("{node}", node_id)
    found: list[Element] = [
        ("Code", code_of(failure)),
        ("Message", message),
        ("Resource", request.path),
    ]
    headers = [*failure.headers, ("Content-Type", "application/xml")]
    return Reply(failure.status, headers, render("Error", found, namespace=""))


def _append(parts: list[str], content: Sequence[Element]) -> None:
    for name, value in content:
        if isinstance(value, str | int):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            parts.append(f"<{name}>{_SPECIAL.sub(_escape, text)}</{name}>")
        else:
            parts.append(f"<{name}>")
            _append(parts, value)
            parts.append(f"</{name}>")


def _escape(found: re.Match[str]) -> str:
    return _ESCAPED.get(found[0], "\ufffd")
