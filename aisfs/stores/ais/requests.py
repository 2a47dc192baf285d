"""AIStore's requests and replies as plain values: what to send, and what an answer means.

Everything odd about the protocol is dealt with here, so that it can be tested with literals:
sizes that are strings or absent, flags that must be strings, checksums whose type only the bucket
knows. Listings are read in `aisfs.stores.ais.replies`, replies that are not a success in
`aisfs.stores.ais.replies`.

What replies about one object say: its size and version, and whether bytes are those of it.

Nothing is believed for want of a word to the contrary: a length that is not there is not zero, and
bytes without a mark of their version are of no version.

Requests that change objects, as plain values, and what their replies say.

Every request here names one object, or a bucket that is to be made or destroyed. `wire.Request` refuses to be made of anything that could
change more.

Must not know: sockets, threads, sessions, tokens, retries.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import msgspec
from msgspec import structs

from aisfs.errors import InvalidName, ProtocolError, Stale, Unavailable
from aisfs.http.exchange import Reply
from aisfs.model import Bucket, ObjectInfo, Provider, hasher_of, is_known
from aisfs.redaction import shown
from aisfs.stores.posix_metadata import decode_custom

MSGPACK = "application/msgpack"
JSON = "application/json"
SYSTEM_BUCKET = Bucket(".sys-shardidx")
"""Has the indexes that AIStore makes of shards."""
_GLOBAL_NAMESPACE = "@#"
BATCHES = "/v1/ml/moss"
"""Where GetBatch is."""
SORTS = "/v1/sort"
"""Where dSort is."""
ETLS = "/v1/etl"
"""Where ETLs are."""
CLUSTER = "/v1/cluster"
"""Where all other jobs are described and stopped."""

_LATEST = {"latest-ver": "true"}
_NO_RECURSION = "2048"  # a string: the server answers 400 to a number
_WITH_MISPLACED = "2050"
"""No recursion, and objects that are not on the target of their name, as most shard indexes."""
_MISPLACED = "2"
_COPIES = 100
"""Entries asked for of a name: a copy on each target, and then other names that begin so."""
_NAME_ONLY = "16"
_ORIGINAL = 1024
"""All that an entry says is of the object where it comes from; else AIStore mixes in what it has a copy of."""
_LIST_PROPS = "name,size,version,checksum,custom"
_HEAD_PROPS = "checksum,version,custom"
_NS = 1_000_000_000
TRANSFORM_SECONDS = 600.0
"""How long a target may be silent while it transforms an object: longer than ETLs permit for one."""
_CONTROL_REPLY = 1 << 20
"""Bytes; what is asked for besides listings are ids and a few numbers."""
_PAGE = 32 << 20
"""Bytes of a page: 3 KiB for each of 10,000 objects, twice the longest name of a cloud."""
_BUCKETS = 4 << 20
"""Bytes of a list of buckets: room for tens of thousands."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the proxy. Path and query are percent-encoded and sent as they stand."""

    method: str
    path: str
    query: str
    subject: str
    """What the request is about, in the user's words; the start of every error message."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    patience: float = 0.0
    """Seconds that the server may be silent beyond the usual, since it works."""
    beside: str = ""
    """Path and query of the object on whose target this one may lie, instead of where its own name says."""
    most_reply: int = _CONTROL_REPLY
    """Bytes of a reply that is read into memory; content of objects is not."""

    def __post_init__(self) -> None:
        """Refuse what could change more than one object.

        To AIStore a selector without names, a template without braces, and an empty prefix mean
        every object of the bucket. Nothing in aisfs changes buckets that are there, but for destroying
        one that it has made as a volume, or sends selectors. Only jobs that add objects are started, and only a job that is named is stopped.

        Raises:
            ValueError: the caller's bug; nothing is sent.
        """
        if not self.changes or self._is_about_job() or self._is_about_bucket():
            return
        if self.path.startswith(ETLS) and self._is_about_etl():
            return
        root, _, name = self.path.removeprefix("/v1/").partition("/")
        key = name.partition("/")[2]
        if not self.path.startswith("/v1/") or root != "objects" or not key:
            raise ValueError(f"{self.method} {self.path} could change more than one object")
        if self.body and "-listrange" in str(json.loads(self.body).get("action")):
            raise ValueError(f"{self.method} {self.path} has a selector of many objects")

    def _is_about_job(self) -> bool:
        """Return whether this starts a job that adds objects, or stops a single job."""
        if (self.method, self.path) == ("DELETE", f"{SORTS}/abort"):
            return self.query.startswith("uuid=") and self.query != "uuid="
        if self.path != SORTS and not self.path.startswith((CLUSTER, "/v1/buckets/")):
            return False
        message = json.loads(self.body or b"{}")
        match self.method, message.get("action"):
            case "POST", None:
                return "input_bck" in message and self.path == SORTS
            case "PUT", "stop":
                return self.path == CLUSTER and bool(message["value"].get("ID"))
            case "POST", "index-shard" | "etl-bck":
                return self.path.startswith("/v1/buckets/")
        return False

    def _is_about_etl(self) -> bool:
        """Return whether this defines, starts, stops or deletes a single ETL."""
        if self.path == ETLS:
            return self.method == "PUT"
        name, _, verb = self.path.removeprefix(f"{ETLS}/").partition("/")
        does = self.method, verb
        return bool(name) and does in (("DELETE", ""), ("POST", "start"), ("POST", "stop"))

    def _is_about_bucket(self) -> bool:
        """Return whether this does nothing but make a bucket, which fails if it is there, or destroy a single one."""
        _, there, name = self.path.partition("/v1/buckets/")
        if not there or not name or "/" in name:
            return False
        action = json.loads(self.body or b"{}").get("action")
        return (self.method, action) in (("POST", "create-bck"), ("DELETE", "destroy-bck"))

    @property
    def changes(self) -> bool:
        """Whether it changes anything."""
        return self.method not in ("GET", "HEAD")

    @property
    def target(self) -> str:
        """The request target: path and query."""
        return f"{self.path}?{self.query}" if self.query else self.path


@dataclass(frozen=True, slots=True)
class BucketFacts:
    """What a bucket's properties say that its objects do not repeat; the defaults mean unknown."""

    created_ns: int = 0
    checksum_type: str = ""
    checksum_of_ranges: bool = False
    """A ranged reply carries the checksum of the range, not that of the object."""
    keeps_checksums: bool = True
    """Unless the type is `none`, and then the target does not compare what it is sent either."""


