"""The port over AIStore's protocol: what to ask for, and how a call runs and ends.

Each call runs in a worker thread, on connections that it has to itself (`ConnectionPool`).

Must not know: HTTP beyond a reply's status, requests, errnos.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import trio

from aisfs.ais.absence import WRITE_AGE, FoundByGet, check_absent, check_listed, check_newest
from aisfs.ais.get_batch import Batches
from aisfs.ais.multipart import BegunUpload, Parts
from aisfs.ais.mutations import Mutations
from aisfs.ais.protocol import listings, object_replies, requests
from aisfs.ais.protocol.errors import failure, refuses_props
from aisfs.ais.remotes import Originals, Remotes
from aisfs.ais.sending import Upload
from aisfs.ais.transport.client import Transport
from aisfs.ais.uploads import Uploads
from aisfs.core.names import listing as names
from aisfs.core.names.listing import ListingBounds
from aisfs.errors import (
    AisfsError,
    BucketNotFound,
    IsADirectory,
    NotFound,
    Stale,
    Unavailable,
)
from aisfs.http.connections import ConnectionPool, ConnectionSet
from aisfs.http.exchange import Reply
from aisfs.model import NO_CUSTOM, Bucket, Keys, ObjectInfo, Page, Provider
from aisfs.settings import ClusterSettings
from aisfs.store.custom import encode_custom
from aisfs.store.port import Announce, Arrived, Content, Progress, Sink, UploadAhead
from aisfs.store.retry import Retrier

log = logging.getLogger(__name__)

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
            found = listings.parse_buckets(self.transport.fetch(connections, request))
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
                custom = listings.parse_custom(copies, bucket, prefix)
            reply = self.transport.fetch(connections, request)
            page = listings.parse_page(reply, bucket, prefix, facts, after=token, custom=custom)
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
                keys, token, complete = listings.parse_keys(reply, bucket, prefix)
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

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """Describe the current version of one object."""
        request = requests.head_object(bucket, key, with_props=self._head_with_props)
        byte = requests.get_range(bucket, key, 0, 1, latest=latest and not bucket.is_local)

        def work(connections: ConnectionSet) -> ObjectInfo:
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
            if object_replies.lacks_size(reply, facts):
                reply = object_replies.with_size(reply, self._first_byte(connections, byte), byte)
            return object_replies.parse_object(reply, bucket, key, facts)

        try:
            return await self.run(request.subject, work, bucket, key)
        except FoundByGet as found:
            facts = self._facts.get(bucket, requests.BucketFacts())
            return object_replies.parse_first_byte(found.reply, bucket, key, facts)

    def _original(
        self, connections: ConnectionSet, bucket: Bucket, key: str, facts: requests.BucketFacts
    ) -> ObjectInfo:
        """Describe an object of an attached cluster, of which AIStore has a copy of another version.

        The copy is renewed when it is read, which may take long.
        """
        request = requests.list_original(bucket, key)
        reply = self.transport.fetch(connections, request)
        info = listings.parse_original(reply, bucket, key, facts)
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

    async def upload(
        self,
        bucket: Bucket,
        key: str,
        content: Content,
        *,
        custom: Mapping[str, str] = NO_CUSTOM,
        progress: Progress | None = None,
        ahead: UploadAhead | None = None,
        announce: Announce | None = None,
        only_new: str = "",
        replaces: ObjectInfo | None = None,
    ) -> ObjectInfo:
        """Write one object whole, or not at all."""
        assert ahead is None or isinstance(ahead, BegunUpload), "made by `begin_upload`"
        names.check_new_key(bucket, key)
        encode_custom(custom, "")
        told, named = progress or (lambda done: None), announce or (lambda name: None)
        upload = Upload(bucket, key, content, custom, told, named, only_new, replaces)
        async with self._telling_of_emptied(bucket, key):
            info = await self._uploads.upload(upload, ahead)
        return await self._edits.with_custom(bucket, info, custom)

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

    async def rename(self, bucket: Bucket, key: str, new_key: str) -> ObjectInfo:
        """Copy, make sure, delete: AIStore's own rename may lose the object."""
        if key == new_key:
            raise ValueError(f"{bucket}/{key}: renamed to itself")
        names.check_new_key(bucket, new_key)
        async with self._telling_of_emptied(bucket, new_key):
            return await self._edits.rename(bucket, key, new_key)

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
