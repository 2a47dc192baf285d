"""Uploads in parts by the S3 API, in the storage of AIStore's own.

Parts have up to 10,000 numbers in any order, each at least 5 MiB but the last. With `like_amazon`, parts
may be left out, and one that is sent again replaces the first; else AIStore's rules hold too.
"""

import hashlib
import re
import time
from collections.abc import Iterator
from xml.etree.ElementTree import Element as XmlElement

from aisfs.server.api.multipart import Parts, PartTag, Upload
from aisfs.server.api.object_headers import PARTS_ETAG, etag
from aisfs.server.api.s3 import documents, metadata
from aisfs.server.api.s3.body import Body
from aisfs.server.api.s3.conditions import check_writing
from aisfs.server.api.s3.documents import Element, time_text, xml_reply
from aisfs.server.api.s3.errors import S3Error, invalid, malformed, no_upload
from aisfs.server.api.s3.objects import S3Objects
from aisfs.server.failures import text_of
from aisfs.server.messages import Reply, Request
from aisfs.server.names import check_key
from aisfs.server.storage.bucket import Bucket
from aisfs.server.storage.traps import Kindness

MOST_PARTS = 10_000
SMALLEST = 5 << 20
"""Bytes of every part but the last, at least."""
MOST_LISTED = 1000
_NUMBER = re.compile(r"[1-9][0-9]{0,4}")