# Requests ------------------------------------------------------------------------------------


def list_buckets(provider: Provider | None, namespace: str = "") -> Request:
    """Ask for the buckets of one provider, or of all configured ones."""
    query = urlencode({"provider": provider.value}) if provider else ""
    subject = f"buckets of {provider.scheme}://{namespace}" if provider else "buckets"
    if namespace:
        query += "&" + urlencode({"namespace": namespace})
    body = encode_json({"action": "list", "name": "", "value": None})
    headers = {"Content-Type": JSON}
    return Request("GET", "/v1/buckets", query, subject, headers, body, most_reply=_BUCKETS)


def head_bucket(bucket: Bucket) -> Request:
    """Ask for the properties of a bucket."""
    return Request("HEAD", bucket_path(bucket), bucket_query(bucket), str(bucket))


def list_page(bucket: Bucket, prefix: str, token: str, page_size: int = 0) -> Request:
    """Ask for one page of a directory, the largest one unless `page_size` says otherwise.

    The listing id (`uuid`) stays empty: with an id the server goes on with the prefix that the id
    was made for, whatever prefix is sent; without one the token alone says where to go on.

    Raises:
        InvalidName: `prefix` is neither empty nor a directory; the server's answer would mix
            the directory with its siblings.
    """
    flags = _WITH_MISPLACED if bucket == SYSTEM_BUCKET else _NO_RECURSION
    if bucket.is_attached:
        flags = str(int(flags) | _ORIGINAL)
    return _listing(bucket, prefix, token, page_size, props=_LIST_PROPS, flags=flags)


def list_custom(bucket: Bucket, prefix: str, token: str, page_size: int = 0) -> Request:
    """Ask for the custom metadata on a page of `list_page`: in an attached cluster only copies have it."""
    props = "name,custom"
    return _listing(bucket, prefix, token, page_size, props=props, flags=_NO_RECURSION)


def list_original(bucket: Bucket, key: str) -> Request:
    """Ask what an object of an attached cluster is there, by a listing of what begins with its name."""
    only = {"props": _LIST_PROPS, "flags": str(_ORIGINAL), "begin": key}
    return replace(_listing(bucket, "", "", 1, **only), subject=f"{bucket}/{key}")


