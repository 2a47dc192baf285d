"""Lists of buckets and pages of directories, decoded from msgpack or JSON into plain values.

A page may hold 10,000 entries, so the usual case is one pass of msgspec over typed structs. Names
that are not UTF-8 take a slower way with the same result. Pure, like `aisfs.ais.protocol.requests`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import msgspec

from aisfs.ais.protocol.page_tokens import resume_after
from aisfs.ais.protocol.requests import (
    MSGPACK,
    BucketFacts,
    last_modified,
    mtime_of_version,
    with_custom,
)
from aisfs.core.checksums import is_known
from aisfs.core.names.listing import odd_component
from aisfs.errors import ProtocolError
from aisfs.http.exchange import Reply
from aisfs.model import NO_CUSTOM, SERVED, Bucket, ObjectInfo, Page, Provider

_ENTRY_IS_DIRECTORY = 256
_ENTRY_STATUS = 31
"""These bits are 0 for a copy that is where it belongs."""
_MOST_ENTRIES = 200_000
"""In one page, of which AIStore makes at most 10,000; an entry of five bytes takes 200 of memory."""
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)

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
    objects, directories = _described(entries, bucket, prefix, facts, custom)
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
    objects, _ = _described(entries, bucket, "", facts, NO_CUSTOM)
    return next((info for info in objects if info.key == key), None)


def _described(
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
    except UnicodeDecodeError:
        raw = _decode_raw_msgpack(body)
        entries = [_entry_of_raw(entry) for entry in raw.entries or []]
        return _Listing(entries, _text(raw.token), raw.flags)


def _decode_json_listing(body: bytes) -> _Listing | _JsonListing:
    try:
        return _decode_json(body)
    except UnicodeDecodeError:
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
