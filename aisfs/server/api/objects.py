"""Requests about one object, as a target answers them, and the headers they have in common."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from email.utils import formatdate
from itertools import chain
from pathlib import Path

from aisfs.server import failures
from aisfs.server.api import archives
from aisfs.server.failures import Failure, Headers, uri_of
from aisfs.server.messages import REPEATED, HeldFile, Reply, Request, base36
from aisfs.server.storage.bucket import Bucket, Found, check_key, checksum_type, setting
from aisfs.server.storage.objects import Storage, write_out
from aisfs.server.storage.records import HASHERS, Damage, Record, break_off, hash_file

_RANGE = re.compile(r"(\d*)-(\d*)")


def attributes(found: Found) -> Headers:
    """Return the headers that describe an object in GET and PUT replies."""
    record = found.record
    headers = [("Ais-Atime", str(found.atime_ns)), *_checksum(record)]
    if record.version:
        headers.append(("Ais-Version", record.version))
    return headers + _custom(record)


def by_property(found: Found, location: str) -> dict[str, Headers]:
    """Return the headers of each property that a HEAD can ask for."""
    record = found.record
    count, largest = record.chunks or (0, 0)
    chunks = [("Ais-Chunks-Count", str(count)), ("Ais-Chunks-Max-Chunk-Size", str(largest))]
    return {
        "name": [],
        "size": [],
        "ec": [],
        "checksum": _checksum(record),
        "atime": [("Ais-Atime", str(found.atime_ns))],
        "version": [("Ais-Version", record.version)] if record.version else [],
        "custom": _custom(record),
        "last-modified": [("Last-Modified", http_date(found.mtime_ns))],
        "etag": [("Etag", etag(found))],
        "copies": [("Ais-Mirror-Copies", "1"), ("Ais-Mirror-Paths", "/")],
        "location": [("Ais-Location", location)],
        "chunked": chunks if count else [],
    }


def _checksum(record: Record) -> Headers:
    pairs = [("Ais-Checksum-Type", record.checksum_type), ("Ais-Checksum-Value", record.checksum)]
    return pairs if record.checksum else []


def _custom(record: Record) -> Headers:
    return [("Ais-Custom-Md", f"{k}={v}") for k, v in record.custom.items()]


def http_date(time_ns: int) -> str:
    """Return a time as HTTP's headers have it."""
    return formatdate(time_ns // 10**9, usegmt=True)


def etag(found: Found) -> str:
    """Return the ETag of an object, with its quotes."""
    record = found.record
    if record.checksum_type == "md5":
        return f'"{record.checksum}"'
    return f'"v1-{record.checksum or record.version}-{base36(found.mtime_ns)}"'


def custom_pairs(request: Request) -> dict[str, str]:
    """Return the custom metadata of a PUT, which has one pair per header line."""
    raw = request.header("Ais-Custom-Md")
    pairs = {}
    for line in raw.split(REPEATED) if raw else []:
        name, equals, value = (
            line.encode("latin-1").decode("utf-8", "surrogateescape").partition("=")
        )
        if not equals:
            text = f'custom metadata: invalid format "{line}" (expecting key=value)'
            raise Failure(400, text)
        pairs[name.strip()] = value.strip()
    return pairs


def parse_range(asked: str, size: int, uri: str) -> tuple[int, int]:
    """Return the offset and length that a Range header asks for.

    Raises:
        Failure: 416, worded as AIStore does.
    """
    if not asked.startswith("bytes="):
        raise Failure(416, f'read range "{asked}" is invalid (prefix)')
    spec = asked.removeprefix("bytes=").strip()
    if "," in spec:
        raise Failure(416, f"cannot multi-range read {uri} - operation not supported", "ErrUnsupp")
    match = _RANGE.fullmatch(spec)
    if not match or not (match[1] or match[2]):
        raise Failure(416, f'read range "{asked}" is invalid (-)')
    if not match[1]:
        length = min(int(match[2]), size)
        return size - length, length
    start = int(match[1])
    if match[2] and int(match[2]) < start:
        raise Failure(416, f'read range "{spec}" is invalid (end)')
    if start >= size:
        text = f"size={size}: not satisfiable range [{spec}]"
        headers = [("Content-Range", f"bytes */{size}")]
        raise Failure(416, text, "ErrRangeNotSatisfiable", headers=headers)
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    return start, last - start + 1


SMALL = 128 << 10
"""Objects up to this size are read at once and release their lock before they are sent: they fit
the socket buffers, and one `pread` is cheaper than setting up `sendfile`."""
STALL_SECONDS = 600.0
"""A client that accepts no byte for this long is disconnected, which releases the object's lock."""


class Objects:
    """GET, HEAD, PUT, DELETE, PATCH and rename of objects."""

    def __init__(self, storage: Storage, node_id: str) -> None:
        self._storage = storage
        self._location = f"t[{node_id}]:mp[/]"

    def check_moved(self, request: Request, bucket: Bucket, key: bytes) -> None:
        """Check that the target of a name has its object, if there is one, for what is requested.

        Raises:
            Failure: the object is still to come there.
        """
        moving, query = self._storage.traps.moving, request.query
        moving.check_mapped(bucket.name, key)
        match request.method:
            case "GET":
                moving.check_readable(bucket.name, key)
            case "PUT" if query.get("object_to") or query.get("archpath"):
                self._check_there(bucket, key)
            case "HEAD" | "PATCH":
                self._check_there(bucket, key)
            case "DELETE" if "uploadId" not in query and moving.hides(bucket.name, key):
                request.drain()
                raise failures.no_object_to_delete(bucket.name, key)

    def _check_there(self, bucket: Bucket, key: bytes) -> None:
        if self._storage.traps.moving.hides(bucket.name, key):
            raise failures.no_object(bucket.name, key)

    # HEAD

    def head(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Describe an object, in the old format or by the requested properties."""
        found = bucket.find(key)
        if found is None:
            raise failures.no_object(bucket.name, key)
        found.check(400)
        props = request.query.get("props", "")
        if not props:
            return Reply(headers=self._head_v1(bucket, key, found))
        known = by_property(found, self._location)
        headers = [("Ais-Present", "true"), ("Content-Length", str(found.size))]
        for prop in dict.fromkeys(props.split(",")):
            if prop not in known:
                text = f'invalid property "{prop}" in props list'
                raise Failure(400, text, headers=[("Ais-Present", "true")])
            headers += known[prop]
        return Reply(headers=headers)

    def _head_v1(self, bucket: Bucket, key: bytes, found: Found) -> Headers:
        headers = [
            ("Ais-Name", failures.text_of(key)),
            ("Ais-Bucket-Name", bucket.name),
            ("Ais-Bucket-Provider", "ais"),
            ("Ais-Present", "true"),
            ("Ais-Location", self._location),
            ("Ais-Mirror-Copies", "1"),
            ("Ais-Mirror-Paths", "[/]"),
            *attributes(found),
        ]
        if found.size:  # as AIStore's old format, which states no length for an empty object
            headers.append(("Content-Length", str(found.size)))
        return headers

    # GET

    def get(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Return an object, a range of it, one member or a selection of members."""
        query = request.query
        path, mode = query.get("archpath", ""), query.get("archmode", "")
        _check_member_request(path, mode, request.header("Range"))
        wanted = archives.matcher(mode, query.get("archregx", "")) if mode else None
        if setting(bucket, "checksum", "validate_warm_get"):
            self._validate(bucket, key)
        with ExitStack() as held:
            fd, found = self.open(bucket, key, held)
            if path:
                reply = self._member(fd, bucket, key, path, query.get("archmime", ""))
            elif wanted is not None:
                reply = self._selection(fd, bucket, key, query, wanted)
            else:
                reply = self.content(request, fd, bucket, key, found)
            if reply.file is not None:
                request.set_timeout(STALL_SECONDS)
                reply.file.hold(held)
        return reply

    def open(self, bucket: Bucket, key: bytes, held: ExitStack) -> tuple[int, Found]:
        """Return a descriptor of an object, which stays open and locked for reading as long as `held`.

        Raises:
            Failure: there is none, or it cannot be read.
        """
        held.enter_context(self._storage.locks.reading((bucket.name, key)))
        fd, found = self._open(bucket, key)
        held.callback(os.close, fd)
        bucket.load(key, found)
        return fd, found

    def _open(self, bucket: Bucket, key: bytes) -> tuple[int, Found]:
        try:
            fd = bucket.open(key)
        except PermissionError as error:
            raise Failure(500, f"{uri_of(bucket.name, key)}: permission denied") from error
        except OSError as error:
            raise self._absent(bucket, key) from error
        found = bucket.find(key, os.fstat(fd))
        if found is not None:
            return fd, found
        os.close(fd)
        raise self._absent(bucket, key)

    def _absent(self, bucket: Bucket, key: bytes) -> Failure:
        traps = self._storage.traps
        if traps.has_directory(bucket, key, traps.disk_of(bucket.name, key)):
            return failures.is_directory(bucket.name, key)
        return failures.no_object(bucket.name, key)

    def _validate(self, bucket: Bucket, key: bytes) -> None:
        """Delete an object that has grown in place, as AIStore does in buckets that validate reads."""
        found = bucket.find(key)
        if found and found.record.damage and found.record.damage.unchecked:
            self._storage.delete(bucket, key)
            context = f"o[{bucket.name}/{failures.text_of(key)}]"
            raise failures.wrong_checksum("none", "", "", context)

    @staticmethod
    def content(
        request: Request,
        fd: int,
        bucket: Bucket,
        key: bytes,
        found: Found,
        describe: Callable[[Found], Headers] = attributes,
    ) -> Reply:
        """Return an open object, or the range that is asked for, with the headers that describe it."""
        headers = [("Content-Type", "application/octet-stream")]
        start, length, status = 0, found.size, 200
        if asked := request.header("Range"):
            start, length = parse_range(asked, found.size, uri_of(bucket.name, key))
            status = 206
            last = start + length - 1
            headers.append(("Accept-Ranges", "bytes"))
            headers.append(("Content-Range", f"bytes {start}-{last}/{found.size}"))
        record = found.record
        if status == 206 and record.checksum and setting(bucket, "checksum", "enable_read_range"):
            hasher = HASHERS[record.checksum_type]()
            hasher.update(os.pread(fd, length, start))
            found = replace(found, record=replace(record, checksum=hasher.hexdigest()))
        sound = record.damage.readable(start, length, headers) if record.damage else length
        headers += describe(found)
        if sound < length:
            headers.append(("Content-Length", str(length)))
            return Reply(status, headers, stream=break_off(os.dup(fd), start, sound))
        if length <= SMALL:
            body = os.pread(fd, length, start)
            if len(body) == length:
                return Reply(status, headers, body)
        headers.append(("Content-Length", str(length)))
        sock = request.environ.get("gunicorn.socket")
        return Reply(status, headers, file=HeldFile(fd, start, length, sock))

    @staticmethod
    def _member(fd: int, bucket: Bucket, key: bytes, path: str, mime: str) -> Reply:
        headers = [("Content-Type", "application/octet-stream")]
        with os.fdopen(os.dup(fd), "rb") as file:
            form = archives.format_of(mime, key, file)
            member = archives.find_member(file, form, path, bucket.name, key)
        if member.content is not None:
            return Reply(headers=headers, body=member.content)
        if member.size <= SMALL:
            return Reply(headers=headers, body=os.pread(fd, member.size, member.offset))
        headers.append(("Content-Length", str(member.size)))
        return Reply(headers=headers, file=HeldFile(fd, member.offset, member.size, None))

    @staticmethod
    def _selection(
        fd: int, bucket: Bucket, key: bytes, query: dict[str, str], wanted: Callable[[str], bool]
    ) -> Reply:
        with ExitStack() as held:
            file = held.enter_context(os.fdopen(os.dup(fd), "rb"))
            form = archives.format_of(query.get("archmime", ""), key, file)
            pieces = archives.select(file, form, wanted)
            first = next(pieces, None)
            if first is None:
                what = f"(archregx={query.get('archregx', '')}, archmode={query['archmode']})"
                text = f"t[{{node}}]: {what} in {uri_of(bucket.name, key)} does not exist"
                raise Failure(404, text, "ErrNotFound")
            held.pop_all()

        def stream() -> Iterator[bytes]:
            # The open file keeps its bytes even if its name is removed meanwhile.
            with file:
                yield from chain([first], pieces)

        return Reply(headers=[("Content-Type", "application/x-tar")], stream=stream())

    # Changes

    def put(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Store an object."""
        given_type = request.header("Ais-Checksum-Type")
        given = request.header("Ais-Checksum-Value")
        custom, since = custom_pairs(request), self._storage.traps.moving.version
        if given_type and given_type not in HASHERS:
            raise Failure(400, f'invalid checksum type "{given_type}"')
        if given:
            moving = self._storage.traps.moving
            now = None if moving.hides(bucket.name, key) else bucket.find(key)
            if now and (now.record.checksum_type, now.record.checksum) == (given_type, given):
                request.drain()
                return Reply()
        skip = request.query.get("skip_vc") == "true"
        kind = checksum_type(bucket)
        check = given and kind != "none" and not skip
        hashers = [HASHERS[name]() for name in dict.fromkeys((kind, given_type if check else kind))]
        with self._storage.work_file() as work:
            with work.open("xb") as file:
                write_out(request.pieces(), file, hashers)
            computed = hashers[-1].hexdigest()
            if check and computed != given:
                context = uri_of(bucket.name, key)
                raise failures.wrong_checksum(given_type, given, computed, context)
            # The bucket's checksum type may have changed meanwhile.
            found = self.publish(
                bucket,
                key,
                work,
                custom,
                kind=kind,
                checksum=hashers[0].hexdigest(),
                fresh=skip,
                since=since,
            )
        return Reply(headers=attributes(found))

    def publish(
        self,
        bucket: Bucket,
        key: bytes,
        work: Path,
        custom: dict[str, str] | None = None,
        *,
        kind: str = "",
        checksum: str | None = None,
        fresh: bool = False,
        chunks: tuple[int, int] | None = None,
        damage: Damage | None = None,
        since: int | None = None,
        versioned: bool = True,
    ) -> Found:
        """Make a work file the next version of an object.

        Args:
            bucket: The bucket.
            key: The object.
            work: The complete content.
            custom: Custom metadata, which is merged into that of the previous version.
            kind: The checksum type, if it is not the bucket's.
            checksum: The checksum of `work`, if it is known.
            fresh: Ignore the previous version, as `skip_vc` does.
            chunks: Number and largest size of the parts of an upload.
            damage: What a trap has damaged.
            since: Version of the cluster's map when the request came, where that matters.
            versioned: Whether it has a version where the bucket has them.
        """
        kind = kind or checksum_type(bucket)
        checksum = hash_file(work, kind) if checksum is None else checksum
        with self._storage.locks.writing((bucket.name, key)):
            old = bucket.find(key)
            # A target that the previous version has not reached begins anew.
            fresh = fresh or self._storage.traps.moving.hides(bucket.name, key)
            known = None if fresh or old is None else old.record
            kept = known.custom if known else {}
            count = known.number if known else 0
            record = Record(
                str(count + 1) if versioned and setting(bucket, "versioning", "enabled") else "",
                kind if checksum else "",
                checksum,
                {**kept, **(custom or {})},
                chunks,
                damage,
            )
            moving = self._storage.traps.moving
            if since is not None and moving.stays_behind(bucket.name, key, since):
                return Bucket.found(os.stat(work), record)
            return self._storage.commit(bucket, key, work, record, old)

    def delete(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Remove an object."""
        request.drain()
        if not self._storage.delete(bucket, key):
            raise failures.no_object_to_delete(bucket.name, key)
        return Reply()

    def rename(self, bucket: Bucket, key: bytes, name: str) -> Reply:
        """Move an object within its bucket."""
        new_key = os.fsencode(name)
        check_key(new_key)
        self._check_there(bucket, key)
        if new_key == key:
            text = f"cannot rename {uri_of(bucket.name, key)} to self, nothing to do"
            raise Failure(400, text)
        self._storage.rename(bucket, key, new_key)
        return Reply()

    def patch(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Change custom metadata."""
        values = request.action().get("value")
        if not isinstance(values, dict):
            raise Failure(400, "custom metadata: expecting a map of key-value pairs")
        pairs = {str(k): str(v) for k, v in values.items()}
        replace_all = request.query.get("set-new-custom") == "true"
        self._storage.annotate(bucket, key, pairs, replace_all)
        return Reply()

    def lock_state(self, bucket: Bucket, key: bytes) -> Reply:
        """Return a status that tells whether an object is being read or written."""
        states = {"free": 200, "read": 202, "write": 423}
        return Reply(states[self._storage.locks.state((bucket.name, key))])

    def copy(self, bucket: Bucket, key: bytes, to: str) -> Reply:
        """Copy an object to `ais/@#/bucket/name`."""
        self._storage.copy(bucket, key, *self.target_of(to))
        return Reply()

    def target_of(self, to: str) -> tuple[Bucket, bytes]:
        """Return the bucket and key that `ais/@#/bucket/name` stands for."""
        parts = to.split("/", 3)
        if len(parts) < 4 or not parts[2] or not parts[3]:
            raise Failure(400, "bucket name is missing")
        target, key = self._storage.bucket(parts[2]), os.fsencode(parts[3])
        check_key(key)
        return target, key


def _check_member_request(path: str, mode: str, asked: str) -> None:
    if not path:
        return
    if mode:
        text = "archpath (match one) and archregx (match many) are mutually exclusive"
        raise Failure(400, f"dpq: 'archpath={path}', err: dpq: {text}")
    archives.check_member_name(path)
    if asked:
        what = f"range: {asked}, arch query: (archpath={path})"
        text = f"cannot range-read archived content {what} - operation not supported"
        raise Failure(400, text, "ErrUnsupp")