def list_copies(bucket: Bucket, key: str) -> Request:
    """Ask for all copies of an object, also those on targets that do not own it."""
    only = {"props": "name,version", "flags": _MISPLACED, "begin": key}
    return replace(_listing(bucket, "", "", _COPIES, **only), subject=f"{bucket}/{key}")


def first_keys(bucket: Bucket, prefix: str, token: str, most: int, *, beside: str = "") -> Request:
    """Ask for names of objects below a directory, however deep.

    A listing of names alone is what a corrupt object does not cut short. Its pages lose names, so
    only what one page says counts.

    `beside` is an object with the name of the directory, or of one above it. Its disk has no such
    directory, and AIStore then leaves out those of other disks too, at random. It does not where
    it looks for all that begins with the name of the object, from the token `prefix` on.
    """
    names = {"props": "name", "flags": _NAME_ONLY, "begin": beside or prefix}
    return _listing(bucket, prefix, token, most, **names)


def _listing(
    bucket: Bucket,
    prefix: str,
    token: str,
    page_size: int,
    *,
    props: str,
    flags: str,
    begin: str | None = None,
) -> Request:
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidName(f"{bucket}/{prefix}: a directory prefix ends in '/'")
        _check_key(bucket, prefix)
    value = {
        "uuid": "",
        "props": props,
        "prefix": prefix if begin is None else begin,
        "continuation_token": token,
        "flags": flags,
        "pagesize": page_size,
    }
    body = encode_json({"action": "list", "name": "", "value": value})
    headers = {"Content-Type": JSON, "Accept": MSGPACK}
    subject = f"{bucket}/{prefix}"
    path, query = bucket_path(bucket), bucket_query(bucket)
    return Request("GET", path, query, subject, headers, body, most_reply=_PAGE)


def head_object(bucket: Bucket, key: str, *, with_props: bool = True) -> Request:
    """Ask about one object; servers before 4.2 ignore the props and say everything.

    Of an attached cluster, the answer is 409 where AIStore's copy is of another version. Otherwise
    `latest-ver` is not sent: the server drops the connection of such a HEAD on `ais://`.
    """
    query = bucket_query(bucket, _LATEST if bucket.is_attached else None)
    if with_props:
        query += "&" + urlencode({"props": _HEAD_PROPS})
    path, beside = object_path(bucket, key), _beside(bucket, key)
    return Request("HEAD", path, query, f"{bucket}/{key}", beside=beside)


def get_object(bucket: Bucket, key: str, *, latest: bool = False) -> Request:
    """Ask for a whole object; the `latest` version where AIStore has but a copy."""
    query = bucket_query(bucket, _LATEST if latest else None)
    return Request("GET", object_path(bucket, key), query, f"{bucket}/{key}")


def get_transformed(bucket: Bucket, key: str, etls: Sequence[str], arguments: str) -> Request:
    """Ask for a whole object as ETLs transform it, one after the other; no other way of asking is heeded."""
    first, *more = etls
    query = bucket_query(bucket, {"etl_args": arguments} if arguments else None)
    query += f"&etl_name={first}"  # which AIStore does not decode
    query += f"&etl_pipeline={','.join(more)}" if more else ""
    path, subject = object_path(bucket, key), f"{bucket}/{key}"
    return Request("GET", path, query, subject, patience=TRANSFORM_SECONDS)


def get_range(bucket: Bucket, key: str, start: int, stop: int, *, latest: bool = False) -> Request:
    """Ask for the bytes `[start, stop)`; of the `latest` version where AIStore has but a copy.

    Raises:
        ValueError: the range is empty. Sent, it would panic the server's handler and leave the
            object locked for good.
    """
    if not 0 <= start < stop:
        raise ValueError(f"the range [{start}, {stop}) is empty")
    headers = {"Range": f"bytes={start}-{stop - 1}"}
    path, beside = object_path(bucket, key), _beside(bucket, key)
    query = bucket_query(bucket, _LATEST if latest else None)
    return Request("GET", path, query, f"{bucket}/{key}", headers, beside=beside)


def shard_index_location(bucket: Bucket, key: str) -> tuple[Bucket, str]:
    """Return where AIStore keeps the index of a shard: bucket and key."""
    space = bucket.namespace
    if space:
        # A namespace goes by its whole name there, even if it has a cluster or a name only.
        cluster, _, name = space.removeprefix("@").partition("#")
        space = f"@{cluster}#{name}"
    return SYSTEM_BUCKET, (
        f"{bucket.provider.value}/{space or _GLOBAL_NAMESPACE}/{bucket.name}/{key}.idx"
    )


