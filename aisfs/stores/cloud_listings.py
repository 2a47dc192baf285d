"""Listings of one cloud through obstore, as pages.

obstore gives a directory whole, however many requests that takes. So one that takes long goes on while
empty pages are handed out, and no deadline of a single call ends it.

obstore's paths have no slash at their end, and none but single ones: a marker `dir/` looks like an
object `dir` in the directory itself and is left out, and a key with `//` makes it refuse the listing:
see `odd_keys`.

Objects of S3 whose keys obstore refuses, served by boto3; and markers of directories, removed with it.

Of a key with `//`, with `.` or `..` as a component, or with a control character, obstore makes an error of
the whole listing. boto3 takes any key, but lists ten times slower, and in threads that only a timeout ends.
"""

import asyncio
import importlib.util
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from hashlib import md5
from typing import Any, NamedTuple

import obstore
import trio
from obstore.exceptions import InvalidPathError

from aisfs.core.names.listing import is_key
from aisfs.core.names.urls import has_no_path
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    InvalidName,
    NotFound,
    ProtocolError,
    Stale,
    Unavailable,
    Unsupported,
)
from aisfs.model import Bucket, Keys, ObjectInfo, Page, Provider
from aisfs.redaction import shown
from aisfs.settings import ClusterSettings, clouds
from aisfs.stores.cloud_client import (
    REFUSED,
    Client,
    Futures,
    cloud_errors,
    described,
    error_of_status,
    settled,
    version_of,
)
from aisfs.stores.cloud_uploads import MADE_BY
from aisfs.stores.port import Count, Upload

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

    async def upload(self, upload: Upload) -> str:
        """Write an object with one request, and return its ETag; see `Upload`."""
        bucket, key, ours = upload.bucket, upload.key, {MADE_BY: upload.only_new}
        words: dict[str, object] = {}
        if upload.only_new:
            words = {"Metadata": ours, "IfNoneMatch": "*"}
        elif upload.replaces is not None:
            words = {"IfMatch": f'"{upload.replaces.version}"'}
        body = bytearray(upload.content.size)
        await trio.to_thread.run_sync(upload.content.read_into, 0, memoryview(body))
        self._count("put", 1)
        try:
            put = await self._call(bucket, key, "put_object", Key=key, Body=bytes(body), **words)
        except Stale:
            there, metadata = await self._head(bucket, key)
            if upload.only_new and metadata == ours:
                return there.version  # of a try before this one, whose answer was lost
            if upload.replaces and there.version == md5(body, usedforsecurity=False).hexdigest():
                return there.version
            upload.check(there)
            raise Unavailable(f"{upload}: another client writes it, too") from None
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

    endpoint = clouds.endpoint_of("s3") or None
    config = Config(
        connect_timeout=settings.connect_timeout or None,
        read_timeout=settings.read_timeout or settings.io_timeout,
        retries={"total_max_attempts": 1},
        max_pool_connections=settings.max_connections,
        s3={"addressing_style": "path"} if endpoint else None,
        signature_version=botocore.UNSIGNED if settings.anonymous else None,
    )
    return boto3.Session(region_name=clouds.aws_region() or None).client(
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


_PATIENCE = 10.0
"""Seconds until a page is given although it is empty; well below any deadline of a call."""
_TRIES = 3
"""Of a listing that outlives the deadlines of its calls, which therefore cannot end it."""
_FORGOTTEN = 120.0
"""Seconds until a listing that nobody asks for any more is cancelled."""
_PAGE = 1000
"""Entries that a request brings, in S3; others bring up to five times as many."""
_CLOCKS = timedelta(minutes=1)
"""How far the clock of a cloud may be from ours."""
_BY_NAME = "by name"
"""Token of the page behind the first one of a directory that cannot be listed."""
_NAMED = re.compile(r'Path "(.*)"(?: contained|:)', re.DOTALL)
"""In what obstore says of a key."""
_NOWHERE = ".aisfs-there-is-no-such-object"


class _Pending(NamedTuple):
    future: "asyncio.Future[Any]"
    since: float
    """When it was last asked for."""
    number: int
    """Which try it is."""
    began: datetime


class _OddKey(ProtocolError):
    """A key that obstore refuses, and with it all that the cloud lists beside it."""

    key = ""


def _odd_key(bucket: Bucket, prefix: str, refused: BaseException) -> _OddKey:
    found = _NAMED.search(str(refused).partition("\n\n")[0])
    key = found[1] if found else prefix
    error = _OddKey(
        f"{bucket}/{prefix}: cannot be listed while a key there begins with {key!r}, which the cloud's "
        "client refuses: rename such keys with the cloud's own tools; files can be opened by name"
    )
    error.key = key
    return error


class Listings:
    """Lists buckets; knows the listings that are under way."""

    def __init__(self, futures: Futures, count: Count, settings: ClusterSettings) -> None:
        self._futures = futures
        self._count = count
        self._numbers = itertools.count(1)
        self._pending: dict[str, _Pending] = {}
        self.odd_keys = OddKeys(settings, count)
        self._deadline = settings.io_timeout
        self._refused: dict[tuple[Bucket, str], _OddKey] = {}
        """Directories that cannot be listed at all, and why."""
        self._odd: set[tuple[Bucket, str]] = set()
        """Directories whose listings obstore refuses, and boto3 makes."""
        self._witness: dict[Bucket, str] = {}
        """A key of each bucket that was listed last."""
        self._has_etags: dict[Bucket, bool] = {}

    async def has_etags(self, client: Client, bucket: Bucket) -> bool:
        """Return whether listings of a bucket have ETags; AIStore's do not."""
        if bucket not in self._has_etags:
            with suppress(AccessDenied):  # of the rest of the bucket: so it is a cloud
                await self.first_keys(client, bucket, "", 1)
        return self._has_etags.get(bucket, True)

    def _note(self, bucket: Bucket, objects: Sequence[Any]) -> None:
        if objects:
            self._has_etags[bucket] = bool(objects[0]["e_tag"])

    async def page(self, client: Client, bucket: Bucket, prefix: str, token: str) -> Page:
        """Return a page of a directory; see `ObjectStore.list_page`."""
        odd = has_no_path(prefix)
        if odd and not are_listed(bucket):
            return Page([], [], "")
        if token == _BY_NAME:
            raise self._refused[bucket, prefix]
        if odd or (bucket, prefix) in self._odd:
            return await self.odd_keys.page(bucket, prefix, token)
        self._forget_old()
        known = self._pending.pop(token, None)
        number = known.number if known else 1 + int(token.rpartition("-")[2] or 0)
        began = known.began if known else datetime.now(UTC)
        future = known.future if known else self._begin(client, bucket, prefix)
        try:
            with trio.move_on_after(min(_PATIENCE, self._deadline / 2)):
                await settled(future, keep=True)
        except trio.Cancelled:  # nobody knows the token by which it could be asked for
            future.cancel()
            raise
        if not future.done():
            token = f"listing-{next(self._numbers)}-{number}"
            self._pending[token] = _Pending(future, trio.current_time(), number, began)
            return Page([], [], token)
        if isinstance(refused := future.exception(), InvalidPathError):
            if are_listed(bucket):
                self._odd.add((bucket, prefix))
                return await self.odd_keys.page(bucket, prefix, "")
            # The directory counts as a large one: its names are looked up one by one.
            self._refused[bucket, prefix] = _odd_key(bucket, prefix, refused)
            return Page([], [], _BY_NAME)
        with _last_of(number):
            return await self._checked(client, bucket, prefix, future, began)

    async def _checked(
        self,
        client: Client,
        bucket: Bucket,
        prefix: str,
        future: "asyncio.Future[Any]",
        began: datetime,
    ) -> Page:
        """Return what a listing brought, once it is sure that it is all."""
        with cloud_errors(f"{bucket}/{prefix}"):
            found = future.result()
        if not found["objects"] and not found["common_prefixes"]:
            await self._check_lists(client, bucket)
            again = self._begin(client, bucket, prefix)
            await settled(again)
            with cloud_errors(f"{bucket}/{prefix}"):
                found = again.result()
        paths = [meta["path"] for meta in found["objects"]]
        _check_inside(bucket, prefix, [*paths, *found["common_prefixes"]])
        objects = [meta for meta in found["objects"] if meta["path"].startswith(prefix)]
        directories = [f"{path}/" for path in found["common_prefixes"] if path.startswith(prefix)]
        entries = len(found["objects"]) + len(found["common_prefixes"])
        self._count("list", _requests(entries))
        self._note(bucket, found["objects"])
        if objects:
            self._witness[bucket] = objects[-1]["path"]
        if entries >= _PAGE:
            last = max([*(meta["path"] for meta in objects), *directories], default="")
            await self._check_end(client, bucket, prefix, last, began)
        return Page([described(meta) for meta in objects], directories, "")

    async def first_keys(
        self, client: Client, bucket: Bucket, prefix: str, most: int, *, sure: bool = False
    ) -> Keys:
        """Return the first keys below a directory; see `ObjectStore.first_keys`."""
        if has_no_path(prefix):
            if not are_listed(bucket):
                return Keys([], complete=True)
            found = await self.odd_keys.first(bucket, prefix, most + 1, "")
            return Keys([key for key, _ in found[:most]], len(found) <= most)
        try:
            return await self._first_keys(client, bucket, prefix, most, sure=sure)
        except _OddKey as odd:  # so there is something
            return Keys([odd.key], complete=False)

    async def _first_keys(
        self, client: Client, bucket: Bucket, prefix: str, most: int, *, sure: bool
    ) -> Keys:
        began = datetime.now(UTC)
        found = await self._first(client, bucket, prefix, most + 1)
        if not found and (most > 1 or sure):  # a lookup then asks for the object of that name
            await self._check_lists(client, bucket)
            found = await self._first(client, bucket, prefix, most + 1)
        if _PAGE <= len(found) <= most:
            last = max(path for path, _ in found)
            await self._check_end(client, bucket, prefix, last, began)
        marker = prefix.removesuffix("/")
        keys = [prefix if path == marker else path for path, _ in found]
        return Keys(keys[:most], len(keys) <= most)

    async def remove_marker(self, bucket: Bucket, prefix: str) -> None:
        """Remove the marker of a directory, the object `dir/`; obstore would remove the object `dir`.

        Raises:
            Unsupported: only the cloud's own tools can do it.
        """
        if not are_listed(bucket):
            what = "this takes boto3" if bucket.provider is Provider.S3 else "obstore cannot do it"
            raise Unsupported(f"{bucket}/{prefix}: {what}; the cloud's own tools can")
        await self.odd_keys.remove_marker(bucket, prefix)

    def close(self) -> None:
        """Cancel the listings that are under way."""
        for pending in self._pending.values():
            pending.future.cancel()
        self._pending.clear()

    def _begin(self, client: Client, bucket: Bucket, prefix: str) -> "asyncio.Future[Any]":
        with cloud_errors(f"{bucket}/{prefix}"):
            return self._futures.begin(obstore.list_with_delimiter_async, client, prefix or None)

    async def _first(
        self, client: Client, bucket: Bucket, prefix: str, most: int, after: str = ""
    ) -> list[tuple[str, datetime]]:
        """Return the first paths behind `after`, and when they changed; obstore may make one of a marker `dir/`, too."""
        if after and REFUSED.search(after) and are_listed(bucket):
            return await self.odd_keys.first(bucket, prefix, most, after)
        with cloud_errors(f"{bucket}/{prefix}"):
            stream = obstore.list(client, prefix or None, offset=after or None, chunk_size=most)
            try:
                found: Sequence[Any] = await self._futures.wait(stream.__anext__)
            except StopAsyncIteration:
                found = ()
            except InvalidPathError as refused:
                if not are_listed(bucket):
                    raise _odd_key(bucket, prefix, refused) from None
                return await self.odd_keys.first(bucket, prefix, most, after)
        self._count("list", _requests(len(found)))
        self._note(bucket, found)
        _check_inside(bucket, prefix, [meta["path"] for meta in found])
        if found:
            self._witness[bucket] = found[-1]["path"]
        return [(meta["path"], meta["last_modified"]) for meta in found]

    async def _check_lists(self, client: Client, bucket: Bucket) -> None:
        """Make sure that the cloud lists what there is, after a listing without any entry.

        To obstore, any XML without entries is an empty listing: the page of a proxy that wants a login,
        too, or an error with the status of success.

        Raises:
            Unavailable: it does not.
        """
        witness = self._witness.get(bucket, "")
        for directory in dict.fromkeys((witness[: witness.rfind("/") + 1], "")):
            try:
                if await self._first(client, bucket, directory, 1):
                    return
            # A key that obstore refuses is one. Nor is it for an account that sees only some of a bucket
            # to see all of it.
            except (_OddKey, AccessDenied):
                return
        for key in filter(None, (witness, _NOWHERE)):
            self._count("head", 1)
            try:
                with cloud_errors(f"{bucket}/{key}"):
                    await self._futures.wait(obstore.head_async, client, key)
            except NotFound:
                self._witness.pop(bucket, None)
            except AccessDenied:
                return
            else:
                raise Unavailable(f"{bucket}: the listing lacks {key!r}, which is there")

    async def _check_end(
        self, client: Client, bucket: Bucket, prefix: str, last: str, began: datetime
    ) -> None:
        """Make sure that a listing of several pages did not end at one that was none: see above.

        What was made since it `began` may be missing.

        Raises:
            Unavailable: it did.
        """
        # obstore lists all of Azure to get behind a name, and knows its pages. AIStore refuses to begin
        # behind a name in its buckets of other clouds.
        if bucket.provider is Provider.AZ or not self._has_etags.get(bucket, True):
            return
        try:
            if not await self._first(client, bucket, prefix, 1):
                raise Unavailable(f"{bucket}/{prefix}: the cloud lists nothing any more")
            behind = await self._first(client, bucket, prefix, 1, _behind(last))
        except _OddKey:  # below, and of no known time
            return
        for _, changed in behind:
            if changed < began - _CLOCKS:
                raise Unavailable(
                    f"{bucket}/{prefix}: the listing ended at {last!r}, which is not the end"
                )

    def _forget_old(self) -> None:
        now = trio.current_time()
        for token, pending in list(self._pending.items()):
            if now - pending.since > _FORGOTTEN:
                pending.future.cancel()
                del self._pending[token]


def _requests(entries: int) -> int:
    """Return how many requests brought so many entries."""
    return max(1, -(-entries // _PAGE))


def _check_inside(bucket: Bucket, prefix: str, paths: Sequence[str]) -> None:
    """Make sure that a listing of a directory is one of this directory, the marker `dir/` being its own.

    Raises:
        Unavailable: it is not.
    """
    marker = prefix.removesuffix("/")
    for path in paths:
        if not path.startswith(prefix) and path != marker:
            raise Unavailable(f"{bucket}/{prefix}: the listing names {path!r}, which is not in it")


def _behind(name: str) -> str:
    """Return a name behind which no key of this object or directory is."""
    return f"{name[:-1]}0" if name.endswith("/") else name


@contextmanager
def _last_of(number: int) -> Iterator[None]:
    """Have the last try of a listing end it, whatever the error."""
    try:
        yield
    except AisfsError as error:
        if number >= _TRIES:
            error.transient = False
        raise
