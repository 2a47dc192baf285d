"""Objects of S3 whose keys obstore refuses, served by boto3; and markers of directories, removed with it.

Of a key with `//`, with `.` or `..` as a component, or with a control character, obstore makes an error of
the whole listing. boto3 takes any key, but lists ten times slower, and in threads that only a timeout ends.
"""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from hashlib import md5
from typing import Any

import trio

from aisfs.core.names.listing import is_key
from aisfs.errors import (
    InvalidName,
    ProtocolError,
    Stale,
    Unavailable,
    Unsupported,
)
from aisfs.model import Bucket, ObjectInfo, Page, Provider
from aisfs.redaction import shown
from aisfs.settings import ClusterSettings, fields
from aisfs.store.cloud.errors import error_of_status
from aisfs.store.cloud.objects import REFUSED, version_of
from aisfs.store.cloud.uploads import MADE_BY, Condition
from aisfs.store.plain import check_condition
from aisfs.store.port import Content

TOKEN = "boto3 "
"""How the tokens of these listings begin."""


def are_listed(bucket: Bucket) -> bool:
    """Return whether odd keys of a bucket can be listed: those of S3, if boto3 is installed."""
    return bucket.provider is Provider.S3 and importlib.util.find_spec("boto3") is not None


def is_odd(bucket: Bucket, key: str) -> bool:
    """Return whether an object has to be asked for here."""
    return bool(REFUSED.search(key)) and is_key(key) and are_listed(bucket)


class OddKeys:
    """Does what obstore does not."""

    def __init__(self, settings: ClusterSettings, count: Callable[[str, int], None]) -> None:
        self._settings = settings
        self._count = count
        self._client: Any = None

    async def page(self, bucket: Bucket, prefix: str, token: str) -> Page:
        """Return a page of a directory."""
        ours = token.startswith(TOKEN)  # and not one of a listing that obstore turned out to refuse
        more = {"ContinuationToken": token.removeprefix(TOKEN)} if ours else {}
        found = await self._ask(bucket, Prefix=prefix, Delimiter="/", **more)
        token = found.get("NextContinuationToken", "")
        return Page(
            [_described(row["Key"], row["Size"], row) for row in found.get("Contents", ())],
            [row["Prefix"] for row in found.get("CommonPrefixes", ())],
            f"{TOKEN}{token}" if token else "",
        )

    async def first(
        self, bucket: Bucket, prefix: str, most: int, after: str
    ) -> list[tuple[str, datetime]]:
        """Return the first keys below a directory that come behind `after`, and when they changed."""
        first: list[tuple[str, datetime]] = []
        more: dict[str, object] = {"StartAfter": after}
        while True:
            found = await self._ask(bucket, Prefix=prefix, MaxKeys=most - len(first), **more)
            first += [(row["Key"], row["LastModified"]) for row in found.get("Contents", ())]
            token = found.get("NextContinuationToken", "")
            if not token or len(first) >= most:
                return first
            more = {"ContinuationToken": token}

    async def head(self, bucket: Bucket, key: str) -> ObjectInfo:
        """Describe an object."""
        return (await self._head(bucket, key))[0]

    async def _head(self, bucket: Bucket, key: str) -> tuple[ObjectInfo, dict[str, str]]:
        """Describe an object, and return its metadata."""
        self._count("head", 1)
        found = await self._call(bucket, key, "head_object", Key=key)
        return _described(key, found["ContentLength"], found), found["Metadata"]

    async def read(self, bucket: Bucket, expected: ObjectInfo, start: int, size: int) -> bytes:
        """Return bytes of exactly this version."""
        self._count("get", 1)
        key, place = expected.key, f"{start}-{start + size - 1}"
        words = {"Range": f"bytes={place}"}
        if expected.version:
            words["IfMatch"] = f'"{expected.version}"'
        found = await self._call(bucket, key, "get_object", Key=key, **words)
        data: bytes = found["Body"]
        if found.get("ContentRange") != f"bytes {place}/{expected.size}" or len(data) != size:
            raise Unavailable(f"{bucket}/{key}: another range came than was asked for")
        return data

    async def upload(self, bucket: Bucket, key: str, content: Content, condition: Condition) -> str:
        """Write an object with one request, and return its ETag; see `WritableStore.upload`."""
        subject, ours = f"{bucket}/{key}", {MADE_BY: condition.only_new}
        words: dict[str, object] = {}
        if condition.only_new:
            words = {"Metadata": ours, "IfNoneMatch": "*"}
        elif condition.replaces is not None:
            words = {"IfMatch": f'"{condition.replaces.version}"'}
        body = bytearray(content.size)
        await trio.to_thread.run_sync(content.read_into, 0, memoryview(body))
        self._count("put", 1)
        try:
            put = await self._call(bucket, key, "put_object", Key=key, Body=bytes(body), **words)
        except Stale:
            there, metadata = await self._head(bucket, key)
            if condition.only_new and metadata == ours:
                return there.version  # of a try before this one, whose answer was lost
            if condition.replaces and there.version == md5(body, usedforsecurity=False).hexdigest():
                return there.version
            check_condition(subject, condition.only_new, condition.replaces, there)
            raise Unavailable(f"{subject}: another client writes it, too") from None
        return version_of(put.get("ETag"))

    async def copy(self, bucket: Bucket, key: str, new_key: str) -> None:
        """Copy an object within its bucket."""
        self._count("copy", 1)
        source = {"Bucket": bucket.name, "Key": key}
        await self._call(bucket, key, "copy_object", Key=new_key, CopySource=source)

    async def remove(self, bucket: Bucket, key: str) -> None:
        """Delete an object."""
        self._count("delete", 1)
        await self._call(bucket, key, "delete_object", Key=key)

    async def remove_marker(self, bucket: Bucket, key: str) -> None:
        """Remove the marker of a directory, an object whose key ends in a slash.

        Raises:
            Unsupported: it has content, so it is more than that.
            Stale: somebody has just written it.
        """
        found = await self.head(bucket, key)
        if found.size:
            raise Unsupported(f"{bucket}/{key}: an object of {found.size} bytes")
        self._count("delete", 1)
        await self._call(bucket, key, "delete_object", Key=key, IfMatch=f'"{found.version}"')

    async def _ask(self, bucket: Bucket, **words: object) -> dict[str, Any]:
        self._count("list", 1)
        found = await self._call(bucket, str(words["Prefix"]), "list_objects_v2", **words)
        if found.get("Name") != bucket.name or found.get("IsTruncated") is None:
            raise Unavailable(f"{bucket}: the answer is no listing of it")
        return found

    async def _call(self, bucket: Bucket, key: str, name: str, **words: object) -> dict[str, Any]:
        def call() -> dict[str, Any]:
            with _errors(f"{bucket}/{key}"):
                if self._client is None:
                    self._client = _make_client(self._settings)
                if self._settings.requester_pays:
                    words["RequestPayer"] = "requester"
                found: dict[str, Any] = getattr(self._client, name)(Bucket=bucket.name, **words)
                if name == "get_object":
                    found["Body"] = found["Body"].read()
            return found

        reads = name.startswith(("get", "head", "list"))  # a late write could replace a later one
        return await trio.to_thread.run_sync(call, abandon_on_cancel=reads)


