"""GetBatch: many objects, members and ranges of them in one archive, in the requested order."""

import base64
import binascii
import errno
import io
import json
import os
import tarfile
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, Any, cast
from urllib.parse import quote

import msgspec

from aisfs.server import failures
from aisfs.server.api import archives
from aisfs.server.api.cluster import Redirects
from aisfs.server.api.jobs.registry import Registry
from aisfs.server.failures import Failure
from aisfs.server.messages import Counters, Reply, Request
from aisfs.server.storage.bucket import Bucket, check_key
from aisfs.server.storage.objects import Storage

MOST_MISSING = 8
"""AIStore's `max_soft_errs`: more missing items fail the whole request, even with `coer`."""
_EMPTY_TAR = bytes(1024)
_CONTENT_TYPES = {
    archives.Format.TAR: "application/x-tar",
    archives.Format.TGZ: "application/gzip",
    archives.Format.ZIP: "application/zip",
}


class Item(msgspec.Struct):
    """One requested item."""

    objname: str = ""
    bucket: str = ""
    provider: str = ""
    uname: str = ""
    archpath: str = ""
    opaque: str = ""
    start: int | None = None
    length: int | None = None


class Message(msgspec.Struct):
    """The request."""

    items: list[Item] | None = msgspec.field(name="in", default=None)
    mime: str = ".tar"
    coer: bool = False
    onob: bool = False
    strm: bool = False


_decode = msgspec.json.Decoder(Message).decode


@dataclass(frozen=True, slots=True)
class BatchItem:
    """An item's bytes, or the error."""

    name: str
    content: bytes = b""
    mtime: int = 0
    error: Failure | None = None