def shard_of_index(bucket: Bucket, key: str) -> tuple[Bucket, str] | None:
    """Undo `shard_index_location`; None for whatever is no shard index."""
    parts = key.split("/", 3)
    if bucket != SYSTEM_BUCKET or len(parts) < 4 or not key.endswith(".idx"):
        return None
    provider, space, name, shard = parts
    try:
        found = Bucket(name, Provider(provider), "" if space == _GLOBAL_NAMESPACE else space)
    except ValueError:
        return None
    return found, shard.removesuffix(".idx")


def _beside(bucket: Bucket, key: str) -> str:
    """Return path and query of the shard that an index is of; empty for any other object."""
    shard = shard_of_index(bucket, key)
    return f"{object_path(*shard)}?{bucket_query(shard[0])}" if shard is not None else ""


def bucket_path(bucket: Bucket) -> str:
    """Return the path of a bucket, encoded."""
    return "/v1/buckets/" + quoted(bucket)


def quoted(bucket: Bucket) -> str:
    """Encode the name of a bucket for a path."""
    return quote(bucket.name, safe="")


def object_path(bucket: Bucket, key: str) -> str:
    """Return the path of an object, checked and encoded."""
    return f"/v1/objects/{quoted(bucket)}/{quote(_check_key(bucket, key), safe='/')}"


def bucket_query(bucket: Bucket, more: Mapping[str, str] | None = None) -> str:
    """Return the query that names a bucket, and whatever else it is to hold."""
    query = {"provider": bucket.provider.value}
    if bucket.namespace:
        query["namespace"] = bucket.namespace
    return urlencode({**query, **(more or {})}, errors="surrogateescape")


def _check_key(bucket: Bucket, key: str) -> bytes:
    """Return the bytes of a key that can be sent, or refuse it before anything rewrites it."""
    try:
        raw = key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidName(f"{bucket}: {key!r} is not a name any store could hold") from None
    if not raw or b"\0" in raw or not {b".", b".."}.isdisjoint(raw.split(b"/")):
        raise InvalidName(f"{bucket}: {key!r} is not a name of an object")
    return raw


def encode_json(value: Mapping[str, Any]) -> bytes:
    """Write a message to the server."""
    # Names that are not UTF-8 go out as the very bytes the server stores.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")


# Replies -------------------------------------------------------------------------------------


class _ChecksumProps(msgspec.Struct):
    type: str = ""
    enable_read_range: bool = False


class _BucketProps(msgspec.Struct):
    # With the seconds of all versions it is to fit into 64 bits: up to the year 2096.
    created: Annotated[int, msgspec.Meta(lt=4 * 10**18)] = 0
    checksum: _ChecksumProps = msgspec.field(default_factory=_ChecksumProps)


# Not strict: the server writes its 64-bit numbers as strings.
_decode_props = msgspec.json.Decoder(_BucketProps, strict=False).decode


def parse_bucket_facts(reply: Reply) -> BucketFacts:
    """Read what is useful from the properties of a bucket; anything unreadable is unknown."""
    try:
        props = _decode_props(reply.headers.get("ais-bucket-props", "{}"))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return BucketFacts()
    kind, none = props.checksum.type, props.checksum.type == "none"
    return BucketFacts(
        max(props.created, 0), "" if none else kind, props.checksum.enable_read_range, not none
    )


_CUSTOM = re.compile(r"(?:^|[\[\s,;])aisfs[:=]([A-Za-z0-9_-]+)")


def with_custom(info: ObjectInfo, text: str) -> ObjectInfo:
    """Add what our pair among all custom metadata says, if it was written for this content.

    Args:
        info: The object.
        text: `[k:v k:v]` of a listing, or `k=v, k=v` of headers.
    """
    match = _CUSTOM.search(text)
    return structs.replace(info, custom=decode_custom(match[1], info)) if match else info


# Times ---------------------------------------------------------------------------------------

_LAST_MODIFIED = re.compile(r'LastModified[=:]\s*"?([A-Z][a-z]{2}, [^"=]*?GMT|\d{4}-[^\s"\]]+)')


_COUNTER = re.compile(r"[0-9]{1,10}")


