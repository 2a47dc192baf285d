"""The S3 API, to read by: `/s3`, `/s3/<bucket>` and `/s3/<bucket>/<key>`, path style.

It only reads: most clients cannot write by AIStore's `/s3` either, since they send no body through a redirect.
A request about an object gets a redirect to the target, as AIStore's proxy answers, unless the server is
`like_amazon`, as AIStore is with its feature `S3-Reverse-Proxy`. Conditions are ignored and signatures are not
verified, as in AIStore.

Listings are of the second version, and of the first one for old clients. With `like_amazon` a page is what S3 says;
else it is what AIStore's own listing says, which loses names (see `aisfs.server.api.list_objects`), with empty
ETags, access times, and at times an empty last page.
"""

import base64
import os
import re
import stat
from binascii import Error as Base64Error
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Union
from urllib.parse import quote_from_bytes

from aisfs.server.api.cluster import Redirects
from aisfs.server.api.jobs.etl import Etls
from aisfs.server.api.list_objects import NO_RECURSION, Lister, Message
from aisfs.server.api.objects import STALL_SECONDS, Objects, etag, http_date
from aisfs.server.api.uploads import Parts
from aisfs.server.failures import Failure, Headers, is_directory, no_object, text_of
from aisfs.server.messages import Counters, Reply, Request
from aisfs.server.storage.bucket import Bucket, Directories, Found, keys_below
from aisfs.server.storage.objects import Storage
from aisfs.server.storage.traps import Kindness

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


MOST_KEYS = 1000
"""Entries of a page, at most."""
_NO_NAMES = frozenset({b"", b".", b".."})


@dataclass(frozen=True)
class Query:
    """What a listing asks for."""

    prefix: bytes
    delimiter: bytes
    after: bytes
    """Keys up to here, and the group of this name, are left out."""
    continued: bool
    size: int
    encoded: bool
    """Whether names are to be URL-encoded."""
    old: bool
    """Whether it is the first version."""

    def name(self, key: bytes) -> str:
        """Return a name as it is to be sent."""
        return quote_from_bytes(key, safe="/-_.~*") if self.encoded else text_of(key)


@dataclass(frozen=True)
class Page:
    """Keys and groups, which end with the delimiter, in order."""

    names: list[bytes]
    next: bytes
    """Where the next page begins; empty at the end."""


class S3Listing:
    """Builds pages."""

    def __init__(self, node_id: str, traps: Kindness) -> None:
        self._traps = traps
        self._directories = Directories()
        self._lister = Lister(node_id, traps)

    def page(self, request: Request, bucket: Bucket) -> Reply:
        """Reply to one list request."""
        query = parse(request)
        page = self._page(bucket, query)
        is_group = [_is_group(query, name) for name in page.names]
        keys = [name for name, group in zip(page.names, is_group, strict=True) if not group]
        groups = [name for name, group in zip(page.names, is_group, strict=True) if group]
        about: list[Element] = [
            ("Name", bucket.name),
            ("Prefix", query.name(query.prefix)),
            ("MaxKeys", query.size),
            ("IsTruncated", bool(page.next)),
        ]
        about += [("Delimiter", query.name(query.delimiter))] if query.delimiter else []
        about += [("EncodingType", "url")] if query.encoded else []
        about += self._place(request, query, page)
        about += self._contents(bucket, query, keys)
        about += [("CommonPrefixes", [("Prefix", query.name(group))]) for group in groups]
        return xml_reply("ListBucketResult", about)

    @staticmethod
    def _place(request: Request, query: Query, page: Page) -> list[Element]:
        if query.old:
            about: list[Element] = [("Marker", query.name(query.after))]
            return about + ([("NextMarker", query.name(page.next))] if page.next else [])
        about = [("KeyCount", len(page.names))]
        if token := request.query.get("continuation-token"):
            about.append(("ContinuationToken", token))
        elif start := request.query.get("start-after"):
            about.append(("StartAfter", query.name(os.fsencode(start))))
        return about + ([("NextContinuationToken", _token(page.next))] if page.next else [])

    def _page(self, bucket: Bucket, query: Query) -> Page:
        # No key has such a component, though a path may.
        if not query.size or not _NO_NAMES.isdisjoint(query.prefix.split(b"/")[:-1]):
            return Page([], b"")
        if query.delimiter not in (b"", b"/"):
            raise not_offered("a delimiter other than /")
        if self._traps.like_amazon:
            names = list(islice(self._names(bucket, query), query.size + 1))
            shown = names[: query.size]
            return Page(shown, shown[-1] if len(names) > len(shown) else b"")
        after = os.fsdecode(query.after)
        message = Message(
            prefix=os.fsdecode(query.prefix),
            start_after="" if query.continued else after,
            continuation_token=after if query.continued else "",
            flags=str(NO_RECURSION if query.delimiter else 0),
        )
        return Page(*self._lister.keys(bucket, message, query.size))

    def _names(self, bucket: Bucket, query: Query) -> Iterator[bytes]:
        if query.delimiter:
            return self._level(bucket, query)
        return self._below(bucket, query, query.prefix, query.after)

    def _below(self, bucket: Bucket, query: Query, prefix: bytes, after: bytes) -> Iterator[bytes]:
        return keys_below(self._directories, bucket, prefix, after, continued=query.continued)

    def _level(self, bucket: Bucket, query: Query) -> Iterator[bytes]:
        """Yield the keys and groups of one directory, without looking into others."""
        inside, slash, base = query.prefix.rpartition(b"/")
        inside += slash
        names = self._directories.names(bucket, inside, query.continued)
        for at in range(bisect_left(names, base), len(names)):
            if not names[at].startswith(base):
                return
            key = inside + names[at]
            if key > query.after or self._goes_on(bucket, query, key):
                yield key

    def _goes_on(self, bucket: Bucket, query: Query, key: bytes) -> bool:
        """Return whether the listing begins in the midst of a group."""
        if not key.endswith(b"/") or not query.after.startswith(key) or query.after == key:
            return False
        return next(self._below(bucket, query, key, query.after), None) is not None

    def _contents(self, bucket: Bucket, query: Query, keys: list[bytes]) -> Iterator[Element]:
        records = bucket.records.between(keys[0], keys[-1]) if keys else {}
        for key in keys:
            try:
                status = os.stat(bucket.path_of(key))
            except OSError:
                continue  # deleted since the directory was scanned
            if stat.S_ISREG(status.st_mode):
                record = records.get((key, status.st_size, status.st_mtime_ns))
                yield "Contents", self._entry(query, key, bucket.found(status, record))

    def _entry(self, query: Query, key: bytes, found: Found) -> list[Element]:
        amazon = self._traps.like_amazon
        return [
            ("Key", query.name(key)),
            ("LastModified", time_text(found.mtime_ns if amazon else found.atime_ns)),
            ("ETag", etag(found) if amazon else ""),
            ("Size", found.size),
            ("StorageClass", "STANDARD"),
        ]


