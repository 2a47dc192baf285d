"""The S3 API, to read by: `/s3`, `/s3/<bucket>` and `/s3/<bucket>/<key>`.

A request about an object gets a redirect to the target, as AIStore's proxy answers, unless the server is
`like_amazon`, as AIStore is with its feature `S3-Reverse-Proxy`. Conditions are ignored, as AIStore does.
"""

import os
from contextlib import ExitStack

from aisfs.server.api.multipart import Parts
from aisfs.server.api.object_headers import etag, http_date
from aisfs.server.api.objects import STALL_SECONDS, Objects
from aisfs.server.api.s3.documents import (
    Element,
    S3Error,
    not_offered,
    render,
    time_text,
    xml_reply,
)
from aisfs.server.api.s3.listing import S3Listing
from aisfs.server.counters import Counters
from aisfs.server.failures import Failure, Headers, is_directory, no_object, text_of
from aisfs.server.messages import Reply, Request
from aisfs.server.redirects import Redirects
from aisfs.server.storage.bucket import Bucket, Found
from aisfs.server.storage.objects import Storage

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
        counters: Counters,
        *,
        node_id: str,
        redirects: Redirects,
    ) -> None:
        self._storage = storage
        self._objects = objects
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
        self._objects.check_moved(request, bucket, key)
        if key.endswith(b"/"):
            raise no_object(bucket.name, key)
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