def mtime_of_version(facts: BucketFacts, version: str) -> int:
    """Make up a modification time that costs no request and grows with each overwrite.

    AIStore keeps none for its own objects: a listing knows only the access time, which every
    read changes. Versions of `ais://` objects are counters, so each stands for one second.
    """
    if facts.created_ns and _COUNTER.fullmatch(version) and 0 < int(version) < 2**31:
        return facts.created_ns + (int(version) - 1) * _NS
    return facts.created_ns


def last_modified(custom: str) -> int:
    """Find the cloud's own modification time in custom metadata: RFC 3339 or an HTTP date."""
    match = _LAST_MODIFIED.search(custom)
    if not match:
        return 0
    text = match[1]
    try:
        parse = datetime.fromisoformat if text[0].isdigit() else parsedate_to_datetime
        moment = parse(text)
        seconds = int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())
    except (ValueError, OverflowError):
        return 0
    return seconds * _NS if 0 <= seconds < 2**33 else 0


_MOST_TEXT = 150
"""Characters of what a header says that are passed on; checksums have up to 128."""


def lacks_size(reply: Reply, facts: BucketFacts) -> bool:
    """Return whether a HEAD leaves the size of the object open.

    Servers before 4.2 leave out the length of an empty object, and gateways that of any. So without
    a length, or with none beside the checksum of something, it takes the checksum of nothing.
    """
    if reply.headers.get("content-length", "0") != "0":
        return False
    kind, _, value = _checksum(reply, facts).partition(":")
    if is_known(kind):
        return value.lower() != hasher_of(kind).hexdigest()
    return "content-length" not in reply.headers


def with_size(reply: Reply, first: Reply, request: Request) -> Reply:
    """Complete a HEAD by the reply to a GET of the first byte.

    Raises:
        Unavailable: that is of another version.
        ProtocolError: it does not tell either.
        AisfsError: what else it says.
    """
    subject, total = request.subject, first.headers.get("content-length", "")
    if first.status == 206:
        total = str(_content_range(first, subject)[2])
    elif first.status == 416:
        total = first.headers.get("content-range", "bytes */0").removeprefix("bytes */")
        if total != "0":
            raise ProtocolError(f"{subject}: no first byte of {shown(total)[:_MOST_TEXT]!r} bytes")
    marks = [
        (head, get)
        for name in ("ais-version", "ais-checksum-value")
        if (head := reply.headers.get(name)) and (get := first.headers.get(name))
    ]
    if first.status != 416 and any(head != get for head, get in marks):
        raise Unavailable(f"{subject}: changed while its size was asked for")
    return replace(reply, headers={**reply.headers, "content-length": total})


def parse_object(reply: Reply, bucket: Bucket, key: str, facts: BucketFacts) -> ObjectInfo:
    """Read the reply to a HEAD of an object that does not lack its size."""
    size = _number(reply.headers.get("content-length", "0"), f"{bucket}/{key}")
    version, custom = reply.headers.get("ais-version", ""), reply.headers.get("ais-custom-md", "")
    if bucket.provider is Provider.AIS:
        mtime = mtime_of_version(facts, version)
    else:
        mtime = last_modified(custom)
    info = ObjectInfo(key, size, version, _checksum(reply, facts), mtime)
    return with_custom(info, custom) if custom else info


def parse_first_byte(reply: Reply, bucket: Bucket, key: str, facts: BucketFacts) -> ObjectInfo:
    """Read what the reply to a GET of the first byte says of the whole object.

    Raises:
        ProtocolError: it does not say how large that is.
    """
    subject, size = f"{bucket}/{key}", reply.headers.get("content-length", "")
    headers = dict(reply.headers)
    if reply.status == 206:
        size = str(_content_range(reply, subject)[2])
        if facts.checksum_of_ranges:
            headers.pop("ais-checksum-value", None)
    elif reply.status == 416:
        size = headers.get("content-range", "bytes */0").removeprefix("bytes */")
    return parse_object(
        replace(reply, headers={**headers, "content-length": size}), bucket, key, facts
    )