def _make_client(settings: ClusterSettings) -> Any:  # noqa: ANN401 - boto3 has no types
    import boto3
    import botocore
    from botocore.config import Config

    endpoint = fields.endpoint_of("s3") or None
    config = Config(
        connect_timeout=settings.connect_timeout or None,
        read_timeout=settings.read_timeout or settings.io_timeout,
        retries={"total_max_attempts": 1},
        max_pool_connections=settings.max_connections,
        s3={"addressing_style": "path"} if endpoint else None,
        signature_version=botocore.UNSIGNED if settings.anonymous else None,
    )
    return boto3.Session(region_name=fields.aws_region() or None).client(
        "s3",
        endpoint_url=endpoint,
        config=config,
        verify=False
        if settings.skip_verify_crt
        else settings.client_ca and str(settings.client_ca),
    )


@contextmanager
def _errors(subject: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        told = error.response
        code = str(told.get("Error", {}).get("Code", ""))
        status = told["ResponseMetadata"]["HTTPStatusCode"]
        found = error_of_status(subject, status, code)
        if status == 400 and isinstance(
            found, ProtocolError
        ):  # so AIStore, MinIO and others refuse such keys
            found = InvalidName(f"{subject}: the server takes no such name (HTTP 400 {code})")
        raise found from error
    except (BotoCoreError, OSError) as error:
        raise Unavailable(f"{subject}: {shown(str(error))}") from None
    except ValueError as error:
        raise ProtocolError(f"{subject}: {shown(str(error))}") from None


def _described(key: str, size: int, row: Any) -> ObjectInfo:  # noqa: ANN401
    mtime = int(row["LastModified"].timestamp()) * 1_000_000_000
    return ObjectInfo(key, size, version_of(row.get("ETag")), mtime_ns=mtime)
