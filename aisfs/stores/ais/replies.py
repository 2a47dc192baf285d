"""Lists of buckets and pages of directories, decoded from msgpack or JSON into plain values.

A page may hold 10,000 entries, so the usual case is one pass of msgspec over typed structs. Names
that are not UTF-8 take a slower way with the same result.

What a reply that is not a success means, as one of `aisfs.errors`.

The one table from HTTP status and AIStore's own error names (`tcode`) to errors. Two things are
decided here: whether the same request may succeed a little later, and what to tell the user.

What answers at an endpoint: an AIStore, and which, or something else.

`/v1/health` is answered without a token by every AIStore, with its uptime in a header.

Where a listing of an `ais://` bucket goes on, so that no name is lost between two pages.

AIStore's own token is the last name of the page, and loses names. A target visits the directory `X/`
where it meets `X`, before `X y` and `X-2`; it cuts the page there, sorts it afterwards, by strings, and
goes on by comparing strings. What lies between `X` and `X/` and was not on the page is never listed.
With several targets the proxy cuts once more.

So the next page is asked for from some names before the end of this one, and repeats those. How many
is bounded by how often a name can be sorted behind one that was visited later: once for each of its
prefixes that a character below `/` follows. `tests/stores/ais/test_page_tokens.py` proves it against a model.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Annotated
from urllib.parse import unquote_to_bytes

import msgspec

from aisfs.core.names.listing import odd_component
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    AlreadyExists,
    Archived,
    BucketNotFound,
    ConfigError,
    InvalidName,
    IsADirectory,
    JobFailed,
    JobNotFound,
    NotADirectory,
    NotFound,
    OutOfSpace,
    ProtocolError,
    Stale,
    TransformBroken,
    Unavailable,
    Unsupported,
)
from aisfs.http.exchange import Reply
from aisfs.model import NO_CUSTOM, SERVED, Bucket, ObjectInfo, Page, Provider, is_known
from aisfs.redaction import shown
from aisfs.stores.ais.requests import (
    BATCHES,
    CLUSTER,
    ETLS,
    MSGPACK,
    SORTS,
    BucketFacts,
    Request,
    last_modified,
    mtime_of_version,
    with_custom,
)


def resume_after(names: Sequence[str], prefix: str, given: str) -> str:
    """Return the token behind which everything that was not on a page is found.

    Args:
        names: All names of the page, directories with their slash; not empty.
        prefix: The directory that is listed.
        given: The cluster's own token.

    Returns:
        The token; empty when the page is too short to have one.
    """
    ordered = sorted(_raw(name) for name in names)
    cut = len(_raw(prefix))
    directories = [name[:-1] for name in ordered if name.endswith(b"/")]
    moved = max((_prefixes(name[cut:]) + 1 for name in directories), default=0)
    at = len(ordered) - 1 - _prefixes(ordered[-1][cut:]) - moved
    # What held on real clusters: never behind the greatest name without its slash.
    objects = (name for name in reversed(ordered) if not name.endswith(b"/"))
    greatest = min(max([*directories, next(objects, b"")]), _raw(given))
    for name in reversed(ordered[: at + 1]):
        # Read as JSON, what is not UTF-8 becomes another name, which may be a later one.
        if name <= greatest and _is_utf8(name[cut:]):
            return name.decode("utf-8", "surrogateescape")
    return ""


def _prefixes(name: bytes) -> int:
    """Count the directories that may be sorted behind `name` and were visited before it."""
    return sum(byte < 0x2F for byte in name)


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


_ENTRY_IS_DIRECTORY = 256
_ENTRY_STATUS = 31
"""These bits are 0 for a copy that is where it belongs."""
_MOST_ENTRIES = 200_000
"""In one page, of which AIStore makes at most 10,000; an entry of five bytes takes 200 of memory."""
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_MAYBE_NOT_UTF8 = (UnicodeDecodeError, msgspec.DecodeError)
"""What msgspec says of text that is not UTF-8: the second one since 0.23, as of anything that is unreadable."""

_Size = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class _Entry(msgspec.Struct, gc=False):
    name: str = msgspec.field(name="n")
    size: _Size = msgspec.field(name="s", default=0)
    version: str = msgspec.field(name="v", default="")
    checksum: str = msgspec.field(name="cs", default="")
    custom: str = msgspec.field(name="m", default="")
    flags: int = msgspec.field(name="f", default=0)


class _Listing(msgspec.Struct):
    entries: list[_Entry] | None = msgspec.field(name="Entries", default=None)
    token: str = msgspec.field(name="ContinuationToken", default="")
    flags: int = msgspec.field(name="Flags", default=0)


class _RawEntry(msgspec.Struct):
    """An entry of a listing that holds names which are not UTF-8."""

    name: msgspec.Raw = msgspec.field(name="n")
    size: _Size = msgspec.field(name="s", default=0)
    version: str = msgspec.field(name="v", default="")
    checksum: str = msgspec.field(name="cs", default="")
    custom: msgspec.Raw = msgspec.field(name="m", default_factory=msgspec.Raw)
    flags: int = msgspec.field(name="f", default=0)


class _RawListing(msgspec.Struct):
    entries: list[_RawEntry] | None = msgspec.field(name="Entries", default=None)
    token: msgspec.Raw = msgspec.field(name="ContinuationToken", default_factory=msgspec.Raw)
    flags: int = msgspec.field(name="Flags", default=0)


class _JsonEntry(msgspec.Struct, gc=False):
    name: str
    size: _Size = 0
    version: str = ""
    checksum: str = ""
    custom: str = msgspec.field(name="custom-md", default="")
    flags: int = 0


class _JsonListing(msgspec.Struct):
    entries: list[_JsonEntry] | None = None
    token: str = msgspec.field(name="continuation_token", default="")
    flags: int = 0


class _Namespace(msgspec.Struct):
    uuid: str = ""
    name: str = ""


class _BucketEntry(msgspec.Struct):
    name: str
    provider: str = "ais"
    namespace: _Namespace = msgspec.field(default_factory=_Namespace)


# Strictness is off where JSON is read: the server writes its 64-bit numbers as strings.
_decode_msgpack = msgspec.msgpack.Decoder(_Listing).decode
_decode_raw_msgpack = msgspec.msgpack.Decoder(_RawListing).decode
_decode_json = msgspec.json.Decoder(_JsonListing, strict=False).decode
_decode_buckets = msgspec.json.Decoder(list[_BucketEntry] | None, strict=False).decode


def parse_buckets(reply: Reply) -> list[Bucket]:
    """Read a list of buckets, sorted; those of providers nobody knows are left out."""
    try:
        entries = _decode_buckets(reply.body) or []
    except _UNREADABLE as error:
        raise ProtocolError(f"list of buckets: {error}") from error
    known = {provider.value for provider in SERVED}
    return sorted(
        Bucket(entry.name, Provider(entry.provider), _namespace(entry.namespace))
        for entry in entries
        if entry.provider in known
    )


def _namespace(namespace: _Namespace) -> str:
    if not namespace.uuid and not namespace.name:
        return ""
    return f"@{namespace.uuid}#{namespace.name}"


def parse_page(
    reply: Reply,
    bucket: Bucket,
    prefix: str,
    facts: BucketFacts,
    *,
    after: str = "",
    custom: Mapping[str, str] = NO_CUSTOM,
) -> Page:
    """Read one page of a directory, the one that follows the page token `after`.

    `custom` has metadata of objects, by key, for which the page has none.

    Raises:
        ProtocolError: the reply is not a listing, or does not get on.
    """
    entries, token, complete = _decode_listing(reply, bucket, prefix)
    if token and bucket.provider is Provider.AIS:
        if entries:
            token = resume_after([entry.name for entry in entries], prefix, token)
        if token <= after:
            raise ProtocolError(f"{bucket}/{prefix}: the listing stands still at {after!r}")
    objects, directories = _described_objects(entries, bucket, prefix, facts, custom)
    page = Page(objects, list(dict.fromkeys(directories)), token, complete=complete)
    return _without_odd(page, prefix)


def _without_odd(page: Page, prefix: str) -> Page:
    """Leave out keys of a cloud with a component that AIStore refuses, or drops: to its disks `a//b` is `a/b`."""
    dotted = [info.key for info in page.objects if info.key.endswith(".")]
    odd = {name for name in [*dotted, *page.directories] if odd_component(prefix, name)}
    if not odd:
        return page
    objects = [info for info in page.objects if info.key not in odd]
    directories = [name for name in page.directories if name not in odd]
    return replace(page, objects=objects, directories=directories, unusable=sorted(odd))


def parse_original(reply: Reply, bucket: Bucket, key: str, facts: BucketFacts) -> ObjectInfo | None:
    """Read the reply to `list_original`; None when it says nothing of the object.

    Raises:
        ProtocolError: the reply is not a listing.
    """
    entries, _, _ = _decode_listing(reply, bucket, key)
    objects, _ = _described_objects(entries, bucket, "", facts, NO_CUSTOM)
    return next((info for info in objects if info.key == key), None)


def _described_objects(
    entries: Sequence[_Entry | _JsonEntry],
    bucket: Bucket,
    prefix: str,
    facts: BucketFacts,
    custom: Mapping[str, str],
) -> tuple[list[ObjectInfo], list[str]]:
    """Return the objects and the directories of a page."""
    kind = facts.checksum_type if facts.keeps_checksums else "none"
    # Most checksums of a page need no more than the bucket's type before them.
    label, usual = f"{kind}:", _LENGTH_OF_TYPE.get(_same_length(kind), -1)
    ais = bucket.provider is Provider.AIS
    versions: dict[str, tuple[str, int]] = {}
    """Those of this page, one text for all that are alike, and the times they stand for."""
    objects, directories = [], []
    for entry in entries:
        name = entry.name
        if entry.flags & _ENTRY_IS_DIRECTORY or name.endswith("/"):
            # Clouds hold objects named `dir/` as markers: the directory is all one can show, and
            # the marker of the listed directory itself is nothing in it.
            if name != prefix:
                directories.append(name if name.endswith("/") else name + "/")
            continue
        version, checksum = entry.version, entry.checksum
        if ais:
            known = versions.get(version)
            if known is None:
                known = versions[version] = (version, mtime_of_version(facts, version))
            version, mtime = known
        else:
            mtime = last_modified(entry.custom)
        checksum = label + checksum if len(checksum) == usual else labelled(kind, checksum)
        info = ObjectInfo(name, entry.size, version, checksum, mtime)
        said = entry.custom or custom.get(name, "")
        objects.append(with_custom(info, said) if said else info)
    return objects, directories


_TYPE_OF_LENGTH = {8: "crc32c", 16: "xxhash2", 32: "md5", 64: "sha256", 128: "sha512"}
_LENGTH_OF_TYPE = {kind: length for length, kind in _TYPE_OF_LENGTH.items()}


def labelled(kind: str, value: str) -> str:
    """Return `<type>:<hex>` for a checksum whose type only its bucket tells.

    Objects that were uploaded in parts, or are older than a change of the bucket's type, have
    checksums of another type; the length gives them away.
    """
    if not value or not kind:
        return ""
    guess = _TYPE_OF_LENGTH.get(len(value), "")
    if kind == "none" or (is_known(kind) and guess and guess != _same_length(kind)):
        kind = guess
    return f"{kind}:{value}" if kind else ""


def _same_length(kind: str) -> str:
    return "xxhash2" if kind == "xxhash" else kind


def parse_copies(reply: Reply, bucket: Bucket, key: str) -> tuple[int, int, bool]:
    """Read the reply to `list_copies`.

    Returns:
        The version at the target that owns the object, the highest of the others (0 for none each), and
        whether no copy is missing.

    Raises:
        ProtocolError: the reply is not a listing.
    """
    entries, _, complete = _decode_listing(reply, bucket, key)
    owned = elsewhere = 0
    for entry in entries:
        version = int(entry.version) if entry.version.isascii() and entry.version.isdigit() else 0
        if entry.name == key and not entry.flags & _ENTRY_STATUS:
            owned = max(owned, version)
        elif entry.name == key:
            elsewhere = max(elsewhere, version)
    return owned, elsewhere, complete


def parse_custom(reply: Reply, bucket: Bucket, prefix: str) -> dict[str, str]:
    """Read the custom metadata of objects, by key.

    Raises:
        ProtocolError: the reply is not a listing.
    """
    entries, _, _ = _decode_listing(reply, bucket, prefix)
    return {entry.name: entry.custom for entry in entries if entry.custom}


def parse_keys(reply: Reply, bucket: Bucket, prefix: str) -> tuple[list[str], str, bool]:
    """Read one page of a listing of names, the cluster's token of the next, and whether no name is missing.

    Raises:
        ProtocolError: the reply is not a listing.
    """
    entries, token, complete = _decode_listing(reply, bucket, prefix)
    return [entry.name for entry in entries], token, complete


def _decode_listing(
    reply: Reply, bucket: Bucket, prefix: str
) -> tuple[Sequence[_Entry | _JsonEntry], str, bool]:
    """Return the entries of a page, the token of the next, and whether no name is missing.

    A target flags what it lists while a rebalance is under way, may have begun, or was interrupted. A
    cloud lists its buckets itself, whatever the targets move.
    """
    # The server decides: it may send JSON although it was asked for msgpack.
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    subject, decode = f"{bucket}/{prefix}", _decode_msgpack_listing
    if kind != MSGPACK:
        decode = _decode_json_listing
    if reply.body.count(b"\xa1n" if kind == MSGPACK else b'"name"') > _MOST_ENTRIES:
        raise ProtocolError(f"{subject}: a page of more than {_MOST_ENTRIES} names")
    try:
        listing = decode(reply.body)
    except _UNREADABLE as error:
        raise ProtocolError(f"{subject}: the listing is unreadable: {error}") from error
    complete = not listing.flags or bucket.provider is not Provider.AIS
    return listing.entries or [], listing.token, complete


def _decode_msgpack_listing(body: bytes) -> _Listing | _JsonListing:
    try:
        return _decode_msgpack(body)
    except _MAYBE_NOT_UTF8:
        raw = _decode_raw_msgpack(body)
        entries = [_entry_of_raw(entry) for entry in raw.entries or []]
        return _Listing(entries, _text(raw.token), raw.flags)


def _decode_json_listing(body: bytes) -> _Listing | _JsonListing:
    try:
        return _decode_json(body)
    except _MAYBE_NOT_UTF8:
        if _is_utf8(body):
            raise
        value = json.loads(body.decode("utf-8", "surrogateescape"))
        return msgspec.convert(value, _JsonListing, strict=False)


def _entry_of_raw(raw: _RawEntry) -> _Entry:
    return _Entry(
        _text(raw.name), raw.size, raw.version, raw.checksum, _text(raw.custom), raw.flags
    )


def _text(raw: msgspec.Raw) -> str:
    """Decode a msgpack string that need not be UTF-8; msgspec itself would refuse it."""
    data = bytes(raw)
    if not data:
        return ""
    # fixstr holds its length in the first byte; str 8, 16 and 32 in the 1, 2 and 4 after it.
    skip = 1 if 0xA0 <= data[0] <= 0xBF else {0xD9: 2, 0xDA: 3, 0xDB: 5}.get(data[0], 0)
    if not skip:
        raise ValueError("a name that is no text")
    return data[skip:].decode("utf-8", "surrogateescape")


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


_NO_BACKEND: tuple[type[AisfsError], str] = (
    Unsupported,
    "the cluster has no access to this cloud; --direct, or a source such as s3+direct://BUCKET, reads the cloud itself",
)
_BACKEND = re.compile(r"backend provider (?:aws|gcp|azure)\b")
_ARCHIVED = ("InvalidObjectState", "BlobArchived")
"""Codes of S3 and Azure, whose errors AIStore passes on."""
_GATEWAY = frozenset({502, 503, 504})
_OF_OTHERS = _GATEWAY | {401, 403, 407, 429}
"""What gateways, proxies and guards say in front of a cluster."""


MOST_APPENDED = 64 << 10
"""Bytes of an error behind content; the longest names and messages take some."""


class _Appended(msgspec.Struct):
    message: str
    method: str
    url_path: str
    node: str
    status: int
    tcode: str = ""


_decode_appended = msgspec.json.Decoder(_Appended).decode


def appended_error(end: bytes, path: str) -> str:
    """Return the error at the end of what looks like transformed content; empty if there is none.

    When a transformation breaks off after its first bytes, AIStore appends an error to them and ends the reply
    properly. Content that ends so by itself is taken for one, too: it would have to name its own object.

    Args:
        end: The last `MOST_APPENDED` bytes, or all.
        path: Of the request, encoded.
    """
    start = end.rfind(b'{"')  # within its texts, quotes are escaped
    if start < 0 or not end.endswith(b"}\n"):
        return ""
    try:
        found = _decode_appended(end[start:].decode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError):
        return ""
    if found.status < 400 or _as_told(found.url_path) != _as_told(unquote_to_bytes(path)):
        return ""
    return f"{shown(found.message)[:_MOST_TEXT]} (HTTP {found.status})"


def _as_told(name: str | bytes) -> str:
    """Return a name as it is in messages, where bytes that are no text and control characters are others."""
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    return "".join(c if c.isprintable() and c != "\ufffd" else " " for c in text)


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
    details = _of_transformer(request, reply) or _details(reply)
    if details.tcode in _BY_NAME:
        kind, text = _BY_NAME[details.tcode]
    elif verdict := _about_etl(request, details):
        kind, text = verdict
    elif _lacks_batches(request, reply, details):
        kind, text = _NO_BATCHES
    elif any(code in details.message for code in _ARCHIVED):
        kind, text = Archived, "archived in the cloud behind the cluster: restore it first"
    elif reply.status == 501 and _BACKEND.search(details.message):
        kind, text = _NO_BACKEND
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


def _of_transformer(request: Request, reply: Reply) -> _Details | None:
    """Return what an `hpull://` transformer says, which answers by itself; None if it is not one."""
    is_read = request.method == "GET" and "etl_name=" in request.query
    if not is_read or is_by_aistore(reply) or reply.status in _OF_OTHERS:
        return None
    text = " ".join(reply.body.decode("utf-8", "replace").split())
    return _Details(message=f"ETL error: {text}", url_path=request.path)


def _lacks_batches(request: Request, reply: Reply, details: _Details) -> bool:
    """Return whether a GetBatch failed only because the server is too old for it, or built without."""
    return (
        request.path.startswith(BATCHES)
        and reply.status in (400, 404, 405, 501)
        and details.tcode not in _BUCKET_GONE
    )


_Verdict = tuple[type[AisfsError], str]

_OF_ETLS: list[tuple[str, type[AisfsError], str]] = [
    ("^ETL error:", JobFailed, "the transformation failed"),
    ("build without ETL support", Unsupported, "the cluster is built without ETLs (tag etl)"),
    (
        "requires Kubernetes|k8s client is not init",
        Unsupported,
        "the cluster does not run in Kubernetes, which ETLs need",
    ),
    (
        r"(ETL|etl job) \S+ do(es not|esn't) exist|does not exist - try starting|entry not found in",
        JobNotFound,
        "no such ETL, or it does not run",
    ),
    (r"etl job \S+ already exists", AlreadyExists, "there is an ETL of this name"),
    (r"^invalid etl\.InitMsg", ConfigError, "the cluster refuses this definition"),
    ("pod_status=", JobFailed, "its transformer did not start"),
    ("can't start ETL", AlreadyExists, "it runs already"),
    (
        r"context deadline exceeded|Client\.Timeout|: EOF$|unexpected EOF|connection refused",
        TransformBroken,
        "the transformer did not answer",
    ),
]
"""What messages about ETLs mean, most of which come with a status that says something else."""


def _about_etl(request: Request, details: _Details) -> _Verdict | None:
    """Return what a refusal means for a request about ETLs; None if that is nothing special."""
    is_read = "etl_name=" in request.query
    if not (request.path.startswith(ETLS) or is_read or b'"etl-bck"' in request.body):
        return None
    found = (row[1:] for row in _OF_ETLS if re.search(row[0], details.message))
    return next(found, None)


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


HEALTH = Request("GET", "/v1/health", "", "the endpoint")
CLUSTER_MAP = Request("GET", "/v1/daemon", "what=smap", "cluster map", most_reply=16 << 20)
VERSION = Request("GET", "/v1/daemon", "what=software_version", "version of AIStore")

_UPTIMES = ("ais-cluster-uptime", "ais-node-uptime", "cluster-uptime", "node-uptime")
_VERSION = re.compile(r"[\w.+-]{1,40}")


class _Map(msgspec.Struct):
    pmap: dict[str, msgspec.Raw]
    tmap: dict[str, msgspec.Raw] | None = None


_decode_map = msgspec.json.Decoder(_Map, strict=False).decode


@dataclass(frozen=True, slots=True)
class Identity:
    """What is known about an endpoint that answers."""

    is_aistore: bool | None
    """None if it cannot be told: a gateway may want a token, or the cluster may be starting."""
    seen: str
    """How it answered, in words."""
    targets: int | None = None
    """Storage nodes of the cluster; None if it does not tell."""
    version: str = ""
    clock_ahead: float | None = None
    """Seconds by which its clock is ahead of ours; negative if it is behind."""
    map_status: int = 0
    """HTTP status of the cluster map, which needs a token where tokens are used."""


def identify(
    health: Reply, cluster_map: Reply, version: Reply, clock: tuple[float, float]
) -> Identity:
    """Return what three replies say.

    Args:
        health: The reply to `HEALTH`.
        cluster_map: The reply to `CLUSTER_MAP`.
        version: The reply to `VERSION`.
        clock: Our time before and after `HEALTH`, in seconds.
    """
    targets = _targets(cluster_map)
    replies = (health, cluster_map, version)
    found: bool | None = (
        targets is not None
        or (health.status == 200 and any(name in health.headers for name in _UPTIMES))
        or any(is_by_aistore(reply) for reply in replies)
    )
    if not found and (health.status in (401, 407) or health.status >= 500):
        found = None
    text = version.body.decode("ascii", "replace").strip().strip('"')
    known = version.status == 200 and _VERSION.fullmatch(text)
    return Identity(
        found,
        _described_reply(health),
        targets,
        text if found and known else "",
        _clock_ahead(health, clock),
        cluster_map.status,
    )


def _targets(reply: Reply) -> int | None:
    if reply.status != 200:
        return None
    try:
        return len(_decode_map(reply.body).tmap or {})
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _described_reply(reply: Reply) -> str:
    kind = reply.headers.get("content-type", "").partition(";")[0].strip()
    server = reply.headers.get("server", "")
    by = f" by {server[:60]}" if server else ""
    what = f", {kind}" if kind and reply.body else ""
    return f"HTTP {reply.status}{what}{by} to GET {HEALTH.path}"


def _clock_ahead(reply: Reply, clock: tuple[float, float]) -> float | None:
    try:
        theirs = parsedate_to_datetime(reply.headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
    before, after = clock
    # Their clock was cut to a whole second.
    if theirs + 1 >= before and theirs <= after:
        return 0.0
    return theirs - (after if theirs > after else before)