def check_content(
    reply: Reply, bucket: Bucket, expected: ObjectInfo, facts: BucketFacts, start: int, stop: int
) -> None:
    """Make sure that the body to come is the bytes `[start, stop)` of exactly `expected`.

    Raises:
        Stale: it is another version.
        ProtocolError: it is another range.
        Unavailable: nothing says that it is this version.
    """
    subject = f"{bucket}/{expected.key}"
    length = reply.headers.get("content-length")
    whole = (start, stop) == (0, expected.size)
    # Something between us and the cluster may compress what it lets through.
    if (coding := reply.headers.get("content-encoding", "identity")) != "identity":
        raise ProtocolError(f"{subject}: the bytes came as {shown(coding)[:_MOST_TEXT]!r}")
    if reply.status == 206:
        first, last, size = _content_range(reply, subject)
        if length is not None and _number(length, subject) != last + 1 - first:
            raise ProtocolError(f"{subject}: {length} bytes came for bytes {first}-{last}")
    elif whole:
        # Without a length the body is counted as it comes.
        size = expected.size if length is None else _number(length, subject)
        first, last = start, stop - 1
    else:
        raise ProtocolError(f"{subject}: the whole object came instead of a part of it")
    checksum = _checksum(reply, facts)
    if facts.checksum_of_ranges and reply.status == 206:
        checksum = ""
    if checksum and checksum.partition(":")[2] == expected.checksum.partition(":")[2]:
        # Objects older than a change of the bucket's type keep theirs; listings cannot tell.
        checksum = expected.checksum
    version = reply.headers.get("ais-version", "")
    found = ObjectInfo(expected.key, size, version, checksum)
    if not expected.same_content(found):
        raise Stale(
            f"{subject}: changed on the server (was {_brief(expected)}, is {_brief(found)})"
        )
    by_version = expected.version and version
    by_checksum = expected.checksum and (checksum or reply.headers.get("ais-checksum-value"))
    if (expected.version or expected.checksum) and not (by_version or by_checksum):
        raise Unavailable(f"{subject}: the reply does not say which version its bytes are of")
    if (first, last) != (start, stop - 1):
        raise ProtocolError(f"{subject}: bytes {first}-{last} came instead of {start}-{stop - 1}")


# Nothing is larger than 2**62 bytes, and numbers of thousands of digits are no numbers to Python.
_NUMBER = re.compile(r"[0-9]{1,18}")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


def _content_range(reply: Reply, subject: str) -> tuple[int, int, int]:
    text = reply.headers.get("content-range", "")
    match = _CONTENT_RANGE.fullmatch(text)
    if not match:
        raise ProtocolError(f"{subject}: Content-Range is {shown(text)[:_MOST_TEXT]!r}")
    first, last, size = match.groups()
    return int(first), int(last), int(size)


def _checksum(reply: Reply, facts: BucketFacts) -> str:
    value = reply.headers.get("ais-checksum-value", "")
    kind = reply.headers.get("ais-checksum-type", "") or facts.checksum_type
    return f"{kind}:{value}" if value and kind and kind != "none" else ""


