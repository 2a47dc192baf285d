"""Buckets by the S3 API, which the proxy answers itself."""

import os

from aisfs.server.api.s3 import documents
from aisfs.server.api.s3.documents import Element, time_text, xml_reply
from aisfs.server.api.s3.errors import S3Error, not_offered
from aisfs.server.api.s3.listing import S3Listing
from aisfs.server.api.s3.objects import S3Objects
from aisfs.server.api.s3.uploads import S3Uploads
from aisfs.server.counters import Counters
from aisfs.server.messages import Reply, Request
from aisfs.server.storage.objects import Storage

_OWNER: Element = ("Owner", [("ID", "aisfs"), ("DisplayName", "aisfs")])
_LARGEST_SETTINGS = 64 << 10
"""Bytes of the document that may come with a new bucket."""
_SETTINGS = frozenset(
    {
        "abac",
        "accelerate",
        "acl",
        "analytics",
        "cors",
        "encryption",
        "intelligent-tiering",
        "inventory",
        "lifecycle",
        "logging",
        "metrics",
        "notification",
        "object-lock",
        "ownershipControls",
        "policy",
        "policyStatus",
        "publicAccessBlock",
        "replication",
        "requestPayment",
        "session",
        "tagging",
        "versions",
        "website",
    }
)
"""Parameters that ask for settings of buckets, of which this server has none."""


class S3Buckets:
    """Requests about buckets."""

    def __init__(
        self,
        storage: Storage,
        uploads: S3Uploads,
        objects: S3Objects,
        node_id: str,
        counters: Counters,
    ) -> None:
        self._storage = storage
        self._uploads = uploads
        self._objects = objects
        self._counters = counters
        self._listing = S3Listing(node_id, storage.traps)

    def all(self, request: Request) -> Reply:
        """List the buckets."""
        if request.method != "GET":
            raise _not_allowed(request)
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

    def serve(self, request: Request, name: str) -> Reply:
        """Answer a request about one bucket."""
        for parameter in sorted(_SETTINGS & request.query.keys()):
            raise not_offered(f"the parameter {parameter}")
        match request.method:
            case "GET":
                return self._get(request, name)
            case "HEAD":
                self._counters.add("head_bucket")
                self._storage.bucket(name)
                return Reply()
            case "POST" if "delete" in request.query:
                self._counters.add("delete")
                return self._objects.delete_many(request, self._storage.bucket(name))
        if "versioning" in request.query:
            raise not_offered("a change of versioning")
        self._counters.add("bucket_change")
        match request.method:
            case "PUT":
                if text := request.body(_LARGEST_SETTINGS):
                    documents.parse(text, "CreateBucketConfiguration")
                self._storage.create(name, {})
                return Reply(headers=[("Location", f"/{name}")])
            case "DELETE":
                return self._delete(request, name)
        raise _not_allowed(request)

    def _get(self, request: Request, name: str) -> Reply:
        bucket = self._storage.bucket(name)
        if "location" in request.query:
            return xml_reply("LocationConstraint", [])
        if "versioning" in request.query:
            return xml_reply("VersioningConfiguration", [])
        if "uploads" in request.query:
            return self._uploads.list_uploads(request, bucket)
        self._counters.add("list_page")
        return self._listing.page(request, bucket)

    def _delete(self, request: Request, name: str) -> Reply:
        request.drain()
        bucket = self._storage.bucket(name)
        # AIStore destroys a bucket with all that is in it.
        if self._storage.traps.like_amazon and next(bucket.below(b""), None) is not None:
            raise S3Error(409, "BucketNotEmpty", "the bucket is not empty")
        self._storage.destroy(name)
        return Reply(204)


def _not_allowed(request: Request) -> S3Error:
    return S3Error(405, "MethodNotAllowed", f"{request.method} is not allowed here")
