"""The port over AIStore's protocol: what to ask for, and how a call runs and ends.

Each call runs in a worker thread, on connections that it has to itself (`ConnectionPool`).

GetBatch: many objects, or ranges of them, with one request, as a tar that is unpacked while it arrives.

A tar does not state versions. So of whole objects only those are requested whose checksum is known and
can be computed, and only bytes with that checksum are used. Ranges have no checksum: after they came, the
version of their objects is asked for, and if it is still the expected one, all bytes were of it.
Everything else is left to GETs, which find out what is wrong.

This module must not know: HTTP beyond a path, requests, errnos.

Must not know: HTTP beyond a reply's status, requests, errnos.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import trio

from aisfs.core.archive.tar import BLOCK, ZERO_BLOCK, padded, parse_header, parse_pax, text
from aisfs.core.names import listing as names
from aisfs.core.names.listing import ListingBounds
from aisfs.errors import (
    AisfsError,
    BucketNotFound,
    IsADirectory,
    NotFound,
    ProtocolError,
    Stale,
    Unavailable,
)
from aisfs.http.connections import ConnectionPool, ConnectionSet
from aisfs.http.exchange import Reply
from aisfs.model import NO_CUSTOM, Bucket, Keys, ObjectInfo, Page, Provider, hasher_of, is_known
from aisfs.settings import ClusterSettings
from aisfs.stores.ais import replies, requests
from aisfs.stores.ais.absence import WRITE_AGE, FoundByGet, check_absent, check_listed, check_newest
from aisfs.stores.ais.cluster import Originals, Remotes, Session
from aisfs.stores.ais.replies import failure, refuses_props
from aisfs.stores.ais.transport import Transport
from aisfs.stores.ais.writes import Mutations, Parts, Uploads
from aisfs.stores.pipeline import Retrier
from aisfs.stores.port import Arrived, Sink, Upload, UploadAhead
from aisfs.stores.posix_metadata import encode_custom

log = logging.getLogger(__name__)

ReadInto = Callable[[memoryview], int]
"""Fills a view with the next bytes, as far as there are any; returns how many."""
Wanted = Sequence[tuple[ObjectInfo, memoryview]]
"""Objects, each with room for all of it."""
WantedRanges = Sequence[tuple[ObjectInfo, int, memoryview]]
"""Ranges of objects: where each starts, and room for its bytes. None is empty."""

_MISSING = b"__404__/"
_META_MAX = 1 << 20
_SCRATCH = 1 << 16
"""Bytes read at once to be discarded: the zeros at the end, objects of an unexpected size."""


def get_batch(bucket: Bucket, keys: Sequence[str]) -> requests.Request:
    """Ask for whole objects of one bucket, in this order, with their keys as names."""
    return _request(bucket, [{"objname": key} for key in keys], "objects")


def get_ranges(bucket: Bucket, wanted: WantedRanges) -> requests.Request:
    """Ask for ranges of objects of one bucket, in this order, with the keys of the objects as names."""
    items: list[dict[str, str | int]] = [
        {"objname": info.key, "start": start, "length": len(buffer)}
        for info, start, buffer in wanted
    ]
    return _request(bucket, items, "ranges")


def _request(
    bucket: Bucket, items: Sequence[Mapping[str, str | int]], what: str
) -> requests.Request:
    body = requests.encode_json(
        {
            "mime": ".tar",
            "in": items,
            "coer": True,  # a missing object becomes a marked member and does not end the reply
            "onob": True,
            "strm": True,
        }
    )
    path = f"{requests.BATCHES}/{requests.quoted(bucket)}"
    subject = f"{len(items)} {what} of {bucket}"
    headers = {"Content-Type": requests.JSON}
    return requests.Request("GET", path, requests.bucket_query(bucket), subject, headers, body)


class Batches:
    """Reads many objects at once."""

    def __init__(self, session: Session, *, looks_at_originals: bool) -> None:
        """Send requests through `session`, but none about originals, at which a batch cannot look."""
        self._session = session
        self._looks_at_originals = looks_at_originals

    async def read(self, bucket: Bucket, wanted: Wanted) -> list[bool]:
        """Fill as many of the buffers as one request can; return which are filled."""
        able = [at for at, (info, _) in enumerate(wanted) if can_be_checked(info)]
        filled = [False] * len(wanted)
        if able and self._serves(bucket):
            chosen = [wanted[at] for at in able]
            request = get_batch(bucket, [info.key for info, _ in chosen])

            def work(connections: ConnectionSet) -> list[bool]:
                with self._session.transport.open(connections, request) as body:
                    return unpack(body.read_into, chosen, request.subject)

            found = await self._session.run(request.subject, work, bucket)
            for at, one in zip(able, found, strict=True):
                filled[at] = one
        return filled

    async def read_ranges(self, bucket: Bucket, wanted: WantedRanges) -> list[bool]:
        """Fill as many of the buffers as one request can; return which are filled."""
        able = [at for at, (info, _, _) in enumerate(wanted) if _survives_json(info.key)]
        filled = [False] * len(wanted)
        # Of an attached cluster the bytes may be of an old copy, and the version is that of the original.
        if not able or not self._serves(bucket) or bucket.is_attached:
            return filled
        chosen = [wanted[at] for at in able]
        request = get_ranges(bucket, chosen)

        def work(connections: ConnectionSet) -> int:
            with self._session.transport.open(connections, request) as body:
                return unpack_ranges(body.read_into, chosen, request.subject)

        came = await self._session.run(request.subject, work, bucket)
        asked = dict.fromkeys(info for info, _, _ in chosen[:came])
        current = {info: await self._is_current(bucket, info) for info in asked}
        for at, (info, _, _) in zip(able[:came], chosen, strict=False):
            filled[at] = current[info]
        return filled

    def _serves(self, bucket: Bucket) -> bool:
        return bucket.is_local or not self._looks_at_originals

    async def _is_current(self, bucket: Bucket, expected: ObjectInfo) -> bool:
        """Return whether an object is known to be still this version."""
        try:
            found = await self._session.head(bucket, expected.key)
        except NotFound:
            return False
        by_version = expected.version and found.version
        by_checksum = expected.checksum and found.checksum
        return bool(by_version or by_checksum) and expected.same_content(found)


def can_be_checked(info: ObjectInfo) -> bool:
    """Return whether an object's bytes can be told from those of any other version."""
    kind, _, value = info.checksum.partition(":")
    return bool(value) and is_known(kind) and _survives_json(info.key)


