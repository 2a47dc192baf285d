"""The listing of objects: from AIStore's message to one page in JSON or MessagePack.

Pages lose names as AIStore's do. A target walks each disk separately and meets the contents of a directory
`X` where the bare `X` sorts, before `X y` and `X.tar`. It merges these walks by bare name, ends a page after
a number of names and sorts the page. The proxy sorts and cuts the pages of all targets; the last name is the
token. The next page has the names that are greater as strings: after `X/`, or any name below it, all names
between `X` and `X/` that were not on the page are skipped.
"""

import heapq
import os
import random
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from aisfs.server.api.archives import list_members
from aisfs.server.failures import Failure
from aisfs.server.messages import Reply
from aisfs.server.storage.bucket import (
    Bucket,
    Directories,
    Found,
    bytewise,
    keys_below,
    parents,
    walk,
)
from aisfs.server.storage.traps import Kindness


def as_met(name: bytes) -> tuple[bytes, bytes]:
    """Sort names of one directory as a walk meets them; names of directories end with a slash."""
    return _bare(name), name


def _bare(name: bytes) -> bytes:
    return name.removesuffix(b"/")


walk_disk = partial(walk, order=as_met)
"""What a walk of one disk meets; see `walk`."""


def cut_page(
    walks: Iterable[Iterator[bytes]],
    token: bytes,
    start_after: bytes,
    size: int,
    corrupted: frozenset[bytes] = frozenset(),
) -> list[bytes]:
    """Return the names that one target has for a page.

    Args:
        walks: one for each disk.
        token: the token of the previous page.
        start_after: objects up to here are left out, directories are not.
        size: how many names fit.
        corrupted: objects at which a listing ends as if there were no more.
    """
    found: set[bytes] = set()
    for key in heapq.merge(*walks, key=_bare):
        if key in corrupted:
            break
        if key > token and (key > start_after or key.endswith(b"/")):
            found.add(key)
            if len(found) == size:
                break
    return sorted(found)


def join_pages(pages: Iterable[Sequence[bytes]], size: int) -> tuple[list[bytes], bytes]:
    """Merge the pages of all targets as a proxy does; return the names and a token."""
    found = sorted({key for page in pages for key in page})[:size]
    return found, found[-1] if len(found) == size else b""


PAGE = 10_000
"""AIStore's page size for its own buckets, used when the request names none."""
ONLY_CACHED, WITH_MISPLACED, ARCHIVE_CONTENTS, NAME_ONLY = 1, 2, 8, 16
NOT_CACHED, NO_RECURSION, DIFF = 512, 2048, 4096
MISPLACED, CACHED, MEMBER, DIRECTORY, ARCHIVE = 1, 64, 128, 256, 512
CHUNKED = 8192
_CONTROL = re.compile(rb"[\x00-\x1f]")
_UUID = re.compile(r"[A-Za-z0-9_-]{7,64}")
_KNOWN_ONLY_FROM_RECORDS = frozenset({"version", "checksum", "custom"})


class Message(msgspec.Struct):
    """The `value` of a list action; fields that the server does not use are ignored."""

    uuid: str = ""
    props: str = ""
    time_format: str = ""
    prefix: str = ""
    start_after: str = ""
    continuation_token: str = ""
    flags: str = "0"
    pagesize: int = 0


_SHORT_KEYS = {
    "name": "n",
    "checksum": "cs",
    "atime": "a",
    "version": "v",
    "location": "t",
    "custom-md": "m",
    "size": "s",
    "copies": "c",
    "flags": "f",
}
"""The keys of an entry in MessagePack."""

Fields = dict[str, Any]
"""An entry of a listing by the keys of JSON; those that are empty or zero are left out."""


