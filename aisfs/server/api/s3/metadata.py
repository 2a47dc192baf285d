"""What the S3 API keeps with an object: user metadata, and the headers that come back with it.

Both are custom metadata of the object, so AIStore's own API shows them: `x-amz-meta-…` and the names of
the headers.
"""

from aisfs.server.api.object_headers import etag, http_date, is_of_content
from aisfs.server.api.s3.errors import S3Error
from aisfs.server.failures import Headers
from aisfs.server.messages import REPEATED, S3_METADATA, Request
from aisfs.server.storage.bucket import Found

_USER = "x-amz-meta-"
_OF_AISTORE = "x-amz-meta-ais-"
"""What AIStore adds to the replies to a HEAD; a client may send it back with a copy."""
_KEPT = (
    "Content-Type",
    "Cache-Control",
    "Content-Disposition",
    "Content-Encoding",
    "Content-Language",
    "Expires",
)
MOST_METADATA = 2048
"""Bytes of the names and values of user metadata, as in S3."""
DEFAULT_TYPE = "application/octet-stream"


def of_request(request: Request) -> dict[str, str]:
    """Return what is to be kept with an object that a request makes.

    Raises:
        Failure: it is more than S3 takes.
    """
    kept = {name: _text(request.header(name)) for name in _KEPT}
    codings = [c.strip() for c in kept["Content-Encoding"].split(",")]
    kept["Content-Encoding"] = ",".join(c for c in codings if c != "aws-chunked")
    kept["Content-Type"] = _text(request.environ.get("CONTENT_TYPE", ""))
    lines = request.header(S3_METADATA).split(REPEATED)
    pairs = [_text(line).partition("=")[::2] for line in lines if line]
    user = {name: value for name, value in pairs if not name.startswith(_OF_AISTORE)}
    if sum(len(n) - len(_USER) + len(v.encode("utf-8", "replace")) for n, v in user.items()) > (
        MOST_METADATA
    ):
        text = f"user metadata has at most {MOST_METADATA} bytes"
        raise S3Error(400, "MetadataTooLarge", text)
    return {name: value for name, value in {**kept, **user}.items() if value}


def is_of_s3(name: str) -> bool:
    """Return whether custom metadata is replaced with the content when S3 replaces an object."""
    return name in _KEPT or name.startswith(_USER) or is_of_content(name)


def describe(found: Found) -> Headers:
    """Return the headers of an object but its type."""
    custom = found.record.custom
    return [
        ("ETag", etag(found)),
        ("Last-Modified", http_date(found.mtime_ns)),
        *((name, custom[name]) for name in _KEPT[1:] if name in custom),
        *((name, value) for name, value in custom.items() if name.startswith(_USER)),
    ]


def content_type(found: Found) -> str:
    """Return the type of an object."""
    return found.record.custom.get("Content-Type", DEFAULT_TYPE)


def checksum_of_aistore(found: Found) -> Headers:
    """Return the headers in which AIStore's replies to a HEAD tell its own checksum."""
    record = found.record
    if not record.checksum:
        return []
    pairs = (("Type", record.checksum_type), ("Val", record.checksum))
    return [(f"X-Amz-Meta-Ais-Cksum-{name}", value) for name, value in pairs]


def _text(header: str) -> str:
    return header.encode("latin-1").decode("utf-8", "surrogateescape")