def _survives_json(key: str) -> bool:
    """Return whether the server finds this key in JSON, where one that is not UTF-8 is another one."""
    return not any("\ud800" <= c <= "\udfff" for c in key)


def unpack(read_into: ReadInto, wanted: Wanted, subject: str) -> list[bool]:
    """Read the objects from a reply, which is a tar.

    Args:
        read_into: Reads the reply.
        wanted: The requested objects, in this order.
        subject: What messages call the request.

    Returns:
        Which buffers hold exactly the object; the others may hold anything.

    Raises:
        ProtocolError: it is not a tar, or has members that were not requested.
        Unavailable: it broke off before any object was complete.
    """
    filled = [False] * len(wanted)
    members = _Members(read_into, subject)
    try:
        for at, (info, buffer) in enumerate(wanted):
            name, size = members.next()
            key = info.key.encode()
            if name not in (key, _MISSING + key):
                raise ProtocolError(f"{subject}: {name!r} came instead of {key!r}")
            if name != key or size != info.size:
                members.skip(padded(size))
            else:
                members.fill(buffer)
                members.skip(padded(size) - size)
                filled[at] = _is_content(info, buffer)
        members.end()
    except Unavailable as error:
        if not any(filled):
            raise
        log.debug("%s: only %d came: %s", subject, sum(filled), error)
    return filled