def parse(value: object, bucket: str) -> Message:
    """Return the message of a list request.

    Raises:
        Failure: 400 for anything that AIStore refuses, such as flags that are a number.
    """
    if value is None:
        text = f'bad list-buckets request: "{bucket}" vs "" (ais://{bucket}, actm[list])'
        raise Failure(400, text)
    try:
        message = msgspec.convert(value, Message)
        flags = int(message.flags)
    except (msgspec.ValidationError, ValueError) as error:
        raise Failure(
            400, f"p[{{node}}]: failed to unmarshal list ({value}), err: {error}"
        ) from error
    if message.uuid and not _UUID.fullmatch(message.uuid):
        raise Failure(400, f'list-objects: invalid UUID "{message.uuid}"')
    if flags & (NOT_CACHED | DIFF):
        raise Failure(400, f"ais://{bucket}: flags {flags} are for remote buckets")
    message.prefix = message.prefix.rstrip("*")
    parts = message.prefix.split("/")
    if ".." in parts or (len(parts) > 1 and parts[0] in (".", "~")):
        text = f'bad list-objects request: invalid prefix "{message.prefix}"'
        raise Failure(400, text, "errInvalidPath")
    return message


class Lister:
    """Builds pages of listings."""

    def __init__(self, node_id: str, traps: Kindness) -> None:
        self._traps = traps
        self._directories = Directories(as_met if traps.loses_names else bytewise)
        self._node_id = node_id

    def page(self, bucket: Bucket, message: Message, packed: bool) -> Reply:
        """Reply to one list request."""
        limit = message.pagesize if message.pagesize > 0 else PAGE
        self._traps.moving.check_mapped(bucket.name)
        keys, token = self.keys(bucket, message, limit)
        # AIStore forgets what the targets say that have nothing in the page.
        flags = int(bool(keys) and self._traps.moving.is_incomplete)
        entries = self._entries(bucket, keys, message)
        return encoded_page(message.uuid or secrets.token_urlsafe(6), token, entries, packed, flags)

    def keys(self, bucket: Bucket, message: Message, limit: int) -> tuple[list[bytes], bytes]:
        """Return the names of a page, and the token of the next one."""
        if self._traps.loses_names:
            return self._real_page(bucket, message, limit)
        keys = list(islice(self._keys(bucket, message), limit))
        return keys, keys[-1] if len(keys) == limit else b""

    def _keys(self, bucket: Bucket, message: Message) -> Iterator[bytes]:
        prefix = os.fsencode(message.prefix)
        token = os.fsencode(message.continuation_token)
        first = os.fsencode(message.start_after)
        if prefix.startswith(b"/"):
            return iter(())
        known, continued = self._directories, bool(token)
        if int(message.flags) & NO_RECURSION:
            names = partial(known.names, bucket, continued=continued)
            # AIStore's start_after leaves directories alone.
            level = walk(names, prefix, token, recursive=False)
            return (k for k in level if k.endswith(b"/") or k > first)
        return keys_below(known, bucket, prefix, max(token, first), continued=continued)

    def _real_page(self, bucket: Bucket, message: Message, limit: int) -> tuple[list[bytes], bytes]:
        prefix = os.fsencode(message.prefix)
        token, first = os.fsencode(message.continuation_token), os.fsencode(message.start_after)
        if prefix.startswith(b"/"):
            return [], b""
        recursive = not int(message.flags) & NO_RECURSION
        corrupted = frozenset[bytes]() if _only_names(message) else bucket.corrupted()
        after = max(token, first) if recursive else token
        if corrupted:
            after = b""  # a walk also meets what is not listed

        def names(inside: bytes) -> list[bytes]:
            found = self._directories.names(bucket, inside, bool(token))
            kept = self._traps.kept(bucket.name, inside)
            return sorted({*found, *kept}, key=as_met) if kept else found

        partial = not prefix.endswith(b"/") and prefix
        misplaced = _with_misplaced(message)

        def walk_of(disk: int) -> Iterator[bytes]:
            start = self._start(bucket, prefix, disk, recursive)
            for key in walk_disk(names, start, after, recursive) if start is not None else ():
                if key.endswith(b"/"):
                    if not partial or self._traps.has_directory(bucket, key[:-1], disk):
                        yield key
                elif (
                    self._traps.disk_of(bucket.name, key) == disk
                    and (misplaced or not self._traps.is_misplaced(bucket.name, key))
                    and (misplaced or not self._traps.moving.hides(bucket.name, key))
                ):
                    yield key

        pages = [
            cut_page([walk_of(2 * t), walk_of(2 * t + 1)], token, first, limit, corrupted)
            for t in range(self._traps.targets)
            if not self._gives_up(bucket, prefix, t)
        ]
        return join_pages(pages, limit)

    def _start(self, bucket: Bucket, prefix: bytes, disk: int, recursive: bool) -> bytes | None:
        """Return the prefix that a disk is walked for; None if the disk is not walked.

        A directory with the name of the prefix is walked alone.
        """
        if not prefix or prefix.endswith(b"/"):
            return prefix
        if self._traps.has_directory(bucket, prefix, disk):
            return prefix + b"/"
        return prefix if recursive or b"/" not in prefix else None

    def _gives_up(self, bucket: Bucket, prefix: bytes, target: int) -> bool:
        """Return whether a target lists nothing, as it may when a disk has an object for the directory."""
        above = parents(prefix) if prefix.endswith(b"/") else []
        objects = [key for key in above if key in bucket.beside]
        hits = [key for key in objects if self._traps.target_of(bucket.name, key) == target]
        return bool(hits) and random.random() < 0.5

    def _entries(self, bucket: Bucket, keys: list[bytes], message: Message) -> list[Fields]:
        props, flags = props_of(message), int(message.flags)
        if _only_names(message):
            props = {"name"}
        misplaced = _with_misplaced(message)
        bare = props <= {"name", "cached", "status"} and not (flags & ARCHIVE_CONTENTS or misplaced)
        records = None
        if keys and (props & _KNOWN_ONLY_FROM_RECORDS or bucket.records.has_chunks):
            records = bucket.records.between(keys[0], keys[-1])
        entries: list[Fields] = []
        for key in keys:
            if key.endswith(b"/"):
                entries.append({"name": key, "flags": DIRECTORY})
                continue
            if bare:
                entries.append({"name": key, "flags": CACHED | self._place(bucket, key)})
                continue
            try:
                status = os.stat(bucket.path_of(key))
            except OSError:
                continue  # deleted since the directory was scanned
            if not stat.S_ISREG(status.st_mode):
                continue
            record = (records or {}).get((key, status.st_size, status.st_mtime_ns))
            found = bucket.found(status, record)
            entry = self._entry(key, found, props, message.time_format)
            entry["flags"] |= self._place(bucket, key)
            entries.append(entry)
            other = self._second(bucket, key, found) if misplaced else None
            if other and not flags & NO_RECURSION:  # AIStore drops repeated names of one level
                second = self._entry(key, other, props, message.time_format)
                entries.append({**second, "flags": second["flags"] | MISPLACED})
            if flags & ARCHIVE_CONTENTS:
                entries += _contents(bucket, key, entry)
        return entries

    def _place(self, bucket: Bucket, key: bytes) -> int:
        misplaced = self._traps.is_misplaced(bucket.name, key)
        return MISPLACED if misplaced or self._traps.moving.hides(bucket.name, key) else 0

    def _second(self, bucket: Bucket, key: bytes, found: Found) -> Found | None:
        """Return what another target has of an object while data moves."""
        moving = self._traps.moving
        if copy := moving.misplaced.get((bucket.name, key)):
            with suppress(OSError):  # it has just come
                return bucket.found(os.stat(copy.path), copy.record)
        is_same = moving.is_to_come(bucket.name, key) and not moving.hides(bucket.name, key)
        return found if is_same else None

    def _entry(self, key: bytes, found: Found, props: set[str], time_format: str) -> Fields:
        record = found.record
        custom = " ".join(f"{k}:{v}" for k, v in record.custom.items())
        known = {
            "checksum": record.checksum,
            "atime": _time_text(found.atime_ns, time_format) if "atime" in props else "",
            "version": record.version,
            "location": f"t[{self._node_id}]:mp[/]",
            "custom": f"[{custom}]" if custom else "",
            "size": found.size,
            "copies": 1,
        }
        flags = CACHED | (CHUNKED if record.chunks else 0)
        entry: Fields = {"name": key, "flags": flags}
        for prop, value in known.items():
            if value and prop in props:
                entry["custom-md" if prop == "custom" else prop] = value
        return entry