class S3Uploads:
    """Requests about uploads in parts."""

    def __init__(self, parts: Parts, objects: S3Objects, traps: Kindness) -> None:
        self._parts = parts
        self._objects = objects
        self._traps = traps

    def start(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Begin an upload."""
        request.drain()
        check_key(key)
        name = self._parts.begin(bucket, key, metadata.of_request(request))
        found: list[Element] = [("Bucket", bucket.name), ("Key", text_of(key)), ("UploadId", name)]
        return xml_reply("InitiateMultipartUploadResult", found)

    def put(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Store a part: what is sent, or a part of another object."""
        upload, number = self._upload(request, bucket, key), _number(request)
        if request.header("x-amz-copy-source"):
            return self._copy(request, upload, number)
        body = Body(request)

        def tag() -> PartTag:
            checksums = {_element(name): value for name, value in body.checksums.items()}
            return PartTag(body.md5.digest().hex(), checksums, time.time_ns())

        self._parts.store(upload, number, body.length, body.pieces(), tag)
        found = body.md5.digest().hex()
        return Reply(headers=[("ETag", f'"{found}"'), *body.checksums.items()])

    def _copy(self, request: Request, upload: Upload, number: int) -> Reply:
        request.drain()
        source, key = self._objects.source(request)
        md5, now = hashlib.md5(usedforsecurity=False), time.time_ns()

        def tag() -> PartTag:
            return PartTag(md5.hexdigest(), {}, now)

        def pieces() -> Iterator[bytes]:
            for piece in self._objects.source_pieces(request, source, key):
                md5.update(piece)
                yield piece

        self._parts.store(upload, number, 0, pieces(), tag)
        about = [("LastModified", time_text(now)), ("ETag", f'"{md5.hexdigest()}"')]
        return xml_reply("CopyPartResult", about)

    def complete(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Make an object of the listed parts."""
        root = documents.parse(Body(request).whole(documents.LARGEST), "CompleteMultipartUpload")
        upload, check = self._upload(request, bucket, key), check_writing(request)
        numbers = _listed(root, upload)
        if not self._traps.like_amazon:
            self._parts.check_all_listed(upload, numbers)
        md5 = hashlib.md5(usedforsecurity=False)
        for number in numbers:
            md5.update(bytes.fromhex(upload.tags[number].etag))
        upload.custom[PARTS_ETAG] = f"{md5.hexdigest()}-{len(numbers)}"
        name = request.query["uploadId"]
        found = self._parts.finish(name, numbers, bucket, key, metadata.is_of_s3, check)
        if found is None:
            raise no_upload()
        about: list[Element] = [
            ("Location", f"{request.base_url}{request.path}"),
            ("Bucket", bucket.name),
            ("Key", text_of(key)),
            ("ETag", etag(found)),
        ]
        return xml_reply("CompleteMultipartUploadResult", about)

    def abort(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Discard an upload."""
        request.drain()
        self._upload(request, bucket, key)
        if not self._parts.discard(request.query["uploadId"]):
            raise no_upload()
        return Reply(204)

    def list_parts(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """List the parts of an upload, page by page."""
        upload = self._upload(request, bucket, key)
        after, most = (
            _count(request, "part-number-marker", 0),
            _count(request, "max-parts", MOST_LISTED),
        )
        numbers = sorted(number for number in tuple(upload.tags) if number > after)
        shown = numbers[: min(most, MOST_LISTED)]
        about: list[Element] = [
            ("Bucket", bucket.name),
            ("Key", text_of(key)),
            ("UploadId", request.query["uploadId"]),
            ("PartNumberMarker", after),
            ("NextPartNumberMarker", shown[-1] if shown else after),
            ("MaxParts", min(most, MOST_LISTED)),
            ("IsTruncated", len(shown) < len(numbers)),
            ("StorageClass", "STANDARD"),
        ]
        return xml_reply("ListPartsResult", [*about, *(_part(upload, n) for n in shown)])

    def list_uploads(self, request: Request, bucket: Bucket) -> Reply:
        """List the uploads in progress in a bucket, all at once."""
        prefix = request.query.get("prefix", "")
        if any(request.query.get(name) for name in ("key-marker", "upload-id-marker", "delimiter")):
            raise invalid("the list of uploads is sent whole: it has no markers and no delimiter")
        found = [(text_of(u.key), name, u) for name, u in self._parts.uploads(bucket)]
        about: list[Element] = [
            ("Bucket", bucket.name),
            ("KeyMarker", ""),
            ("UploadIdMarker", ""),
            ("Prefix", prefix),
            ("MaxUploads", max(len(found), MOST_LISTED)),
            ("IsTruncated", False),
        ]
        about += [
            (
                "Upload",
                [("Key", key), ("UploadId", name), ("Initiated", time_text(upload.begun_ns))],
            )
            for key, name, upload in sorted(found, key=lambda each: each[:2])
            if key.startswith(prefix)
        ]
        return xml_reply("ListMultipartUploadsResult", about)

    def _upload(self, request: Request, bucket: Bucket, key: bytes) -> Upload:
        found = self._parts.find(request.query.get("uploadId", ""), bucket, key)
        if found is None:
            raise no_upload()
        return found


def _listed(root: XmlElement, upload: Upload) -> list[int]:
    """Return the numbers of the parts in a document, which were received as it says."""
    numbers: list[int] = []
    for part in root:
        if part.tag != "Part":
            continue
        text = part.findtext("PartNumber", "").strip()
        if not _NUMBER.fullmatch(text):
            raise malformed("a part without a number")
        number = int(text)
        if numbers and number <= numbers[-1]:
            text = "the parts are not listed in ascending order"
            raise S3Error(400, "InvalidPartOrder", text)
        numbers.append(number)
        _check_part(part, number, upload)
    if not numbers:
        raise malformed("no part is listed")
    for number in numbers[:-1]:
        if upload.sizes[number] < SMALLEST:
            text = f"part {number} has less than {SMALLEST} bytes, and is not the last"
            raise S3Error(400, "EntityTooSmall", text)
    return numbers


def _check_part(part: XmlElement, number: int, upload: Upload) -> None:
    tag = upload.tags.get(number)
    given = part.findtext("ETag", "").strip().strip('"')
    if tag is None or given != tag.etag:
        raise S3Error(400, "InvalidPart", f"part {number} was not received with this ETag")
    for child in part:
        if child.tag.startswith("Checksum"):
            had = tag.checksums.get(child.tag)
            if had is not None and had != (child.text or "").strip():
                raise S3Error(400, "InvalidPart", f"part {number} has another {child.tag}")


def _part(upload: Upload, number: int) -> Element:
    tag = upload.tags[number]
    about: list[Element] = [
        ("PartNumber", number),
        ("LastModified", time_text(tag.time_ns)),
        ("ETag", f'"{tag.etag}"'),
        ("Size", upload.sizes[number]),
        *tag.checksums.items(),
    ]
    return "Part", about


def _number(request: Request) -> int:
    text = request.query.get("partNumber", "")
    if not _NUMBER.fullmatch(text) or int(text) > MOST_PARTS:
        raise invalid(f"the number of a part is one of 1 to {MOST_PARTS}")
    return int(text)


def _count(request: Request, name: str, default: int) -> int:
    text = request.query.get(name) or str(default)
    if not text.isdecimal() or len(text) > 9:
        raise invalid(f"{name} is not a number")
    return int(text)


def _element(header: str) -> str:
    """Return the XML element for a checksum header: `ChecksumCRC32` for `x-amz-checksum-crc32`."""
    return "Checksum" + header.rpartition("-")[2].upper()
