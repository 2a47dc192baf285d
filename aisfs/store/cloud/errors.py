"""obstore's errors, as `aisfs.errors`.

obstore has few kinds of them; the status and the code that the cloud gave stand in the text only. What
a user sees is made of these, and never has the query of a URL, where a signature may be.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore import exceptions as obs

from aisfs.errors import (
    AccessDenied,
    AisfsError,
    AlreadyExists,
    Archived,
    BucketNotFound,
    ConfigError,
    InvalidName,
    IsADirectory,
    NotFound,
    OutOfSpace,
    ProtocolError,
    Stale,
    Unavailable,
    Unsupported,
)
from aisfs.http.exchange import PROXY_PASSWORD, through_proxy
from aisfs.redaction import shown

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]*)")
_QUERY = re.compile(r"(https?://[^\s?)]+)\?[^\s)]*")
_URL = re.compile(r"https?://\S+")
_METADATA = "//169.254."
"""Where machines in a cloud ask for credentials."""
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
"""Stands nowhere else than in `_DEBUG`."""
_NO_TLS = "InvalidContentType"
"""Stands there, and not in a URL, if a server that is spoken to with TLS answers without."""
_WANTS_TLS = re.compile(r"plain HTTP|HTTP request to an HTTPS server")
"""What nginx, Apache and Go answer to a request without TLS."""
_CONNECTING = "kind: Connect,"
"""Stands there if no connection was made."""
_WANTS_PASSWORD = "ProxyAuthRequired"
_CAUSE = re.compile(r'(?:message|error): "([^"\\]+)"')
"""Why, as the system says it."""
_HOST = re.compile(r"(https?://)(?:[^\s/?@]*@)?([^\s/?]+)")
"""Without the name and password that an endpoint may have."""
_DEBUG = "\n\nDebug source"
"""What follows repeats it all, with more of the request."""
_SHOWN = 300
"""Characters of a text that has no code: the reason is at its beginning."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "no bucket named", "ContainerBeingDeleted")
_CREDENTIALS = ("credential", "token request", "metadata", "Received None from session")
"""Words of errors that asking for credentials gave, and not the cloud."""
_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "redirect without LOCATION")
_ARCHIVED = ("InvalidObjectState", "BlobArchived", "BlobBeingRehydrated")
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_CONFLICTS = ("OperationAborted", "ConditionalRequestConflict", "PendingCopyOperation")
"""Of two writers at once, one of which is to try again."""
_REDIRECTS = (307, 308)
"""Of a request with a body, which obstore does not send twice."""
_OF_AISTORE: dict[str, type[AisfsError]] = {
    "ErrLmetaNotFound": NotFound,
    "ErrNotFound": NotFound,
    "ErrMv": IsADirectory,
}
"""Codes of AIStore's `/s3` that mean something else than their status: 400, or 500 where it keeps a
directory of that name."""

_NO_UPLOAD = "NoSuchUpload"
"""Of an upload in parts that is over: it was completed, and the answer was lost. So it is sent anew."""

PANIC = "obstore, which aisfs asks clouds with, failed in itself: check the variables of the cloud"
_NO_ANSWER = "Unable to extract metadata from headers"
"""Of an answer without what each answer of a cloud has, such as an ETag: something else gave it."""


@contextmanager
def cloud_errors(subject: str) -> Iterator[None]:
    """Turn obstore's errors into ours. Nothing of ours is called in the block."""
    try:
        yield
    except AisfsError:
        raise
    except (obs.BaseError, OSError, ValueError, NotImplementedError) as error:
        raise error_of(subject, error) from None  # its text may have a signature
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ProtocolError(f"{subject}: {PANIC}") from None


def is_panic(error: BaseException) -> bool:
    """Return whether obstore met a bug of its own; these classes of pyo3 cannot be imported."""
    return type(error).__name__ in ("PanicException", "RustPanic")


