"""Objects by the S3 API: GET, HEAD, PUT, DELETE, copies, and the DELETE of many."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.parse import unquote_to_bytes

from aisfs.server import failures
from aisfs.server.api.object_headers import etag
from aisfs.server.api.objects import STALL_SECONDS, Objects
from aisfs.server.api.properties import checksum_type
from aisfs.server.api.s3 import documents, metadata
from aisfs.server.api.s3.body import Body
from aisfs.server.api.s3.conditions import check_reading, check_writing
from aisfs.server.api.s3.documents import Element, time_text, xml_reply
from aisfs.server.api.s3.errors import S3Error, code_of, invalid, malformed, not_offered
from aisfs.server.failures import Failure, text_of
from aisfs.server.messages import Reply, Request
from aisfs.server.names import check_key
from aisfs.server.storage.bucket import Bucket, Found
from aisfs.server.storage.checksums import HASHERS
from aisfs.server.storage.objects import Storage, write_out

MOST_DELETES = 1000
"""Keys of one request."""
_PIECE = 1 << 20
_COPY_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_SOURCE = "x-amz-copy-source"

Source = tuple[Bucket, bytes]


class S3Objects:
    """Requests about one object, or many that are deleted."""

    def __init__(
        self, storage: Storage, objects: Objects, deleted: Callable[[Bucket, bytes], None]
    ) -> None:
        """`deleted` is called with every object that is gone."""
        self._storage = storage
        self._objects = objects
        self._deleted = deleted

    def get(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Return an object or a range of it; a member of a shard, as AIStore does here too."""
        if any(request.query.get(name) for name in ("archpath", "archmode")):
            return self._objects.get(request, bucket, key)
        with ExitStack() as held:
            fd, found = self._open(bucket, key, held)
            check_reading(request, found, metadata.describe(found))
            kind = metadata.content_type(found)
            kind = request.query.get("response-content-type") or kind
            reply = self._objects.content(request, fd, bucket, key, found, metadata.describe, kind)
            if reply.status == 206 and dict(reply.headers)["Content-Range"].startswith(
                "bytes 0--1"
            ):
                raise S3Error(416, "InvalidRange", "an empty object has no range")
            metadata.override(reply.headers, request.query)
            if reply.status == 200:
                reply.headers.append(("Accept-Ranges", "bytes"))
            if reply.file is not None:
                request.set_timeout(STALL_SECONDS)
                reply.file.hold(held)
        return reply

    def check_moved(self, request: Request, bucket: Bucket, key: bytes) -> None:
        """Do what that of the other API does."""
        self._objects.check_moved(request, bucket, key)

    def _open(self, bucket: Bucket, key: bytes, held: ExitStack) -> tuple[int, Found]:
        try:
            return self._objects.open(bucket, key, held)
        except Failure as error:
            if self._storage.traps.like_amazon and error.tcode == "ErrLmetaNotFound":
                raise failures.no_object(bucket.name, key) from error  # a directory is no object
            raise

    def head(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Describe an object."""
        found = bucket.find(key)
        if found is None and self._is_directory(bucket, key):
            raise failures.is_directory(bucket.name, key, status=400)
        if found is None:
            raise failures.no_object(bucket.name, key)
        found.check(400)
        described = metadata.describe(found)
        check_reading(request, found, described)
        headers = [
            ("Content-Type", metadata.content_type(found)),
            ("Content-Length", str(found.size)),
            ("Accept-Ranges", "bytes"),
        ]
        return Reply(headers=headers + described + metadata.checksum_of_aistore(found))

    def _is_directory(self, bucket: Bucket, key: bytes) -> bool:
        """Return whether AIStore finds a directory where it looks for an object."""
        traps = self._storage.traps
        disk = traps.disk_of(bucket.name, key)
        return not traps.like_amazon and traps.has_directory(bucket, key, disk)

    def put(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Store an object."""
        check_key(key)
        body, custom = Body(request), metadata.of_request(request)
        check = check_writing(request)
        kind = checksum_type(bucket)
        hasher = HASHERS[kind]()
        with self._storage.work_file() as work:
            with work.open("xb") as file:
                write_out(body.pieces(), file, [hasher])
            found = self._objects.publish(
                bucket,
                key,
                work,
                custom,
                kind=kind,
                checksum=hasher.hexdigest(),
                outdated=metadata.is_of_s3,
                check=check,
            )
        return Reply(headers=[("ETag", etag(found)), *body.checksums.items()])

    def delete(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Remove an object."""
        request.drain()
        if request.header("If-Match"):
            raise not_offered("If-Match of a DELETE")
        removed = self._remove(bucket, key) or self._is_directory(bucket, key)
        if not removed and not self._storage.traps.like_amazon:
            raise failures.no_object(bucket.name, key)
        return Reply(204)

    def _remove(self, bucket: Bucket, key: bytes) -> bool:
        if key.endswith(b"/"):
            return False  # no object can have this name
        check_key(key)
        was_there = self._storage.delete(bucket, key)
        if was_there:
            self._deleted(bucket, key)
        return was_there

    def delete_many(self, request: Request, bucket: Bucket) -> Reply:
        """Remove up to 1,000 objects, named in XML."""
        root = documents.parse(Body(request).whole(documents.LARGEST), "Delete")
        keys = [child.findtext("Key") for child in root if child.tag == "Object"]
        for other in {field.tag for child in root for field in child} - {"Key"}:
            raise not_offered(f"{other} of an object to delete")
        if not keys or len(keys) > MOST_DELETES or not all(keys):
            raise malformed(f"expecting 1 to {MOST_DELETES} objects with keys")
        quiet = root.findtext("Quiet", "false").strip() == "true"
        outcome: list[Element] = []
        for key in filter(None, keys):
            try:
                self._remove(bucket, key.encode())
            except Failure as error:
                told = [("Code", code_of(error)), ("Message", error.message)]
                outcome.append(("Error", [("Key", key), *told]))
            else:
                outcome += [] if quiet else [("Deleted", [("Key", key)])]
        return xml_reply("DeleteResult", outcome)

    # Copies

    def copy(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Copy an object, with its metadata or with new one."""
        request.drain()
        check_key(key)
        source, source_key = self.source(request)
        directive = request.header("x-amz-metadata-directive") or "COPY"
        if directive not in ("COPY", "REPLACE"):
            raise invalid(f"unknown metadata directive {directive}")
        replaces = directive == "REPLACE"
        if (source.name, source_key) == (bucket.name, key) and not replaces:
            text = "a copy of an object to itself has to change its metadata"
            raise S3Error(400, "InvalidRequest", text)
        custom, check = metadata.of_request(request), check_writing(request)
        with self._storage.work_file() as work:
            with self._storage.locks.reading((source.name, source_key)):
                origin = self._origin(request, source, source_key)
                shutil.copyfile(source.path_of(source_key), work)
            if not replaces:
                custom = {k: v for k, v in origin.record.custom.items() if k != "ETag"}
            found = self._objects.publish(
                bucket, key, work, custom, outdated=metadata.is_of_s3, check=check
            )
        about = [("LastModified", time_text(found.mtime_ns)), ("ETag", etag(found))]
        return xml_reply("CopyObjectResult", about)

    def source(self, request: Request) -> Source:
        """Return the object that a request says to copy.

        Raises:
            Failure: there is no such bucket, or the header makes no sense.
        """
        text, _, version = request.header(_SOURCE).partition("?")
        if version:
            raise not_offered("the copy of a version")
        name, _, key = unquote_to_bytes(text.lstrip("/")).partition(b"/")
        if not name or not key:
            raise invalid(f"{_SOURCE} has to be bucket/key")
        check_key(key)
        return self._storage.bucket(text_of(name)), key

    def _origin(self, request: Request, source: Bucket, key: bytes) -> Found:
        found = source.find(key)
        if found is None:
            amazon = self._storage.traps.like_amazon
            raise failures.no_object(source.name, key, status=404 if amazon else 400)
        found.check()
        check_reading(request, found, [], "x-amz-copy-source-")
        return found

    def source_pieces(self, request: Request, source: Bucket, key: bytes) -> Iterator[bytes]:
        """Yield the part of an object that a request says to copy."""
        with ExitStack() as held:
            fd, found = self._open(source, key, held)
            check_reading(request, found, [], "x-amz-copy-source-")
            start, end = 0, found.size
            if asked := request.header("x-amz-copy-source-range"):
                match = _COPY_RANGE.fullmatch(asked)
                if not match or int(match[1]) > int(match[2]):
                    raise invalid("x-amz-copy-source-range has to be bytes=first-last")
                start, end = int(match[1]), int(match[2]) + 1
                if end > found.size:
                    text = f"the source has {found.size} bytes"
                    raise S3Error(416, "InvalidRange", text)
            while start < end and (piece := os.pread(fd, min(end - start, _PIECE), start)):
                start += len(piece)
                yield piece
            if start < end:
                raise S3Error(500, "InternalError", "the source became shorter")