def unpack_ranges(read_into: ReadInto, wanted: WantedRanges, subject: str) -> int:
    """Read the ranges from a reply, which is a tar.

    Args:
        read_into: Reads the reply.
        wanted: The requested ranges, in this order.
        subject: What messages call the request.

    Returns:
        How many of the buffers were filled, from the first on, before something was missing.

    Raises:
        ProtocolError: it is not a tar, or has members that were not requested.
        Unavailable: it broke off before any range was complete.
    """
    members = _Members(read_into, subject)
    filled = 0
    try:
        for info, start, buffer in wanted:
            name, size = members.next()
            key = info.key.encode()
            if name == _MISSING + key:
                return filled  # the others are not worth unpacking: the object changed or is gone
            if name != key:
                raise ProtocolError(f"{subject}: {name!r} came instead of {key!r}")
            if size != len(buffer):
                # Servers before 5.0 send whole objects: stop before they come.
                asked = f"{len(buffer)} bytes from {start} on"
                raise ProtocolError(f"{subject}: {size} bytes came instead of {asked} of {key!r}")
            members.fill(buffer)
            members.skip(padded(size) - size)
            filled += 1
        members.end()
    except _Ended as error:  # so it does if one of the ranges reaches beyond its object
        log.debug("%s", error)
    except Unavailable as error:
        if not filled:
            raise
        log.debug("%s: only %d came: %s", subject, filled, error)
    return filled


def _is_content(info: ObjectInfo, data: memoryview) -> bool:
    kind, _, value = info.checksum.partition(":")
    hasher = hasher_of(kind)
    hasher.update(data)
    return hasher.hexdigest() == value.lower()


class _Ended(ProtocolError):
    """The tar ends before all that was asked for has come."""


class _Members:
    """The members of a tar, as it arrives."""

    def __init__(self, read_into: ReadInto, subject: str) -> None:
        self._read_into = read_into
        self._subject = subject
        self._scratch = memoryview(bytearray(_SCRATCH))

    def next(self) -> tuple[bytes, int]:
        """Return name and size of the next member, whose content comes next."""
        path: bytes | None = None
        while True:
            block = self._scratch[:BLOCK]
            self.fill(block)
            if block == ZERO_BLOCK:
                raise _Ended(f"{self._subject}: the answer is no tar of all that was asked for")
            header = parse_header(bytes(block))
            if header is None or header.size is None or header.size < 0:
                raise ProtocolError(f"{self._subject}: the answer is no tar")
            if header.kind in (b"0", b"\0"):
                return (header.name if path is None else path), header.size
            if header.kind not in (b"x", b"L") or header.size > _META_MAX:
                raise ProtocolError(f"{self._subject}: a tar with {header.kind!r} in it")
            payload = memoryview(bytearray(padded(header.size)))
            self.fill(payload)
            said = bytes(payload[: header.size])
            if header.kind == b"L":
                path = text(said)
            else:
                path = dict(parse_pax(said).pairs).get(b"path", path)

    def fill(self, view: memoryview) -> None:
        """Fill the view with the next bytes."""
        got = self._read_into(view)
        if got < len(view):
            raise Unavailable(f"{self._subject}: the connection ended within a member")

    def skip(self, length: int) -> None:
        """Discard the next bytes."""
        while length:
            piece = self._scratch[: min(length, len(self._scratch))]
            self.fill(piece)
            length -= len(piece)

    def end(self) -> None:
        """Read the zeros at the end, so that the connection can be used again."""
        self._read_into(self._scratch)


T = TypeVar("T")

_PIECE = 1 << 20
"""Bytes given to a sink at once: large beside the cost of a call, small beside a slow link's second."""
MAP_LOOK_SECONDS = 20.0
"""How old the cluster's map may become. A target is taken out for good in no less than half a minute."""