def error_of(subject: str, error: Exception) -> AisfsError:
    """Return an error of obstore as one of ours."""
    text, _, debug = str(error).partition(_DEBUG)
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    code = found[1] if (found := _CODE.search(text)) else ""
    # The URL has the key, which may have any of the words that tell errors apart.
    words, debug = _URL.sub("", text), _URL.sub("", debug)
    if not status and (found := _CERTIFICATE.search(debug)):
        why = f"the certificate is not trusted ({found[1]}): name its CA in AIS_CLIENT_CA"
        return ConfigError(f"{subject}: {why}")
    if not status and _NO_TLS in debug:
        return ConfigError(f"{subject}: the server does not speak TLS: use http:// in the endpoint")
    if status == 400 and _WANTS_TLS.search(words):
        return ConfigError(f"{subject}: the server speaks TLS: use https:// in the endpoint")
    if code in _ARCHIVED:
        return Archived(
            f"{subject}: archived in the cloud: restore it first (HTTP {status} {code})"
        )
    kind = AccessDenied if _METADATA in text else _kind(error, words, status, code)
    if status == 407 or (kind is Unavailable and _CONNECTING in debug):
        found_url = _HOST.search(text)
        place = "".join(found_url.groups()) if found_url else ""
        cause = _CAUSE.search(debug)
        through = through_proxy(place) if place else ""
        if status == 407 or _WANTS_PASSWORD in debug:
            proxy = through.removeprefix(" through ") or "the proxy"
            return AccessDenied(f"{subject}: {proxy} {PROXY_PASSWORD}")
        if cause or through:
            why = shown(cause[1]) if cause else "it makes no tunnel"
            return Unavailable(
                f"{subject}: no connection to {place or 'the cloud'}{through}: {why}"
            )
    if kind is Archived:
        return Archived(
            f"{subject}: archived in the cloud: restore it first (HTTP {status} {code})"
        )
    return kind(f"{subject}: {_reason(text, words, status, code)}")


def error_of_status(subject: str, status: int, code: str) -> AisfsError:
    """Return an error that boto3 has told of."""
    if code in _NO_BUCKET:
        return BucketNotFound(f"{subject}: {code}")
    return _kind_of_status(code, status, code)(f"{subject}: HTTP {status} {code}")


def _kind(error: Exception, text: str, status: int, code: str) -> type[AisfsError]:
    if code == _NO_UPLOAD or code in _CONFLICTS or _NO_ANSWER in text:
        return Unavailable
    if any(word in text for word in _NO_BUCKET):
        return BucketNotFound
    if isinstance(error, obs.PreconditionError):
        return Stale
    if isinstance(error, obs.AlreadyExistsError):
        return AlreadyExists
    if isinstance(error, obs.PermissionDeniedError | obs.UnauthenticatedError):
        return AccessDenied
    if isinstance(error, obs.InvalidPathError):
        return ProtocolError
    if isinstance(error, obs.NotSupportedError | NotImplementedError):
        return Unsupported
    if isinstance(error, FileNotFoundError | obs.NotFoundError):
        return NotFound
    if isinstance(error, ValueError):
        return InvalidName if "path" in text else ProtocolError
    return _kind_of_status(text, status, code)


def _kind_of_status(text: str, status: int, code: str) -> type[AisfsError]:
    if any(word in text for word in _CREDENTIALS):
        return AccessDenied
    if any(word in text for word in _REGION):
        return Unsupported
    if code in _OF_AISTORE:
        return _OF_AISTORE[code]
    if status in _REDIRECTS:
        return Unsupported
    if not status or status in _PASSING or code in _CONFLICTS:
        return Unavailable
    kinds: dict[int, type[AisfsError]] = {
        401: AccessDenied,
        403: AccessDenied,
        404: NotFound,
        412: Stale,
        416: Stale,  # the object is shorter than it was
        501: Unsupported,
        507: OutOfSpace,
    }
    return kinds.get(status, Unavailable if status > 500 else ProtocolError)


def _reason(text: str, words: str, status: int, code: str) -> str:
    if any(word in words for word in _REGION):
        return "the bucket is in another region: set AWS_REGION"
    if status and _METADATA in text:
        return (
            "no credentials are set, and this machine gives none; --anonymous reads public buckets"
        )
    if status in _REDIRECTS:
        return (
            f"HTTP {status}: uploads are redirected, as by /s3 of AIStore: mount that by "
            "--endpoint and ais://BUCKET instead"
        )
    if status:
        message = found[1].strip() if (found := _MESSAGE.search(text)) else ""
        return f"HTTP {status} {code}{': ' if code and message else ''}{message}".strip()
    line = " ".join(_HOST.sub(r"\1\2", _QUERY.sub(r"\1", text)).split())
    return line[:_SHOWN]
