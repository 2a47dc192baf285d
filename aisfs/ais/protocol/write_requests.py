"""Requests that change objects, as plain values, and what their replies say. Pure, like `wire`.

Every request here names one object, or a bucket that is to be made or destroyed. `wire.Request` refuses to be made of anything that could
change more.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aisfs.ais.protocol.object_replies import parse_object
from aisfs.ais.protocol.requests import (
    JSON,
    BucketFacts,
    Request,
    bucket_path,
    bucket_query,
    encode_json,
    object_path,
)
from aisfs.errors import InvalidName, ProtocolError
from aisfs.http.exchange import Reply
from aisfs.model import Bucket, ObjectInfo
from aisfs.redaction import shown

_MOST_TEXT = 150
"""Characters of what should be an id that are passed on."""
_BYTES_A_SECOND = 50e6
"""At least as fast reads and writes a target what it works on without a word to us."""


def put_object(bucket: Bucket, key: str, *, checksum: str = "", custom: str = "") -> Request:
    """Write an object; the content goes along when the request is sent.

    Args:
        bucket: The bucket.
        key: Name of the object.
        checksum: Of the content, `<type>:<hex>`: the target compares before it commits.
        custom: What `custom_text` will give back.
    """
    headers = _checksum_headers(checksum)
    if custom:
        headers["Ais-Custom-Md"] = f"{_OURS}={custom}"
    return _request("PUT", bucket, key, headers=headers)


def create_bucket(bucket: Bucket) -> Request:
    """Make an empty bucket, with the properties that the cluster gives to new ones."""
    body = encode_json({"action": "create-bck", "name": "", "value": None})
    path, query, headers = bucket_path(bucket), bucket_query(bucket), {"Content-Type": JSON}
    return Request("POST", path, query, str(bucket), headers, body)


def destroy_bucket(bucket: Bucket) -> Request:
    """Destroy a bucket with all that is in it."""
    body = encode_json({"action": "destroy-bck", "name": "", "value": None})
    path, query, headers = bucket_path(bucket), bucket_query(bucket), {"Content-Type": JSON}
    return Request("DELETE", path, query, str(bucket), headers, body)


def delete_object(bucket: Bucket, key: str) -> Request:
    """Delete one object."""
    return _request("DELETE", bucket, key)


def copy_object(bucket: Bucket, source: ObjectInfo, to_bucket: Bucket, new_key: str) -> Request:
    """Copy an object within the cluster. AIStore may say yes and not do it."""
    space = to_bucket.namespace or "@#"
    to = f"{to_bucket.provider.value}/{space}/{to_bucket.name}/{new_key}"
    request = _request("PUT", bucket, source.key, {"object_to": to})
    return replace(request, patience=source.size / _BYTES_A_SECOND)


def patch_custom(bucket: Bucket, key: str, custom: str) -> Request:
    """Replace our pair of the custom metadata; the pairs of others stay."""
    body = encode_json({"action": "", "name": "", "value": {_OURS: custom}})
    return _request("PATCH", bucket, key, headers={"Content-Type": JSON}, body=body)


def start_parts(bucket: Bucket, key: str) -> Request:
    """Begin an upload in parts."""
    return _action("POST", bucket, key, {}, {"action": "mpt-upload"})


def put_part(bucket: Bucket, key: str, upload: str, number: int, checksum: str = "") -> Request:
    """Send one part, numbered from 1; the content goes along."""
    query = {"uploadId": upload, "partNumber": str(number)}
    return _request("PUT", bucket, key, query, headers=_checksum_headers(checksum))


def complete_parts(bucket: Bucket, key: str, upload: str, sizes: Sequence[int]) -> Request:
    """Make the parts an object."""
    parts = [{"part-number": number, "etag": ""} for number in range(1, len(sizes) + 1)]
    message = {"action": "mpt-complete", "value": parts}
    request = _action("POST", bucket, key, {"uploadId": upload}, message)
    return replace(request, patience=sum(sizes) / _BYTES_A_SECOND)


def abort_parts(bucket: Bucket, key: str, upload: str) -> Request:
    """Throw the parts away."""
    return _action("DELETE", bucket, key, {"uploadId": upload}, {"action": "mpt-abort"})


def parse_upload_id(reply: Reply, subject: str) -> str:
    """Read the id of an upload in parts."""
    text = reply.body.decode("ascii", "replace").strip()
    if not re.fullmatch(r"[!-~]{1,200}", text):
        raise ProtocolError(f"{subject}: the id of the upload is {shown(text)[:_MOST_TEXT]!r}")
    return text


def parse_written(
    reply: Reply, bucket: Bucket, key: str, size: int, facts: BucketFacts
) -> ObjectInfo | None:
    """Read the reply to a PUT; None when it says nothing, as when the object was there already."""
    if "ais-checksum-value" not in reply.headers and "ais-version" not in reply.headers:
        return None
    headers = {**reply.headers, "content-length": str(size)}
    return parse_object(replace(reply, headers=headers), bucket, key, facts)


def may_be_lost(name: str) -> bool:
    """Return whether AIStore is known to lose what is copied or renamed to this name."""
    return "%" in name or "?" in name


_OURS = "aisfs"
"""Name of our one pair; `wire.custom_text` finds it."""


def _checksum_headers(checksum: str) -> dict[str, str]:
    if not checksum:
        return {}
    kind, _, value = checksum.partition(":")
    return {"Ais-Checksum-Type": kind, "Ais-Checksum-Value": value}


def _action(
    method: str, bucket: Bucket, key: str, query: Mapping[str, str], message: Mapping[str, object]
) -> Request:
    body = encode_json(message)
    return _request(method, bucket, key, query, headers={"Content-Type": JSON}, body=body)


def _request(
    method: str,
    bucket: Bucket,
    key: str,
    query: Mapping[str, str] | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Request:
    if key.endswith("/"):
        raise InvalidName(f"{bucket}: {key!r} is not a name of an object")
    path = object_path(bucket, key)
    return Request(
        method, path, bucket_query(bucket, query), f"{bucket}/{key}", headers or {}, body
    )
