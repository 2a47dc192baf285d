"""Listings of objects by the S3 API: the second version, and the first one for old clients.

With `like_amazon` a page is what S3 says; else it is what AIStore's own listing says, which loses names
(see `aisfs.server.api.paging`), with empty ETags, access times, and at times an empty last page.
"""

import base64
import os
import stat
from binascii import Error as Base64Error
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from urllib.parse import quote_from_bytes

from aisfs.server.api.list_objects import NO_RECURSION, Lister, Message
from aisfs.server.api.object_headers import etag
from aisfs.server.api.s3.documents import Element, invalid, not_offered, time_text, xml_reply
from aisfs.server.failures import text_of
from aisfs.server.messages import Reply, Request
from aisfs.server.storage.bucket import Bucket, Found
from aisfs.server.storage.keys import Directories, keys_below
from aisfs.server.storage.traps import Kindness

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