def encoded_page(
    uuid: str, token: bytes, entries: list[Fields], packed: bool, flags: int = 0
) -> Reply:
    """Return the reply with a page, in JSON or `packed` in MessagePack."""
    page: Fields
    if packed:
        page = {
            "UUID": uuid,
            "ContinuationToken": _packed(token),
            "Entries": [_packed_entry(entry) for entry in entries],
            "Flags": flags,
        }
        kind, body = "application/msgpack", msgspec.msgpack.encode(page)
    else:
        page = {
            "uuid": uuid,
            "continuation_token": _quoted(token),
            "entries": [_quoted_entry(entry) for entry in entries] or None,
            "flags": flags,
        }
        kind, body = "application/json; charset=utf-8", msgspec.json.encode(page)
    return Reply(headers=[("Content-Type", kind)], body=body)


def props_of(message: Message) -> set[str]:
    """Return the properties that a listing is to have."""
    cached = int(message.flags) & ONLY_CACHED
    usual = "name,size,checksum,atime" if cached else "name,size,cached"
    return set((message.props or usual).split(","))


def _only_names(message: Message) -> bool:
    return bool(int(message.flags) & NAME_ONLY) or props_of(message) == {"name"}


def _with_misplaced(message: Message) -> bool:
    # A listing of names only does not read what shows that an object is misplaced.
    return bool(int(message.flags) & WITH_MISPLACED) and not _only_names(message)