def parse(request: Request) -> Query:
    """Return what a request asks for.

    Raises:
        Failure: 400; a parameter has no meaning.
    """
    asked = request.query
    version = asked.get("list-type", "1")
    if version not in ("1", "2"):
        raise invalid(f"list-type {version} is unknown")
    text = asked.get("max-keys") or str(MOST_KEYS)
    if not text.isdecimal() or len(text) > 9:
        raise invalid("max-keys is not a number from 0 to 2147483647")
    if asked.get("encoding-type", "url") != "url":
        raise invalid("the encoding-type is url, if any")
    token = asked.get("continuation-token", "")
    after = asked.get("start-after", "") if version == "2" else asked.get("marker", "")
    continued = bool(token) and version == "2"
    return Query(
        prefix=os.fsencode(asked.get("prefix", "")),
        delimiter=os.fsencode(asked.get("delimiter", "")),
        after=_key_of(token) if continued else os.fsencode(after),
        continued=continued,
        size=min(int(text), MOST_KEYS),
        encoded="encoding-type" in asked,
        old=version == "1",
    )


def _is_group(query: Query, name: bytes) -> bool:
    return bool(query.delimiter) and name.endswith(query.delimiter) and name != query.prefix


def _token(key: bytes) -> str:
    """Return a token, which has no characters that XML or URLs would change."""
    return base64.urlsafe_b64encode(key).decode()


def _key_of(token: str) -> bytes:
    try:
        return base64.b64decode(token.encode("ascii"), b"-_", validate=True)
    except (Base64Error, ValueError) as error:
        raise invalid("the continuation token is not one of this server") from error


_PLAIN = frozenset(
    {"list-type", "prefix", "delimiter", "max-keys", "encoding-type", "fetch-owner", "marker"}
    | {"start-after", "continuation-token", "location", "x-id"}
)
"""Parameters of buckets that ask for nothing that this server lacks."""
_PARTS_OF_OBJECTS = frozenset(
    {"acl", "attributes", "partNumber", "tagging", "uploadId", "versionId"}
)
"""Parameters that ask for something else than the object."""
_OWNER: Element = ("Owner", [("ID", "aisfs"), ("DisplayName", "aisfs")])


