"""Web servers as buckets: a host is one, and the path of a URL is a key.

HTTP has no listings. The names in a directory are those of the server's own index of it, if it has
one, and sizes and versions are asked for file by file. Shards that the user named one by one need no
index: their names are all that is known of their directories.

Must not know: requests, errnos.
"""

import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

from cachetools import TTLCache

from aisfs.core.names.listing import INDEX_DIRECTORY
from aisfs.core.names.reach import Reach
from aisfs.core.names.urls import has_no_path, url_of
from aisfs.errors import (
    BucketNotFound,
    InvalidName,
    IsADirectory,
    NotFound,
    Unsupported,
)
from aisfs.http.connections import ConnectionSet
from aisfs.model import Bucket, Keys, ObjectInfo, Page, Provider
from aisfs.settings import ClusterSettings
from aisfs.store.at_once import all_of
from aisfs.store.port import Arrived, Count, Sink, uncounted
from aisfs.store.read_only import ReadOnlyStore
from aisfs.store.retry import Retrier
from aisfs.store.web import reading
from aisfs.store.web.client import WebClient
from aisfs.store.web.index_pages import Names, names_in_index, names_in_multistatus
from aisfs.store.web.validators import described

log = logging.getLogger(__name__)

_MOST_INDEX = 128 << 20
"""Bytes of an index page: half a million names with their sizes and dates."""
_PAGE = 1000
"""Names of one page of a listing: what is asked for one by one within the time that a call may take."""
_LISTINGS = 8
"""Of large directories at once, whose names are kept until their last page."""
_SECONDS_KEPT = 300.0
"""Until the names of a listing that was given up are forgotten; a page takes no longer than a call may."""
_MOST_LOOKED_INTO = 1000
"""Directories in which something is looked for that may be anywhere below a directory."""
_NO_INDEX = "/"
"""Token of the page behind the first one of a directory whose names are not to be had; no file's name."""
_ACCEPT = {"Accept": "application/json, text/html;q=0.9, */*;q=0.1"}
"""caddy has its index as JSON, too."""
_PROPFIND = {"Depth": "1", "Content-Length": "0"}
_NO_HEAD = (400, 403, 405, 501)
"""How a server that does not know HEAD may refuse it."""
_NO_INDEX_HERE = (400, 403, 404, 405, 406, 501)
"""How a server may refuse to list a directory."""


