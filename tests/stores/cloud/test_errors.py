"""What obstore's errors mean, from texts as it gives them."""

import pytest
from obstore import exceptions as obs

from aisfs.errors import (
    AccessDenied,
    AisfsError,
    BucketNotFound,
    ConfigError,
    IsADirectory,
    NotFound,
    ProtocolError,
    Stale,
    Unavailable,
    Unsupported,
)
from aisfs.stores.cloud_client import cloud_errors, error_of
from tests.support.for_each import for_each

GET = "Generic S3 error: Error performing GET https://h/b/k?sig=SECRET&x=1 in 2ms - "
CONNECT = """

Debug source:
kind: Connect,
ConnectError("tcp connect error", Os { code: 111, kind: ConnectionRefused, message: "Connection refused" })
"""
DEBUG = "\n\nDebug source:\nGeneric { headers: SECRET }"


def reply(status: int, code: str = "", message: str = "") -> str:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>" if code else ""
    return f"{GET}Server returned non-2xx status code: {status} X: {body}{DEBUG}"


@for_each(
    "error, kind, text",
    [
        (obs.GenericError(reply(503, "SlowDown", "Please reduce")), Unavailable, "HTTP 503 SlowDown: Please reduce"),
        (obs.GenericError(reply(429)), Unavailable, "HTTP 429"),
        (obs.GenericError(reply(500)), Unavailable, "HTTP 500"),
        (obs.GenericError(reply(501, "NotImplemented", "A header")), Unsupported, "NotImplemented: A header"),
        (obs.GenericError(reply(409, "OperationAborted", "conflict")), Unavailable, "OperationAborted"),
        (obs.AlreadyExistsError(reply(409, "PendingCopyOperation", "x")), Unavailable, "PendingCopy"),
        (obs.GenericError(reply(404, "NoSuchBucket", "none")), BucketNotFound, "NoSuchBucket"),
        (FileNotFoundError(reply(404, "ContainerNotFound", "none")), BucketNotFound, "Container"),
        (FileNotFoundError(reply(404, "NoSuchKey", "none")), NotFound, "NoSuchKey"),
        (obs.GenericError(reply(416, "InvalidRange", "r")), Stale, "InvalidRange"),
        (obs.PreconditionError(reply(412)), Stale, "HTTP 412"),
        (obs.PermissionDeniedError(reply(403, "AccessDenied", "no")), AccessDenied, "AccessDenied"),
        (obs.UnauthenticatedError(reply(401)), AccessDenied, "HTTP 401"),
        (obs.GenericError(reply(400, "InvalidRequest", "odd")), ProtocolError, "InvalidRequest: odd"),
        (obs.GenericError(reply(307)), Unsupported, "--endpoint and ais://BUCKET"),
        (obs.GenericError(reply(500, "ErrLmetaNotFound", "ais://b/d")), NotFound, "ErrLmetaNotFound"),
        (obs.GenericError(reply(400, "ErrNotFound", "no source")), NotFound, "ErrNotFound"),
        (obs.GenericError(reply(400, "ErrMv", "a directory")), IsADirectory, "ErrMv"),
        (obs.GenericError(reply(301, "PermanentRedirect", "x")), Unsupported, "set AWS_REGION"),
        (FileNotFoundError(reply(404, "NoSuchKey", "none").replace("SECRET", "InvalidContentType") + "https://h/InvalidContentType"), NotFound, "NoSuchKey"),
        (obs.GenericError(GET + "error sending\n\nDebug source:\nurl: https://h/InvalidContentType"), Unavailable, "error sending"),
        (obs.GenericError(f"{GET.replace('//h', '//me:SECRET@h')}HTTP error: sending{CONNECT}"), Unavailable, "no connection to https://h: "),
        (obs.GenericError(GET.replace("//h", "//me:SECRET@h") + "HTTP error: odd"), Unavailable, "https://h/b/k"),
        (obs.GenericError(GET + "HTTP error: error sending request"), Unavailable, "error sending"),
        (obs.GenericError(f"{GET}HTTP error: error sending request{CONNECT}"), Unavailable, "no connection to https://h: Connection refused"),
        (obs.GenericError(f"{GET}HTTP error: error sending request\n\nDebug source:\nCustom(InvalidContentType)"), ConfigError, "use http://"),
        *(
            (obs.GenericError(reply(400).replace(DEBUG, body + DEBUG)), ConfigError, "use https://")
            for body in (
                "<center>The plain HTTP request was sent to HTTPS port</center>",
                "Client sent an HTTP request to an HTTPS server.",
                "You're speaking plain HTTP to an SSL-enabled server port.",
            )
        ),
        (obs.InvalidPathError('Path "a//b" contained empty path segment'), ProtocolError, "a//b"),
        *(
            (obs.GenericError(reply(503, "SlowDown", "x").replace("/b/k", f"/b/{key}")), Unavailable, "SlowDown")
            for key in ("db/metadata/v1.json", "credentials.json", "NoSuchBucket", "PermanentRedirect")
        ),
        (
            obs.GenericError("Error performing PUT http://169.254.169.254/latest/api/token in 1s - HTTP error"),
            AccessDenied,
            "169.254",
        ),
    ],
)  # fmt: skip
def test_errors(error: Exception, kind: type[AisfsError], text: str):
    found = error_of("s3+direct://b/k", error)
    assert type(found) is kind
    assert str(found).startswith("s3+direct://b/k: ")
    assert text in str(found)
    assert "SECRET" not in str(found)
    assert "\n" not in str(found)


def test_no_cause_is_kept():
    """The text of the cause, which a traceback would show, may have a signature."""
    with pytest.raises(Unavailable) as caught, cloud_errors("k"):
        raise obs.GenericError(reply(503))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@for_each("name", ["PanicException", "RustPanic"])
def test_a_panic_is_no_text_for_users(name):
    panic = type(name, (BaseException,), {})
    with (
        pytest.raises(
            ProtocolError, match=r"s3://b/k: .* check the variables of the cloud"
        ) as caught,
        cloud_errors("s3://b/k"),
    ):
        raise panic("called `Result::unwrap()` on an `Err` value")
    assert "unwrap" not in str(caught.value)