class S3:
    """Answers every request below `/s3`."""

    def __init__(
        self,
        storage: Storage,
        objects: Objects,
        parts: Parts,
        etls: Etls,
        counters: Counters,
        *,
        node_id: str,
        redirects: Redirects,
    ) -> None:
        self._storage = storage
        self._objects = objects
        self._etls = etls
        self._parts = parts
        self._counters = counters
        self._redirects = redirects
        self._listing = S3Listing(node_id, storage.traps)

    def serve(self, request: Request, rest: bytes) -> Reply:
        """Answer one request; `rest` is the path without `/s3/`."""
        name, _, key = rest.partition(b"/")
        if key and not request.marked and not self._storage.traps.like_amazon:
            self._storage.bucket(text_of(name))
            return self._redirect(request, text_of(name))
        if request.method not in ("GET", "HEAD"):
            return self._change(request, text_of(name), key)
        if not name:
            return self._buckets()
        bucket = self._storage.bucket(text_of(name))
        return self._object(request, bucket, key) if key else self._bucket(request, bucket)

    def _change(self, request: Request, name: str, key: bytes) -> Reply:
        """Begin or end an upload in parts, as a client does whose parts, which have a body, are not redirected."""
        request.drain()
        match request.method:
            case "POST" if "uploads" in request.query and key:
                begun = self._parts.start(self._storage.bucket(name), key).body.decode()
                about: list[Element] = [
                    ("Bucket", name),
                    ("Key", text_of(key)),
                    ("UploadId", begun),
                ]
                return xml_reply("InitiateMultipartUploadResult", about)
            case "DELETE" if "uploadId" in request.query:
                self._parts.abort(request, self._storage.bucket(name), key)
                return Reply(204)
        raise not_offered(f"{request.method}: to write by the S3 API")

    def _buckets(self) -> Reply:
        """List the buckets."""
        self._counters.add("list_buckets")
        buckets: list[Element] = [
            ("Bucket", [("Name", name), ("CreationDate", time_text(self._created_ns(name)))])
            for name in self._storage.names()
        ]
        return xml_reply("ListAllMyBucketsResult", [_OWNER, ("Buckets", buckets)])

    def _created_ns(self, name: str) -> int:
        bucket = self._storage.bucket(name)
        created = bucket.records.properties().get("created")
        return int(created or os.stat(bucket.folder).st_ctime_ns)

    def _bucket(self, request: Request, bucket: Bucket) -> Reply:
        if request.method == "HEAD":
            self._counters.add("head_bucket")
            return Reply()
        for parameter in sorted(request.query.keys() - _PLAIN):
            raise not_offered(f"the parameter {parameter}")
        if "location" in request.query:
            return xml_reply("LocationConstraint", [])
        self._counters.add("list_page")
        return self._listing.page(request, bucket)

    def _object(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        for parameter in sorted(_PARTS_OF_OBJECTS & request.query.keys()):
            raise not_offered(f"the parameter {parameter}")
        etls = self._etls.asked(request) if request.method == "GET" else []
        self._objects.check_moved(request, bucket, key)
        if key.endswith(b"/"):
            raise no_object(bucket.name, key)
        if etls:
            return self._etls.read(request, etls, bucket, key)
        if request.method == "HEAD":
            self._counters.add("head")
            return self._head(bucket, key)
        reply = self._get(request, bucket, key)
        self._counters.add("get")
        announced = dict(reply.headers).get("Content-Length", "0")
        self._counters.add("get_bytes", len(reply.body) or int(announced))
        return reply

    def _get(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Return an object or a range of it; a member of a shard, as AIStore does here too."""
        if any(request.query.get(name) for name in ("archpath", "archmode")):
            return self._objects.get(request, bucket, key)
        with ExitStack() as held:
            fd, found = self._open(bucket, key, held)
            reply = self._objects.content(request, fd, bucket, key, found, _described)
            if reply.status == 206 and not found.size:
                raise S3Error(416, "InvalidRange", "an empty object has no range")
            if reply.file is not None:
                request.set_timeout(STALL_SECONDS)
                reply.file.hold(held)
        return reply

    def _open(self, bucket: Bucket, key: bytes, held: ExitStack) -> tuple[int, Found]:
        try:
            return self._objects.open(bucket, key, held)
        except Failure as error:
            if self._storage.traps.like_amazon and error.tcode == "ErrLmetaNotFound":
                raise no_object(bucket.name, key) from error  # a directory is no object
            raise

    def _head(self, bucket: Bucket, key: bytes) -> Reply:
        found, traps = bucket.find(key), self._storage.traps
        if found is None:
            disk = traps.disk_of(bucket.name, key)
            if not traps.like_amazon and traps.has_directory(bucket, key, disk):
                raise is_directory(bucket.name, key, status=400)
            raise no_object(bucket.name, key)
        found.check(400)
        headers = [("Content-Type", "application/octet-stream"), ("Accept-Ranges", "bytes")]
        return Reply(headers=[*headers, ("Content-Length", str(found.size)), *_described(found)])

    def _redirect(self, request: Request, bucket: str) -> Reply:
        if request.header("Connection").lower() != "close":
            request.drain()  # a client that sends its body at once would lose the connection
        self._counters.add("redirect")
        # AIStore does not escape a question mark: the target finds the name shorter.
        path = self._storage.traps.location(request.raw_path).replace("%3F", "?")
        reply = self._redirects.make(307, request, path)
        reply.headers.append(("Content-Type", "application/xml"))
        if request.method != "HEAD":
            about = [("Code", "TemporaryRedirect"), ("Message", "Redirect")]
            endpoint = request.base_url.partition("://")[2] + "/s3"
            about += [("Endpoint", f"{endpoint}/{bucket}"), ("Bucket", bucket)]
            reply.body = render("Error", about, namespace="")
        return reply


def _described(found: Found) -> Headers:
    return [("ETag", etag(found)), ("Last-Modified", http_date(found.mtime_ns))]


def is_s3(request: Request) -> bool:
    """Return whether a request is one of the S3 API."""
    return request.raw_path == b"/s3" or request.raw_path.startswith(b"/s3/")