class Batches:
    """Serves GetBatch."""

    def __init__(
        self,
        storage: Storage,
        redirects: Redirects,
        counters: Counters,
        jobs: Registry | None = None,
    ) -> None:
        self._storage = storage
        self._jobs = jobs
        self._redirects = redirects
        self._counters = counters

    def serve(self, request: Request, rest: str) -> Reply:
        """Reply as the proxy, with a redirect, or as the target, with the archive."""
        parts = rest.strip("/").split("/")
        default = parts[1] if len(parts) > 1 and not parts[1].startswith("gbt-") else ""
        if parts[0] != "moss":
            raise Failure(400, f"invalid request URI: '{request.method} {request.path}'")
        message = _message(request)
        if not message.items:
            raise Failure(400, "moss: empty input")
        if default:
            self._storage.bucket(default)
        if not request.marked:
            return self._redirect(request, default)
        if not any(part.startswith("gbt-") for part in parts):  # the proxy made a job of each
            raise Failure(400, f"invalid request URI: '{request.method} {request.path}'", node="t")
        try:
            form = archives.format_of(message.mime or ".tar", b"", None)
        except Failure as error:
            error.method = "POST"  # as AIStore's own request to the target that was chosen
            raise
        if self._jobs is not None:
            self._jobs.idling("get-batch", default).did(len(message.items), 0)
        return self._answer(message, message.items, default, form)

    def _redirect(self, request: Request, default: str) -> Reply:
        work = f"gbt-{uuid.uuid4().hex[:9]}/{uuid.uuid4().hex[:9]}/1"
        path = "/v1/ml/moss/" + (f"{default}/" if default else "") + work
        reply = self._redirects.make(307, request, quote(path), path.encode())
        reply.headers.append(("Content-Type", "text/html; charset=utf-8"))
        return reply

    def _answer(
        self, message: Message, items: list[Item], default: str, form: archives.Format
    ) -> Reply:
        found = self._all(message, items, default)
        if message.strm and message.coer and any(item.start or item.length for item in items):
            known = list(found)
            if any(item.error and item.error.status == 416 for item in known):
                return Reply(headers=[("Content-Type", _CONTENT_TYPES[form])], body=_EMPTY_TAR)
            found = iter(known)
        if message.strm:
            # Looking up the first item now lets a missing bucket still be an error.
            first = next(found)
            pieces = self._counted(_pack(_chain(first, found), form))
            return Reply(headers=[("Content-Type", _CONTENT_TYPES[form])], stream=pieces)
        known = list(found)
        if not message.coer:
            for item in known:
                if item.error:
                    raise item.error
        return _multipart(message, items, default, known, form)

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._counters.add("get_bytes", len(piece))
            yield piece

    def _all(self, message: Message, items: list[Item], default: str) -> Iterator[BatchItem]:
        missing = 0
        for item in items:
            bucket = self._storage.bucket(_bucket_of(item, default))
            name = item.objname if message.onob else f"{bucket.name}/{item.objname}"
            name += f"/{item.archpath}" if item.archpath else ""
            try:
                yield replace(self._read(bucket, item), name=name)
            except Failure as error:
                missing += 1
                if missing > MOST_MISSING:
                    raise
                yield BatchItem(f"__404__/{name}", error=error)

    def _read(self, bucket: Bucket, item: Item) -> BatchItem:
        key = os.fsencode(item.objname)
        check_key(key)
        self._storage.traps.moving.check_readable(bucket.name, key)
        with self._storage.locks.reading((bucket.name, key)):
            found = bucket.find(key)
            if found is None:
                raise failures.no_object(bucket.name, key)
            bucket.load(key, found)
            with open(bucket.path_of(key), "rb") as file:
                offset, size = 0, found.size
                if item.archpath:
                    archives.check_member_name(item.archpath)
                    form = archives.format_of("", key, file)
                    member = archives.find_member(file, form, item.archpath, bucket.name, key)
                    if member.content is not None:
                        start, length = _range(item, len(member.content))
                        return BatchItem("", member.content[start : start + length])
                    offset, size = member.offset, member.size
                start, length = _range(item, size)
                content = os.pread(file.fileno(), length, offset + start)
        return BatchItem("", content, found.atime_ns // 10**9)


def _message(request: Request) -> Message:
    try:
        message = _decode(request.body())
        for item in message.items or []:
            base64.b64decode(item.opaque, validate=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error) as error:
        raise Failure(400, f"failed to unmarshal moss request, err: {error}") from error
    return message


def _bucket_of(item: Item, default: str) -> str:
    if item.uname:
        return item.uname.rstrip("/").rpartition("/")[2]
    if item.bucket or default:
        return item.bucket or default
    raise Failure(400, "bucket name is missing")


def _range(item: Item, size: int) -> tuple[int, int]:
    if not item.start and not item.length:
        return 0, size
    start, length = item.start or 0, item.length
    if length is None:
        raise Failure(400, f"{item.objname}: range without a length")
    if length == -1:
        length = size - start
    if start < 0 or length < 0 or start + length > size:
        raise Failure(416, f"{item.objname}: range [{start}, {start + length}) of {size} bytes")
    return start, length


def _chain(first: BatchItem, rest: Iterator[BatchItem]) -> Iterator[BatchItem]:
    yield first
    try:
        yield from rest
    except Failure as error:
        # The reply has begun: dropping the connection is the only error left.
        raise ConnectionResetError(errno.ECONNRESET, str(error)) from error


class _Outlet:
    """A write-only file whose bytes are taken out as they are written."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        """Append bytes."""
        self._written += data
        return len(data)

    def flush(self) -> None:
        """Do nothing; `zipfile` calls this."""

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        taken = bytes(self._written)
        self._written.clear()
        return taken


def _pack(found: Iterator[BatchItem], form: archives.Format) -> Iterator[bytes]:
    outlet = _Outlet()
    if form is archives.Format.ZIP:
        with zipfile.ZipFile(cast("IO[bytes]", outlet), "w") as archive:
            for item in found:
                archive.writestr(item.name, item.content)
                yield outlet.take()
    else:
        mode = "w|gz" if form is archives.Format.TGZ else "w|"
        with _tar(outlet, mode) as tar:
            for item in found:
                info = tarfile.TarInfo(item.name)
                info.size, info.mode, info.mtime = len(item.content), 0o644, item.mtime
                tar.addfile(info, io.BytesIO(item.content))
                yield outlet.take()
    yield outlet.take()


def _tar(outlet: _Outlet, mode: str) -> tarfile.TarFile:
    return tarfile.open(  # type: ignore[call-overload,no-any-return]
        fileobj=outlet, mode=mode, format=tarfile.PAX_FORMAT, errors="surrogateescape"
    )


def _multipart(
    message: Message, items: list[Item], default: str, found: list[BatchItem], form: archives.Format
) -> Reply:
    out = []
    for item, result in zip(items, found, strict=True):
        fields: dict[str, Any] = {"objname": item.objname, "bucket": _bucket_of(item, default)}
        fields |= {"archpath": item.archpath} if item.archpath else {}
        fields |= {"opaque": item.opaque} if item.opaque else {}
        fields |= {"err_msg": str(result.error)} if result.error else {}
        out.append({**fields, "provider": "ais", "size": len(result.content)})
    identity, boundary = uuid.uuid4().hex[:9], uuid.uuid4().hex
    metadata = json.dumps({"uuid": identity, "out": out}).encode("utf-8", "surrogateescape")
    archive = b"".join(_pack(iter(found), form))
    body = b"".join(
        (
            _part(boundary, 'form-data; name="metadata"', "application/json", metadata),
            _part(
                boundary,
                f'form-data; name="archive"; filename="get-batch[{identity}]"',
                _CONTENT_TYPES[form],
                archive,
            ),
            f"--{boundary}--\r\n".encode(),
        )
    )
    return Reply(headers=[("Content-Type", f"multipart/mixed; boundary={boundary}")], body=body)


def _part(boundary: str, disposition: str, kind: str, content: bytes) -> bytes:
    head = f"--{boundary}\r\nContent-Disposition: {disposition}\r\nContent-Type: {kind}\r\n\r\n"
    return head.encode() + content + b"\r\n"