def _number(text: str, subject: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ProtocolError(f"{subject}: a length of {shown(text)[:_MOST_TEXT]!r} bytes")
    return int(text)


def _brief(info: ObjectInfo) -> str:
    known = f"{info.size} bytes, version {shown(info.version)[:_MOST_TEXT] or 'unknown'}"
    return f"{known}, {shown(info.checksum)[:_MOST_TEXT]}" if info.checksum else known


_BYTES_A_SECOND = 50e6
"""At least as fast reads and writes a target what it works on without a word to us."""


def put_object(bucket: Bucket, key: str, *, checksum: str = "", custom: str = "") -> Request:
    """Write an object; the content goes along when the request is sent.

    Args:
        bucket: The bucket.
        key: Name of the object.
        checksum: Of the content, `<type>:<hex>`: the target compares before it commits.
        custom: What `custom_text` will give back.
    """
    headers = _checksum_headers(checksum)
    if custom:
        headers["Ais-Custom-Md"] = f"{_OURS}={custom}"
    return _request("PUT", bucket, key, headers=headers)


def create_bucket(bucket: Bucket) -> Request:
    """Make an empty bucket, with the properties that the cluster gives to new ones."""
    body = encode_json({"action": "create-bck", "name": "", "value": None})
    path, query, headers = bucket_path(bucket), bucket_query(bucket), {"Content-Type": JSON}
    return Request("POST", path, query, str(bucket), headers, body)


def destroy_bucket(bucket: Bucket) -> Request:
    """Destroy a bucket with all that is in it."""
    body = encode_json({"action": "destroy-bck", "name": "", "value": None})
    path, query, headers = bucket_path(bucket), bucket_query(bucket), {"Content-Type": JSON}
    return Request("DELETE", path, query, str(bucket), headers, body)


def delete_object(bucket: Bucket, key: str) -> Request:
    """Delete one object."""
    return _request("DELETE", bucket, key)


def copy_object(bucket: Bucket, source: ObjectInfo, to_bucket: Bucket, new_key: str) -> Request:
    """Copy an object within the cluster. AIStore may say yes and not do it."""
    space = to_bucket.namespace or "@#"
    to = f"{to_bucket.provider.value}/{space}/{to_bucket.name}/{new_key}"
    request = _request("PUT", bucket, source.key, {"object_to": to})
    return replace(request, patience=source.size / _BYTES_A_SECOND)


def transform_object(
    bucket: Bucket, key: str, etl: str, arguments: str, to_bucket: Bucket, new_key: str
) -> Request:
    """Store a copy of an object as an ETL transforms it; it has no version."""
    space = to_bucket.namespace or "@#"
    to = f"{to_bucket.provider.value}/{space}/{to_bucket.name}/{new_key}"
    query = {"etl_name": etl, **({"etl_args": arguments} if arguments else {}), "object_to": to}
    return replace(_request("PUT", bucket, key, query), patience=TRANSFORM_SECONDS)


def patch_custom(bucket: Bucket, key: str, custom: str) -> Request:
    """Replace our pair of the custom metadata; the pairs of others stay."""
    body = encode_json({"action": "", "name": "", "value": {_OURS: custom}})
    return _request("PATCH", bucket, key, headers={"Content-Type": JSON}, body=body)


def start_parts(bucket: Bucket, key: str) -> Request:
    """Begin an upload in parts."""
    return _action("POST", bucket, key, {}, {"action": "mpt-upload"})


def put_part(bucket: Bucket, key: str, upload: str, number: int, checksum: str = "") -> Request:
    """Send one part, numbered from 1; the content goes along."""
    query = {"uploadId": upload, "partNumber": str(number)}
    return _request("PUT", bucket, key, query, headers=_checksum_headers(checksum))


def complete_parts(bucket: Bucket, key: str, upload: str, sizes: Sequence[int]) -> Request:
    """Make the parts an object."""
    parts = [{"part-number": number, "etag": ""} for number in range(1, len(sizes) + 1)]
    message = {"action": "mpt-complete", "value": parts}
    request = _action("POST", bucket, key, {"uploadId": upload}, message)
    return replace(request, patience=sum(sizes) / _BYTES_A_SECOND)


def abort_parts(bucket: Bucket, key: str, upload: str) -> Request:
    """Throw the parts away."""
    return _action("DELETE", bucket, key, {"uploadId": upload}, {"action": "mpt-abort"})


def parse_upload_id(reply: Reply, subject: str) -> str:
    """Read the id of an upload in parts."""
    text = reply.body.decode("ascii", "replace").strip()
    if not re.fullmatch(r"[!-~]{1,200}", text):
        raise ProtocolError(f"{subject}: the id of the upload is {shown(text)[:_MOST_TEXT]!r}")
    return text


def parse_written(
    reply: Reply, bucket: Bucket, key: str, size: int, facts: BucketFacts
) -> ObjectInfo | None:
    """Read the reply to a PUT; None when it says nothing, as when the object was there already."""
    if "ais-checksum-value" not in reply.headers and "ais-version" not in reply.headers:
        return None
    headers = {**reply.headers, "content-length": str(size)}
    return parse_object(replace(reply, headers=headers), bucket, key, facts)


def may_be_lost(name: str) -> bool:
    """Return whether AIStore is known to lose what is copied or renamed to this name."""
    return "%" in name or "?" in name


_OURS = "aisfs"
"""Name of our one pair; `wire.custom_text` finds it."""


def _checksum_headers(checksum: str) -> dict[str, str]:
    if not checksum:
        return {}
    kind, _, value = checksum.partition(":")
    return {"Ais-Checksum-Type": kind, "Ais-Checksum-Value": value}


def _action(
    method: str, bucket: Bucket, key: str, query: Mapping[str, str], message: Mapping[str, object]
) -> Request:
    body = encode_json(message)
    return _request(method, bucket, key, query, headers={"Content-Type": JSON}, body=body)


def _request(
    method: str,
    bucket: Bucket,
    key: str,
    query: Mapping[str, str] | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Request:
    if key.endswith("/"):
        raise InvalidName(f"{bucket}: {key!r} is not a name of an object")
    path = object_path(bucket, key)
    return Request(
        method, path, bucket_query(bucket, query), f"{bucket}/{key}", headers or {}, body
    )
