"""Requests about one object, as a target answers them."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.utils import formatdate
from itertools import chain
from pathlib import Path

from aisfs.server import failures
from aisfs.server.api import archives
from aisfs.server.api.object_headers import attributes, chunk_headers, custom_pairs, parse_range
from aisfs.server.api.properties import checksum_type, range_checksums, validates, versioned
from aisfs.server.damage import Damage, break_off
from aisfs.server.failures import Failure, Headers, uri_of
from aisfs.server.messages import HeldFile, Reply, Request, base36
from aisfs.server.names import check_key
from aisfs.server.storage.bucket import Bucket, Found
from aisfs.server.storage.checksums import HASHERS
from aisfs.server.storage.objects import Storage, write_out
from aisfs.server.storage.records import Record

SMALL = 128 << 10
"""Objects up to this size are read at once and release their lock before they are sent: they fit
the socket buffers anyway, and one `pread` is cheaper than setting up `sendfile`."""
STALL_SECONDS = 600.0
"""A client that takes no byte for this long is given up, and with it the object's lock."""
HEAD_PROPS = frozenset(
    {
        "name",
        "size",
        "checksum",
        "atime",
        "version",
        "custom",
        "last-modified",
        "etag",
        "copies",
        "ec",
        "location",
        "chunked",
    }
)