def _contents(bucket: Bucket, key: bytes, shard: Fields) -> list[Fields]:
    members = list_members(bucket.path_of(key), key)
    if members is None:
        return []
    shard["flags"] |= ARCHIVE
    named = ((os.path.normpath(key + b"/" + name.lstrip(b"/")), size) for name, size in members)
    return [
        {"name": name, "flags": CACHED | MEMBER, **({"size": size} if size else {})}
        for name, size in sorted(named)
    ]


def _packed_entry(entry: Fields) -> Fields:
    short = {_SHORT_KEYS[key]: value for key, value in entry.items()}
    short["n"] = _packed(entry["name"])
    return short


def _quoted_entry(entry: Fields) -> Fields:
    entry["name"] = _quoted(entry["name"])
    if "size" in entry:
        entry["size"] = str(entry["size"])
    return entry


def _quoted(key: bytes) -> str | msgspec.Raw:
    """Return a name for JSON; bytes that are not UTF-8 stay raw, as in AIStore."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        escaped = key.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        escaped = _CONTROL.sub(lambda found: b"\\u%04x" % found[0][0], escaped)
        return msgspec.Raw(b'"' + escaped + b'"')


def _packed(key: bytes) -> str | msgspec.Raw:
    """Return a name for MessagePack; bytes that are not UTF-8 stay unchanged in a string."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        # str 16: names this server can have are shorter than 64 KiB.
        return msgspec.Raw(b"\xda" + len(key).to_bytes(2, "big") + key)


def _time_text(time_ns: int, form: str) -> str:
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    if form.startswith("2006-01-02T15"):
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns % 1_000_000_000:09d}Z"
    return f"{moment:%d %b %y %H:%M} UTC"