class WebStore(ReadOnlyStore):
    """Files of web servers."""

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        buckets: Iterable[Bucket] = (),
        named: Iterable[tuple[Bucket, str]] = (),
        count: Count = uncounted,
        reach: Reach | None = None,
    ) -> None:
        """Read the TLS settings; nothing is sent.

        Args:
            settings: How to connect.
            buckets: The hosts that are known to be of use.
            named: Files that were named one by one. A directory with any of them is taken to have
                no others.
            count: Told of each request.
            reach: Where redirects may lead, if that is limited.

        Raises:
            ConfigError: a file that the settings name is unusable.
        """
        self._client = WebClient(settings, count=count, reach=reach)
        self._buckets = sorted(buckets)
        self._at_once = settings.max_connections
        self._retrier = Retrier(deadline=settings.io_timeout)
        self._named: dict[tuple[Bucket, str], list[str]] = {}
        for bucket, key in named:
            directory = (bucket, key[: key.rfind("/") + 1])
            self._named.setdefault(directory, []).append(key)
        self._rest: TTLCache[tuple[Bucket, str], list[str]] = TTLCache(_LISTINGS, _SECONDS_KEPT)
        """The names in directories of which not all pages were asked for yet."""
        self._without_head: set[Bucket] = set()
        self._without_propfind: set[Bucket] = set()

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """Return the hosts that are known to be of use."""
        return [bucket for bucket in self._buckets if provider in (None, bucket.provider)]

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        """List the next names of a directory, in their order."""
        _check(bucket, prefix)
        if has_no_path(prefix):
            return Page([], [], "")
        begins = token in ("", _NO_INDEX)
        files = None if begins else self._rest.get((bucket, prefix))
        directories: list[str] = []
        if files is None:
            try:
                names = await self._names(bucket, prefix)
            except Unsupported as error:
                if token == _NO_INDEX:
                    raise
                # The directory counts as a large one: its names are looked up one by one.
                log.info("%s", error)
                return Page([], [], _NO_INDEX)
            files = sorted(names.files)
            directories = [f"{prefix}{name}/" for name in names.directories] if begins else []
        first = 0 if begins else bisect_right(files, token)
        now = files[first : first + _PAGE]
        infos, more = await self._describe(bucket, prefix, now)
        if first + _PAGE < len(files):
            self._rest[bucket, prefix] = files
            return Page(infos, sorted(directories + more), now[-1])
        self._rest.pop((bucket, prefix), None)
        return Page(infos, sorted(directories + more), "")

    async def first_keys(
        self, bucket: Bucket, prefix: str, most: int, *, sure: bool = False
    ) -> Keys:
        """Return `most` keys at most of files below the directory `prefix`."""
        _check(bucket, prefix)
        if has_no_path(prefix):
            return Keys([], complete=True)
        named = (key for (host, _), keys in self._named.items() if host == bucket for key in keys)
        if not prefix and (some := [*islice(named, self._at_once)]):
            there: list[str] = []
            for key in some:  # at once an error if the server cannot be asked
                with suppress(NotFound):
                    there.append((await self.head(bucket, key)).key)
                if len(there) == most:
                    break
            return Keys(there, complete=False)
        found: list[str] = []
        folders, looked = [prefix], 0
        while folders and len(found) <= most and looked < _MOST_LOOKED_INTO:
            folder, looked = folders.pop(), looked + 1
            names = await self._names_below(bucket, folder)
            found += sorted(folder + name for name in names.files)
            folders += sorted(f"{folder}{name}/" for name in names.directories)
        return Keys(found[:most], len(found) <= most and not folders)

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """Ask the server for the version of a file."""
        _check(bucket)
        subject = f"{bucket}/{key}"
        if not key or key.endswith("/") or has_no_path(f"{key}/"):
            raise NotFound(f"{subject}: no name of a file")
        try:
            return await self._client.pool.run(subject, partial(self._head, bucket, key))
        except IsADirectory as error:
            raise NotFound(str(error)) from error

    async def read_range(
        self,
        bucket: Bucket,
        expected: ObjectInfo,
        start: int,
        buffer: memoryview,
        arrived: Arrived | None = None,
    ) -> None:
        """Fill `buffer` with the bytes from `start` on of exactly the version `expected`."""
        if not 0 <= start < start + len(buffer) <= expected.size:
            raise ValueError(f"{len(buffer)} bytes from {start} on of {expected.size}")
        _check(bucket)
        subject, url = f"{bucket}/{expected.key}", url_of(bucket, expected.key)

        def work(connections: ConnectionSet) -> None:
            reading.read_range(
                self._client, connections, url, subject, expected, start, buffer, arrived
            )

        await self._client.pool.run(subject, work)

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """Send the whole file, version `expected`, to `sink` as the bytes arrive."""
        _check(bucket)
        subject, url = f"{bucket}/{expected.key}", url_of(bucket, expected.key)

        def work(connections: ConnectionSet) -> None:
            reading.stream(self._client, connections, url, subject, expected, sink)

        await self._client.pool.run(subject, work)

    async def aclose(self) -> None:
        """Close all connections, make the calls in progress fail, and wait until they have."""
        await self._client.pool.aclose()

    # Names ---------------------------------------------------------------------------------------

    async def _names(self, bucket: Bucket, prefix: str) -> Names:
        """Return the names in a directory.

        Raises:
            NotFound: there is no such directory.
            Unsupported: there is no index of it.
        """
        if (named := self._named.get((bucket, prefix))) is not None:
            return Names({key[len(prefix) :] for key in named})
        subject = f"{bucket}/{prefix}"
        if (bucket, prefix.removesuffix(f"{INDEX_DIRECTORY}/")) in self._named:
            raise Unsupported(f"{subject}: the files beside it were named one by one")
        return await self._client.pool.run(subject, partial(self._index, bucket, prefix))

    async def _names_below(self, bucket: Bucket, prefix: str) -> Names:
        """Likewise, but there is nothing in what is missing, or in a file that is called like a directory."""
        try:
            return await self._names(bucket, prefix)
        except NotFound:
            return Names()
        except Unsupported:
            if prefix:
                try:
                    await self.head(bucket, prefix.removesuffix("/"))
                except NotFound:
                    pass
                else:
                    return Names()
            raise

    async def _describe(
        self, bucket: Bucket, prefix: str, names: Sequence[str]
    ) -> tuple[list[ObjectInfo], list[str]]:
        """Ask for the versions of files; return those that are there, and what is a directory."""
        found: dict[str, ObjectInfo] = {}
        directories: list[str] = []

        async def one(key: str) -> None:
            subject = f"{bucket}/{key}"
            attempt = partial(self._client.pool.run, subject, partial(self._head, bucket, key))
            try:
                found[key] = await self._retrier.run(subject, attempt)
            except IsADirectory:
                directories.append(f"{key}/")
            except NotFound:  # gone since, or a link that leads nowhere
                log.info("%s: named by the index, but not there", subject)

        keys = [prefix + name for name in names]
        jobs: list[Callable[[], Awaitable[None]]] = [partial(one, key) for key in keys]
        await all_of(jobs, self._at_once)
        return [found[key] for key in keys if key in found], directories

    # In worker threads ---------------------------------------------------------------------------

    def _index(self, bucket: Bucket, prefix: str, connections: ConnectionSet) -> Names:
        subject, url = f"{bucket}/{prefix}", url_of(bucket, prefix)
        listing = partial(self._client.open, connections, kind="list")
        with listing("GET", url, subject, _ACCEPT, accepted=(200, *_NO_INDEX_HERE)) as reply:
            status = reply.head.status
            names = None
            if status == 200:
                names = names_in_index(reply.url, reply.read(_MOST_INDEX))
        if names is None and status == 404 and prefix:
            raise NotFound(f"{subject}: no such directory")
        if names is None and bucket not in self._without_propfind:
            accepted = (207, *_NO_INDEX_HERE)
            with listing("PROPFIND", url, subject, _PROPFIND, accepted=accepted) as reply:
                if reply.head.status == 207:
                    return names_in_multistatus(reply.url, reply.read(_MOST_INDEX))
            self._without_propfind.add(bucket)
        if names is None:
            why = "its page is none that a server makes" if status == 200 else f"HTTP {status}"
            if status == 400:
                why += ", as where a client certificate is missing"
            raise Unsupported(
                f"{subject}: the server has no index of this directory ({why}): name the files,"
                " with braces such as x-{000..099}.tar or in a list file"
            )
        return names

    def _head(self, bucket: Bucket, key: str, connections: ConnectionSet) -> ObjectInfo:
        subject, url = f"{bucket}/{key}", url_of(bucket, key)
        if bucket not in self._without_head:
            with self._client.open(
                connections, "HEAD", url, subject, accepted=(200, *_NO_HEAD), kind="head"
            ) as reply:
                head = reply.head
            if head.status == 200 and "content-length" in head.headers:
                return described(subject, key, head)
        first = {"Range": "bytes=0-0"}
        with self._client.open(
            connections, "GET", url, subject, first, accepted=(200, 206, 416)
        ) as reply:
            head = reply.head
        if head.status == 416 and head.headers.get("content-range") == "bytes */0":
            head = type(head)(200, {**head.headers, "content-length": "0"})
        info = described(subject, key, head)
        self._without_head.add(bucket)
        return info


def _check(bucket: Bucket, prefix: str = "") -> None:
    if bucket.provider not in (Provider.HTTP, Provider.HTTPS):
        raise BucketNotFound(f"{bucket}: no web server")
    if prefix and not prefix.endswith("/"):
        raise InvalidName(f"{bucket}/{prefix}: a directory prefix ends in '/'")