class Objects:
    """GET, HEAD, PUT, DELETE, PATCH and rename of objects."""

    def __init__(self, storage: Storage, node_id: str) -> None:
        self._storage = storage
        self._node_id = node_id

    # HEAD

    def head(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Describe an object, in the old way or by the properties asked for."""
        found = bucket.find(key)
        if found is None:
            raise failures.no_object(bucket.name, key)
        found.check(400)
        props = request.query.get("props", "")
        if not props:
            return Reply(headers=self._head_v1(bucket, key, found))
        asked = props.split(",")
        for prop in asked:
            if prop not in HEAD_PROPS:
                text = f'invalid property "{prop}" in props list'
                raise Failure(400, text, headers=[("Ais-Present", "true")])
        headers = [("Ais-Present", "true"), ("Content-Length", str(found.size))]
        for prop in dict.fromkeys(asked):
            headers += self._head_prop(prop, found)
        return Reply(headers=headers)

    def _head_v1(self, bucket: Bucket, key: bytes, found: Found) -> Headers:
        headers = [
            ("Ais-Name", failures.text_of(key)),
            ("Ais-Bucket-Name", bucket.name),
            ("Ais-Bucket-Provider", "ais"),
            ("Ais-Present", "true"),
            ("Ais-Location", f"t[{self._node_id}]:mp[/]"),
            ("Ais-Mirror-Copies", "1"),
            ("Ais-Mirror-Paths", "[/]"),
            *attributes(found),
        ]
        if found.size:  # as in AIStore: an empty object has no length in the old reply
            headers.append(("Content-Length", str(found.size)))
        return headers

    def _head_prop(self, prop: str, found: Found) -> Headers:
        record = found.record
        match prop:
            case "checksum" if record.checksum:
                return [
                    ("Ais-Checksum-Type", record.checksum_type),
                    ("Ais-Checksum-Value", record.checksum),
                ]
            case "atime":
                return [("Ais-Atime", str(found.atime_ns))]
            case "version" if record.version:
                return [("Ais-Version", record.version)]
            case "custom":
                return [("Ais-Custom-Md", f"{k}={v}") for k, v in record.custom.items()]
            case "last-modified":
                return [("Last-Modified", formatdate(found.mtime_ns // 10**9, usegmt=True))]
            case "etag":
                return [("Etag", _etag(found))]
            case "copies":
                return [("Ais-Mirror-Copies", "1"), ("Ais-Mirror-Paths", "/")]
            case "location":
                return [("Ais-Location", f"t[{self._node_id}]:mp[/]")]
            case "chunked" if record.chunks:
                return chunk_headers(*record.chunks)
        return []

    # GET

    def get(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Give an object, a range of it, one member or a selection of members."""
        query = request.query
        path, mode = query.get("archpath", ""), query.get("archmode", "")
        _check_member_request(path, mode, request.header("Range"))
        wanted = archives.matcher(mode, query.get("archregx", "")) if mode else None
        name = (bucket.name, key)
        if validates(bucket):
            self._validate(bucket, key)
        self._storage.locks.acquire_read(name)
        held = True

        def release() -> None:
            self._storage.locks.release_read(name)

        fd = -1
        try:
            fd, found = self._open(bucket, key)
            bucket.load(key, found)
            if path:
                reply = self._member(fd, bucket, key, path, query.get("archmime", ""), release)
            elif wanted is not None:
                reply = self._selection(fd, bucket, key, query, wanted)
            else:
                reply = self._content(request, fd, bucket, key, found, release)
            if isinstance(reply.file, HeldFile):
                if (sock := request.environ.get("gunicorn.socket")) is not None:
                    sock.settimeout(STALL_SECONDS)
                fd, held = -1, False  # both now end with the reply
            return reply
        finally:
            if fd >= 0:
                os.close(fd)
            if held:
                release()

    def _open(self, bucket: Bucket, key: bytes) -> tuple[int, Found]:
        try:
            fd = bucket.open(key)
        except OSError as error:
            if isinstance(error, PermissionError):
                raise Failure(500, f"{uri_of(bucket.name, key)}: permission denied") from error
            raise self._absent(bucket, key) from error
        status = os.fstat(fd)
        found = bucket.find(key, status)
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
        """Delete an object that has grown in place, as AIStore does where reads are validated."""
        found = bucket.find(key)
        if found and found.record.damage and found.record.damage.unchecked:
            self._storage.delete(bucket, key)
            context = f"o[{bucket.name}/{failures.text_of(key)}]"
            raise failures.wrong_checksum("none", "", "", context)

    def _content(
        self,
        request: Request,
        fd: int,
        bucket: Bucket,
        key: bytes,
        found: Found,
        release: Callable[[], None],
    ) -> Reply:
        headers = [("Content-Type", "application/octet-stream")]
        start, length, status = 0, found.size, 200
        if asked := request.header("Range"):
            start, length = parse_range(asked, found.size, uri_of(bucket.name, key))
            status = 206
            last = start + length - 1
            headers.append(("Accept-Ranges", "bytes"))
            headers.append(("Content-Range", f"bytes {start}-{last}/{found.size}"))
        if status == 206 and found.record.checksum and range_checksums(bucket):
            hasher = HASHERS[found.record.checksum_type]()
            hasher.update(os.pread(fd, length, start))
            found = replace(found, record=replace(found.record, checksum=hasher.hexdigest()))
        sound = (
            found.record.damage.readable(start, length, headers) if found.record.damage else length
        )
        headers += attributes(found)
        if sound < length:
            headers.append(("Content-Length", str(length)))
            return Reply(status, headers, stream=break_off(os.dup(fd), start, sound))
        if length <= SMALL:
            body = os.pread(fd, length, start)
            if len(body) == length:
                return Reply(status, headers, body)
        headers.append(("Content-Length", str(length)))
        sock = request.environ.get("gunicorn.socket")
        return Reply(status, headers, file=HeldFile(fd, start, length, release, sock))

    def _member(
        self, fd: int, bucket: Bucket, key: bytes, path: str, mime: str, release: Callable[[], None]
    ) -> Reply:
        headers = [("Content-Type", "application/octet-stream")]
        with os.fdopen(os.dup(fd), "rb") as file:
            form = archives.format_of(mime, key, file)
            member = archives.find_member(file, form, path, bucket.name, key)
        if member.content is not None:
            return Reply(headers=headers, body=member.content)
        if member.size <= SMALL:
            return Reply(headers=headers, body=os.pread(fd, member.size, member.offset))
        headers.append(("Content-Length", str(member.size)))
        return Reply(headers=headers, file=HeldFile(fd, member.offset, member.size, release, None))

    @staticmethod
    def _selection(
        fd: int, bucket: Bucket, key: bytes, query: dict[str, str], wanted: Callable[[str], bool]
    ) -> Reply:
        file = os.fdopen(os.dup(fd), "rb")
        try:
            form = archives.format_of(query.get("archmime", ""), key, file)
            pieces = archives.select(file, form, wanted)
            first = next(pieces, None)
        except BaseException:
            file.close()
            raise
        if first is None:
            file.close()
            what = f"(archregx={query.get('archregx', '')}, archmode={query['archmode']})"
            text = f"t[{{node}}]: {what} in {uri_of(bucket.name, key)} does not exist"
            raise Failure(404, text, "ErrNotFound")

        def stream() -> Iterator[bytes]:
            # The open file keeps its bytes whatever happens to the name meanwhile.
            with file:
                yield from chain([first], pieces)

        return Reply(headers=[("Content-Type", "application/x-tar")], stream=stream())

    # Changes

    def put(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Store an object."""
        given_type, given = (
            request.header("Ais-Checksum-Type"),
            request.header("Ais-Checksum-Value"),
        )
        custom = custom_pairs(request)
        if given_type and given_type not in HASHERS:
            raise Failure(400, f'invalid checksum type "{given_type}"')
        if given:
            now = bucket.find(key)
            if now and (now.record.checksum_type, now.record.checksum) == (given_type, given):
                request.drain()
                return Reply()
        skip = request.query.get("skip_vc") == "true"
        kind = checksum_type(bucket)
        work = self._storage.work_path()
        try:
            hasher, second = HASHERS[kind](), None
            hashers = [hasher]
            if given and kind != "none" and not skip and given_type != kind:
                second = HASHERS[given_type]()
                hashers.append(second)
            with work.open("xb") as file:
                write_out(request.pieces(), file, hashers)
            computed = (second or hasher).hexdigest()
            if given and kind != "none" and not skip and computed != given:
                context = uri_of(bucket.name, key)
                raise failures.wrong_checksum(given_type, given, computed, context)
            found = self.publish(bucket, key, work, kind, hasher.hexdigest(), custom, fresh=skip)
        finally:
            work.unlink(missing_ok=True)
        return Reply(headers=attributes(found))

    def publish(
        self,
        bucket: Bucket,
        key: bytes,
        work: Path,
        kind: str,
        checksum: str,
        custom: dict[str, str],
        *,
        fresh: bool = False,
        chunks: tuple[int, int] | None = None,
        damage: Damage | None = None,
    ) -> Found:
        """Make a work file the next version of an object.

        `fresh` forgets what was there, as `skip_vc` does. Custom metadata is merged into the old.
        """
        with self._storage.locks.writing((bucket.name, key)):
            old = bucket.find(key)
            known = None if fresh or old is None else old.record
            count = int(known.version) if known and known.version.isdecimal() else 0
            record = Record(
                str(count + 1) if versioned(bucket) else "",
                kind if checksum else "",
                checksum,
                {**(known.custom if known else {}), **custom},
                chunks,
                damage,
            )
            return self._storage.commit(bucket, key, work, record, old)

    def delete(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Remove an object."""
        request.drain()
        if not self._storage.delete(bucket, key):
            raise Failure(404, f"{uri_of(bucket.name, key)} doesn't exist")
        return Reply()

    def rename(self, bucket: Bucket, key: bytes, name: str) -> Reply:
        """Move an object within its bucket."""
        new_key = os.fsencode(name)
        check_key(new_key)
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
        """Say by status whether an object is being read or written."""
        states = {"free": 200, "read": 202, "write": 423}
        return Reply(states[self._storage.locks.state((bucket.name, key))])

    def copy(self, bucket: Bucket, key: bytes, to: str) -> Reply:
        """Copy an object to `ais/@#/bucket/name`."""
        parts = to.split("/", 3)
        if len(parts) < 4 or not parts[2] or not parts[3]:
            raise Failure(400, "bucket name is missing")
        target, new_key = self._storage.bucket(parts[2]), os.fsencode(parts[3])
        check_key(new_key)
        self._storage.copy(bucket, key, target, new_key)
        return Reply()


def _etag(found: Found) -> str:
    record = found.record
    if record.checksum_type == "md5":
        return f'"{record.checksum}"'
    return f'"v1-{record.checksum or record.version}-{base36(found.mtime_ns)}"'


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
