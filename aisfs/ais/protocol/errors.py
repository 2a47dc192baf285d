"""What a reply that is not a success means, as one of `aisfs.errors`.

The one table from HTTP status and AIStore's own error names (`tcode`) to errors. Two things are
decided here: whether the same request may succeed a little later, and what to tell the user.
Pure, like `aisfs.ais.protocol.requests`.
"""

import re
from collections.abc import Callable

import msgspec

from aisfs.ais.protocol.requests import BATCHES, CLUSTER, SORTS, Request
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    AlreadyExists,
    Archived,
    BucketNotFound,
    InvalidName,
    IsADirectory,
    JobNotFound,
    NotADirectory,
    NotFound,
    OutOfSpace,
    ProtocolError,
    Stale,
    Unavailable,
    Unsupported,
)
from aisfs.http.exchange import Reply
from aisfs.redaction import shown

_MOST_TEXT = 300
"""Characters of the server's own message that are passed on."""

_NO_NODES = "ErrNoNodes"
_CORRUPTED = "ErrLmetaCorrupted"
_BUCKET_GONE = frozenset({"ErrBckNotFound", "ErrRemoteBckNotFound"})

# A 500 is usually a bug or damage, which a retry only repeats; these words tell of a neighbour
# or a disk that may be back in a moment.
_PASSING = re.compile(
    r"connection (refused|reset)|broken pipe|time(d )?out|deadline exceeded|\bEOF\b"
    r"|too many open files|start(ing|ed)? up|shutting down|no (available )?targets|try again",
    re.IGNORECASE,
)


_UNKNOWN_JOB = re.compile(r"^invalid (action|xaction \(job\) kind) ")


class _Details(msgspec.Struct):
    tcode: str = ""
    message: str = ""
    url_path: str = ""

    @property
    def by_aistore(self) -> bool:
        """Whether AIStore itself says this: a gateway's page is no JSON, or other JSON."""
        # DELETE of a missing object has no tcode, nor has any reply of an old server.
        return bool(self.tcode or (self.message and self.url_path))


_decode = msgspec.json.Decoder(_Details, strict=False).decode

_PLAIN: dict[int, tuple[type[AisfsError], str]] = {
    401: (
        AccessDenied,
        "the cluster wants a valid token: `ais auth login`, or set AIS_AUTHN_TOKEN or "
        "AIS_AUTHN_TOKEN_FILE",
    ),
    403: (AccessDenied, "the token or the bucket's access settings do not permit this"),
    407: (AccessDenied, "the HTTP proxy wants a name and a password: see --proxy"),
    408: (Unavailable, "the cluster gave up waiting"),
    416: (Stale, "shorter on the server than it was"),
    429: (Unavailable, "the cluster limits the rate of requests"),
    501: (Unsupported, "the cluster or this bucket cannot do that"),
    502: (Unavailable, "a gateway in front of the cluster failed"),
    503: (Unavailable, "the cluster is starting, stopping or overloaded"),
    504: (Unavailable, "a gateway in front of the cluster timed out"),
    507: (OutOfSpace, "the cluster has no room left"),
}


_BY_NAME: dict[str, tuple[type[AisfsError], str]] = {
    _NO_NODES: (Unavailable, "the cluster has no target yet, or none any more"),
    "ErrBucketAlreadyExists": (AlreadyExists, "the bucket exists"),
    _CORRUPTED: (
        ProtocolError,
        "the cluster's record of this object contradicts its file, as after an append that went "
        "wrong, and names behind it may be missing from listings. To repair that, PUT anything "
        "over it (`ais put`), then remove it",
    ),
}
"""What these names mean, whatever the status."""

_NO_BATCHES: tuple[type[AisfsError], str] = Unsupported, "the cluster has no GetBatch"


_ARCHIVED = ("InvalidObjectState", "BlobArchived")
"""Codes of S3 and Azure, whose errors AIStore passes on."""
_GATEWAY = frozenset({502, 503, 504})


def is_of_restart(reply: Reply) -> bool:
    """Return whether a reply may be that of a cluster whose proxy was just started."""
    details = _details(reply)
    return details.tcode == _NO_NODES or (reply.status in _GATEWAY and not details.message)


def is_by_aistore(reply: Reply) -> bool:
    """Return whether a refusal has the form that only AIStore gives it."""
    return _details(reply).by_aistore


def failure(request: Request, reply: Reply) -> AisfsError:
    """Return what went wrong.

    Args:
        request: What was asked.
        reply: An answer that is not a success; its body may be cut short.
    """
    details = _details(reply)
    if details.tcode in _BY_NAME:
        kind, text = _BY_NAME[details.tcode]
    elif _lacks_batches(request, reply, details):
        kind, text = _NO_BATCHES
    elif any(code in details.message for code in _ARCHIVED):
        kind, text = Archived, "archived in the cloud behind the cluster: restore it first"
    elif verdict := _about_job(request, reply, details):
        kind, text = verdict
    elif reply.status in _PLAIN:
        kind, text = _PLAIN[reply.status]
    elif reply.status in _BY_DETAILS:
        kind, text = _BY_DETAILS[reply.status](request, details)
    elif reply.status >= 500:
        kind, text = _server_error(request, details)
    else:
        kind, text = ProtocolError, "an answer that makes no sense; is this an AIStore proxy?"
    # A secret that is cut is not known for one.
    said = shown(details.message)[:_MOST_TEXT]
    return kind(f"{request.subject}: {text} (HTTP {reply.status}{': ' if said else ''}{said})")