class AISClient:
    """Buckets of an AIStore cluster."""

    def __init__(self, settings: ClusterSettings) -> None:
        """Read the token and the TLS settings; nothing is sent.

        Raises:
            NoEndpoint: nobody said where the cluster is.
            ConfigError: a file that the settings name is unusable.
        """
        self.transport = Transport(settings)
        self._pool = ConnectionPool(self.transport.connections, settings.max_connections)
        self.remotes = Remotes(self.transport)
        self._originals = Originals(self.transport, look=settings.latest)
        self._facts: dict[Bucket, requests.BucketFacts] = {}
        self._head_with_props = True
        self.page_size = 0
        """Entries of a page; 0 is as many as the cluster gives, which loses no name. See `page_tokens`."""
        retrier = Retrier(deadline=settings.io_timeout)
        self._parts = Parts(self, retrier, int(settings.part_size))
        self._uploads = Uploads(self, self._parts)
        self._edits = Mutations(self, retrier, self.stream, self.upload)
        self._batches = Batches(self, looks_at_originals=settings.latest)

    def __repr__(self) -> str:
        return f"<AISClient {self._pool!r}>"

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """List the buckets this client may see, those of attached AIStore clusters too."""
        request = requests.list_buckets(provider)

        def work(connections: ConnectionSet) -> list[Bucket]:
            found = replies.parse_buckets(self.transport.fetch(connections, request))
            if provider in (None, Provider.AIS):
                elsewhere = self.remotes.buckets(connections)
                # Of those in use already the first list has some, by the uuid of their cluster.
                found = [each for each in found if not self.remotes.is_attached(each)] + elsewhere
            return sorted(found)

        return await self.run(request.subject, work)

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        """List one page of the directory `prefix`."""
        page, doubt = await self._page(bucket, prefix, token)
        if doubt is not None:
            raise doubt
        return page

    async def peek_page(self, bucket: Bucket, prefix: str) -> Page:
        """Return the first page of the directory `prefix` as it is listed now."""
        page, doubt = await self._page(bucket, prefix, "")
        return page if doubt is None else replace(page, complete=False)

    async def _page(
        self, bucket: Bucket, prefix: str, token: str
    ) -> tuple[Page, Unavailable | None]:
        """Return a page, and why names may be missing in it."""
        if names.never_below(prefix):
            return Page([], [], ""), None
        request = requests.list_page(bucket, prefix, token, self.page_size)
        asks_copies = requests.list_custom(bucket, prefix, token, self.page_size)

        def work(connections: ConnectionSet) -> tuple[Page, Unavailable | None]:
            facts, custom = self.facts_of(connections, bucket), NO_CUSTOM
            if bucket.is_attached:
                copies = self.transport.fetch(connections, asks_copies)
                custom = replies.parse_custom(copies, bucket, prefix)
            reply = self.transport.fetch(connections, request)
            page = replies.parse_page(reply, bucket, prefix, facts, after=token, custom=custom)
            try:
                check_listed(
                    self.transport, connections, bucket, request.subject, complete=page.complete
                )
            except Unavailable as doubt:
                return page, doubt
            return page, None

        return await self.run(request.subject, work, bucket)

    async def first_keys(self, bucket: Bucket, prefix: str, most: int, sure: bool = False) -> Keys:
        """Return `most` keys at most of objects below the directory `prefix`."""
        if names.never_below(prefix):
            return Keys([], complete=True)
        keys = await self._first_keys(bucket, prefix, most)
        if sure and (most > 1 or not keys.found) and bucket.provider is Provider.AIS:
            for cut in (at for at, character in enumerate(prefix) if character == "/"):
                with suppress(NotFound):
                    await self.head(bucket, prefix[:cut])
                    return await self._first_keys(bucket, prefix, most, prefix[:cut])
        return keys

    async def _first_keys(self, bucket: Bucket, prefix: str, most: int, beside: str = "") -> Keys:
        subject = f"{bucket}/{prefix}"

        def work(connections: ConnectionSet) -> Keys:
            bounds = ListingBounds(subject)
            found, token, pages = list[str](), prefix if beside else "", 0
            while True:  # a page of a cloud may be empty and not the last
                pages += 1
                request = requests.first_keys(bucket, prefix, token, most + 1, beside=beside)
                reply = self.transport.fetch(connections, request)
                keys, token, complete = replies.parse_keys(reply, bucket, prefix)
                found += [key for key in keys if key.startswith(prefix)]
                if not token or len(found) >= most or beside or not complete:
                    to_the_end = not token or not all(key.startswith(prefix) for key in keys)
                    # Between pages AIStore loses names.
                    is_all = pages == 1 or bucket.provider is not Provider.AIS
                    is_all &= to_the_end and complete and len(found) <= most
                    if is_all or len(found) < most:
                        check_listed(
                            self.transport, connections, bucket, subject, complete=complete
                        )
                    return Keys(found[:most], is_all)
                bounds.check(keys, token)

        return await self.run(subject, work, bucket)

    async def sized(self, bucket: Bucket, info: ObjectInfo) -> ObjectInfo:
        """See `ObjectStore`; sizes are known here."""
        return info

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """Describe the current version of one object."""

        def work(connections: ConnectionSet) -> ObjectInfo:
            return self.describe(connections, bucket, key, latest=latest)

        try:
            return await self.run(f"{bucket}/{key}", work, bucket, key)
        except FoundByGet as found:
            facts = self._facts.get(bucket, requests.BucketFacts())
            return requests.parse_first_byte(found.reply, bucket, key, facts)

    def describe(
        self, connections: ConnectionSet, bucket: Bucket, key: str, *, latest: bool = False
    ) -> ObjectInfo:
        """Do what `head` does. In the thread.

        Raises:
            FoundByGet: it answers otherwise than by a HEAD.
        """
        request = requests.head_object(bucket, key, with_props=self._head_with_props)
        byte = requests.get_range(bucket, key, 0, 1, latest=latest and not bucket.is_local)
        age = WRITE_AGE if latest else None
        check_newest(self.transport, connections, bucket, key, writes=False, age=age)
        if latest and not bucket.is_local:  # a GET renews the copy, a HEAD would only complain
            self._first_byte(connections, byte)
        facts = self.facts_of(connections, bucket)
        reply = self.transport.ask(connections, request)
        if refuses_props(reply):
            log.debug("%s: HEAD without props from now on", self.transport.endpoint)
            self._head_with_props = False
            plain = requests.head_object(bucket, key, with_props=False)
            reply = self.transport.ask(connections, plain)
        if reply.status == 409 and bucket.is_attached:
            return self._original(connections, bucket, key, facts)
        if reply.status != 200:
            raise failure(request, reply)
        if requests.lacks_size(reply, facts):
            reply = requests.with_size(reply, self._first_byte(connections, byte), byte)
        return requests.parse_object(reply, bucket, key, facts)

    def _original(
        self, connections: ConnectionSet, bucket: Bucket, key: str, facts: requests.BucketFacts
    ) -> ObjectInfo:
        """Describe an object of an attached cluster, of which AIStore has a copy of another version.

        The copy is renewed when it is read, which may take long.
        """
        request = requests.list_original(bucket, key)
        reply = self.transport.fetch(connections, request)
        info = replies.parse_original(reply, bucket, key, facts)
        if info is None:
            raise Unavailable(f"{request.subject}: changed while it was asked for")
        return info

    def _first_byte(self, connections: ConnectionSet, request: requests.Request) -> Reply:
        """Ask for the first byte of an object, which may be empty."""
        reply = self.transport.ask(connections, request)
        if reply.status not in (200, 206, 416):
            raise failure(request, reply)
        return reply

    async def read_range(
        self,
        bucket: Bucket,
        expected: ObjectInfo,
        start: int,
        buffer: memoryview,
        arrived: Arrived | None = None,
    ) -> None:
        """Fill `buffer` with the bytes from `start` on of exactly the version `expected`."""
        stop = start + len(buffer)
        if stop > expected.size:
            raise ValueError(f"[{start}, {stop}) is not within the {expected.size} bytes")
        request = partial(requests.get_range, bucket, expected.key, start, stop)
        subject = f"{bucket}/{expected.key}"

        def work(connections: ConnectionSet) -> None:
            facts = self.facts_of(connections, bucket)
            with self._originals.open(
                connections, bucket, expected, request, facts, start, stop
            ) as body:
                got = body.read_into(buffer, arrived)
            if got < len(buffer):
                raise _cut_short(subject, got, len(buffer))

        await self.run(subject, work, bucket, expected.key)

    async def read_many(
        self, bucket: Bucket, wanted: Sequence[tuple[ObjectInfo, memoryview]]
    ) -> list[bool]:
        """Fill buffers with whole objects, with one GetBatch; return which are filled."""
        return await self._batches.read(bucket, wanted)

    async def read_ranges(
        self, bucket: Bucket, wanted: Sequence[tuple[ObjectInfo, int, memoryview]]
    ) -> list[bool]:
        """Fill buffers with ranges of objects, with one GetBatch; return which are filled."""
        return await self._batches.read_ranges(bucket, wanted)

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """Send the whole object, version `expected`, to `sink` as the bytes arrive."""
        request = partial(requests.get_object, bucket, expected.key)
        subject, size = f"{bucket}/{expected.key}", expected.size

        def work(connections: ConnectionSet) -> None:
            facts = self.facts_of(connections, bucket)
            with self._originals.open(
                connections, bucket, expected, request, facts, 0, size
            ) as body:
                piece = memoryview(bytearray(min(_PIECE, size + 1)))
                done = 0
                while got := body.read_into(piece):
                    done += got
                    if done > size:
                        raise Stale(f"{subject}: longer than its {size} bytes")
                    sink(piece[:got])
            if done < size:
                raise _cut_short(subject, done, size)

        await self.run(subject, work, bucket, expected.key)

    async def create_bucket(self, bucket: Bucket) -> None:
        """Make an empty bucket."""
        await self._edits.create_bucket(bucket)

    async def destroy_bucket(self, bucket: Bucket) -> None:
        """Destroy a bucket with all that is in it, once; only for one that is known to be ours alone.

        Raises:
            BucketNotFound: there is none.
        """
        await self._edits.destroy_bucket(bucket)

    async def by_uuid(self, bucket: Bucket) -> Bucket:
        """Name the cluster of a bucket by its uuid, which an alias may stop to stand for."""
        return await self.run(str(bucket), partial(self.remotes.by_uuid, bucket=bucket))

    async def upload(self, upload: Upload) -> ObjectInfo:
        """Write one object whole, or not at all."""
        names.check_new_key(upload.bucket, upload.key)
        encode_custom(upload.custom, "")
        async with self._telling_of_emptied(upload.bucket, upload.key):
            info = await self._uploads.upload(upload)
        info = await self._edits.with_custom(upload.bucket, info, upload.custom)
        self._uploads.settle(upload)
        return info

    @property
    def ahead_above(self) -> int:
        """Bytes above which objects go in parts, if the cluster takes any."""
        return self._parts.above

    async def begin_upload(self, bucket: Bucket, key: str) -> UploadAhead | None:
        """Begin to write an object in parts; None when the cluster does not know how."""
        names.check_new_key(bucket, key)
        return await self._parts.begin(bucket, key, ahead=True)

    async def abandon_upload(self, bucket: Bucket, key: str, name: str) -> None:
        """Throw away the parts of an upload."""
        await self._parts.forget(bucket, key, name)

    async def remove(self, bucket: Bucket, key: str) -> None:
        """Delete one object."""
        await self._edits.remove(bucket, key)

    async def copy(self, bucket: Bucket, key: str, to_bucket: Bucket, new_key: str) -> ObjectInfo:
        """Copy an object; done by the cluster where it does so reliably."""
        if (bucket, key) == (to_bucket, new_key):
            raise ValueError(f"{bucket}/{key}: copied onto itself")
        names.check_new_key(to_bucket, new_key)
        async with self._telling_of_emptied(to_bucket, new_key):
            return await self._edits.copy(bucket, key, to_bucket, new_key)

    async def rename(
        self, bucket: Bucket, key: str, new_key: str, *, expected: ObjectInfo | None = None
    ) -> ObjectInfo:
        """Copy, make sure, delete: AIStore's own rename may lose the object."""
        if key == new_key:
            raise ValueError(f"{bucket}/{key}: renamed to itself")
        names.check_new_key(bucket, new_key)
        async with self._telling_of_emptied(bucket, new_key):
            return await self._edits.rename(bucket, key, new_key, expected)

    async def set_custom(
        self, bucket: Bucket, expected: ObjectInfo, custom: Mapping[str, str]
    ) -> ObjectInfo:
        """Replace the custom metadata of the content `expected`."""
        return await self._edits.set_custom(bucket, expected, custom)

    @asynccontextmanager
    async def _telling_of_emptied(self, bucket: Bucket, key: str) -> AsyncIterator[None]:
        """Raise an error that says so if an object cannot be written because of a hidden directory."""
        try:
            yield
        except IsADirectory as error:
            if (await self.first_keys(bucket, f"{key}/", 1)).found:
                raise
            raise IsADirectory(
                f"{bucket}/{key}: on the disk where AIStore would put this object is an emptied "
                "directory of that name, which it never removes: choose another name"
            ) from error

    async def watch_map(self) -> None:
        """Look at the cluster's map now and then, until cancelled.

        A target that leaves for good is marked so for a minute or more, and then gone from the map. A client that
        has not seen the mark would wait for it.
        """

        def look(connections: ConnectionSet) -> None:
            self.transport.keeps_map(connections, self.transport.endpoint)

        while True:
            await trio.sleep(MAP_LOOK_SECONDS)
            if self.transport.readiness.age >= MAP_LOOK_SECONDS:
                with suppress(AisfsError):
                    await self.run(self.transport.endpoint, look)

    async def aclose(self) -> None:
        """Close all connections, make the calls in progress fail, and wait until they have."""
        await self._pool.aclose()

    async def run(
        self,
        subject: str,
        work: Callable[[ConnectionSet], T],
        bucket: Bucket | None = None,
        key: str = "",
    ) -> T:
        """Run `work` in a thread, on connections of its own; a cancellation aborts them.

        If `work` does not find the object `key`, it is missing, or this raises `Unavailable`.
        """
        try:
            return await self._pool.run(subject, partial(self._work, subject, work, bucket, key))
        except BucketNotFound:
            # Created again under the same name, it would be another bucket.
            if bucket:
                self._facts.pop(bucket, None)
            raise

    def _work(
        self,
        subject: str,
        work: Callable[[ConnectionSet], T],
        bucket: Bucket | None,
        key: str,
        connections: ConnectionSet,
    ) -> T:
        """Do the work. In the thread."""
        connections.map_version = self.transport.readiness.version
        try:
            return work(connections)
        except NotFound as error:
            if bucket and key and not isinstance(error, BucketNotFound):
                check_absent(self.transport, connections, bucket, key)
            else:
                self._settle(connections, bucket, subject)
            raise
        except Stale:
            if bucket and key:  # else an older copy would count as a change
                check_newest(self.transport, connections, bucket, key, writes=False, age=0.0)
            raise

    def _settle(self, connections: ConnectionSet, bucket: Bucket | None, subject: str) -> None:
        """Make sure that what was not found is on no target of this cluster. In the thread."""
        if bucket and bucket.is_local:
            self.transport.settle(connections, subject)

    def facts_of(self, connections: ConnectionSet, bucket: Bucket) -> requests.BucketFacts:
        """Look the bucket's properties up, once; two threads may both do it, to the same end."""
        if (known := self._facts.get(bucket)) is not None:
            return known
        request = requests.head_bucket(bucket)
        reply = self.transport.ask(connections, request)
        if reply.status == 200:
            facts = requests.parse_bucket_facts(reply)
        else:
            error = failure(request, reply)
            if error.transient or reply.status == 401 or isinstance(error, BucketNotFound):
                raise error
            # A token for the objects alone must do: only times and checksum types are missed.
            log.debug("%s: unknown properties: %s", bucket, error)
            facts = requests.BucketFacts()
        self._facts[bucket] = facts
        return facts


def _cut_short(subject: str, got: int, wanted: int) -> AisfsError:
    return Unavailable(f"{subject}: the connection ended after {got} of {wanted} bytes")
