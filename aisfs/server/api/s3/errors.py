"""Errors of the S3 API: a code for each failure, as XML documents name it."""

from aisfs.server.failures import Failure, Headers

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


def no_upload() -> S3Error:
    """Return the error for an upload that was completed or aborted, or never begun."""
    return S3Error(404, "NoSuchUpload", "the upload does not exist; it may have ended")


def malformed(reason: str) -> S3Error:
    """Return the error for a document that cannot be understood."""
    return S3Error(400, "MalformedXML", f"malformed XML: {reason}")


def code_of(failure: Failure) -> str:
    """Return the code of a failure, which may be one of AIStore's."""
    if isinstance(failure, S3Error):
        return failure.code
    if failure.tcode in _TYPES and failure.status != 404:
        return failure.tcode
    return _OF_AISTORE.get(failure.tcode) or _OF_STATUS.get(failure.status, "InternalError")