def refuses_props(reply: Reply) -> bool:
    """Return whether a HEAD failed only because the server does not take these props."""
    details = _details(reply)
    # The message about a bad name quotes the name, whatever that holds.
    about_name = details.tcode == "errInvalidPath"
    return reply.status == 400 and not about_name and "prop" in details.message


def _details(reply: Reply) -> _Details:
    """Read the error's JSON, from the body or, for a HEAD, from the header."""
    # Messages quote names: they need not be UTF-8, and headers reach us as Latin-1.
    raw = reply.body or reply.headers.get("hdr-error", "").encode("latin-1", "replace")
    try:
        details = _decode(raw.decode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError):
        return _Details()
    printable = "".join(c if c.isprintable() else " " for c in details.message)
    return _Details(details.tcode, printable.strip(), details.url_path)


def _lacks_batches(request: Request, reply: Reply, details: _Details) -> bool:
    """Return whether a GetBatch failed only because the server is too old for it, or built without."""
    return (
        request.path.startswith(BATCHES)
        and reply.status in (400, 404, 405, 501)
        and details.tcode not in _BUCKET_GONE
    )


_Verdict = tuple[type[AisfsError], str]


def _about_job(request: Request, reply: Reply, details: _Details) -> _Verdict | None:
    """Return what a refusal means for a request about jobs; None if that is nothing special."""
    is_start = request.method == "POST" and not request.path.startswith("/v1/objects/")
    is_question = request.path.startswith((SORTS, CLUSTER)) and "what=remote" not in request.query
    if not is_question and not is_start:
        return None
    if reply.status == 404 and details.tcode not in _BUCKET_GONE and details.by_aistore:
        return JobNotFound, "no such job"
    if reply.status == 410:
        return JobNotFound, "the job has already ended"
    # An older build knows neither the action nor the kind.
    if reply.status == 501 or _UNKNOWN_JOB.search(details.message):
        return Unsupported, "the cluster's build does not have this job"
    if details.tcode == "ErrFailedTo" and "already running" in details.message:
        return AlreadyExists, "the cluster has such a job already"
    return None


def _bad_request(request: Request, details: _Details) -> _Verdict:
    if details.tcode in _BUCKET_GONE:  # as a target says that is asked without a proxy
        return BucketNotFound, "no such bucket"
    if details.tcode == "errInvalidPath":
        return InvalidName, "the cluster refuses this name"
    if details.tcode == "ErrMv":
        if "object in its path" in details.message:
            return NotADirectory, "a part of the path is an object"
        return IsADirectory, "other names begin with this one, or the cluster keeps its directory"
    if details.tcode == "ErrFailedTo" and "failed to call" in details.message:
        return Unavailable, "a part of the cluster is not there"
    if details.message.startswith("remote-cluster[") and _PASSING.search(details.message):
        return Unavailable, "the cluster that has this is not there"
    if "Smap v0" in details.message:
        return Unavailable, "a target that joins the cluster has no map of it yet"
    if details.tcode == "ErrInvalidBackendProvider":
        return Unsupported, "the cluster does not know this provider"
    return ProtocolError, "the cluster does not understand the request"


def _not_found(request: Request, details: _Details) -> _Verdict:
    # What is gone is taken out of caches, listings and copies: only the cluster may say so.
    if not details.by_aistore:
        return ProtocolError, "something between here and the cluster answered in its place"
    if details.tcode == "PathError":
        return ProtocolError, "the cluster lost a file of this object"
    about_object = request.path.startswith("/v1/objects/")
    if details.tcode in _BUCKET_GONE or not about_object:
        return BucketNotFound, "no such bucket"
    return NotFound, "no such object"


def _gone(request: Request, details: _Details) -> _Verdict:
    kind, text = _not_found(request, details)
    return (
        (NotFound, "deleted from the cloud behind the bucket") if kind is NotFound else (kind, text)
    )


def _conflict(request: Request, details: _Details) -> _Verdict:
    if request.method == "GET":
        return Unavailable, "the cluster is still fetching the object"
    return ProtocolError, "the cluster is busy with a conflicting operation"


def _server_error(request: Request, details: _Details) -> _Verdict:
    if request.method == "PUT" and details.tcode == "ErrBadCksum":
        return Unavailable, "the bytes did not arrive as they were sent"
    if details.tcode == "ErrLmetaNotFound":
        # The name is a directory, or one whose last object was deleted: no retry helps.
        return NotFound, "not an object"
    if not details.message and not details.tcode:
        return Unavailable, "the cluster failed without saying why"
    if details.tcode != "ErrBadCksum" and _PASSING.search(details.message):
        return Unavailable, "a part of the cluster is not there"
    return ProtocolError, "the cluster failed"


_BY_DETAILS: dict[int, Callable[[Request, _Details], _Verdict]] = {
    400: _bad_request,
    404: _not_found,
    409: _conflict,
    410: _gone,
}
