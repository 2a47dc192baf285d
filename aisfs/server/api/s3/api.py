"""The routing of the S3 API: `/s3`, `/s3/<bucket>` and `/s3/<bucket>/<key>`.

A request about an object gets a redirect to the target, as AIStore's proxy answers, unless the server is
`like_amazon`, as AIStore is with its feature `S3-Reverse-Proxy`.
"""

from collections.abc import Callable

from aisfs.server.api.multipart import Parts
from aisfs.server.api.objects import Objects
from aisfs.server.api.s3.buckets import S3Buckets
from aisfs.server.api.s3.documents import render
from aisfs.server.api.s3.errors import S3Error, not_offered
from aisfs.server.api.s3.objects import S3Objects
from aisfs.server.api.s3.uploads import S3Uploads
from aisfs.server.counters import Counters
from aisfs.server.failures import no_object, text_of
from aisfs.server.messages import S3_METADATA, Reply, Request
from aisfs.server.redirects import Redirects
from aisfs.server.storage.bucket import Bucket
from aisfs.server.storage.objects import Storage

_PARTS_OF_OBJECTS = frozenset(
    {
        "acl",
        "attributes",
        "encryption",
        "legal-hold",
        "renameObject",
        "restore",
        "retention",
        "select",
        "tagging",
        "torrent",
        "versionId",
    }
)
"""Parameters that ask for something else than the object; this server has none of these."""
_HEADERS_OF_OBJECTS = (
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-object-lock-mode",
    "x-amz-write-offset-bytes",
    "x-amz-tagging",
)
"""Headers that ask for what this server would silently leave undone."""
_IGNORED = (
    *("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"),
    *(
        f"x-amz-copy-source-if-{kind}"
        for kind in ("match", "none-match", "modified-since", "unmodified-since")
    ),
    S3_METADATA,
)
"""Headers that AIStore ignores."""


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
        deleted: Callable[[Bucket, bytes], None],
    ) -> None:
        """`deleted` is called with every object that is gone."""
        self._storage = storage
        self._counters = counters
        self._redirects = redirects
        self._objects = S3Objects(storage, objects, deleted)
        self._uploads = S3Uploads(parts, self._objects, storage.traps)
        self._buckets = S3Buckets(storage, self._uploads, self._objects, node_id, counters)

    def serve(self, request: Request, rest: bytes) -> Reply:
        """Answer one request; `rest` is the path without `/s3/`."""
        name, _, key = rest.partition(b"/")
        if not name:
            return self._buckets.all(request)
        bucket = text_of(name)
        if not key:
            return self._buckets.serve(request, bucket)
        if not request.marked and not self._storage.traps.like_amazon:
            self._storage.bucket(bucket)
            return self._redirect(request, bucket)
        for parameter in sorted(_PARTS_OF_OBJECTS & request.query.keys()):
            raise not_offered(f"the parameter {parameter}")
        if not self._storage.traps.like_amazon:
            request.ignore(_IGNORED)
        if "partNumber" in request.query and "uploadId" not in request.query:
            raise not_offered("one part of an object")
        for header in _HEADERS_OF_OBJECTS:
            if request.header(header):
                raise not_offered(f"the header {header}")
        return self._object(request, self._storage.bucket(bucket), key)

    def _object(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        count = self._counters.add
        in_parts = "uploadId" in request.query
        self._objects.check_moved(request, bucket, key)
        match request.method:
            case "GET" | "HEAD" if key.endswith(b"/"):
                raise no_object(bucket.name, key)
            case "GET" if in_parts:
                return self._uploads.list_parts(request, bucket, key)
            case "GET":
                reply = self._objects.get(request, bucket, key)
                count("get")
                announced = dict(reply.headers).get("Content-Length", "0")
                count("get_bytes", len(reply.body) or int(announced))
                return reply
            case "HEAD":
                count("head")
                return self._objects.head(request, bucket, key)
            case "PUT":
                return self._put(request, bucket, key)
            case "POST" if "uploads" in request.query:
                return self._uploads.start(request, bucket, key)
            case "POST" if in_parts:
                return self._uploads.complete(request, bucket, key)
            case "DELETE" if in_parts:
                return self._uploads.abort(request, bucket, key)
            case "DELETE":
                count("delete")
                return self._objects.delete(request, bucket, key)
        raise S3Error(405, "MethodNotAllowed", f"{request.method} of an object is not allowed")

    def _put(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        count, in_parts = self._counters.add, "uploadId" in request.query
        if request.header("x-amz-copy-source"):
            count("copy")
        else:
            count("part" if in_parts else "put")
            count("put_bytes", request.length)
        if in_parts:
            return self._uploads.put(request, bucket, key)
        if request.header("x-amz-copy-source"):
            return self._objects.copy(request, bucket, key)
        return self._objects.put(request, bucket, key)

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


def is_s3(request: Request) -> bool:
    """Return whether a request is one of the S3 API."""
    return request.raw_path == b"/s3" or request.raw_path.startswith(b"/s3/")
